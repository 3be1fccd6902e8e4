//! Credits that expire. They are part of the balance; a row of `expiring_grants` says how many of it are left of a grant, and
//! until when. Submits and refunds change them with functions of the migrations 0029 and 0031.

use tokio_postgres::Row;

use super::connection::Database;
use super::failure::Failure;
use crate::domain::model::{ExpiringGrant, Id};
use crate::store::Result;

/// Ends the grants of the account $1 that have expired at the time $2. Of each that has credits left, an entry takes them from
/// the balance. Skips an account that another transaction has locked.
const LAPSE: &str = "
    WITH
    locked AS MATERIALIZED (SELECT id, low_balance FROM accounts WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED),
    -- The function sees all that was committed before the lock, which the snapshot of this statement may not.
    found AS MATERIALIZED (SELECT id, low_balance, tintype_credits(id) AS balance FROM locked),
    -- The lock came before: what another transaction changed meanwhile is read anew.
    ended AS (
        UPDATE expiring_grants g SET lapsed = remaining, remaining = 0
        FROM found WHERE g.account_id = found.id AND g.account_id = $1 AND g.lapsed IS NULL AND g.expires_at <= tintype_now($2)
        RETURNING g.entry_id, g.expires_at, g.lapsed, found.id, found.balance, found.low_balance
    ),
    entered AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, grant_id)
        SELECT id, 'expiry', -lapsed, balance - sum(lapsed) OVER (ORDER BY expires_at, entry_id), tintype_now($2), entry_id
        FROM ended WHERE lapsed > 0 ORDER BY expires_at, entry_id
    )
    SELECT count(*) AS lapsed,
        tintype_tell_if_low(min(id), min(low_balance), sum(lapsed)::bigint, (min(balance) - sum(lapsed))::bigint, tintype_now($2)) AS told
    FROM ended";

/// Ends the grants that have expired, account by account, so that one whose rows are damaged or locked delays no other.
pub(super) async fn lapse(database: &Database) -> Result<usize> {
    let due = "SELECT DISTINCT account_id FROM expiring_grants WHERE lapsed IS NULL AND expires_at <= tintype_now($1)";
    let given = database.given_time();
    let mut all = 0;
    for row in database.write(due, &[&given]).await? {
        let account: &str = row.try_get(0)?;
        match database.write(LAPSE, &[&account, &given]).await {
            Ok(rows) => all += usize::try_from(rows[0].try_get::<_, i64>("lapsed")?).unwrap_or(0),
            Err(Failure::Busy(error) | Failure::Refused(error)) => {
                tracing::error!(account, %error, "cannot end the expired grants of an account; see `tintype credits audit`");
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(all)
}

/// The grants of an account that expire: those with credits left first, in the order in which tasks spend them.
pub(super) async fn list(database: &Database, account_id: Id, limit: u32) -> Result<Vec<ExpiringGrant>> {
    let sql = "SELECT g.entry_id, g.amount, g.remaining, g.lapsed, g.expires_at, l.note
        FROM expiring_grants g LEFT JOIN ledger l ON l.account_id = g.account_id AND l.id = g.entry_id
        WHERE g.account_id = $1 ORDER BY g.remaining = 0, g.expires_at, g.entry_id LIMIT $2";
    let rows = database.read(sql, &[&account_id, &i64::from(limit)]).await?;
    rows.iter().map(expiring_grant).collect()
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
