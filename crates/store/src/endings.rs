//! The end of tasks. The commit that ends a task also removes it from the queue and, if it failed, refunds it.
//!
//! Every write under a lease matches the epoch (the fencing token) in the `queue` row, and the row is deleted when the
//! task becomes terminal. A worker that has lost its lease therefore cannot change anything.

use std::time::Duration;

use tokio::try_join;

use super::driver::{Dialect, List, Parameter, Row, Store, Transaction, from_row, json};
use super::ledger::{self, NewEntry};
use super::retention::KEEP_FAILED_PROMPT;
use super::{
    Cancellation, LONGEST_DELAY, Lease, LeaseWrite, MAX_LOST_LEASES, Reclaimed, Refused, Result, StoreError,
    StrikeRule, deliveries, strikes,
};
use crate::failure::DbResult;
use tintype_domain::event::EventType;
use tintype_domain::ledger::{STOPS_WITHIN, Stops};
use tintype_domain::model::{CREDITS_PER_IMAGE, EntryKind, FailureCause, Id, Surface, TaskFailure, TaskRef};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// The condition for one leased task `q`.
pub(super) const LEASED: &str = "q.task_id = $1 AND q.lease_epoch = $2 AND q.lease_until IS NOT NULL";

/// When a task that waits for `delay` becomes claimable. Without a delay it is claimable at any time, even by a process
/// whose clock is behind or was set back.
pub(super) fn ready_after(now: Timestamp, delay: Duration) -> Timestamp {
    if delay.is_zero() { Timestamp::from_millis(0) } else { now.saturating_add(delay.min(LONGEST_DELAY)) }
}

/// A queue row whose task is to be ended or requeued. It is locked, so that no other transaction ends the task.
#[derive(Debug)]
pub(super) struct QueueRow {
    pub(super) task_id: Id,
    account_id: Id,
    key_id: Option<Id>,
    person_id: Option<Id>,
    /// The credits of expiring grants that its task took.
    taken: Option<String>,
    lost_leases: i64,
    /// When the worker claimed it that holds it, if one does.
    held_since: Option<Timestamp>,
    /// The surface and the number of images of its task; `None` if the row is damaged, because only a task that is
    /// processing can end.
    task: Option<(Surface, i64)>,
}

/// Selects the rows `q` of the queue that meet a condition, and locks them. `hint` names the index for SQLite.
pub(super) fn select_queue_rows(hint: &str, condition: &str, locking: &str) -> String {
    format!(
        "SELECT q.task_id, q.account_id, q.key_id, q.person_id, q.taken, CAST(q.lost_leases AS bigint) AS lost_leases,
             t.surface, CAST(t.n AS bigint) AS n,
             CASE WHEN q.lease_until IS NOT NULL THEN q.claimed_at END AS held_since
         FROM queue q {hint} JOIN accounts a ON a.id = q.account_id
         LEFT JOIN tasks t ON t.id = q.task_id AND t.status = 'processing' WHERE {condition} {locking}"
    )
}

from_row! { fn queue_row(row) -> QueueRow {
    task_id, account_id, key_id, person_id, taken, lost_leases, held_since,
    task: row.get::<Option<_>>("surface")?.zip(row.get("n")?),
} }

/// Locks the row of the queue that meets a condition.
async fn find(tx: &Transaction<'_>, condition: &str, parameters: &[&dyn Parameter]) -> DbResult<Option<QueueRow>> {
    tx.find(&select_queue_rows("", condition, tx.locking("FOR UPDATE OF q")), parameters, queue_row).await
}

impl QueueRow {
    /// Takes the task out of the queue.
    async fn leave_queue(&self, tx: &Transaction<'_>) -> DbResult<u64> {
        tx.execute("DELETE FROM queue WHERE task_id = $1", &[&self.task_id]).await
    }

    /// Ends the task as `set` says, which has the parameters $4 and $5; returns the time of its end.
    async fn end(&self, tx: &Transaction<'_>, set: &str, parameters: [&dyn Parameter; 2]) -> DbResult<Timestamp> {
        let [first, second] = parameters;
        let sql = format!(
            "UPDATE tasks SET {set}, updated_at = {}(updated_at, $2), claimed_at = $3 WHERE id = $1
             RETURNING updated_at",
            tx.either("max", "greatest")
        );
        let parameters: [&dyn Parameter; 5] = [&self.task_id, &tx.now(), &self.held_since, first, second];
        let ended = tx.find(&sql, &parameters, |row| row.get("updated_at")).await?;
        Ok(ended.ok_or_else(|| StoreError::other(format!("task {} is gone", self.task_id)))?)
    }

    /// Fails and refunds the task; `None` if its row is damaged.
    async fn fail(&self, tx: &Transaction<'_>, failure: &TaskFailure) -> DbResult<Option<TaskRef>> {
        let Self { task_id, account_id, taken, .. } = self;
        let Some((surface, n)) = self.task else { return Ok(None) };
        // After the task, as everywhere, so that transactions never wait in a circle.
        ledger::lock_any(tx, *account_id).await?;
        let cause = failure.cause.to_string();
        let (set, task): (_, [&dyn Parameter; 1]) = ("status = 'failed', cause = $4, error = $5", [task_id]);
        let (_, ended_at, _, key_id, credits) = try_join!(biased;
            self.leave_queue(tx),
            self.end(tx, set, [&cause, &failure.message]),
            tx.execute(KEEP_FAILED_PROMPT, &task),
            ledger::charged_key(tx, *task_id),
            ledger::load_credits(tx, *account_id, 0)
        )?;
        let amount = n * CREDITS_PER_IMAGE;
        let refund = NewEntry { task_id: Some(*task_id), key_id, ..NewEntry::new(EntryKind::Refund, amount) };
        ledger::refund(tx, *account_id, &credits, &refund, taken.as_deref(), tx.now()).await?;
        deliveries::queue_task_event(tx, *account_id, surface, EventType::TaskFailed, *task_id, ended_at).await?;
        Ok(Some(TaskRef { id: *task_id, account_id: *account_id, surface }))
    }
}

/// Whether the account, which is locked, may stop a task that a worker holds and that cost so much.
async fn may_stop(tx: &Transaction<'_>, account_id: Id, cost: i64) -> DbResult<bool> {
    let since = tx.now().saturating_sub(STOPS_WITHIN);
    let sum = async |sql: &str, parameters: &[&dyn Parameter]| -> DbResult<i64> {
        Ok(tx.find(sql, parameters, |row| row.get("sum")).await?.unwrap_or(0))
    };
    let returned = format!(
        "SELECT CAST(coalesce(sum(l.amount), 0) AS bigint) AS sum FROM ledger l {} CROSS JOIN tasks t
         WHERE t.id = l.task_id AND l.account_id = $1 AND l.kind = 'refund' AND l.created_at > $2
         AND t.cause = 'cancelled' AND t.claimed_at IS NOT NULL",
        tx.either("INDEXED BY refunds_of_account", "")
    );
    let stops = Stops { returned: sum(&returned, &[&account_id, &since]).await? };
    // Tasks in the bin count, too.
    let images = "SELECT CAST(coalesce(sum(n), 0) AS bigint) AS sum FROM (
            SELECT n FROM tasks WHERE account_id = $1 AND surface IN ('api', 'web') AND removed_at IS NULL
            AND id >= $2 AND status = 'completed'
            UNION ALL
            SELECT t.n FROM deletions d CROSS JOIN tasks t
            WHERE t.id = d.task_id AND d.account_id = $1 AND d.task_id >= $2 AND t.status = 'completed'
            LIMIT $3) AS completed";
    let images = sum(images, &[&account_id, &Id::floor(since), &stops.most_to_read(cost)]).await?;
    Ok(stops.allow(cost, images * CREDITS_PER_IMAGE))
}

/// How tasks are failed or queued again.
#[derive(Debug, Clone)]
pub(super) struct FailOrRequeue {
    failure: TaskFailure,
    /// Lost leases after which a task fails; 0: now.
    most: i64,
    /// Time until a task that is queued again can be claimed.
    delay: Duration,
}

impl FailOrRequeue {
    /// The tasks fail now.
    pub(super) fn fail(cause: FailureCause, error: &str) -> Self {
        Self { failure: TaskFailure::new(cause, error), most: 0, delay: Duration::ZERO }
    }

    /// The tasks fail when they have lost [`MAX_LOST_LEASES`].
    pub(super) fn lost(error: &str, delay: Duration) -> Self {
        Self { failure: TaskFailure::new(FailureCause::Lost, error), most: MAX_LOST_LEASES.into(), delay }
    }

    /// Fails or requeues the tasks of one account that meet a condition.
    pub(super) async fn apply(
        &self,
        tx: &Transaction<'_>,
        condition: &str,
        parameters: &[&dyn Parameter],
    ) -> DbResult<Reclaimed> {
        let rows = tx.query(&select_queue_rows("", condition, tx.locking("FOR UPDATE OF q")), parameters).await?;
        self.apply_to_rows(tx, &rows).await
    }

    /// Fails or requeues the tasks of one account in these rows of [`select_queue_rows`]. A row whose task is missing
    /// is skipped; any other damage is an error.
    pub(super) async fn apply_to_rows(&self, tx: &Transaction<'_>, rows: &[Row]) -> DbResult<Reclaimed> {
        let lost = rows.iter().map(queue_row).collect::<Result<Vec<_>>>()?;
        let (queued, last): (Vec<_>, Vec<_>) = lost.into_iter().partition(|lost| lost.lost_leases + 1 < self.most);
        let mut reclaimed = Reclaimed { queued: queued.len(), failed: Vec::new() };
        if !queued.is_empty() {
            let tasks: Vec<Id> = queued.iter().map(|lost| lost.task_id).collect();
            let queue = format!(
                "UPDATE queue SET lease_until = NULL, lost_leases = lost_leases + 1, ready_at = $2 WHERE task_id {}",
                tx.in_list(1)
            );
            tx.execute(&queue, &[&List(&tasks), &ready_after(tx.now(), self.delay)]).await?;
        }
        for lost in last {
            reclaimed.failed.extend(lost.fail(tx, &self.failure).await?);
        }
        Ok(reclaimed)
    }
}

impl Store {
    /// Completes a task with the names of its result files, at least one.
    pub async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite> {
        let images = json(&images);
        self.write(Effect::Complete, async move |tx| {
            let Some(found) = find(tx, LEASED, &[&lease.task_id, &lease.epoch]).await? else {
                return Ok(LeaseWrite::Lost);
            };
            let Some((surface, _)) = found.task else { return Ok(LeaseWrite::Lost) };
            let set = "status = $4, images = $5";
            let (_, ended_at) = try_join!(biased; found.leave_queue(tx), found.end(tx, set, [&"completed", &images]))?;
            let (account_id, kind) = (found.account_id, EventType::TaskCompleted);
            deliveries::queue_task_event(tx, account_id, surface, kind, lease.task_id, ended_at).await?;
            Ok(LeaseWrite::Done)
        })
        .await
    }

    /// Fails and refunds a task, with a message for the caller, because the content policy refuses it; `None` if the
    /// lease was lost before. If there is a `rule`, its key or person gets a strike, which suspends either at the limit.
    /// The audit log records that.
    pub async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Option<Refused>> {
        let failure = TaskFailure::new(FailureCause::Policy, error);
        self.write(Effect::Refuse, async move |tx| {
            if rule.is_some() {
                // People who write lock themselves before tasks and accounts, and so does this.
                let person = "SELECT 1 FROM people WHERE id IN (SELECT coalesce(q.person_id, k.made_by) FROM queue q
                    LEFT JOIN api_keys k ON k.id = q.key_id WHERE q.task_id = $1)";
                tx.lock(person, &[&lease.task_id]).await?;
            }
            let Some(found) = find(tx, LEASED, &[&lease.task_id, &lease.epoch]).await? else { return Ok(None) };
            if found.fail(tx, &failure).await?.is_none() {
                return Ok(None);
            }
            let Some(rule) = rule else { return Ok(Some(Refused::default())) };
            strikes::strike(tx, lease.task_id, found.key_id, found.person_id, rule).await.map(Some)
        })
        .await
    }

    /// Fails and refunds an unfinished task of an account and a surface, and of `author` if there is one. If a worker
    /// holds it, the worker loses its lease, and the rule of [`Stops`](tintype_domain::ledger::Stops) may refuse it.
    pub async fn cancel(
        &self,
        account_id: Id,
        surface: Surface,
        id: Id,
        author: Option<Id>,
        error: &str,
    ) -> Result<Cancellation> {
        let failure = TaskFailure::new(FailureCause::Cancelled, error);
        self.write(Effect::Cancel, async move |tx| {
            let condition = "q.task_id = $1 AND q.account_id = $2 AND t.surface = $3
                AND (CAST($4 AS text) IS NULL OR q.person_id = $4)";
            let Some(found) = find(tx, condition, &[&id, &account_id, &surface, &author]).await? else {
                return Ok(Cancellation::NotFound);
            };
            if found.held_since.is_some() {
                let cost = found.task.map_or(0, |(_, n)| n * CREDITS_PER_IMAGE);
                // Two stops at once must not both fit.
                ledger::lock_any(tx, account_id).await?;
                if !may_stop(tx, account_id, cost).await? {
                    return Ok(Cancellation::OverShare);
                }
            }
            Ok(found.fail(tx, &failure).await?.map_or(Cancellation::NotFound, Cancellation::Done))
        })
        .await
    }
}
