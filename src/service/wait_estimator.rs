//! Estimates how long a task that is accepted now would wait, so that a submit is refused at once if its task would
//! only time out and be refunded.
//!
//! Every process counts its own workers' render slots, and the slots that other processes report to the database. A
//! submit refreshes these reports and the queue's length when they are too old; other submits don't wait for the
//! refresh.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::queue_positions::{QueuePosition, QueuePositions, Rank};
use super::refresh::Refresh;
use tintype_config::{PROGRESS_EVERY, TASK_TIME_LIMIT};
use tintype_domain::model::{Id, IdSource, Task, TaskRef};
use tintype_domain::request::MAX_REFERENCES;
use tintype_store::{AttemptProgress, QueueDepth, Result, Store, WaitingForEngine, WorkerReport};
use tintype_system::clock::Clock;
use tintype_system::locked::Locked as _;

/// Attempts from which the mean is computed: the latest ones.
const SAMPLES: usize = 32;
/// Fewest attempts with a known mean. A single one says little about the next.
pub const MIN_SAMPLES: usize = 4;
/// One of this many attempts, at least one, is left out of the mean: the longest. A few slow ones among many must not
/// stop all submits.
const ONE_OUTLIER_IN: usize = 8;

/// The part of a render after which its pace predicts the whole time.
const MIN_PROGRESS: f64 = 0.02;
/// The time for which it must have run: a stage is up to [`PROGRESS_EVERY`] old, which would be most of a shorter time.
const MIN_RUNNING: Duration = PROGRESS_EVERY.saturating_mul(2);

/// The length of the queue and the capacity of all workers, as last read by this process.
#[derive(Debug)]
pub struct WaitEstimator {
    clock: Clock,
    ids: IdSource,
    own: Mutex<Vec<Arc<WorkerThroughput>>>,
    known: Mutex<Known>,
    refresh: Refresh,
    positions: QueuePositions,
    /// The waiting tasks of each account: apart from the positions, so that a submit makes no position older.
    turns: QueuePositions,
}

/// How fast one worker of this process renders.
#[derive(Debug)]
pub struct WorkerThroughput {
    id: Id,
    engine: String,
    max_references: u32,
    masks: bool,
    slots: u32,
    measured: Mutex<Measured>,
    news: Notify,
}

/// Whether an attempt has run for long enough that its pace, or the absence of one, says when it ends.
pub fn is_predictive(attempt: AttemptProgress) -> bool {
    let part = attempt.stage.map(|stage| f64::from(stage.fraction()));
    attempt.running >= MIN_RUNNING && part.is_none_or(|part| part >= MIN_PROGRESS)
}

/// Estimated time until an attempt ends: extrapolated from its steps if it reports some, otherwise the rest of the
/// usual time, which is `None` if unknown.
fn left(attempt: AttemptProgress, usual: Option<Duration>) -> Option<Duration> {
    let AttemptProgress { running, stage } = attempt;
    let part = stage.map(|stage| f64::from(stage.fraction()));
    match part.filter(|_| is_predictive(attempt)) {
        Some(part) => Some(running.mul_f64((1.0 - part) / part)),
        None => usual.map(|usual| usual.saturating_sub(running)),
    }
}

#[derive(Debug, Default)]
struct Known {
    waiting: u64,
    leased: u64,
    /// Waiting tasks with at least one reference, at least two, and so on.
    needing: [u64; MAX_REFERENCES],
    named: Vec<WaitingForEngine>,
    is_paused: bool,
    others: Vec<WorkerReport>,
}

#[derive(Debug, Default)]
struct Measured {
    /// Whether the worker takes work.
    renders: bool,
    /// How long the latest attempts held a slot, and for how many images.
    samples: VecDeque<(Duration, u32)>,
}

impl Measured {
    /// Mean time that an attempt holds a slot; `None` until [`MIN_SAMPLES`] have ended.
    fn mean(&self) -> Option<Duration> {
        self.mean_of(|(took, _)| took)
    }

    /// Mean time that an attempt holds a slot, for each of its images.
    fn mean_of_image(&self) -> Option<Duration> {
        self.mean_of(|(took, images)| took / images.max(1))
    }

    fn mean_of(&self, time: impl Fn((Duration, u32)) -> Duration) -> Option<Duration> {
        if self.samples.len() < MIN_SAMPLES {
            return None;
        }
        let mut usual: Vec<Duration> = self.samples.iter().copied().map(time).collect();
        usual.sort_unstable();
        usual.truncate(usual.len() - (usual.len() / ONE_OUTLIER_IN).max(1));
        Some(usual.iter().sum::<Duration>() / u32::try_from(usual.len()).unwrap_or(u32::MAX))
    }
}

/// The combined capacity of some workers. Workers without a finished attempt are assumed to be as fast as the others.
#[derive(Debug, Clone, Copy, Default)]
struct Capacity {
    slots: f64,
    /// Slots of the workers with a known mean.
    known_slots: f64,
    /// Attempts that these workers finish per second.
    rate: f64,
}

impl Capacity {
    fn with(mut self, slots: u32, mean: Option<Duration>) -> Self {
        let slots = f64::from(slots);
        self.slots += slots;
        if let Some(mean) = mean {
            self.known_slots += slots;
            self.rate += slots / mean.as_secs_f64();
        }
        self
    }

    /// Mean time of an attempt; `None` if no worker has measured it.
    fn mean(self) -> Option<Duration> {
        (self.known_slots > 0.0).then(|| Duration::from_secs_f64(self.known_slots / self.rate))
    }

    /// Time until a task behind `waiting` others ends; `None` if no mean is known.
    fn wait(self, waiting: u64) -> Option<Duration> {
        Some(self.mean()?.mul_f64(waiting as f64 / self.slots + 1.0))
    }
}

/// Result of a refresh: the reports of other workers, the length of the queue, and the tasks in it that name an engine.
type Refreshed = (Vec<WorkerReport>, QueueDepth, Vec<WaitingForEngine>);

impl WorkerThroughput {
    /// Records how long an attempt held a slot, and for how many images. An attempt that was cut off must not be recorded: it
    /// says how long the worker was willing to wait.
    pub fn observe(&self, took: Duration, images: u32) {
        let mut measured = self.measured.locked();
        measured.samples.push_back((took, images));
        if measured.samples.len() > SAMPLES {
            measured.samples.pop_front();
        }
        if measured.samples.len() == MIN_SAMPLES {
            self.news.notify_one();
        }
        measured.renders = true;
    }

    /// The report of the worker for all processes. Also records whether it takes work.
    pub fn report(&self, is_available: bool) -> WorkerReport {
        let mut measured = self.measured.locked();
        measured.renders = is_available;
        WorkerReport {
            id: self.id,
            engine: self.engine.clone(),
            max_references: self.max_references,
            masks: self.masks,
            slots: self.slots,
            mean: measured.mean(),
            mean_of_image: measured.mean_of_image(),
            is_available,
        }
    }

    /// The id of the worker.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Makes the next report due at once.
    pub fn report_soon(&self) {
        self.news.notify_one();
    }

    /// Waits until there is something to report: enough attempts have ended for a mean, or
    /// [`WorkerThroughput::report_soon`].
    pub async fn news(&self) {
        self.news.notified().await;
    }
}

impl WaitEstimator {
    /// Creates the estimator for a process without workers.
    pub fn new(clock: Clock) -> Self {
        Self {
            refresh: Refresh::new(clock.clone()),
            positions: QueuePositions::new(clock.clone()),
            turns: QueuePositions::new(clock.clone()),
            clock,
            ids: IdSource::default(),
            own: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// Adds a worker of this process, which counts from its first report or observation on.
    pub fn add_worker(&self, engine: &str, max_references: u32, masks: bool, slots: usize) -> Arc<WorkerThroughput> {
        let throughput = Arc::new(WorkerThroughput {
            id: self.ids.next(self.clock.now()),
            engine: engine.to_owned(),
            max_references,
            masks,
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            measured: Mutex::default(),
            news: Notify::new(),
        });
        self.own.locked().push(throughput.clone());
        throughput
    }

    /// Removes a worker that has ended.
    pub fn remove_worker(&self, id: Id) {
        self.own.locked().retain(|throughput| throughput.id != id);
    }

    /// Counts a task that was just accepted, with this many references.
    pub fn add_waiting(&self, task: TaskRef, references: usize) {
        self.turns.count(task.account_id);
        self.positions.add(task);
        let mut known = self.known.locked();
        known.waiting += 1;
        known.needing.iter_mut().take(references).for_each(|needing| *needing += 1);
    }

    /// By how much a task of this account with `references` references, which may name an engine, would exceed its
    /// limit if it were accepted now; `None` if it would end in time, or this is unknown.
    pub async fn excess(&self, store: &Store, of: Id, references: usize, engine: Option<&str>) -> Option<Duration> {
        self.measure(store).await;
        let turn = self.turns.before_next(store, of).await;
        let (takeable, needing, named) = {
            let known = self.known.locked();
            let of_engine = known.named.iter().find(|named| Some(named.engine.as_str()) == engine);
            (self.takeable(&known), known.needing, of_engine.map_or(0, |named| named.tasks))
        };
        // The task waits for its turn among those that a worker takes, and among those that need the same workers as it does.
        let all = self.wait(takeable.min(turn), 0, None);
        let needing = references.checked_sub(1).and_then(|index| needing.get(index));
        let same = needing.and_then(|needing| self.wait(turn.min(*needing), references, None));
        let own = engine.and_then(|engine| self.wait(named.min(turn), references, Some(engine)));
        all.max(same).max(own)?.checked_sub(TASK_TIME_LIMIT).filter(|excess| !excess.is_zero())
    }

    /// The position of an unfinished task, with reference images or without, and the time until it ends. Both are estimates:
    /// they are up to a few seconds old, and workers take turns between accounts. `attempt` is the progress of the present
    /// attempt at the task, if there is a report of it.
    pub async fn queue_position(
        &self,
        store: &Store,
        task: TaskRef,
        image_to_image: bool,
        attempt: Option<AttemptProgress>,
    ) -> QueuePosition {
        self.measure(store).await;
        let usual = self.mean(image_to_image);
        match attempt {
            Some(attempt) => QueuePosition { position: 0, wait: left(attempt, usual) },
            None => match self.positions.of(store, task).await {
                // A pause of the queue does not stop it.
                Rank { position: 0, .. } => QueuePosition { position: 0, wait: usual },
                rank => self.ranked(rank, image_to_image),
            },
        }
    }

    /// Estimated time until a task that was just accepted, the last one of its account, ends; `None` if unknown. Tasks
    /// for which a slot is free don't wait.
    pub fn last_wait(&self, task: &Task) -> Option<Duration> {
        let free = {
            let known = self.known.locked();
            (self.capacity(&known, 0, None).slots as u64).saturating_sub(known.leased)
        };
        let turn = self.turns.before_last(task.account_id) + 1;
        self.wait_behind(turn.saturating_sub(free), task.image_to_image)
    }

    /// The position of a waiting task. One that names an engine also waits for those before it that name the same, and its wait
    /// is unknown while the wait for this engine is.
    fn ranked(&self, rank: Rank, image_to_image: bool) -> QueuePosition {
        let Rank { position, before, of_engine } = rank;
        let wait = self.wait_behind(before + 1, image_to_image);
        let Some((engine, among)) = of_engine else { return QueuePosition { position, wait } };
        let own = self.wait(among, 0, Some(&engine));
        QueuePosition { position, wait: own.and_then(|own| Some(wait?.max(own))) }
    }

    /// The wait behind `waiting` others, which is unknown while no worker takes the task.
    fn wait_behind(&self, waiting: u64, image_to_image: bool) -> Option<Duration> {
        let takeable = self.takeable(&self.known.locked());
        self.mean(image_to_image).and_then(|_| self.wait(waiting.min(takeable), 0, None))
    }

    /// The waiting tasks that some worker takes. Others wait for an engine that no worker currently has, and delay
    /// nothing.
    fn takeable(&self, known: &Known) -> u64 {
        let missing = (0..MAX_REFERENCES).find(|index| self.capacity(known, index + 1, None).slots == 0.0);
        let lacks_worker = |named: &&WaitingForEngine| self.capacity(known, 0, Some(&named.engine)).slots == 0.0;
        let named: u64 = known.named.iter().filter(lacks_worker).map(|named| named.tasks).sum();
        known.waiting.saturating_sub(missing.map_or(0, |index| known.needing[index])).saturating_sub(named)
    }

    /// Measured mean time of an attempt at such a task, by all workers that take it; `None` until enough have ended.
    fn mean(&self, image_to_image: bool) -> Option<Duration> {
        self.capacity(&self.known.locked(), usize::from(image_to_image), None).mean()
    }

    /// Time until a task ends that is behind `waiting` others for the workers of [`WaitEstimator::capacity`]; `None`
    /// while that is unknown, as during a pause.
    fn wait(&self, waiting: u64, references: usize, engine: Option<&str>) -> Option<Duration> {
        let known = self.known.locked();
        self.capacity(&known, references, engine).wait(waiting).filter(|_| !known.is_paused)
    }

    /// The capacity of all workers that take this many references, and have this engine if there is one.
    fn capacity(&self, known: &Known, references: usize, engine: Option<&str>) -> Capacity {
        let takes = |name: &str, max_references: u32| {
            max_references as usize >= references && engine.is_none_or(|engine| engine == name)
        };
        let mut all = Capacity::default();
        for other in known.others.iter().filter(|other| takes(&other.engine, other.max_references)) {
            all = all.with(other.slots, other.mean);
        }
        for throughput in
            self.own.locked().iter().filter(|throughput| takes(&throughput.engine, throughput.max_references))
        {
            let measured = throughput.measured.locked();
            if measured.renders {
                all = all.with(throughput.slots, measured.mean());
            }
        }
        all
    }

    async fn measure(&self, store: &Store) {
        let own: Vec<Id> = self.own.locked().iter().map(|throughput| throughput.id).collect();
        let others = async { store.other_workers(&own).await };
        self.refresh(async { Ok((others.await?, store.queue_depth().await?, store.waiting_for_engines().await?)) })
            .await;
    }

    /// Runs `query` if a refresh is due and no other one is running.
    async fn refresh(&self, query: impl Future<Output = Result<Refreshed>>) {
        let update = |(others, depth, named): Refreshed| {
            let QueueDepth { waiting, leased, needing, paused_at, .. } = depth;
            *self.known.locked() = Known { waiting, leased, needing, named, is_paused: paused_at.is_some(), others };
        };
        self.refresh.run(query, update).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use tintype_domain::model::Surface;
    use tintype_system::clock::Timestamp;

    const SECOND: Duration = Duration::from_secs(1);

    fn estimator() -> (WaitEstimator, Clock) {
        let clock = Clock::manual(Timestamp::from_millis(1_795_262_400_000));
        (WaitEstimator::new(clock.clone()), clock)
    }

    fn depth(waiting: u64) -> QueueDepth {
        QueueDepth { waiting, ..QueueDepth::default() }
    }

    #[tokio::test]
    async fn a_slow_refresh_is_repeated_less_often() {
        let (estimator, clock) = estimator();
        let refreshes = Cell::new(0);
        let refresh = async |takes: Duration| {
            let query = async {
                refreshes.set(refreshes.get() + 1);
                clock.advance(takes);
                Ok((Vec::new(), depth(0), Vec::new()))
            };
            estimator.refresh(query).await;
            refreshes.get()
        };
        assert_eq!(refresh(SECOND / 20).await, 1);
        clock.advance(SECOND - Duration::from_millis(1));
        assert_eq!(refresh(SECOND).await, 1, "at least a second later");
        clock.advance(Duration::from_millis(1));
        assert_eq!(refresh(SECOND * 3).await, 2);
        clock.advance(SECOND * 29);
        assert_eq!(refresh(SECOND).await, 2, "ten times its duration later");
        clock.advance(SECOND);
        assert_eq!(refresh(SECOND * 3_600).await, 3);
        clock.advance(SECOND * 60);
        assert_eq!(refresh(SECOND).await, 4, "at most a minute later");
    }

    #[tokio::test]
    async fn a_refresh_does_not_block_other_callers() {
        let (estimator, clock) = estimator();
        let (started, release) = (Notify::new(), Notify::new());
        let slow = estimator.refresh(async {
            started.notify_one();
            release.notified().await;
            Ok((Vec::new(), depth(7), Vec::new()))
        });
        let meanwhile = async {
            started.notified().await;
            estimator.refresh(async { panic!("a refresh is already running") }).await;
            let id = IdSource::default().next(clock.now());
            estimator.add_waiting(TaskRef { id, account_id: id, surface: Surface::Api }, 0);
            assert_eq!(estimator.known.locked().waiting, 1);
            release.notify_one();
        };
        tokio::join!(slow, meanwhile);
        assert_eq!(estimator.known.locked().waiting, 7);
    }

    #[tokio::test]
    async fn a_cancelled_refresh_is_repeated_by_the_next_caller() {
        let (estimator, _) = estimator();
        drop(tokio::time::timeout(Duration::ZERO, estimator.refresh(std::future::pending())).await);
        estimator.refresh(async { Ok((Vec::new(), depth(7), Vec::new())) }).await;
        assert_eq!(estimator.known.locked().waiting, 7);
    }

    #[test]
    fn an_outlier_and_a_single_attempt_do_not_decide_the_mean() {
        let (estimator, _) = estimator();
        let worker = estimator.add_worker("sketch", 4, false, 2);
        let mean = |took: Duration| {
            worker.observe(took, 1);
            worker.measured.locked().mean()
        };
        assert_eq!([SECOND * 175, SECOND, SECOND].map(mean), [None; 3], "too few attempts");
        assert_eq!(mean(SECOND), Some(SECOND));
        for _ in 0..SAMPLES {
            mean(SECOND);
        }
        assert_eq!([SECOND * 175; SAMPLES / ONE_OUTLIER_IN].map(mean), [Some(SECOND); SAMPLES / ONE_OUTLIER_IN]);
        assert!(mean(SECOND * 175) > Some(SECOND * 2), "slow attempts that are no exception count");
        for _ in 0..SAMPLES {
            mean(SECOND * 2);
        }
        assert_eq!(mean(SECOND * 2), Some(SECOND * 2), "only the latest attempts count");
    }

    #[tokio::test]
    async fn a_task_with_references_waits_for_the_workers_that_take_them() {
        let (estimator, _) = estimator();
        let text = estimator.add_worker("text", 0, false, 100);
        let edit = estimator.add_worker("edit", 2, false, 1);
        for _ in 0..MIN_SAMPLES {
            text.observe(SECOND, 1);
            edit.observe(SECOND, 1);
        }
        let waiting = |waiting, needing| {
            *estimator.known.locked() = Known { waiting, needing, ..Known::default() };
            [estimator.wait(waiting, 0, None), estimator.wait(needing[0], 1, None), estimator.wait(needing[2], 3, None)]
        };
        assert_eq!(waiting(101, [50, 0, 0, 0]), [Some(SECOND * 2), Some(SECOND * 51), None]);
        text.report(false);
        assert_eq!(waiting(10, [5, 0, 0, 0])[..2], [Some(SECOND * 11), Some(SECOND * 6)], "its engine is down");
        let takeable = || estimator.takeable(&estimator.known.locked());
        waiting(1_000, [900, 800, 700, 600]);
        assert_eq!(takeable(), 300, "one worker takes two references");
        text.report(true);
        edit.report(false);
        assert_eq!(takeable(), 100, "tasks for an engine that is down delay nobody");
    }

    #[tokio::test]
    async fn a_task_that_names_an_engine_waits_for_its_workers_and_delays_nobody_without_one() {
        let (estimator, _) = estimator();
        let (quick, slow) = (estimator.add_worker("quick", 4, false, 10), estimator.add_worker("slow", 4, false, 1));
        for _ in 0..MIN_SAMPLES {
            quick.observe(SECOND, 1);
            slow.observe(SECOND * 10, 1);
        }
        let named = |engine: &str, tasks| WaitingForEngine { engine: engine.into(), tasks, references: 0 };
        let all = vec![named("gone", 1_000), named("slow", 60)];
        *estimator.known.locked() = Known { waiting: 1_100, named: all, ..Known::default() };
        assert_eq!(estimator.takeable(&estimator.known.locked()), 100);
        assert_eq!(estimator.wait(60, 0, Some("slow")), Some(SECOND * 610));
        assert_eq!(estimator.wait(1_000, 0, Some("gone")), None, "nobody has it");
        slow.report(false);
        assert_eq!(estimator.takeable(&estimator.known.locked()), 40, "its engine is down");
    }

    #[test]
    fn workers_render_side_by_side_each_at_its_pace() {
        let quick = Capacity::default().with(3, Some(SECOND * 2));
        assert_eq!(quick.wait(0), Some(SECOND * 2));
        assert_eq!(quick.wait(6), Some(SECOND * 6));
        // 1.5 tasks per second and 0.5 tasks per second.
        let both = quick.with(10, Some(SECOND * 20));
        let wait = both.wait(100).expect("both means are known").as_secs_f64();
        assert!((wait - (50.0 + 6.5)).abs() < 1e-6, "{wait}");
        // The other worker is assumed to be as fast, so four times the slots take a quarter of the time in the queue.
        let one = Capacity::default().with(1, Some(SECOND * 10));
        assert_eq!(one.with(3, None).wait(8), Some(SECOND * 30));
        assert_eq!(Capacity::default().with(3, None).wait(1_000), None, "no mean is known");
        assert_eq!(Capacity::default().with(1, Some(Duration::ZERO)).wait(1_000), Some(Duration::ZERO));
    }
}
