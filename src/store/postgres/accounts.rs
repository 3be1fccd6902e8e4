//! Statements for accounts and credits.

use async_trait::async_trait;
use tokio_postgres::Transaction;

use super::batch::Locked;
use super::columns::{account, word};
use super::connection::{Database, TRANSACTION_TIMEOUT};
use super::schema::LOCK;
use super::{PostgresStore, keys, newest};
use crate::clock::Timestamp;
use crate::domain::model::{Account, Id, LedgerEntry, MAX_BALANCE, TaskId};
use crate::fault::Effect;
use crate::store::{AccountCreation, Accounts, NewKey, Result, StoreError};

fn too_much() -> StoreError {
    StoreError::Other(format!("an account holds at most {MAX_BALANCE} credits").into())
}

/// $1 to $4 are id, name, credits and the time.
const CREATE: &str = "
    WITH made AS (
        INSERT INTO accounts (id, name, balance) SELECT $1, $2, $3::bigint
        WHERE NOT EXISTS (SELECT 1 FROM account_names WHERE name = $2)
            AND NOT EXISTS (SELECT 1 FROM account_names WHERE account_id = $2)
        RETURNING id, balance
    ), booked AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, note)
        SELECT id, 'grant', balance, balance, $4::bigint, 'opening balance' FROM made WHERE balance <> 0
    )
    SELECT id FROM made";

pub(super) async fn create(database: &Database, name: &str, credits: i64) -> Result<AccountCreation> {
    if credits > MAX_BALANCE {
        return Err(too_much());
    }
    let id = database.new_id();
    let made = database.write(CREATE, &[&id, &name, &credits, &database.now()]).await?;
    if made.is_empty() {
        return Ok(AccountCreation::NameTaken);
    }
    Ok(AccountCreation::Created(Account { id, name: name.to_owned(), credits }))
}

pub(super) async fn create_first(
    database: &Database,
    name: &str,
    credits: i64,
    key: &NewKey,
) -> Result<Option<Account>> {
    if credits > MAX_BALANCE {
        return Err(too_much());
    }
    let (account_id, key_id) = (database.new_id(), database.new_id());
    let create = async |begun: &Transaction<'_>| {
        // Processes that start at the same time wait here for the first of them.
        begun.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
        let any: bool = begun.query_one("SELECT EXISTS (SELECT 1 FROM accounts)", &[]).await?.try_get(0)?;
        if any {
            return Ok(None);
        }
        begun.query(CREATE, &[&account_id, &name, &credits, &database.now()]).await?;
        keys::insert(begun, key_id, account_id, key).await?;
        Ok(Some(Account { id: account_id, name: name.to_owned(), credits }))
    };
    database.transaction(TRANSACTION_TIMEOUT, create).await
}

pub(super) async fn find(database: &Database, name_or_id: &str) -> Result<Option<Account>> {
    // An account name never equals the id of another account, so at most one row matches.
    let newest = newest::newest("coalesce((SELECT account_id FROM account_names WHERE account_names.name = $1), $1)");
    database
        .read_one(&format!("SELECT id, name, balance {newest}"), &[&name_or_id])
        .await?
        .as_ref()
        .map(account)
        .transpose()
}

pub(super) async fn list(database: &Database) -> Result<Vec<Account>> {
    let rows = database.read("SELECT id, name, balance FROM accounts ORDER BY name", &[]).await?;
    rows.iter().map(account).collect()
}

pub(super) async fn grant(database: &Database, account_id: Id, amount: i64, note: Option<&str>) -> Result<Option<i64>> {
    let locked = newest::locked("(SELECT $1::text AS account_id)", Locked::Wait);
    let (is_locked, turned) = (newest::IS_LOCKED, newest::TURNED);
    let sql = format!(
        "
        WITH {locked}, granted AS (
            UPDATE accounts a SET balance = a.balance + $2, {turned}
            FROM locked WHERE {is_locked} AND locked.balance <= $3::bigint - $2::bigint
            RETURNING a.id, a.balance
        ), booked AS (
            INSERT INTO ledger (account_id, kind, amount, balance, created_at, note)
            SELECT id, 'grant', $2, balance, $4::bigint, $5 FROM granted
        )
        SELECT granted.balance FROM locked LEFT JOIN granted ON granted.id = locked.account_id"
    );
    let rows = database.write(&sql, &[&account_id, &amount, &MAX_BALANCE, &database.now(), &note]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let balance: Option<i64> = row.try_get(0)?;
    balance.map(Some).ok_or_else(too_much)
}

pub(super) async fn history(
    database: &Database,
    account_id: Id,
    before: Option<i64>,
    limit: u32,
) -> Result<Vec<LedgerEntry>> {
    let sql = "SELECT id, kind, amount, balance, task_id, note, created_at FROM ledger
        WHERE account_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3";
    let rows = database.read(sql, &[&account_id, &before.unwrap_or(i64::MAX), &i64::from(limit)]).await?;
    let entry = |row: &tokio_postgres::Row| {
        Ok(LedgerEntry {
            id: row.try_get("id")?,
            kind: word(row, "kind")?,
            amount: row.try_get("amount")?,
            balance: row.try_get("balance")?,
            task_id: row.try_get::<_, Option<Id>>("task_id")?.map(TaskId),
            note: row.try_get("note")?,
            created_at: row.try_get::<_, Timestamp>("created_at")?,
        })
    };
    rows.iter().map(entry).collect()
}

#[async_trait]
impl Accounts for PostgresStore {
    async fn create_account(&self, name: &str, credits: i64) -> Result<AccountCreation> {
        self.write(Effect::CreateAccount, create(&self.database, name, credits)).await
    }

    async fn create_first_account(&self, name: &str, credits: i64, key: NewKey) -> Result<Option<Account>> {
        self.write(Effect::CreateFirstAccount, create_first(&self.database, name, credits, &key)).await
    }

    async fn find_account(&self, name_or_id: &str) -> Result<Option<Account>> {
        find(&self.database, name_or_id).await
    }

    async fn list_accounts(&self) -> Result<Vec<Account>> {
        list(&self.database).await
    }

    async fn grant(&self, account_id: Id, amount: i64, note: Option<&str>) -> Result<Option<i64>> {
        self.write(Effect::Grant, grant(&self.database, account_id, amount, note)).await
    }

    async fn history(&self, account_id: Id, before: Option<i64>, limit: u32) -> Result<Vec<LedgerEntry>> {
        history(&self.database, account_id, before, limit).await
    }
}
