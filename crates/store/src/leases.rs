//! Leases: the right of a worker to work on a task, and the outcomes of writes under it.

use std::time::Duration;

use tintype_engine::Stage;

use tintype_domain::model::{Id, Surface, TaskRef};
use tintype_domain::request::GenerateRequest;
use tintype_domain::text::{counted, in_words, of_words};

/// A task that has lost this many leases is failed instead of queued again.
pub const MAX_LOST_LEASES: u32 = 3;

/// Longest lease. A lease with more time left than this was given before the clock was set back, and counts as lost.
pub const LONGEST_LEASE: Duration = Duration::from_secs(10 * 60);

/// Maximum delay of a task. A longer one means that the clock was set back; the task is then claimable.
pub const LONGEST_DELAY: Duration = Duration::from_secs(10 * 60);

/// A lease: the right to work on a task until the lease expires or is reclaimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The task.
    pub task_id: Id,
    /// Fencing token: every claim raises it, and writes with an older epoch have no effect.
    pub epoch: i64,
}

/// A task that a worker has claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The lease.
    pub lease: Lease,
    /// The account that owns the task.
    pub account_id: Id,
    /// The surface on which the account created it.
    pub surface: Surface,
    /// The request.
    pub request: GenerateRequest,
    /// Whether the caller of the API asked for previews.
    pub wants_previews: bool,
}

impl Claim {
    /// The task.
    pub fn task(&self) -> TaskRef {
        TaskRef { id: self.lease.task_id, account_id: self.account_id, surface: self.surface }
    }
}

/// How far an attempt is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttemptProgress {
    /// How long the attempt has been rendering.
    pub running: Duration,
    /// The latest report of its engine.
    pub stage: Option<Stage>,
}

/// Outcome of a write under a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseWrite {
    /// The write took effect.
    Done,
    /// The lease was lost before the write; nothing was changed.
    Lost,
}

/// The number of strikes that suspends a key or a person, and how long each counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StrikeRule {
    /// Number of strikes that suspends the key or the person.
    pub limit: u32,
    /// How long a strike counts.
    pub window: Duration,
}

/// Stands between the two in the reason of a suspension.
const WITHIN: &str = " of the content policy within ";

impl std::fmt::Display for StrikeRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{WITHIN}{}", counted(self.limit, "violation", "violations"), in_words(self.window))
    }
}

impl StrikeRule {
    /// Reads a rule from the reason of a suspension, which is its text.
    pub fn read(reason: &str) -> Option<Self> {
        let (violations, window) = reason.split_once(WITHIN)?;
        // Earlier releases wrote "1 violations".
        let limit = violations.strip_suffix(" violation").or_else(|| violations.strip_suffix(" violations"))?;
        Some(Self { limit: limit.parse().ok()?, window: of_words(window)? })
    }
}

/// A task that was failed and refunded for a violation of the content policy, and whom its strike suspended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// The key of the task.
    pub suspended_key: Option<Id>,
    /// The person who created the task, or who made its key.
    pub suspended_person: Option<Id>,
}

/// Outcome of abandoning an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The task was queued again.
    Queued,
    /// It was the last attempt: the task was failed and refunded.
    Failed,
    /// The lease was lost before the write; nothing was changed.
    Lost,
}

/// The leases to reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    /// Expired leases.
    Expired,
    /// All leases, because the caller knows that no worker is alive.
    All,
}

/// Outcome of cancelling a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancellation {
    /// It has ended, and its credits are back.
    Done(TaskRef),
    /// Refused: a worker holds it, and tasks that the account stopped lately have returned their share of credits.
    OverShare,
    /// There is no such unfinished task.
    NotFound,
}

/// Tasks that were queued again or failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Number of tasks that were queued again.
    pub queued: usize,
    /// The tasks that were failed and refunded, in any order.
    pub failed: Vec<TaskRef>,
}

impl Reclaimed {
    /// Adds the tasks that another reclaim changed.
    pub fn add(&mut self, other: Self) {
        self.queued += other.queued;
        self.failed.extend(other.failed);
    }
}
