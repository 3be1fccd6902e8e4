//! Tasks that have not ended, and the leases on them.

use std::time::Duration;

use super::driver::{Driver, Row, Store, Transaction};
use super::endings::{self, GivenUp, LEASED, Loss, ready_after};
use super::tasks::request;
use super::{
    ANY_REFERENCES, Action, AuditedChange, Cancellation, Claim, Ended, EndingsElsewhere, Lease, LeaseWrite, QueueDepth,
    Refusal, Result, Retry, StrikeRule, WaitingForEngine, WaitingTask, postgres,
};
use tintype_domain::model::{FailureCause, Id, Surface, TaskFailure};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Counts the tasks from the id $1 on.
pub(super) const DEPTH: &str = "
    SELECT count(*) FILTER (WHERE lease_until IS NULL) AS waiting,
        count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 1) AS needs_1,
        count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 2) AS needs_2,
        count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 3) AS needs_3,
        count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 4) AS needs_4,
        count(*) FILTER (WHERE lease_until IS NOT NULL) AS leased, min(task_id) AS oldest,
        (SELECT paused_at FROM queue_pause) AS paused_at
    FROM queue WHERE task_id >= $1";

pub(super) fn depth(rows: &[Row]) -> Result<QueueDepth> {
    let Some(row) = rows.first() else { return Ok(QueueDepth::default()) };
    let needing = |column| row.number(column);
    Ok(QueueDepth {
        waiting: row.number("waiting")?,
        needing: [needing("needs_1")?, needing("needs_2")?, needing("needs_3")?, needing("needs_4")?],
        leased: row.number("leased")?,
        oldest: row.get::<Option<Id>>("oldest")?.map(Id::timestamp),
        paused_at: row.get("paused_at")?,
    })
}

/// The claim of a task, with a row of the queue and the columns of its request.
pub(super) fn claim(row: &Row) -> Result<Claim> {
    Ok(Claim {
        lease: Lease { task_id: row.get("task_id")?, epoch: row.get("lease_epoch")? },
        account_id: row.get("account_id")?,
        surface: row.word("surface")?,
        request: request(row)?,
        wants_previews: row.get("wants_previews")?,
    })
}

/// The lowest id from which a scan of the queue finds all tasks.
fn horizon(driver: &Driver) -> String {
    match driver {
        Driver::Sqlite(_) => String::new(),
        Driver::Postgres(store) => store.database.horizon().to_string(),
    }
}

fn done_if(done: bool) -> LeaseWrite {
    if done { LeaseWrite::Done } else { LeaseWrite::Lost }
}

/// Tasks that have not ended, and the leases on them.
impl Store {
    /// Leases up to `max` waiting tasks for `lease` that name no engine: round robin over accounts, oldest first within
    /// one. None while the queue is paused.
    pub async fn claim(&self, max: usize, lease: Duration) -> Result<Vec<Claim>> {
        self.claim_within(max, "", ANY_REFERENCES, lease, &[]).await
    }

    /// [`Store::claim`] of tasks that name no engine or this one, with up to `max_references` reference images, without
    /// the accounts `passed_over`. Once an account is no longer excluded, it is served before any other account is
    /// served twice. Claims with different engines or `max_references` take turns of their own, so that none keeps an
    /// account from the others.
    pub async fn claim_within(
        &self,
        max: usize,
        engine: &str,
        max_references: u32,
        lease: Duration,
        passed_over: &[Id],
    ) -> Result<Vec<Claim>> {
        match &self.driver {
            Driver::Sqlite(store) => store.claim_tasks(max, engine, max_references, lease, passed_over).await,
            Driver::Postgres(store) => store.claim_tasks(max, engine, max_references, lease, passed_over).await,
        }
    }

    /// Extends leases to `lease` from now; returns the leases that had been lost.
    pub async fn renew(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>> {
        match &self.driver {
            Driver::Sqlite(store) => store.renew_leases(leases, lease).await,
            Driver::Postgres(store) => store.renew_leases(leases, lease).await,
        }
    }

    /// Returns a task to the queue, claimable after `delay`. The attempt does not count as lost.
    pub async fn release(&self, lease: Lease, delay: Duration) -> Result<LeaseWrite> {
        let sql = "UPDATE queue SET lease_until = NULL, ready_at = $3
            WHERE task_id = $1 AND lease_epoch = $2 AND lease_until IS NOT NULL RETURNING task_id";
        let ready_at = ready_after(self.driver.now(), delay);
        let released = self.statement(Effect::Release, sql, &[&lease.task_id, &lease.epoch, &ready_at]).await?;
        if let Driver::Postgres(store) = &self.driver {
            store.notifier.task_queued();
        }
        Ok(done_if(!released.is_empty()))
    }

    /// Ends a failed attempt. The task is queued again, claimable after `delay`; or, after `MAX_LOST_LEASES` lost
    /// leases, it fails with `last_error` and is refunded.
    pub async fn retry(&self, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry> {
        let loss = Loss::attempt(last_error, delay);
        let retry = async move |begun: &Transaction<'_>| {
            let given_up = loss.give_up(begun, LEASED, &[&lease.task_id, &lease.epoch]).await?;
            Ok(match given_up {
                GivenUp { queued: 1.., .. } => Retry::Queued,
                GivenUp { failed, .. } if !failed.is_empty() => Retry::Failed,
                _ => Retry::Lost,
            })
        };
        self.write(Effect::Retry, retry).await
    }

    /// Completes a task with the names of its result files, at least one.
    pub async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite> {
        let images = serde_json::to_string(&images).expect("strings are always JSON");
        let complete = async move |begun: &Transaction<'_>| endings::complete(begun, lease, &images).await;
        self.write(Effect::Complete, complete).await
    }

    /// Fails and refunds a task, with a message for the caller.
    pub async fn fail(&self, lease: Lease, cause: FailureCause, error: &str) -> Result<LeaseWrite> {
        let loss = Loss::now(cause, error);
        let fail = async move |begun: &Transaction<'_>| {
            let given_up = loss.give_up(begun, LEASED, &[&lease.task_id, &lease.epoch]).await?;
            Ok(done_if(!given_up.failed.is_empty()))
        };
        self.write(Effect::Fail, fail).await
    }

    /// Fails and refunds a task, with a message for the caller, because the content policy refuses it. If there is a
    /// `rule`, its key or person gets a strike, which suspends either at the limit. The audit log records that.
    pub async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Refusal> {
        let error = error.to_owned();
        let refuse = async move |begun: &Transaction<'_>| endings::refuse(begun, lease, &error, rule).await;
        self.write(Effect::Refuse, refuse).await
    }

    /// Fails and refunds a task regardless of its lease; `None` if it is not processing.
    pub async fn fail_unleased(&self, id: Id, cause: FailureCause, error: &str) -> Result<Option<Ended>> {
        let (loss, error) = (Loss::now(cause, error), error.to_owned());
        let fail = async move |begun: &Transaction<'_>| {
            let given_up = loss.give_up(begun, "q.task_id = $1", &[&id]).await?;
            let ended = given_up.failed.into_iter().next().map(|(ended, _)| ended);
            if let (Transaction::Postgres(_, begun), Some(_)) = (begun, &ended) {
                postgres::notify_ending(begun, id).await?;
            }
            Ok(ended)
        };
        let audited = move |ended: &Option<Ended>| AuditedChange::of_failure(ended.as_ref(), &error);
        self.change(Effect::FailUnleased, fail, audited).await
    }

    /// Fails and refunds an unfinished task of an account and a surface, and of `author` if there is one. If a worker holds
    /// it, the worker loses its lease, and the rule of [`Stops`](tintype_domain::ledger::Stops) may refuse it.
    pub async fn cancel(
        &self,
        account_id: Id,
        surface: Surface,
        id: Id,
        author: Option<Id>,
        error: &str,
    ) -> Result<Cancellation> {
        let failure = TaskFailure::new(FailureCause::Cancelled, error);
        let cancel = async move |begun: &Transaction<'_>| {
            endings::cancel(begun, (account_id, surface), id, author, &failure).await
        };
        self.write(Effect::Cancel, cancel).await
    }

    /// Number of unfinished tasks.
    pub async fn queue_depth(&self) -> Result<QueueDepth> {
        depth(&self.driver.read(DEPTH, &[&horizon(&self.driver)]).await?)
    }

    /// The waiting tasks that name an engine, by engine.
    pub async fn waiting_for_engines(&self) -> Result<Vec<WaitingForEngine>> {
        let sql = format!(
            "SELECT engine, count(*) AS tasks, CAST(max(reference_count) AS bigint) AS most FROM queue {}
             WHERE engine > '' AND task_id >= $1 AND lease_until IS NULL GROUP BY engine ORDER BY engine",
            self.driver.either("INDEXED BY queue_named", "")
        );
        let waiting = |row: &Row| {
            let (tasks, references) = (row.number("tasks")?, row.number("most")?);
            Ok(WaitingForEngine { engine: row.get("engine")?, tasks, references })
        };
        self.driver.list(&sql, &[&horizon(&self.driver)], waiting).await
    }

    /// The oldest waiting tasks, in order, at most `limit`.
    pub async fn waiting_tasks(&self, limit: u32) -> Result<Vec<WaitingTask>> {
        let sql = "SELECT q.task_id, q.account_id, t.surface, nullif(q.engine, '') AS engine
            FROM queue q JOIN tasks t ON t.id = q.task_id
            WHERE q.task_id >= $1 AND q.lease_until IS NULL ORDER BY q.task_id LIMIT $2";
        let waiting = |row: &Row| {
            let (id, account_id) = (row.get("task_id")?, row.get("account_id")?);
            Ok(WaitingTask { id, account_id, surface: row.word("surface")?, engine: row.get("engine")? })
        };
        let rows = self.driver.read_apart(sql.into(), &[&horizon(&self.driver), &i64::from(limit)]).await?;
        rows.iter().map(waiting).collect()
    }

    /// Pauses the queue: no claim by any process returns a task until [`Store::resume_queue`]. Returns the time since
    /// which it is paused.
    pub async fn pause_queue(&self) -> Result<Timestamp> {
        let pause = async |begun: &Transaction<'_>| {
            let sql = "INSERT INTO queue_pause AS p (id, paused_at) VALUES (1, $1)
                ON CONFLICT (id) DO UPDATE SET paused_at = p.paused_at RETURNING paused_at";
            let now = begun.now();
            Ok(begun.find(sql, &[&now], |row| row.get("paused_at")).await?.unwrap_or(now))
        };
        self.change(None, pause, |_| Some(AuditedChange::of_queue(Action::PauseQueue))).await
    }

    /// Ends the pause of the queue. Returns the time since which it was paused, if it was.
    pub async fn resume_queue(&self) -> Result<Option<Timestamp>> {
        let resume = async |begun: &Transaction<'_>| {
            begun.find("DELETE FROM queue_pause RETURNING paused_at", &[], |row| row.get("paused_at")).await
        };
        let audited = |since: &Option<Timestamp>| since.map(|_| AuditedChange::of_queue(Action::ResumeQueue));
        self.change(None, resume, audited).await
    }

    /// Time since which the queue is paused.
    pub async fn queue_paused_at(&self) -> Result<Option<Timestamp>> {
        self.driver.find("SELECT paused_at FROM queue_pause", &[], |row| row.get("paused_at")).await
    }

    /// Waits until another process may have queued a task. This is only a hint: the method may return late, without
    /// reason, or never.
    pub async fn tasks_elsewhere(&self) {
        match &self.driver {
            Driver::Sqlite(_) => std::future::pending().await,
            Driver::Postgres(store) => store.notifier.queued_elsewhere().await,
        }
    }

    /// Notifies other processes soon that this one has ended a task. This is only a hint, which may be lost.
    pub fn announce_ending(&self, task_id: Id) {
        if let Driver::Postgres(store) = &self.driver {
            store.notifier.task_ended(task_id);
        }
    }

    /// Waits until other processes have ended tasks.
    pub async fn endings_elsewhere(&self) -> EndingsElsewhere {
        match &self.driver {
            Driver::Sqlite(store) => store.written_elsewhere().await,
            Driver::Postgres(store) => store.notifier.ended_elsewhere().await,
        }
    }

    /// Sends an update of open pages to other processes, in at most `MAX_NEWS` bytes that begin with `{`. This is
    /// only a hint, which may be lost.
    pub fn announce_news(&self, news: String) {
        if let Driver::Postgres(store) = &self.driver {
            store.notifier.send_update(news);
        }
    }

    /// Waits for an update of open pages from another process.
    pub async fn news_elsewhere(&self) -> String {
        match &self.driver {
            Driver::Sqlite(_) => std::future::pending().await,
            Driver::Postgres(store) => store.notifier.update_elsewhere().await,
        }
    }
}
