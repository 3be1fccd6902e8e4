//! Rows of accounts, keys and the ledger, for reports.

use rusqlite::Row;

use super::columns::word;
use tintype_domain::budget::Budget;
use tintype_domain::key::{ApiKey, Suspension};
use tintype_domain::model::{Account, Id, LedgerEntry, TaskId};

pub(super) fn account(row: &Row<'_>) -> rusqlite::Result<Account> {
    Ok(Account {
        id: row.get("id")?,
        name: row.get("name")?,
        credits: row.get("balance")?,
        low_balance: row.get("low_balance")?,
        admin: row.get("admin")?,
        disabled_at: row.get("disabled_at")?,
        deleted_at: row.get("deleted_at")?,
    })
}

/// All columns of keys, and whether the account is disabled.
pub(super) const KEYS: &str =
    "SELECT *, EXISTS (SELECT 1 FROM accounts a WHERE a.id = account_id AND a.disabled_at IS NOT NULL)
    AS account_disabled FROM api_keys";

pub(super) fn api_key(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    let id: Id = row.get("id")?;
    Ok(ApiKey {
        id,
        first_id: row.get("first_id")?,
        account_id: row.get("account_id")?,
        name: row.get("name")?,
        hint: row.get("hint")?,
        submit_rate: row.get("submit_rate")?,
        read_rate: row.get("read_rate")?,
        budget: budget(row)?,
        operator_budget: row.get("operator_budget")?,
        created_at: id.timestamp(),
        expires_at: row.get("expires_at")?,
        disabled: row.get("disabled")?,
        account_disabled: row.get("account_disabled")?,
        revoked_at: row.get("revoked_at")?,
        leaked_at: row.get("leaked_at")?,
        last_used_at: row.get("last_used_at")?,
        suspension: suspension(row)?,
    })
}

pub(super) fn suspension(row: &Row<'_>) -> rusqlite::Result<Option<Suspension>> {
    let Some(at) = row.get("suspended_at")? else { return Ok(None) };
    Ok(Some(Suspension { at, reason: row.get("suspended_for")? }))
}

pub(super) fn ledger_entry(row: &Row<'_>) -> rusqlite::Result<LedgerEntry> {
    Ok(LedgerEntry {
        id: row.get("id")?,
        kind: word(row, "kind")?,
        amount: row.get("amount")?,
        balance: row.get("balance")?,
        task_id: row.get::<_, Option<Id>>("task_id")?.map(TaskId),
        note: row.get("note")?,
        created_at: row.get("created_at")?,
    })
}

/// The budget of a key, if it has one.
fn budget(row: &Row<'_>) -> rusqlite::Result<Option<Budget>> {
    let Some(credits) = row.get("budget")? else { return Ok(None) };
    Ok(Some(Budget { credits, period: word(row, "budget_period")? }))
}
