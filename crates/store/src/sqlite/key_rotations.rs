//! Lines of keys: a key and those that it was rotated to. They share a budget and rate limits.

use std::time::Duration;

use rusqlite::{Connection, params};

use super::accounts::{self, find_key};
use super::strikes;
use super::writer::Writing;
use crate::{KeyChange, NewKey};
use tintype_domain::key::{ApiKey, KeyHash};
use tintype_domain::model::Id;

/// Notes whether a line has a budget of the operator.
fn mark(connection: &Connection, id: Id, operator_budget: bool) -> rusqlite::Result<()> {
    let sql = "UPDATE api_keys SET operator_budget = ?2 WHERE first_id = (SELECT first_id FROM api_keys WHERE id = ?1)";
    connection.prepare_cached(sql)?.execute(params![id, operator_budget]).map(drop)
}

pub(super) fn create_key(
    writing: &mut Writing,
    account_id: Id,
    key: &NewKey,
    made_by: Option<Id>,
    by_operator: bool,
) -> rusqlite::Result<Option<ApiKey>> {
    let Some(created) = accounts::create_key(writing, account_id, key)? else { return Ok(None) };
    writing
        .connection
        .prepare_cached("UPDATE api_keys SET (made_by, operator_budget) = (?2, ?3) WHERE id = ?1")?
        .execute(params![created.id, made_by, by_operator && key.budget.is_some()])?;
    find_key(&writing.connection, created.id)
}

pub(super) fn change_key(
    writing: &mut Writing,
    id: Id,
    change: KeyChange,
    by_operator: bool,
) -> rusqlite::Result<Option<ApiKey>> {
    if let (KeyChange::Budget(budget), true) = (change, by_operator) {
        mark(&writing.connection, id, budget.is_some())?;
    }
    accounts::change_key(writing, id, change)
}

pub(super) fn rotate_key(
    writing: &mut Writing,
    id: Id,
    hash: KeyHash,
    hint: &str,
    overlap: Duration,
) -> rusqlite::Result<Option<ApiKey>> {
    let Some(old) = find_key(&writing.connection, id)?.filter(|old| old.revoked_at.is_none()) else { return Ok(None) };
    let end = writing.clock.now().saturating_add(overlap);
    writing
        .connection
        .prepare_cached("UPDATE api_keys SET expires_at = min(coalesce(expires_at, ?2), ?2) WHERE id = ?1")?
        .execute(params![id, end])?;
    let new = NewKey {
        hash,
        hint: hint.to_owned(),
        name: old.name,
        submit_rate: old.submit_rate,
        read_rate: old.read_rate,
        budget: old.budget,
        expires_at: old.expires_at,
    };
    let Some(new) = accounts::create_key(writing, old.account_id, &new)? else { return Ok(None) };
    strikes::hand_on(&writing.connection, old.id, new.id)?;
    writing
        .connection
        .prepare_cached(
            "UPDATE api_keys SET (first_id, operator_budget) =
             (SELECT first_id, operator_budget FROM api_keys WHERE id = ?1)
             WHERE id = ?2",
        )?
        .execute([old.id, new.id])?;
    find_key(&writing.connection, new.id)
}
