//! Calls of OpenAI's dialect. Their clients repeat a call by themselves; a repeated call finds the task of the attempt
//! before instead of being charged again.

use std::time::Duration;

use async_trait::async_trait;

use super::{Result, Right};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// A call without an idempotency key finds a task that was submitted this long ago at most: the task ends within ten
/// minutes, and a client that waits for two attempts before it comes back within half an hour.
pub const FOUND_WITHIN: Duration = Duration::from_secs(60 * 60);
/// The same for a call of a client that does not count its attempts: the task ends within ten minutes, and the client
/// comes back at once.
pub const FOUND_UNCOUNTED_WITHIN: Duration = Duration::from_secs(11 * 60);
/// Calls and their idempotency keys are kept at least this long.
pub const CALL_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// One attempt at a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Call {
    /// Identifies the choices of the call.
    pub digest: [u8; 32],
    /// SHA-256 of the idempotency key, if the caller sent one.
    pub idempotency: Option<[u8; 32]>,
    /// The number of attempts before this one, as the client counts.
    pub attempt: u32,
    /// Whether the client counts. The call of one that does not may be a new one with the same words, so it takes over
    /// only tasks whose caller disconnected, soon after.
    pub counted: bool,
    /// A random number, which identifies this attempt as the one that waits for the task.
    pub holder: i64,
    /// Whether the caller asked for previews.
    pub wants_previews: bool,
}

impl Call {
    /// The tasks that it may take over: those of fewer attempts than this number, submitted at this time at the
    /// earliest.
    pub(super) fn reach(&self, now: Timestamp) -> (u32, Id) {
        let (attempts, within) = if self.counted { (self.attempt, FOUND_WITHIN) } else { (1, FOUND_UNCOUNTED_WITHIN) };
        (attempts, Id::floor(now.saturating_sub(within)))
    }

    /// Whether its client says that an earlier attempt may have made its task.
    pub fn may_repeat(&self) -> bool {
        self.attempt > 0 || self.idempotency.is_some()
    }
}

/// The origin of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The key that it came with. A violation of the content policy counts against it.
    pub key_id: Option<Id>,
    /// The person who created it in the studio. A violation of the content policy counts against this person.
    pub person_id: Option<Id>,
    /// The call of OpenAI's dialect that made it.
    pub call: Option<Call>,
    /// The engine that its model stands for; `None` if any may make its images.
    pub engine: Option<String>,
    /// The right by which it is submitted, which the submit checks in its transaction; `None` checks none.
    pub right: Option<Right>,
}

impl Origin {
    /// Whether the caller asked for previews.
    pub fn wants_previews(&self) -> bool {
        self.call.is_some_and(|call| call.wants_previews)
    }
}

impl From<Option<Id>> for Origin {
    fn from(key_id: Option<Id>) -> Self {
        Self { key_id, ..Self::default() }
    }
}

/// Outcome of looking for the task of an earlier attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// There is none.
    None,
    /// This one. Without an idempotency key, the attempt before no longer holds it.
    Task(Id),
    /// The idempotency key belongs to a call with other choices.
    OtherChoices,
}

/// The end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// The caller got the answer, and no other call will.
    Delivered,
    /// The caller hung up; a later attempt may take the task.
    HungUp,
}

/// Calls of OpenAI's dialect. [`Tasks::submit_before`](super::Tasks::submit_before) writes them down with their tasks.
#[async_trait]
pub trait Calls: std::fmt::Debug + Send + Sync + 'static {
    /// Finds the task of an earlier attempt at a call, with the same key. With an idempotency key, returns its task.
    /// Otherwise attaches to an undelivered task of an earlier attempt with the same digest, preferring one no call
    /// holds, then the oldest. Of several calls at once each attaches to another task. The call of a client that does
    /// not count attaches only to a task that no call holds.
    async fn attach_call(&self, key_id: Id, call: Call) -> Result<Attachment>;

    /// Whether this attempt still holds the task, so that it may answer.
    async fn holds_call(&self, task_id: Id, holder: i64) -> Result<bool>;

    /// Ends a call that still holds its task; `false` if it does not.
    async fn end_call(&self, task_id: Id, holder: i64, end: CallEnd) -> Result<bool>;

    /// Deletes the calls whose tasks were submitted before `cutoff`. Returns their number.
    async fn delete_calls(&self, cutoff: Timestamp) -> Result<usize>;
}
