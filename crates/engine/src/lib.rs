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
pub mod frames;
mod jpeg;
mod mask;
pub mod picture;
mod settings;

pub use mask::Mask;
pub use picture::Picture;
pub use settings::{
    Lora, MAX_LORA_WEIGHT, MAX_LORAS, MAX_NEGATIVE_CHARS, MAX_SEED, PromptSyntax, RenderSettings, Setting,
};

/// An engine as the service and its operator see it, known without building it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// The name that `--engine` takes.
    pub name: String,
    /// One sentence for the operator: what the engine is and what it is not.
    pub description: String,
    /// Sizes that it renders natively.
    pub sizes: Sizes,
    /// Most reference pictures of one brief; 0 for an engine that renders from text alone.
    pub max_references: usize,
    /// Whether it takes a mask for its first reference picture.
    pub masks: bool,
    /// Settings of a brief that it takes. It ignores the others.
    pub settings: Vec<Setting>,
    /// Which LoRAs it takes.
    pub loras: LoraSource,
    /// Whether a preset decides how it reads prompts ([`PromptSyntax`]). Others read them in a way of their own.
    pub weighted_prompts: bool,
    /// Whether it takes a quality.
    pub quality: bool,
    /// How long one task usually takes; clients should wait about this long before polling.
    pub typical_duration: Duration,
    /// Longest time for one attempt unless the operator sets another; `None` for the usual one.
    pub attempt_limit: Option<Duration>,
    /// Tasks that it takes at the same time, at least one. An engine that waits for another machine takes more than this
    /// machine has cores; one that works on the cores itself limits how many of its tasks do so at a time.
    pub slots: usize,
}

impl EngineInfo {
    /// An engine that takes one prompt alone at a time, for pictures of any size.
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

/// The LoRAs that an engine takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoraSource {
    /// None.
    Nowhere,
    /// Files of the machine that renders.
    Files,
    /// Those of its server, by the names that this has for them.
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
    /// The native size from which a picture of `width` x `height` is best made: the one of the nearest aspect ratio, and
    /// among these the one of the nearest area.
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
#[derive(Debug, Clone)]
pub struct Brief {
    /// The caller's words, exactly as submitted.
    pub prompt: String,
    /// Width in pixels; one of [`EngineInfo::sizes`].
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// One seed for each picture, at most [`MAX_SEED`]; the same seed and brief give the same picture.
    pub seeds: Vec<u64>,
    /// The other settings. Their seed is in `seeds` already.
    pub settings: RenderSettings,
    /// Decoded reference pictures, in the caller's order. Empty for text-to-image.
    pub references: Vec<Picture>,
    /// The part of the first reference picture to change. Both have the size of the brief.
    pub mask: Option<Mask>,
    /// Time left for this attempt. When it has passed, the worker cancels the render.
    pub time_limit: Duration,
}

/// How far a render is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stage {
    /// Steps done, out of all steps.
    Step {
        /// Steps done.
        done: u32,
        /// All steps.
        of: u32,
    },
    /// This part of the work is done, from 0 to 1.
    Fraction(f32),
}

impl Stage {
    /// The part of the work that is done, from 0 to 1, whatever an engine has reported.
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

/// The handle through which an engine reports how far a render is. A report never blocks; only the latest is kept.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    latest: watch::Sender<Option<Stage>>,
    /// The latest preview, where someone looks at it.
    preview: Option<watch::Sender<Option<Arc<Picture>>>>,
}

impl Progress {
    /// A handle through which an engine also shows previews.
    pub fn with_previews() -> Self {
        Self { preview: Some(watch::Sender::default()), ..Self::default() }
    }

    /// Whether anyone looks at previews. An engine need not make any otherwise.
    pub fn wants_previews(&self) -> bool {
        self.preview.is_some()
    }

    /// Shows a preview of a picture, scaled down to at most [`picture::PREVIEW_SIDE`] pixels per side.
    pub fn show(&self, preview: Picture) {
        if let Some(shown) = &self.preview {
            shown.send_replace(Some(Arc::new(preview.within(picture::PREVIEW_SIDE))));
        }
    }

    /// The latest preview.
    pub fn preview(&self) -> Option<Arc<Picture>> {
        self.preview.as_ref().and_then(|shown| shown.borrow().clone())
    }

    /// Reports how far the render is.
    pub fn report(&self, stage: Stage) {
        self.latest.send_replace(Some(stage));
    }

    /// The latest report.
    pub fn latest(&self) -> Option<Stage> {
        *self.latest.borrow()
    }
}

/// A device on which an engine renders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, for the operator.
    pub name: String,
    /// Its memory, in bytes.
    pub memory: Option<u64>,
    /// The part of its memory that is free, in bytes.
    pub free_memory: Option<u64>,
    /// The part of its memory that the engine uses, in bytes.
    pub used_memory: Option<u64>,
}

/// The time and the memory that a render took on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measured {
    /// The processor, with the instructions that the engine uses.
    pub processor: String,
    /// Time to encode the prompt and the reference pictures.
    pub encode: Duration,
    /// Time of each step of each picture. The first step of a picture loads the model.
    pub steps: Vec<Duration>,
    /// Time from the last step of each picture to the picture.
    pub decodes: Vec<Duration>,
    /// The memory of the process that rendered.
    pub usage: frames::ResourceUsage,
}

/// Why an engine returned no pictures.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine's content policy refuses the brief. Ends the task.
    #[error("refused by the engine's content policy: {0}")]
    Refused(String),
    /// Another attempt would fail in the same way. Ends the task.
    #[error("{0}")]
    Permanent(String),
    /// Another attempt may succeed. Costs one attempt.
    #[error("{0}")]
    Temporary(String),
    /// The engine cannot be reached or takes no work now, and has not begun this render. Costs no attempt; the worker
    /// claims no more tasks until [`Engine::probe`] succeeds.
    #[error("not available: {0}")]
    NotAvailable(String),
    /// The engine takes work, but did not take this brief, and has not begun it. Costs no attempt, unless that happens again
    /// and again while it renders other briefs.
    #[error("rejected: {cause}")]
    TurnedAway {
        /// The cause, for the operator.
        cause: String,
        /// Time to wait before the brief is tried again, if the engine asks for one.
        pause: Option<Duration>,
    },
}

impl EngineError {
    /// The cause alone, without the words that say what the error means.
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

/// An engine, in a process that renders.
///
/// A panic inside `render` costs one attempt of one task, like [`EngineError::Temporary`].
#[async_trait]
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// Renders one picture for each seed, in the order of the seeds.
    ///
    /// The worker cancels the render when it has lost the lease, when the time limit has passed and when it shuts down.
    /// The engine then stops as soon as it can, and its answer is ignored. An engine that does not stop within a few
    /// seconds is abandoned: its future is dropped.
    ///
    /// # Errors
    /// One of [`EngineError`]. Messages may hold internals: the worker logs them and never shows
    /// them to the caller.
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError>;

    /// Checks whether the engine takes work.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] while it does not.
    async fn probe(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Checks that it could render with these LoRAs, as far as it knows without a render.
    ///
    /// # Errors
    /// [`EngineError::Permanent`] with the file that does not fit, for the operator.
    async fn check_loras(&self, _loras: &[Lora]) -> Result<(), EngineError> {
        Ok(())
    }

    /// Waits until an engine that runs a process of its own has started it. Other engines have nothing to wait for.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if it could not be started.
    async fn started(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The devices on which it renders, if it reports them.
    async fn devices(&self) -> Vec<Device> {
        Vec::new()
    }

    /// The latest render, of an engine that measures its parts.
    fn measured(&self) -> Option<Measured> {
        None
    }
}
