//! Statements for leasing tasks to workers and for completing them.
//!
//! Every write under a lease matches the epoch (the fencing token) in the `queue` row, and the row is deleted when the
//! task becomes terminal. A worker that has lost its lease therefore cannot change anything.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::columns::{to_json, word};
use super::endings::{Left, cancel, fail, fail_all, fail_unleased, give_up, leave_queue, refuse, sparing_others};
use super::tasks::{REQUEST, request};
use super::writer::Writing;
use super::{SqliteStore, deliveries, engines, progress};
use crate::{
    Action, AttemptProgress, Cancellation, Claim, Deed, Ended, EndingsElsewhere, LONGEST_DELAY, LONGEST_LEASE, Lease,
    LeaseWrite, Queue, QueueDepth, Refusal, Rescue, Rescued, Result, Retry, StrikeRule, WaitingForEngine, WaitingTask,
};
use tintype_domain::event::EventType;
use tintype_domain::model::{FailureCause, Id, Surface, TaskFailure};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// How often writes of other processes are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tasks that a sweep ends per transaction, so that the writes of callers can run in between.
pub(super) const SWEEP_BATCH: usize = 256;

pub(super) fn claim(writing: &mut Writing, max: usize, lease: Duration, scope: &Scope) -> rusqlite::Result<Vec<Claim>> {
    let now = writing.clock.now();
    let connection = &writing.connection;
    let mut claims = Vec::new();
    if paused_at(connection)?.is_some() {
        return Ok(claims);
    }
    let last_served = writing.last_served.entry((scope.engine.clone(), scope.max_references)).or_default();
    while claims.len() < max {
        let after_last = next_waiting(connection, last_served, now, scope)?;
        let Some((account_id, task_id)) = (match after_last {
            None => next_waiting(connection, "", now, scope)?,
            found => found,
        }) else {
            break;
        };
        connection
            .prepare_cached(
                "UPDATE queue SET lease_epoch = lease_epoch + 1, lease_until = ?2, ready_at = 0, claimed_at = ?3
                 WHERE task_id = ?1",
            )?
            .execute(params![task_id, now.saturating_add(lease), now])?;
        let claim = connection
            .prepare_cached(&format!(
                "SELECT lease_epoch, surface, wants_previews, {REQUEST} FROM queue JOIN tasks ON id = task_id
                 WHERE task_id = ?1"
            ))?
            .query_row([task_id], |row| {
                let lease = Lease { task_id, epoch: row.get("lease_epoch")? };
                let (surface, wants_previews) = (word(row, "surface")?, row.get("wants_previews")?);
                let of = |request| Ok(Claim { lease, account_id, surface, request, wants_previews });
                Ok(request(row).and_then(of))
            })?;
        match claim {
            Ok(claim) => claims.push(claim),
            // A damaged row must not stop the other claims. Its lease expires.
            Err(error) => {
                tracing::error!(task = %task_id, %error, "could not read a claimed task; \
                    check the database with `tintype doctor`");
            }
        }
        *last_served = account_id.as_str().to_owned();
    }
    Ok(claims)
}

/// The tasks that a claim may take.
#[derive(Debug)]
pub(super) struct Scope {
    engine: String,
    max_references: u32,
    passed_over: HashSet<Id>,
}

/// The oldest claimable task of the next account after `account` that has such a task within `scope`.
fn next_waiting(
    connection: &Connection,
    account: &str,
    now: Timestamp,
    scope: &Scope,
) -> rusqlite::Result<Option<(Id, Id)>> {
    let mut statement = connection.prepare_cached(
        "SELECT account_id, task_id FROM queue INDEXED BY queue_waiting
         WHERE lease_until IS NULL AND engine = ?4 AND account_id > ?1 AND reference_count <= ?3
         AND (ready_at <= ?2 OR ready_at > ?5)
         ORDER BY account_id, task_id LIMIT 1",
    )?;
    let mut of_engine = |engine: &str, account: &str| -> rusqlite::Result<Option<(Id, Id)>> {
        // Postponed for longer than any task is: the clock was set back since.
        let too_late = now.saturating_add(LONGEST_DELAY);
        let parameters = params![account, now, scope.max_references, engine, too_late];
        statement.query_row(parameters, |row| Ok((row.get(0)?, row.get(1)?))).optional()
    };
    let mut next = |account: &str| -> rusqlite::Result<Option<(Id, Id)>> {
        let found = [of_engine("", account)?, of_engine(&scope.engine, account)?];
        Ok(found.into_iter().flatten().min())
    };
    let mut found = next(account)?;
    while let Some((account_id, _)) = found.filter(|(account_id, _)| scope.passed_over.contains(account_id)) {
        found = next(account_id.as_str())?;
    }
    Ok(found)
}

pub(super) fn renew(writing: &mut Writing, leases: &[Lease], lease: Duration) -> rusqlite::Result<Vec<Lease>> {
    let until = writing.clock.now().saturating_add(lease);
    let mut renew = writing.connection.prepare_cached(
        "UPDATE queue SET lease_until = ?3 WHERE task_id = ?1 AND lease_epoch = ?2 AND lease_until IS NOT NULL",
    )?;
    let mut lost = Vec::new();
    for held in leases {
        if renew.execute(params![held.task_id, held.epoch, until])? == 0 {
            lost.push(*held);
        }
    }
    Ok(lost)
}

pub(super) fn release(writing: &mut Writing, lease: Lease, delay: Duration) -> rusqlite::Result<LeaseWrite> {
    let sql = "UPDATE queue SET lease_until = NULL, ready_at = ?3
        WHERE task_id = ?1 AND lease_epoch = ?2 AND lease_until IS NOT NULL";
    let parameters = params![lease.task_id, lease.epoch, writing.ready_after(delay)];
    let released = writing.connection.prepare_cached(sql)?.execute(parameters)?;
    Ok(if released == 1 { LeaseWrite::Done } else { LeaseWrite::Lost })
}

pub(super) fn retry(writing: &mut Writing, lease: Lease, delay: Duration, failure: &TaskFailure) -> Result<Retry> {
    let given_up = give_up(writing, lease, delay, failure)?;
    Ok(match (given_up.queued, given_up.failed.len()) {
        (1.., _) => Retry::Queued,
        (_, 1..) => Retry::Failed,
        (0, 0) => Retry::Lost,
    })
}

pub(super) fn complete(writing: &mut Writing, lease: Lease, images: &[String]) -> rusqlite::Result<LeaseWrite> {
    let connection = &writing.connection;
    let Some(Left { account_id, claimed_at, .. }) = leave_queue(connection, lease)? else {
        return Ok(LeaseWrite::Lost);
    };
    let completed = connection
        .prepare_cached(
            "UPDATE tasks SET status = 'completed', images = ?2, updated_at = max(updated_at, ?3), claimed_at = ?4
             WHERE id = ?1 AND status = 'processing'",
        )?
        .execute(params![lease.task_id, to_json(images), writing.clock.now(), claimed_at])?;
    connection
        .prepare_cached("UPDATE accounts SET unfinished = unfinished - 1 WHERE id = ?1")?
        .execute([account_id])?;
    if completed > 0 {
        deliveries::tell_end(writing, account_id, EventType::TaskCompleted, lease.task_id)?;
    }
    Ok(LeaseWrite::Done)
}

/// Takes away up to [`SWEEP_BATCH`] leases.
pub(super) fn rescue(writing: &mut Writing, which: Rescue, failure: &TaskFailure) -> Result<Rescued> {
    let now = writing.clock.now();
    let (ended, impossible) = match which {
        Rescue::Expired => (now, now.saturating_add(LONGEST_LEASE)),
        Rescue::All => (Timestamp::MAX, Timestamp::MAX),
    };
    let mut lost: Vec<Lease> = writing
        .connection
        .prepare_cached(
            "SELECT task_id, lease_epoch FROM queue INDEXED BY queue_leased WHERE lease_until <= ?1
             UNION ALL SELECT task_id, lease_epoch FROM queue INDEXED BY queue_leased WHERE lease_until > ?2 LIMIT ?3",
        )?
        .query_map(params![ended, impossible, SWEEP_BATCH], |row| {
            Ok(Lease { task_id: row.get(0)?, epoch: row.get(1)? })
        })?
        .collect::<rusqlite::Result<_>>()?;
    // Refunds come in the order of their tasks, as those of every sweep.
    lost.sort_unstable_by_key(|lease| lease.task_id);
    let mut rescued = Rescued::default();
    for lease in lost {
        let give_up = |writing: &mut Writing| give_up(writing, lease, Duration::ZERO, failure);
        let Rescued { queued, failed } = sparing_others(writing, lease.task_id, give_up)?.unwrap_or_default();
        rescued.queued += queued;
        rescued.failed.extend(failed);
    }
    progress::forget_ended(&writing.connection)?;
    Ok(rescued)
}

/// Fails and refunds up to [`SWEEP_BATCH`] overdue tasks.
pub(super) fn expire(writing: &mut Writing, cutoff: Timestamp, failure: &TaskFailure) -> Result<Vec<Ended>> {
    // Ids start with the time of creation, so the cutoff becomes a range of ids.
    let bound = Id::floor(Timestamp::from_millis(cutoff.as_millis().saturating_add(1)));
    let overdue: Vec<Id> = writing
        .connection
        .prepare_cached("SELECT task_id FROM queue WHERE task_id < ?1 LIMIT ?2")?
        .query_map(params![bound, SWEEP_BATCH], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    fail_all(writing, overdue, failure)
}

/// Fails and refunds up to [`SWEEP_BATCH`] waiting tasks with more references than this.
pub(super) fn fail_beyond(writing: &mut Writing, max_references: u32, failure: &TaskFailure) -> Result<Vec<Ended>> {
    let beyond: Vec<Id> = writing
        .connection
        .prepare_cached(
            "SELECT task_id FROM queue INDEXED BY queue_with_references
             WHERE reference_count > 0 AND reference_count > ?1 AND lease_until IS NULL LIMIT ?2",
        )?
        .query_map(params![max_references, SWEEP_BATCH], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    fail_all(writing, beyond, failure)
}

pub(super) fn depth(connection: &Connection) -> rusqlite::Result<QueueDepth> {
    connection
        .prepare_cached(
            "SELECT count(*) FILTER (WHERE lease_until IS NULL) AS waiting,
                    count(*) FILTER (WHERE lease_until IS NOT NULL) AS leased,
                    count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 1) AS needs_1,
                    count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 2) AS needs_2,
                    count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 3) AS needs_3,
                    count(*) FILTER (WHERE lease_until IS NULL AND reference_count >= 4) AS needs_4,
                    min(task_id) AS oldest,
                    (SELECT paused_at FROM queue_pause) AS paused_at
             FROM queue",
        )?
        .query_row([], |row| {
            let oldest: Option<Id> = row.get("oldest")?;
            Ok(QueueDepth {
                waiting: row.get("waiting")?,
                needing: [row.get("needs_1")?, row.get("needs_2")?, row.get("needs_3")?, row.get("needs_4")?],
                leased: row.get("leased")?,
                oldest: oldest.map(Id::timestamp),
                paused_at: row.get("paused_at")?,
            })
        })
}

fn waiting(connection: &Connection, limit: u32) -> rusqlite::Result<Vec<WaitingTask>> {
    let sql = "SELECT task_id, account_id, nullif(engine, '') FROM queue
        WHERE lease_until IS NULL ORDER BY task_id LIMIT ?1";
    (connection.prepare_cached(sql)?)
        .query_map([limit], |row| Ok(WaitingTask { id: row.get(0)?, account_id: row.get(1)?, engine: row.get(2)? }))?
        .collect()
}

fn paused_at(connection: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    connection.prepare_cached("SELECT paused_at FROM queue_pause")?.query_row([], |row| row.get(0)).optional()
}

fn pause(writing: &mut Writing) -> rusqlite::Result<Timestamp> {
    writing
        .connection
        .prepare_cached(
            "INSERT INTO queue_pause AS p (id, paused_at) VALUES (1, ?1)
             ON CONFLICT (id) DO UPDATE SET paused_at = p.paused_at RETURNING paused_at",
        )?
        .query_row([writing.clock.now()], |row| row.get(0))
}

fn resume(writing: &mut Writing) -> rusqlite::Result<Option<Timestamp>> {
    writing
        .connection
        .prepare_cached("DELETE FROM queue_pause RETURNING paused_at")?
        .query_row([], |row| row.get(0))
        .optional()
}

#[async_trait]
impl Queue for SqliteStore {
    async fn claim_within(
        &self,
        max: usize,
        engine: &str,
        max_references: u32,
        lease: Duration,
        passed_over: &[Id],
    ) -> Result<Vec<Claim>> {
        let engine = engine.to_owned();
        let scope = Scope { engine, max_references, passed_over: passed_over.iter().copied().collect() };
        self.write(Effect::Claim, move |writing| claim(writing, max, lease, &scope)).await
    }

    async fn renew(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>> {
        self.write(Effect::Renew, move |writing| renew(writing, &leases, lease)).await
    }

    async fn report_progress(&self, attempts: Vec<(Lease, AttemptProgress)>) -> Result<()> {
        self.write(Effect::ReportProgress, move |writing| progress::report(writing, &attempts)).await
    }

    async fn report_previews(&self, previews: Vec<(Lease, Bytes)>) -> Result<()> {
        self.write(Effect::ReportProgress, move |writing| progress::show(&writing.connection, &previews)).await
    }

    async fn release(&self, lease: Lease, delay: Duration) -> Result<LeaseWrite> {
        self.write(Effect::Release, move |writing| release(writing, lease, delay)).await
    }

    async fn retry(&self, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry> {
        let failure = TaskFailure::new(FailureCause::Lost, last_error);
        self.write(Effect::Retry, move |writing| retry(writing, lease, delay, &failure)).await
    }

    async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite> {
        self.write(Effect::Complete, move |writing| complete(writing, lease, &images)).await
    }

    async fn fail(&self, lease: Lease, cause: FailureCause, error: &str) -> Result<LeaseWrite> {
        let failure = TaskFailure::new(cause, error);
        self.write(Effect::Fail, move |writing| fail(writing, lease, &failure)).await
    }

    async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Refusal> {
        let failure = TaskFailure::new(FailureCause::Policy, error);
        self.write(Effect::Refuse, move |writing| refuse(writing, lease, &failure, rule)).await
    }

    async fn fail_unleased(&self, id: Id, cause: FailureCause, error: &str) -> Result<Option<Ended>> {
        let (failure, said) = (TaskFailure::new(cause, error), error.to_owned());
        let deed = move |ended: &Option<Ended>| Deed::of_failure(ended.as_ref(), &said);
        let fail = self.recorded(move |writing| fail_unleased(writing, id, &failure), deed);
        self.write(Effect::FailUnleased, fail).await
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
        self.write(Effect::Cancel, move |writing| cancel(writing, account_id, surface, id, author, &failure)).await
    }

    async fn queue_depth(&self) -> Result<QueueDepth> {
        self.read(depth)
    }

    async fn waiting_for_engines(&self) -> Result<Vec<WaitingForEngine>> {
        self.read(engines::waiting)
    }

    async fn waiting_tasks(&self, limit: u32) -> Result<Vec<WaitingTask>> {
        self.read(|connection| waiting(connection, limit))
    }

    async fn pause_queue(&self) -> Result<Timestamp> {
        let pause = self.recorded(pause, |_| Some(Deed::of_queue(Action::PauseQueue)));
        self.write_by_right(self.right, pause).await
    }

    async fn resume_queue(&self) -> Result<Option<Timestamp>> {
        let deed = |since: &Option<Timestamp>| since.map(|_| Deed::of_queue(Action::ResumeQueue));
        let resume = self.recorded(resume, deed);
        self.write_by_right(self.right, resume).await
    }

    async fn queue_paused_at(&self) -> Result<Option<Timestamp>> {
        self.read(paused_at)
    }

    /// Only an operator's command is another process, so a look every second is often enough.
    async fn endings_elsewhere(&self) -> EndingsElsewhere {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // Only the connection of the writer tells the writes of other processes from those of this one.
            let look =
                |writing: &mut Writing| writing.connection.query_row("PRAGMA data_version", [], |row| row.get(0));
            // A database that cannot be read now is looked at again.
            let Ok(version) = self.writer.write(look).await else { continue };
            if self.data_version.swap(version, Ordering::Relaxed) != version {
                return EndingsElsewhere::Missed;
            }
        }
    }
}
