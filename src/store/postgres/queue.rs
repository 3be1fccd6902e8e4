//! Statements for leasing tasks to workers and for ending them.
//!
//! Every write under a lease matches the epoch (the fencing token) in the `queue` row, and the row is deleted when the
//! task becomes terminal. A worker that has lost its lease therefore cannot change anything.
//!
//! Statements name rows by an array of ids where a join would say the same: a plan that is made while a table is empty
//! may join by reading all of its index, and the server keeps the plan when the table is full.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_postgres::{Row, Transaction};

use super::columns::{number, to_json, word};
use super::connection::{Database, Parameter};
use super::failure::Failure;
use super::{PostgresStore, claim, keys, progress};
use crate::clock::Timestamp;
use crate::domain::model::{CREDITS_PER_IMAGE, Id, Surface};
use crate::fault::Effect;
use crate::store::{
    Action, AttemptProgress, Claim, Deed, Ended, EndingsElsewhere, LONGEST_DELAY, Lease, LeaseWrite, MAX_LOST_LEASES,
    Origin, Queue, QueueDepth, REFUND_LIFE, Refusal, Result, Retry, StrikeRule, WaitingForEngine, WaitingTask,
};

/// For a parameter.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A transaction that has locked a row of the queue is about to end its task or to take its lease away, and may have to
/// wait for an account. A renewal does not wait for it: it leaves such a lease unchanged and reports it as lost only if
/// the row says so.
const RENEW: &str = "
    WITH held AS (
        SELECT * FROM unnest($1::text[], $2::bigint[]) AS held (task_id, lease_epoch)
    ),
    found AS MATERIALIZED (
        SELECT q.task_id FROM held JOIN queue q USING (task_id, lease_epoch)
        WHERE q.task_id = ANY ($1) AND q.lease_until IS NOT NULL
        FOR UPDATE OF q SKIP LOCKED
    ),
    renewed AS (
        UPDATE queue q SET lease_until = tintype_now($3) + $4
        WHERE q.task_id = ANY (ARRAY (SELECT task_id FROM found))
    )
    -- The leases that had been lost.
    SELECT task_id, lease_epoch FROM held WHERE NOT EXISTS (
        SELECT 1 FROM queue q
        WHERE q.task_id = held.task_id AND q.lease_epoch = held.lease_epoch AND q.lease_until IS NOT NULL)";

const COMPLETE: &str = "
    WITH
    gone AS (
        DELETE FROM queue q USING tasks t
        WHERE q.task_id = $1 AND q.lease_epoch = $2 AND q.lease_until IS NOT NULL
            AND t.id = q.task_id AND t.status = 'processing'
        RETURNING q.task_id, q.claimed_at
    ),
    completed AS (
        UPDATE tasks t SET status = 'completed', images = $3, updated_at = greatest(t.updated_at, tintype_now($4)),
            claimed_at = gone.claimed_at
        FROM gone WHERE t.id = $1 RETURNING t.id, t.account_id, t.surface, t.updated_at
    )
    SELECT CASE WHEN surface = 'api' THEN tintype_tell(account_id, 'task.completed', id, NULL, updated_at) END
    FROM completed";

/// Selects one leased task for [`give_up`].
pub(super) const LEASED: &str =
    "SELECT task_id FROM queue WHERE task_id = $6 AND lease_epoch = $7 AND lease_until IS NOT NULL FOR UPDATE";

/// Selects one task of an account and a surface for [`give_up`], while it waits.
const WAITING: &str = "SELECT task_id FROM queue WHERE task_id = $6 AND account_id = $7 AND lease_until IS NULL
    AND EXISTS (SELECT 1 FROM tasks WHERE id = $6 AND surface = $8) FOR UPDATE";

/// Takes the tasks that the query `lost` selects from their workers. Each is queued again, or fails and is refunded if
/// this was its last attempt. Its own parameters begin at $6; [`Loss`] gives the others.
pub(super) fn give_up(lost: &str) -> String {
    format!(
        "
    WITH
    lost AS MATERIALIZED ({lost}),
    -- A task without a delay is ready by every clock, also by one that is behind or was set back.
    queued AS (
        UPDATE queue q SET lease_until = NULL, lost_leases = q.lost_leases + 1,
            ready_at = CASE WHEN $5::bigint = 0 THEN 0 ELSE tintype_now($2) + $5 END
        WHERE q.task_id = ANY (ARRAY (SELECT task_id FROM lost)) AND q.lost_leases + 1 < $4
        RETURNING q.task_id
    ),
    -- Only a task that is processing can fail.
    gone AS (
        DELETE FROM queue q USING tasks t
        WHERE q.task_id = ANY (ARRAY (SELECT task_id FROM lost)) AND q.lost_leases + 1 >= $4
            AND t.id = ANY (ARRAY (SELECT task_id FROM lost)) AND t.id = q.task_id AND t.status = 'processing'
        RETURNING q.task_id, q.account_id, q.key_id, q.person_id, q.taken
    ),
    failed AS (
        UPDATE tasks t SET status = 'failed', error = $1, updated_at = greatest(t.updated_at, tintype_now($2))
        FROM gone WHERE t.id = gone.task_id AND t.id = ANY (ARRAY (SELECT task_id FROM gone))
        RETURNING t.id, t.surface, t.updated_at, gone.account_id, gone.key_id, gone.person_id, gone.taken,
            t.n * $3::bigint AS amount, octet_length(t.prompt) + octet_length(t.reference_images) AS bytes
    ),
    kept AS (INSERT INTO failed_prompts (task_id, account_id, bytes) SELECT id, account_id, bytes FROM failed),
    -- Locks the accounts after the tasks and in the order of their ids, so that transactions never wait in a circle.
    locked AS MATERIALIZED (
        SELECT id FROM accounts WHERE id = ANY (ARRAY (SELECT account_id FROM failed)) ORDER BY id FOR NO KEY UPDATE
    ),
    -- The function sees all that was committed before the lock, which the snapshot of this statement may not.
    found AS MATERIALIZED (SELECT id, tintype_credits(id) AS balance FROM locked),
    refunded AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id, key_id)
        SELECT account_id, 'refund', amount,
            balance + sum(amount) OVER (PARTITION BY account_id ORDER BY failed.id), tintype_now($2), failed.id,
            (SELECT charge.key_id FROM ledger charge WHERE charge.task_id = failed.id AND charge.kind = 'charge')
        FROM failed JOIN found ON found.id = account_id ORDER BY failed.id
        RETURNING id, account_id, task_id
    ),
    given_back AS MATERIALIZED (
        SELECT tintype_give_back(refunded.account_id, refunded.id, failed.id, failed.taken, tintype_now($2),
            tintype_now($2) + {life}) AS extended
        FROM refunded JOIN failed ON failed.id = refunded.task_id WHERE failed.taken IS NOT NULL
    )
    -- The sum makes the functions run. An event is written last, when all locks are held.
    SELECT lost.task_id, queued.task_id IS NOT NULL AS queued, failed.account_id, failed.surface, failed.key_id,
        failed.person_id, (SELECT sum(extended) FROM given_back) AS extended,
        CASE WHEN failed.surface = 'api' AND refunded.task_id IS NOT NULL
            THEN tintype_tell(failed.account_id, 'task.failed', failed.id, NULL, failed.updated_at) END AS told
    FROM lost LEFT JOIN queued USING (task_id) LEFT JOIN failed ON failed.id = lost.task_id
        LEFT JOIN refunded ON refunded.task_id = lost.task_id",
        life = REFUND_LIFE.as_millis()
    )
}

/// How tasks are given up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss<'a> {
    /// A sentence for the caller.
    error: &'a str,
    /// Lost leases after which a task fails; 0: now.
    most: i32,
    /// Milliseconds until a task that is queued again can be claimed.
    delay_ms: i64,
    /// The time, where tests move the clock.
    given: Option<Timestamp>,
}

/// A task that was given up.
#[derive(Debug)]
pub(super) struct GivenUp {
    pub(super) queued: bool,
    /// The task and its origin, if it failed. Without either end its row is damaged, and it stays as it was.
    pub(super) failed: Option<(Ended, Origin)>,
}

impl<'a> Loss<'a> {
    /// The task fails now.
    pub(super) fn now(database: &Database, error: &'a str) -> Self {
        Self { error, most: 0, delay_ms: 0, given: database.given_time() }
    }

    /// The task fails when it has lost [`MAX_LOST_LEASES`].
    pub(super) fn attempt(database: &Database, error: &'a str, delay: Duration) -> Self {
        Self { most: MAX_LOST_LEASES as i32, delay_ms: millis(delay.min(LONGEST_DELAY)), ..Self::now(database, error) }
    }

    /// Parameters of [`give_up`], with those of its query.
    pub(super) fn parameters<'b>(&'b self, of_query: &[Parameter<'b>]) -> Vec<Parameter<'b>> {
        let own: [Parameter<'_>; 5] = [&self.error, &self.given, &CREDITS_PER_IMAGE, &self.most, &self.delay_ms];
        [&own, of_query].concat()
    }

    /// Gives up the tasks that `lost` selects with these parameters.
    pub(super) async fn give_up(
        &self,
        database: &Database,
        lost: &str,
        of_query: &[Parameter<'_>],
    ) -> std::result::Result<Vec<GivenUp>, Failure> {
        let rows = database.write(&give_up(lost), &self.parameters(of_query)).await?;
        rows.iter().map(given_up).collect::<Result<_>>().map_err(Failure::Unknown)
    }

    /// Gives up a task under its lease; `None` if the lease was lost before.
    async fn of_lease(self, database: &Database, lease: Lease) -> Result<Option<GivenUp>> {
        Ok(self.give_up(database, LEASED, &[&lease.task_id, &lease.epoch]).await?.pop())
    }
}

pub(super) fn given_up(row: &Row) -> Result<GivenUp> {
    let mut failed = None;
    if let Some(account_id) = row.try_get("account_id")? {
        let ended = Ended { task_id: row.try_get("task_id")?, account_id, surface: word(row, "surface")? };
        let (key_id, person_id) = (row.try_get("key_id")?, row.try_get("person_id")?);
        failed = Some((ended, Origin { key_id, person_id, ..Origin::default() }));
    }
    Ok(GivenUp { queued: row.try_get("queued")?, failed })
}

fn done_if(done: bool) -> LeaseWrite {
    if done { LeaseWrite::Done } else { LeaseWrite::Lost }
}

#[async_trait]
impl Queue for PostgresStore {
    async fn claim_within(
        &self,
        max: usize,
        engine: &str,
        max_references: u32,
        lease: Duration,
        passed_over: &[Id],
    ) -> Result<Vec<Claim>> {
        let claim = claim::claim(&self.database, &self.served_last, max, engine, max_references, lease, passed_over);
        self.write(Effect::Claim, claim).await
    }

    async fn renew(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>> {
        let renew = async {
            let (ids, epochs): (Vec<Id>, Vec<i64>) = leases.iter().map(|lease| (lease.task_id, lease.epoch)).unzip();
            let given = self.database.given_time();
            let rows = self.database.write(RENEW, &[&ids, &epochs, &given, &millis(lease)]).await?;
            let lease = |row: &Row| Ok(Lease { task_id: row.try_get("task_id")?, epoch: row.try_get("lease_epoch")? });
            let lost = rows.iter().map(lease).collect::<Result<HashSet<Lease>>>()?;
            Ok(leases.iter().filter(|lease| lost.contains(lease)).copied().collect())
        };
        self.write(Effect::Renew, renew).await
    }

    async fn report_progress(&self, attempts: Vec<(Lease, AttemptProgress)>) -> Result<()> {
        self.write(Effect::ReportProgress, progress::report(&self.database, &attempts)).await
    }

    async fn report_previews(&self, previews: Vec<(Lease, Bytes)>) -> Result<()> {
        self.write(Effect::ReportProgress, progress::show(&self.database, &previews)).await
    }

    async fn release(&self, lease: Lease, delay: Duration) -> Result<LeaseWrite> {
        let release = async {
            let sql = "UPDATE queue
                SET lease_until = NULL, ready_at = CASE WHEN $4::bigint = 0 THEN 0 ELSE tintype_now($3) + $4 END
                WHERE task_id = $1 AND lease_epoch = $2 AND lease_until IS NOT NULL RETURNING task_id";
            let (given, delay) = (self.database.given_time(), millis(delay.min(LONGEST_DELAY)));
            let released = self.database.write(sql, &[&lease.task_id, &lease.epoch, &given, &delay]).await?;
            Ok(done_if(!released.is_empty()))
        };
        let released = self.write(Effect::Release, release).await?;
        self.announcer.announce();
        Ok(released)
    }

    async fn retry(&self, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry> {
        let retry = async {
            Ok(match Loss::attempt(&self.database, last_error, delay).of_lease(&self.database, lease).await? {
                Some(GivenUp { queued: true, .. }) => Retry::Queued,
                Some(GivenUp { failed: Some(_), .. }) => Retry::Failed,
                _ => Retry::Lost,
            })
        };
        self.write(Effect::Retry, retry).await
    }

    async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite> {
        let complete = async {
            let (images, given) = (to_json(&images), self.database.given_time());
            let completed = self.database.write(COMPLETE, &[&lease.task_id, &lease.epoch, &images, &given]).await?;
            Ok(done_if(!completed.is_empty()))
        };
        self.write(Effect::Complete, complete).await
    }

    async fn fail(&self, lease: Lease, error: &str) -> Result<LeaseWrite> {
        let fail = async {
            let given_up = Loss::now(&self.database, error).of_lease(&self.database, lease).await?;
            Ok(done_if(given_up.is_some_and(|task| task.failed.is_some())))
        };
        self.write(Effect::Fail, fail).await
    }

    async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Refusal> {
        self.write(Effect::Refuse, keys::refuse(&self.database, lease, error, rule)).await
    }

    async fn fail_unleased(&self, id: Id, error: &str) -> Result<Option<Ended>> {
        let sql = give_up("SELECT task_id FROM queue WHERE task_id = $6 FOR UPDATE");
        let loss = Loss::now(&self.database, error);
        let fail = async |begun: &Transaction<'_>| {
            let row = begun.query_opt(&sql, &loss.parameters(&[&id])).await?;
            let given_up = row.as_ref().map(given_up).transpose()?;
            Ok(given_up.and_then(|task| task.failed).map(|(ended, _)| ended))
        };
        let deed = |ended: &Option<Ended>| Deed::of_failure(ended.as_ref(), error);
        self.write(Effect::FailUnleased, self.recorded(fail, deed)).await
    }

    async fn cancel(&self, account_id: Id, surface: Surface, id: Id, error: &str) -> Result<Option<Ended>> {
        let fail = async {
            let (loss, surface) = (Loss::now(&self.database, error), surface.as_str());
            let rows = self.statement(&give_up(WAITING), &loss.parameters(&[&id, &account_id, &surface])).await?;
            let given_up = rows.first().map(given_up).transpose()?;
            Ok(given_up.and_then(|task| task.failed).map(|(ended, _)| ended))
        };
        self.write(Effect::Cancel, fail).await
    }

    async fn queue_depth(&self) -> Result<QueueDepth> {
        let sql = "SELECT count(*) FILTER (WHERE lease_until IS NULL) AS waiting,
                count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 1) AS needs_1,
                count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 2) AS needs_2,
                count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 3) AS needs_3,
                count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 4) AS needs_4,
                count(*) FILTER (WHERE lease_until IS NOT NULL) AS leased, min(task_id) AS oldest,
                (SELECT paused_at FROM queue_pause) AS paused_at
            FROM queue WHERE task_id >= $1";
        let rows = self.database.read(sql, &[&self.database.horizon()]).await?;
        let oldest: Option<Id> = rows[0].try_get("oldest")?;
        let needing = |column| number(&rows[0], column);
        Ok(QueueDepth {
            waiting: number(&rows[0], "waiting")?,
            needing: [needing("needs_1")?, needing("needs_2")?, needing("needs_3")?, needing("needs_4")?],
            leased: number(&rows[0], "leased")?,
            oldest: oldest.map(Id::timestamp),
            paused_at: rows[0].try_get("paused_at")?,
        })
    }

    async fn waiting_for_engines(&self) -> Result<Vec<WaitingForEngine>> {
        let sql = "SELECT engine, count(*) AS tasks, max(reference_count)::bigint AS references FROM queue
            WHERE engine > '' AND task_id >= $1 AND lease_until IS NULL GROUP BY engine ORDER BY engine";
        let rows = self.database.read(sql, &[&self.database.horizon()]).await?;
        let waiting = |row: &Row| {
            let (tasks, references) = (number(row, "tasks")?, number(row, "references")?);
            Ok(WaitingForEngine { engine: row.try_get("engine")?, tasks, references })
        };
        rows.iter().map(waiting).collect()
    }

    async fn waiting_tasks(&self, limit: u32) -> Result<Vec<WaitingTask>> {
        let sql = "SELECT task_id, account_id, nullif(engine, '') AS engine FROM queue
            WHERE task_id >= $1 AND lease_until IS NULL ORDER BY task_id LIMIT $2";
        let rows = self.database.read(sql, &[&self.database.horizon(), &i64::from(limit)]).await?;
        let waiting = |row: &Row| {
            let (id, account_id) = (row.try_get("task_id")?, row.try_get("account_id")?);
            Ok(WaitingTask { id, account_id, engine: row.try_get("engine")? })
        };
        rows.iter().map(waiting).collect()
    }

    async fn pause_queue(&self) -> Result<Timestamp> {
        let sql = "INSERT INTO queue_pause AS p (id, paused_at) VALUES (1, tintype_now($1))
            ON CONFLICT (id) DO UPDATE SET paused_at = p.paused_at RETURNING paused_at";
        let given = self.database.given_time();
        let pause = async |begun: &Transaction<'_>| Ok(begun.query_one(sql, &[&given]).await?.try_get(0)?);
        self.recorded(pause, |_| Some(Deed::of_queue(Action::PauseQueue))).await
    }

    async fn resume_queue(&self) -> Result<Option<Timestamp>> {
        let resume = async |begun: &Transaction<'_>| {
            let row = begun.query_opt("DELETE FROM queue_pause RETURNING paused_at", &[]).await?;
            Ok(row.map(|row| row.try_get(0)).transpose()?)
        };
        self.recorded(resume, |since: &Option<Timestamp>| since.map(|_| Deed::of_queue(Action::ResumeQueue))).await
    }

    async fn queue_paused_at(&self) -> Result<Option<Timestamp>> {
        let row = self.database.read_one("SELECT paused_at FROM queue_pause", &[]).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    async fn tasks_elsewhere(&self) {
        self.announcer.heard().await;
    }

    fn announce_ending(&self, task_id: Id) {
        self.announcer.announce_ending(task_id);
    }

    async fn endings_elsewhere(&self) -> EndingsElsewhere {
        self.announcer.heard_endings().await
    }
}
