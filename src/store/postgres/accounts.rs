//! Statements for accounts and credits. The balance of an account is that of its newest ledger entry.

use async_trait::async_trait;
use tokio_postgres::{Row, Transaction};

use super::columns::{account, word};
use super::connection::Parameter;
use super::schema::LOCK;
use super::{PostgresStore, grants, keys};
use crate::clock::Timestamp;
use crate::domain::model::{Account, ExpiringGrant, Id, LedgerEntry, MAX_BALANCE, TaskId};
use crate::fault::Effect;
use crate::store::{AccountChange, AccountCreation, Accounts, Deed, NewKey, Rank, Result, StoreError, Taking};

/// Creates the account $1 with the name $2 and $3 credits at the time $4; if $5, only as the first account. It is an
/// administrator if $6, or as the first account. A name never equals the id of another account.
const CREATE: &str = "
    WITH created AS (
        INSERT INTO accounts (id, name, admin) SELECT $1, $2, $6 OR NOT EXISTS (SELECT 1 FROM accounts)
        WHERE NOT EXISTS (SELECT 1 FROM accounts WHERE $5 OR id = $2)
        ON CONFLICT DO NOTHING RETURNING id, admin
    ),
    granted AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, note)
        SELECT id, 'grant', $3::bigint, $3, $4::bigint, 'opening balance' FROM created WHERE $3 <> 0
    )
    SELECT admin FROM created";

/// The columns of an [`Account`].
pub(super) const ACCOUNT_COLUMNS: &str = "id, name, coalesce(
        (SELECT balance FROM ledger WHERE account_id = accounts.id ORDER BY ledger.id DESC LIMIT 1), 0) AS balance,
    low_balance, admin, disabled_at, deleted_at";

/// Disables the account $1 at the time $2, or enables it. A time $3 deletes it, its people, boards, stars and
/// endpoints, removes its uploads and revokes its keys, unless it has unfinished tasks.
const CHANGE: &str = "
    WITH
    -- Waits for submits.
    locked AS MATERIALIZED (SELECT id FROM accounts WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE),
    -- The function sees all that was committed before the lock, which the snapshot of this statement may not.
    idle AS MATERIALIZED (SELECT id FROM locked WHERE $3::bigint IS NULL OR tintype_unfinished(id, '', 1) = 0),
    changed AS (
        UPDATE accounts a
        SET disabled_at = CASE WHEN $2::bigint IS NULL THEN NULL ELSE coalesce(disabled_at, $2) END, deleted_at = $3
        FROM idle WHERE a.id = idle.id RETURNING a.id
    ),
    people AS (DELETE FROM people WHERE $3 IS NOT NULL AND account_id IN (SELECT id FROM changed)),
    calls AS (
        DELETE FROM calls
        WHERE $3 IS NOT NULL AND key_id IN (SELECT id FROM api_keys WHERE account_id IN (SELECT id FROM changed))
    ),
    boards AS (DELETE FROM boards WHERE $3 IS NOT NULL AND account_id IN (SELECT id FROM changed)),
    stars AS (DELETE FROM stars WHERE $3 IS NOT NULL AND account_id IN (SELECT id FROM changed)),
    endpoints AS (DELETE FROM endpoints WHERE $3 IS NOT NULL AND account_id IN (SELECT id FROM changed)),
    uploads AS (
        UPDATE uploads SET removed_at = $3
        WHERE $3 IS NOT NULL AND account_id IN (SELECT id FROM changed) AND removed_at IS NULL
    ),
    -- In the order in which other statements lock keys.
    keys AS MATERIALIZED (
        SELECT k.id FROM api_keys k WHERE account_id IN (SELECT id FROM changed) AND revoked_at IS NULL
        AND $3 IS NOT NULL ORDER BY k.id FOR NO KEY UPDATE
    )
    UPDATE api_keys SET revoked_at = $3 FROM keys WHERE api_keys.id = keys.id";

/// Grants $2 credits to the account $1, unless it would then have more than $3. They expire at the time $6, if there is one.
/// Waits for charges and refunds.
const GRANT: &str = "
    WITH
    locked AS MATERIALIZED (SELECT id FROM accounts WHERE id = $1 FOR NO KEY UPDATE),
    -- The function sees all that was committed before the lock, which the snapshot of this statement may not.
    found AS MATERIALIZED (SELECT id, tintype_credits(id) AS balance FROM locked),
    granted AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, note)
        SELECT id, 'grant', $2::bigint, balance + $2, $4::bigint, $5 FROM found WHERE balance <= $3::bigint - $2
        RETURNING id, account_id, balance
    ),
    expiring AS (
        INSERT INTO expiring_grants (entry_id, account_id, amount, expires_at, remaining)
        SELECT id, account_id, $2, $6::bigint, $2 FROM granted WHERE $6 IS NOT NULL
    )
    SELECT granted.balance FROM found LEFT JOIN granted ON account_id = found.id";

/// Takes $2 credits from the account $1 if it has them: what goes beyond those that do not expire at the time $5, of those that
/// expire last. Waits for charges and refunds.
const TAKE: &str = "
    WITH
    locked AS MATERIALIZED (SELECT id, low_balance FROM accounts WHERE id = $1 FOR NO KEY UPDATE),
    -- The function sees all that was committed before the lock, which the snapshot of this statement may not.
    found AS MATERIALIZED (
        SELECT locked.id, low_balance, tintype_credits(locked.id) AS balance, expired, live
        FROM locked, LATERAL tintype_expiring(locked.id, tintype_now($5))
    ),
    taken AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, note)
        SELECT id, 'grant', -$2::bigint, balance - $2, $3::bigint, $4 FROM found WHERE balance - expired >= $2
        RETURNING account_id, balance
    )
    SELECT found.balance - expired AS available, taken.balance AS remaining,
        tintype_tell_if_low(found.id, low_balance, $2, taken.balance, $3) AS told,
        tintype_draw(found.id, expired + live - taken.balance, tintype_now($5)) AS drawn
    FROM found LEFT JOIN taken ON account_id = found.id";

fn check_positive(amount: i64) -> Result<()> {
    if amount > 0 { Ok(()) } else { Err(StoreError::Other("a number of credits must be positive".into())) }
}

pub(super) fn check(credits: i64) -> Result<()> {
    if credits > MAX_BALANCE { Err(too_much()) } else { Ok(()) }
}

fn too_much() -> StoreError {
    StoreError::Other(format!("an account holds at most {MAX_BALANCE} credits").into())
}

#[async_trait]
impl Accounts for PostgresStore {
    async fn create_account_as(&self, name: &str, credits: i64, rank: Rank) -> Result<AccountCreation> {
        let create = async {
            check(credits)?;
            let id = self.database.new_id();
            let (now, admin) = (self.database.now(), rank == Rank::Administrator);
            let create = async |begun: &Transaction<'_>| {
                let created = begun.query_opt(CREATE, &[&id, &name, &credits, &now, &false, &admin]).await?;
                let Some(row) = created else { return Ok(AccountCreation::NameTaken) };
                Ok(AccountCreation::Created(Account::new(id, name.to_owned(), credits, row.try_get("admin")?)))
            };
            self.recorded(create, Deed::of_creation).await
        };
        self.write(Effect::CreateAccount, create).await
    }

    async fn create_first_account(&self, name: &str, credits: i64, key: NewKey) -> Result<Option<Account>> {
        let create = async {
            check(credits)?;
            let (account_id, key_id, now) = (self.database.new_id(), self.database.new_id(), self.database.now());
            let create = async |begun: &Transaction<'_>| {
                // Processes that start at the same time wait here for the first of them.
                begun.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
                if begun.query(CREATE, &[&account_id, &name, &credits, &now, &true, &true]).await?.is_empty() {
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
        let (disabled_at, deleted_at) = match change {
            AccountChange::Enable => (None, None),
            AccountChange::Disable => (Some(now), None),
            AccountChange::Delete => (Some(now), Some(now)),
            AccountChange::LowBalance(_) => (None, None),
        };
        let make = async |begun: &Transaction<'_>| {
            if let AccountChange::LowBalance(threshold) = change {
                let set = "UPDATE accounts SET low_balance = $2 WHERE id = $1 AND deleted_at IS NULL";
                begun.execute(set, &[&id, &threshold]).await?;
            } else {
                // Waits for what people of the account are about to write, who lock themselves before any account.
                let people = "SELECT 1 FROM people WHERE account_id = $1 ORDER BY id FOR NO KEY UPDATE";
                begun.execute(people, &[&id]).await?;
                begun.execute(CHANGE, &[&id, &disabled_at, &deleted_at]).await?;
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
            check_positive(amount)?;
            let now = self.database.now();
            let grant = async |begun: &Transaction<'_>| {
                let parameters: [Parameter<'_>; 6] = [&account_id, &amount, &MAX_BALANCE, &now, &note, &expires_at];
                let row = begun.query_opt(GRANT, &parameters).await?;
                let Some(row) = row else { return Ok(None) };
                let balance: Option<i64> = row.try_get(0)?;
                Ok(Some(balance.ok_or_else(too_much)?))
            };
            self.recorded(grant, |balance| Deed::of_grant(account_id, amount, note, expires_at, *balance)).await
        };
        self.write(Effect::Grant, grant).await
    }

    async fn expiring_grants(&self, account_id: Id, limit: u32) -> Result<Vec<ExpiringGrant>> {
        grants::list(&self.database, account_id, limit).await
    }

    async fn take(&self, account_id: Id, amount: i64, note: &str) -> Result<Option<Taking>> {
        let take = async {
            check_positive(amount)?;
            let (now, given) = (self.database.now(), self.database.given_time());
            let take = async |begun: &Transaction<'_>| {
                let Some(row) = begun.query_opt(TAKE, &[&account_id, &amount, &now, &note, &given]).await? else {
                    return Ok(None);
                };
                let left: Option<i64> = row.try_get("remaining")?;
                let available = row.try_get("available")?;
                Ok(Some(left.map_or(Taking::TooFew(available), Taking::Taken)))
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
