//! From a claimed task to its PNGs: fetch references, draw, fit, encode.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use sha2::{Digest as _, Sha256};

use crate::config::WorkerSettings;
use crate::domain::model::{Id, Violation};
use crate::domain::reference_url::ReferenceUrl;
use crate::outbound::references::{FaultKind, ReferenceOptions, References, TrustedTestHost};
use crate::policy::{Policy, Subject, Verdict};
use crate::sandbox::Decoder;
use crate::service::Shared;
use crate::service::tasks::CANNOT_DRAW;
use crate::store::Claim;
use tintype_engine::picture::Picture;
use tintype_engine::{Brief, Engine, EngineError};

/// Why an attempt gave no images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenderError {
    /// The task ends, with this sentence for the caller.
    Final(String),
    /// The content policy refuses the task.
    Refused(Violation),
    /// Another attempt may succeed; the text is for the operator.
    Again(String),
}

/// Makes the images of a task. The worker knows leases; this knows pictures.
#[async_trait]
pub trait Renderer: Send + Sync + 'static {
    /// The PNGs of one task, in order, within `time_limit`.
    ///
    /// # Errors
    /// [`RenderError`].
    async fn render(&self, claim: &Claim, time_limit: Duration) -> Result<Vec<Bytes>, RenderError>;

    /// What a task with references waits for before it takes a render slot: its references, in order.
    ///
    /// # Errors
    /// [`RenderError`].
    async fn prepare(&self, _claim: &Claim) -> Result<Vec<Picture>, RenderError> {
        Ok(Vec::new())
    }

    /// The rest of [`Renderer::render`], with what [`Renderer::prepare`] gave.
    ///
    /// # Errors
    /// [`RenderError`].
    async fn draw(
        &self,
        claim: &Claim,
        _references: Vec<Picture>,
        time_limit: Duration,
    ) -> Result<Vec<Bytes>, RenderError> {
        self.render(claim, time_limit).await
    }
}

/// Longest download of one reference image.
const REFERENCE_TIME_LIMIT: Duration = Duration::from_secs(20);
/// Largest reference image.
const REFERENCE_MAX_BYTES: usize = 20 * 1024 * 1024;

/// Renders with an engine, after the policy has judged the prompt and the references.
#[derive(Debug)]
pub struct EngineRenderer {
    shared: Arc<Shared>,
    engine: Arc<dyn Engine>,
    policy: Arc<Policy>,
    references: References,
    reference_ports: Vec<u16>,
}

#[async_trait]
impl Renderer for EngineRenderer {
    async fn render(&self, claim: &Claim, time_limit: Duration) -> Result<Vec<Bytes>, RenderError> {
        let references = self.prepare(claim).await?;
        self.draw(claim, references, time_limit).await
    }

    async fn prepare(&self, claim: &Claim) -> Result<Vec<Picture>, RenderError> {
        let rules = self.policy.rules();
        // Before anything is downloaded.
        self.heed(claim, rules.judge_prompt(&claim.request.prompt).await)?;
        let references = self.references(claim).await?;
        if !references.is_empty() {
            self.heed(claim, rules.judge_pictures(Subject::References, &references).await)?;
        }
        Ok(references)
    }

    async fn draw(
        &self,
        claim: &Claim,
        references: Vec<Picture>,
        time_limit: Duration,
    ) -> Result<Vec<Bytes>, RenderError> {
        let request = &claim.request;
        let (width, height) = request.aspect_ratio.size();
        let seeds = (0..request.n).map(|index| seed(claim.lease.task_id, index)).collect();
        let brief = Brief { prompt: request.prompt.clone(), width, height, seeds, references, time_limit };
        let pictures = self.engine.render(brief).await.map_err(|error| {
            tracing::info!(task = %claim.lease.task_id, %error, "the engine gave no pictures");
            match error {
                EngineError::Refused(_) => RenderError::Refused(Violation::Engine),
                EngineError::Permanent(_) => RenderError::Final(CANNOT_DRAW.into()),
                EngineError::Temporary(cause) => RenderError::Again(cause),
            }
        })?;
        if pictures.len() != usize::from(request.n) {
            let cause = format!("the engine drew {} pictures instead of {}", pictures.len(), request.n);
            return Err(RenderError::Again(cause));
        }
        let pictures = on_another_thread(move || fit(pictures, width, height)).await?;
        self.heed(claim, self.policy.rules().judge_pictures(Subject::Results, &pictures).await)?;
        on_another_thread(move || pictures.iter().map(|picture| Bytes::from(picture.to_png())).collect()).await
    }
}

impl EngineRenderer {
    /// A renderer with this engine.
    ///
    /// # Errors
    /// A sentence for the operator when the downloader of references cannot be built.
    pub fn new(
        settings: &WorkerSettings,
        shared: Arc<Shared>,
        policy: Arc<Policy>,
        engine: Arc<dyn Engine>,
    ) -> Result<Self, String> {
        let references = References::new(reference_options(settings)?).map_err(|error| error.to_string())?;
        Ok(Self { shared, engine, policy, references, reference_ports: settings.reference_ports.clone() })
    }

    /// Goes on, or not, by what the policy says.
    fn heed(&self, claim: &Claim, verdict: Verdict) -> Result<(), RenderError> {
        match verdict {
            Verdict::Passed => Ok(()),
            Verdict::Unasked(cause) => {
                self.shared.metrics.unmoderated.inc();
                tracing::warn!(task = %claim.lease.task_id, cause, "passed without moderation: no answer");
                Ok(())
            }
            Verdict::Refused(violation) => Err(RenderError::Refused(violation)),
            Verdict::Unjudged(cause) => Err(RenderError::Again(format!("the policy could not judge: {cause}"))),
        }
    }

    async fn references(&self, claim: &Claim) -> Result<Vec<Picture>, RenderError> {
        let parse = |(index, url): (usize, &String)| {
            // Checked at submission; the settings may have changed since.
            ReferenceUrl::parse(url, &self.reference_ports)
                .map_err(|fault| RenderError::Final(format!("reference_images[{index}] {fault}.")))
        };
        let urls = claim.request.reference_images.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        self.references.fetch_for(claim.account_id, &urls).await.map_err(|fault| match fault.kind {
            FaultKind::Unexamined => RenderError::Again(fault.to_string()),
            _ => RenderError::Final(fault.to_string()),
        })
    }
}

/// Brings every picture to the exact size.
fn fit(pictures: Vec<Picture>, width: u32, height: u32) -> Vec<Picture> {
    pictures.into_iter().map(|picture| picture.fit(width, height)).collect()
}

/// Runs what takes long away from the async threads.
async fn on_another_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, RenderError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| RenderError::Again(error.to_string()))
}

/// The seed of one image: another for every image, the same for every attempt.
fn seed(task_id: Id, index: u8) -> u64 {
    let digest = Sha256::new().chain_update(task_id.as_str()).chain_update([index]).finalize();
    let (first, _) = digest.split_first_chunk().expect("SHA-256 has 32 bytes");
    u64::from_le_bytes(*first)
}

fn reference_options(settings: &WorkerSettings) -> Result<ReferenceOptions, String> {
    let trust = match (&settings.test_reference_host, &settings.test_reference_ca) {
        (Some(host), Some(ca)) => Some(trusted_test_host(host, ca)?),
        _ => None,
    };
    Ok(ReferenceOptions {
        ports: settings.reference_ports.clone(),
        time_limit: REFERENCE_TIME_LIMIT,
        max_bytes: REFERENCE_MAX_BYTES,
        decoder: Decoder::new(&settings.test_picture_decoder),
        trust,
        ..ReferenceOptions::default()
    })
}

fn trusted_test_host(host: &str, ca: &PathBuf) -> Result<TrustedTestHost, String> {
    let invalid = || format!("{host:?} is not NAME=ADDR, such as pictures.test.example=127.0.0.1:8443");
    let (name, address) = host.split_once('=').ok_or_else(invalid)?;
    let ca_pem = std::fs::read(ca).map_err(|error| format!("cannot read {}: {error}", ca.display()))?;
    Ok(TrustedTestHost { host: name.to_owned(), address: address.parse().map_err(|_| invalid())?, ca_pem })
}

/// Runs a part of an attempt; a panic or a hang costs the attempt.
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    part: impl Future<Output = Result<T, RenderError>>,
) -> Result<T, RenderError> {
    match tokio::time::timeout(limit, AssertUnwindSafe(part).catch_unwind()).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(RenderError::Again(format!("{what} panicked"))),
        Err(_) => Err(RenderError::Again(format!("{what} took longer than {} s", limit.as_secs()))),
    }
}
