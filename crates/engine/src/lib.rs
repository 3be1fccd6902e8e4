//! What turns a prompt into pictures.
//!
//! An engine sees a [`Brief`] and nothing else: no account, no key, no URL. It answers with all
//! the pictures asked for or with one [`EngineError`]; there is no partial success.

use std::time::Duration;

use async_trait::async_trait;

pub mod picture;

pub use picture::Picture;

/// Everything an engine is told about one task.
#[derive(Debug, Clone)]
pub struct Brief {
    /// The caller's words, exactly as submitted.
    pub prompt: String,
    /// Width wanted, in pixels.
    pub width: u32,
    /// Height wanted, in pixels.
    pub height: u32,
    /// One seed for each picture wanted; the same seed and brief give the same picture.
    pub seeds: Vec<u64>,
    /// Decoded reference pictures, in the caller's order. Empty for text-to-image.
    pub references: Vec<Picture>,
    /// Time left for this attempt. The worker abandons the render when it has passed.
    pub time_limit: Duration,
}

/// Why an engine gave no pictures.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine will not draw this. Ends the task.
    #[error("refused by the engine's content policy: {0}")]
    Refused(String),
    /// Trying again would end the same way. Ends the task.
    #[error("{0}")]
    Permanent(String),
    /// Another attempt may succeed. Costs one attempt.
    #[error("{0}")]
    Temporary(String),
}

/// An engine as its users see it, known without building it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// The name that `--engine` takes.
    pub name: String,
    /// One sentence for the operator: what the engine is and what it is not.
    pub description: String,
    /// How long one task usually takes; clients are told to wait about this long before polling.
    pub typical_duration: Duration,
}

/// A generator of pictures.
///
/// A panic inside `render` costs one attempt of one task, like [`EngineError::Temporary`].
#[async_trait]
pub trait Engine: std::fmt::Debug + Send + Sync + 'static {
    /// Draws one picture for each seed, in the order of the seeds.
    ///
    /// # Errors
    /// One of [`EngineError`]. Messages may hold internals: the worker logs them and never shows
    /// them to the caller.
    async fn render(&self, brief: Brief) -> Result<Vec<Picture>, EngineError>;
}
