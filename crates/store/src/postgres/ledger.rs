//! The sweep for grants that have expired.

use super::connection::{Database, Transaction};
use crate::failure::{Done, Failure};
use crate::{Result, driver, ledger};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Ends the grants that have expired, account by account, so that one whose rows are damaged or locked delays no other.
pub(super) async fn lapse(database: &Database) -> Result<usize> {
    let due = "SELECT DISTINCT account_id FROM expiring_grants WHERE lapsed IS NULL AND expires_at <= $1";
    let now = database.now();
    let mut all = 0;
    for row in database.write(due, &[&now]).await? {
        let account_id: Id = row.try_get(0)?;
        let end = async |begun: &Transaction<'_>| {
            end_grants(&driver::Transaction::Postgres(database, begun), account_id, now).await
        };
        match database.transaction(end).await {
            Ok(lapsed) => all += lapsed,
            Err(Failure::Busy(error) | Failure::Deadlock(error) | Failure::Refused(error)) => {
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

/// Ends the grants of an account that have expired. Skips an account that another transaction has locked.
async fn end_grants(begun: &driver::Transaction<'_>, account_id: Id, now: Timestamp) -> Done<usize> {
    let lock = "SELECT 1 FROM accounts WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED";
    if begun.query_opt(lock, &[&account_id]).await?.is_none() {
        return Ok(0);
    }
    let expired = "SELECT entry_id, remaining, expires_at FROM expiring_grants
        WHERE account_id = $1 AND lapsed IS NULL AND expires_at <= $2 ORDER BY expires_at, entry_id";
    let grants = begun.list(expired, &[&account_id, &now], ledger::grant).await?;
    ledger::end_grants(begun, account_id, grants, now).await
}
