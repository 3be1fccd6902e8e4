//! Content policy strikes, and the suspension of keys and people that follows.

use super::driver::{Row, Transaction};
use super::keys::{KEY, api_key};
use super::people::{self, PERSON, person};
use super::{Action, Actor, AuditedChange, Refused, StrikeRule, audit_log, deliveries};
use crate::failure::DbResult;
use tintype_domain::event::{self, EventType};
use tintype_domain::model::Id;

/// The condition for the strikes of the key $1 and of those that it was rotated from and to. An old key
/// works beside the new one for a while, and its strikes count for both.
pub(crate) const OF_ROTATED_KEYS: &str =
    "key_id IN (SELECT id FROM api_keys WHERE first_id = (SELECT first_id FROM api_keys WHERE id = $1))";

/// A key or a person that gets a strike.
struct StrikeTarget<'a> {
    id: Id,
    /// Its table, and its columns to return.
    table: &'a str,
    columns: &'a str,
    /// The table of strikes, and the column there with the id.
    strikes: &'a str,
    column: &'a str,
    /// The condition for the strikes that count, with the id $1.
    counts: &'a str,
}

/// Adds a strike to the key of a refused task and the person who made the key, or without a key to the task's person.
pub(crate) async fn strike(
    tx: &Transaction<'_>,
    task_id: Id,
    key_id: Option<Id>,
    mut person_id: Option<Id>,
    rule: StrikeRule,
) -> DbResult<Refused> {
    let mut refused = Refused::default();
    if let Some(key_id) = key_id {
        refused.suspended_key = of_key(tx, task_id, key_id, rule).await?.then_some(key_id);
        let sql = "SELECT made_by FROM api_keys WHERE id = $1";
        person_id = tx.find(sql, &[&key_id], |row| row.get("made_by")).await?.flatten();
    }
    if let Some(person_id) = person_id {
        refused.suspended_person = of_person(tx, task_id, person_id, rule).await?.then_some(person_id);
    }
    Ok(refused)
}

/// Adds a strike to the key of a task; returns whether that suspends the key, which the audit log records.
async fn of_key(tx: &Transaction<'_>, task_id: Id, key_id: Id, rule: StrikeRule) -> DbResult<bool> {
    let (strikes, column) = ("strikes", "key_id");
    let struck = StrikeTarget { id: key_id, table: "api_keys", columns: KEY, strikes, column, counts: OF_ROTATED_KEYS };
    // Concurrent strikes of rotated keys wait for each other, so that each counts the others.
    if lock_rotated_keys(tx, key_id).await?.is_none() {
        return Ok(false);
    }
    let Some(row) = add(tx, task_id, &struck, rule).await? else { return Ok(false) };
    let key = api_key(&row)?;
    let audited = AuditedChange::of_key(Action::SuspendKey, &key).with(rule);
    audit_log::record(tx, &Actor::policy(), &audited).await?;
    let data = event::of_suspended_key(&key).to_string();
    deliveries::queue_event(tx, key.account_id, EventType::KeySuspended, &data, tx.now()).await?;
    Ok(true)
}

/// Adds a strike to a person, if there still is one; returns whether that suspends the person, which the audit log
/// records.
async fn of_person(tx: &Transaction<'_>, task_id: Id, person_id: Id, rule: StrikeRule) -> DbResult<bool> {
    let (strikes, column) = ("person_strikes", "person_id");
    let struck =
        StrikeTarget { id: person_id, table: "people", columns: PERSON, strikes, column, counts: "person_id = $1" };
    // The row lock makes concurrent strikes wait, so that they count this one too.
    if !people::lock(tx, person_id).await? {
        return Ok(false);
    }
    let Some(row) = add(tx, task_id, &struck, rule).await? else { return Ok(false) };
    let audited = AuditedChange::of_person(Action::SuspendPerson, &person(&row)?).with(rule);
    audit_log::record(tx, &Actor::policy(), &audited).await?;
    Ok(true)
}

/// Locks a key and the first one that it was rotated from, as a rotation does; returns nothing if there is no such key.
pub(crate) async fn lock_rotated_keys(tx: &Transaction<'_>, key_id: Id) -> DbResult<Option<Row>> {
    let keys = "SELECT 1 FROM api_keys WHERE id IN ($1, (SELECT first_id FROM api_keys WHERE id = $1)) ORDER BY id";
    tx.lock(keys, &[&key_id]).await
}

/// Adds a strike to a row that is locked; returns its columns if that suspends it.
async fn add(tx: &Transaction<'_>, task_id: Id, struck: &StrikeTarget<'_>, rule: StrikeRule) -> DbResult<Option<Row>> {
    let StrikeTarget { id, table, columns, strikes, column, counts } = struck;
    let now = tx.now();
    let old = format!("DELETE FROM {strikes} WHERE {counts} AND created_at <= $2");
    tx.execute(&old, &[id, &now.saturating_sub(rule.window)]).await?;
    let strike = format!("INSERT INTO {strikes} (task_id, {column}, created_at) VALUES ($1, $2, $3)");
    tx.execute(&strike, &[&task_id, id, &now]).await?;
    // Tasks in progress may add further strikes; the first suspension remains.
    let suspend = format!(
        "UPDATE {table} SET suspended_at = $2, suspended_for = $3 WHERE id = $1 AND suspended_at IS NULL
         AND (SELECT count(*) FROM {strikes} WHERE {counts}) >= $4 RETURNING {columns}"
    );
    tx.query_opt(&suspend, &[id, &now, &rule.to_string(), &rule.limit]).await
}
