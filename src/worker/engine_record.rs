//! What the engine has done with the latest tasks.
//!
//! If it turns one task away again and again but renders others, the task is at fault. If it fails or turns away several
//! tasks in a row while another engine of this process renders, the engine is at fault: it gets one task now and then,
//! so that the other engine does the rest.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;
use tokio::time::Instant;

/// Most tasks to remember that the engine turned away.
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

#[derive(Debug)]
pub(super) struct EngineRecord {
    /// How many tasks all engines of this process have rendered.
    by_all: Arc<AtomicU64>,
    tasks: Mutex<Tasks>,
}

#[derive(Debug)]
struct Tasks {
    /// How many this engine has rendered.
    rendered: u64,
    /// How many all engines had rendered when this one succeeded last.
    rendered_by_all: u64,
    turned_away: VecDeque<TurnedAway>,
    /// The tasks that have gone wrong since this engine's last success, at most [`SEVERAL`].
    gone_wrong: Vec<Id>,
    gone_wrong_at: Instant,
}

#[derive(Debug, Clone, Copy)]
struct TurnedAway {
    id: Id,
    times: u32,
    /// The tasks that this engine had rendered when it turned this one away first.
    rendered: u64,
}

/// What happens to a task that the engine turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextTry {
    /// Time to wait before it is tried again, by any engine.
    pub delay: Duration,
    pub loses_attempt: bool,
}

impl EngineRecord {
    pub(super) fn new(by_all: Arc<AtomicU64>) -> Self {
        let rendered_by_all = by_all.load(Ordering::SeqCst);
        let gone_wrong_at = Instant::now();
        let (turned_away, gone_wrong) = (VecDeque::new(), Vec::new());
        let tasks = Tasks { rendered: 0, rendered_by_all, turned_away, gone_wrong, gone_wrong_at };
        Self { by_all, tasks: Mutex::new(tasks) }
    }

    pub(super) fn note_rendered(&self) {
        let mut tasks = self.tasks.locked();
        tasks.rendered += 1;
        tasks.rendered_by_all = self.by_all.fetch_add(1, Ordering::SeqCst) + 1;
        tasks.gone_wrong.clear();
    }

    /// Notes that an attempt failed.
    pub(super) fn note_failed(&self, id: Id) {
        self.tasks.locked().note_gone_wrong(id);
    }

    /// Notes that the engine turned a task away, and asked for a pause.
    pub(super) fn note_turned_away(&self, id: Id, pause: Option<Duration>, is_busy: bool) -> NextTry {
        let mut tasks = self.tasks.locked();
        tasks.note_gone_wrong(id);
        let rendered = tasks.rendered;
        let known = tasks.turned_away.iter().position(|task| task.id == id);
        let known = known.and_then(|index| tasks.turned_away.remove(index));
        let mut task = known.unwrap_or(TurnedAway { id, times: 0, rendered });
        task.times = task.times.saturating_add(1);
        tasks.turned_away.push_back(task);
        let surplus = tasks.turned_away.len().saturating_sub(MAX_TASKS);
        tasks.turned_away.drain(..surplus);
        // Another engine can take the task at once.
        if self.another_renders(&tasks) {
            return NextTry { delay: FIRST_DELAY, loses_attempt: false };
        }
        let delay = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(task.times - 1)).min(MAX_DELAY);
        NextTry {
            delay: pause.map_or(delay, |pause| pause.max(delay)),
            loses_attempt: !is_busy && task.times > FREE_REJECTIONS && rendered > task.rendered,
        }
    }

    /// How many tasks the engine may get now, with this many of all slots free.
    pub(super) fn tasks_to_claim(&self, free: usize, all: usize) -> usize {
        let tasks = self.tasks.locked();
        if tasks.gone_wrong.len() < SEVERAL || !self.another_renders(&tasks) {
            return free;
        }
        (free == all && tasks.gone_wrong_at.elapsed() >= TRY_EVERY).into()
    }

    /// Whether another engine has rendered a task since this one's last success.
    fn another_renders(&self, tasks: &Tasks) -> bool {
        self.by_all.load(Ordering::SeqCst) > tasks.rendered_by_all
    }
}

impl Tasks {
    fn note_gone_wrong(&mut self, id: Id) {
        self.gone_wrong_at = Instant::now();
        if !self.gone_wrong.contains(&id) && self.gone_wrong.len() < SEVERAL {
            self.gone_wrong.push(id);
        }
    }
}
