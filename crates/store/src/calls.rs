//! Calls of OpenAI's dialect, of tools (MCP) and of the studio's script. Their clients repeat a call; a repeated call
//! finds the task of the attempt before instead of being charged again.

use std::time::Duration;

use super::Result;
use super::driver::{Dialect, Parameter, Store, Transaction};
use crate::failure::DbResult;
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// How old a task can be for a call without an idempotency key to find it: tasks end within ten minutes, and a client
/// that waits for two attempts before it retries does so within half an hour.
pub const FOUND_WITHIN: Duration = Duration::from_secs(60 * 60);
/// How old a task can be for a call from a client that doesn't count its attempts: tasks end within ten minutes, and
/// such a client retries at once.
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
    /// Whether the client counts. Without a count, the call may be a new one with the same words, so it only takes over
    /// tasks whose caller disconnected, soon after.
    pub counted: bool,
    /// A random number that identifies this attempt while it waits for the task.
    pub holder: i64,
    /// Whether the caller asked for previews.
    pub wants_previews: bool,
}

impl Call {
    /// It can take over tasks with fewer attempts than this number, submitted at this time or later.
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
    /// The call of OpenAI's dialect, of a tool, or of the studio's script, that made it.
    pub call: Option<Call>,
    /// The engine that its model name maps to; `None` if any engine can make its images.
    pub engine: Option<String>,
}

impl Origin {
    /// Its call and who sent it: the key, or the person.
    pub(crate) fn sent(&self) -> Option<(Id, Call)> {
        self.key_id.or(self.person_id).zip(self.call)
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
    /// There is no such task.
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

/// Whom calls of the sender $1 belong to: the first key that the key was rotated from, so that rotated keys find them, too,
/// or the person.
const SENDER: &str = "COALESCE((SELECT first_id FROM api_keys WHERE id = $1), $1)";

/// The condition for tasks of fewer attempts than $3 that a call without an idempotency key finds.
const UNDELIVERED: &str = "digest = $2 AND idempotency IS NULL AND delivered_at IS NULL
    AND attempt < $3 AND task_id >= $4 AND ($5 OR holder IS NULL)";

/// Whether a call would find the task of another one.
pub(crate) async fn exists(tx: &Transaction<'_>, sender: Id, call: &Call) -> DbResult<bool> {
    let found = match call.idempotency {
        Some(idempotency) => {
            let sql = format!("SELECT 1 FROM calls WHERE key_id = {SENDER} AND idempotency = $2");
            tx.query_opt(&sql, &[&sender, &idempotency]).await?
        }
        None => {
            let sql = format!("SELECT 1 FROM calls WHERE key_id = {SENDER} AND {UNDELIVERED} LIMIT 1");
            let (attempts, since) = call.reach(tx.now());
            tx.query_opt(&sql, &[&sender, &call.digest, &attempts, &since, &call.counted]).await?
        }
    };
    Ok(found.is_some())
}

/// Records the call that created a task.
pub(crate) async fn record(tx: &Transaction<'_>, task_id: Id, sender: Id, call: &Call) -> DbResult {
    let sql = format!(
        "INSERT INTO calls (task_id, key_id, digest, idempotency, attempt, holder) VALUES ($2, {SENDER}, $3, $4, $5, $6)"
    );
    let Call { digest, idempotency, attempt, holder, counted: _, wants_previews: _ } = call;
    tx.execute(&sql, &[&sender, &task_id, digest, idempotency, attempt, holder]).await.map(drop)
}

/// Calls. [`Store::submit_before`](super::Store::submit_before) writes them down with their tasks.
impl Store {
    /// Finds the task of an earlier attempt at a call, by the same person, or with the same key or one that it was
    /// rotated from or to. With an idempotency key, returns its task. Otherwise attaches to an undelivered task of an
    /// earlier attempt with the same digest, preferring one no call holds, then the oldest. Of several calls at once each
    /// attaches to another task. The call of a client that does not count attaches only to a task that no call holds.
    pub async fn attach_call(&self, sender: Id, call: Call) -> Result<Attachment> {
        if let Some(idempotency) = call.idempotency {
            let sql = format!("SELECT task_id, digest FROM calls WHERE key_id = {SENDER} AND idempotency = $2");
            let found = self.driver.read_one(&sql, &[&sender, &idempotency]).await?;
            let Some(row) = found else { return Ok(Attachment::None) };
            let same = row.get::<Vec<u8>>("digest")? == call.digest;
            return Ok(if same { Attachment::Task(row.get("task_id")?) } else { Attachment::OtherChoices });
        }
        // The lock makes concurrent attempts wait for each other; the update repeats the conditions, because the row
        // may have changed before the lock.
        let sql = format!(
            "WITH free AS MATERIALIZED (
                 SELECT task_id AS id FROM calls WHERE key_id = {SENDER} AND {UNDELIVERED}
                 ORDER BY holder IS NOT NULL, task_id LIMIT 1 {}
             )
             UPDATE calls SET attempt = $6, holder = $7 FROM free
             WHERE task_id = free.id AND delivered_at IS NULL AND attempt < $3 AND ($5 OR holder IS NULL)
             RETURNING task_id",
            self.driver.either("", "FOR UPDATE SKIP LOCKED")
        );
        let (before, since) = call.reach(self.driver.now());
        let Call { digest, counted, attempt, holder, .. } = &call;
        let parameters: [&dyn Parameter; 7] = [&sender, digest, &before, &since, counted, attempt, holder];
        let rows = self.statement(Effect::AttachCall, sql, &parameters).await?;
        rows.first().map_or(Ok(Attachment::None), |row| Ok(Attachment::Task(row.get("task_id")?)))
    }

    /// Whether this attempt still holds the task, so that it may answer.
    pub async fn holds_call(&self, task_id: Id, holder: i64) -> Result<bool> {
        let sql = "SELECT 1 FROM calls WHERE task_id = $1 AND holder = $2";
        Ok(self.driver.read_one(sql, &[&task_id, &holder]).await?.is_some())
    }

    /// Ends a call that still holds its task; `false` if it does not.
    pub async fn end_call(&self, task_id: Id, holder: i64, end: CallEnd) -> Result<bool> {
        let sql = "UPDATE calls SET holder = NULL, delivered_at = $3 WHERE task_id = $1 AND holder = $2
            RETURNING task_id";
        let delivered_at = (end == CallEnd::Delivered).then(|| self.driver.now());
        let ended = self.statement(Effect::EndCall, sql, &[&task_id, &holder, &delivered_at]).await?;
        Ok(!ended.is_empty())
    }

    /// Ends the holds of all calls that others could take over, as if their callers had hung up: a process that was
    /// killed could not. Returns their number.
    pub async fn release_calls(&self) -> Result<usize> {
        let since = Id::floor(self.driver.now().saturating_sub(FOUND_UNCOUNTED_WITHIN));
        let sql = "UPDATE calls SET holder = NULL WHERE task_id >= $1 AND holder IS NOT NULL RETURNING task_id";
        Ok(self.statement(Effect::EndCall, sql, &[&since]).await?.len())
    }

    /// Deletes calls whose tasks were submitted before `cutoff`. Returns their number.
    pub async fn delete_calls(&self, cutoff: Timestamp) -> Result<usize> {
        let sql = "DELETE FROM calls WHERE task_id < $1 RETURNING task_id";
        Ok(self.statement(Effect::DeleteCalls, sql, &[&Id::floor(cutoff)]).await?.len())
    }
}
