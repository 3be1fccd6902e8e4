//! API keys.

use std::collections::BTreeMap;
use std::time::Duration;

use super::budgets::{self, budget};
use super::driver::{Dialect, Parameter, Row, Store, Transaction, from_row, json, of_account};
use super::people::suspension;
use super::strikes::{OF_ROTATED_KEYS, lock_rotated_keys};
use super::{Action, Addition, AuditedChange, Result, ledger};
use crate::failure::DbResult;
use tintype_domain::budget::Budget;
use tintype_domain::key::{ApiKey, KeyHash, KeySecret};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

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
    /// Enables a disabled or suspended key and clears its strikes, including strikes of the keys that it was rotated
    /// from and to.
    Enable,
    /// Lifts a suspension and clears the same strikes. A disabled key stays disabled.
    Lift,
    /// Disables it until it is enabled again.
    Disable,
    /// Takes that back. A suspended key stays suspended, and strikes stay: the owners of an account may do this.
    EnableByOwner,
    /// Revokes it permanently.
    Revoke,
    /// Records that it was seen in a query string.
    FlagLeaked,
    /// Sets or removes its budget and the budget of the keys that it was rotated from and to. Credits already spent in
    /// the current period count.
    Budget(Option<Budget>),
}

pub(crate) const KEY: &str = "id, first_id, operator_budget, account_id, made_by, name, hint, submit_rate, read_rate, \
    budget, budget_period, expires_at, disabled, revoked_at, leaked_at, last_used_at, suspended_at, suspended_for, \
    EXISTS (SELECT 1 FROM accounts a WHERE a.id = account_id AND a.disabled_at IS NOT NULL) AS account_disabled";

from_row! { pub(crate) fn api_key(row) -> ApiKey {
    id, first_id, account_id, made_by, name, hint, submit_rate: rate(row, "submit_rate")?,
    read_rate: rate(row, "read_rate")?, budget: budget(row)?, operator_budget,
    created_at: row.get::<Id>("id")?.timestamp(), expires_at, disabled, account_disabled, revoked_at, leaked_at,
    last_used_at, suspension: suspension(row)?,
} }

/// A rate of a key. Only the operator can give a key no limit at all, so an owner's 0 counts as none of its own.
fn rate(row: &Row, column: &str) -> Result<Option<u32>> {
    let is_of_owner = row.get::<Option<Id>>("made_by")?.is_some();
    Ok(row.get::<Option<u32>>(column)?.filter(|rate| *rate > 0 || !is_of_owner))
}

/// Locks an account and counts its keys. Returns why none can be added, if so.
async fn refusal(tx: &Transaction<'_>, account_id: Id, most: Option<u32>) -> DbResult<Option<Addition<ApiKey>>> {
    if !ledger::lock(tx, account_id).await? {
        return Ok(Some(Addition::NotPossible));
    }
    let Some(most) = most else { return Ok(None) };
    let full = "SELECT count(*) FROM api_keys WHERE account_id = $1 AND revoked_at IS NULL
        AND (expires_at IS NULL OR expires_at > $2) HAVING count(*) >= $3";
    let full = tx.query_opt(full, &[&account_id, &tx.now(), &most]).await?;
    Ok(full.map(|_| Addition::TooMany))
}

/// Adds a key to an account. The audit log records it.
pub(crate) async fn create(
    tx: &Transaction<'_>,
    account_id: Id,
    key: &NewKey,
    made_by: Option<Id>,
    by_operator: bool,
    most: Option<u32>,
) -> DbResult<Addition<ApiKey>> {
    if let Some(refusal) = refusal(tx, account_id, most).await? {
        return Ok(refusal);
    }
    let sql = format!(
        "INSERT INTO api_keys (id, first_id, account_id, hash, name, hint, submit_rate, read_rate, expires_at, budget,
                               budget_period, made_by, operator_budget)
         SELECT $1, $1, id, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12 FROM accounts WHERE id = $2 RETURNING {KEY}"
    );
    let (budget, period) = key.budget.map(|budget| (budget.credits, budget.period)).unzip();
    let (id, of_operator) = (tx.new_id(), by_operator && budget.is_some());
    let parameters: [&dyn Parameter; 12] = [
        &id,
        &account_id,
        &key.hash,
        &key.name,
        &key.hint,
        &key.submit_rate,
        &key.read_rate,
        &key.expires_at,
        &budget,
        &period,
        &made_by,
        &of_operator,
    ];
    let Some(added) = tx.find(&sql, &parameters, api_key).await? else { return Ok(Addition::NotPossible) };
    let budget = added.budget.map(|budget| budget.to_string()).unwrap_or_default();
    let detail = format!("{} {budget}", added.name);
    tx.audit(AuditedChange::of_key(Action::CreateKey, &added).with(detail.trim())).await?;
    Ok(Addition::Created(added))
}

/// The expiry of a key that replaces `old`. A key that was rotated before has only the end of its overlap left; the key
/// that replaced it then has the expiry that was set.
const LATEST_EXPIRY: &str = "(SELECT CASE WHEN count(*) = count(k.expires_at) THEN max(k.expires_at) END
    FROM api_keys k WHERE k.first_id = old.first_id)";

/// Ends the key `id` after `overlap` and adds one with the same settings.
async fn rotate(
    tx: &Transaction<'_>,
    id: Id,
    (hash, hint): (&KeyHash, &str),
    overlap: Duration,
    most: Option<u32>,
) -> DbResult<Addition<ApiKey>> {
    // Accounts are locked before keys.
    let sql = "SELECT account_id FROM api_keys WHERE id = $1 AND revoked_at IS NULL";
    let Some(row) = tx.query_opt(sql, &[&id]).await? else { return Ok(Addition::NotPossible) };
    if let Some(refusal) = refusal(tx, row.get("account_id")?, most).await? {
        return Ok(refusal);
    }
    // The key's lock makes concurrent strikes wait, and the lock of the first key makes budget changes
    // wait. The next statement sees everything that was committed before.
    lock_rotated_keys(tx, id).await?;
    let sql = format!(
        "INSERT INTO api_keys
             (id, first_id, account_id, hash, name, hint, submit_rate, read_rate, budget, budget_period,
              operator_budget, expires_at, disabled, suspended_at, suspended_for, made_by)
         SELECT $1, first_id, account_id, $3, name, $4, submit_rate, read_rate, budget, budget_period, operator_budget,
             {LATEST_EXPIRY}, disabled, suspended_at, suspended_for, made_by
         FROM api_keys old WHERE id = $2 AND revoked_at IS NULL RETURNING {KEY}"
    );
    let new_id = tx.new_id();
    let Some(added) = tx.find(&sql, &[&new_id, &id, &hash, &hint], api_key).await? else {
        return Ok(Addition::NotPossible);
    };
    tx.execute("UPDATE strikes SET key_id = $1 WHERE key_id = $2", &[&new_id, &id]).await?;
    let sql = "UPDATE api_keys SET expires_at = $2 WHERE id = $1 AND (expires_at IS NULL OR expires_at > $2)";
    tx.execute(sql, &[&id, &tx.now().saturating_add(overlap)]).await?;
    let detail = format!("{new_id}, {} h", overlap.as_secs() / 3_600);
    tx.audit(AuditedChange::of(Action::RotateKey, added.account_id).about(id).with(detail)).await?;
    Ok(Addition::Created(added))
}

/// Changes a key, and records that if it makes a difference.
async fn change(tx: &Transaction<'_>, id: Id, change: KeyChange, by_operator: bool) -> DbResult<Option<ApiKey>> {
    let (set, action) = match change {
        KeyChange::Budget(_) => ("", Some(Action::ChangeBudget)),
        KeyChange::Enable => ("disabled = FALSE, suspended_at = NULL, suspended_for = NULL", Some(Action::EnableKey)),
        KeyChange::Lift => ("suspended_at = NULL, suspended_for = NULL", Some(Action::Lift)),
        KeyChange::Disable => ("disabled = TRUE", Some(Action::DisableKey)),
        KeyChange::EnableByOwner => ("disabled = FALSE", Some(Action::UndisableKey)),
        KeyChange::Revoke => ("revoked_at = coalesce(revoked_at, $2)", Some(Action::RevokeKey)),
        // The service itself does that.
        KeyChange::FlagLeaked => ("leaked_at = coalesce(leaked_at, $2)", None),
    };
    let find = format!("SELECT {KEY} FROM api_keys WHERE id = $1");
    if !matches!(change, KeyChange::Budget(_)) {
        lock_rotated_keys(tx, id).await?;
    }
    let before = tx.find(&find, &[&id], api_key).await?;
    let changed = match change {
        KeyChange::Budget(budget) if !budgets::set(tx, id, budget, by_operator).await? => return Ok(None),
        KeyChange::Budget(_) => tx.find(&find, &[&id], api_key).await?,
        _ => {
            let set =
                format!("UPDATE api_keys SET {set} WHERE id = $1 AND CAST($2 AS bigint) IS NOT NULL RETURNING {KEY}");
            tx.find(&set, &[&id, &tx.now()], api_key).await?
        }
    };
    let mut differs = before != changed;
    if matches!(change, KeyChange::Enable | KeyChange::Lift) {
        // After locking the keys, so that no concurrent strike is missed. Its maker's strikes are cleared, too.
        let of_maker = format!(
            "DELETE FROM person_strikes WHERE task_id IN (SELECT task_id FROM strikes WHERE {OF_ROTATED_KEYS})"
        );
        tx.execute(&of_maker, &[&id]).await?;
        differs |= tx.execute(&format!("DELETE FROM strikes WHERE {OF_ROTATED_KEYS}"), &[&id]).await? > 0;
    }
    if let Some((key, action)) = changed.as_ref().zip(action).filter(|_| differs) {
        let detail = match change {
            KeyChange::Budget(budget) => budget.map_or_else(|| "none".to_owned(), |budget| budget.to_string()),
            _ => key.name.clone(),
        };
        tx.audit(AuditedChange::of_key(action, key).with(detail)).await?;
    }
    Ok(changed)
}

impl Store {
    /// Adds a key to an account; `None` if the account does not exist or is deleted.
    pub async fn create_key(&self, account_id: Id, key: NewKey) -> Result<Option<ApiKey>> {
        Ok(self.create_key_within(account_id, key, None).await?.created())
    }

    /// [`Store::create_key`], unless the account has `most` keys that are neither revoked nor expired.
    pub async fn create_key_within(&self, account_id: Id, key: NewKey, most: Option<u32>) -> Result<Addition<ApiKey>> {
        let by_operator = self.right.is_none();
        self.write(Effect::CreateKey, async move |tx| {
            let made_by = tx.actor().and_then(|actor| actor.person_id);
            create(tx, account_id, &key, made_by, by_operator, most).await
        })
        .await
    }

    /// The key with this id.
    pub async fn find_key(&self, id: Id) -> Result<Option<ApiKey>> {
        let sql = format!("SELECT {KEY} FROM api_keys WHERE id = $1");
        self.driver.find(&sql, &[&id], api_key).await
    }

    /// The key with this hash, in any state.
    pub async fn find_key_by_hash(&self, hash: KeyHash) -> Result<Option<ApiKey>> {
        let sql = format!("SELECT {KEY} FROM api_keys WHERE hash = $1");
        self.driver.find(&sql, &[&hash], api_key).await
    }

    /// The keys of one account, or of all, oldest first.
    pub async fn list_keys(&self, account_id: Option<Id>) -> Result<Vec<ApiKey>> {
        let sql = format!("SELECT {KEY} FROM api_keys WHERE {} ORDER BY id", of_account(account_id));
        self.driver.list(&sql, &[&account_id], api_key).await
    }

    /// Changes a key and returns its new state. A revoked key stays revoked. `None` if there is no such key, or if a right
    /// sets a budget that [`Budget::may_replace`] rejects.
    pub async fn change_key(&self, id: Id, new: KeyChange) -> Result<Option<ApiKey>> {
        let by_operator = self.right.is_none();
        self.write(Effect::ChangeKey, async move |tx| change(tx, id, new, by_operator).await).await
    }

    /// Adds a key that takes over the key `id`'s name, rates and expiry, whether it is disabled, and its strikes and
    /// suspension under the content policy. Both share one budget. The key `id` ends after `overlap` at the latest.
    /// `None` if the key doesn't exist or is revoked.
    pub async fn rotate_key(&self, id: Id, hash: KeyHash, hint: &str, overlap: Duration) -> Result<Option<ApiKey>> {
        Ok(self.rotate_key_within(id, hash, hint, overlap, None).await?.created())
    }

    /// [`Store::rotate_key`], unless the account has `most` keys that are neither revoked nor expired.
    pub async fn rotate_key_within(
        &self,
        id: Id,
        hash: KeyHash,
        hint: &str,
        overlap: Duration,
        most: Option<u32>,
    ) -> Result<Addition<ApiKey>> {
        let hint = hint.to_owned();
        self.write(Effect::RotateKey, async move |tx| rotate(tx, id, (&hash, &hint), overlap, most).await).await
    }

    /// Records the last use of keys. It ignores times before the recorded one and keys that do not exist.
    pub async fn touch_keys(&self, uses: Vec<(Id, Timestamp)>) -> Result<()> {
        let mut latest = BTreeMap::new();
        for (id, at) in uses {
            let found = latest.entry(id).or_insert(0);
            *found = at.as_millis().max(*found);
        }
        // Locked in the order of their ids, because other processes update the same keys.
        let sql = format!(
            "WITH uses AS (SELECT key AS id, CAST(value AS bigint) AS at FROM {}),
             locked AS MATERIALIZED (SELECT id FROM api_keys WHERE id IN (SELECT id FROM uses) ORDER BY id {})
             UPDATE api_keys SET last_used_at = uses.at FROM uses JOIN locked ON locked.id = uses.id
             WHERE api_keys.id = uses.id AND (api_keys.last_used_at IS NULL OR api_keys.last_used_at < uses.at)",
            self.driver.either("json_each($1)", "json_each_text(CAST(CAST($1 AS text) AS json))"),
            self.driver.either("", "FOR NO KEY UPDATE")
        );
        self.statement(Effect::TouchKeys, sql, &[&json(&latest)]).await.map(drop)
    }
}
