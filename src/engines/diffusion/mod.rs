//! The diffusion engine in the box: `crates/diffusion` in a supervised child process of this program.
//!
//! The child (`child.rs`) opens the model, stays warm between tasks, and hears of its orders over pipes
//! (`tintype_engine::frames`). This side chooses the size at which a task is rendered from the measured speed
//! (`speed.rs`), watches the child while it renders, and has it killed when it hangs or does not stop.

mod child;
mod link;
mod machine;
mod speed;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tintype_diffusion::config::Config;
use tintype_engine::frames::{Event, Fault, Loaded, Order};
use tintype_engine::{
    Brief, CancellationToken, Engine, EngineError, EngineInfo, Measured, Picture, Progress, Sizes, Stage,
};
use tokio::io::AsyncReadExt as _;

use self::child::Setup;
use self::link::{Link, Trouble};
use self::speed::{LEAST_SIDE, Plan, Speed};
use super::supervisor::{self, Next, Program, Running, Start, Supervisor};
use super::{EngineChoice, Surroundings, sizes};
use crate::clock::Clock;
use crate::config::EngineSettings;
use crate::domain::request::MAX_REFERENCES;
use crate::models::{self, Hold, Installed};
use crate::sandbox::Decoder;

pub use child::{COMMAND, main};

/// A guess until something has been measured.
const TYPICAL_DURATION: Duration = Duration::from_secs(60);
/// Longest time for an attempt unless `--render-timeout` says so: a task ends after nine minutes.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(8 * 60);
/// Side of the picture that a child is measured with, in pixels.
const FIRST_SIDE: u32 = 256;
/// Steps of that picture. The first one loads the model.
const FIRST_STEPS: u32 = 2;
/// The size that most tasks have.
const USUAL_SIDE: u32 = 1_024;
/// A child from which nothing was heard for so many times the time of a step hangs, but not before the shortest patience.
const PATIENCE_FACTOR: f64 = 10.0;
const SHORTEST_PATIENCE: Duration = Duration::from_secs(60);
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
    let setup = Setup { only_opens: true, ..wanted.setup(&models::find(data, &wanted.model)?, false) };
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
        return Err(format!("{}: {}", words.trim(), wanted.remedy()));
    };
    let mut speed = wanted.remembered();
    speed.on(&loaded);
    let confinement = if loaded.confined { "" } else { "; this kernel does not filter system calls" };
    let Loaded { family, processor, .. } = &loaded;
    Ok(format!("{}: {family} on {processor}{confinement}", wanted.describe(&speed)))
}

/// The model of the settings.
#[derive(Debug, Clone)]
struct Wanted {
    /// The name or the folder.
    model: String,
    data: PathBuf,
    memory_bytes: u64,
    /// Steps of each picture; 0 for those of the model.
    steps: u32,
}

impl Wanted {
    fn new(settings: &EngineSettings, data: &Path) -> Result<Self, String> {
        let model = settings.model.clone().ok_or(
            "--engine diffusion needs --model with the name of an installed model, or a folder as diffusers writes it",
        )?;
        let memory_bytes = settings.engine_memory.map_or_else(machine::memory_limit, |bytes| bytes.as_u64());
        Ok(Self { model, data: data.to_owned(), memory_bytes, steps: settings.engine_steps.unwrap_or(0) })
    }

    fn setup(&self, installed: &Installed, keeps: bool) -> Setup {
        let cache = installed.cache.clone().filter(|_| keeps);
        Setup { folder: installed.folder.clone(), cache, memory_bytes: self.memory_bytes, only_opens: false }
    }

    /// The most reference pictures that the model takes, without opening it.
    fn max_references(&self) -> usize {
        let installed = models::find(&self.data, &self.model).ok();
        let index = installed.and_then(|installed| Config::read(&installed.folder.join(models::INDEX)).ok());
        let class = index.as_ref().and_then(|index| index.text("_class_name", "").ok()).unwrap_or_default();
        if class.starts_with("Flux2Klein") { MAX_REFERENCES } else { 0 }
    }

    /// The speed that was measured before this start.
    fn remembered(&self) -> Speed {
        let installed = models::find(&self.data, &self.model).ok();
        installed.and_then(|installed| installed.cache).map(|cache| Speed::remembered(&cache)).unwrap_or_default()
    }

    /// The task that most callers submit, if its time is known.
    fn usual_task(&self, speed: &Speed) -> Option<(Duration, (u32, u32))> {
        let plan = speed.plan((USUAL_SIDE, USUAL_SIDE), 1, self.steps, 0);
        let (width, height) = speed.working_size(&plan, ATTEMPT_LIMIT)?;
        Some((speed.task(&Plan { width, height, ..plan })?, (width, height)))
    }

    /// One sentence for the operator.
    fn describe(&self, speed: &Speed) -> String {
        let model = &self.model;
        let speed = match self.usual_task(speed) {
            Some((time, size)) => expectation(time, size),
            None if speed.is_known() => format!("too slow for any size from {LEAST_SIDE} pixels on"),
            None => "its speed is measured when it starts".into(),
        };
        format!("the model {model} on this machine's processor; {speed}")
    }

    /// Advice when the model cannot be opened.
    fn remedy(&self) -> String {
        match models::is_name(&self.model) {
            true => format!("see `tintype model verify {}`, or give another --model", self.model),
            false => "give --model a folder as diffusers writes it, with all of its files".into(),
        }
    }
}

fn expectation(time: Duration, (width, height): (u32, u32)) -> String {
    let working =
        if width == USUAL_SIDE { String::new() } else { format!(", rendered as {width}x{height} and enlarged") };
    format!("a picture of {USUAL_SIDE}x{USUAL_SIDE} takes about {:.0} s{working}", time.as_secs_f64().max(1.0))
}

/// The start of a child: this program becomes it.
fn start(program: &Path) -> Start {
    Start { launcher: program.to_owned(), program: program.to_owned(), environment: Vec::new(), has_input: true }
}

/// The parts of the engine that its children share.
#[derive(Debug)]
struct Shared {
    wanted: Wanted,
    /// Whether files may be written beside the model.
    keeps: bool,
    speed: Mutex<Speed>,
    measured: Mutex<Option<Measured>>,
    /// Keeps the model of the running child from being removed.
    hold: Mutex<Option<Hold>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Writes the speed down for the next start, if it has changed.
    async fn remember(&self) {
        let cache = models::find(&self.wanted.data, &self.wanted.model).ok().and_then(|installed| installed.cache);
        let (Some(cache), true) = (cache, self.keeps) else { return };
        let speed = locked(&self.speed).clone();
        let write = move || match speed.differs(&Speed::remembered(&cache)) {
            true => speed.remember(&cache),
            false => Ok(()),
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not write down the speed of the model; the next start measures it again")
            }
            Err(error) => tracing::warn!(%error, "could not write down the speed of the model"),
        }
    }
}

#[async_trait]
impl Program for Arc<Shared> {
    type Link = Link;

    fn next(&self) -> Result<Next<Link>, String> {
        let installed = models::find(&self.wanted.data, &self.wanted.model)?;
        *locked(&self.hold) = Some(installed.hold()?);
        let arguments = self.wanted.setup(&installed, self.keeps).arguments()?;
        Ok(Next { arguments, link: Box::new(Link::new) })
    }

    async fn begin(&self, link: &Link) -> Result<(), EngineError> {
        let lost = |why: &str| EngineError::NotAvailable(why.to_owned());
        let loaded = link.open().await.map_err(|_| lost("the model could not be opened"))?;
        if !loaded.confined {
            tracing::warn!("seccomp is not available: the engine's process runs under resource limits only");
        }
        let known = {
            let mut speed = locked(&self.speed);
            speed.on(&loaded);
            speed.is_known()
        };
        if !known {
            let side = FIRST_SIDE.next_multiple_of(loaded.side_multiple);
            let order = Order {
                number: 0,
                prompt: "a lighthouse".into(),
                width: side,
                height: side,
                seeds: vec![1],
                references: Vec::new(),
                steps: FIRST_STEPS,
            };
            let (progress, never) = (Progress::default(), CancellationToken::new());
            let mut watch = Watch::new(self, &order, &progress, ATTEMPT_LIMIT);
            let rendered = link.take().await.render(order, |event| watch.after(event), &never).await;
            rendered.map_err(|trouble| lost(&trouble.to_string()))?;
            self.remember().await;
        }
        let Loaded { family, processor, micros, .. } = loaded;
        let expected = self.wanted.describe(&locked(&self.speed));
        let opened_in = micros / 1_000;
        tracing::info!(family, processor, opened_in_ms = opened_in, "{expected}");
        Ok(())
    }

    async fn ask(&self, _link: &Link) -> Result<(), EngineError> {
        // The end of the process shows without a question, and a render is watched while it lasts.
        Ok(())
    }

    fn advice(&self, why: &str) -> Option<String> {
        if why.contains("memory allocation of") {
            let gib = self.wanted.memory_bytes as f64 / (1_u64 << 30) as f64;
            return Some(format!(
                "its memory is limited to {gib:.1} GiB: raise --engine-memory, or use a smaller model"
            ));
        }
        why.contains("(exit status: 1)").then(|| self.wanted.remedy())
    }
}

/// Measures a render, reports its progress, and says how long to wait for the next event.
struct Watch<'a> {
    shared: &'a Shared,
    progress: &'a Progress,
    limit: Duration,
    /// Pixels of a picture, and with the references.
    pixels: u64,
    all_pixels: u64,
    pictures: u32,
    measured: Measured,
}

impl<'a> Watch<'a> {
    fn new(shared: &'a Shared, order: &Order, progress: &'a Progress, limit: Duration) -> Self {
        let pixels = u64::from(order.width) * u64::from(order.height);
        let all_pixels = pixels + pixels_of(&order.references);
        let pictures = u32::try_from(order.seeds.len()).unwrap_or(u32::MAX);
        Self { shared, progress, limit, pixels, all_pixels, pictures, measured: Measured::default() }
    }

    fn after(&mut self, event: Option<&Event>) -> Duration {
        let mut speed = locked(&self.shared.speed);
        match event {
            Some(Event::Encoded { micros }) => {
                self.measured.encode = Duration::from_micros(*micros);
                speed.observe_encoding(self.measured.encode);
            }
            Some(Event::Step { picture, done, of, micros }) => {
                let took = Duration::from_micros(*micros);
                self.measured.steps.push(took);
                // The first one loads the model.
                if *done > 1 || *of == 1 {
                    speed.observe_step(self.all_pixels, took);
                }
                let done = picture.saturating_mul(*of).saturating_add(*done);
                self.progress.report(Stage::Step { done, of: self.pictures.saturating_mul(*of) });
            }
            Some(Event::Painted { micros, .. }) => {
                self.measured.decodes.push(Duration::from_micros(*micros));
                speed.observe_decoding(self.pixels, Duration::from_micros(*micros));
            }
            _ => {}
        }
        // Whichever comes next.
        let step = speed.step(self.all_pixels).map(|step| step.max(speed.decoding(self.pixels)));
        let patience = step.map(|step| Duration::from_secs_f64((step * PATIENCE_FACTOR).min(1e6)));
        patience.map_or(self.limit, |patience| patience.max(SHORTEST_PATIENCE).min(self.limit))
    }
}

fn pixels_of(references: &[Picture]) -> u64 {
    references.iter().map(|picture| u64::from(picture.width()) * u64::from(picture.height())).sum()
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
        let speed = Mutex::new(wanted.remembered());
        let (measured, hold) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { wanted, keeps: surroundings.keeps, speed, measured, hold });
        let supervisor = Supervisor::new(shared.clone(), start(surroundings.decoder.program()));
        Self { supervisor, shared, clock: Clock::system() }
    }

    /// The order for a brief: at its size if there is time, otherwise at a smaller one.
    fn order(&self, brief: Brief, left: Duration) -> Result<Order, EngineError> {
        let Brief { prompt, width, height, seeds, references, .. } = brief;
        let speed = locked(&self.shared.speed);
        let plan = speed.plan((width, height), seeds.len(), self.shared.wanted.steps, pixels_of(&references));
        let Some((width, height)) = speed.working_size(&plan, left) else {
            return Err(EngineError::Permanent(format!(
                "{} pictures of {width}x{height} with {} references do not fit into {} s at any size from {LEAST_SIDE} pixels on",
                seeds.len(),
                references.len(),
                left.as_secs()
            )));
        };
        Ok(Order { number: 0, prompt, width, height, seeds, references, steps: self.shared.wanted.steps })
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
        let order = self.order(brief, left)?;
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
