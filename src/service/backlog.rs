//! Estimates how long a task that is accepted now would wait, so that a submit is refused at once if its task would
//! only time out and be refunded.
//!
//! Every process counts its own render slots, if it renders, and the slots that other processes report to the database.
//! A submit refreshes these reports and the length of the queue when they are too old; other submits do not wait for the
//! refresh.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::places::Places;
use super::refresh::Refresh;
use crate::clock::Clock;
use crate::config::TASK_TIME_LIMIT;
use crate::domain::model::{Id, IdSource};
use crate::store::{AttemptProgress, QueueDepth, Result, Store, WorkerReport};

/// Attempts from which the mean is computed: the latest ones.
const SAMPLES: usize = 32;
/// Fewest attempts with a known mean. A single one says little about the next.
pub const MIN_SAMPLES: usize = 4;
/// One of this many attempts, at least one, is left out of the mean: the longest. A few slow ones among many must not
/// stop all submits.
const ONE_OUTLIER_IN: usize = 8;

/// The part of a render from which its pace tells the whole time.
const TELLING_PART: f64 = 0.02;
/// The shortest and the longest time that a caller is told to wait before a poll. The interface recommends up to 10 s.
const SHORTEST_POLL: Duration = Duration::from_millis(50);
const LONGEST_POLL: Duration = Duration::from_secs(10);

/// The length of the queue and the capacity of all workers, as last read by this process.
#[derive(Debug)]
pub struct Backlog {
    own: Id,
    slots: u32,
    known: Mutex<Known>,
    refresh: Refresh,
    places: Places,
    mean_known: Notify,
}

/// The place of an unfinished task in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its rank by age among all waiting tasks, from 1; 0 while a worker has it.
    pub position: u64,
    /// Estimated time until it ends; `None` if that is unknown.
    pub wait: Option<Duration>,
}

impl Place {
    /// Time after which the next poll of the task is worth it: when it has probably ended, within the limits of the
    /// interface, and not before another tenth of its age, so that a task that never ends is asked for less and less
    /// often. `typical` is the time that its engine says to take, for as long as nothing was measured.
    pub fn poll_after(self, age: Duration, typical: Duration) -> Duration {
        let left = self.wait.unwrap_or_else(|| typical.saturating_sub(age));
        left.max(age / 10).clamp(SHORTEST_POLL, LONGEST_POLL)
    }
}

/// Estimated time until an attempt ends: at the pace of its steps if it reports some, otherwise what is left of the usual
/// time, which is `None` if it is unknown.
fn left(attempt: AttemptProgress, usual: Option<Duration>) -> Option<Duration> {
    let AttemptProgress { running, stage } = attempt;
    match stage.map(|stage| f64::from(stage.fraction())).filter(|part| *part >= TELLING_PART) {
        Some(part) => Some(running.mul_f64((1.0 - part) / part)),
        None => usual.map(|usual| usual.saturating_sub(running)),
    }
}

#[derive(Debug, Default)]
struct Known {
    waiting: u64,
    is_paused: bool,
    others: Capacity,
    /// Whether this process renders.
    renders: bool,
    /// How long the latest attempts held a slot.
    samples: VecDeque<Duration>,
}

impl Known {
    /// Mean time that an attempt holds a slot; `None` until [`MIN_SAMPLES`] have ended.
    fn mean(&self) -> Option<Duration> {
        if self.samples.len() < MIN_SAMPLES {
            return None;
        }
        let mut usual: Vec<Duration> = self.samples.iter().copied().collect();
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

    /// Mean time of an attempt; `None` if no worker knows its own.
    fn mean(self) -> Option<Duration> {
        (self.known_slots > 0.0).then(|| Duration::from_secs_f64(self.known_slots / self.rate))
    }

    /// Time until a task behind `waiting` others ends; `None` if no mean is known.
    fn wait(self, waiting: u64) -> Option<Duration> {
        Some(self.mean()?.mul_f64(waiting as f64 / self.slots + 1.0))
    }
}

/// Result of a refresh: the reports of other workers, and the length of the queue.
type Refreshed = (Vec<WorkerReport>, QueueDepth);

impl Backlog {
    /// Creates a backlog for a process that renders with `slots` slots, if it renders at all.
    pub fn new(slots: usize, clock: Clock) -> Self {
        Self {
            own: IdSource::default().next(clock.now()),
            refresh: Refresh::new(clock.clone()),
            places: Places::new(clock),
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            known: Mutex::default(),
            mean_known: Notify::new(),
        }
    }

    /// Records how long an attempt held a slot. An attempt that was cut off must not be recorded: it says how long the
    /// worker was willing to wait.
    pub fn observe(&self, took: Duration) {
        let mut known = self.known();
        known.samples.push_back(took);
        if known.samples.len() > SAMPLES {
            known.samples.pop_front();
        }
        if known.samples.len() == MIN_SAMPLES {
            self.mean_known.notify_one();
        }
        known.renders = true;
    }

    /// The report of this process for other processes. Also records that this process renders.
    pub fn report(&self) -> WorkerReport {
        let mut known = self.known();
        known.renders = true;
        WorkerReport { id: self.own, slots: self.slots, mean: known.mean() }
    }

    /// Waits until enough attempts have ended for a mean.
    pub async fn mean_known(&self) {
        self.mean_known.notified().await;
    }

    /// Id of this process in its reports.
    pub fn id(&self) -> Id {
        self.own
    }

    /// Counts one more waiting task.
    pub fn grow(&self) {
        self.known().waiting += 1;
    }

    /// Time by which a task that is accepted now would exceed its limit; `None` if it would end in time, or if that is
    /// unknown.
    pub async fn excess(&self, store: &dyn Store) -> Option<Duration> {
        self.measure(store).await;
        let waiting = self.known().waiting;
        self.wait(waiting)?.checked_sub(TASK_TIME_LIMIT).filter(|excess| !excess.is_zero())
    }

    /// The place of an unfinished task, and the time until it ends. Both are estimates: they are up to a few seconds old,
    /// and workers take turns between accounts. `attempt` is the progress of the present attempt at the task, if there is
    /// a report of it.
    pub async fn place(&self, store: &dyn Store, id: Id, attempt: Option<AttemptProgress>) -> Place {
        self.measure(store).await;
        match attempt {
            Some(attempt) => Place { position: 0, wait: left(attempt, self.mean()) },
            None => match self.places.of(store, id).await {
                // A pause of the queue does not stop it.
                0 => Place { position: 0, wait: self.mean() },
                position => Place { position, wait: self.wait(position) },
            },
        }
    }

    /// The place of a task that was just accepted, behind all others.
    pub fn last_place(&self) -> Place {
        let position = self.known().waiting;
        Place { position, wait: self.wait(position.saturating_sub(1)) }
    }

    /// Measured mean time of an attempt, by all workers; `None` until enough attempts have ended.
    pub fn mean(&self) -> Option<Duration> {
        self.capacity(&self.known()).mean()
    }

    /// Time until a task behind `waiting` others ends; `None` while that is unknown, as during a pause.
    fn wait(&self, waiting: u64) -> Option<Duration> {
        let known = self.known();
        self.capacity(&known).wait(waiting).filter(|_| !known.is_paused)
    }

    /// The capacity of all workers, with that of this process if it renders.
    fn capacity(&self, known: &Known) -> Capacity {
        if known.renders { known.others.with(self.slots, known.mean()) } else { known.others }
    }

    async fn measure(&self, store: &dyn Store) {
        self.refresh(async { Ok((store.other_workers(self.own).await?, store.queue_depth().await?)) }).await;
    }

    /// Runs `query` if a refresh is due and no other one is running.
    async fn refresh(&self, query: impl Future<Output = Result<Refreshed>>) {
        let update = |(others, depth): Refreshed| {
            let add = |all: Capacity, other: WorkerReport| all.with(other.slots, other.mean);
            let mut known = self.known();
            known.others = others.into_iter().fold(Capacity::default(), add);
            (known.waiting, known.is_paused) = (depth.waiting, depth.paused_at.is_some());
        };
        self.refresh.run(query, update).await;
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::clock::Timestamp;

    const SECOND: Duration = Duration::from_secs(1);

    fn backlog() -> (Backlog, Clock) {
        let clock = Clock::manual(Timestamp::from_millis(1_795_262_400_000));
        (Backlog::new(2, clock.clone()), clock)
    }

    fn depth(waiting: u64) -> QueueDepth {
        QueueDepth { waiting, ..QueueDepth::default() }
    }

    #[tokio::test]
    async fn a_slow_refresh_is_repeated_less_often() {
        let (backlog, clock) = backlog();
        let refreshes = Cell::new(0);
        let refresh = async |takes: Duration| {
            let query = async {
                refreshes.set(refreshes.get() + 1);
                clock.advance(takes);
                Ok((Vec::new(), depth(0)))
            };
            backlog.refresh(query).await;
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
        let (backlog, _) = backlog();
        let (started, release) = (Notify::new(), Notify::new());
        let slow = backlog.refresh(async {
            started.notify_one();
            release.notified().await;
            Ok((Vec::new(), depth(7)))
        });
        let meanwhile = async {
            started.notified().await;
            backlog.refresh(async { panic!("a refresh is already running") }).await;
            backlog.grow();
            assert_eq!(backlog.known().waiting, 1);
            release.notify_one();
        };
        tokio::join!(slow, meanwhile);
        assert_eq!(backlog.known().waiting, 7);
    }

    #[tokio::test]
    async fn a_cancelled_refresh_is_repeated_by_the_next_caller() {
        let (backlog, _) = backlog();
        drop(tokio::time::timeout(Duration::ZERO, backlog.refresh(std::future::pending())).await);
        backlog.refresh(async { Ok((Vec::new(), depth(7))) }).await;
        assert_eq!(backlog.known().waiting, 7);
    }

    #[test]
    fn an_outlier_and_a_single_attempt_do_not_decide_the_mean() {
        let (backlog, _) = backlog();
        let mean = |took: Duration| {
            backlog.observe(took);
            backlog.known().mean()
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
