//! The built-in diffusion engine: `crates/diffusion` in a supervised child process of this program.
//!
//! The child (`child.rs`) opens the model, stays warm between tasks, and gets its jobs over pipes
//! (`tintype_engine::frames`). This side forms batches of waiting tasks (`batch.rs`), chooses their working size from
//! the measured speed (`speed.rs`), monitors the child during renders, and has it killed if it hangs or doesn't stop.

mod batch;
mod child;
mod link;
pub(super) mod machine;
mod memory;
mod model_request;
mod program;
mod speed;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tintype_engine::frames::Loaded;
use tintype_engine::{
    Brief, CancellationToken, Engine, EngineError, EngineInfo, Lora, LoraSource, Measured, Picture, Progress,
};
use tokio::io::AsyncReadExt as _;
use tokio::process::Child;
use tokio_util::sync::DropGuard;
use tracing::Instrument as _;

use self::batch::Renderer;
use self::child::{NO_ADDITION, NO_FILES, NO_MODEL, NO_SCHEDULER, NO_USE, Setup, Work};
use self::link::Link;
use self::model_request::{ATTEMPT_LIMIT, ModelRequest};
use self::program::Shared;
use super::supervisor::{self, Start, Supervisor};
use super::{EngineChoice, EngineContext};
use tintype_config::{EnginePrecision, EngineSettings};
use tintype_system::locked::Locked as _;
use tintype_system::sandbox::Decoder;

pub use child::{COMMAND, main};
pub(super) use memory::share_memory;
pub use model_request::default_model;

/// An estimate until something has been measured.
const TYPICAL_DURATION: Duration = Duration::from_secs(60);
/// Time limit for a child to open a model for checking.
const CHECK_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of its error message that are shown.
const MAX_WORDS: u64 = 2_000;

/// The engine for the settings' model.
///
/// # Errors
/// A message for the operator: no model is named. An unusable model isn't an error yet, because it can be repaired
/// while the service runs.
pub(super) fn choose(settings: &EngineSettings, data: &Path) -> Result<EngineChoice, String> {
    let request = ModelRequest::new(settings, data)?;
    let speed = request.remembered();
    let typical_duration = request.usual_task(&speed).map_or(TYPICAL_DURATION, |(time, _)| time);
    let info = EngineInfo {
        sizes: request.sizes.clone(),
        max_references: settings.engine_references.unwrap_or_else(|| request.max_references()),
        masks: request.takes_masks(),
        settings: request.taken_settings(),
        loras: LoraSource::Files,
        weighted_prompts: request.takes_weighted_prompts(),
        attempt_limit: Some(ATTEMPT_LIMIT),
        slots: request.slots(),
        ..EngineInfo::new("diffusion", request.describe(&speed), typical_duration)
    };
    Ok(EngineChoice::new(info, move |context| Ok(Arc::new(Diffusion::new(request.clone(), &context)))))
}

/// Opens the settings' model in a child process that exits at once, and describes it.
///
/// # Errors
/// A message for the operator: the model cannot be used.
pub async fn check(settings: &EngineSettings, data: &Path, decoder: &Decoder) -> Result<String, String> {
    open_once(settings, data, decoder).await.map_err(|OpenModelError { words, .. }| words)
}

/// Why a model could not be opened.
#[derive(Debug)]
pub struct OpenModelError {
    /// A message for the operator.
    pub words: String,
    /// What cannot be used.
    pub fault: OpenFault,
}

/// What a child could not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenFault {
    /// The model itself, which no machine could open.
    Model,
    /// A file beside the model, such as a LoRA.
    Addition,
    /// Something on this machine, which may change later.
    Other,
}

impl From<String> for OpenModelError {
    fn from(words: String) -> Self {
        Self { words, fault: OpenFault::Other }
    }
}

/// Like [`check`], but also returns the cause of a failure.
///
/// # Errors
/// [`OpenModelError`].
pub async fn open_once(settings: &EngineSettings, data: &Path, decoder: &Decoder) -> Result<String, OpenModelError> {
    let request = ModelRequest::new(settings, data)?;
    let loaded = open_with(&request, &[], decoder.program()).await?;
    let mut speed = request.remembered();
    speed.on(&loaded);
    let confinement = if loaded.confined { "" } else { "; this kernel does not filter system calls" };
    let Loaded { family, processor, .. } = &loaded;
    Ok(format!("{}: {family} on {processor}{confinement}", request.describe(&speed)))
}

/// Opens the model with these LoRA files in addition to the engine's own, in a child process that exits at once.
async fn open_with(request: &ModelRequest, loras: &[Lora], program: &Path) -> Result<Loaded, OpenModelError> {
    let mut setup = Setup { work: Work::Opens, ..request.setup(&request.find()?, false, loras)? };
    if setup.precision == EnginePrecision::W8a8 {
        // The 8-bit weights may be missing, and take minutes to make.
        setup.precision = EnginePrecision::F32;
    }
    let mut child = supervisor::spawn(&start(program), &setup.arguments()?).await.map_err(|error| error.to_string())?;
    let link = Link::new(&mut child)?;
    let opened = tokio::time::timeout(CHECK_LIMIT, link.open()).await;
    match opened.map_err(|_| format!("the model was not open after {} s", CHECK_LIMIT.as_secs()))? {
        Ok(loaded) => Ok(loaded),
        Err(_) => Err(complaint(&mut child, request).await),
    }
}

/// The error message of an exiting child, for the operator.
async fn complaint(child: &mut Child, request: &ModelRequest) -> OpenModelError {
    let mut words = String::new();
    if let Some(error) = child.stderr.take() {
        drop(error.take(MAX_WORDS).read_to_string(&mut words).await);
    }
    let words = words.trim();
    let ended = child.wait().await.ok().and_then(|status| u8::try_from(status.code()?).ok());
    let fault = match ended {
        Some(NO_MODEL | NO_FILES | NO_SCHEDULER | NO_USE) => OpenFault::Model,
        Some(NO_ADDITION) => OpenFault::Addition,
        _ => OpenFault::Other,
    };
    let remedy = ended.and_then(|status| request.remedy(status));
    OpenModelError { words: remedy.map_or_else(|| words.to_owned(), |remedy| format!("{words}: {remedy}")), fault }
}

/// How to start a child: this program becomes it.
fn start(program: &Path) -> Start {
    // This program's path is resolved by the kernel, and means nothing to the operator.
    let name = format!("tintype {COMMAND}");
    Start { launcher: program.to_owned(), program: program.to_owned(), name, environment: Vec::new(), has_input: true }
}

#[derive(Debug)]
struct Diffusion {
    renderer: Arc<Renderer>,
    /// Ends the turns, which keep the child alive, when the engine is dropped.
    life: CancellationToken,
    _end: DropGuard,
}

impl Diffusion {
    /// Starts a child. Must be called in a runtime.
    fn new(request: ModelRequest, context: &EngineContext) -> Self {
        let program = context.decoder.program();
        let shared = Arc::new(Shared::new(request, context.keeps, program));
        let supervisor = Supervisor::new(shared.clone(), start(program));
        let (renderer, life) = (Arc::new(Renderer::new(supervisor, shared)), CancellationToken::new());
        let _end = life.clone().drop_guard();
        Self { renderer, life, _end }
    }
}

#[async_trait]
impl Engine for Diffusion {
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError> {
        // An abandoned render ends like a cancelled one.
        let cancelled = cancel.child_token();
        let _abandoned = cancelled.clone().drop_guard();
        let answer = self.renderer.wait(brief, progress, cancelled);
        // Each waiting task brings a turn of the child, although another turn may already have rendered its pictures.
        let (life, turn) = (self.life.clone(), self.renderer.clone().take_turn());
        tokio::spawn(async move { life.run_until_cancelled(turn).await }.in_current_span());
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or_else(|_| Err(EngineError::Temporary("the render panicked".into()))),
            () = cancel.cancelled() => Err(EngineError::cancelled()),
        }
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.renderer.supervisor.running().map(drop)
    }

    async fn check_loras(&self, loras: &[Lora]) -> Result<(), EngineError> {
        let shared = &self.renderer.shared;
        if shared.has_opened(loras) {
            return Ok(());
        }
        match open_with(&shared.request, loras, &shared.program).await {
            Ok(_) => {
                shared.opened(loras);
                Ok(())
            }
            Err(OpenModelError { words, fault: OpenFault::Addition }) => {
                // Try without these files too, in case the engine's own additions are at fault.
                match open_with(&shared.request, &[], &shared.program).await {
                    Ok(_) => Err(EngineError::Permanent(words)),
                    Err(_) => Ok(()),
                }
            }
            // Renders would fail even without these files.
            Err(_) => Ok(()),
        }
    }

    async fn started(&self) -> Result<(), EngineError> {
        self.renderer.supervisor.started().await.map(drop)
    }

    fn measured(&self) -> Option<Measured> {
        self.renderer.shared.measured.locked().clone()
    }
}
