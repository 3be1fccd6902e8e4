//! Credits that expire. They are part of the balance; a row of `expiring_grants` says how many of it are left of a grant, and
//! until when.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::columns::word;
use super::deliveries;
use super::writer::{Writing, in_savepoint};
use crate::clock::Timestamp;
use crate::domain::event::{self, EventType};
use crate::domain::model::{EntryKind, ExpiringGrant, Id};
use crate::store::REFUND_LIFE;

/// Accounts whose grants lapse in one transaction, so that the writes of callers can run in between.
pub(super) const SWEEP_BATCH: usize = 256;

/// The credits of an account that expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiring {
    /// Of grants that have expired and not lapsed yet: no task may spend them.
    pub(super) expired: i64,
    /// Of grants that expire later.
    pub(super) live: i64,
}

pub(super) fn expiring(connection: &Connection, account_id: Id, now: Timestamp) -> rusqlite::Result<Expiring> {
    connection
        .prepare_cached(
            "SELECT coalesce(sum(remaining) FILTER (WHERE expires_at <= ?2), 0),
                 coalesce(sum(remaining) FILTER (WHERE expires_at > ?2), 0)
             FROM expiring_grants WHERE account_id = ?1 AND lapsed IS NULL",
        )?
        .query_row(params![account_id, now], |row| Ok(Expiring { expired: row.get(0)?, live: row.get(1)? }))
}

/// Adds a grant that expires, which `entry_id` wrote into the ledger.
pub(super) fn add(
    connection: &Connection,
    entry_id: i64,
    account_id: Id,
    amount: i64,
    expires_at: Timestamp,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO expiring_grants (entry_id, account_id, amount, expires_at, remaining) VALUES (?1, ?2, ?3, ?4, ?3)",
        )?
        .execute(params![entry_id, account_id, amount, expires_at])?;
    Ok(())
}

/// Grants from which credits were taken, with their number.
type Parts = Vec<(i64, i64)>;

/// The grants of an account that are not spent and expire after `now`, the soonest first.
fn live(connection: &Connection, account_id: Id, now: Timestamp) -> rusqlite::Result<Parts> {
    connection
        .prepare_cached(
            "SELECT entry_id, remaining FROM expiring_grants
             WHERE account_id = ?1 AND lapsed IS NULL AND expires_at > ?2 AND remaining > 0
             ORDER BY expires_at, entry_id",
        )?
        .query_map(params![account_id, now], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Takes up to `wanted` credits of these grants, in their order.
fn draw(connection: &Connection, grants: impl IntoIterator<Item = (i64, i64)>, wanted: i64) -> rusqlite::Result<Parts> {
    let mut draw =
        connection.prepare_cached("UPDATE expiring_grants SET remaining = remaining - ?2 WHERE entry_id = ?1")?;
    let (mut parts, mut missing) = (Vec::new(), wanted);
    for (entry_id, remaining) in grants {
        let part = remaining.min(missing);
        if part == 0 {
            break;
        }
        draw.execute(params![entry_id, part])?;
        parts.push((entry_id, part));
        missing -= part;
    }
    Ok(parts)
}

/// Takes credits of expiring grants for a task that costs `cost`, the soonest first. Returns what it took, for the queue.
pub(super) fn spend(connection: &Connection, account_id: Id, cost: i64, now: Timestamp) -> rusqlite::Result<String> {
    let parts = draw(connection, live(connection, account_id, now)?, cost)?;
    Ok(serde_json::to_string(&parts).expect("numbers are always JSON"))
}

/// Takes what the operator takes beyond the credits that do not expire: of those that expire last.
pub(super) fn take(connection: &Connection, account_id: Id, beyond: i64, now: Timestamp) -> rusqlite::Result<()> {
    let grants = live(connection, account_id, now)?;
    draw(connection, grants.into_iter().rev(), beyond.max(0)).map(drop)
}

/// Gives credits back to the grants from which `taken` says they came. Those of grants that have expired can be spent for
/// [`REFUND_LIFE`], as a grant of the entry of the refund. Those that no grant but a refund brought were extended before: they
/// become a grant of the entry of the charge, which has expired. So no chain of failed tasks keeps credits for ever.
pub(super) fn give_back(
    connection: &Connection,
    account_id: Id,
    refund: i64,
    task_id: Id,
    taken: &str,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let parts: Parts =
        serde_json::from_str(taken).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let (mut late, mut late_again) = (0, 0);
    for (entry_id, part) in parts {
        let returned = connection
            .prepare_cached(
                "UPDATE expiring_grants SET remaining = remaining + ?2
                 WHERE entry_id = ?1 AND lapsed IS NULL AND expires_at > ?3",
            )?
            .execute(params![entry_id, part, now])?;
        if returned > 0 {
            continue;
        }
        let kind = connection
            .prepare_cached("SELECT kind FROM ledger WHERE id = ?1")?
            .query_row([entry_id], |row| word::<EntryKind>(row, 0))
            .optional()?;
        *if kind == Some(EntryKind::Grant) { &mut late } else { &mut late_again } += part;
    }
    if late > 0 {
        add(connection, refund, account_id, late, now.saturating_add(REFUND_LIFE))?;
    }
    if late_again > 0 {
        let charge = connection
            .prepare_cached("SELECT id FROM ledger WHERE task_id = ?1 AND kind = 'charge'")?
            .query_row([task_id], |row| row.get(0))?;
        add(connection, charge, account_id, late_again, now)?;
    }
    Ok(())
}

/// Tells the endpoints of an account of low credits, if it has just lost so many and that took the balance below its
/// threshold.
pub(super) fn tell_if_low(
    writing: &Writing,
    account_id: Id,
    lost: i64,
    balance: i64,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let threshold: Option<i64> = writing
        .connection
        .prepare_cached(
            "SELECT low_balance FROM accounts WHERE id = ?1 AND low_balance > ?2 AND low_balance <= ?2 + ?3",
        )?
        .query_row(params![account_id, balance, lost], |row| row.get(0))
        .optional()?;
    let Some(threshold) = threshold else { return Ok(()) };
    let data = event::of_low_credits(balance, threshold).to_string();
    deliveries::tell(writing, account_id, EventType::CreditsLow, &data, now)
}

/// Grants that a sweep has looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Swept {
    pub(super) lapsed: usize,
    /// Grants that could not be ended, for example because their account is damaged.
    pub(super) failed: usize,
}

/// Ends up to [`SWEEP_BATCH`] grants that have expired, after the first `skipped`. Of each that has credits left, an entry
/// takes them from the balance.
pub(super) fn lapse(writing: &mut Writing, skipped: usize) -> rusqlite::Result<Swept> {
    let (connection, now) = (&writing.connection, writing.clock.now());
    let due: Vec<(i64, Id, i64)> = connection
        .prepare_cached(
            "SELECT entry_id, account_id, remaining FROM expiring_grants
             WHERE lapsed IS NULL AND expires_at <= ?1 ORDER BY expires_at, entry_id LIMIT ?2 OFFSET ?3",
        )?
        .query_map(params![now, SWEEP_BATCH, skipped], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut swept = Swept::default();
    for grant in due {
        let (entry_id, account_id, _) = grant;
        match in_savepoint(writing, |writing| end(writing, grant, now)) {
            Ok(()) => swept.lapsed += 1,
            Err(error) if writing.connection.is_autocommit() => return Err(error),
            Err(error) => {
                swept.failed += 1;
                tracing::error!(
                    account = %account_id, grant = entry_id, %error,
                    "cannot end an expired grant; see `tintype credits audit`"
                );
            }
        }
    }
    Ok(swept)
}

/// Ends a grant of an account with the given rest.
fn end(writing: &Writing, (entry_id, account_id, remaining): (i64, Id, i64), now: Timestamp) -> rusqlite::Result<()> {
    let connection = &writing.connection;
    connection
        .prepare_cached("UPDATE expiring_grants SET lapsed = remaining, remaining = 0 WHERE entry_id = ?1")?
        .execute([entry_id])?;
    if remaining == 0 {
        return Ok(());
    }
    let balance: i64 = connection
        .prepare_cached("UPDATE accounts SET balance = balance - ?2 WHERE id = ?1 RETURNING balance")?
        .query_row(params![account_id, remaining], |row| row.get(0))?;
    connection
        .prepare_cached(
            "INSERT INTO ledger (account_id, kind, amount, balance, created_at, grant_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![account_id, EntryKind::Expiry.as_str(), -remaining, balance, now, entry_id])?;
    tell_if_low(writing, account_id, remaining, balance, now)
}

fn expiring_grant(row: &Row<'_>) -> rusqlite::Result<ExpiringGrant> {
    Ok(ExpiringGrant {
        entry_id: row.get("entry_id")?,
        amount: row.get("amount")?,
        remaining: row.get("remaining")?,
        lapsed: row.get("lapsed")?,
        expires_at: row.get("expires_at")?,
        note: row.get("note")?,
    })
}

/// The grants of an account that expire: those with credits left first, in the order in which tasks spend them.
pub(super) fn list(connection: &Connection, account_id: Id, limit: u32) -> rusqlite::Result<Vec<ExpiringGrant>> {
    connection
        .prepare_cached(
            "SELECT g.*, l.note FROM expiring_grants g LEFT JOIN ledger l ON l.id = g.entry_id
             WHERE g.account_id = ?1 ORDER BY g.remaining = 0, g.expires_at, g.entry_id LIMIT ?2",
        )?
        .query_map(params![account_id, limit], expiring_grant)?
        .collect()
}
