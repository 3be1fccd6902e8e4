//! The diffusion engine in the box: `crates/diffusion` in a supervised child process of this program.
//!
//! The child (`child.rs`) opens the model, stays warm between tasks, and hears of its orders over pipes
//! (`tintype_engine::frames`). This side chooses the size at which a task is rendered from the measured speed
//! (`speed.rs`), watches the child while it renders, and has it killed when it hangs or does not stop.

mod child;
mod link;
mod machine;
mod program;
mod speed;
mod wanted;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tintype_engine::frames::{Fault, Loaded, Order};
use tintype_engine::{Brief, CancellationToken, Engine, EngineError, EngineInfo, Measured, Picture, Progress, Sizes};
use tokio::io::AsyncReadExt as _;

use self::child::{NO_MODEL, Setup};
use self::link::{Link, Trouble};
use self::program::{Shared, Watch, locked};
use self::speed::LEAST_SIDE;
use self::wanted::{ATTEMPT_LIMIT, Wanted};
use super::supervisor::{self, Running, Start, Supervisor};
use super::{EngineChoice, Surroundings, sizes};
use crate::clock::Clock;
use crate::config::{EnginePrecision, EngineSettings};
use crate::sandbox::Decoder;

pub use child::{COMMAND, main};
pub use wanted::default_model;

/// A guess until something has been measured.
const TYPICAL_DURATION: Duration = Duration::from_secs(60);
/// Time for a child to open a model that is only to be checked.
const CHECK_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of its complaint that are shown.
const MAX_WORDS: u64 = 2_000;

/// The engine that runs the model of the settings.
///
/// # Errors
/// A sentence for the operator: no model is named. A model that cannot be used is no error yet: it may be repaired while
/// the service runs.
pub(super) fn choose(settings: &EngineSettings, data: &Path) -> Result<EngineChoice, String> {
    let wanted = Wanted::new(settings, data)?;
    let speed = wanted.remembered();
    let info = EngineInfo {
        name: "diffusion".into(),
        description: wanted.describe(&speed),
        sizes: sizes(settings, Sizes::Any),
        max_references: settings.engine_references.unwrap_or_else(|| wanted.max_references()),
        max_pictures: None,
        typical_duration: wanted.usual_task(&speed).map_or(TYPICAL_DURATION, |(time, _)| time),
        attempt_limit: Some(ATTEMPT_LIMIT),
        slots: 1,
    };
    Ok(EngineChoice::new(info, move |surroundings| Ok(Arc::new(Diffusion::new(wanted.clone(), &surroundings)))))
}

/// Opens the model of the settings in a child process that ends at once, and describes it.
///
/// # Errors
/// A sentence for the operator: the model cannot be used.
pub async fn check(settings: &EngineSettings, data: &Path, decoder: &Decoder) -> Result<String, String> {
    let wanted = Wanted::new(settings, data)?;
    let mut setup = Setup { only_opens: true, ..wanted.setup(&wanted.find()?, false)? };
    if setup.precision == EnginePrecision::W8a8 {
        // The weights in 8 bits may not be there, and take minutes to make.
        setup.precision = EnginePrecision::F32;
    }
    let start = start(decoder.program());
    let mut child = supervisor::spawn(&start, &setup.arguments()?).await.map_err(|error| error.to_string())?;
    let link = Link::new(&mut child)?;
    let opened = tokio::time::timeout(CHECK_LIMIT, link.open()).await;
    let opened = opened.map_err(|_| format!("the model was not open after {} s", CHECK_LIMIT.as_secs()))?;
    let Ok(loaded) = opened else {
        let mut words = String::new();
        if let Some(error) = child.stderr.take() {
            drop(error.take(MAX_WORDS).read_to_string(&mut words).await);
        }
        let words = words.trim();
        let ended = child.wait().await.ok().and_then(|status| status.code());
        return Err(match ended == Some(i32::from(NO_MODEL)) {
            true => format!("{words}: {}", wanted.remedy()),
            false => words.to_owned(),
        });
    };
    let mut speed = wanted.remembered();
    speed.on(&loaded);
    let confinement = if loaded.confined { "" } else { "; this kernel does not filter system calls" };
    let Loaded { family, processor, .. } = &loaded;
    Ok(format!("{}: {family} on {processor}{confinement}", wanted.describe(&speed)))
}

/// The numbers that the engine of these settings computes with.
///
/// # Errors
/// A sentence for the operator: there is no such model.
pub fn precision(settings: &EngineSettings, data: &Path) -> Result<EnginePrecision, String> {
    let wanted = Wanted::new(settings, data)?;
    Ok(wanted.precision(&wanted.find()?))
}

/// The start of a child: this program becomes it.
fn start(program: &Path) -> Start {
    Start { launcher: program.to_owned(), program: program.to_owned(), environment: Vec::new(), has_input: true }
}

/// The engine.
#[derive(Debug)]
struct Diffusion {
    supervisor: Supervisor<Link>,
    shared: Arc<Shared>,
    clock: Clock,
}

impl Diffusion {
    /// Starts a child, in a runtime.
    fn new(wanted: Wanted, surroundings: &Surroundings) -> Self {
        let shared = Arc::new(Shared::new(wanted, surroundings.keeps));
        let supervisor = Supervisor::new(shared.clone(), start(surroundings.decoder.program()));
        Self { supervisor, shared, clock: Clock::system() }
    }

    /// The order for a brief: at its size if there is time, otherwise at a smaller one.
    fn order(&self, brief: Brief, previews: bool, left: Duration) -> Result<Order, EngineError> {
        let Brief { prompt, width, height, seeds, references, .. } = brief;
        let speed = locked(&self.shared.speed);
        let plan = speed.plan((width, height), seeds.len(), self.shared.wanted.steps, speed.seen_pixels(&references));
        let Some((width, height)) = speed.working_size(&plan, left) else {
            return Err(EngineError::Permanent(format!(
                "{} pictures of {width}x{height} with {} references do not fit into {} s at any size from {LEAST_SIDE} pixels on",
                seeds.len(),
                references.len(),
                left.as_secs()
            )));
        };
        let steps = self.shared.wanted.steps;
        Ok(Order { number: 0, prompt, width, height, seeds, references, steps, previews })
    }

    async fn failure(&self, trouble: Trouble, render: Unfinished<'_>) -> EngineError {
        let number = render.number;
        match trouble {
            Trouble::Failed(fault, sentence) => {
                render.ended();
                match fault {
                    Fault::Order | Fault::Spoiled => EngineError::Permanent(sentence),
                    Fault::Model | Fault::Run | Fault::Cancelled => EngineError::Temporary(sentence),
                }
            }
            // Dropping the render replaces the child.
            Trouble::Lost(why) => EngineError::Temporary(format!("the engine's process was killed: {why}")),
            Trouble::Gone => match self.supervisor.end_of(number).await {
                Some(why) => {
                    render.ended();
                    EngineError::Temporary(why)
                }
                None => EngineError::Temporary("the engine's process closed its output".into()),
            },
        }
    }
}

/// A render whose child must be replaced unless it comes to its end: when it is abandoned, nothing else stops the child.
struct Unfinished<'a> {
    supervisor: &'a Supervisor<Link>,
    number: u64,
    has_ended: bool,
}

impl Unfinished<'_> {
    fn ended(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.supervisor.replace(self.number, "it worked on a render that nobody waits for, or that has failed");
        }
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
        let begun = self.clock.elapsed();
        let Running { link, number, .. } = self.supervisor.running()?;
        let Some(mut pipes) = cancel.run_until_cancelled(link.take()).await else {
            return Err(EngineError::Temporary("the render was cancelled".into()));
        };
        let left = brief.time_limit.saturating_sub(self.clock.elapsed().saturating_sub(begun));
        let order = self.order(brief, progress.wants_previews(), left)?;
        let mut watch = Watch::new(&self.shared, &order, &progress, left);
        let render = Unfinished { supervisor: &self.supervisor, number, has_ended: false };
        match pipes.render(order, |event| watch.after(event), &cancel).await {
            Ok((pictures, usage)) => {
                render.ended();
                let processor = link.loaded().map(|loaded| loaded.processor.clone()).unwrap_or_default();
                let measured = Measured { usage, processor, ..watch.measured };
                *locked(&self.shared.measured) = Some(measured);
                self.shared.remember().await;
                Ok(pictures)
            }
            Err(trouble) => Err(self.failure(trouble, render).await),
        }
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.supervisor.running().map(drop)
    }

    async fn started(&self) -> Result<(), EngineError> {
        self.supervisor.started().await.map(drop)
    }

    fn measured(&self) -> Option<Measured> {
        locked(&self.shared.measured).clone()
    }
}
