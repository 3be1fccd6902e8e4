//! Credits: what `domain::ledger` decides is loaded and written here.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::deliveries;
use super::writer::{Writing, in_savepoint};
use crate::ledger::{NewEntry, from_json};
use tintype_domain::event::{self, EventType};
use tintype_domain::ledger::{self, Debit, Grant, Holding, Lapse, Part, REFUND_LIFE, Refund, Returned};
use tintype_domain::model::{EntryKind, ExpiringGrant, Id};
use tintype_system::clock::Timestamp;

/// Grants that lapse in one transaction, so that the writes of callers can run in between.
pub(super) const SWEEP_BATCH: usize = 256;

/// Inserts an entry and returns its id; `balance` is the balance of the account after it.
pub(super) fn record(
    connection: &Connection,
    entry: &NewEntry<'_>,
    account_id: Id,
    balance: i64,
    now: Timestamp,
) -> rusqlite::Result<i64> {
    let NewEntry { kind, amount, task_id, key_id, grant_id, note } = entry;
    connection
        .prepare_cached(
            "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id, note, key_id, grant_id)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .insert(params![account_id, kind.as_str(), amount, balance, now, task_id, note, key_id, grant_id])
}

/// The credits of an account; `None` if there is no such account.
pub(super) fn holding(connection: &Connection, account_id: Id) -> rusqlite::Result<Option<Holding>> {
    let account = connection
        .prepare_cached("SELECT balance, unfinished, low_balance FROM accounts WHERE id = ?1 AND deleted_at IS NULL")?
        .query_row([account_id], account)
        .optional()?;
    let Some(account) = account else { return Ok(None) };
    let grants = connection
        .prepare_cached(
            "SELECT entry_id, remaining, expires_at FROM expiring_grants
             WHERE account_id = ?1 AND lapsed IS NULL AND remaining > 0 ORDER BY expires_at, entry_id",
        )?
        .query_map([account_id], |row| Ok(Grant { id: row.get(0)?, remaining: row.get(1)?, expires_at: row.get(2)? }))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Some(Holding { grants, ..account }))
}

/// [`holding`] for what does not depend on grants, also of a deleted account.
pub(super) fn without_grants(connection: &Connection, account_id: Id) -> rusqlite::Result<Holding> {
    connection
        .prepare_cached("SELECT balance, unfinished, low_balance FROM accounts WHERE id = ?1")?
        .query_row([account_id], account)
}

fn account(row: &Row<'_>) -> rusqlite::Result<Holding> {
    Ok(Holding { balance: row.get(0)?, unfinished: row.get(1)?, low_balance: row.get(2)?, grants: Vec::new() })
}

/// Writes a debit and its entry, and queues `credits.low` webhooks if the balance is low now.
pub(super) fn debit(
    writing: &Writing,
    account_id: Id,
    debit: &Debit,
    entry: &NewEntry<'_>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let connection = &writing.connection;
    set_balance(connection, account_id, debit.balance)?;
    for Part { grant, credits } in &debit.parts {
        add_to_grant(connection, *grant, -credits)?;
    }
    record(connection, entry, account_id, debit.balance, now)?;
    tell_if_low(writing, account_id, debit.low, debit.balance, now)
}

pub(super) fn set_balance(connection: &Connection, account_id: Id, balance: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE accounts SET balance = ?2 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![account_id, balance]).map(drop)
}

fn add_to_grant(connection: &Connection, grant: i64, credits: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE expiring_grants SET remaining = remaining + ?2 WHERE entry_id = ?1";
    connection.prepare_cached(sql)?.execute(params![grant, credits]).map(drop)
}

/// Adds a grant that expires, which `entry_id` wrote into the ledger.
pub(super) fn add_grant(
    connection: &Connection,
    entry_id: i64,
    account_id: Id,
    amount: i64,
    expires_at: Timestamp,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO expiring_grants (entry_id, account_id, amount, expires_at, remaining)
             VALUES (?1, ?2, ?3, ?4, ?3)",
        )?
        .execute(params![entry_id, account_id, amount, expires_at])?;
    Ok(())
}

/// Gives credits back to the grants from which `taken` says they came. `entry_id` is the entry of the refund.
pub(super) fn give_back(
    connection: &Connection,
    account_id: Id,
    entry_id: i64,
    task_id: Id,
    taken: &str,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let parts = from_json(taken).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let mut state = connection.prepare_cached(
        "SELECT coalesce((SELECT lapsed IS NULL AND expires_at > ?2 FROM expiring_grants WHERE entry_id = ?1), false),
             coalesce((SELECT kind <> 'grant' FROM ledger WHERE id = ?1), true)",
    )?;
    let mut returned = Vec::new();
    for part in parts {
        returned.push(state.query_row(params![part.grant, now], |row| {
            Ok(Returned { part, is_live: row.get(0)?, is_extension: row.get(1)? })
        })?);
    }
    let Refund { returned, extended, expired } = ledger::give_back(&returned);
    for Part { grant, credits } in returned {
        add_to_grant(connection, grant, credits)?;
    }
    if extended > 0 {
        add_grant(connection, entry_id, account_id, extended, now.saturating_add(REFUND_LIFE))?;
    }
    if expired > 0 {
        // The entry of the refund may have a grant already.
        let charge = connection
            .prepare_cached("SELECT id FROM ledger WHERE task_id = ?1 AND kind = 'charge'")?
            .query_row([task_id], |row| row.get(0))?;
        add_grant(connection, charge, account_id, expired, now)?;
    }
    Ok(())
}

/// Tells the endpoints of an account that its balance has fallen below its threshold.
fn tell_if_low(
    writing: &Writing,
    account_id: Id,
    low: Option<i64>,
    balance: i64,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let Some(threshold) = low else { return Ok(()) };
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

/// Ends up to [`SWEEP_BATCH`] grants that have expired, after the first `skipped`. Of each that has credits left, an
/// entry takes them from the balance.
pub(super) fn lapse(writing: &mut Writing, skipped: usize) -> rusqlite::Result<Swept> {
    let now = writing.clock.now();
    let due: Vec<(Id, Grant)> = writing
        .connection
        .prepare_cached(
            "SELECT account_id, entry_id, remaining, expires_at FROM expiring_grants
             WHERE lapsed IS NULL AND expires_at <= ?1 ORDER BY expires_at, entry_id LIMIT ?2 OFFSET ?3",
        )?
        .query_map(params![now, SWEEP_BATCH, skipped], |row| {
            Ok((row.get(0)?, Grant { id: row.get(1)?, remaining: row.get(2)?, expires_at: row.get(3)? }))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut swept = Swept::default();
    for (account_id, grant) in due {
        match in_savepoint(writing, |writing| end(writing, account_id, grant, now)) {
            Ok(()) => swept.lapsed += 1,
            Err(error) if writing.connection.is_autocommit() => return Err(error),
            Err(error) => {
                swept.failed += 1;
                tracing::error!(
                    account = %account_id, grant = grant.id, %error,
                    "cannot end an expired grant; see `tintype credits audit`"
                );
            }
        }
    }
    Ok(swept)
}

fn end(writing: &Writing, account_id: Id, grant: Grant, now: Timestamp) -> rusqlite::Result<()> {
    let connection = &writing.connection;
    let account = Holding { grants: vec![grant], ..without_grants(connection, account_id)? };
    for Lapse { part, balance, low } in account.lapse(now) {
        connection
            .prepare_cached("UPDATE expiring_grants SET lapsed = remaining, remaining = 0 WHERE entry_id = ?1")?
            .execute([part.grant])?;
        if part.credits > 0 {
            set_balance(connection, account_id, balance)?;
            let expiry = NewEntry { grant_id: Some(part.grant), ..NewEntry::new(EntryKind::Expiry, -part.credits) };
            record(connection, &expiry, account_id, balance, now)?;
            tell_if_low(writing, account_id, low, balance, now)?;
        }
    }
    Ok(())
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
