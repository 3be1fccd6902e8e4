//! What the engines of a process have done with the latest tasks.
//!
//! If an engine turns one task away again and again but renders others, the task is at fault. If several tasks go wrong
//! with it in a row that another engine then renders, the engine is to blame: it gets one task now and then, and the
//! other does the rest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tintype_domain::model::Id;
use tintype_engine::Failures;
use tintype_system::locked::Locked as _;

/// Most tasks to remember that an engine turned away.
const MAX_TASKS: usize = 256;
/// Wait after the first time. It doubles each time.
const FIRST_DELAY: Duration = Duration::from_secs(2);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Rejections a task gets before they count against it, even while others are rendered: the server may be at its limit.
const FREE_REJECTIONS: u32 = 2;
/// Interval between tasks for an engine that is to blame.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// The records of all engines of a process.
#[derive(Debug, Default)]
pub struct EngineRecords(Mutex<Vec<Record>>);

#[derive(Debug, Default)]
struct Record {
    /// How many tasks this engine has rendered.
    rendered: u64,
    turned_away: VecDeque<TurnedAway>,
    failures: Failures<Id>,
}

#[derive(Debug, Clone, Copy)]
struct TurnedAway {
    id: Id,
    times: u32,
    /// The tasks that this engine had rendered when it turned this one away first.
    rendered: u64,
}

/// The record of one engine.
#[derive(Debug)]
pub struct EngineRecord {
    all: Arc<EngineRecords>,
    index: usize,
}

/// What happens to a task that the engine turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextTry {
    /// Time to wait before it is tried again, by any engine.
    pub delay: Duration,
    /// Whether this counts as a failed attempt.
    pub loses_attempt: bool,
}

impl EngineRecord {
    /// The record of another engine.
    pub fn new(all: &Arc<EngineRecords>) -> Self {
        let mut records = all.0.locked();
        records.push(Record::default());
        Self { all: all.clone(), index: records.len() - 1 }
    }

    /// Notes that the engine rendered a task.
    pub fn note_rendered(&self, id: Id) {
        let mut records = self.all.0.locked();
        records[self.index].rendered += 1;
        records[self.index].failures.clear();
        records.iter_mut().for_each(|record| record.failures.note_done_elsewhere(id));
    }

    /// Notes that an attempt failed.
    pub fn note_failed(&self, id: Id) {
        self.all.0.locked()[self.index].failures.note(id, false);
    }

    /// Notes that the engine turned a task away, and asked for a pause.
    pub fn note_turned_away(&self, id: Id, pause: Option<Duration>, is_busy: bool) -> NextTry {
        let Record { rendered, turned_away, failures } = &mut self.all.0.locked()[self.index];
        failures.note(id, pause.is_some());
        let known = turned_away.iter().position(|task| task.id == id).and_then(|index| turned_away.remove(index));
        let mut task = known.unwrap_or(TurnedAway { id, times: 0, rendered: *rendered });
        task.times = task.times.saturating_add(1);
        turned_away.push_back(task);
        let surplus = turned_away.len().saturating_sub(MAX_TASKS);
        turned_away.drain(..surplus);
        let delay = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(task.times - 1)).min(MAX_DELAY);
        NextTry {
            delay: pause.map_or(delay, |pause| pause.max(delay)),
            loses_attempt: !is_busy && task.times > FREE_REJECTIONS && *rendered > task.rendered,
        }
    }

    /// How many tasks the engine may get now, with `free` slots. One that is to blame gets a single one now and then.
    pub fn tasks_to_claim(&self, free: usize) -> usize {
        let failures = &mut self.all.0.locked()[self.index].failures;
        if !failures.is_to_blame() {
            return free;
        }
        let is_due = failures.is_due(TRY_EVERY);
        if is_due {
            failures.note_try();
        }
        is_due.into()
    }
}
