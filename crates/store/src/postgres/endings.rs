//! The end of tasks that fail: each leaves the queue and gets its credits back in one commit.

use std::time::Duration;

use tokio::try_join;
use tokio_postgres::Row;

use super::columns::word;
use super::connection::{Database, Parameter, Transaction};
use super::queue::millis;
use super::{deliveries, failed_prompts};
use crate::failure::Failure;
use crate::ledger::{self, NewEntry};
use crate::{
    Cancellation, Ended, LONGEST_DELAY, Lease, MAX_LOST_LEASES, Origin, Refusal, Result, StoreError, StrikeRule,
    driver, strikes,
};
use tintype_domain::event::EventType;
use tintype_domain::ledger::{STOPS_WITHIN, Stops};
use tintype_domain::model::{CREDITS_PER_IMAGE, EntryKind, FailureCause, Id, Surface, TaskFailure};
use tintype_system::clock::Timestamp;

/// The condition for one leased task `q`.
pub(super) const LEASED: &str = "q.task_id = $1 AND q.lease_epoch = $2 AND q.lease_until IS NOT NULL";

/// A row of the queue whose worker or turn is taken away. It is locked, so that nobody else ends its task.
#[derive(Debug)]
pub(super) struct Lost {
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
    /// processing can fail.
    task: Option<(Surface, i64)>,
}

/// Selects the rows `q` of the queue that meet a condition, and locks them.
pub(super) fn select_lost(condition: &str, locking: &str) -> String {
    format!(
        "SELECT q.task_id, q.account_id, q.key_id, q.person_id, q.taken, q.lost_leases::bigint, t.surface, t.n::bigint,
             CASE WHEN q.lease_until IS NOT NULL THEN q.claimed_at END AS held_since
         FROM queue q JOIN accounts a ON a.id = q.account_id
         LEFT JOIN tasks t ON t.id = q.task_id AND t.status = 'processing' WHERE {condition} {locking}"
    )
}

fn lost(row: &Row) -> Result<Lost> {
    let n: Option<i64> = row.try_get("n")?;
    Ok(Lost {
        task_id: row.try_get("task_id")?,
        account_id: row.try_get("account_id")?,
        key_id: row.try_get("key_id")?,
        person_id: row.try_get("person_id")?,
        taken: row.try_get("taken")?,
        lost_leases: row.try_get("lost_leases")?,
        held_since: row.try_get("held_since")?,
        task: n.map(|n| Ok::<_, StoreError>((word(row, "surface")?, n))).transpose()?,
    })
}

impl Lost {
    /// Fails and refunds the task; `None` if its row is damaged.
    async fn fail(
        &self,
        database: &Database,
        begun: &Transaction<'_>,
        failure: &TaskFailure,
    ) -> std::result::Result<Option<Ended>, Failure> {
        let Self { task_id, account_id, taken, .. } = self;
        let Some((surface, n)) = self.task else { return Ok(None) };
        let shared = driver::Transaction::Postgres(database, begun);
        // After the task, as everywhere, so that transactions never wait in a circle.
        ledger::lock_any(&shared, *account_id).await?;
        let now = database.now();
        let leave =
            async { Ok::<_, Failure>(begun.execute("DELETE FROM queue WHERE task_id = $1", &[task_id]).await?) };
        let end = async {
            let sql =
                "UPDATE tasks SET status = 'failed', cause = $2, error = $3, updated_at = greatest(updated_at, $4),
                    claimed_at = $5
                WHERE id = $1 RETURNING updated_at";
            let cause = failure.cause.to_string();
            let parameters: [Parameter<'_>; 5] = [task_id, &cause, &failure.sentence, &now, &self.held_since];
            Ok(begun.query_one(sql, &parameters).await?)
        };
        let keep = failed_prompts::keep(begun, *task_id);
        let (charged, holding) = (ledger::charged_key(&shared, *task_id), ledger::holding(&shared, *account_id, 0));
        let (_, ended, (), key_id, holding) = try_join!(biased; leave, end, keep, charged, holding)?;
        let amount = n * CREDITS_PER_IMAGE;
        let refund = NewEntry { task_id: Some(*task_id), key_id, ..NewEntry::new(EntryKind::Refund, amount) };
        ledger::refund(&shared, *account_id, &holding, &refund, taken.as_deref(), now).await?;
        let (kind, ended_at) = (EventType::TaskFailed, ended.try_get("updated_at")?);
        deliveries::tell_end(database, begun, *account_id, surface, kind, *task_id, ended_at).await?;
        Ok(Some(Ended { task_id: *task_id, account_id: *account_id, surface }))
    }
}

/// Fails and refunds an unfinished task for its account.
pub(super) async fn cancel(
    database: &Database,
    begun: &Transaction<'_>,
    (account_id, surface): (Id, Surface),
    id: Id,
    author: Option<Id>,
    failure: &TaskFailure,
) -> std::result::Result<Cancellation, Failure> {
    let condition =
        "q.task_id = $1 AND q.account_id = $2 AND t.surface = $3 AND ($4::text IS NULL OR q.person_id = $4)";
    let parameters: [Parameter<'_>; 4] = [&id, &account_id, &surface.as_str(), &author];
    let found = begun.query_opt(&select_lost(condition, "FOR UPDATE OF q"), &parameters).await?;
    let Some(found) = found.as_ref().map(lost).transpose()? else { return Ok(Cancellation::NotFound) };
    if found.held_since.is_some() {
        let cost = found.task.map_or(0, |(_, n)| n * CREDITS_PER_IMAGE);
        // Two stops at once must not both fit.
        ledger::lock_any(&driver::Transaction::Postgres(database, begun), account_id).await?;
        if !may_stop(database, begun, account_id, cost).await? {
            return Ok(Cancellation::OverShare);
        }
    }
    Ok(found.fail(database, begun, failure).await?.map_or(Cancellation::NotFound, Cancellation::Done))
}

/// Fails and refunds a leased task and, if there is a strike rule, adds a strike to its key and the person who made
/// that, or to its person.
pub(super) async fn refuse(
    database: &Database,
    lease: Lease,
    error: &str,
    rule: Option<StrikeRule>,
) -> Result<Refusal> {
    let loss = Loss::now(FailureCause::Policy, error);
    let refuse = async |begun: &Transaction<'_>| {
        if rule.is_some() {
            // People who write lock themselves before tasks and accounts, and so does this.
            let person = "SELECT 1 FROM people WHERE id IN (SELECT coalesce(q.person_id, k.made_by) FROM queue q
                    LEFT JOIN api_keys k ON k.id = q.key_id WHERE q.task_id = $1)
                FOR NO KEY UPDATE";
            begun.execute(person, &[&lease.task_id]).await?;
        }
        let given_up = loss.give_up(database, begun, LEASED, &[&lease.task_id, &lease.epoch]).await?;
        let Some((_, origin)) = given_up.failed.into_iter().next() else { return Ok(Refusal::Lost) };
        let Some(rule) = rule else { return Ok(Refusal::Done { suspended: None }) };
        strikes::strike(&driver::Transaction::Postgres(database, begun), lease.task_id, &origin, rule).await
    };
    Ok(database.transaction(refuse).await?)
}

/// Whether the account, which is locked, may stop a task that a worker holds and that cost so much.
async fn may_stop(
    database: &Database,
    begun: &Transaction<'_>,
    account_id: Id,
    cost: i64,
) -> std::result::Result<bool, Failure> {
    let since = database.now().saturating_sub(STOPS_WITHIN);
    let returned = "SELECT coalesce(sum(l.amount), 0)::bigint FROM ledger l JOIN tasks t ON t.id = l.task_id
        WHERE l.account_id = $1 AND l.kind = 'refund' AND l.created_at > $2
        AND t.cause = 'cancelled' AND t.claimed_at IS NOT NULL";
    let stops = Stops { returned: begun.query_one(returned, &[&account_id, &since]).await?.try_get(0)? };
    // Those in the bin count, too.
    let images = "SELECT coalesce(sum(n), 0)::bigint FROM (
            SELECT n FROM tasks WHERE account_id = $1 AND surface IN ('api', 'web') AND removed_at IS NULL
            AND id >= $2 AND status = 'completed'
            UNION ALL
            SELECT t.n FROM deletions d JOIN tasks t ON t.id = d.task_id
            WHERE d.account_id = $1 AND d.task_id >= $2 AND t.status = 'completed'
            LIMIT $3) AS completed";
    let parameters: [Parameter<'_>; 3] = [&account_id, &Id::floor(since), &stops.most_to_read(cost)];
    let images: i64 = begun.query_one(images, &parameters).await?.try_get(0)?;
    Ok(stops.allow(cost, images * CREDITS_PER_IMAGE))
}

/// How tasks are given up.
#[derive(Debug, Clone)]
pub(super) struct Loss {
    failure: TaskFailure,
    /// Lost leases after which a task fails; 0: now.
    most: i64,
    /// Time until a task that is queued again can be claimed.
    delay: Duration,
}

/// Tasks of one account that were given up.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    pub(super) queued: usize,
    /// The tasks that failed, with their origins.
    pub(super) failed: Vec<(Ended, Origin)>,
}

impl Loss {
    /// The tasks fail now.
    pub(super) fn now(cause: FailureCause, error: &str) -> Self {
        Self { failure: TaskFailure::new(cause, error), most: 0, delay: Duration::ZERO }
    }

    /// The tasks fail when they have lost [`MAX_LOST_LEASES`].
    pub(super) fn attempt(error: &str, delay: Duration) -> Self {
        let failure = TaskFailure::new(FailureCause::Lost, error);
        Self { failure, most: MAX_LOST_LEASES.into(), delay: delay.min(LONGEST_DELAY) }
    }

    /// Gives up the tasks of one account that meet a condition.
    pub(super) async fn give_up(
        &self,
        database: &Database,
        begun: &Transaction<'_>,
        condition: &str,
        parameters: &[Parameter<'_>],
    ) -> std::result::Result<GivenUp, Failure> {
        let rows = begun.query(&select_lost(condition, "FOR UPDATE OF q"), parameters).await?;
        self.give_up_rows(database, begun, &rows).await
    }

    /// Gives up the tasks of one account in these rows of [`select_lost`]: queues each again, or fails and refunds it
    /// if this was its last attempt. A damaged one stays as it was.
    pub(super) async fn give_up_rows(
        &self,
        database: &Database,
        begun: &Transaction<'_>,
        rows: &[Row],
    ) -> std::result::Result<GivenUp, Failure> {
        let lost = rows.iter().map(lost).collect::<Result<Vec<_>>>()?;
        let (again, last): (Vec<_>, Vec<_>) = lost.into_iter().partition(|lost| lost.lost_leases + 1 < self.most);
        let mut given_up = GivenUp { queued: again.len(), failed: Vec::new() };
        if !again.is_empty() {
            let ids: Vec<Id> = again.iter().map(|lost| lost.task_id).collect();
            // A task without a delay is ready by every clock, also by one that is behind or was set back.
            let queue = "UPDATE queue SET lease_until = NULL, lost_leases = lost_leases + 1,
                    ready_at = CASE WHEN $3::bigint = 0 THEN 0 ELSE tintype_now($2) + $3 END
                WHERE task_id = ANY ($1)";
            begun.execute(queue, &[&ids, &database.given_time(), &millis(self.delay)]).await?;
        }
        for lost in last {
            if let Some(ended) = lost.fail(database, begun, &self.failure).await? {
                let Lost { key_id, person_id, .. } = lost;
                given_up.failed.push((ended, Origin { key_id, person_id, ..Origin::default() }));
            }
        }
        Ok(given_up)
    }
}
