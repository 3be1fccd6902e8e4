//! Credits: what `domain::ledger` decides is loaded and written here.
//!
//! The balance of an account is that of its newest ledger entry. Its row in `accounts` is the lock on its credits and
//! never changes with them, so no transaction leaves dead tuples there. A statement that comes after [`lock`] sees
//! everything that was committed before.

use tokio::try_join;
use tokio_postgres::Row;

use super::connection::{Database, Parameter, Transaction};
use super::deliveries;
use crate::failure::Failure;
use crate::ledger::{NewEntry, from_json};
use crate::{Result, StoreError};
use tintype_domain::event::{self, EventType};
use tintype_domain::ledger::{self, Debit, Grant, Holding, Lapse, Part, REFUND_LIFE, Refund, Returned};
use tintype_domain::model::{EntryKind, ExpiringGrant, Id};
use tintype_system::clock::Timestamp;

type Done<T = ()> = std::result::Result<T, Failure>;

/// Inserts an entry and returns its id; `balance` is the balance of the account after it.
pub(super) async fn record(
    begun: &Transaction<'_>,
    entry: &NewEntry<'_>,
    account_id: Id,
    balance: i64,
    now: Timestamp,
) -> Done<i64> {
    let NewEntry { kind, amount, task_id, key_id, grant_id, note } = entry;
    let sql = "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id, note, key_id, grant_id)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id";
    let kind = kind.as_str();
    let parameters: [Parameter<'_>; 9] = [&account_id, &kind, amount, &balance, &now, task_id, note, key_id, grant_id];
    Ok(begun.query_one(sql, &parameters).await?.try_get(0)?)
}

/// Locks an account, so that nobody else charges or refunds it until the commit; `false` if there is no such account.
pub(super) async fn lock(begun: &Transaction<'_>, account_id: Id) -> Done<bool> {
    let sql = "SELECT 1 FROM accounts WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE";
    Ok(begun.query_opt(sql, &[&account_id]).await?.is_some())
}

/// [`lock`], also of a deleted account.
pub(super) async fn lock_any(begun: &Transaction<'_>, account_id: Id) -> Done {
    begun.execute("SELECT 1 FROM accounts WHERE id = $1 FOR NO KEY UPDATE", &[&account_id]).await?;
    Ok(())
}

/// The account $1, with its unfinished tasks from the id $2 on, counted up to $3. They are two ranges of an index.
const ACCOUNT: &str = "
    SELECT a.low_balance, newest.id > (SELECT last_value FROM ledger_id_seq) AS is_behind,
        coalesce(newest.balance, 0) AS balance,
        (SELECT count(*) FROM (
            (SELECT 1 FROM queue
             WHERE account_id = $1 AND engine = '' AND task_id COLLATE \"POSIX\" >= $2 LIMIT $3::bigint)
            UNION ALL
            (SELECT 1 FROM queue
             WHERE account_id = $1 AND engine > '' AND task_id COLLATE \"POSIX\" >= $2 LIMIT $3::bigint)
            LIMIT $3::bigint) AS counted) AS unfinished
    FROM accounts a LEFT JOIN LATERAL (
        SELECT id, balance FROM ledger WHERE account_id = $1 ORDER BY id DESC LIMIT 1) AS newest ON true
    WHERE a.id = $1";

const GRANTS: &str = "
    SELECT entry_id, remaining, expires_at FROM expiring_grants
    WHERE account_id = $1 AND lapsed IS NULL AND remaining > 0 ORDER BY expires_at, entry_id";

/// The credits of an account that is locked. Unfinished tasks are counted up to `most`.
pub(super) async fn holding(database: &Database, begun: &Transaction<'_>, account_id: Id, most: u32) -> Done<Holding> {
    let (horizon, most) = (database.horizon(), i64::from(most));
    let account = async { Ok::<_, Failure>(begun.query_one(ACCOUNT, &[&account_id, &horizon, &most]).await?) };
    let grants = async { Ok(begun.query(GRANTS, &[&account_id]).await?) };
    let (account, grants) = try_join!(biased; account, grants)?;
    // Logical replication, for one, copies no sequence.
    if account.try_get::<_, Option<bool>>("is_behind")?.unwrap_or(false) {
        let advice = "set it to the highest id of the ledger";
        return Err(
            StoreError::Other(format!("the sequence ledger_id_seq is behind the ledger: {advice}").into()).into()
        );
    }
    let unfinished: i64 = account.try_get("unfinished")?;
    Ok(Holding {
        balance: account.try_get("balance")?,
        unfinished: u32::try_from(unfinished).unwrap_or(u32::MAX),
        low_balance: account.try_get("low_balance")?,
        grants: grants.iter().map(grant).collect::<Result<_>>()?,
    })
}

fn grant(row: &Row) -> Result<Grant> {
    let (id, remaining) = (row.try_get("entry_id")?, row.try_get("remaining")?);
    Ok(Grant { id, remaining, expires_at: row.try_get("expires_at")? })
}

/// Writes a debit and its entry, and queues `credits.low` webhooks if the balance is low now.
pub(super) async fn debit(
    database: &Database,
    begun: &Transaction<'_>,
    account_id: Id,
    debit: &Debit,
    entry: &NewEntry<'_>,
    now: Timestamp,
) -> Done {
    let spent: Vec<Part> = debit.parts.iter().map(|part| Part { credits: -part.credits, ..*part }).collect();
    let spend = add_to_grants(begun, &spent);
    let (_, ()) = try_join!(biased; record(begun, entry, account_id, debit.balance, now), spend)?;
    tell_if_low(database, begun, account_id, debit.low, debit.balance, now).await
}

async fn add_to_grants(begun: &Transaction<'_>, parts: &[Part]) -> Done {
    let sql = "UPDATE expiring_grants SET remaining = remaining + $2 WHERE entry_id = $1";
    for Part { grant, credits } in parts {
        begun.execute(sql, &[grant, credits]).await?;
    }
    Ok(())
}

/// Adds a grant that expires, which `entry_id` wrote into the ledger.
pub(super) async fn add_grant(
    begun: &Transaction<'_>,
    entry_id: i64,
    account_id: Id,
    amount: i64,
    expires_at: Timestamp,
) -> Done {
    let sql = "INSERT INTO expiring_grants (entry_id, account_id, amount, expires_at, remaining)
        VALUES ($1, $2, $3, $4, $3)";
    begun.execute(sql, &[&entry_id, &account_id, &amount, &expires_at]).await?;
    Ok(())
}

/// The state of the grants $2 of the account $1 at the time $3.
const STATE: &str = "
    SELECT coalesce(g.lapsed IS NULL AND g.expires_at > $3, false) AS is_live,
        coalesce(l.kind <> 'grant', true) AS is_extension
    FROM unnest($2::bigint[]) WITH ORDINALITY AS part (id, place)
    LEFT JOIN expiring_grants g ON g.entry_id = part.id
    LEFT JOIN ledger l ON l.account_id = $1 AND l.id = part.id ORDER BY place";

/// Gives credits back to the grants from which `taken` says they came. `entry_id` is the entry of the refund.
pub(super) async fn give_back(
    begun: &Transaction<'_>,
    account_id: Id,
    entry_id: i64,
    task_id: Id,
    taken: &str,
    now: Timestamp,
) -> Done {
    let parts = from_json(taken).map_err(|error| StoreError::Other(format!("queue.taken: {error}").into()))?;
    let grants: Vec<i64> = parts.iter().map(|part| part.grant).collect();
    let rows = begun.query(STATE, &[&account_id, &grants, &now]).await?;
    // In the order of the parts.
    let returned = parts.into_iter().zip(&rows).map(|(part, row)| {
        Ok(Returned { part, is_live: row.try_get("is_live")?, is_extension: row.try_get("is_extension")? })
    });
    let Refund { returned, extended, expired } = ledger::give_back(&returned.collect::<Done<Vec<_>>>()?);
    add_to_grants(begun, &returned).await?;
    if extended > 0 {
        add_grant(begun, entry_id, account_id, extended, now.saturating_add(REFUND_LIFE)).await?;
    }
    if expired > 0 {
        // The entry of the refund may have a grant already.
        let charge = "SELECT id FROM ledger WHERE task_id = $1 AND kind = 'charge'";
        // A damaged ledger, which must not look like a broken connection: that would stop the sweeps of other accounts.
        let missing = || StoreError::Other(format!("task {task_id} was never charged").into());
        let charge = begun.query_opt(charge, &[&task_id]).await?.ok_or_else(missing)?.try_get(0)?;
        add_grant(begun, charge, account_id, expired, now).await?;
    }
    Ok(())
}

/// Tells the endpoints of an account that its balance has fallen below its threshold.
async fn tell_if_low(
    database: &Database,
    begun: &Transaction<'_>,
    account_id: Id,
    low: Option<i64>,
    balance: i64,
    now: Timestamp,
) -> Done {
    let Some(threshold) = low else { return Ok(()) };
    let data = event::of_low_credits(balance, threshold).to_string();
    deliveries::tell(database, begun, account_id, EventType::CreditsLow, &data, now).await
}

/// Ends the grants that have expired, account by account, so that one whose rows are damaged or locked delays no other.
pub(super) async fn lapse(database: &Database) -> Result<usize> {
    let due = "SELECT DISTINCT account_id FROM expiring_grants WHERE lapsed IS NULL AND expires_at <= $1";
    let now = database.now();
    let mut all = 0;
    for row in database.write(due, &[&now]).await? {
        let account_id: Id = row.try_get(0)?;
        match database.transaction(async |begun| end_grants(database, begun, account_id, now).await).await {
            Ok(lapsed) => all += lapsed,
            Err(Failure::Busy(error) | Failure::Refused(error)) => {
                tracing::error!(
                    account = %account_id, %error,
                    "cannot end the expired grants of an account; see `tintype credits audit`"
                );
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(all)
}

/// Ends the grants of an account that have expired. Of each that has credits left, an entry takes them from the
/// balance. Skips an account that another transaction has locked.
async fn end_grants(database: &Database, begun: &Transaction<'_>, account_id: Id, now: Timestamp) -> Done<usize> {
    let lock = "SELECT 1 FROM accounts WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED";
    if begun.query_opt(lock, &[&account_id]).await?.is_none() {
        return Ok(0);
    }
    let expired = "SELECT entry_id, remaining, expires_at FROM expiring_grants
        WHERE account_id = $1 AND lapsed IS NULL AND expires_at <= $2 ORDER BY expires_at, entry_id";
    let expired = begun.query(expired, &[&account_id, &now]).await?;
    let grants: Vec<Grant> = expired.iter().map(grant).collect::<Result<_>>()?;
    let account = Holding { grants, ..holding(database, begun, account_id, 0).await? };
    let lapses = account.lapse(now);
    for Lapse { part, balance, low } in &lapses {
        let end = "UPDATE expiring_grants SET lapsed = remaining, remaining = 0 WHERE entry_id = $1";
        begun.execute(end, &[&part.grant]).await?;
        if part.credits > 0 {
            let expiry = NewEntry { grant_id: Some(part.grant), ..NewEntry::new(EntryKind::Expiry, -part.credits) };
            record(begun, &expiry, account_id, *balance, now).await?;
            tell_if_low(database, begun, account_id, *low, *balance, now).await?;
        }
    }
    Ok(lapses.len())
}

fn expiring_grant(row: &Row) -> Result<ExpiringGrant> {
    Ok(ExpiringGrant {
        entry_id: row.try_get("entry_id")?,
        amount: row.try_get("amount")?,
        remaining: row.try_get("remaining")?,
        lapsed: row.try_get("lapsed")?,
        expires_at: row.try_get("expires_at")?,
        note: row.try_get("note")?,
    })
}

/// The grants of an account that expire: those with credits left first, in the order in which tasks spend them.
pub(super) async fn list(database: &Database, account_id: Id, limit: u32) -> Result<Vec<ExpiringGrant>> {
    let sql = "SELECT g.entry_id, g.amount, g.remaining, g.lapsed, g.expires_at, l.note
        FROM expiring_grants g LEFT JOIN ledger l ON l.account_id = g.account_id AND l.id = g.entry_id
        WHERE g.account_id = $1 ORDER BY g.remaining = 0, g.expires_at, g.entry_id LIMIT $2";
    let rows = database.read(sql, &[&account_id, &i64::from(limit)]).await?;
    rows.iter().map(expiring_grant).collect()
}
