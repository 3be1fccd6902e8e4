//! The child as a program for the supervisor, and the measurement of its renders.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tintype_engine::frames::{Event, Loaded, Order, Prompt};
use tintype_engine::{CancellationToken, EngineError, Lora, Measured, Progress, Stage};

use super::child::{NO_FILES, NO_MODEL, NO_SCHEDULER};
use super::link::Link;
use super::model_request::{ATTEMPT_LIMIT, ModelRequest};
use super::speed::{Plan, Speed};
use crate::models::Hold;
use crate::supervisor::{Next, Program};
use tintype_system::clock::Clock;
use tintype_system::locked::Locked as _;

/// Last words of a Rust program whose allocation failed. Several threads can fail at once and write into each other's
/// lines.
const OUT_OF_MEMORY: [&str; 3] = ["memory allocation of", "bytes failed", "skipping backtrace printing"];

/// The message for a picture whose numbers overflowed.
const NOT_FINITE: &str = "gave numbers that are not finite";

/// Side of the picture for measuring a new child, in pixels.
const FIRST_SIDE: u32 = 256;
/// Steps of that picture. The first one loads the model.
const FIRST_STEPS: u32 = 2;
/// A child that is silent for this many step times is considered hung, but never before the shortest patience.
const PATIENCE_FACTOR: f64 = 10.0;
const SHORTEST_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Shared {
    pub request: ModelRequest,
    /// Whether files can be written beside the model.
    keeps: bool,
    pub speed: Mutex<Speed>,
    pub measured: Mutex<Option<Measured>>,
    /// Protects the running child's model from being removed.
    hold: Mutex<Option<Hold>>,
    loras: Mutex<Loras>,
    /// This program, which the child runs.
    pub program: PathBuf,
}

#[derive(Debug, Default)]
struct Loras {
    /// The LoRA files of the most recent child.
    present: Vec<Lora>,
    /// The LoRA files of the next child. After a crash there are none, so that no file can stop the engine.
    next: Vec<Lora>,
    /// Sets of LoRA files that the model was opened with, the latest last.
    opened: VecDeque<Vec<Lora>>,
}

/// How many sets of usable LoRA files an engine remembers.
const MOST_OPENED: usize = 16;

impl Shared {
    pub(super) fn new(request: ModelRequest, keeps: bool, program: &Path) -> Self {
        let speed = Mutex::new(request.remembered());
        let (measured, hold, loras) = Default::default();
        Self { request, keeps, speed, measured, hold, loras, program: program.to_owned() }
    }

    /// Whether the child has these LoRA files in addition to the engine's own.
    pub(super) fn has_loras(&self, loras: &[Lora]) -> bool {
        self.loras.locked().present == loras
    }

    /// Whether the model is known to open with these LoRA files.
    pub(super) fn has_opened(&self, loras: &[Lora]) -> bool {
        loras.is_empty() || self.loras.locked().opened.iter().any(|opened| opened == loras)
    }

    pub(super) fn opened(&self, loras: &[Lora]) {
        let mut known = self.loras.locked();
        if known.opened.len() == MOST_OPENED {
            known.opened.pop_front();
        }
        known.opened.push_back(loras.to_vec());
    }

    /// Removes this set of files from the sets that [`Shared::opened`] has recorded.
    pub(super) fn forget_opened(&self, loras: &[Lora]) {
        self.loras.locked().opened.retain(|opened| opened != loras);
    }

    pub(super) fn give_next(&self, loras: Vec<Lora>) {
        self.loras.locked().next = loras;
    }

    /// Saves the speed for the next start, if it has changed.
    pub(super) async fn remember(&self) {
        let (Some(file), true) = (self.request.speed_file(), self.keeps) else { return };
        let speed = self.speed.locked().clone();
        let write = move || match speed.differs(&Speed::remembered(&file)) {
            true => speed.remember(&file),
            false => Ok(()),
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not save the measured speed of the model; the next start measures it again")
            }
            Err(error) => tracing::warn!(%error, "could not save the measured speed of the model"),
        }
    }
}

#[async_trait]
impl Program for Arc<Shared> {
    type Link = Link;

    fn next(&self) -> Result<Next<Link>, String> {
        let installed = self.request.find()?;
        *self.hold.locked() = Some(installed.hold()?);
        let loras = {
            let mut loras = self.loras.locked();
            loras.present = std::mem::take(&mut loras.next);
            loras.present.clone()
        };
        let arguments = self.request.setup(&installed, self.keeps, &loras)?.arguments()?;
        Ok(Next { arguments, link: Box::new(Link::new) })
    }

    async fn begin(&self, link: &Link) -> Result<(), EngineError> {
        let lost = |why: &str| EngineError::NotAvailable(why.to_owned());
        let loaded = link.open().await.map_err(|_| lost("the model could not be opened"))?;
        if !loaded.confined {
            tracing::warn!("seccomp is not available: the engine process runs under resource limits only");
        }
        let known = {
            let mut speed = self.speed.locked();
            speed.on(&loaded);
            speed.is_known()
        };
        if !known {
            let side = FIRST_SIDE.next_multiple_of(loaded.side_multiple);
            let prompts = vec![Prompt { text: "a lighthouse".into(), seeds: vec![1], previews: false }];
            let (width, height, steps) = (side, side, FIRST_STEPS);
            let order = Order { prompts, width, height, steps, batch: 1, ..Order::default() };
            let mut meter = RenderMeter::new(self, &order, vec![Progress::default()], ATTEMPT_LIMIT, &Clock::system());
            let (goes_on, never) = (CancellationToken::new(), std::future::pending());
            let rendered = link.take().await.render(order, |event| meter.after(event), &goes_on, never).await;
            rendered.map_err(|trouble| lost(&trouble.to_string()))?;
            self.remember().await;
        }
        let Loaded { family, processor, micros, .. } = loaded;
        let expected = self.request.describe(&self.speed.locked());
        let opened_in = micros / 1_000;
        tracing::info!(family, processor, opened_in_ms = opened_in, "{expected}");
        Ok(())
    }

    async fn ask(&self, _link: &Link) -> Result<(), EngineError> {
        // The supervisor notices if the process ends, and renders are monitored while they last.
        Ok(())
    }

    fn advice(&self, why: &str) -> Option<String> {
        if OUT_OF_MEMORY.iter().any(|words| why.contains(words)) {
            return Some(self.request.more_memory());
        }
        if why.contains(NOT_FINITE) {
            return Some("numbers of 16 bits are too small for some models: give --engine-precision f32".into());
        }
        let statuses = [NO_MODEL, NO_FILES, NO_SCHEDULER].into_iter();
        let ended = |status: &u8| why.contains(&format!("(exit status: {status})"));
        statuses.filter(ended).find_map(|status| self.request.remedy(status))
    }
}

/// Measures an order's render, reports its progress, and says how long to wait for the next event.
pub(super) struct RenderMeter<'a> {
    shared: &'a Shared,
    /// For each prompt, where its progress goes, and which of the order's pictures are made from it.
    prompts: Vec<(Progress, Range<u32>)>,
    limit: Duration,
    /// A picture's pixels, without and with references.
    pixels: u64,
    all_pixels: u64,
    /// The most pictures in a batch.
    batch: u32,
    /// Whether the guidance is the model's default: otherwise a step may ask the model once instead of twice.
    is_usual: bool,
    clock: Clock,
    begun: Duration,
    pictures: u32,
    /// The task's plan, if the order can be abandoned for a smaller size.
    plan: Option<Plan>,
    /// Cancelled if the render would exceed its time limit, but a smaller size wouldn't.
    pub too_large: CancellationToken,
    pub measured: Measured,
}

impl<'a> RenderMeter<'a> {
    /// `progress` has one entry per prompt of the order.
    pub(super) fn new(
        shared: &'a Shared,
        order: &Order,
        progress: Vec<Progress>,
        limit: Duration,
        clock: &Clock,
    ) -> Self {
        let pixels = u64::from(order.width) * u64::from(order.height);
        let all_pixels = pixels + shared.speed.locked().seen_pixels(&order.references);
        let mut pictures = 0;
        let ranges = order.prompts.iter().map(|prompt| {
            let from = pictures;
            pictures += u32::try_from(prompt.seeds.len()).unwrap_or(u32::MAX);
            from..pictures
        });
        let prompts = progress.into_iter().zip(ranges).collect();
        Self {
            shared,
            prompts,
            limit,
            pixels,
            all_pixels,
            batch: order.batch,
            is_usual: order.guidance_scale.is_none(),
            clock: clock.clone(),
            begun: clock.elapsed(),
            pictures,
            plan: None,
            too_large: CancellationToken::new(),
            measured: Measured::default(),
        }
    }

    /// Allows abandoning the order for a smaller size, planned by `plan`.
    pub(super) fn planned(self, plan: Plan) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Whether, after `done` of its steps, the first picture is too slow for its time limit, and would not be at a
    /// smaller size.
    fn is_too_large(&self, speed: &Speed, done: u32, of: u32, step: Duration) -> bool {
        let Some(plan) = self.plan else { return false };
        let left = self.limit.saturating_sub(self.clock.elapsed().saturating_sub(self.begun));
        let steps = f64::from(of) * f64::from(self.pictures) - f64::from(done);
        let decoding = speed.decoding(self.pixels) * f64::from(self.pictures);
        if steps * step.as_secs_f64() + decoding <= left.as_secs_f64() {
            return false;
        }
        let pixels = |(width, height): (u32, u32)| u64::from(width) * u64::from(height);
        speed.working_size(&plan, left).is_some_and(|size| pixels(size) < self.pixels)
    }

    pub(super) fn after(&mut self, event: Option<&Event>) -> Duration {
        let mut speed = self.shared.speed.locked();
        match event {
            Some(Event::Encoded { micros }) => {
                self.measured.encode = Duration::from_micros(*micros);
                speed.observe_encoding(self.measured.encode);
            }
            Some(Event::Step { picture, pictures, done, of, micros }) => {
                let took = Duration::from_micros(*micros);
                self.measured.steps.push(took);
                // The first step loads the model. Speed is measured with single pictures only.
                if (*done > 1 || *of == 1) && *pictures == 1 {
                    if self.is_usual {
                        speed.observe_step(self.all_pixels, took);
                    }
                    if *picture == 0 && self.is_too_large(&speed, *done, *of, took) {
                        self.too_large.cancel();
                    }
                }
                for (progress, own) in &self.prompts {
                    let done_of = |at: u32| match at {
                        _ if at < *picture => *of,
                        _ if at < picture.saturating_add(*pictures) => *done,
                        _ => 0,
                    };
                    let done = own.clone().map(done_of).fold(0, u32::saturating_add);
                    if done > 0 {
                        progress.report(Stage::Step { done, of: of.saturating_mul(own.len() as u32) });
                    }
                }
            }
            Some(Event::Preview { of, picture }) => {
                if let Some((progress, _)) = self.prompts.iter().find(|(_, own)| own.contains(of)) {
                    progress.show(picture.clone());
                }
            }
            Some(Event::Painted { micros, .. }) => {
                self.measured.decodes.push(Duration::from_micros(*micros));
                speed.observe_decoding(self.pixels, Duration::from_micros(*micros));
            }
            _ => {}
        }
        // The longer of a step and the decoding, because either can come next.
        let step = speed.step(self.all_pixels).map(|step| step.max(speed.decoding(self.pixels)));
        let factor = PATIENCE_FACTOR * f64::from(self.batch);
        // For a size that was never rendered, only the time limit says that the first step takes too long.
        let step = step.filter(|_| speed.has_measured(self.all_pixels));
        let patience = step.map(|step| Duration::from_secs_f64((step * factor).min(1e6)));
        patience.map_or(self.limit, |patience| patience.max(SHORTEST_PATIENCE).min(self.limit))
    }
}
