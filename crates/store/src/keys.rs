//! API keys.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use super::driver::Row;
use super::people::suspension;
use tintype_domain::budget::{Allowance, Budget};
use tintype_domain::key::{ApiKey, KeyHash, KeySecret};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// A key to create.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// SHA-256 of the text of the key.
    pub hash: KeyHash,
    /// The first characters of the key.
    pub hint: String,
    /// Label, chosen by the operator.
    pub name: String,
    /// Submits per minute; `None` means the server's default.
    pub submit_rate: Option<u32>,
    /// Reads per minute; `None` means the server's default.
    pub read_rate: Option<u32>,
    /// Credits that it may spend in a period; `None` means no limit but the balance.
    pub budget: Option<Budget>,
    /// Time at which the key expires.
    pub expires_at: Option<Timestamp>,
}

impl NewKey {
    /// An active key with this secret, without a name and limits.
    pub fn new(secret: &KeySecret) -> Self {
        Self {
            hash: secret.hash(),
            hint: secret.hint(),
            name: String::new(),
            submit_rate: None,
            read_rate: None,
            budget: None,
            expires_at: None,
        }
    }
}

/// A change to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    /// Enables a disabled or suspended key and clears its strikes.
    Enable,
    /// Lifts a suspension and clears the strikes. A disabled key stays disabled.
    Lift,
    /// Disables it until it is enabled again.
    Disable,
    /// Takes that back. A suspended key stays suspended, and strikes stay: the owners of an account may do this.
    Undisable,
    /// Revokes it permanently.
    Revoke,
    /// Records that it was seen in a query string.
    FlagLeaked,
    /// Sets its budget and that of the keys that it was rotated from and to, or ends it. Credits spent in the present
    /// period count.
    Budget(Option<Budget>),
}

/// API keys.
#[async_trait]
pub trait Keys: std::fmt::Debug + Send + Sync + 'static {
    /// Adds a key to an account; `None` if the account does not exist.
    async fn create_key(&self, account_id: Id, key: NewKey) -> Result<Option<ApiKey>>;

    /// The key with this id.
    async fn find_key(&self, id: Id) -> Result<Option<ApiKey>>;

    /// The key with this hash, in any state.
    async fn find_key_by_hash(&self, hash: KeyHash) -> Result<Option<ApiKey>>;

    /// The keys of one account, or of all, oldest first.
    async fn list_keys(&self, account_id: Option<Id>) -> Result<Vec<ApiKey>>;

    /// Changes a key and returns its new state. A revoked key stays revoked.
    async fn change_key(&self, id: Id, change: KeyChange) -> Result<Option<ApiKey>>;

    /// The use of the budget of a key, if it has one, in the period of [`Fleet::now`](super::Fleet::now).
    async fn find_allowance(&self, id: Id) -> Result<Option<Allowance>>;

    /// Adds a key that takes over name, rates and expiry of the key `id`, whether it is disabled, and its strikes and
    /// suspension under the content policy. Both share one budget. The key `id` ends after `overlap` at the latest.
    /// `None` when there is no such key or it is revoked.
    async fn rotate_key(&self, id: Id, hash: KeyHash, hint: &str, overlap: Duration) -> Result<Option<ApiKey>>;

    /// Records the last use of keys. It ignores times before the recorded one and keys that do not exist.
    async fn touch_keys(&self, uses: Vec<(Id, Timestamp)>) -> Result<()>;
}

/// The columns of an [`ApiKey`].
pub(crate) const KEY: &str = "id, first_id, operator_budget, account_id, name, hint, submit_rate, read_rate, budget, \
    budget_period, expires_at, disabled, revoked_at, leaked_at, last_used_at, suspended_at, suspended_for, \
    EXISTS (SELECT 1 FROM accounts a WHERE a.id = account_id AND a.disabled_at IS NOT NULL) AS account_disabled";

pub(crate) fn api_key(row: &Row) -> Result<ApiKey> {
    let id: Id = row.get("id")?;
    Ok(ApiKey {
        id,
        first_id: row.get("first_id")?,
        account_id: row.get("account_id")?,
        name: row.get("name")?,
        hint: row.get("hint")?,
        submit_rate: row.some_number("submit_rate")?,
        read_rate: row.some_number("read_rate")?,
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

/// The budget of a key, if it has one.
fn budget(row: &Row) -> Result<Option<Budget>> {
    let Some(credits) = row.get("budget")? else { return Ok(None) };
    Ok(Some(Budget { credits, period: row.word("budget_period")? }))
}
