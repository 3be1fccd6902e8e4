//! What the engines of a process have done with the latest tasks.
//!
//! If an engine turns one task away again and again but renders others, the task is at fault. So is a task that goes
//! wrong with two engines. If several other tasks go wrong in a row with one engine while another renders, the engine is
//! at fault: it gets one task now and then, and the other does the rest.

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
/// Different tasks that go wrong in a row before the engine is at fault.
const SEVERAL: usize = 2;
/// Interval between tasks for an engine that is at fault.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// The records of all engines of a process.
#[derive(Debug, Default)]
pub struct EngineRecords(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    /// How many tasks all engines have rendered.
    rendered: u64,
    engines: Vec<Record>,
}

#[derive(Debug, Default)]
struct Record {
    /// How many tasks this engine has rendered.
    rendered: u64,
    /// How many all engines had rendered when this one succeeded last.
    rendered_by_all: u64,
    turned_away: VecDeque<TurnedAway>,
    /// The tasks that have gone wrong since this engine's last success.
    gone_wrong: Vec<Id>,
    gone_wrong_at: Option<Instant>,
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
        let (index, rendered_by_all) = (records.engines.len(), records.rendered);
        records.engines.push(Record { rendered_by_all, ..Record::default() });
        Self { all: all.clone(), index }
    }

    /// Notes that the engine rendered a task.
    pub fn note_rendered(&self) {
        let mut records = self.all.0.locked();
        records.rendered += 1;
        let rendered_by_all = records.rendered;
        let record = &mut records.engines[self.index];
        record.rendered += 1;
        record.rendered_by_all = rendered_by_all;
        record.gone_wrong.clear();
    }

    /// Notes that an attempt failed.
    pub fn note_failed(&self, id: Id) {
        self.all.0.locked().note_gone_wrong(self.index, id);
    }

    /// Notes that the engine turned a task away, and asked for a pause.
    pub fn note_turned_away(&self, id: Id, pause: Option<Duration>, is_busy: bool) -> NextTry {
        let mut records = self.all.0.locked();
        records.note_gone_wrong(self.index, id);
        // Another engine need not wait.
        let pause = pause.filter(|_| !records.another_renders(self.index)).unwrap_or_default();
        let Record { turned_away, rendered, .. } = &mut records.engines[self.index];
        let known = turned_away.iter().position(|task| task.id == id).and_then(|index| turned_away.remove(index));
        let mut task = known.unwrap_or(TurnedAway { id, times: 0, rendered: *rendered });
        task.times = task.times.saturating_add(1);
        turned_away.push_back(task);
        let surplus = turned_away.len().saturating_sub(MAX_TASKS);
        turned_away.drain(..surplus);
        let delay = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(task.times - 1)).min(MAX_DELAY);
        NextTry {
            delay: pause.max(delay),
            loses_attempt: !is_busy && task.times > FREE_REJECTIONS && *rendered > task.rendered,
        }
    }

    /// How many tasks the engine may get now, with `free` of `all` slots free.
    pub fn tasks_to_claim(&self, free: usize, all: usize) -> usize {
        let records = self.all.0.locked();
        let record = &records.engines[self.index];
        if record.gone_wrong.len() < SEVERAL || !records.another_renders(self.index) {
            return free;
        }
        let is_due = record.gone_wrong_at.is_none_or(|at| at.elapsed() >= TRY_EVERY);
        (is_due && free == all).into()
    }
}

impl Records {
    fn note_gone_wrong(&mut self, engine: usize, id: Id) {
        let mut is_known = false;
        for (index, record) in self.engines.iter_mut().enumerate() {
            let known = record.gone_wrong.iter().position(|task| *task == id);
            is_known |= known.is_some();
            if let Some(known) = known.filter(|_| index != engine) {
                // Gone wrong with two engines, so neither is at fault.
                record.gone_wrong.remove(known);
            }
        }
        let record = &mut self.engines[engine];
        record.gone_wrong_at = Some(Instant::now());
        if !is_known && record.gone_wrong.len() < MAX_TASKS {
            record.gone_wrong.push(id);
        }
    }

    /// Whether another engine has rendered a task since this one's last success.
    fn another_renders(&self, engine: usize) -> bool {
        self.rendered > self.engines[engine].rendered_by_all
    }
}
