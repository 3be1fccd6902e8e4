//! Accounts and their credits.

use async_trait::async_trait;

use super::driver::Transaction;
use super::{NewKey, Result};
use crate::failure::Failure;
use tintype_domain::model::{Account, ExpiringGrant, Id, LedgerEntry};
use tintype_system::clock::Timestamp;

/// Outcome of creating an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountCreation {
    /// The account was created.
    Created(Account),
    /// Another account has this name, or this text as its id.
    NameTaken,
}

/// Outcome of taking credits away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    /// The credits were taken, and the account has so many left.
    Taken(i64),
    /// Nothing changed: the account has only so many.
    TooFew(i64),
}

/// The rank of an account in the studio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// Its people see its own tasks, keys and credits.
    Ordinary,
    /// Its owners manage all accounts.
    Administrator,
}

/// A change to an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountChange {
    /// Makes the keys of a disabled account valid again, apart from those that are not valid by themselves.
    Enable,
    /// Makes all of its keys invalid. Its unfinished tasks go on.
    Disable,
    /// Sets the balance below which its endpoints are told of low credits, or ends that. At least 1.
    LowBalance(Option<i64>),
    /// Disables it for good, revokes its keys and removes its people, endpoints, calls and uploads, unless it has
    /// unfinished tasks. It takes no submit afterwards. Its ledger stays, and its tasks until
    /// [`Upkeep::remove_tasks_of`](super::Upkeep::remove_tasks_of).
    Delete,
}

/// Accounts and their credits.
#[async_trait]
pub trait Accounts: std::fmt::Debug + Send + Sync + 'static {
    /// Creates an account, granting it `credits` unless that is zero. More than
    /// [`MAX_BALANCE`](tintype_domain::model::MAX_BALANCE) is an error.
    async fn create_account(&self, name: &str, credits: i64) -> Result<AccountCreation> {
        self.create_account_as(name, credits, Rank::Ordinary).await
    }

    /// [`Accounts::create_account`] with a rank. The first account is an administrator in any case.
    async fn create_account_as(&self, name: &str, credits: i64, rank: Rank) -> Result<AccountCreation>;

    /// Creates the first account, which is an administrator, with its first key; does nothing if any account exists.
    async fn create_first_account(&self, name: &str, credits: i64, key: NewKey) -> Result<Option<Account>>;

    /// Finds an account by name or id.
    async fn find_account(&self, name_or_id: &str) -> Result<Option<Account>>;

    /// All accounts, sorted by name.
    async fn list_accounts(&self) -> Result<Vec<Account>>;

    /// Changes an account and returns it; `None` if it does not exist. A deleted account stays as it is, and so does
    /// one that has unfinished tasks and would be deleted.
    async fn change_account(&self, id: Id, change: AccountChange) -> Result<Option<Account>>;

    /// Adds credits and returns the new balance; `None` if the account does not exist. An amount is an error if it is
    /// not positive or would raise the balance above [`MAX_BALANCE`](tintype_domain::model::MAX_BALANCE).
    async fn grant(&self, account_id: Id, amount: i64, note: Option<&str>) -> Result<Option<i64>> {
        self.grant_until(account_id, amount, note, None).await
    }

    /// [`Accounts::grant`] of credits that expire, if there is a time. Tasks spend those that expire soonest first, and
    /// those that never do last. A refund goes back to its grant; after its expiry, it can be spent for
    /// [`REFUND_LIFE`](tintype_domain::ledger::REFUND_LIFE), once.
    async fn grant_until(
        &self,
        account_id: Id,
        amount: i64,
        note: Option<&str>,
        expires_at: Option<Timestamp>,
    ) -> Result<Option<i64>>;

    /// The grants of an account that expire or have lapsed: those with credits left first, in the order in which tasks
    /// spend them.
    async fn expiring_grants(&self, account_id: Id, limit: u32) -> Result<Vec<ExpiringGrant>>;

    /// Takes credits away, which is a grant with a negative amount in the ledger: first those that never expire, then
    /// those that expire last. `None` if the account does not exist. An amount that is not positive is an error.
    async fn take(&self, account_id: Id, amount: i64, note: &str) -> Result<Option<Taking>>;

    /// Ledger entries of an account, newest first, older than the entry `before`.
    async fn history(&self, account_id: Id, before: Option<i64>, limit: u32) -> Result<Vec<LedgerEntry>>;
}

/// Adds an account without credits, unless its name is taken. Returns whether it is an administrator, as the condition
/// `admin` says.
pub(crate) async fn insert(
    begun: &Transaction<'_>,
    id: Id,
    name: &str,
    admin: &'static str,
) -> std::result::Result<Option<bool>, Failure> {
    let (balance, none) = begun.either((", balance", ", 0"), ("", ""));
    let sql = format!(
        "INSERT INTO accounts (id, name, admin{balance}) SELECT $1, $2, {admin}{none}
         WHERE NOT EXISTS (SELECT 1 FROM accounts WHERE id = $2) ON CONFLICT DO NOTHING RETURNING admin"
    );
    Ok(begun.query_opt(&sql, &[&id, &name]).await?.map(|row| row.get("admin")).transpose()?)
}
