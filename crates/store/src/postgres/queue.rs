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
use tokio_postgres::Row;

use super::columns::{number, to_json, word};
use super::connection::{Parameter, Transaction};
use super::endings::{GivenUp, LEASED, Loss};
use super::{PostgresStore, claim, deliveries, endings, listen_notify, progress};
use crate::failure::Failure;
use crate::{
    Action, AttemptProgress, Cancellation, Claim, Deed, Ended, EndingsElsewhere, LONGEST_DELAY, Lease, LeaseWrite,
    Queue, QueueDepth, Refusal, Result, Retry, StrikeRule, WaitingForEngine, WaitingTask,
};
use tintype_domain::event::EventType;
use tintype_domain::model::{FailureCause, Id, Surface, TaskFailure};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

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
    WITH gone AS (
        DELETE FROM queue q USING tasks t
        WHERE q.task_id = $1 AND q.lease_epoch = $2 AND q.lease_until IS NOT NULL
            AND t.id = q.task_id AND t.status = 'processing'
        RETURNING q.claimed_at
    )
    UPDATE tasks t SET status = 'completed', images = $3, updated_at = greatest(t.updated_at, tintype_now($4)),
        claimed_at = gone.claimed_at
    FROM gone WHERE t.id = $1 RETURNING t.account_id, t.surface, t.updated_at";

fn done_if(done: bool) -> LeaseWrite {
    if done { LeaseWrite::Done } else { LeaseWrite::Lost }
}

impl PostgresStore {
    /// Gives up the tasks of one account that meet a condition, in a transaction.
    async fn give_up(
        &self,
        loss: Loss,
        condition: &str,
        parameters: &[Parameter<'_>],
    ) -> std::result::Result<GivenUp, Failure> {
        let give_up = async |begun: &Transaction<'_>| loss.give_up(&self.database, begun, condition, parameters).await;
        self.transaction(give_up).await
    }
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
            let given_up =
                self.give_up(Loss::attempt(last_error, delay), LEASED, &[&lease.task_id, &lease.epoch]).await?;
            Ok(match given_up {
                GivenUp { queued: 1.., .. } => Retry::Queued,
                GivenUp { failed, .. } if !failed.is_empty() => Retry::Failed,
                _ => Retry::Lost,
            })
        };
        self.write(Effect::Retry, retry).await
    }

    async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite> {
        let complete = async {
            let (images, given) = (to_json(&images), self.database.given_time());
            let complete = async |begun: &Transaction<'_>| {
                let parameters: [Parameter<'_>; 4] = [&lease.task_id, &lease.epoch, &images, &given];
                let Some(task) = begun.query_opt(COMPLETE, &parameters).await? else { return Ok(LeaseWrite::Lost) };
                let (account_id, surface, ended_at) =
                    (task.try_get("account_id")?, word(&task, "surface")?, task.try_get("updated_at")?);
                let end = EventType::TaskCompleted;
                deliveries::tell_end(&self.database, begun, account_id, surface, end, lease.task_id, ended_at).await?;
                Ok(LeaseWrite::Done)
            };
            Ok(self.database.transaction(complete).await?)
        };
        self.write(Effect::Complete, complete).await
    }

    async fn fail(&self, lease: Lease, cause: FailureCause, error: &str) -> Result<LeaseWrite> {
        let fail = async {
            let given_up = self.give_up(Loss::now(cause, error), LEASED, &[&lease.task_id, &lease.epoch]).await?;
            Ok(done_if(!given_up.failed.is_empty()))
        };
        self.write(Effect::Fail, fail).await
    }

    async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Refusal> {
        self.write(Effect::Refuse, endings::refuse(&self.database, lease, error, rule)).await
    }

    async fn fail_unleased(&self, id: Id, cause: FailureCause, error: &str) -> Result<Option<Ended>> {
        let fail = async |begun: &Transaction<'_>| {
            let given_up = Loss::now(cause, error).give_up(&self.database, begun, "q.task_id = $1", &[&id]).await?;
            let ended = given_up.failed.into_iter().next().map(|(ended, _)| ended);
            if ended.is_some() {
                listen_notify::notify_ending(begun, id).await?;
            }
            Ok(ended)
        };
        let deed = |ended: &Option<Ended>| Deed::of_failure(ended.as_ref(), error);
        self.write(Effect::FailUnleased, self.recorded(fail, deed)).await
    }

    async fn cancel(
        &self,
        account_id: Id,
        surface: Surface,
        id: Id,
        author: Option<Id>,
        error: &str,
    ) -> Result<Cancellation> {
        let failure = TaskFailure::new(FailureCause::Cancelled, error);
        let cancel = async |begun: &Transaction<'_>| {
            endings::cancel(&self.database, begun, (account_id, surface), id, author, &failure).await
        };
        self.write(Effect::Cancel, async { Ok(self.transaction(cancel).await?) }).await
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

    fn announce_news(&self, news: String) {
        self.announcer.announce_news(news);
    }

    async fn news_elsewhere(&self) -> String {
        self.announcer.heard_news().await
    }
}
