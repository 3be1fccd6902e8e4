//! Statements for sign-ups.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::accounts::refused;
use super::writer::Writing;
use super::{audit_log, identities, ledger};
use crate::ledger::NewEntry;
use crate::people::SIGN_UP_NOTE;
use crate::{Actor, Credential, Deed, SignUp, SigningUp};
use tintype_domain::identity::Identity;
use tintype_domain::ledger::check_opening;
use tintype_domain::model::EntryKind;
use tintype_domain::person::{Person, Role};
use tintype_system::clock::Timestamp;

/// Opens an account with its owner. A refusal for the name leaves the count of the attempt.
pub(super) fn sign_up(writing: &mut Writing, new: &SignUp) -> rusqlite::Result<SigningUp> {
    check_opening(new.credits).map_err(refused)?;
    let now = writing.clock.now();
    let (account_id, id) = (writing.ids.next(now), writing.ids.next(now));
    let connection = &writing.connection;
    if let Credential::Identity(identity) = &new.credential
        && let Some(person) = identities::find(connection, identity)?
    {
        return Ok(SigningUp::Known(person));
    }
    let counted = connection
        .prepare_cached(
            "INSERT INTO sign_ups (source, day, count) SELECT ?1, ?2, 1 WHERE ?3 > 0
             ON CONFLICT (source, day) DO UPDATE SET count = count + 1 WHERE count < ?3",
        )?
        .execute(params![new.source, now.day(), new.limit])?;
    if counted == 0 {
        return Ok(SigningUp::TooMany);
    }
    let taken: bool = connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM people WHERE name = ?1 OR id = ?1)")?
        .query_row([&new.name], |row| row.get(0))?;
    let name = match &new.credential {
        _ if !taken => new.name.clone(),
        Credential::Password(_) => return Ok(SigningUp::NameTaken),
        Credential::Identity(_) => new.name_with(id),
    };
    // A name of an account may be taken where that of a person is not; only the operator sees it.
    connection
        .prepare_cached(
            "INSERT INTO accounts (id, name, balance, admin) SELECT ?1, iif(
                 EXISTS (SELECT 1 FROM accounts WHERE name = ?2 OR id = ?2), ?2 || '-' || ?1, ?2
             ), ?3, 0",
        )?
        .execute(params![account_id, name, new.credits])?;
    if new.credits != 0 {
        let opening = NewEntry { note: Some(SIGN_UP_NOTE), ..NewEntry::new(EntryKind::Grant, new.credits) };
        ledger::record(connection, &opening, account_id, new.credits, now)?;
    }
    let role = Role::Owner;
    let (password, identity) = new.credential.parts();
    connection
        .prepare_cached("INSERT INTO people (id, account_id, name, role, password) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![id, account_id, name, role.as_str(), password])?;
    if let Some(Identity { issuer, subject }) = identity {
        let sql = "INSERT INTO person_identities (issuer, subject, person_id) VALUES (?1, ?2, ?3)";
        connection.prepare_cached(sql)?.execute(params![issuer, subject, id])?;
    }
    let (has_password, created_at) = (password.is_some(), id.timestamp());
    let person =
        Person { id, account_id, name, role, has_password, has_second_factor: false, suspension: None, created_at };
    let (actor, deed) = (Actor::newcomer(&person, &new.source), Deed::of_sign_up(&person, new));
    audit_log::record(writing, &actor, &deed)?;
    Ok(SigningUp::Done(person))
}

pub(super) fn count(connection: &Connection, source: &str, now: Timestamp) -> rusqlite::Result<u32> {
    let sql = "SELECT count FROM sign_ups WHERE source = ?1 AND day = ?2";
    let count = connection.prepare_cached(sql)?.query_row(params![source, now.day()], |row| row.get(0)).optional()?;
    Ok(count.unwrap_or(0))
}

pub(super) fn delete(writing: &mut Writing) -> rusqlite::Result<usize> {
    let today = writing.clock.now().day();
    writing.connection.prepare_cached("DELETE FROM sign_ups WHERE day < ?1")?.execute([today])
}
