//! Rows of accounts and the ledger, for reports.

use tokio_postgres::Row;

use super::columns::word;
use crate::Result;
use tintype_domain::model::{Id, LedgerEntry, TaskId};
use tintype_system::clock::Timestamp;

/// The columns of an account.
pub(super) const ACCOUNT_COLUMNS: &str = "id, name, coalesce(
        (SELECT balance FROM ledger WHERE account_id = accounts.id ORDER BY ledger.id DESC LIMIT 1), 0) AS balance,
    low_balance, admin, disabled_at, deleted_at";

pub(super) fn entry(row: &Row) -> Result<LedgerEntry> {
    Ok(LedgerEntry {
        id: row.try_get("id")?,
        kind: word(row, "kind")?,
        amount: row.try_get("amount")?,
        balance: row.try_get("balance")?,
        task_id: row.try_get::<_, Option<Id>>("task_id")?.map(TaskId),
        note: row.try_get("note")?,
        created_at: row.try_get::<_, Timestamp>("created_at")?,
    })
}
