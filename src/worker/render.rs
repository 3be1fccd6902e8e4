//! From a claimed task to its PNGs: fetch references, render, fit, encode.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use tracing::Instrument as _;

use super::stored_references::{self, TaskImage};
use crate::policy::{Policy, Subject, Verdict};
use crate::service::ServiceContext;
use crate::service::endings::{CANNOT_RENDER, too_many_references};
use tintype_config::WorkerSettings;
use tintype_domain::model::{FailureCause, ReferenceProblem, TaskFailure, Violation};
use tintype_domain::reference_url::ReferenceUrl;
use tintype_domain::text::counted;
use tintype_engine::picture::Picture;
use tintype_engine::{
    Brief, CancellationToken, Engine, EngineError, EngineInfo, LoraSource, Mask, Progress, RenderSettings,
};
use tintype_outbound::references::{FaultKind, ReferenceFault, ReferenceOptions, References, TrustedTestHost};
use tintype_store::{ANY_REFERENCES, Claim};
use tintype_system::sandbox::Decoder;

/// Failure of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenderError {
    /// The task fails.
    Final(TaskFailure),
    /// The content policy refuses the task.
    Refused(Violation),
    /// Another attempt may succeed; the text is for the operator.
    Retry(String),
    /// The engine takes no work now and has not begun, so that the attempt does not count; the text is for the operator.
    NotAvailable(String),
    /// The engine takes work, but not this.
    TurnedAway {
        /// The cause, for the operator.
        cause: String,
        /// Time to wait before it is tried again, if the engine asks for one.
        pause: Option<Duration>,
        /// Whether the engine has too much to do, so that the task isn't the cause.
        is_busy: bool,
    },
}

/// The connection between the worker and a running render.
#[derive(Debug)]
pub struct RenderControl {
    /// Time left for the attempt.
    pub time_limit: Duration,
    /// Progress of the render.
    pub progress: Progress,
    /// Cancelled when the images are no longer needed.
    pub cancel: CancellationToken,
}

/// The pictures from which a task is rendered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// The reference pictures, in order.
    pub references: Vec<Picture>,
    /// The part of the first one that changes.
    pub mask: Option<Mask>,
}

/// Renders a task's images. The worker handles leases; the renderer handles pictures.
#[async_trait]
pub trait Renderer: Send + Sync + 'static {
    /// Prepares the render of a task. A task with references holds no render slot meanwhile.
    async fn prepare(&self, _claim: &Claim) -> Result<Sources, RenderError> {
        Ok(Sources::default())
    }

    /// Renders the images of a task from what [`Renderer::prepare`] returned: PNGs, in order.
    async fn render(&self, claim: &Claim, sources: Sources, control: RenderControl) -> Result<Vec<Bytes>, RenderError>;

    /// Most reference images of a task that the engine takes.
    fn max_references(&self) -> u32 {
        ANY_REFERENCES
    }

    /// Whether the engine takes masks.
    fn masks(&self) -> bool {
        false
    }

    /// Longest time for one attempt unless the operator sets another; `None` for the usual one.
    fn attempt_limit(&self) -> Option<Duration> {
        None
    }

    /// Waits until an engine with its own process has started it, successfully or not.
    async fn started(&self) {}

    /// Checks whether the engine takes work, after [`RenderError::NotAvailable`].
    ///
    /// # Errors
    /// The reason why not, for the operator.
    async fn probe(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Longest download of one reference image.
const REFERENCE_TIME_LIMIT: Duration = Duration::from_secs(20);
/// Largest reference image.
const REFERENCE_MAX_BYTES: usize = 20 * 1024 * 1024;

/// Renders with an engine. The content policy judges the prompt, the references and the results.
#[derive(Debug)]
pub struct EngineRenderer {
    shared: Arc<ServiceContext>,
    info: EngineInfo,
    engine: Arc<dyn Engine>,
    policy: Arc<Policy>,
    references: References,
    decoder: Decoder,
    reference_ports: Vec<u16>,
}

#[async_trait]
impl Renderer for EngineRenderer {
    async fn prepare(&self, claim: &Claim) -> Result<Sources, RenderError> {
        let rules = self.policy.rules();
        // Before any download.
        self.apply(claim, rules.judge_prompt(&claim.request.prompt).await)?;
        // No worker claims such a task, unless an earlier build wrote its row in the queue.
        if claim.request.reference_images.len() > self.info.max_references {
            let most = self.max_references();
            let (cause, message) = (FailureCause::TooManyReferences(most), too_many_references(most));
            return Err(RenderError::Final(TaskFailure { cause, message }));
        }
        if claim.request.settings.mask.is_some() && !self.info.masks {
            tracing::warn!(task = %claim.lease.task_id, engine = self.info.name, "the engine takes no mask, so the task fails: give its preset an engine that takes one");
            return Err(RenderError::Final(TaskFailure::new(FailureCause::Engine, CANNOT_RENDER)));
        }
        if !claim.request.settings.render.loras.is_empty() && self.info.loras == LoraSource::Nowhere {
            tracing::warn!(task = %claim.lease.task_id, engine = self.info.name, "the engine takes no LoRA, so the task fails: give its preset an engine that takes one");
            return Err(RenderError::Final(TaskFailure::new(FailureCause::Engine, CANNOT_RENDER)));
        }
        let references = self.references(claim).await?;
        if !references.is_empty() {
            self.apply(claim, rules.judge_pictures(Subject::References, &references).await)?;
        }
        let mask = self.mask(claim, references.first()).await?;
        Ok(Sources { references, mask })
    }

    async fn render(&self, claim: &Claim, sources: Sources, control: RenderControl) -> Result<Vec<Bytes>, RenderError> {
        let (width, height) = claim.request.aspect_ratio.size();
        let native = self.info.sizes.nearest(width, height);
        let (sources, edit) = on_another_thread(move || for_engine(sources, (width, height), native)).await?;
        let pictures = self.pictures(claim, sources, native, control).await.map_err(|error| {
            tracing::info!(task = %claim.lease.task_id, %error, "the engine returned no images");
            match error {
                EngineError::Refused(_) => RenderError::Refused(Violation::Engine),
                EngineError::Permanent(_) => RenderError::Final(TaskFailure::new(FailureCause::Engine, CANNOT_RENDER)),
                EngineError::Temporary(cause) => RenderError::Retry(cause),
                EngineError::NotAvailable(cause) => RenderError::NotAvailable(cause),
                EngineError::TurnedAway { cause, pause, is_busy } => RenderError::TurnedAway { cause, pause, is_busy },
            }
        })?;
        let edit = edit.map(Arc::new);
        let pictures = each(pictures, move |picture| finish(picture, edit.as_deref(), width, height)).await?;
        let rules = self.policy.rules();
        if rules.judges_results() {
            let judging = rules.judge_pictures(Subject::Results, &pictures);
            self.apply(claim, judging.instrument(tracing::debug_span!("policy")).await)?;
        }
        let encoding = each(pictures, |picture| Bytes::from(picture.to_png()));
        encoding.instrument(tracing::debug_span!("encode")).await
    }

    fn max_references(&self) -> u32 {
        u32::try_from(self.info.max_references).unwrap_or(u32::MAX)
    }

    fn masks(&self) -> bool {
        self.info.masks
    }

    fn attempt_limit(&self) -> Option<Duration> {
        self.info.attempt_limit
    }

    async fn started(&self) {
        // The next probe reports the reason.
        drop(self.engine.started().await);
    }

    async fn probe(&self) -> Result<(), String> {
        self.engine.probe().await.map_err(|error| error.to_string())
    }
}

impl EngineRenderer {
    /// A renderer with this engine.
    pub fn new(
        settings: &WorkerSettings,
        shared: Arc<ServiceContext>,
        policy: Arc<Policy>,
        info: EngineInfo,
        engine: Arc<dyn Engine>,
    ) -> Result<Self, String> {
        let references = References::new(reference_options(settings)?).map_err(|error| error.to_string())?;
        let decoder = Decoder::new(&settings.test_picture_decoder);
        let reference_ports = settings.reference_ports.clone();
        Ok(Self { shared, info, engine, policy, references, decoder, reference_ports })
    }

    /// The pictures of a task at a size that the engine renders natively.
    async fn pictures(
        &self,
        claim: &Claim,
        Sources { references, mask }: Sources,
        (width, height): (u32, u32),
        control: RenderControl,
    ) -> Result<Vec<Picture>, EngineError> {
        let request = &claim.request;
        let RenderControl { time_limit, progress, cancel } = control;
        let seeds: Vec<u64> = request.seeds(claim.lease.task_id).map(u64::from).collect();
        let count = seeds.len();
        // Tasks with different seeds can share a batch.
        let mut settings = RenderSettings { seed: None, ..request.settings.render.clone() };
        // Below 1 some engines would render the negative prompt, and the policy has only judged the prompt.
        if settings.guidance_scale.is_some_and(|scale| scale < 1.0) {
            settings.negative_prompt = None;
        }
        let prompt = request.prompt.clone();
        let brief = Brief { prompt, width, height, seeds, settings, references, mask, time_limit };
        let pictures = self.engine.render(brief, progress, cancel).await?;
        if pictures.len() != count {
            let rendered = counted(pictures.len() as u64, "picture", "pictures");
            let cause = format!("the engine rendered {rendered} instead of {count}");
            return Err(EngineError::Temporary(cause));
        }
        Ok(pictures)
    }

    /// Turns the policy's verdict into an error, unless it lets the task pass.
    fn apply(&self, claim: &Claim, verdict: Verdict) -> Result<(), RenderError> {
        match verdict {
            Verdict::Passed => Ok(()),
            Verdict::Skipped(cause) => {
                self.shared.metrics.unmoderated.inc();
                tracing::warn!(task = %claim.lease.task_id, cause, "task accepted unmoderated: the moderation service gave no verdict");
                Ok(())
            }
            Verdict::Refused(violation) => Err(RenderError::Refused(violation)),
            Verdict::Undetermined(cause) => Err(RenderError::Retry(format!("the policy could not judge: {cause}"))),
        }
    }

    /// The references of a task, in order: pictures of its account from the files, all others from their URLs.
    async fn references(&self, claim: &Claim) -> Result<Vec<Picture>, RenderError> {
        let own: BTreeMap<_, _> = claim.request.own_references().collect();
        let parse = |(index, url): (usize, &String)| {
            // Checked at submission; the settings may have changed since.
            let parsed = ReferenceUrl::parse(url, &self.reference_ports);
            let parsed = parsed.map_err(|fault| {
                bad_reference(index, ReferenceProblem::Address, format!("reference_images[{index}] {fault}."))
            })?;
            Ok((index, parsed))
        };
        let all = claim.request.reference_images.iter().enumerate();
        let (indices, urls): (Vec<usize>, Vec<ReferenceUrl>) =
            all.filter(|(index, _)| !own.contains_key(index)).map(parse).collect::<Result<_, _>>()?;
        let mut pictures = BTreeMap::new();
        for (index, own) in own {
            let image = TaskImage::Reference(index);
            pictures.insert(index, stored_references::picture(&self.shared, &self.decoder, claim, image, own).await?);
        }
        let fetched = self.references.fetch_for(claim.account_id, &urls).await.map_err(|fault| {
            let fault = ReferenceFault { index: indices[fault.index], ..fault };
            let problem = match fault.kind {
                FaultKind::Unexamined => return RenderError::Retry(fault.to_string()),
                FaultKind::Unreachable => ReferenceProblem::Unreachable,
                FaultKind::TooLarge => ReferenceProblem::TooLarge,
                FaultKind::NotAnImage => ReferenceProblem::NotAnImage,
                FaultKind::Damaged => ReferenceProblem::Damaged,
            };
            bad_reference(fault.index, problem, fault.to_string())
        })?;
        pictures.extend(indices.into_iter().zip(fetched));
        Ok(pictures.into_values().collect())
    }

    async fn mask(&self, claim: &Claim, first: Option<&Picture>) -> Result<Option<Mask>, RenderError> {
        if claim.request.settings.mask.is_none() {
            return Ok(None);
        }
        let (Some(own), Some(first)) = (claim.request.own_mask(), first) else {
            // Without its mask the engine would paint over all of the picture.
            tracing::error!(task = %claim.lease.task_id, "the mask of the task cannot be read, so the task fails");
            return Err(RenderError::Final(TaskFailure::new(FailureCause::Engine, CANNOT_RENDER)));
        };
        let mask = stored_references::picture(&self.shared, &self.decoder, claim, TaskImage::Mask, own).await?;
        let size = |picture: &Picture| format!("{}x{}", picture.width(), picture.height());
        let (mask_size, first_size) = (size(&mask), size(first));
        if mask_size != first_size {
            let message = format!("The mask has {mask_size} pixels, and reference_images[0] has {first_size}.");
            return Err(bad_reference(0, ReferenceProblem::MaskSize, message));
        }
        Ok(Some(Mask::of(mask)))
    }
}

/// An edit within a mask, at the size of the result.
#[derive(Debug)]
struct Edit {
    original: Picture,
    mask: Mask,
}

/// The pictures for an engine that renders at the size `native`. With a mask each side is scaled separately, so that
/// the whole picture comes back in place.
fn for_engine(sources: Sources, (width, height): (u32, u32), native: (u32, u32)) -> (Sources, Option<Edit>) {
    let Sources { mut references, mask } = sources;
    let (Some(mask), Some(first)) = (mask, references.first_mut()) else {
        return (Sources { references, mask: None }, None);
    };
    let edit = Edit { original: first.clone().fit(width, height), mask: mask.fit(width, height) };
    *first = edit.original.clone().stretch(native.0, native.1);
    let mask = edit.mask.clone().stretch(native.0, native.1);
    (Sources { references, mask: Some(mask) }, Some(edit))
}

impl Edit {
    /// What the engine painted where the mask lets it, and the original everywhere else.
    fn keep(&self, painted: Picture) -> Picture {
        let painted = painted.stretch(self.original.width(), self.original.height());
        self.mask.blend(&self.original, &painted).unwrap_or(painted)
    }
}

/// The failure of a task because of a reference; its index is from 0.
pub(super) fn bad_reference(index: usize, problem: ReferenceProblem, message: String) -> RenderError {
    RenderError::Final(TaskFailure { cause: FailureCause::Reference(index, problem), message })
}

/// Brings a picture to the exact size.
fn finish(picture: Picture, edit: Option<&Edit>, width: u32, height: u32) -> Picture {
    match edit {
        Some(edit) => edit.keep(picture),
        None => picture.fit(width, height),
    }
}

/// Applies this to each picture, on all available threads.
async fn each<T: Send + 'static>(
    pictures: Vec<Picture>,
    work: impl Fn(Picture) -> T + Clone + Send + 'static,
) -> Result<Vec<T>, RenderError> {
    let on_thread = |picture| {
        let work = work.clone();
        on_another_thread(move || work(picture))
    };
    try_join_all(pictures.into_iter().map(on_thread)).await
}

/// Runs long work on a thread of the blocking pool.
async fn on_another_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, RenderError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| RenderError::Retry(error.to_string()))
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
