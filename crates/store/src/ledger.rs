//! Credits: what `domain::ledger` decides is loaded and written here.
//!
//! The balance is in the newest ledger entry. The account's row is the lock on its credits and never changes with them.
//! A statement after [`lock`] sees everything that was committed before.

use tokio::try_join;

use super::driver::{Dialect, List, Parameter, Store, Transaction, from_row};
use super::{Result, StoreError, deliveries};
use crate::failure::DbResult;
use tintype_domain::event::{self, EventType};
use tintype_domain::ledger::{self, AccountCredits, Debit, Grant, Lapse, Part, REFUND_LIFE, Refund, Returned};
use tintype_domain::model::{EntryKind, ExpiringGrant, Id};
use tintype_system::clock::Timestamp;

/// A ledger entry to insert.
#[derive(Debug, Clone)]
pub struct NewEntry<'a> {
    pub kind: EntryKind,
    pub amount: i64,
    pub task_id: Option<Id>,
    /// The key of the task.
    pub key_id: Option<Id>,
    /// The grant that an expiry ends.
    pub grant_id: Option<i64>,
    pub note: Option<&'a str>,
}

impl NewEntry<'_> {
    /// An entry without a task, a grant or a note.
    pub fn new(kind: EntryKind, amount: i64) -> Self {
        Self { kind, amount, task_id: None, key_id: None, grant_id: None, note: None }
    }
}

/// Locks an account until the commit, so that no other transaction charges or refunds it, or adds anything of which
/// there is a limit; `false` if the account does not exist or is deleted. Only the statements after this one
/// see all that was committed before the lock.
pub(crate) async fn lock(tx: &Transaction<'_>, account_id: Id) -> DbResult<bool> {
    let sql = "SELECT 1 FROM accounts WHERE id = $1 AND deleted_at IS NULL";
    Ok(tx.lock(sql, &[&account_id]).await?.is_some())
}

/// [`lock`], also of a deleted account.
pub(crate) async fn lock_any(tx: &Transaction<'_>, account_id: Id) -> DbResult {
    tx.lock("SELECT 1 FROM accounts WHERE id = $1", &[&account_id]).await.map(drop)
}

/// The account $1, with its unfinished tasks, counted up to $2.
const ACCOUNT_ON_SQLITE: &str = "
    SELECT low_balance, FALSE AS is_behind,
        coalesce((SELECT balance FROM ledger WHERE account_id = $1 ORDER BY id DESC LIMIT 1), 0) AS balance,
        (SELECT count(*) FROM (SELECT 1 FROM queue WHERE account_id = $1 LIMIT $2)) AS unfinished
    FROM accounts WHERE id = $1";

/// The same on PostgreSQL, with tasks from the id $3 on. They are two ranges of an index.
const ACCOUNT_ON_POSTGRES: &str = "
    SELECT a.low_balance, coalesce(newest.id > (SELECT last_value FROM ledger_id_seq), false) AS is_behind,
        coalesce(newest.balance, 0) AS balance,
        (SELECT count(*) FROM (
            (SELECT 1 FROM queue
             WHERE account_id = $1 AND engine = '' AND task_id COLLATE \"POSIX\" >= $3 LIMIT $2::bigint)
            UNION ALL
            (SELECT 1 FROM queue
             WHERE account_id = $1 AND engine > '' AND task_id COLLATE \"POSIX\" >= $3 LIMIT $2::bigint)
            LIMIT $2::bigint) AS counted) AS unfinished
    FROM accounts a LEFT JOIN LATERAL (
        SELECT id, balance FROM ledger WHERE account_id = $1 ORDER BY id DESC LIMIT 1) AS newest ON true
    WHERE a.id = $1";

const GRANTS: &str = "
    SELECT entry_id, remaining, expires_at FROM expiring_grants
    WHERE account_id = $1 AND lapsed IS NULL AND remaining > 0 ORDER BY expires_at, entry_id";

/// The credits of an account that is locked, and its unfinished tasks, counted up to `most`.
pub(crate) async fn load_credits(tx: &Transaction<'_>, account_id: Id, most: u32) -> DbResult<AccountCredits> {
    let account = async {
        match tx {
            Transaction::Sqlite(..) => tx.query_opt(ACCOUNT_ON_SQLITE, &[&account_id, &most]).await,
            Transaction::Postgres(database, ..) => {
                tx.query_opt(ACCOUNT_ON_POSTGRES, &[&account_id, &most, &database.horizon()]).await
            }
        }
    };
    let grants = async { tx.list(GRANTS, &[&account_id], grant).await };
    let (account, grants) = try_join!(biased; account, grants)?;
    let account = account.ok_or_else(|| StoreError::other(format!("there is no account {account_id}")))?;
    // Logical replication, for one, copies no sequence.
    if account.get("is_behind")? {
        let advice = "set it to the highest id of the ledger";
        return Err(StoreError::other(format!("the sequence ledger_id_seq is behind the ledger: {advice}")).into());
    }
    Ok(AccountCredits {
        balance: account.get("balance")?,
        unfinished: account.get("unfinished")?,
        low_balance: account.get("low_balance")?,
        grants,
    })
}

from_row! { fn expiring_grant(row) -> ExpiringGrant { entry_id, amount, remaining, lapsed, expires_at, note } }

from_row! { pub(crate) fn grant(row) -> Grant { id: row.get("entry_id")?, remaining, expires_at } }

/// Inserts an entry and returns its id; `balance` is the balance of the account after it.
pub(crate) async fn record(
    tx: &Transaction<'_>,
    entry: &NewEntry<'_>,
    account_id: Id,
    balance: i64,
    now: Timestamp,
) -> DbResult<i64> {
    let NewEntry { kind, amount, task_id, key_id, grant_id, note } = entry;
    let sql = "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id, note, key_id, grant_id)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id";
    let parameters: [&dyn Parameter; 9] = [&account_id, kind, amount, &balance, &now, task_id, note, key_id, grant_id];
    let added = tx.find(sql, &parameters, |row| row.get("id")).await?;
    Ok(added.ok_or_else(|| StoreError::other("the ledger took no entry"))?)
}

/// Grants a new account its first credits, if any.
pub(crate) async fn open(tx: &Transaction<'_>, account_id: Id, credits: i64, note: &str) -> DbResult {
    if credits != 0 {
        let opening = NewEntry { note: Some(note), ..NewEntry::new(EntryKind::Grant, credits) };
        record(tx, &opening, account_id, credits, tx.now()).await?;
    }
    Ok(())
}

/// Writes a debit and its entry, and queues `credits.low` webhooks if the balance is low now.
pub(crate) async fn debit(
    tx: &Transaction<'_>,
    account_id: Id,
    debit: &Debit,
    entry: &NewEntry<'_>,
    now: Timestamp,
) -> DbResult {
    let spent: Vec<Part> = debit.parts.iter().map(|part| Part { credits: -part.credits, ..*part }).collect();
    let spend = add_to_grants(tx, &spent);
    let (_, ()) = try_join!(biased; record(tx, entry, account_id, debit.balance, now), spend)?;
    queue_low_credits_event(tx, account_id, debit.low, debit.balance, now).await
}

async fn add_to_grants(tx: &Transaction<'_>, parts: &[Part]) -> DbResult {
    let sql = "UPDATE expiring_grants SET remaining = remaining + $2 WHERE entry_id = $1";
    for Part { grant, credits } in parts {
        tx.execute(sql, &[grant, credits]).await?;
    }
    Ok(())
}

/// Adds a grant that expires, which `entry_id` wrote into the ledger.
pub(crate) async fn add_grant(
    tx: &Transaction<'_>,
    entry_id: i64,
    account_id: Id,
    amount: i64,
    expires_at: Timestamp,
) -> DbResult {
    let sql = "INSERT INTO expiring_grants (entry_id, account_id, amount, expires_at, remaining)
        VALUES ($1, $2, $3, $4, $3)";
    tx.execute(sql, &[&entry_id, &account_id, &amount, &expires_at]).await.map(drop)
}

/// The key that was charged for the task, which also gets the refund.
pub(crate) async fn charged_key(tx: &Transaction<'_>, task_id: Id) -> DbResult<Option<Id>> {
    let sql = "SELECT key_id FROM ledger WHERE task_id = $1 AND kind = 'charge'";
    Ok(tx.find(sql, &[&task_id], |row| row.get("key_id")).await?.flatten())
}

/// Writes a failed task's refund, and returns the credits to the grants that `taken` lists.
pub(crate) async fn refund(
    tx: &Transaction<'_>,
    account_id: Id,
    account: &AccountCredits,
    entry: &NewEntry<'_>,
    taken: Option<&str>,
    now: Timestamp,
) -> DbResult {
    let balance = account.refund(entry.amount).map_err(StoreError::other)?;
    let entry_id = record(tx, entry, account_id, balance, now).await?;
    if let Some((taken, task_id)) = taken.zip(entry.task_id) {
        return_to_grants(tx, account_id, entry_id, task_id, taken, now).await?;
    }
    Ok(())
}

/// The state of the grants $2 of the account $1 at the time $3.
fn state(tx: &Transaction<'_>) -> String {
    let parts = tx.either("json_each($2)", "unnest($2::bigint[]) WITH ORDINALITY AS part (value, key)");
    format!(
        "SELECT coalesce(g.lapsed IS NULL AND g.expires_at > $3, FALSE) AS is_live,
             coalesce(l.kind <> 'grant', TRUE) AS is_extension
         FROM {parts} LEFT JOIN expiring_grants g ON g.entry_id = value
         LEFT JOIN ledger l ON l.account_id = $1 AND l.id = value ORDER BY key"
    )
}

async fn return_to_grants(
    tx: &Transaction<'_>,
    account_id: Id,
    entry_id: i64,
    task_id: Id,
    taken: &str,
    now: Timestamp,
) -> DbResult {
    // As the submit has written it, unless the row is damaged.
    let invalid = |error| StoreError::other(format!("queue.taken: {error}"));
    let parts: Vec<(i64, i64)> = serde_json::from_str(taken).map_err(invalid)?;
    let grants: Vec<i64> = parts.iter().map(|(grant, _)| *grant).collect();
    let rows = tx.query(&state(tx), &[&account_id, &List(&grants), &now]).await?;
    // In the order of the parts.
    let returned = parts.into_iter().zip(&rows).map(|((grant, credits), row)| {
        let part = Part { grant, credits };
        Ok(Returned { part, is_live: row.get("is_live")?, is_extension: row.get("is_extension")? })
    });
    let Refund { returned, extended, expired } = ledger::return_to_grants(&returned.collect::<DbResult<Vec<_>>>()?);
    add_to_grants(tx, &returned).await?;
    if extended > 0 {
        add_grant(tx, entry_id, account_id, extended, now.saturating_add(REFUND_LIFE)).await?;
    }
    if expired > 0 {
        // The entry of the refund may have a grant already.
        let sql = "SELECT id FROM ledger WHERE task_id = $1 AND kind = 'charge'";
        // A damaged ledger, which must not look like a broken connection: that would stop the sweeps of other accounts.
        let missing = || StoreError::other(format!("task {task_id} was never charged"));
        let charge = tx.find(sql, &[&task_id], |row| row.get("id")).await?.ok_or_else(missing)?;
        add_grant(tx, charge, account_id, expired, now).await?;
    }
    Ok(())
}

/// Queues a `credits.low` event if the balance of an account has fallen below its threshold.
async fn queue_low_credits_event(
    tx: &Transaction<'_>,
    account_id: Id,
    low: Option<i64>,
    balance: i64,
    now: Timestamp,
) -> DbResult {
    let Some(threshold) = low else { return Ok(()) };
    let data = event::of_low_credits(balance, threshold).to_string();
    deliveries::queue_event(tx, account_id, EventType::CreditsLow, &data, now).await
}

/// Ends grants of a locked account that have expired, and returns their number. Of each that has credits left, an entry
/// takes them from the balance.
pub(crate) async fn end_grants(
    tx: &Transaction<'_>,
    account_id: Id,
    grants: Vec<Grant>,
    now: Timestamp,
) -> DbResult<usize> {
    let account = AccountCredits { grants, ..load_credits(tx, account_id, 0).await? };
    let lapses = account.lapse(now);
    for Lapse { part, balance, low } in &lapses {
        let end = "UPDATE expiring_grants SET lapsed = remaining, remaining = 0 WHERE entry_id = $1";
        tx.execute(end, &[&part.grant]).await?;
        if part.credits > 0 {
            let expiry = NewEntry { grant_id: Some(part.grant), ..NewEntry::new(EntryKind::Expiry, -part.credits) };
            record(tx, &expiry, account_id, *balance, now).await?;
            queue_low_credits_event(tx, account_id, *low, *balance, now).await?;
        }
    }
    Ok(lapses.len())
}

impl Store {
    /// An account's grants that expire or have lapsed: grants with credits left first, in the order in which tasks
    /// spend them.
    pub async fn expiring_grants(&self, account_id: Id, limit: u32) -> Result<Vec<ExpiringGrant>> {
        let sql = "SELECT g.entry_id, g.amount, g.remaining, g.lapsed, g.expires_at, l.note
            FROM expiring_grants g LEFT JOIN ledger l ON l.account_id = g.account_id AND l.id = g.entry_id
            WHERE g.account_id = $1 ORDER BY g.remaining = 0, g.expires_at, g.entry_id LIMIT $2";
        self.driver.list(sql, &[&account_id, &limit], expiring_grant).await
    }
}
