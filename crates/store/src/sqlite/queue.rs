//! Statements for leasing tasks to workers, and for sweeping the queue.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, ToSql, params};

use super::SqliteStore;
use super::writer::{Writing, in_savepoint};
use crate::driver::{Transaction, on_sqlite, query};
use crate::endings::Loss;
use crate::tasks::REQUEST;
use crate::upkeep::Sweep;
use crate::{
    Claim, EndingsElsewhere, LONGEST_DELAY, LONGEST_LEASE, Lease, Reclaim, Reclaimed, Result, StoreError, progress,
    queue,
};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// How often to look for other processes' writes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tasks that a sweep ends per transaction, so that the writes of callers can run in between.
const SWEEP_BATCH: usize = 256;

fn claim(writing: &mut Writing, max: usize, lease: Duration, scope: &Scope) -> rusqlite::Result<Vec<Claim>> {
    let now = writing.clock.now();
    let connection = &writing.connection;
    let mut claims = Vec::new();
    if connection.prepare_cached("SELECT 1 FROM queue_pause")?.exists([])? {
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
        let sql = format!(
            "SELECT task_id, queue.account_id, lease_epoch, surface, wants_previews, {REQUEST}
             FROM queue JOIN tasks ON id = task_id WHERE task_id = $1"
        );
        let rows = query(connection, &sql, [task_id])?;
        match rows.first().ok_or(rusqlite::Error::QueryReturnedNoRows.into()).and_then(queue::claim) {
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
struct Scope {
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

fn renew(writing: &mut Writing, leases: &[Lease], lease: Duration) -> rusqlite::Result<Vec<Lease>> {
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

/// Gives up a task in a savepoint. If that fails, for example on a damaged row, the writes for the other tasks
/// continue, unless SQLite has rolled back the whole transaction.
fn give_up(writing: &mut Writing, loss: &Loss, task_id: Id) -> Result<Reclaimed> {
    let give_up = |writing: &mut Writing| {
        on_sqlite(writing, async |tx: &Transaction<'_>| loss.give_up(tx, "q.task_id = $1", &[&task_id]).await)
    };
    let reclaimed = in_savepoint(writing, give_up).and_then(|reclaimed| {
        let damaged = || StoreError::other("its row in the queue has no task that is processing");
        if reclaimed == Reclaimed::default() { Err(damaged()) } else { Ok(reclaimed) }
    });
    match reclaimed {
        Err(error) if !writing.connection.is_autocommit() => {
            tracing::error!(task = %task_id, %error, "could not end or requeue a task; the next sweep tries again");
            Ok(Reclaimed::default())
        }
        outcome => outcome,
    }
}

/// Ends or requeues up to [`SWEEP_BATCH`] tasks that a sweep looks for, each individually.
fn sweep(writing: &mut Writing, sweep: &Sweep, loss: &Loss) -> Result<Reclaimed> {
    let connection = &writing.connection;
    let select = |sql: &str, parameters: &[&dyn ToSql]| -> rusqlite::Result<Vec<Id>> {
        connection.prepare_cached(sql)?.query_map(parameters, |row| row.get(0))?.collect()
    };
    let mut tasks = match sweep {
        Sweep::Leases(which) => {
            let now = writing.clock.now();
            let (ended, impossible) = match which {
                Reclaim::Expired => (now, now.saturating_add(LONGEST_LEASE)),
                Reclaim::All => (Timestamp::MAX, Timestamp::MAX),
            };
            let leased = "SELECT task_id FROM queue INDEXED BY queue_leased WHERE lease_until <= ?1
                UNION ALL SELECT task_id FROM queue INDEXED BY queue_leased WHERE lease_until > ?2 LIMIT ?3";
            select(leased, &[&ended, &impossible, &SWEEP_BATCH])?
        }
        Sweep::Before(end) => select("SELECT task_id FROM queue WHERE task_id < ?1 LIMIT ?2", &[end, &SWEEP_BATCH])?,
        Sweep::Beyond(most) => {
            let beyond = "SELECT task_id FROM queue INDEXED BY queue_with_references
                WHERE reference_count > 0 AND reference_count > ?1 AND lease_until IS NULL LIMIT ?2";
            select(beyond, &[most, &SWEEP_BATCH])?
        }
        Sweep::Unmatched(engines) => {
            let unmatched = "SELECT task_id FROM queue INDEXED BY queue_named
                WHERE lease_until IS NULL AND engine > ''
                    AND reference_count > coalesce((SELECT value FROM json_each(?1) WHERE key = engine), -1) LIMIT ?2";
            select(unmatched, &[engines, &SWEEP_BATCH])?
        }
    };
    // Refunds come in the order of their tasks.
    tasks.sort_unstable();
    let mut all = Reclaimed::default();
    for id in tasks {
        all.add(give_up(writing, loss, id)?);
    }
    if let Sweep::Leases(_) = sweep {
        on_sqlite(writing, async |tx: &Transaction<'_>| progress::forget_ended(tx).await)?;
    }
    Ok(all)
}

impl SqliteStore {
    pub(crate) async fn claim_tasks(
        &self,
        max: usize,
        engine: &str,
        max_references: u32,
        lease: Duration,
        passed_over: &[Id],
    ) -> Result<Vec<Claim>> {
        let engine = engine.to_owned();
        let scope = Scope { engine, max_references, passed_over: passed_over.iter().copied().collect() };
        self.write(Effect::Claim, None, move |writing| Ok(claim(writing, max, lease, &scope)?)).await
    }

    pub(crate) async fn renew_leases(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>> {
        self.write(Effect::Renew, None, move |writing| Ok(renew(writing, &leases, lease)?)).await
    }

    pub(crate) async fn sweep(&self, effect: Effect, which: &Sweep, loss: &Loss) -> Result<Reclaimed> {
        let mut all = Reclaimed::default();
        loop {
            let (which, loss) = (which.clone(), loss.clone());
            let some = self.write(effect, None, move |writing| sweep(writing, &which, &loss)).await?;
            let changed = some.queued + some.failed.len();
            all.add(some);
            if changed < SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    /// Waits until another process has written. Only an operator's command is one, so a look every second is often
    /// enough.
    pub(crate) async fn written_elsewhere(&self) -> EndingsElsewhere {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // Only on the writer's connection does the number leave out the writes of this process.
            let look =
                |writing: &mut Writing| writing.connection.query_row("PRAGMA data_version", [], |row| row.get(0));
            // If the database cannot be read now, it is tried again.
            let Ok(version) = self.writer.write(look).await else { continue };
            if self.data_version.swap(version, Ordering::Relaxed) != version {
                return EndingsElsewhere::Missed;
            }
        }
    }
}
