//! The age of tasks, corrected for steps of the clock that dated their ids.
//!
//! Without the correction, setting the clock ahead by nine minutes, or nine minutes of sleep, would fail every
//! unfinished task.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tintype_config::TASK_TIME_LIMIT;
use tintype_domain::model::Id;
use tintype_domain::timestamp::Timestamp;
use tintype_store::Store;
use tintype_system::clock::Clock;
use tintype_system::locked::Locked as _;

/// A smaller difference between two clocks is not a step.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Detects that the store's clock was set ahead, by comparing it with the monotonic clock of this process.
#[derive(Debug)]
pub struct ClockWatch {
    now: Timestamp,
    elapsed: Duration,
}

impl ClockWatch {
    /// Watches from this moment on.
    pub fn new(now: Timestamp, elapsed: Duration) -> Self {
        Self { now, elapsed }
    }

    /// How far the clock was set ahead, or how long the machine slept, since the previous call.
    pub fn stepped(&mut self, now: Timestamp, elapsed: Duration) -> Option<Duration> {
        let last = std::mem::replace(self, Self { now, elapsed });
        let step = now.since(last.now).saturating_sub(elapsed.saturating_sub(last.elapsed));
        (step > TOLERANCE).then_some(step)
    }
}

/// Computes the age of tasks.
#[derive(Debug)]
pub struct TaskAges {
    store: Arc<Store>,
    clock: Clock,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    watch: ClockWatch,
    /// Steps since the creation of the oldest task that may be unfinished.
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    by: Duration,
    /// Tasks created at or before this time were created before the step.
    before: Timestamp,
    noticed: Duration,
}

impl TaskAges {
    /// Watches the store's clock from this moment on.
    pub fn new(store: Arc<Store>, clock: Clock) -> Self {
        let watch = ClockWatch::new(store.now(), clock.elapsed());
        Self { store, clock, seen: Mutex::new(Seen { watch, steps: Vec::new() }) }
    }

    /// The time that has passed since the creation of the task.
    pub fn of(&self, id: Id) -> Duration {
        let (now, steps) = self.steps();
        let created = id.timestamp();
        let skipped: Duration = steps.iter().filter(|step| created <= step.before).map(|step| step.by).sum();
        now.since(created).saturating_sub(skipped)
    }

    /// Tasks created at or before this time have reached [`TASK_TIME_LIMIT`].
    pub fn overdue(&self) -> Timestamp {
        let (now, steps) = self.steps();
        // A task created after one of these steps is younger than the time limit, so every step counts.
        let skipped: Duration = steps.iter().map(|step| step.by).sum();
        now.saturating_sub(TASK_TIME_LIMIT + skipped)
    }

    /// The store's time, and its steps within the time limit.
    fn steps(&self) -> (Timestamp, Vec<Step>) {
        let mut seen = self.seen.locked();
        let (now, elapsed) = (self.store.now(), self.clock.elapsed());
        if let Some(by) = seen.watch.stepped(now, elapsed) {
            seen.steps.push(Step { by, before: now.saturating_sub(by), noticed: elapsed });
        }
        seen.steps.retain(|step| elapsed.saturating_sub(step.noticed) < TASK_TIME_LIMIT);
        (now, seen.steps.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_clock_that_moves_faster_than_the_monotonic_clock_was_set_ahead() {
        let noon = Timestamp::from_millis(1_795_262_400_000);
        let mut watch = ClockWatch::new(noon, Duration::ZERO);
        let later = noon.saturating_add(HOUR);
        assert_eq!(watch.stepped(later.saturating_add(TOLERANCE), HOUR), None, "a clock is never exact");
        assert_eq!(watch.stepped(later.saturating_add(HOUR), HOUR), Some(HOUR - TOLERANCE), "an hour in no time");
        assert_eq!(watch.stepped(later.saturating_add(HOUR * 2), HOUR * 2), None, "a step is reported once");
        assert_eq!(watch.stepped(noon, HOUR * 3), None, "a clock that is set back is not set ahead");
        assert_eq!(watch.stepped(later, HOUR * 4), None);
    }
}
