//! Statements for keys and their strikes.

use std::time::Duration;

use super::columns::{KEY, api_key, of_account};
use super::connection::{Database, Parameter, Transaction};
use super::endings::{LEASED, Loss};
use super::{PostgresStore, audit_log, budgets, deliveries};
use crate::failure::Failure;
use crate::{Actor, Deed, KeyChange, Keys, Lease, NewKey, Refusal, Result, StrikeRule, driver, strikes};
use async_trait::async_trait;
use tintype_domain::budget::Allowance;
use tintype_domain::event::{self, EventType};
use tintype_domain::key::{ApiKey, KeyHash};
use tintype_domain::model::{FailureCause, Id};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Adds a key to an account; `None` if the account does not exist.
pub(super) async fn add(
    begun: &Transaction<'_>,
    id: Id,
    account_id: Id,
    key: &NewKey,
    made_by: Option<Id>,
    by_operator: bool,
) -> std::result::Result<Option<ApiKey>, Failure> {
    let sql = format!(
        "INSERT INTO api_keys (id, first_id, account_id, hash, name, hint, submit_rate, read_rate, expires_at, budget,
                               budget_period, made_by, operator_budget)
         SELECT $1, $1, id, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12 FROM accounts WHERE id = $2 RETURNING {KEY}"
    );
    let (budget, period) = key.budget.map(|budget| (budget.credits, budget.period.as_str())).unzip();
    let (submit_rate, read_rate) = (key.submit_rate.map(i64::from), key.read_rate.map(i64::from));
    let parameters: [Parameter<'_>; 12] = [
        &id,
        &account_id,
        &&key.hash[..],
        &key.name,
        &key.hint,
        &submit_rate,
        &read_rate,
        &key.expires_at,
        &budget,
        &period,
        &made_by,
        &(by_operator && budget.is_some()),
    ];
    Ok(begun.query_opt(&sql, &parameters).await?.as_ref().map(api_key).transpose()?)
}

/// Ends the key $2 at the time $5 and adds the key $1, which takes over what is set for it.
const ROTATE: &str = "
    WITH old AS (
        UPDATE api_keys k SET expires_at = least(before.expires_at, $5::bigint)
        FROM (SELECT id, expires_at FROM api_keys WHERE id = $2 AND revoked_at IS NULL FOR NO KEY UPDATE) before
        WHERE k.id = before.id
        RETURNING k.first_id, k.account_id, k.name, k.submit_rate, k.read_rate, k.budget, k.budget_period,
            k.operator_budget, before.expires_at, k.disabled, k.suspended_at, k.suspended_for, k.made_by
    ), struck AS (
        UPDATE strikes SET key_id = $1 WHERE key_id = $2 AND EXISTS (SELECT 1 FROM old)
    )
    INSERT INTO api_keys
        (id, first_id, account_id, hash, name, hint, submit_rate, read_rate, budget, budget_period, operator_budget,
         expires_at, disabled, suspended_at, suspended_for, made_by)
    SELECT $1, first_id, account_id, $3, name, $4, submit_rate, read_rate, budget, budget_period, operator_budget,
        expires_at, disabled, suspended_at, suspended_for, made_by
    FROM old";

/// Raises the time of the last use of keys. They are locked in the order of their ids, because other processes update
/// the same keys.
const TOUCH: &str = "
    WITH uses AS (
        SELECT id, max(at) AS at FROM unnest($1::text[], $2::bigint[]) AS u (id, at) GROUP BY id
    ),
    locked AS MATERIALIZED (
        SELECT id FROM api_keys WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE
    )
    UPDATE api_keys k SET last_used_at = uses.at FROM uses JOIN locked USING (id)
    WHERE k.id = uses.id AND (k.last_used_at IS NULL OR k.last_used_at < uses.at)";

/// Fails and refunds a leased task and, if there is a strike rule, adds a strike to its key and the person who made
/// that, or to its person.
pub(super) async fn refuse(
    database: &Database,
    lease: Lease,
    error: &str,
    rule: Option<StrikeRule>,
) -> Result<Refusal> {
    let loss = Loss::now(FailureCause::Policy, error);
    let refuse = async |begun: &Transaction<'_>| {
        if rule.is_some() {
            // People who write lock themselves before tasks and accounts, and so does this.
            let person = "SELECT 1 FROM people WHERE id IN (SELECT coalesce(q.person_id, k.made_by) FROM queue q
                    LEFT JOIN api_keys k ON k.id = q.key_id WHERE q.task_id = $1)
                FOR NO KEY UPDATE";
            begun.execute(person, &[&lease.task_id]).await?;
        }
        let given_up = loss.give_up(database, begun, LEASED, &[&lease.task_id, &lease.epoch]).await?;
        let Some((_, origin)) = given_up.failed.into_iter().next() else { return Ok(Refusal::Lost) };
        let Some(rule) = rule else { return Ok(Refusal::Done { suspended: None }) };
        let (mut suspended, mut person) = (None, origin.person_id);
        if let Some(key_id) = origin.key_id {
            suspended = strike(database, begun, lease.task_id, key_id, rule).await?.then_some(key_id);
            let made = begun.query_opt("SELECT made_by FROM api_keys WHERE id = $1", &[&key_id]).await?;
            person = made.map(|row| row.try_get("made_by")).transpose()?.flatten();
        }
        let driver = driver::Transaction::Postgres(database, begun);
        match person {
            Some(person) if strikes::of_person(&driver, lease.task_id, person, rule).await? => {
                Ok(Refusal::SuspendedPerson { person, key: suspended })
            }
            _ => Ok(Refusal::Done { suspended }),
        }
    };
    Ok(database.transaction(refuse).await?)
}

/// Adds a strike to the key of a task; returns whether it suspends the key, which the audit log tells.
async fn strike(
    database: &Database,
    begun: &Transaction<'_>,
    task_id: Id,
    key_id: Id,
    rule: StrikeRule,
) -> std::result::Result<bool, Failure> {
    let now = database.now();
    let begin = now.saturating_sub(rule.window);
    // The row lock makes concurrent strikes wait, so that they count this one too.
    begun.execute("SELECT 1 FROM api_keys WHERE id = $1 FOR NO KEY UPDATE", &[&key_id]).await?;
    begun.execute("DELETE FROM strikes WHERE key_id = $1 AND created_at <= $2", &[&key_id, &begin]).await?;
    let strike = "INSERT INTO strikes (task_id, key_id, created_at) VALUES ($1, $2, $3)";
    begun.execute(strike, &[&task_id, &key_id, &now]).await?;
    // Tasks in progress may add further strikes; the first suspension remains.
    let suspend = format!(
        "UPDATE api_keys SET suspended_at = $2, suspended_for = $3 WHERE id = $1 AND suspended_at IS NULL
         AND (SELECT count(*) FROM strikes WHERE key_id = $1) >= $4 RETURNING {KEY}"
    );
    let parameters: [Parameter<'_>; 4] = [&key_id, &now, &rule.to_string(), &i64::from(rule.limit)];
    let Some(row) = begun.query_opt(&suspend, &parameters).await? else { return Ok(false) };
    let key = api_key(&row)?;
    audit_log::record(begun, database.new_id(), &Actor::policy(), &Deed::of_suspended_key(&key)).await?;
    let data = event::of_suspended_key(&key).to_string();
    deliveries::tell(database, begun, key.account_id, EventType::KeySuspended, &data, now).await?;
    Ok(true)
}

#[async_trait]
impl Keys for PostgresStore {
    async fn create_key(&self, account_id: Id, key: NewKey) -> Result<Option<ApiKey>> {
        let id = self.database.new_id();
        let by_operator = self.right.is_none();
        let add = async |begun: &Transaction<'_>| add(begun, id, account_id, &key, self.person(), by_operator).await;
        let create = self.recorded(add, |key| Deed::of_new_key(key.as_ref()));
        self.write(Effect::CreateKey, create).await
    }

    async fn find_key(&self, id: Id) -> Result<Option<ApiKey>> {
        let sql = format!("SELECT {KEY} FROM api_keys WHERE id = $1");
        self.database.read_one(&sql, &[&id]).await?.as_ref().map(api_key).transpose()
    }

    async fn find_allowance(&self, id: Id) -> Result<Option<Allowance>> {
        budgets::allowance(&self.database, id).await
    }

    async fn find_key_by_hash(&self, hash: KeyHash) -> Result<Option<ApiKey>> {
        let sql = format!("SELECT {KEY} FROM api_keys WHERE hash = $1");
        self.database.read_one(&sql, &[&&hash[..]]).await?.as_ref().map(api_key).transpose()
    }

    async fn list_keys(&self, account_id: Option<Id>) -> Result<Vec<ApiKey>> {
        let sql = format!("SELECT {KEY} FROM api_keys WHERE {} ORDER BY id", of_account(account_id));
        self.database.read(&sql, &[&account_id]).await?.iter().map(api_key).collect()
    }

    async fn change_key(&self, id: Id, change: KeyChange) -> Result<Option<ApiKey>> {
        let set = match change {
            KeyChange::Budget(budget) => {
                let make = async |begun: &Transaction<'_>| {
                    budgets::set(begun, id, budget, self.right.is_none()).await?;
                    let row = begun.query_opt(&format!("SELECT {KEY} FROM api_keys WHERE id = $1"), &[&id]).await?;
                    Ok(row.as_ref().map(api_key).transpose()?)
                };
                let deed = |key: &Option<ApiKey>| Deed::of_key(change, key.as_ref());
                return self.write(Effect::ChangeKey, self.recorded(make, deed)).await;
            }
            KeyChange::Enable => "disabled = false, suspended_at = NULL, suspended_for = NULL",
            KeyChange::Lift => "suspended_at = NULL, suspended_for = NULL",
            KeyChange::Disable => "disabled = true",
            KeyChange::Undisable => "disabled = false",
            KeyChange::Revoke => "revoked_at = coalesce(revoked_at, $2)",
            KeyChange::FlagLeaked => "leaked_at = coalesce(leaked_at, $2)",
        };
        let sql = format!(
            "WITH cleared AS (DELETE FROM strikes WHERE $3 AND key_id = $1 RETURNING task_id),
             of_maker AS (DELETE FROM person_strikes WHERE task_id IN (SELECT task_id FROM cleared))
             UPDATE api_keys SET {set} WHERE id = $1 AND $2::bigint IS NOT NULL RETURNING {KEY}"
        );
        let (now, clears) = (self.database.now(), matches!(change, KeyChange::Enable | KeyChange::Lift));
        let make = async |begun: &Transaction<'_>| {
            let row = begun.query_opt(&sql, &[&id, &now, &clears]).await?;
            Ok(row.as_ref().map(api_key).transpose()?)
        };
        let deed = |key: &Option<ApiKey>| Deed::of_key(change, key.as_ref());
        self.write(Effect::ChangeKey, self.recorded(make, deed)).await
    }

    async fn rotate_key(&self, id: Id, hash: KeyHash, hint: &str, overlap: Duration) -> Result<Option<ApiKey>> {
        let (new_id, hash, end) = (self.database.new_id(), &hash[..], self.database.now().saturating_add(overlap));
        let sql = format!("{ROTATE} RETURNING {KEY}");
        let rotate = async |begun: &Transaction<'_>| {
            // The lock of the key makes concurrent strikes wait, and that of the first key of its line makes changes of
            // their budget wait. The next statement sees everything that was committed before.
            let lock = "SELECT 1 FROM api_keys WHERE id IN ($1, (SELECT first_id FROM api_keys WHERE id = $1))
                ORDER BY id FOR NO KEY UPDATE";
            begun.execute(lock, &[&id]).await?;
            let new = begun.query_opt(&sql, &[&new_id, &id, &hash, &hint, &end]).await?;
            Ok(new.as_ref().map(api_key).transpose()?)
        };
        let rotate = self.recorded(rotate, |new| Deed::of_rotation(id, overlap, new.as_ref()));
        self.write(Effect::RotateKey, rotate).await
    }

    async fn touch_keys(&self, uses: Vec<(Id, Timestamp)>) -> Result<()> {
        let touch = async {
            let (ids, times): (Vec<Id>, Vec<Timestamp>) = uses.into_iter().unzip();
            self.database.write(TOUCH, &[&ids, &times]).await?;
            Ok(())
        };
        self.write(Effect::TouchKeys, touch).await
    }
}
