//! The child's turns. Each turn renders the task that has waited longest, together with others that fit into its batch:
//! tasks of the same size without references, no matter who submitted them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tintype_engine::frames::{Fault, Order, Prompt};
use tintype_engine::{Brief, CancellationToken, EngineError, Lora, Mask, Measured, Picture, Progress};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::link::{Link, OrderError, Pipes};
use super::program::{RenderMeter, Shared};
use super::speed::{LEAST_SIDE, Plan, Speed};
use super::{OpenFault, OpenModelError, open_with};
use crate::supervisor::{Running, Supervisor};
use tintype_domain::text::counted;
use tintype_system::clock::Clock;
use tintype_system::locked::Locked as _;

type RenderResult = Result<Vec<Picture>, EngineError>;

#[derive(Debug)]
struct Waiting {
    brief: Brief,
    progress: Progress,
    /// Cancelled when the answer is no longer wanted.
    cancelled: CancellationToken,
    answer: oneshot::Sender<RenderResult>,
    /// When its time limit ends, on the monotonic clock.
    until: Duration,
}

impl Waiting {
    fn answer(self, answer: RenderResult) {
        // A cancelled task no longer listens.
        drop(self.answer.send(answer));
    }

    fn size(&self) -> (u32, u32) {
        (self.brief.width, self.brief.height)
    }

    fn pictures(&self) -> usize {
        self.brief.seeds.len()
    }
}

#[derive(Debug)]
pub(super) struct Renderer {
    pub supervisor: Supervisor<Link>,
    pub shared: Arc<Shared>,
    clock: Clock,
    /// The longest-waiting task comes first.
    waiting: Mutex<VecDeque<Waiting>>,
    /// The batch size limit after a child was lost with a batch.
    most: AtomicU32,
}

/// The child during one turn.
struct Turn {
    link: Link,
    pipes: OwnedMutexGuard<Pipes>,
    number: u64,
}

/// Tasks to render together, and their working size in pixels.
#[derive(Debug)]
struct Batch {
    tasks: Vec<Waiting>,
    size: (u32, u32),
}

impl Renderer {
    pub(super) fn new(supervisor: Supervisor<Link>, shared: Arc<Shared>) -> Self {
        Self { supervisor, shared, clock: Clock::system(), waiting: Mutex::default(), most: AtomicU32::new(u32::MAX) }
    }

    pub(super) fn wait(
        &self,
        brief: Brief,
        progress: Progress,
        cancelled: CancellationToken,
    ) -> oneshot::Receiver<RenderResult> {
        let (answer, receiver) = oneshot::channel();
        let until = self.clock.elapsed().saturating_add(brief.time_limit);
        self.waiting.locked().push_back(Waiting { brief, progress, cancelled, answer, until });
        receiver
    }

    /// Waits until the child is free, and has it render the next batch, if any task still waits.
    pub(super) async fn take_turn(self: Arc<Self>) {
        let mut turn = match self.suitable_child().await {
            Ok(turn) => turn,
            Err(error) => {
                let first = self.waiting.locked().pop_front();
                if let Some(task) = first {
                    task.answer(Err(error));
                }
                return;
            }
        };
        let Some(batch) = self.next_batch(&turn) else { return };
        // One task's picture may have failed the whole batch, but no task may fail because of another; or it turned out
        // too large for its time limit. Each gets a turn alone.
        let mut again = VecDeque::from(self.render(&mut turn, batch).await);
        while let Some(task) = again.pop_front() {
            if task.cancelled.is_cancelled() {
                continue;
            }
            match self.working_size(&task, task.pictures()) {
                Some(size) => again.extend(self.render(&mut turn, Batch { tasks: vec![task], size }).await),
                None => task.answer(Err(EngineError::Temporary("no time was left to render it again".into()))),
            }
        }
    }

    /// The child, once it is free and has the LoRA files of the longest-waiting task. Tasks whose files cannot be used
    /// are answered.
    async fn suitable_child(&self) -> Result<Turn, EngineError> {
        loop {
            let turn = self.free_child().await?;
            let Some(loras) = self.other_loras() else { return Ok(turn) };
            if !self.shared.has_opened(&loras) {
                match open_with(&self.shared.request, &loras, &self.shared.program).await {
                    Ok(_) => self.shared.opened(&loras),
                    Err(complaint) => self.refuse(&loras, &complaint),
                }
                // The task may have been cancelled meanwhile.
                continue;
            }
            tracing::info!(files = loras.len(), "restarting the engine process with other LoRA files");
            self.shared.give_next(loras.clone());
            self.supervisor.restart(turn.number);
            if let Err(error) = self.supervisor.started().await {
                // Their weights could not be merged, for example because the disk is full. This costs an attempt.
                self.shared.forget_opened(&loras);
                self.refuse(&loras, &OpenModelError::from(error.to_string()));
                return Err(error);
            }
        }
    }

    /// The LoRA files of the longest-waiting task, if the child has others.
    fn other_loras(&self) -> Option<Vec<Lora>> {
        let mut waiting = self.waiting.locked();
        waiting.retain(|task| !task.cancelled.is_cancelled());
        let loras = &waiting.front()?.brief.settings.loras;
        (!self.shared.has_loras(loras)).then(|| loras.clone())
    }

    /// Answers tasks that wait for LoRA files that the model cannot be opened with.
    fn refuse(&self, loras: &[Lora], OpenModelError { words, fault }: &OpenModelError) {
        let refused: VecDeque<Waiting> = {
            let mut waiting = self.waiting.locked();
            let (refused, others) = waiting.drain(..).partition(|task| task.brief.settings.loras == loras);
            *waiting = others;
            refused
        };
        tracing::error!(cause = words, "a preset has LoRA files that the engine cannot use: correct its `lora`");
        for task in refused {
            task.answer(Err(match fault {
                OpenFault::Model | OpenFault::Addition => EngineError::Permanent(words.clone()),
                OpenFault::Other => EngineError::Temporary(words.clone()),
            }));
        }
    }

    /// The child, once it is free. Waits for a child that is restarting with other LoRA files.
    async fn free_child(&self) -> Result<Turn, EngineError> {
        loop {
            let Running { link, number, .. } = match self.supervisor.is_restarting() {
                true => self.supervisor.started().await?,
                false => self.supervisor.running()?,
            };
            let pipes = link.take().await;
            // It may have been replaced meanwhile.
            if self.supervisor.is_restarting() || self.supervisor.running()?.number != number {
                continue;
            }
            return Ok(Turn { link, pipes, number });
        }
    }

    /// Takes the longest-waiting task and others that fit into its batch. Tasks that fit at no size are answered.
    fn next_batch(&self, turn: &Turn) -> Option<Batch> {
        let mut waiting = self.waiting.locked();
        waiting.retain(|task| !task.cancelled.is_cancelled());
        let (first, size) = loop {
            let first = waiting.pop_front()?;
            if !self.shared.has_loras(&first.brief.settings.loras) {
                // It gets a child in its own turn.
                waiting.push_front(first);
                return None;
            }
            match self.working_size(&first, first.pictures()) {
                Some(size) => break (first, size),
                None => {
                    let refusal = self.too_slow(&first);
                    first.answer(Err(refusal));
                }
            }
        };
        let most = turn.link.loaded().map_or(1, |loaded| loaded.batch).min(self.most(size)) as usize;
        let (asked, mut pictures, mut tasks) = (first.size(), first.pictures(), vec![first]);
        let mut at = 0;
        while let Some(task) = waiting.get(at) {
            let all = pictures + task.pictures();
            let joins = all <= most
                && task.size() == asked
                && task.brief.settings == tasks[0].brief.settings
                && tasks.iter().chain([task]).all(|task| task.brief.references.is_empty())
                && tasks.iter().chain([task]).all(|task| self.working_size(task, all) == Some(size));
            if joins && let Some(task) = waiting.remove(at) {
                pictures = all;
                tasks.push(task);
            } else {
                at += 1;
            }
        }
        Some(Batch { tasks, size })
    }

    /// The most pictures of this size in a batch.
    fn most(&self, size: (u32, u32)) -> u32 {
        self.shared.request.batch(size).min(self.most.load(Ordering::SeqCst))
    }

    /// Reduces the batch size after a child was lost with `pictures` pictures, which may have been too many for its
    /// memory. Otherwise the same tasks would meet again until they have no attempts left.
    fn lost_with(&self, pictures: u32) {
        if pictures > 1 {
            let most = pictures / 2;
            self.most.fetch_min(most, Ordering::SeqCst);
            tracing::warn!(
                pictures,
                most,
                "the engine process died during a batch, so batches are smaller until the next start: if this happens again, lower --engine-batch or raise --engine-memory"
            );
        }
    }

    /// The size in pixels for rendering a task if there are `pictures` pictures in total: its own if there is time,
    /// otherwise a smaller one; `None` if none fits.
    fn working_size(&self, task: &Waiting, pictures: usize) -> Option<(u32, u32)> {
        let speed = self.shared.speed.locked();
        speed.working_size(&self.plan(&speed, task, pictures), self.left(task))
    }

    fn plan(&self, speed: &Speed, task: &Waiting, pictures: usize) -> Plan {
        let seen = speed.seen_pixels(&task.brief.references);
        speed.plan(task.size(), pictures, self.steps(task), seen)
    }

    /// Steps per picture of a task; 0 for the model's default.
    fn steps(&self, task: &Waiting) -> u32 {
        task.brief.settings.steps.unwrap_or(self.shared.request.steps)
    }

    fn left(&self, task: &Waiting) -> Duration {
        task.until.saturating_sub(self.clock.elapsed())
    }

    fn too_slow(&self, task: &Waiting) -> EngineError {
        let (width, height) = task.size();
        if self.left(task) * 2 < task.brief.time_limit {
            return EngineError::Temporary("too much of its time was spent waiting for the engine process".into());
        }
        EngineError::Permanent(format!(
            "{} of {width}x{height} with {} do not fit into {} s at any size from {LEAST_SIDE} pixels on",
            counted(task.pictures() as u64, "picture", "pictures"),
            counted(task.brief.references.len() as u64, "reference", "references"),
            self.left(task).as_secs()
        ))
    }

    /// Renders a batch and answers its tasks. Returns the tasks to render again: a whole batch during which the child
    /// failed, or one that only a smaller size would finish in time.
    async fn render(&self, turn: &mut Turn, Batch { tasks, size }: Batch) -> Vec<Waiting> {
        let left = tasks.iter().map(|task| self.left(task)).min().unwrap_or_default();
        let order = self.order(&tasks, size);
        let together = order.batch.min(u32::try_from(order.pictures().count()).unwrap_or(u32::MAX));
        let progress = tasks.iter().map(|task| task.progress.clone()).collect();
        let mut meter = RenderMeter::new(&self.shared, &order, progress, left, &self.clock);
        if let [task] = &*tasks {
            let plan = self.plan(&self.shared.speed.locked(), task, task.pictures());
            meter = meter.planned(plan);
        }
        let too_large = meter.too_large.clone();
        let render = Unfinished { supervisor: &self.supervisor, number: turn.number, has_ended: false };
        let cancelled = join_all(tasks.iter().map(|task| task.cancelled.clone().cancelled_owned()));
        let cancelled = async { drop(cancelled.await) };
        match turn.pipes.render(order, |event| meter.after(event), &too_large, cancelled).await {
            Ok((pictures, usage)) => {
                render.ended();
                let processor = turn.link.loaded().map(|loaded| loaded.processor.clone()).unwrap_or_default();
                let measured = Measured { usage, processor, ..meter.measured };
                *self.shared.measured.locked() = Some(measured);
                self.shared.remember().await;
                let mut pictures = pictures.into_iter();
                for task in tasks {
                    let own = pictures.by_ref().take(task.pictures()).collect();
                    task.answer(Ok(own));
                }
                Vec::new()
            }
            Err(OrderError::Failed(..)) if tasks.len() > 1 => {
                render.ended();
                tasks
            }
            Err(OrderError::Failed(Fault::Cancelled, _)) if too_large.is_cancelled() => {
                render.ended();
                let (width, height) = size;
                tracing::info!(width, height, "a step takes longer than was measured: rendering at a smaller size");
                tasks
            }
            Err(trouble) => {
                let is_wanted = tasks.iter().any(|task| !task.cancelled.is_cancelled());
                if is_wanted && matches!(trouble, OrderError::Gone | OrderError::Lost(_)) {
                    self.lost_with(together);
                }
                let failure = self.failure(trouble, render).await;
                for task in tasks {
                    task.answer(Err(match &failure {
                        EngineError::Permanent(why) => EngineError::Permanent(why.clone()),
                        other => EngineError::Temporary(other.to_string()),
                    }));
                }
                Vec::new()
            }
        }
    }

    fn order(&self, tasks: &[Waiting], (width, height): (u32, u32)) -> Order {
        let prompts = tasks.iter().map(|Waiting { brief, progress, .. }| Prompt {
            text: brief.prompt.clone(),
            seeds: brief.seeds.clone(),
            previews: progress.wants_previews(),
        });
        let references = tasks.iter().flat_map(|task| task.brief.references.clone()).collect();
        let (references, mask) = edited(references, tasks[0].brief.mask.clone(), (width, height));
        // Pictures with references are rendered alone.
        let batch = if references.is_empty() { self.most((width, height)) } else { 1 };
        // All tasks in a batch have the same settings.
        let settings = &tasks[0].brief.settings;
        Order {
            number: 0,
            prompts: prompts.collect(),
            width,
            height,
            references,
            mask,
            steps: self.steps(&tasks[0]),
            guidance_scale: settings.guidance_scale,
            strength: settings.strength,
            negative_prompt: settings.negative_prompt.clone().unwrap_or_default(),
            syntax: settings.prompt.unwrap_or(self.shared.request.prompt),
            batch,
        }
    }

    async fn failure(&self, trouble: OrderError, render: Unfinished<'_>) -> EngineError {
        let number = render.number;
        match trouble {
            OrderError::Failed(fault, message) => {
                render.ended();
                match fault {
                    Fault::Order | Fault::Spoiled => EngineError::Permanent(message),
                    Fault::Memory => {
                        let advice = self.shared.request.more_memory();
                        EngineError::Temporary(format!("{message}: {advice}"))
                    }
                    Fault::Model | Fault::Run | Fault::Cancelled => EngineError::Temporary(message),
                }
            }
            // Dropping the render replaces the child.
            OrderError::Lost(why) => EngineError::Temporary(format!("the engine process was killed: {why}")),
            OrderError::Gone => match self.supervisor.end_of(number).await {
                Some(why) => {
                    render.ended();
                    EngineError::Temporary(why)
                }
                None => EngineError::Temporary("the engine process closed its output".into()),
            },
        }
    }
}

/// The reference pictures and mask for an order of this size. With a mask, the whole first picture must come back in
/// place, and the child would crop it to the size's ratio.
fn edited(
    mut references: Vec<Picture>,
    mask: Option<Mask>,
    (width, height): (u32, u32),
) -> (Vec<Picture>, Option<Mask>) {
    let mask = mask.map(|mask| mask.stretch(width, height));
    if mask.is_some()
        && let Some(first) = references.first_mut()
    {
        *first = first.clone().stretch(width, height);
    }
    (references, mask)
}

/// A render whose child must be replaced unless it completes: nothing else stops the child of an abandoned render.
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
            self.supervisor.replace(self.number, "it was working on a render that failed or is no longer wanted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_an_edited_picture_is_cut_off_at_another_ratio() {
        // White at both ends, which a crop would lose.
        let row: Vec<u8> = (0..64).flat_map(|x| [if (2..62).contains(&x) { 0 } else { 255 }; 3]).collect();
        let picture = Picture::from_rgb(64, 32, row.repeat(32)).expect("a picture");
        let mask = Mask::of(picture.clone());
        let (references, mask) = edited(vec![picture.clone(), picture.clone()], Some(mask), (32, 32));
        let mask = mask.expect("a mask");
        for found in [&references[0], mask.picture()] {
            assert_eq!((found.width(), found.height()), (32, 32));
            assert!(found.as_rgb()[0] > 200 && found.as_rgb()[31 * 3] > 200, "{:?}", &found.as_rgb()[..96]);
        }
        assert_eq!(references[1], picture, "the child scales the others itself");
    }
}
