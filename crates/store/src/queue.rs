//! Tasks that have not ended, and the leases on them.

use std::time::Duration;

use super::driver::{Dialect, Driver, List, Row, Store, Transaction, from_row, with_store};
use super::endings::{FailOrRequeue, LEASED, ready_after};
use super::tasks::request;
use super::{
    ANY_REFERENCES, Action, AuditedChange, Claim, EndingsElsewhere, Lease, LeaseWrite, QueueDepth, Reclaimed, Result,
    Retry, WaitingForEngine, WaitingTask, postgres,
};
use tintype_domain::model::{FailureCause, Id, TaskRef};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Counts the tasks from the id $1 on.
const DEPTH: &str = "
    SELECT count(*) FILTER (WHERE lease_until IS NULL) AS waiting,
        count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 1) AS needs_1,
        count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 2) AS needs_2,
        count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 3) AS needs_3,
        count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 4) AS needs_4,
        count(*) FILTER (WHERE lease_until IS NOT NULL) AS leased, min(task_id) AS oldest,
        (SELECT paused_at FROM queue_pause) AS paused_at
    FROM queue WHERE task_id >= $1";

fn depth(rows: &[Row]) -> Result<QueueDepth> {
    let Some(row) = rows.first() else { return Ok(QueueDepth::default()) };
    let needing = |column| row.get(column);
    Ok(QueueDepth {
        waiting: row.get("waiting")?,
        needing: [needing("needs_1")?, needing("needs_2")?, needing("needs_3")?, needing("needs_4")?],
        leased: row.get("leased")?,
        oldest: row.get::<Option<Id>>("oldest")?.map(Id::timestamp),
        paused_at: row.get("paused_at")?,
    })
}

// A row of the queue with the columns of the request.
from_row! { pub(super) fn claim(row) -> Claim {
    lease: a_lease(row)?, account_id, surface,
    request: request(row)?, wants_previews,
} }

from_row! { fn waiting_for_engine(row) -> WaitingForEngine { engine, tasks, references: row.get("most")? } }

from_row! { fn waiting_task(row) -> WaitingTask {
    task: TaskRef { id: row.get("task_id")?, account_id: row.get("account_id")?, surface: row.get("surface")? },
    engine,
} }

from_row! { fn a_lease(row) -> Lease { task_id, epoch: row.get("lease_epoch")? } }

/// The leases on the tasks that the condition `among` names.
fn held(among: &str) -> String {
    format!("SELECT task_id, lease_epoch FROM queue WHERE task_id {among} AND lease_until IS NOT NULL")
}

fn done_if(done: bool) -> LeaseWrite {
    if done { LeaseWrite::Done } else { LeaseWrite::Lost }
}

impl Store {
    /// Leases up to `max` waiting tasks for `lease` that name no engine: round robin over accounts, oldest first within
    /// one. None while the queue is paused.
    pub async fn claim(&self, max: usize, lease: Duration) -> Result<Vec<Claim>> {
        self.claim_within(max, "", ANY_REFERENCES, lease, &[]).await
    }

    /// [`Store::claim`] for tasks that name this engine or none, with up to `max_references` reference images, except
    /// for the accounts `excluded`. Once an account is no longer excluded, it is served before any other account is
    /// served twice. Claims with different engines or `max_references` take turns separately, so that none keeps an
    /// account from the others.
    pub async fn claim_within(
        &self,
        max: usize,
        engine: &str,
        max_references: u32,
        lease: Duration,
        excluded: &[Id],
    ) -> Result<Vec<Claim>> {
        with_store!(self.driver, store => store.claim_tasks(max, engine, max_references, lease, excluded).await)
    }

    /// Extends leases to `lease` from now; returns the leases that had been lost.
    pub async fn renew(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>> {
        self.write(Effect::Renew, async move |tx| {
            let tasks: Vec<Id> = leases.iter().map(|lease| lease.task_id).collect();
            // A transaction that has locked a row is about to end its task or to take its lease away, and may have to
            // wait for an account. A renewal does not wait for it: it leaves such a lease unchanged, and reports it as
            // lost only if the row says so.
            let free = format!("{} {}", held(&tx.in_list(1)), tx.locking("FOR UPDATE SKIP LOCKED"));
            let free = tx.list(&free, &[&List(&tasks)], a_lease).await?;
            let renewed: Vec<Id> =
                free.iter().filter(|lease| leases.contains(lease)).map(|lease| lease.task_id).collect();
            let (now, among) = (tx.time_in(2), tx.in_list(1));
            let renew = format!("UPDATE queue SET lease_until = {now} + $3 WHERE task_id {among}");
            tx.execute(&renew, &[&List(&renewed), &tx.time(), &lease]).await?;
            let held = tx.list(&held(&tx.in_list(1)), &[&List(&tasks)], a_lease).await?;
            Ok(leases.iter().filter(|lease| !held.contains(lease)).copied().collect())
        })
        .await
    }

    /// The leases among these that are lost, without writing anything.
    pub async fn lost(&self, leases: Vec<Lease>) -> Result<Vec<Lease>> {
        let tasks: Vec<Id> = leases.iter().map(|lease| lease.task_id).collect();
        let held = self.driver.list(&held(&self.driver.in_list(1)), &[&List(&tasks)], a_lease).await?;
        Ok(leases.into_iter().filter(|lease| !held.contains(lease)).collect())
    }

    /// Returns a task to the queue, claimable after `delay`. The attempt does not count as lost.
    pub async fn release(&self, lease: Lease, delay: Duration) -> Result<LeaseWrite> {
        let sql = "UPDATE queue SET lease_until = NULL, ready_at = $3
            WHERE task_id = $1 AND lease_epoch = $2 AND lease_until IS NOT NULL RETURNING task_id";
        let ready_at = ready_after(self.driver.now(), delay);
        let released = self.statement(Effect::Release, sql, &[&lease.task_id, &lease.epoch, &ready_at]).await?;
        if let Driver::Postgres(store) = &self.driver {
            store.notifier.shared.queued_here.notify_one();
        }
        Ok(done_if(!released.is_empty()))
    }

    /// Ends a failed attempt. The task is queued again, claimable after `delay`; or, after `MAX_LOST_LEASES` lost
    /// leases, it fails with `last_error` and is refunded.
    pub async fn retry(&self, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry> {
        let rule = FailOrRequeue::lost(last_error, delay);
        self.write(Effect::Retry, async move |tx| {
            let done = rule.apply(tx, LEASED, &[&lease.task_id, &lease.epoch]).await?;
            Ok(match done {
                Reclaimed { queued: 1.., .. } => Retry::Queued,
                Reclaimed { failed, .. } if !failed.is_empty() => Retry::Failed,
                _ => Retry::Lost,
            })
        })
        .await
    }

    /// Fails and refunds a task, with a message for the caller.
    pub async fn fail(&self, lease: Lease, cause: FailureCause, error: &str) -> Result<LeaseWrite> {
        let rule = FailOrRequeue::fail(cause, error);
        self.write(Effect::Fail, async move |tx| {
            let done = rule.apply(tx, LEASED, &[&lease.task_id, &lease.epoch]).await?;
            Ok(done_if(!done.failed.is_empty()))
        })
        .await
    }

    /// Fails and refunds a task regardless of its lease; `None` if it is not processing.
    pub async fn fail_unleased(&self, id: Id, cause: FailureCause, error: &str) -> Result<Option<TaskRef>> {
        let (rule, error) = (FailOrRequeue::fail(cause, error), error.to_owned());
        self.write(Effect::FailUnleased, async move |tx| {
            let done = rule.apply(tx, "q.task_id = $1", &[&id]).await?;
            let Some(ended) = done.failed.into_iter().next() else { return Ok(None) };
            if let Transaction::Postgres(..) = tx {
                postgres::notify_ending(tx, id).await?;
            }
            tx.audit(AuditedChange::of(Action::FailTask, ended.account_id).about(id).with(&error)).await?;
            Ok(Some(ended))
        })
        .await
    }

    /// Number of unfinished tasks.
    pub async fn queue_depth(&self) -> Result<QueueDepth> {
        depth(&self.driver.read(DEPTH, &[&self.driver.horizon()]).await?)
    }

    /// The waiting tasks that name an engine, by engine.
    pub async fn waiting_for_engines(&self) -> Result<Vec<WaitingForEngine>> {
        let sql = format!(
            "SELECT engine, count(*) AS tasks, CAST(max(reference_count) AS bigint) AS most FROM queue {}
             WHERE engine > '' AND task_id >= $1 AND lease_until IS NULL GROUP BY engine ORDER BY engine",
            self.driver.either("INDEXED BY queue_named", "")
        );
        self.driver.list(&sql, &[&self.driver.horizon()], waiting_for_engine).await
    }

    /// The oldest waiting tasks, in order, at most `limit`.
    pub async fn waiting_tasks(&self, limit: u32) -> Result<Vec<WaitingTask>> {
        let sql = "SELECT q.task_id, q.account_id, t.surface, nullif(q.engine, '') AS engine
            FROM queue q JOIN tasks t ON t.id = q.task_id
            WHERE q.task_id >= $1 AND q.lease_until IS NULL ORDER BY q.task_id LIMIT $2";
        let rows = self.driver.long_read(sql.into(), &[&self.driver.horizon(), &limit]).await?;
        rows.iter().map(waiting_task).collect()
    }

    /// The unfinished tasks among `known`, and the oldest ones created at `from` or later, at most `limit`, in any order.
    pub async fn unfinished_from(&self, from: Timestamp, known: &[Id], limit: u32) -> Result<Vec<Id>> {
        let sql = format!(
            "SELECT task_id FROM queue WHERE task_id {} UNION SELECT task_id FROM (
                 SELECT task_id FROM queue WHERE task_id >= $1 ORDER BY task_id LIMIT $3) AS later",
            self.driver.in_list(2)
        );
        self.driver.list(&sql, &[&Id::floor(from), &List(known), &limit], |row| row.get("task_id")).await
    }

    /// Pauses the queue: no claim by any process returns a task until [`Store::resume_queue`]. Returns the time since
    /// which it is paused.
    pub async fn pause_queue(&self) -> Result<Timestamp> {
        self.write(None, async |tx| {
            let sql = "INSERT INTO queue_pause AS p (id, paused_at) VALUES (1, $1)
                ON CONFLICT (id) DO UPDATE SET paused_at = p.paused_at RETURNING paused_at";
            let now = tx.now();
            let since = tx.find(sql, &[&now], |row| row.get("paused_at")).await?.unwrap_or(now);
            tx.audit(AuditedChange::of(Action::PauseQueue, None)).await?;
            Ok(since)
        })
        .await
    }

    /// Ends the pause of the queue. Returns the time since which it was paused, if it was.
    pub async fn resume_queue(&self) -> Result<Option<Timestamp>> {
        self.write(None, async |tx| {
            let sql = "DELETE FROM queue_pause RETURNING paused_at";
            let since = tx.find(sql, &[], |row| row.get("paused_at")).await?;
            if since.is_some() {
                tx.audit(AuditedChange::of(Action::ResumeQueue, None)).await?;
            }
            Ok(since)
        })
        .await
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
            Driver::Postgres(store) => store.notifier.shared.queued_elsewhere.notified().await,
        }
    }

    /// Notifies other processes soon that this one has ended a task. This is only a hint, which may be lost.
    pub fn announce_ending(&self, task_id: Id) {
        if let Driver::Postgres(store) = &self.driver {
            store.notifier.shared.ended_here.send(Some(task_id));
        }
    }

    /// Waits until other processes have ended tasks.
    pub async fn endings_elsewhere(&self) -> EndingsElsewhere {
        match &self.driver {
            Driver::Sqlite(store) => store.written_elsewhere().await,
            Driver::Postgres(store) => store.notifier.shared.ended_elsewhere.take(Duration::ZERO).await,
        }
    }

    /// Sends an update of open pages to other processes, in at most `MAX_UPDATE_BYTES` that begin with `{`. This is
    /// only a hint, which may be lost.
    pub fn send_update(&self, update: String) {
        if let Driver::Postgres(store) = &self.driver {
            store.notifier.shared.updates_here.send(update);
        }
    }

    /// Waits for an update of open pages from another process.
    pub async fn update_elsewhere(&self) -> String {
        match &self.driver {
            Driver::Sqlite(_) => std::future::pending().await,
            Driver::Postgres(store) => store.notifier.shared.updates_elsewhere.next().await,
        }
    }
}
