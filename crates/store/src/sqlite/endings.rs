//! The end of tasks that fail: each leaves the queue and gets its credits back in one commit.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::columns::word;
use super::writer::{Writing, in_savepoint};
use super::{deliveries, failed_prompts};
use crate::driver::{Transaction, on_sqlite};
use crate::ledger::{self, NewEntry};
use crate::{
    Cancellation, Ended, Lease, LeaseWrite, MAX_LOST_LEASES, Origin, Refusal, Rescued, Result, StrikeRule, strikes,
};
use tintype_domain::event::EventType;
use tintype_domain::ledger::{STOPS_WITHIN, Stops};
use tintype_domain::model::{CREDITS_PER_IMAGE, EntryKind, Id, Surface, TaskFailure};
use tintype_system::clock::Timestamp;

/// Takes a lease away, unless it was lost before: its task is claimable after `delay`, or failed after its last
/// attempt.
pub(super) fn give_up(writing: &mut Writing, lease: Lease, delay: Duration, failure: &TaskFailure) -> Result<Rescued> {
    let lost: Option<u32> = writing
        .connection
        .prepare_cached(
            "UPDATE queue SET lease_until = NULL, lost_leases = lost_leases + 1, ready_at = ?3
             WHERE task_id = ?1 AND lease_epoch = ?2 AND lease_until IS NOT NULL RETURNING lost_leases",
        )?
        .query_row(params![lease.task_id, lease.epoch, writing.ready_after(delay)], |row| row.get(0))
        .optional()?;
    Ok(match lost {
        None => Rescued::default(),
        Some(lost) if lost < MAX_LOST_LEASES => Rescued { queued: 1, failed: Vec::new() },
        Some(_) => Rescued { queued: 0, failed: Vec::from_iter(fail_unleased(writing, lease.task_id, failure)?) },
    })
}

/// Fails and refunds a leased task.
pub(super) fn fail(writing: &mut Writing, lease: Lease, failure: &TaskFailure) -> Result<LeaseWrite> {
    match leave_queue(&writing.connection, lease)? {
        Some(left) => refund(writing, lease.task_id, &left, failure).map(|_| LeaseWrite::Done),
        None => Ok(LeaseWrite::Lost),
    }
}

/// Fails and refunds a leased task and, if there is a strike rule, adds a strike to its key and the person who made
/// that, or to its person.
pub(super) fn refuse(
    writing: &mut Writing,
    lease: Lease,
    failure: &TaskFailure,
    rule: Option<StrikeRule>,
) -> Result<Refusal> {
    let origin = match rule {
        Some(_) => origin_of(&writing.connection, lease.task_id)?,
        None => Origin::default(),
    };
    if fail(writing, lease, failure)? == LeaseWrite::Lost {
        return Ok(Refusal::Lost);
    }
    let Some(rule) = rule else { return Ok(Refusal::Done { suspended: None }) };
    on_sqlite(writing, async |begun: &Transaction<'_>| strikes::strike(begun, lease.task_id, &origin, rule).await)
}

/// The key with which a queued task was submitted, or the person who created it.
fn origin_of(connection: &Connection, task_id: Id) -> rusqlite::Result<Origin> {
    let found = connection
        .prepare_cached("SELECT key_id, person_id FROM queue WHERE task_id = ?1")?
        .query_row([task_id], |row| Ok(Origin { key_id: row.get(0)?, person_id: row.get(1)?, ..Origin::default() }))
        .optional()?;
    Ok(found.unwrap_or_default())
}

/// Fails and refunds a task that waits, or whose lease nobody holds.
pub(super) fn fail_unleased(writing: &mut Writing, id: Id, failure: &TaskFailure) -> Result<Option<Ended>> {
    let left = writing
        .connection
        .prepare_cached(
            "DELETE FROM queue WHERE task_id = ?1
             RETURNING account_id, CASE WHEN lease_until IS NOT NULL THEN claimed_at END, taken",
        )?
        .query_row([id], left)
        .optional()?;
    left.map(|left| refund(writing, id, &left, failure)).transpose()
}

/// Fails and refunds an unfinished task for its account.
pub(super) fn cancel(
    writing: &mut Writing,
    account_id: Id,
    surface: Surface,
    id: Id,
    author: Option<Id>,
    failure: &TaskFailure,
) -> Result<Cancellation> {
    let found: Option<(bool, i64)> = writing
        .connection
        .prepare_cached(
            "SELECT q.lease_until IS NOT NULL, t.n FROM queue q JOIN tasks t ON t.id = q.task_id
             WHERE q.task_id = ?1 AND q.account_id = ?2 AND t.surface = ?3 AND (?4 IS NULL OR q.person_id = ?4)",
        )?
        .query_row(params![id, account_id, surface.as_str(), author], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((is_leased, n)) = found else { return Ok(Cancellation::NotFound) };
    if is_leased && !may_stop(writing, account_id, n * CREDITS_PER_IMAGE)? {
        return Ok(Cancellation::OverShare);
    }
    Ok(fail_unleased(writing, id, failure)?.map_or(Cancellation::NotFound, Cancellation::Done))
}

/// Whether the account may stop a task that a worker holds and that cost so much.
fn may_stop(writing: &Writing, account_id: Id, cost: i64) -> rusqlite::Result<bool> {
    let (connection, since) = (&writing.connection, writing.clock.now().saturating_sub(STOPS_WITHIN));
    let returned = connection
        .prepare_cached(
            "SELECT coalesce(sum(l.amount), 0)
             FROM ledger l INDEXED BY refunds_of_account CROSS JOIN tasks t ON t.id = l.task_id
             WHERE l.account_id = ?1 AND l.kind = 'refund' AND l.created_at > ?2
             AND t.cause = 'cancelled' AND t.claimed_at IS NOT NULL",
        )?
        .query_row(params![account_id, since], |row| row.get(0))?;
    let stops = Stops { returned };
    // Those in the bin count, too.
    let images: i64 = connection
        .prepare_cached(
            "SELECT coalesce(sum(n), 0) FROM (
                 SELECT n FROM tasks WHERE account_id = ?1 AND surface IN ('api', 'web') AND removed_at IS NULL
                 AND id >= ?2 AND status = 'completed'
                 UNION ALL
                 SELECT t.n FROM deletions d CROSS JOIN tasks t ON t.id = d.task_id
                 WHERE d.account_id = ?1 AND d.task_id >= ?2 AND t.status = 'completed'
                 LIMIT ?3)",
        )?
        .query_row(params![account_id, Id::floor(since), stops.most_to_read(cost)], |row| row.get(0))?;
    Ok(stops.allow(cost, images * CREDITS_PER_IMAGE))
}

/// A row that has left the queue.
pub(super) struct Left {
    pub(super) account_id: Id,
    /// When the worker claimed it that held it until now, if one did.
    pub(super) claimed_at: Option<Timestamp>,
    /// The credits of expiring grants that its task took.
    taken: Option<String>,
}

fn left(row: &Row<'_>) -> rusqlite::Result<Left> {
    Ok(Left { account_id: row.get(0)?, claimed_at: row.get(1)?, taken: row.get(2)? })
}

/// Removes a leased task from the queue; `None` if the lease was lost.
pub(super) fn leave_queue(connection: &Connection, lease: Lease) -> rusqlite::Result<Option<Left>> {
    let left = connection
        .prepare_cached(
            "SELECT account_id, claimed_at, taken FROM queue
             WHERE task_id = ?1 AND lease_epoch = ?2 AND lease_until IS NOT NULL",
        )?
        .query_row(params![lease.task_id, lease.epoch], left)
        .optional()?;
    if left.is_some() {
        connection.prepare_cached("DELETE FROM queue WHERE task_id = ?1")?.execute([lease.task_id])?;
    }
    Ok(left)
}

/// Fails and refunds a task that has just left the queue.
fn refund(writing: &mut Writing, id: Id, left: &Left, failure: &TaskFailure) -> Result<Ended> {
    let (account_id, connection) = (left.account_id, &writing.connection);
    let now = writing.clock.now();
    let (n, surface): (i64, Surface) = connection
        .prepare_cached(
            "UPDATE tasks SET status = 'failed', cause = ?2, error = ?3, updated_at = max(updated_at, ?4),
             claimed_at = ?5 WHERE id = ?1 AND status = 'processing' RETURNING n, surface",
        )?
        .query_row(params![id, failure.cause.to_string(), failure.sentence, now, left.claimed_at], |row| {
            Ok((row.get(0)?, word(row, 1)?))
        })?;
    failed_prompts::keep(connection, id, account_id)?;
    connection
        .prepare_cached("UPDATE accounts SET unfinished = unfinished - 1 WHERE id = ?1")?
        .execute([account_id])?;
    on_sqlite(writing, async |begun: &Transaction<'_>| {
        let account = ledger::holding(begun, account_id, 0).await?;
        let key_id = ledger::charged_key(begun, id).await?;
        let refund = NewEntry { task_id: Some(id), key_id, ..NewEntry::new(EntryKind::Refund, n * CREDITS_PER_IMAGE) };
        ledger::refund(begun, account_id, &account, &refund, left.taken.as_deref(), now).await
    })?;
    deliveries::tell_end(writing, account_id, EventType::TaskFailed, id)?;
    Ok(Ended { task_id: id, account_id, surface })
}

/// Fails and refunds tasks, each for itself.
pub(super) fn fail_all(writing: &mut Writing, mut tasks: Vec<Id>, failure: &TaskFailure) -> Result<Vec<Ended>> {
    tasks.sort_unstable();
    let mut failed = Vec::new();
    for id in tasks {
        failed.extend(sparing_others(writing, id, |writing| fail_unleased(writing, id, failure))?.flatten());
    }
    Ok(failed)
}

/// Runs a write for one task of many in a savepoint. If it fails, for example on a damaged row, the writes for the
/// other tasks continue, unless SQLite has rolled back the whole transaction.
pub(super) fn sparing_others<T>(
    writing: &mut Writing,
    task_id: Id,
    write: impl FnOnce(&mut Writing) -> Result<T>,
) -> Result<Option<T>> {
    match in_savepoint(writing, write) {
        Ok(outcome) => Ok(Some(outcome)),
        Err(error) if writing.connection.is_autocommit() => Err(error),
        Err(error) => {
            tracing::error!(task = %task_id, %error, "could not end or requeue a task; the next sweep tries again");
            Ok(None)
        }
    }
}
