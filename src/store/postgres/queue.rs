//! Statements for leasing tasks to workers and for ending them.
//!
//! Every write under a lease matches the epoch (the fencing token) in the `queue` row, and the row is deleted when the
//! task becomes terminal. A worker that has lost its lease therefore cannot change anything. Rows of the queue are
//! locked before accounts, and both in the order of their ids, so that transactions never deadlock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::batch::{AccountStatement, Leftover, Locked, Request, fail_all};
use super::columns::{number, to_json, word};
use super::connection::{Database, Failure, words};
use super::{PostgresStore, claim, keys, newest};
use crate::domain::model::{CREDITS_PER_IMAGE, Id};
use crate::fault::Effect;
use crate::store::{
    Claim, Ended, Lease, LeaseWrite, MAX_LOST_LEASES, Queue, QueueDepth, Refusal, Rescued, Result, Retry, StoreError,
    StrikeRule,
};

/// Condition that a row of the queue is leased, written so that the planner does not use the index of all leases: a
/// lookup of one task must go by its id and pass only its own dead tuples.
const IS_LEASED: &str = "coalesce(lease_until, 0) <> 0";

/// For a parameter.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The columns of `leases` as parameters.
fn columns(leases: &[Lease]) -> (Vec<Id>, Vec<i64>) {
    leases.iter().map(|lease| (lease.task_id, lease.epoch)).unzip()
}

/// The leases that the rows name by `task_id` and `lease_epoch`.
fn leases(rows: &[Row]) -> Result<HashSet<Lease>> {
    let lease = |row: &Row| Ok(Lease { task_id: row.try_get("task_id")?, epoch: row.try_get("lease_epoch")? });
    rows.iter().map(lease).collect()
}

/// A transaction that has locked a row of the queue is about to end its task or to take its lease away, and may have to
/// wait for an account. A renewal does not wait for it: it leaves such a lease unchanged and reports it as lost only if
/// the row says so.
pub(super) async fn renew(database: &Database, held: &[Lease], lease: Duration) -> Result<Vec<Lease>> {
    let (ids, epochs) = columns(held);
    let of_lease = format!("q.task_id = held.task_id AND q.lease_epoch = held.lease_epoch AND {IS_LEASED}");
    let sql = format!(
        "
        WITH held AS (
            SELECT * FROM unnest($1::text[], $2::bigint[]) AS held (task_id, lease_epoch)
        ), found AS (
            SELECT q.task_id FROM held JOIN queue q ON {of_lease} FOR UPDATE OF q SKIP LOCKED
        ), renewed AS (
            UPDATE queue q SET lease_until = tintype_now($3) + $4 FROM found WHERE q.task_id = found.task_id
        )
        SELECT task_id, lease_epoch FROM held WHERE NOT EXISTS (SELECT 1 FROM queue q WHERE {of_lease})"
    );
    let lost = leases(&database.write(&sql, &[&ids, &epochs, &database.given_time(), &millis(lease)]).await?)?;
    Ok(held.iter().filter(|lease| lost.contains(lease)).copied().collect())
}

pub(super) async fn release(database: &Database, lease: Lease) -> Result<LeaseWrite> {
    let sql = format!(
        "UPDATE queue SET lease_until = NULL WHERE task_id = $1 AND lease_epoch = $2 AND {IS_LEASED} RETURNING task_id"
    );
    let released = database.write(&sql, &[&lease.task_id, &lease.epoch]).await?;
    Ok(done_if(!released.is_empty()))
}

fn done_if(done: bool) -> LeaseWrite {
    if done { LeaseWrite::Done } else { LeaseWrite::Lost }
}

/// Completes a batch of tasks.
pub(super) struct CompleteStatement {
    pub(super) database: Arc<Database>,
}

/// A lease with the JSON of its images.
type Asked = Request<(Lease, String), LeaseWrite>;

impl AccountStatement for CompleteStatement {
    type Query = (Lease, String);
    type Answer = LeaseWrite;

    async fn run(&self, requests: Vec<Asked>, locked: Locked) -> Leftover<Asked> {
        let found = match complete(&self.database, &requests, locked).await {
            Ok(found) => found,
            // The tasks may be completed, and a second attempt would find their leases lost.
            Err(Failure::Unknown(error)) => {
                fail_all(requests, &StoreError::Unknown(words(error)));
                return Leftover::Skipped(Vec::new());
            }
            Err(failure) => return Leftover::Failed(failure, requests),
        };
        let mut skipped = Vec::new();
        for request in requests {
            match found.get(&request.query.0) {
                Some(Leased { completed: true, .. }) => request.answer(Ok(LeaseWrite::Done)),
                Some(Leased { account_id, .. }) => skipped.push((*account_id, request)),
                None => request.answer(Ok(LeaseWrite::Lost)),
            }
        }
        Leftover::Skipped(skipped)
    }
}

/// A task that was leased, as the statement found it.
struct Leased {
    account_id: Id,
    completed: bool,
}

async fn complete(
    database: &Database,
    requests: &[Asked],
    locked: Locked,
) -> std::result::Result<HashMap<Lease, Leased>, Failure> {
    let (held, images): (Vec<Lease>, Vec<&str>) =
        requests.iter().map(|request| (request.query.0, request.query.1.as_str())).unzip();
    let (ids, epochs) = columns(&held);
    let (locked, is_locked, turned) = (newest::locked("ended", locked), newest::IS_LOCKED, newest::TURNED);
    let sql = format!(
        "
        WITH
        -- The tasks that are still leased, locked in the order of their ids.
        leased AS (
            SELECT q.task_id, q.account_id, q.lease_epoch, held.images FROM queue q
            JOIN unnest($1::text[], $2::bigint[], $3::text[]) AS held (task_id, lease_epoch, images)
                ON q.task_id = held.task_id AND q.lease_epoch = held.lease_epoch AND {IS_LEASED}
            JOIN tasks t ON t.id = q.task_id AND t.status = 'processing'
            ORDER BY q.task_id FOR UPDATE OF q
        ),
        -- Their accounts, locked after them and in the order of their ids.
        ended AS (
            SELECT account_id, count(*) AS tasks FROM leased GROUP BY account_id ORDER BY account_id
        ),
        {locked},
        relieved AS (
            UPDATE accounts a SET unfinished = a.unfinished - locked.tasks, {turned} FROM locked WHERE {is_locked}
        ),
        -- The tasks of accounts that were not skipped.
        gone AS (
            DELETE FROM queue q USING leased, locked
            WHERE q.task_id = leased.task_id AND locked.account_id = leased.account_id
            RETURNING q.task_id, leased.images
        ),
        completed AS (
            UPDATE tasks t SET status = 'completed', images = gone.images,
                updated_at = greatest(t.updated_at, tintype_now($4))
            FROM gone WHERE t.id = gone.task_id
        )
        SELECT leased.task_id, lease_epoch, account_id, gone.task_id IS NOT NULL AS completed
        FROM leased LEFT JOIN gone ON gone.task_id = leased.task_id"
    );
    let rows = database.write(&sql, &[&ids, &epochs, &images, &database.given_time()]).await?;
    let leased = |row: &Row| {
        let lease = Lease { task_id: row.try_get("task_id")?, epoch: row.try_get("lease_epoch")? };
        Ok((lease, Leased { account_id: row.try_get("account_id")?, completed: row.try_get("completed")? }))
    };
    rows.iter().map(leased).collect::<Result<_>>().map_err(Failure::Unknown)
}

/// Fails and refunds the tasks that a statement before it took out of the queue, as `gone`, with the sentence $1, at
/// the time $2; an image costs $3.
pub(super) fn refund() -> String {
    let (locked, is_locked, turned) = (newest::locked("owed", Locked::Wait), newest::IS_LOCKED, newest::TURNED);
    format!(
        "
    failed AS (
        UPDATE tasks t SET status = 'failed', error = $1, updated_at = greatest(t.updated_at, tintype_now($2))
        FROM gone WHERE t.id = gone.task_id AND t.status = 'processing'
        RETURNING t.id, gone.account_id, t.surface, t.n * $3::bigint AS amount
    ), owed AS (
        SELECT account_id, sum(amount)::bigint AS amount, count(*) AS tasks
        FROM failed GROUP BY account_id ORDER BY account_id
    ), {locked}, refunded AS (
        UPDATE accounts a SET balance = a.balance + locked.amount, unfinished = a.unfinished - locked.tasks, {turned}
        FROM locked WHERE {is_locked}
    ), booked AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
        SELECT failed.account_id, 'refund', failed.amount,
            locked.balance + sum(failed.amount) OVER (PARTITION BY failed.account_id ORDER BY failed.id),
            tintype_now($2), failed.id
        FROM failed JOIN locked ON locked.account_id = failed.account_id ORDER BY failed.id
    )"
    )
}

/// Removes the task from the queue that a condition on its row `q` selects, unless its row is damaged.
pub(super) fn gone(condition: &str) -> String {
    format!(
        "gone AS (
            DELETE FROM queue q USING tasks t
            WHERE {condition} AND t.id = q.task_id AND t.status = 'processing'
            RETURNING q.task_id, q.account_id, q.key_id
        )"
    )
}

/// The statement that fails a task whose lease $4 with the epoch $5 holds. It returns the key that the task came with.
pub(super) fn fail_leased() -> String {
    let gone = gone(&format!("q.task_id = $4 AND q.lease_epoch = $5 AND {IS_LEASED}"));
    format!("WITH {gone}, {} SELECT key_id FROM gone", refund())
}

pub(super) async fn fail(database: &Database, lease: Lease, error: &str) -> Result<LeaseWrite> {
    let given = database.given_time();
    let rows =
        database.write(&fail_leased(), &[&error, &given, &CREDITS_PER_IMAGE, &lease.task_id, &lease.epoch]).await?;
    Ok(done_if(!rows.is_empty()))
}

pub(super) async fn fail_unleased(database: &Database, id: Id, error: &str) -> Result<Option<Ended>> {
    let sql = format!("WITH {}, {} SELECT id, account_id, surface FROM failed", gone("q.task_id = $4"), refund());
    let rows = database.write(&sql, &[&error, &database.given_time(), &CREDITS_PER_IMAGE, &id]).await?;
    Ok(ended(&rows)?.pop())
}

/// The tasks of [`refund`]'s `failed`, which may be joined to a row of counts: then no task is a row without an id.
pub(super) fn ended(rows: &[Row]) -> Result<Vec<Ended>> {
    let mut ended = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(task_id) = row.try_get("id")? {
            ended.push(Ended { task_id, account_id: row.try_get("account_id")?, surface: word(row, "surface")? });
        }
    }
    Ok(ended)
}

/// Takes away the leases that `lost` selects: their tasks are ready again at `ready_at`, or failed after $4 lost
/// leases.
pub(super) fn give_up(lost: &str, ready_at: &str) -> String {
    let gone = gone("q.task_id IN (SELECT task_id FROM lost) AND q.lost_leases + 1 >= $4");
    let refund = refund();
    format!(
        "WITH lost AS ({lost}), again AS (
            UPDATE queue q SET lease_until = NULL, lost_leases = q.lost_leases + 1, ready_at = {ready_at}
            WHERE q.task_id IN (SELECT task_id FROM lost) AND q.lost_leases + 1 < $4
            RETURNING q.task_id
        ), {gone}, {refund}
        SELECT lost, queued, id, account_id, surface
        FROM (SELECT (SELECT count(*) FROM lost) AS lost, (SELECT count(*) FROM again) AS queued) counts
            LEFT JOIN failed ON true"
    )
}

/// Outcome of [`give_up`].
pub(super) struct GivenUp {
    pub(super) lost: usize,
    pub(super) rescued: Rescued,
}

pub(super) fn given_up(rows: &[Row]) -> Result<GivenUp> {
    let row = &rows[0];
    let rescued = Rescued { queued: count(row, "queued")?, failed: ended(rows)? };
    Ok(GivenUp { lost: count(row, "lost")?, rescued })
}

pub(super) fn count(row: &Row, column: &str) -> Result<usize> {
    number(row, column)
}

pub(super) async fn retry(database: &Database, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry> {
    let lost = format!("SELECT task_id FROM queue WHERE task_id = $5 AND lease_epoch = $6 AND {IS_LEASED} FOR UPDATE");
    // A task without a delay is ready for every clock, even one that is behind or was set back.
    let sql = give_up(&lost, "CASE WHEN $7::bigint = 0 THEN 0 ELSE tintype_now($2) + $7 END");
    let limit = lost_limit();
    let given = database.given_time();
    let rows = database
        .write(&sql, &[&last_error, &given, &CREDITS_PER_IMAGE, &limit, &lease.task_id, &lease.epoch, &millis(delay)])
        .await?;
    let Rescued { queued, failed } = given_up(&rows)?.rescued;
    Ok(match (queued, failed.len()) {
        (1.., _) => Retry::Queued,
        (_, 1..) => Retry::Failed,
        (0, 0) => Retry::Lost,
    })
}

pub(super) fn lost_limit() -> i32 {
    i32::try_from(MAX_LOST_LEASES).unwrap_or(i32::MAX)
}

pub(super) async fn depth(database: &Database) -> Result<QueueDepth> {
    let sql = "SELECT count(*) FILTER (WHERE lease_until IS NULL) AS waiting,
            count(*) FILTER (WHERE lease_until IS NOT NULL) AS leased, min(task_id) AS oldest
        FROM queue";
    let rows = database.read(sql, &[]).await?;
    let oldest: Option<Id> = rows[0].try_get("oldest")?;
    Ok(QueueDepth {
        waiting: number(&rows[0], "waiting")?,
        leased: number(&rows[0], "leased")?,
        oldest: oldest.map(Id::timestamp),
    })
}

#[async_trait]
impl Queue for PostgresStore {
    async fn claim_except(&self, max: usize, lease: Duration, passed_over: &[Id]) -> Result<Vec<Claim>> {
        let passed_over: HashSet<Id> = passed_over.iter().copied().collect();
        let mut rota = self.rota.lock().await;
        self.write(Effect::Claim, claim::claim(&self.database, &mut rota, max, lease, &passed_over)).await
    }

    async fn renew(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>> {
        self.write(Effect::Renew, renew(&self.database, &leases, lease)).await
    }

    async fn release(&self, lease: Lease) -> Result<LeaseWrite> {
        let released = self.write(Effect::Release, release(&self.database, lease)).await?;
        self.announcer.announce();
        Ok(released)
    }

    async fn retry(&self, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry> {
        self.write(Effect::Retry, retry(&self.database, lease, delay, last_error)).await
    }

    async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite> {
        let end = (lease, to_json(&images));
        self.write(Effect::Complete, self.completions.ask(lease.task_id, end)).await
    }

    async fn fail(&self, lease: Lease, error: &str) -> Result<LeaseWrite> {
        self.write(Effect::Fail, fail(&self.database, lease, error)).await
    }

    async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Refusal> {
        self.write(Effect::Refuse, keys::refuse(&self.database, lease, error, rule)).await
    }

    async fn fail_unleased(&self, id: Id, error: &str) -> Result<Option<Ended>> {
        self.write(Effect::FailUnleased, fail_unleased(&self.database, id, error)).await
    }

    async fn queue_depth(&self) -> Result<QueueDepth> {
        depth(&self.database).await
    }

    async fn tasks_elsewhere(&self) {
        self.announcer.heard().await;
    }
}
