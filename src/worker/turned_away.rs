//! Tasks that the engine turned away.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;

const MAX_TASKS: usize = 256;
/// Wait after the first time. It doubles each time.
const FIRST_DELAY: Duration = Duration::from_secs(2);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Rejections a task gets before they count against it, even while others are rendered: the server may be at its limit.
const FREE_REJECTIONS: u32 = 2;

/// The latest tasks that the engine turned away. One is at fault if the engine keeps turning it away and renders others.
#[derive(Debug, Default)]
pub(super) struct TurnedAway(Mutex<Tasks>);

#[derive(Debug, Default)]
struct Tasks {
    /// How many tasks have been rendered.
    rendered: u64,
    latest: VecDeque<Task>,
}

#[derive(Debug, Clone, Copy)]
struct Task {
    id: Id,
    times: u32,
    /// The tasks that had been rendered when it was turned away first.
    rendered: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextTry {
    /// Time to wait before it is tried again.
    pub delay: Duration,
    pub loses_attempt: bool,
}

impl TurnedAway {
    pub(super) fn rendered_another(&self) {
        self.0.locked().rendered += 1;
    }

    /// Notes that the engine turned a task away, and asked for a pause.
    pub(super) fn note(&self, id: Id, pause: Option<Duration>) -> NextTry {
        let mut tasks = self.0.locked();
        let rendered = tasks.rendered;
        let known = tasks.latest.iter().position(|task| task.id == id).and_then(|index| tasks.latest.remove(index));
        let mut task = known.unwrap_or(Task { id, times: 0, rendered });
        task.times = task.times.saturating_add(1);
        tasks.latest.push_back(task);
        let surplus = tasks.latest.len().saturating_sub(MAX_TASKS);
        tasks.latest.drain(..surplus);
        let delay = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(task.times - 1)).min(MAX_DELAY);
        NextTry {
            delay: pause.map_or(delay, |pause| pause.max(delay)),
            loses_attempt: task.times > FREE_REJECTIONS && rendered > task.rendered,
        }
    }
}
