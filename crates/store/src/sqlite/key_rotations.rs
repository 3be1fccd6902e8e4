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
            "UPDATE api_keys SET (first_id, operator_budget) = (SELECT first_id, operator_budget FROM api_keys WHERE id = ?1)
             WHERE id = ?2",
        )?
        .execute([old.id, new.id])?;
    find_key(&writing.connection, new.id)
}

#[cfg(test)]
mod tests {
    use super::super::schema::MIGRATIONS;
    use super::*;

    #[test]
    fn keys_that_owners_made_without_limits_get_those_of_the_server() {
        let connection = Connection::open_in_memory().expect("a database");
        let (before, rest) = MIGRATIONS.split_at(35);
        before.iter().for_each(|step| connection.execute_batch(step).expect("valid SQL"));
        let keys = "
            INSERT INTO accounts (id, name, balance, admin) VALUES ('a', 'ada', 0, 0), ('o', 'operator', 0, 1);
            INSERT INTO api_keys (id, first_id, account_id, hash, name, hint, submit_rate, read_rate, budget, budget_period)
            VALUES ('made', 'made', 'a', x'01', '', '', 0, 7, NULL, NULL), ('rotated', 'made', 'a', x'02', '', '', 0, 7, NULL, NULL),
                ('given', 'given', 'a', x'03', '', '', 0, 0, 5, 'day'), ('own', 'own', 'o', x'04', '', '', 0, 0, NULL, NULL);
            INSERT INTO audit_log (id, actor, via, action, account_id, subject) VALUES
                ('1', 'ada', 'studio', 'audit-create-key', 'a', 'made'), ('2', 'root', 'command', 'audit-create-key', 'a', 'given'),
                ('3', 'operator', 'studio', 'audit-create-key', 'o', 'own');";
        connection.execute_batch(keys).expect("valid SQL");
        connection.execute_batch(rest[0]).expect("valid SQL");
        let mut rows =
            connection.prepare("SELECT id, submit_rate, read_rate, operator_budget FROM api_keys").expect("SQL");
        let mut found: Vec<(String, Option<u32>, Option<u32>, bool)> = rows
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
            .expect("rows")
            .collect::<rusqlite::Result<_>>()
            .expect("rows");
        found.sort();
        let expected = [
            ("given", Some(0), Some(0), true),
            ("made", None, Some(7), false),
            ("own", Some(0), Some(0), false),
            ("rotated", None, Some(7), false),
        ];
        assert_eq!(found, expected.map(|(id, submit, read, budget)| (id.to_owned(), submit, read, budget)));
    }
}
