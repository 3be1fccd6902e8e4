//! Refusals by the content policy, and the suspension of keys and people because of them.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::writer::Writing;
use super::{accounts, audit_log, deliveries, endings};
use crate::driver::{Transaction, on_sqlite};
use crate::{Actor, Deed, Lease, Origin, Refusal, Result, StrikeRule, strikes};
use tintype_domain::event::{self, EventType};
use tintype_domain::model::{Id, TaskFailure};

/// Fails and refunds a leased task and, if there is a strike rule, adds a strike to its key and the person who made
/// that, or to its person.
pub(super) fn refuse(
    writing: &mut Writing,
    lease: Lease,
    failure: &TaskFailure,
    rule: Option<StrikeRule>,
) -> Result<Refusal> {
    let origin = match rule {
        Some(_) => endings::origin_of(&writing.connection, lease.task_id)?,
        None => Origin::default(),
    };
    if endings::fail(writing, lease, failure)? == crate::LeaseWrite::Lost {
        return Ok(Refusal::Lost);
    }
    let Some(rule) = rule else { return Ok(Refusal::Done { suspended: None }) };
    let (mut suspended, mut person) = (None, origin.person_id);
    if let Some(key_id) = origin.key_id {
        suspended = strike(writing, lease.task_id, key_id, rule)?.then_some(key_id);
        person = maker(&writing.connection, key_id)?;
    }
    let Some(person) = person else { return Ok(Refusal::Done { suspended }) };
    let strike = async |begun: &Transaction<'_>| strikes::of_person(begun, lease.task_id, person, rule).await;
    Ok(match on_sqlite(writing, strike)? {
        true => Refusal::SuspendedPerson { person, key: suspended },
        false => Refusal::Done { suspended },
    })
}

/// The person who made a key in the studio.
fn maker(connection: &Connection, key_id: Id) -> rusqlite::Result<Option<Id>> {
    connection
        .prepare_cached("SELECT made_by FROM api_keys WHERE id = ?1")?
        .query_row([key_id], |row| row.get(0))
        .optional()
        .map(Option::flatten)
}

/// Adds one strike; returns `true` if it suspends the key, which the audit log tells.
fn strike(writing: &mut Writing, task_id: Id, key_id: Id, rule: StrikeRule) -> rusqlite::Result<bool> {
    let connection = &writing.connection;
    let now = writing.clock.now();
    let begin = now.saturating_sub(rule.window);
    connection
        .prepare_cached("DELETE FROM strikes WHERE key_id = ?1 AND created_at <= ?2")?
        .execute(params![key_id, begin])?;
    connection
        .prepare_cached("INSERT INTO strikes (task_id, key_id, created_at) VALUES (?1, ?2, ?3)")?
        .execute(params![task_id, key_id, now])?;
    let strikes: u32 = connection
        .prepare_cached("SELECT count(*) FROM strikes WHERE key_id = ?1")?
        .query_row([key_id], |row| row.get(0))?;
    if strikes < rule.limit {
        return Ok(false);
    }
    // Tasks in progress may add further strikes; the first suspension remains.
    let suspended = connection
        .prepare_cached(
            "UPDATE api_keys SET suspended_at = ?2, suspended_for = ?3 WHERE id = ?1 AND suspended_at IS NULL",
        )?
        .execute(params![key_id, now, rule.to_string()])?;
    if suspended == 1
        && let Some(key) = accounts::find_key(connection, key_id)?
    {
        audit_log::record(writing, &Actor::policy(), &Deed::of_suspended_key(&key))?;
        let data = event::of_suspended_key(&key).to_string();
        deliveries::tell(writing, key.account_id, EventType::KeySuspended, &data, now)?;
    }
    Ok(suspended == 1)
}

/// Clears the strikes of a key, for the person who made it, too.
pub(super) fn forget(connection: &Connection, key_id: Id) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM person_strikes WHERE task_id IN (SELECT task_id FROM strikes WHERE key_id = ?1)")?
        .execute([key_id])?;
    connection.prepare_cached("DELETE FROM strikes WHERE key_id = ?1")?.execute([key_id]).map(drop)
}

/// Copies the strikes of a key to its replacement.
pub(super) fn hand_on(connection: &Connection, old: Id, new: Id) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE api_keys SET (disabled, suspended_at, suspended_for, made_by) =
                (SELECT disabled, suspended_at, suspended_for, made_by FROM api_keys WHERE id = ?1) WHERE id = ?2",
        )?
        .execute([old, new])?;
    connection.prepare_cached("UPDATE strikes SET key_id = ?2 WHERE key_id = ?1")?.execute([old, new]).map(drop)
}
