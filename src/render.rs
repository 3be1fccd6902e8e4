//! From a claimed task to its PNGs: fetch references, draw, fit, encode.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::app::App;
use crate::engine::{Brief, EngineError};
use crate::model::Id;
use crate::picture::Picture;
use crate::references::{FaultKind, ReferenceUrl};
use crate::store::Claim;
use crate::tasks::{CANNOT_DRAW, REFUSED};

/// Why an attempt gave no images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenderError {
    /// The task ends, with this sentence for the caller.
    Final(String),
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
}

/// The renderer behind a real server: the engine and the references of an [`App`].
#[derive(Debug)]
pub struct EngineRenderer(pub Arc<App>);

#[async_trait]
impl Renderer for EngineRenderer {
    async fn render(&self, claim: &Claim, time_limit: Duration) -> Result<Vec<Bytes>, RenderError> {
        let Self(app) = self;
        let request = &claim.request;
        let references = self.references(&request.reference_images).await?;
        let (width, height) = request.aspect_ratio.size();
        let seeds = (0..request.n).map(|index| seed(claim.lease.task_id, index)).collect();
        let brief = Brief { prompt: request.prompt.clone(), width, height, seeds, references, time_limit };
        let pictures = app.engine.render(brief).await.map_err(|error| {
            tracing::info!(task = %claim.lease.task_id, %error, "the engine gave no pictures");
            match error {
                EngineError::Refused(_) => RenderError::Final(REFUSED.into()),
                EngineError::Permanent(_) => RenderError::Final(CANNOT_DRAW.into()),
                EngineError::Temporary(cause) => RenderError::Again(cause),
            }
        })?;
        if pictures.len() != usize::from(request.n) {
            let cause = format!("the engine drew {} pictures instead of {}", pictures.len(), request.n);
            return Err(RenderError::Again(cause));
        }
        encode(pictures, width, height).await
    }
}

impl EngineRenderer {
    async fn references(&self, urls: &[String]) -> Result<Vec<Picture>, RenderError> {
        let Self(app) = self;
        let ports = &app.config.worker.reference_ports;
        let parse = |(index, url): (usize, &String)| {
            // Checked at submission; the settings may have changed since.
            ReferenceUrl::parse(url, ports)
                .map_err(|fault| RenderError::Final(format!("reference_images[{index}] {fault}.")))
        };
        let urls = urls.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        app.references.fetch(&urls).await.map_err(|fault| match fault.kind {
            FaultKind::Unexamined => RenderError::Again(fault.to_string()),
            _ => RenderError::Final(fault.to_string()),
        })
    }
}

/// Brings every picture to the exact size and writes it as PNG, away from the async threads.
async fn encode(pictures: Vec<Picture>, width: u32, height: u32) -> Result<Vec<Bytes>, RenderError> {
    let encode = move || pictures.into_iter().map(|picture| Bytes::from(picture.fit(width, height).to_png())).collect();
    tokio::task::spawn_blocking(encode).await.map_err(|error| RenderError::Again(error.to_string()))
}

/// The seed of one image: another for every image, the same for every attempt.
fn seed(task_id: Id, index: u8) -> u64 {
    let digest = Sha256::new().chain_update(task_id.as_str()).chain_update([index]).finalize();
    let (first, _) = digest.split_first_chunk().expect("SHA-256 has 32 bytes");
    u64::from_le_bytes(*first)
}
