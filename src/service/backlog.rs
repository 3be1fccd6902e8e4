//! How long a task that is accepted now would wait. What would only be refunded at the end of its time is
//! refused at once.
//!
//! Every process reckons with all that draw: with its own slots, if it draws, as it knows them, and with those that
//! others have reported to the database. It looks at these and at the queue from time to time; nobody waits for that but
//! whoever looks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::config::TASK_TIME_LIMIT;
use crate::domain::model::{Id, IdSource};
use crate::store::{Result, Store, StoreError, WorkerReport};

/// How long a look holds good, at least and at most...
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// ...and in between so many times as long as it took: a queue full of dead rows is not looked through all the time.
const LOOK_WORTH: u32 = 10;
/// The part of the mean that one attempt makes up.
const WEIGHT: f64 = 1.0 / 16.0;

/// The queue, and what works on it, as this process knows them.
#[derive(Debug)]
pub struct Backlog {
    clock: Clock,
    own: Id,
    slots: u32,
    known: Mutex<Known>,
    /// Held by whoever looks.
    looking: tokio::sync::Mutex<()>,
    mean_known: Notify,
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// When to look again; at once if `None`.
    look_at: Option<Duration>,
    waiting: u64,
    others: Capacity,
    /// Whether this process draws.
    draws: bool,
    /// How long an attempt holds a slot; `None` until one ended.
    mean: Option<Duration>,
}

/// What some workers can do together. Those that have ended no attempt yet are taken to be as quick as the others.
#[derive(Debug, Clone, Copy, Default)]
struct Capacity {
    slots: f64,
    /// Slots of those whose mean is known...
    known_slots: f64,
    /// ...and how many attempts they end in a second.
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

    /// How long a task takes that comes after so many; `None` when nobody can tell.
    fn wait(self, waiting: u64) -> Option<Duration> {
        if self.known_slots == 0.0 {
            return None;
        }
        let mean = Duration::from_secs_f64(self.known_slots / self.rate);
        Some(mean.mul_f64(waiting as f64 / self.slots + 1.0))
    }
}

/// What a look finds: other workers, and how many tasks wait.
type Seen = (Vec<WorkerReport>, u64);

impl Backlog {
    /// A queue that this process, if it draws, works on with so many slots.
    pub fn new(slots: usize, clock: Clock) -> Self {
        Self {
            own: IdSource::default().next(clock.now()),
            clock,
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            known: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            mean_known: Notify::new(),
        }
    }

    /// An attempt held a slot for so long.
    pub fn observe(&self, took: Duration) {
        let mut known = self.known();
        let mean = known.mean.unwrap_or_else(|| {
            self.mean_known.notify_one();
            took
        });
        known.mean = Some(mean.mul_f64(1.0 - WEIGHT) + took.mul_f64(WEIGHT));
        known.draws = true;
    }

    /// What others are to know of this process, which draws.
    pub fn report(&self) -> WorkerReport {
        let mut known = self.known();
        known.draws = true;
        WorkerReport { id: self.own, slots: self.slots, mean: known.mean }
    }

    /// Waits until the first attempt has ended.
    pub async fn mean_known(&self) {
        self.mean_known.notified().await;
    }

    /// What this process is called in its reports.
    pub fn id(&self) -> Id {
        self.own
    }

    /// One more task waits.
    pub fn grow(&self) {
        self.known().waiting += 1;
    }

    /// How much too long a task accepted now would wait; `None` when it would end in time, or when nobody can tell.
    pub async fn excess(&self, store: &dyn Store) -> Option<Duration> {
        let look = async { Ok((store.other_workers(self.own).await?, store.queue_depth().await?.waiting)) };
        self.look(look).await;
        let known = *self.known();
        let own = known.draws.then_some((self.slots, known.mean));
        let all = own.map_or(known.others, |(slots, mean)| known.others.with(slots, mean));
        all.wait(known.waiting)?.checked_sub(TASK_TIME_LIMIT).filter(|excess| !excess.is_zero())
    }

    /// Looks, if it is time to and nobody else is about it. What fails is looked at again later.
    async fn look(&self, look: impl Future<Output = Result<Seen>>) {
        let Ok(_looking) = self.looking.try_lock() else { return };
        let begun = self.clock.elapsed();
        if self.known().look_at.is_some_and(|at| begun < at) {
            return;
        }
        let seen = look.await;
        let ended = self.clock.elapsed();
        let pause = (ended.saturating_sub(begun) * LOOK_WORTH).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY);
        let mut known = self.known();
        known.look_at = Some(ended + pause);
        match seen {
            Ok((others, waiting)) => {
                let add = |all: Capacity, other: WorkerReport| all.with(other.slots, other.mean);
                (known.others, known.waiting) = (others.into_iter().fold(Capacity::default(), add), waiting);
            }
            Err(error) => unseen(&error),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unseen(error: &StoreError) {
    tracing::warn!(%error, "cannot look at the queue; going by what was known of it");
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

    #[tokio::test]
    async fn a_look_that_takes_long_is_not_taken_often() {
        let (backlog, clock) = backlog();
        let looks = Cell::new(0);
        let look = async |takes: Duration| {
            let look = async {
                looks.set(looks.get() + 1);
                clock.advance(takes);
                Ok((Vec::new(), 0))
            };
            backlog.look(look).await;
            looks.get()
        };
        assert_eq!(look(SECOND / 20).await, 1);
        clock.advance(SECOND - Duration::from_millis(1));
        assert_eq!(look(SECOND).await, 1, "a second at least");
        clock.advance(Duration::from_millis(1));
        assert_eq!(look(SECOND * 3).await, 2);
        clock.advance(SECOND * 29);
        assert_eq!(look(SECOND).await, 2, "ten times as long as it took");
        clock.advance(SECOND);
        assert_eq!(look(SECOND * 3_600).await, 3);
        clock.advance(SECOND * 60);
        assert_eq!(look(SECOND).await, 4, "a minute at most");
    }

    #[tokio::test]
    async fn nobody_waits_for_somebody_else_who_looks() {
        let (backlog, _) = backlog();
        let (begun, found) = (Notify::new(), Notify::new());
        let slow = backlog.look(async {
            begun.notify_one();
            found.notified().await;
            Ok((Vec::new(), 7))
        });
        let meanwhile = async {
            begun.notified().await;
            backlog.look(async { panic!("one look is enough") }).await;
            backlog.grow();
            assert_eq!(backlog.known().waiting, 1);
            found.notify_one();
        };
        tokio::join!(slow, meanwhile);
        assert_eq!(backlog.known().waiting, 7);
    }

    #[tokio::test]
    async fn a_look_that_was_given_up_is_made_by_the_next() {
        let (backlog, _) = backlog();
        drop(tokio::time::timeout(Duration::ZERO, backlog.look(std::future::pending())).await);
        backlog.look(async { Ok((Vec::new(), 7)) }).await;
        assert_eq!(backlog.known().waiting, 7);
    }

    #[test]
    fn workers_draw_side_by_side_each_at_its_pace() {
        let quick = Capacity::default().with(3, Some(SECOND * 2));
        assert_eq!(quick.wait(0), Some(SECOND * 2));
        assert_eq!(quick.wait(6), Some(SECOND * 6));
        // One task and a half a second, and another half of one.
        let both = quick.with(10, Some(SECOND * 20));
        let wait = both.wait(100).expect("both have drawn").as_secs_f64();
        assert!((wait - (50.0 + 6.5)).abs() < 1e-6, "{wait}");
        // As quick as those that are known, so half of the time for four times the slots.
        let one = Capacity::default().with(1, Some(SECOND * 10));
        assert_eq!(one.with(3, None).wait(8), Some(SECOND * 30));
        assert_eq!(Capacity::default().with(3, None).wait(1_000), None, "nobody can tell");
        assert_eq!(Capacity::default().with(1, Some(Duration::ZERO)).wait(1_000), Some(Duration::ZERO));
    }
}
