//! What the engines of a process have done with the latest tasks.
//!
//! If an engine turns one task away again and again but renders others, the task is at fault. If several tasks go wrong
//! with it in a row that another engine then renders, the engine is at fault: it gets one task now and then, and the
//! other does the rest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;
use tokio::time::Instant;

/// Most tasks to remember per engine.
const MAX_TASKS: usize = 256;
/// Wait after the first time. It doubles each time.
const FIRST_DELAY: Duration = Duration::from_secs(2);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Rejections a task gets before they count against it, even while others are rendered: the server may be at its limit.
const FREE_REJECTIONS: u32 = 2;
/// Different tasks that go wrong in a row, and are rendered elsewhere, before the engine is at fault.
const SEVERAL: usize = 2;
/// Interval between tasks for an engine that is at fault.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// The records of all engines of a process.
#[derive(Debug, Default)]
pub struct EngineRecords(Mutex<Vec<Record>>);

#[derive(Debug, Default)]
struct Record {
    /// How many tasks this engine has rendered.
    rendered: u64,
    turned_away: VecDeque<TurnedAway>,
    /// The tasks that have gone wrong since this engine's last success.
    gone_wrong: VecDeque<GoneWrong>,
    last_try: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct GoneWrong {
    id: Id,
    /// Whether another engine has rendered it since.
    done_elsewhere: bool,
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
        records[self.index].gone_wrong.clear();
        for task in records.iter_mut().flat_map(|record| &mut record.gone_wrong).filter(|task| task.id == id) {
            task.done_elsewhere = true;
        }
    }

    /// Notes that an attempt failed.
    pub fn note_failed(&self, id: Id) {
        self.all.0.locked()[self.index].note_gone_wrong(id);
    }

    /// Notes that the engine turned a task away, and asked for a pause.
    pub fn note_turned_away(&self, id: Id, pause: Option<Duration>, is_busy: bool) -> NextTry {
        let record = &mut self.all.0.locked()[self.index];
        record.note_gone_wrong(id);
        let Record { turned_away, rendered, .. } = record;
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

    /// How many tasks the engine may get now, with `free` slots. One that is at fault gets a single one.
    pub fn tasks_to_claim(&self, free: usize) -> usize {
        let record = &mut self.all.0.locked()[self.index];
        if record.gone_wrong.iter().filter(|task| task.done_elsewhere).count() < SEVERAL {
            return free;
        }
        let is_due = record.last_try.is_none_or(|at| at.elapsed() >= TRY_EVERY);
        if is_due {
            record.last_try = Some(Instant::now());
        }
        is_due.into()
    }
}

impl Record {
    fn note_gone_wrong(&mut self, id: Id) {
        self.last_try = Some(Instant::now());
        let known = self.gone_wrong.iter().position(|task| task.id == id);
        let known = known.and_then(|index| self.gone_wrong.remove(index));
        if self.gone_wrong.len() == MAX_TASKS {
            self.gone_wrong.pop_front();
        }
        self.gone_wrong.push_back(known.unwrap_or(GoneWrong { id, done_elsewhere: false }));
    }
}
