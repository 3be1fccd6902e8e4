//! Statements for accounts, keys and credits.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, named_params, params};

use super::columns::{of_account, word};
use super::writer::Writing;
use super::{SqliteStore, budgets, endpoints, gallery, key_rotations, ledger, strikes};
use crate::ledger::NewEntry;
use crate::{AccountChange, AccountCreation, Accounts, Deed, KeyChange, Keys, NewKey, Rank, Result, Taking};
use tintype_domain::budget::Allowance;
use tintype_domain::key::{ApiKey, KeyHash, Suspension};
use tintype_domain::ledger::{OPENING_NOTE, check_opening, check_positive};
use tintype_domain::model::{Account, EntryKind, ExpiringGrant, Id, LedgerEntry, TaskId};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

pub(super) fn create(writing: &mut Writing, name: &str, credits: i64, rank: Rank) -> rusqlite::Result<AccountCreation> {
    check_opening(credits).map_err(refused)?;
    let is_first: bool =
        writing.connection.query_row("SELECT NOT EXISTS (SELECT 1 FROM accounts)", [], |row| row.get(0))?;
    let admin = is_first || rank == Rank::Administrator;
    let now = writing.clock.now();
    let id = writing.ids.next(now);
    let added = writing
        .connection
        .prepare_cached(
            "INSERT INTO accounts (id, name, balance, admin) SELECT ?1, ?2, ?3, ?4
             WHERE NOT EXISTS (SELECT 1 FROM accounts WHERE name = ?2 OR id = ?2)",
        )?
        .execute(params![id, name, credits, admin])?;
    if added == 0 {
        return Ok(AccountCreation::NameTaken);
    }
    if credits != 0 {
        let opening = NewEntry { note: Some(OPENING_NOTE), ..NewEntry::new(EntryKind::Grant, credits) };
        ledger::record(&writing.connection, &opening, id, credits, now)?;
    }
    Ok(AccountCreation::Created(Account::new(id, name.to_owned(), credits, admin)))
}

pub(super) fn create_first(
    writing: &mut Writing,
    name: &str,
    credits: i64,
    key: &NewKey,
) -> rusqlite::Result<Option<Account>> {
    let any: bool = writing.connection.query_row("SELECT EXISTS (SELECT 1 FROM accounts)", [], |row| row.get(0))?;
    if any {
        return Ok(None);
    }
    match create(writing, name, credits, Rank::Administrator)? {
        AccountCreation::Created(account) => {
            key_rotations::create_key(writing, account.id, key, None, true)?;
            Ok(Some(account))
        }
        AccountCreation::NameTaken => Ok(None),
    }
}

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

pub(super) fn find(connection: &Connection, name_or_id: &str) -> rusqlite::Result<Option<Account>> {
    // An account name never equals the id of another account, so at most one row matches.
    connection
        .prepare_cached("SELECT * FROM accounts WHERE name = ?1 OR id = ?1")?
        .query_row([name_or_id], account)
        .optional()
}

pub(super) fn list(connection: &Connection) -> rusqlite::Result<Vec<Account>> {
    connection.prepare_cached("SELECT * FROM accounts ORDER BY name")?.query_map([], account)?.collect()
}

pub(super) fn change_account(
    writing: &mut Writing,
    id: Id,
    change: AccountChange,
) -> rusqlite::Result<Option<Account>> {
    let now = writing.clock.now();
    let (disabled_at, deleted_at) = match change {
        AccountChange::Enable => (None, None),
        AccountChange::Disable => (Some(now), None),
        AccountChange::Delete => (Some(now), Some(now)),
        AccountChange::LowBalance(threshold) => {
            let set = "UPDATE accounts SET low_balance = ?2 WHERE id = ?1 AND deleted_at IS NULL";
            writing.connection.prepare_cached(set)?.execute(params![id, threshold])?;
            return find(&writing.connection, id.as_str());
        }
    };
    let changed = writing
        .connection
        .prepare_cached(
            "UPDATE accounts SET disabled_at = iif(?2 IS NULL, NULL, coalesce(disabled_at, ?2)), deleted_at = ?3
             WHERE id = ?1 AND deleted_at IS NULL AND (?3 IS NULL OR unfinished = 0)",
        )?
        .execute(params![id, disabled_at, deleted_at])?;
    if changed > 0 && change == AccountChange::Delete {
        writing
            .connection
            .prepare_cached("UPDATE api_keys SET revoked_at = ?2 WHERE account_id = ?1 AND revoked_at IS NULL")?
            .execute(params![id, now])?;
        writing.connection.prepare_cached("DELETE FROM people WHERE account_id = ?1")?.execute([id])?;
        gallery::forget_account(&writing.connection, id)?;
        endpoints::forget_account(&writing.connection, id)?;
        writing
            .connection
            .prepare_cached("DELETE FROM calls WHERE key_id IN (SELECT id FROM api_keys WHERE account_id = ?1)")?
            .execute([id])?;
        writing
            .connection
            .prepare_cached("UPDATE uploads SET removed_at = ?2 WHERE account_id = ?1 AND removed_at IS NULL")?
            .execute(params![id, now])?;
    }
    find(&writing.connection, id.as_str())
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
        budget: budgets::budget(row)?,
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

pub(super) fn create_key(writing: &mut Writing, account_id: Id, key: &NewKey) -> rusqlite::Result<Option<ApiKey>> {
    let id = writing.ids.next(writing.clock.now());
    writing
        .connection
        .prepare_cached(
            "INSERT INTO api_keys (id, first_id, account_id, hash, name, hint, submit_rate, read_rate, expires_at,
             budget,
                                   budget_period)
             SELECT :id, :id, id, :hash, :name, :hint, :submit_rate, :read_rate, :expires_at, :budget, :period
             FROM accounts WHERE id = :account",
        )?
        .execute(named_params! {
            ":id": id,
            ":account": account_id,
            ":hash": key.hash,
            ":name": key.name,
            ":hint": key.hint,
            ":submit_rate": key.submit_rate,
            ":read_rate": key.read_rate,
            ":expires_at": key.expires_at,
            ":budget": key.budget.map(|budget| budget.credits),
            ":period": key.budget.map(|budget| budget.period.as_str()),
        })?;
    find_key(&writing.connection, id)
}

pub(super) fn find_key(connection: &Connection, id: Id) -> rusqlite::Result<Option<ApiKey>> {
    connection.prepare_cached(&format!("{KEYS} WHERE id = ?1"))?.query_row([id], api_key).optional()
}

pub(super) fn find_key_by_hash(connection: &Connection, hash: &KeyHash) -> rusqlite::Result<Option<ApiKey>> {
    connection.prepare_cached(&format!("{KEYS} WHERE hash = ?1"))?.query_row([hash], api_key).optional()
}

pub(super) fn list_keys(connection: &Connection, account_id: Option<Id>) -> rusqlite::Result<Vec<ApiKey>> {
    connection
        .prepare_cached(&format!("{KEYS} WHERE {} ORDER BY id", of_account(account_id)))?
        .query_map([account_id], api_key)?
        .collect()
}

pub(super) fn change_key(writing: &mut Writing, id: Id, change: KeyChange) -> rusqlite::Result<Option<ApiKey>> {
    let now = writing.clock.now();
    let sql = match change {
        KeyChange::Enable => {
            "UPDATE api_keys SET disabled = 0, suspended_at = NULL, suspended_for = NULL
             WHERE id = ?1 AND ?2 IS NOT NULL"
        }
        KeyChange::Lift => {
            "UPDATE api_keys SET suspended_at = NULL, suspended_for = NULL WHERE id = ?1 AND ?2 IS NOT NULL"
        }
        KeyChange::Disable => "UPDATE api_keys SET disabled = 1 WHERE id = ?1 AND ?2 IS NOT NULL",
        KeyChange::Undisable => "UPDATE api_keys SET disabled = 0 WHERE id = ?1 AND ?2 IS NOT NULL",
        KeyChange::Revoke => "UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1",
        KeyChange::FlagLeaked => "UPDATE api_keys SET leaked_at = coalesce(leaked_at, ?2) WHERE id = ?1",
        KeyChange::Budget(budget) => {
            budgets::set(&writing.connection, id, budget)?;
            return find_key(&writing.connection, id);
        }
    };
    writing.connection.prepare_cached(sql)?.execute(params![id, now])?;
    if matches!(change, KeyChange::Enable | KeyChange::Lift) {
        strikes::forget(&writing.connection, id)?;
    }
    find_key(&writing.connection, id)
}

pub(super) fn touch_keys(writing: &mut Writing, uses: &[(Id, Timestamp)]) -> rusqlite::Result<()> {
    let mut touch = writing.connection.prepare_cached(
        "UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)",
    )?;
    for (id, at) in uses {
        touch.execute(params![id, at])?;
    }
    Ok(())
}

/// A refusal by the rules of credits, for a caller who should have known.
pub(super) fn refused(reason: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(reason))
}

pub(super) fn grant(
    writing: &mut Writing,
    account_id: Id,
    amount: i64,
    note: Option<&str>,
    expires_at: Option<Timestamp>,
) -> rusqlite::Result<Option<i64>> {
    check_positive(amount).map_err(refused)?;
    let connection = &writing.connection;
    let Some(account) = ledger::holding(connection, account_id)? else { return Ok(None) };
    let balance = account.grant(amount).map_err(refused)?;
    ledger::set_balance(connection, account_id, balance)?;
    let granted = NewEntry { note, ..NewEntry::new(EntryKind::Grant, amount) };
    let entry_id = ledger::record(connection, &granted, account_id, balance, writing.clock.now())?;
    if let Some(expires_at) = expires_at {
        ledger::add_grant(connection, entry_id, account_id, amount, expires_at)?;
    }
    Ok(Some(balance))
}

pub(super) fn take(writing: &mut Writing, account_id: Id, amount: i64, note: &str) -> rusqlite::Result<Option<Taking>> {
    check_positive(amount).map_err(refused)?;
    let now = writing.clock.now();
    let Some(account) = ledger::holding(&writing.connection, account_id)? else { return Ok(None) };
    match account.take(amount, now) {
        Err(available) => Ok(Some(Taking::TooFew(available))),
        Ok(debit) => {
            let taken = NewEntry { note: Some(note), ..NewEntry::new(EntryKind::Grant, -amount) };
            ledger::debit(writing, account_id, &debit, &taken, now)?;
            Ok(Some(Taking::Taken(debit.balance)))
        }
    }
}

pub(super) fn history(
    connection: &Connection,
    account_id: Id,
    before: Option<i64>,
    limit: u32,
) -> rusqlite::Result<Vec<LedgerEntry>> {
    connection
        .prepare_cached(
            "SELECT id, kind, amount, balance, task_id, note, created_at FROM ledger
             WHERE account_id = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
        )?
        .query_map(params![account_id, before.unwrap_or(i64::MAX), limit], ledger_entry)?
        .collect()
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

#[async_trait]
impl Accounts for SqliteStore {
    async fn create_account_as(&self, name: &str, credits: i64, rank: Rank) -> Result<AccountCreation> {
        let name = name.to_owned();
        let create = self.recorded(move |writing| create(writing, &name, credits, rank), Deed::of_creation);
        self.write(Effect::CreateAccount, create).await
    }

    async fn create_first_account(&self, name: &str, credits: i64, key: NewKey) -> Result<Option<Account>> {
        let name = name.to_owned();
        let deed = |first: &Option<Account>| Deed::of_creation(&AccountCreation::Created(first.clone()?));
        let create = self.recorded(move |writing| create_first(writing, &name, credits, &key), deed);
        self.write(Effect::CreateFirstAccount, create).await
    }

    async fn find_account(&self, name_or_id: &str) -> Result<Option<Account>> {
        self.read(|connection| find(connection, name_or_id))
    }

    async fn list_accounts(&self) -> Result<Vec<Account>> {
        self.read(list)
    }

    async fn change_account(&self, id: Id, change: AccountChange) -> Result<Option<Account>> {
        let deed = move |account: &Option<Account>| Deed::of_account(change, account.as_ref());
        let change = self.recorded(move |writing| change_account(writing, id, change), deed);
        self.write(Effect::ChangeAccount, change).await
    }

    async fn grant_until(
        &self,
        account_id: Id,
        amount: i64,
        note: Option<&str>,
        expires_at: Option<Timestamp>,
    ) -> Result<Option<i64>> {
        let note = note.map(str::to_owned);
        let noted = note.clone();
        let deed =
            move |balance: &Option<i64>| Deed::of_grant(account_id, amount, noted.as_deref(), expires_at, *balance);
        let grant = move |writing: &mut Writing| grant(writing, account_id, amount, note.as_deref(), expires_at);
        self.write(Effect::Grant, self.recorded(grant, deed)).await
    }

    async fn expiring_grants(&self, account_id: Id, limit: u32) -> Result<Vec<ExpiringGrant>> {
        self.read(|connection| ledger::list(connection, account_id, limit))
    }

    async fn take(&self, account_id: Id, amount: i64, note: &str) -> Result<Option<Taking>> {
        let (note, noted) = (note.to_owned(), note.to_owned());
        let deed = move |taking: &Option<Taking>| Deed::of_taking(account_id, amount, &noted, *taking);
        let take = self.recorded(move |writing| take(writing, account_id, amount, &note), deed);
        self.write(Effect::Grant, take).await
    }

    async fn history(&self, account_id: Id, before: Option<i64>, limit: u32) -> Result<Vec<LedgerEntry>> {
        self.read(|connection| history(connection, account_id, before, limit))
    }
}

#[async_trait]
impl Keys for SqliteStore {
    async fn create_key(&self, account_id: Id, key: NewKey) -> Result<Option<ApiKey>> {
        let deed = |key: &Option<ApiKey>| Deed::of_new_key(key.as_ref());
        let (maker, by_operator) = (self.person(), self.right.is_none());
        let add = move |writing: &mut Writing| key_rotations::create_key(writing, account_id, &key, maker, by_operator);
        let create = self.recorded(add, deed);
        self.write(Effect::CreateKey, create).await
    }

    async fn find_key(&self, id: Id) -> Result<Option<ApiKey>> {
        self.read(|connection| find_key(connection, id))
    }

    async fn find_allowance(&self, id: Id) -> Result<Option<Allowance>> {
        let now = self.clock.now();
        self.read(|connection| budgets::allowance(connection, id, now))
    }

    async fn find_key_by_hash(&self, hash: KeyHash) -> Result<Option<ApiKey>> {
        self.read(|connection| find_key_by_hash(connection, &hash))
    }

    async fn list_keys(&self, account_id: Option<Id>) -> Result<Vec<ApiKey>> {
        self.read(|connection| list_keys(connection, account_id))
    }

    async fn change_key(&self, id: Id, change: KeyChange) -> Result<Option<ApiKey>> {
        let deed = move |key: &Option<ApiKey>| Deed::of_key(change, key.as_ref());
        let by_operator = self.right.is_none();
        let change = self.recorded(move |writing| key_rotations::change_key(writing, id, change, by_operator), deed);
        self.write(Effect::ChangeKey, change).await
    }

    async fn rotate_key(&self, id: Id, hash: KeyHash, hint: &str, overlap: Duration) -> Result<Option<ApiKey>> {
        let hint = hint.to_owned();
        let deed = move |new: &Option<ApiKey>| Deed::of_rotation(id, overlap, new.as_ref());
        let rotate = self.recorded(move |writing| key_rotations::rotate_key(writing, id, hash, &hint, overlap), deed);
        self.write(Effect::RotateKey, rotate).await
    }

    async fn touch_keys(&self, uses: Vec<(Id, Timestamp)>) -> Result<()> {
        self.write(Effect::TouchKeys, move |writing| touch_keys(writing, &uses)).await
    }
}
