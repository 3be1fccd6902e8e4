//! Accounts and their credits.

use super::driver::{Store, Transaction, from_row};
use super::ledger::{self, NewEntry};
use super::{Action, AuditedChange, EntryFilter, NewKey, Result, StoreError, keys};
use crate::failure::DbResult;
use crate::postgres::LOCK;
use tintype_domain::ledger::{OPENING_NOTE, check_opening, check_positive};
use tintype_domain::model::{Account, EntryKind, Id, LedgerEntry, TaskId};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Outcome of granting credits or taking them away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreditChange {
    /// This is the balance now.
    Done(i64),
    /// Nothing changed: the account has only this balance, and more was to be taken.
    TooFew(i64),
    /// Nothing changed: there is a newer grant than the one that a form has shown.
    Repeated,
    /// Nothing changed: the account doesn't exist or is deleted.
    NoAccount,
}

/// A change to an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountChange {
    /// Makes the keys of a disabled account valid again, apart from those that are not valid by themselves.
    Enable,
    /// Makes all of its keys invalid. Its unfinished tasks go on.
    Disable,
    /// Sets the balance below which its endpoints get `credits.low` events, or ends that. At least 1.
    LowBalance(Option<i64>),
    /// Disables it for good, revokes its keys and removes its people, endpoints, calls and uploads, unless it has
    /// unfinished tasks. It takes no submit afterwards. Its ledger stays, and its tasks until
    /// [`Store::remove_tasks_of`](super::Store::remove_tasks_of).
    Delete,
}

/// The columns of an [`Account`]. Its balance is in its newest ledger entry.
pub(crate) const ACCOUNT: &str = "id, name, coalesce(
        (SELECT balance FROM ledger WHERE account_id = accounts.id ORDER BY ledger.id DESC LIMIT 1), 0) AS balance,
    low_balance, admin, disabled_at, deleted_at";

from_row! { pub(crate) fn account(row) -> Account {
    id, name, credits: row.get("balance")?, low_balance, admin, disabled_at, deleted_at,
} }

from_row! { pub(crate) fn entry(row) -> LedgerEntry {
    id, kind, amount, balance, task_id: row.get::<Option<Id>>("task_id")?.map(TaskId), note, created_at,
} }

/// Adds an account without credits, unless its name is taken. Returns whether it is an administrator, as the condition
/// `admin` says.
pub(crate) async fn insert(tx: &Transaction<'_>, id: Id, name: &str, admin: &'static str) -> DbResult<Option<bool>> {
    // The unique name decides between concurrent creations. A name never equals the id of another account.
    let sql = format!(
        "INSERT INTO accounts (id, name, admin) SELECT $1, $2, {admin}
         WHERE NOT EXISTS (SELECT 1 FROM accounts WHERE id = $2) ON CONFLICT DO NOTHING RETURNING admin"
    );
    tx.find(&sql, &[&id, &name], |row| row.get("admin")).await
}

async fn create(tx: &Transaction<'_>, name: &str, credits: i64, admin: bool) -> DbResult<Option<Account>> {
    check_opening(credits).map_err(StoreError::other)?;
    let id = tx.new_id();
    let admin = if admin { "TRUE" } else { "NOT EXISTS (SELECT 1 FROM accounts)" };
    let Some(admin) = insert(tx, id, name, admin).await? else { return Ok(None) };
    ledger::open(tx, id, credits, OPENING_NOTE).await?;
    let rank = if admin { " (admin)" } else { "" };
    tx.audit(AuditedChange::of(Action::CreateAccount, id).with(format!("+{credits}{rank}"))).await?;
    Ok(Some(Account::new(id, name.to_owned(), credits, admin)))
}

/// The rows that go with a deleted account $1, now or at the next sweep.
const DELETIONS: [&str; 5] = [
    // First, as an erasure locks them before stars and boards.
    "UPDATE deletions SET is_final = TRUE WHERE account_id = $1",
    "DELETE FROM calls WHERE key_id IN (SELECT id FROM api_keys WHERE account_id = $1
        UNION ALL SELECT id FROM people WHERE account_id = $1)",
    "DELETE FROM people WHERE account_id = $1",
    "DELETE FROM boards WHERE account_id = $1",
    "DELETE FROM endpoints WHERE account_id = $1",
];

/// Disables an account that is locked, unless it is disabled already.
async fn disable(tx: &Transaction<'_>, id: Id) -> DbResult {
    let sql = "UPDATE accounts SET disabled_at = $2 WHERE id = $1 AND disabled_at IS NULL";
    tx.execute(sql, &[&id, &tx.now()]).await.map(drop)
}

/// Enables a disabled account that is locked. Its events were held meanwhile, so that time does not count as time for
/// which its endpoints failed.
async fn enable(tx: &Transaction<'_>, id: Id) -> DbResult {
    let sql = "UPDATE accounts SET disabled_at = NULL WHERE id = $1 AND disabled_at IS NOT NULL";
    if tx.execute(sql, &[&id]).await? > 0 {
        let failing = "UPDATE endpoints SET failing_since = $2 WHERE account_id = $1 AND failing_since IS NOT NULL";
        tx.execute(failing, &[&id, &tx.now()]).await?;
    }
    Ok(())
}

/// Deletes a locked account with its people, boards, stars and endpoints, removes its uploads and revokes its keys,
/// unless it has unfinished tasks.
async fn delete(tx: &Transaction<'_>, id: Id) -> DbResult {
    let now = tx.now();
    // Without the horizon of PostgreSQL, which is only an estimate.
    if tx.query_opt("SELECT 1 FROM queue WHERE account_id = $1 LIMIT 1", &[&id]).await?.is_some() {
        return Ok(());
    }
    disable(tx, id).await?;
    tx.execute("UPDATE accounts SET deleted_at = $2 WHERE id = $1", &[&id, &now]).await?;
    for deletion in DELETIONS {
        tx.execute(deletion, &[&id]).await?;
    }
    let uploads = "UPDATE uploads SET removed_at = $2 WHERE account_id = $1 AND removed_at IS NULL";
    tx.execute(uploads, &[&id, &now]).await?;
    // In the order in which other statements lock keys.
    let keys = "SELECT id FROM api_keys WHERE account_id = $1 AND revoked_at IS NULL ORDER BY id";
    tx.lock(keys, &[&id]).await?;
    let revoke = "UPDATE api_keys SET revoked_at = $2 WHERE account_id = $1 AND revoked_at IS NULL";
    tx.execute(revoke, &[&id, &now]).await.map(drop)
}

impl Store {
    /// Creates an account, granting it `credits` unless that is zero; `None` if another account has this name, or this
    /// text as its id. More than [`MAX_BALANCE`](tintype_domain::model::MAX_BALANCE) is an error.
    pub async fn create_account(&self, name: &str, credits: i64) -> Result<Option<Account>> {
        self.create_account_as(name, credits, false).await
    }

    /// [`Store::create_account`], as an admin account or not: the owners of one manage all accounts in the studio. The
    /// first account is one in any case.
    pub async fn create_account_as(&self, name: &str, credits: i64, admin: bool) -> Result<Option<Account>> {
        let name = name.to_owned();
        self.write(Effect::CreateAccount, async move |tx| create(tx, &name, credits, admin).await).await
    }

    /// Creates the first account, which is an administrator, with its first key; does nothing if any account exists.
    pub async fn create_first_account(&self, name: &str, credits: i64, key: NewKey) -> Result<Option<Account>> {
        let name = name.to_owned();
        self.write(Effect::CreateFirstAccount, async move |tx| {
            // Processes that start at the same time wait here for the first of them.
            if let Transaction::Postgres(..) = tx {
                tx.query("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
            }
            if tx.query_opt("SELECT 1 FROM accounts LIMIT 1", &[]).await?.is_some() {
                return Ok(None);
            }
            let Some(account) = create(tx, &name, credits, true).await? else {
                return Ok(None);
            };
            keys::create(tx, account.id, &key, None, true, None).await?;
            Ok(Some(account))
        })
        .await
    }

    /// Finds an account by name or id.
    pub async fn find_account(&self, name_or_id: &str) -> Result<Option<Account>> {
        let sql = format!("SELECT {ACCOUNT} FROM accounts WHERE name = $1 OR id = $1");
        self.driver.find(&sql, &[&name_or_id], account).await
    }

    /// All accounts, sorted by name.
    pub async fn list_accounts(&self) -> Result<Vec<Account>> {
        let sql = format!("SELECT {ACCOUNT} FROM accounts ORDER BY name");
        self.driver.list(&sql, &[], account).await
    }

    /// Changes an account and returns it; `None` if it does not exist. A deleted account stays as it is, and so does
    /// one that has unfinished tasks and would be deleted.
    pub async fn change_account(&self, id: Id, new: AccountChange) -> Result<Option<Account>> {
        self.write(Effect::ChangeAccount, async move |tx| {
            let sql = format!("SELECT {ACCOUNT} FROM accounts WHERE id = $1");
            if !matches!(new, AccountChange::LowBalance(_)) {
                // Waits for what people of the account are about to write, who lock themselves before any account.
                tx.lock("SELECT 1 FROM people WHERE account_id = $1 ORDER BY id", &[&id]).await?;
            }
            // Waits for submits.
            let exists = ledger::lock(tx, id).await?;
            let before = tx.find(&sql, &[&id], account).await?;
            match new {
                AccountChange::LowBalance(threshold) if exists => {
                    let set = "UPDATE accounts SET low_balance = $2 WHERE id = $1";
                    tx.execute(set, &[&id, &threshold]).await?;
                }
                AccountChange::Delete if exists => delete(tx, id).await?,
                AccountChange::Disable if exists => disable(tx, id).await?,
                AccountChange::Enable if exists => enable(tx, id).await?,
                _ => {}
            }
            let account = tx.find(&sql, &[&id], account).await?;
            let state = |account: &Account| (account.low_balance, account.disabled_at, account.deleted_at);
            if before.as_ref().map(state) != account.as_ref().map(state) {
                let of = |action| AuditedChange::of(action, id);
                let audited = match new {
                    AccountChange::Enable => of(Action::EnableAccount),
                    AccountChange::Disable => of(Action::DisableAccount),
                    AccountChange::Delete => of(Action::DeleteAccount),
                    AccountChange::LowBalance(None) => of(Action::SetLowBalance).with("none"),
                    AccountChange::LowBalance(Some(threshold)) => of(Action::SetLowBalance).with(threshold),
                };
                tx.audit(audited).await?;
            }
            Ok(account)
        })
        .await
    }

    /// Adds credits and returns the new balance; `None` if the account does not exist. An amount is an error if it is
    /// not positive or would raise the balance above [`MAX_BALANCE`](tintype_domain::model::MAX_BALANCE).
    ///
    /// The credits may expire. Tasks spend those that expire soonest first, and those that never do last. A refund goes
    /// back to its grant; after its expiry, it can be spent for
    /// [`REFUND_LIFE`](tintype_domain::ledger::REFUND_LIFE), once.
    pub async fn grant(
        &self,
        account_id: Id,
        amount: i64,
        note: Option<&str>,
        expires_at: Option<Timestamp>,
    ) -> Result<Option<i64>> {
        match self.grant_after(account_id, None, amount, note, expires_at).await? {
            CreditChange::Done(balance) => Ok(Some(balance)),
            _ => Ok(None),
        }
    }

    /// [`Store::grant`], but at most once for a form that names the newest entry it has seen: nothing is granted if there
    /// is a grant after that entry.
    pub async fn grant_after(
        &self,
        account_id: Id,
        seen: Option<i64>,
        amount: i64,
        note: Option<&str>,
        expires_at: Option<Timestamp>,
    ) -> Result<CreditChange> {
        let note = note.map(str::to_owned);
        self.write(Effect::Grant, async move |tx| {
            check_positive(amount).map_err(StoreError::other)?;
            if !ledger::lock(tx, account_id).await? {
                return Ok(CreditChange::NoAccount);
            }
            // It sees every grant that was made before the lock.
            if let Some(seen) = seen {
                let sql = "SELECT 1 FROM ledger WHERE account_id = $1 AND id > $2 AND kind = 'grant' LIMIT 1";
                if tx.query_opt(sql, &[&account_id, &seen]).await?.is_some() {
                    return Ok(CreditChange::Repeated);
                }
            }
            let balance = ledger::load_credits(tx, account_id, 0).await?.grant(amount).map_err(StoreError::other)?;
            let granted = NewEntry { note: note.as_deref(), ..NewEntry::new(EntryKind::Grant, amount) };
            let entry_id = ledger::record(tx, &granted, account_id, balance, tx.now()).await?;
            let mut until = String::new();
            if let Some(expires_at) = expires_at {
                ledger::add_grant(tx, entry_id, account_id, amount, expires_at).await?;
                until = format!(" (until {expires_at})");
            }
            let detail = format!("+{amount}{until} {}", note.as_deref().unwrap_or_default());
            tx.audit(AuditedChange::of(Action::Grant, account_id).with(detail.trim())).await?;
            Ok(CreditChange::Done(balance))
        })
        .await
    }

    /// Takes credits away, which is a grant with a negative amount in the ledger: first those that never expire, then
    /// those that expire last. An amount that is not positive is an error.
    pub async fn take(&self, account_id: Id, amount: i64, note: &str) -> Result<CreditChange> {
        let note = note.to_owned();
        self.write(Effect::Grant, async move |tx| {
            check_positive(amount).map_err(StoreError::other)?;
            if !ledger::lock(tx, account_id).await? {
                return Ok(CreditChange::NoAccount);
            }
            let now = tx.now();
            let debit = match ledger::load_credits(tx, account_id, 0).await?.take(amount, now) {
                Ok(debit) => debit,
                Err(available) => return Ok(CreditChange::TooFew(available)),
            };
            let taken = NewEntry { note: Some(&note), ..NewEntry::new(EntryKind::Grant, -amount) };
            ledger::debit(tx, account_id, &debit, &taken, now).await?;
            tx.audit(AuditedChange::of(Action::Take, account_id).with(format!("-{amount} {note}").trim())).await?;
            Ok(CreditChange::Done(debit.balance))
        })
        .await
    }

    /// Ledger entries of an account, newest first, older than the entry `before`.
    pub async fn history(&self, account_id: Id, before: Option<i64>, limit: u32) -> Result<Vec<LedgerEntry>> {
        self.entries(account_id, EntryFilter::default(), before, limit).await
    }
}
