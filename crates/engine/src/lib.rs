//! The interface of engines, which turn prompts into pictures.
//!
//! An engine receives a [`Brief`] and nothing else: no account, no key, no URL. It returns either all requested
//! pictures or one [`EngineError`]; there is no partial success.

use std::time::Duration;

use async_trait::async_trait;

pub mod picture;

pub use picture::Picture;

/// The input of an engine for one task.
#[derive(Debug, Clone)]
pub struct Brief {
    /// The prompt, exactly as submitted.
    pub prompt: String,
    /// Requested width, in pixels.
    pub width: u32,
    /// Requested height, in pixels.
    pub height: u32,
    /// One seed for each requested picture. The same seed and brief give the same picture.
    pub seeds: Vec<u64>,
    /// Decoded reference pictures, in the caller's order. Empty for text-to-image.
    pub references: Vec<Picture>,
    /// Time limit of this attempt. The worker abandons the render after it.
    pub time_limit: Duration,
}

/// Why an engine returned no pictures.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine refuses the prompt by its own policy. The task fails.
    #[error("refused by the engine's content policy: {0}")]
    Refused(String),
    /// A retry would fail in the same way. The task fails.
    #[error("{0}")]
    Permanent(String),
    /// A retry may succeed. This attempt counts as lost.
    #[error("{0}")]
    Temporary(String),
}

/// The description of an engine, available without building it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// Name of the engine for `--engine`.
    pub name: String,
    /// One sentence for the operator: what the engine is and what it is not.
    pub description: String,
    /// Typical duration of one task, which the API suggests to clients as the wait before the first poll.
    pub typical_duration: Duration,
}

/// A generator of pictures.
///
/// A panic inside `render` costs one attempt of one task, like [`EngineError::Temporary`].
#[async_trait]
pub trait Engine: std::fmt::Debug + Send + Sync + 'static {
    /// Renders one picture for each seed, in the order of the seeds.
    ///
    /// # Errors
    /// [`EngineError`]. Its message may contain internals: the worker logs it and never shows it to the caller.
    async fn render(&self, brief: Brief) -> Result<Vec<Picture>, EngineError>;
}
