//! The child as a program that the supervisor runs, and the measurement of its renders.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tintype_engine::frames::{Event, Loaded, Order};
use tintype_engine::{CancellationToken, EngineError, Measured, Progress, Stage};

use super::child::NO_MODEL;
use super::link::Link;
use super::speed::Speed;
use super::wanted::{ATTEMPT_LIMIT, Wanted};
use crate::engines::supervisor::{Next, Program};
use crate::models::Hold;

/// Last words of a Rust program whose allocation failed. Several threads may fail at once and write into each other's
/// lines.
const OUT_OF_MEMORY: [&str; 3] = ["memory allocation of", "bytes failed", "skipping backtrace printing"];

/// Side of the picture that a child is measured with, in pixels.
const FIRST_SIDE: u32 = 256;
/// Steps of that picture. The first one loads the model.
const FIRST_STEPS: u32 = 2;
/// A child from which nothing was heard for so many times the time of a step hangs, but not before the shortest patience.
const PATIENCE_FACTOR: f64 = 10.0;
const SHORTEST_PATIENCE: Duration = Duration::from_secs(60);

/// The parts of the engine that its children share.
#[derive(Debug)]
pub(super) struct Shared {
    pub wanted: Wanted,
    /// Whether files may be written beside the model.
    keeps: bool,
    pub speed: Mutex<Speed>,
    pub measured: Mutex<Option<Measured>>,
    /// Keeps the model of the running child from being removed.
    hold: Mutex<Option<Hold>>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(wanted: Wanted, keeps: bool) -> Self {
        let speed = Mutex::new(wanted.remembered());
        Self { wanted, keeps, speed, measured: Mutex::default(), hold: Mutex::default() }
    }

    /// Writes the speed down for the next start, if it has changed.
    pub(super) async fn remember(&self) {
        let cache = self.wanted.find().ok().and_then(|installed| installed.cache);
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
        let installed = self.wanted.find()?;
        *locked(&self.hold) = Some(installed.hold()?);
        let arguments = self.wanted.setup(&installed, self.keeps)?.arguments()?;
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
                previews: false,
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
        if OUT_OF_MEMORY.iter().any(|words| why.contains(words)) {
            let gib = self.wanted.memory_bytes as f64 / (1_u64 << 30) as f64;
            return Some(format!(
                "its memory is limited to {gib:.1} GiB: raise --engine-memory, or use a smaller model"
            ));
        }
        why.contains(&format!("(exit status: {NO_MODEL})")).then(|| self.wanted.remedy())
    }
}

/// Measures a render, reports its progress, and says how long to wait for the next event.
pub(super) struct Watch<'a> {
    shared: &'a Shared,
    progress: &'a Progress,
    limit: Duration,
    /// Pixels of a picture, and with the references.
    pixels: u64,
    all_pixels: u64,
    pictures: u32,
    pub measured: Measured,
}

impl<'a> Watch<'a> {
    pub(super) fn new(shared: &'a Shared, order: &Order, progress: &'a Progress, limit: Duration) -> Self {
        let pixels = u64::from(order.width) * u64::from(order.height);
        let all_pixels = pixels + locked(&shared.speed).seen_pixels(&order.references);
        let pictures = u32::try_from(order.seeds.len()).unwrap_or(u32::MAX);
        Self { shared, progress, limit, pixels, all_pixels, pictures, measured: Measured::default() }
    }

    pub(super) fn after(&mut self, event: Option<&Event>) -> Duration {
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
            Some(Event::Preview { picture }) => self.progress.show(picture.clone()),
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
