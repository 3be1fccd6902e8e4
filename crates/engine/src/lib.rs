//! The interface between the service and the engines that render its images.
//!
//! An engine sees a [`Brief`] and nothing else: no account, no key, no URL. It answers with all pictures of the brief or
//! with one [`EngineError`]; there is no partial success. Nothing in this crate does I/O.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
pub use tokio_util::sync::CancellationToken;

mod colours;
mod failures;
pub mod frames;
mod jpeg;
mod mask;
pub mod picture;
mod settings;

pub use failures::Failures;
pub use mask::Mask;
pub use picture::Picture;
pub use settings::{
    Lora, MAX_LORA_WEIGHT, MAX_LORAS, MAX_NEGATIVE_CHARS, MAX_SEED, PromptSyntax, RenderSettings, Setting,
};

/// A description of an engine, for the service and its operator, available without building it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// Its name in `--engine`.
    pub name: String,
    /// One sentence for the operator: what the engine is and what it is not.
    pub description: String,
    /// Sizes that it renders natively.
    pub sizes: Sizes,
    /// Most reference pictures in a brief; 0 for a text-only engine.
    pub max_references: usize,
    /// Whether it accepts a mask for its first reference picture.
    pub masks: bool,
    /// Settings that it supports. It ignores the others.
    pub settings: Vec<Setting>,
    /// Which LoRAs it supports.
    pub loras: LoraSource,
    /// Whether a preset decides how it reads prompts ([`PromptSyntax`]). Other engines have their own way.
    pub weighted_prompts: bool,
    /// Whether it supports a quality.
    pub quality: bool,
    /// How long a task usually takes; clients should wait about this long before polling.
    pub typical_duration: Duration,
    /// Time limit for an attempt unless the operator sets one; `None` for the default.
    pub attempt_limit: Option<Duration>,
    /// How many tasks it takes at a time, at least one. An engine that waits for another machine takes more than this
    /// machine has cores; one that computes on the cores itself limits how many tasks do so at a time.
    pub slots: usize,
}

impl EngineInfo {
    /// An engine that takes text prompts only, one at a time, for pictures of any size.
    pub fn new(name: &str, description: impl Into<String>, typical_duration: Duration) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            sizes: Sizes::Any,
            max_references: 0,
            masks: false,
            settings: Vec::new(),
            loras: LoraSource::Nowhere,
            weighted_prompts: false,
            quality: false,
            typical_duration,
            attempt_limit: None,
            slots: 1,
        }
    }
}

/// The LoRAs that an engine supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoraSource {
    /// None.
    Nowhere,
    /// Files on the rendering machine.
    Files,
    /// The LoRAs on its server, by their names there.
    Server,
}

/// Sizes that an engine renders natively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sizes {
    /// Any size.
    Any,
    /// These widths and heights in pixels, at least one.
    Of(Vec<(u32, u32)>),
}

impl Sizes {
    /// The native size that suits a picture of `width` x `height` best: the nearest aspect ratio, and among equals the
    /// nearest area.
    pub fn nearest(&self, width: u32, height: u32) -> (u32, u32) {
        let Self::Of(sizes) = self else { return (width, height) };
        let apart = |a: f64, b: f64| (a / b).ln().abs();
        let (width, height) = (f64::from(width), f64::from(height));
        let distance = |&(w, h): &(u32, u32)| {
            let (w, h) = (f64::from(w), f64::from(h));
            (apart(w / h, width / height), apart(w * h, width * height))
        };
        let nearer = |a: &(u32, u32), b: &(u32, u32)| {
            let ((ratio_a, area_a), (ratio_b, area_b)) = (distance(a), distance(b));
            ratio_a.total_cmp(&ratio_b).then(area_a.total_cmp(&area_b))
        };
        sizes.iter().copied().min_by(nearer).unwrap_or((width as u32, height as u32))
    }
}

/// What an engine is asked to render.
#[derive(Debug, Clone, Default)]
pub struct Brief {
    /// The caller's words, exactly as submitted.
    pub prompt: String,
    /// Width in pixels; one of [`EngineInfo::sizes`].
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// One seed for each picture, at most [`MAX_SEED`]; the same seed and brief give the same picture.
    pub seeds: Vec<u64>,
    /// The other settings. `seeds` already contains their seed.
    pub settings: RenderSettings,
    /// Decoded reference pictures, in the caller's order. Empty for text-to-image.
    pub references: Vec<Picture>,
    /// The part of the first reference picture to change. Both have the brief's size.
    pub mask: Option<Mask>,
    /// Time left for this attempt, after which the worker cancels the render.
    pub time_limit: Duration,
}

/// A render's progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stage {
    /// Steps done, out of all steps.
    Step {
        /// Steps done.
        done: u32,
        /// All steps.
        of: u32,
    },
    /// The fraction of the work that is done, from 0 to 1.
    Fraction(f32),
}

impl Stage {
    /// The fraction of the work that is done, from 0 to 1, however the engine reports it.
    pub fn fraction(self) -> f32 {
        let part = match self {
            Self::Step { done, of } => done as f32 / of as f32,
            Self::Fraction(part) => part,
        };
        if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { done, of } => write!(f, "step {done} of {of}"),
            Self::Fraction(part) => write!(f, "{:.0} %", part * 100.0),
        }
    }
}

/// A handle for reporting a render's progress. Reports never block; only the latest is kept.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    latest: watch::Sender<Option<Stage>>,
    /// The latest preview, if someone is watching.
    preview: Option<watch::Sender<Option<Arc<Picture>>>>,
}

impl Progress {
    /// A handle that also takes previews.
    pub fn with_previews() -> Self {
        Self { preview: Some(watch::Sender::default()), ..Self::default() }
    }

    /// Whether someone is watching previews. Otherwise an engine need not make any.
    pub fn wants_previews(&self) -> bool {
        self.preview.is_some()
    }

    /// Shows a preview, scaled down to at most [`picture::PREVIEW_SIDE`] pixels per side.
    pub fn show(&self, preview: Picture) {
        if let Some(shown) = &self.preview {
            shown.send_replace(Some(Arc::new(preview.within(picture::PREVIEW_SIDE))));
        }
    }

    /// The latest preview.
    pub fn preview(&self) -> Option<Arc<Picture>> {
        self.preview.as_ref().and_then(|shown| shown.borrow().clone())
    }

    /// Reports progress.
    pub fn report(&self, stage: Stage) {
        self.latest.send_replace(Some(stage));
    }

    /// The latest report.
    pub fn latest(&self) -> Option<Stage> {
        *self.latest.borrow()
    }
}

/// A device that an engine renders on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, for the operator.
    pub name: String,
    /// Its memory, in bytes.
    pub memory: Option<u64>,
    /// How much of its memory is free, in bytes.
    pub free_memory: Option<u64>,
    /// How much of its memory the engine uses, in bytes.
    pub used_memory: Option<u64>,
}

/// The time and memory that a render took on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measured {
    /// The processor, with the instructions that the engine uses.
    pub processor: String,
    /// Time to encode the prompt and the reference pictures.
    pub encode: Duration,
    /// Time of each step of each picture. A picture's first step loads the model.
    pub steps: Vec<Duration>,
    /// Time from each picture's last step to the finished picture.
    pub decodes: Vec<Duration>,
    /// The rendering process's memory.
    pub usage: frames::ResourceUsage,
}

/// Why an engine returned no pictures.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine's content policy rejects the brief. Ends the task.
    #[error("refused by the engine's content policy: {0}")]
    Refused(String),
    /// Another attempt would fail in the same way. Ends the task.
    #[error("{0}")]
    Permanent(String),
    /// Another attempt may succeed. Costs one attempt.
    #[error("{0}")]
    Temporary(String),
    /// The engine is unreachable or not accepting work, and hasn't begun this render. Costs no attempt; the worker
    /// claims no more tasks until [`Engine::probe`] succeeds.
    #[error("not available: {0}")]
    NotAvailable(String),
    /// The engine is accepting work, but rejected this brief without beginning it. Costs no attempt, unless this
    /// happens repeatedly while it renders other briefs, and it isn't busy.
    #[error("rejected: {cause}")]
    TurnedAway {
        /// The cause, for the operator.
        cause: String,
        /// How long to wait before trying the brief again, if the engine asks for a pause.
        pause: Option<Duration>,
        /// Whether the engine has too much to do, so that the brief isn't the cause.
        is_busy: bool,
    },
}

impl EngineError {
    /// The error of a render that was cancelled.
    pub fn cancelled() -> Self {
        Self::Temporary("the render was cancelled".into())
    }

    /// The cause alone, without the explanation of what the error means.
    pub fn into_cause(self) -> String {
        match self {
            Self::Refused(cause)
            | Self::Permanent(cause)
            | Self::Temporary(cause)
            | Self::NotAvailable(cause)
            | Self::TurnedAway { cause, .. } => cause,
        }
    }
}

/// An engine in a rendering process.
///
/// A panic inside `render` costs one attempt of one task, like [`EngineError::Temporary`].
#[async_trait]
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// Renders one picture for each seed, in the order of the seeds.
    ///
    /// The worker cancels the render when it has lost the lease, when the time limit has passed, and when it shuts
    /// down. The engine then stops as soon as it can, and its result is ignored. If an engine doesn't stop within a few
    /// seconds, its future is dropped.
    ///
    /// # Errors
    /// An [`EngineError`]. Messages can contain internals: the worker logs them and never shows them to the caller.
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError>;

    /// Checks whether the engine is accepting work.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if it isn't.
    async fn probe(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Like [`Engine::probe`], for an operator. A probe passes a silent server, which may be loading a model; this
    /// doesn't.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if it isn't accepting work, or doesn't say so in time.
    async fn check(&self) -> Result<(), EngineError> {
        self.probe().await
    }

    /// Checks that it can render with these LoRAs, as far as possible without rendering.
    ///
    /// # Errors
    /// [`EngineError::Permanent`] with the unsuitable file, for the operator.
    async fn check_loras(&self, _loras: &[Lora]) -> Result<(), EngineError> {
        Ok(())
    }

    /// Waits until an engine that runs its own process has started it. Other engines return at once.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if it failed to start.
    async fn started(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The devices that it renders on, if it reports them.
    async fn devices(&self) -> Vec<Device> {
        Vec::new()
    }

    /// The latest render's measurements, if the engine takes any.
    fn measured(&self) -> Option<Measured> {
        None
    }
}
