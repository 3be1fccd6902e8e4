//! Statements for people who join an account by a rule.

use rusqlite::params;

use super::writer::Writing;
use super::{audit_log, identities, people};
use crate::{Actor, Deed, Joining, Newcomer, PersonCreation};
use tintype_domain::identity::Identity;

/// Adds a person with an identity to an account.
pub(super) fn join(writing: &mut Writing, new: &Newcomer) -> rusqlite::Result<Joining> {
    if let Some(person) = identities::find(&writing.connection, &new.identity)? {
        return Ok(Joining::Known(person));
    }
    let id = writing.ids.next(writing.clock.now());
    let person = match people::create(writing, id, new.account_id, &new.name, new.role)? {
        PersonCreation::NameTaken => people::create(writing, id, new.account_id, &new.name_with(id), new.role)?,
        creation => creation,
    };
    let PersonCreation::Created(person) = person else { return Ok(Joining::NotPossible) };
    let Identity { issuer, subject } = &new.identity;
    let sql = "INSERT INTO person_identities (issuer, subject, person_id) VALUES (?1, ?2, ?3)";
    writing.connection.prepare_cached(sql)?.execute(params![issuer, subject, id])?;
    let (actor, deed) = (Actor::newcomer(&person, &new.source), Deed::of_newcomer(&person, new));
    audit_log::record(writing, &actor, &deed)?;
    Ok(Joining::Done(person))
}
