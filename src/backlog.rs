//! How long a task that is accepted now would wait. What would only be refunded at the end of its time is
//! refused at once.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::config::TASK_TIME_LIMIT;
use crate::store::{Result, Store};

/// How long a look at the queue holds good.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The part of the mean that one attempt makes up.
const WEIGHT: f64 = 1.0 / 16.0;

/// The queue as this process knows it.
#[derive(Debug)]
pub struct Backlog {
    clock: Clock,
    slots: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    looked: Option<Duration>,
    waiting: u64,
    /// How long an attempt holds a slot; `None` until one ended.
    mean: Option<Duration>,
}

impl Backlog {
    /// A queue that so many slots work on.
    pub fn new(slots: usize, clock: Clock) -> Self {
        Self { clock, slots, known: Mutex::default() }
    }

    /// An attempt held a slot for so long.
    pub fn observe(&self, took: Duration) {
        let mut known = self.known();
        let mean = known.mean.unwrap_or(took);
        known.mean = Some(mean.mul_f64(1.0 - WEIGHT) + took.mul_f64(WEIGHT));
    }

    /// One more task waits.
    pub fn grow(&self) {
        self.known().waiting += 1;
    }

    /// How much too long a task accepted now would wait; `None` when it would end in time.
    ///
    /// # Errors
    /// [`StoreError`](crate::store::StoreError) when the queue cannot be looked at.
    pub async fn excess(&self, store: &dyn Store) -> Result<Option<Duration>> {
        let now = self.clock.elapsed();
        let known = *self.known();
        let Some(mean) = known.mean else { return Ok(None) };
        let mut waiting = known.waiting;
        if known.looked.is_none_or(|at| now.saturating_sub(at) >= LOOK_EVERY) {
            waiting = store.queue_depth().await?.waiting;
            let mut known = self.known();
            (known.looked, known.waiting) = (Some(now), waiting);
        }
        let wait = mean.mul_f64(waiting as f64 / self.slots as f64 + 1.0);
        Ok(wait.checked_sub(TASK_TIME_LIMIT).filter(|excess| !excess.is_zero()))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
