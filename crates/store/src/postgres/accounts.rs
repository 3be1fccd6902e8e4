//! Statements for accounts and credits. The balance of an account is that of its newest ledger entry.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::columns::{account, word};
use super::connection::Transaction;
use super::schema::LOCK;
use super::{PostgresStore, keys, ledger};
use crate::failure::Failure;
use crate::ledger::NewEntry;
use crate::{AccountChange, AccountCreation, Accounts, Deed, NewKey, Rank, Result, StoreError, Taking};
use tintype_domain::ledger::{OPENING_NOTE, check_opening, check_positive};
use tintype_domain::model::{Account, EntryKind, ExpiringGrant, Id, LedgerEntry, TaskId};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Creates the account $1 with the name $2 and $3 credits at the time $4; if $5, only as the first account. It is an
/// administrator if $6, or as the first account. The grant has the note $7. A name never equals the id of another account.
const CREATE: &str = "
    WITH created AS (
        INSERT INTO accounts (id, name, admin) SELECT $1, $2, $6 OR NOT EXISTS (SELECT 1 FROM accounts)
        WHERE NOT EXISTS (SELECT 1 FROM accounts WHERE $5 OR id = $2)
        ON CONFLICT DO NOTHING RETURNING id, admin
    ),
    granted AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, note)
        SELECT id, 'grant', $3::bigint, $3, $4::bigint, $7 FROM created WHERE $3 <> 0
    )
    SELECT admin FROM created";

/// The columns of an [`Account`].
pub(super) const ACCOUNT_COLUMNS: &str = "id, name, coalesce(
        (SELECT balance FROM ledger WHERE account_id = accounts.id ORDER BY ledger.id DESC LIMIT 1), 0) AS balance,
    low_balance, admin, disabled_at, deleted_at";

/// The rows that go with a deleted account $1, now or at the next sweep.
const DELETIONS: [&str; 5] = [
    // First, as an erasure locks them before stars and boards.
    "UPDATE deletions SET is_final = true WHERE account_id = $1",
    "DELETE FROM people WHERE account_id = $1",
    "DELETE FROM calls WHERE key_id IN (SELECT id FROM api_keys WHERE account_id = $1)",
    "DELETE FROM boards WHERE account_id = $1",
    "DELETE FROM endpoints WHERE account_id = $1",
];

/// Disables an account that is locked, or enables it.
async fn disable(begun: &Transaction<'_>, id: Id, at: Option<Timestamp>) -> std::result::Result<(), Failure> {
    let sql =
        "UPDATE accounts SET disabled_at = CASE WHEN $2::bigint IS NULL THEN NULL ELSE coalesce(disabled_at, $2) END
        WHERE id = $1";
    begun.execute(sql, &[&id, &at]).await?;
    Ok(())
}

/// Deletes an account that is locked, its people, boards, stars and endpoints, removes its uploads and revokes its
/// keys, unless it has unfinished tasks.
async fn delete(begun: &Transaction<'_>, id: Id, now: Timestamp) -> std::result::Result<(), Failure> {
    // Without the horizon, which is only an estimate.
    if begun.query_opt("SELECT 1 FROM queue WHERE account_id = $1 LIMIT 1", &[&id]).await?.is_some() {
        return Ok(());
    }
    disable(begun, id, Some(now)).await?;
    begun.execute("UPDATE accounts SET deleted_at = $2 WHERE id = $1", &[&id, &now]).await?;
    for deletion in DELETIONS {
        begun.execute(deletion, &[&id]).await?;
    }
    let uploads = "UPDATE uploads SET removed_at = $2 WHERE account_id = $1 AND removed_at IS NULL";
    begun.execute(uploads, &[&id, &now]).await?;
    // In the order in which other statements lock keys.
    let keys = "SELECT id FROM api_keys WHERE account_id = $1 AND revoked_at IS NULL ORDER BY id FOR NO KEY UPDATE";
    begun.execute(keys, &[&id]).await?;
    let revoke = "UPDATE api_keys SET revoked_at = $2 WHERE account_id = $1 AND revoked_at IS NULL";
    begun.execute(revoke, &[&id, &now]).await?;
    Ok(())
}

#[async_trait]
impl Accounts for PostgresStore {
    async fn create_account_as(&self, name: &str, credits: i64, rank: Rank) -> Result<AccountCreation> {
        let create = async {
            check_opening(credits).map_err(StoreError::other)?;
            let id = self.database.new_id();
            let (now, admin) = (self.database.now(), rank == Rank::Administrator);
            let create = async |begun: &Transaction<'_>| {
                let created =
                    begun.query_opt(CREATE, &[&id, &name, &credits, &now, &false, &admin, &OPENING_NOTE]).await?;
                let Some(row) = created else { return Ok(AccountCreation::NameTaken) };
                Ok(AccountCreation::Created(Account::new(id, name.to_owned(), credits, row.try_get("admin")?)))
            };
            self.recorded(create, Deed::of_creation).await
        };
        self.write(Effect::CreateAccount, create).await
    }

    async fn create_first_account(&self, name: &str, credits: i64, key: NewKey) -> Result<Option<Account>> {
        let create = async {
            check_opening(credits).map_err(StoreError::other)?;
            let (account_id, key_id, now) = (self.database.new_id(), self.database.new_id(), self.database.now());
            let create = async |begun: &Transaction<'_>| {
                // Processes that start at the same time wait here for the first of them.
                begun.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
                if begun
                    .query(CREATE, &[&account_id, &name, &credits, &now, &true, &true, &OPENING_NOTE])
                    .await?
                    .is_empty()
                {
                    return Ok(None);
                }
                keys::add(begun, key_id, account_id, &key, None, true).await?;
                Ok(Some(Account::new(account_id, name.to_owned(), credits, true)))
            };
            let deed = |first: &Option<Account>| Deed::of_creation(&AccountCreation::Created(first.clone()?));
            self.recorded(create, deed).await
        };
        self.write(Effect::CreateFirstAccount, create).await
    }

    async fn find_account(&self, name_or_id: &str) -> Result<Option<Account>> {
        let sql = format!("SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE name = $1 OR id = $1");
        self.database.read_one(&sql, &[&name_or_id]).await?.as_ref().map(account).transpose()
    }

    async fn list_accounts(&self) -> Result<Vec<Account>> {
        let rows = self.database.read(&format!("SELECT {ACCOUNT_COLUMNS} FROM accounts ORDER BY name"), &[]).await?;
        rows.iter().map(account).collect()
    }

    async fn change_account(&self, id: Id, change: AccountChange) -> Result<Option<Account>> {
        let now = self.database.now();
        let make = async |begun: &Transaction<'_>| {
            if let AccountChange::LowBalance(threshold) = change {
                let set = "UPDATE accounts SET low_balance = $2 WHERE id = $1 AND deleted_at IS NULL";
                begun.execute(set, &[&id, &threshold]).await?;
            } else {
                // Waits for what people of the account are about to write, who lock themselves before any account.
                let people = "SELECT 1 FROM people WHERE account_id = $1 ORDER BY id FOR NO KEY UPDATE";
                begun.execute(people, &[&id]).await?;
                // Waits for submits.
                let exists = ledger::lock(begun, id).await?;
                match change {
                    AccountChange::Delete if exists => delete(begun, id, now).await?,
                    AccountChange::Disable if exists => disable(begun, id, Some(now)).await?,
                    AccountChange::Enable if exists => disable(begun, id, None).await?,
                    _ => {}
                }
            }
            let changed =
                begun.query_opt(&format!("SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE id = $1"), &[&id]).await?;
            Ok(changed.as_ref().map(account).transpose()?)
        };
        let deed = |account: &Option<Account>| Deed::of_account(change, account.as_ref());
        self.write(Effect::ChangeAccount, self.recorded(make, deed)).await
    }

    async fn grant_until(
        &self,
        account_id: Id,
        amount: i64,
        note: Option<&str>,
        expires_at: Option<Timestamp>,
    ) -> Result<Option<i64>> {
        let grant = async {
            check_positive(amount).map_err(StoreError::other)?;
            let now = self.database.now();
            let grant = async |begun: &Transaction<'_>| {
                if !ledger::lock(begun, account_id).await? {
                    return Ok(None);
                }
                let account = ledger::holding(&self.database, begun, account_id, 0).await?;
                let balance = account.grant(amount).map_err(StoreError::other)?;
                let granted = NewEntry { note, ..NewEntry::new(EntryKind::Grant, amount) };
                let entry_id = ledger::record(begun, &granted, account_id, balance, now).await?;
                if let Some(expires_at) = expires_at {
                    ledger::add_grant(begun, entry_id, account_id, amount, expires_at).await?;
                }
                Ok(Some(balance))
            };
            self.recorded(grant, |balance| Deed::of_grant(account_id, amount, note, expires_at, *balance)).await
        };
        self.write(Effect::Grant, grant).await
    }

    async fn expiring_grants(&self, account_id: Id, limit: u32) -> Result<Vec<ExpiringGrant>> {
        ledger::list(&self.database, account_id, limit).await
    }

    async fn take(&self, account_id: Id, amount: i64, note: &str) -> Result<Option<Taking>> {
        let take = async {
            check_positive(amount).map_err(StoreError::other)?;
            let now = self.database.now();
            let take = async |begun: &Transaction<'_>| {
                if !ledger::lock(begun, account_id).await? {
                    return Ok(None);
                }
                let account = ledger::holding(&self.database, begun, account_id, 0).await?;
                let debit = match account.take(amount, now) {
                    Ok(debit) => debit,
                    Err(available) => return Ok(Some(Taking::TooFew(available))),
                };
                let taken = NewEntry { note: Some(note), ..NewEntry::new(EntryKind::Grant, -amount) };
                ledger::debit(&self.database, begun, account_id, &debit, &taken, now).await?;
                Ok(Some(Taking::Taken(debit.balance)))
            };
            self.recorded(take, |taking| Deed::of_taking(account_id, amount, note, *taking)).await
        };
        self.write(Effect::Grant, take).await
    }

    async fn history(&self, account_id: Id, before: Option<i64>, limit: u32) -> Result<Vec<LedgerEntry>> {
        let sql = "SELECT id, kind, amount, balance, task_id, note, created_at FROM ledger
            WHERE account_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3";
        let rows = self.database.read(sql, &[&account_id, &before.unwrap_or(i64::MAX), &i64::from(limit)]).await?;
        rows.iter().map(entry).collect()
    }
}

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
