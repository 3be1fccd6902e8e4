//! Statements for identities.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::SqliteStore;
use super::people::person;
use super::writer::Writing;
use crate::{Action, Deed, Identities, Linking, Result};
use tintype_domain::identity::Identity;
use tintype_domain::model::Id;
use tintype_domain::person::Person;
use tintype_system::fault::Effect;

pub(super) fn find(connection: &Connection, identity: &Identity) -> rusqlite::Result<Option<Person>> {
    let sql = "SELECT p.* FROM people p JOIN person_identities i ON i.person_id = p.id
        WHERE i.issuer = ?1 AND i.subject = ?2";
    connection.prepare_cached(sql)?.query_row([&identity.issuer, &identity.subject], person).optional()
}

/// The person ?1, who has an identity of the provider ?2.
const OF_PERSON: &str = "SELECT p.* FROM people p JOIN person_identities i ON i.person_id = p.id
    WHERE p.id = ?1 AND i.issuer = ?2";

/// Links an identity; also returns the person if that changed something.
fn link(writing: &mut Writing, person_id: Id, identity: &Identity) -> rusqlite::Result<(Linking, Option<Person>)> {
    let (connection, Identity { issuer, subject }) = (&writing.connection, identity);
    let added = connection
        .prepare_cached(
            "INSERT INTO person_identities (issuer, subject, person_id)
             SELECT ?1, ?2, id FROM people WHERE id = ?3 ON CONFLICT DO NOTHING",
        )?
        .execute(params![issuer, subject, person_id])?;
    let sql = format!("{OF_PERSON} AND i.subject = ?3");
    let found = connection.prepare_cached(&sql)?.query_row(params![person_id, issuer, subject], person).optional()?;
    let linking = if found.is_some() { Linking::Linked } else { Linking::Taken };
    Ok((linking, found.filter(|_| added > 0)))
}

/// Removes an identity, and returns its person.
fn unlink(writing: &mut Writing, person_id: Id, issuer: &str) -> rusqlite::Result<Option<Person>> {
    let connection = &writing.connection;
    let found = connection.prepare_cached(OF_PERSON)?.query_row(params![person_id, issuer], person).optional()?;
    let sql = "DELETE FROM person_identities WHERE person_id = ?1 AND issuer = ?2";
    connection.prepare_cached(sql)?.execute(params![person_id, issuer])?;
    Ok(found)
}

#[async_trait]
impl Identities for SqliteStore {
    async fn find_identity(&self, identity: &Identity) -> Result<Option<Person>> {
        self.read(|connection| find(connection, identity))
    }

    async fn has_identity(&self, person_id: Id, issuer: &str) -> Result<bool> {
        let found = self.read(|connection| {
            connection.prepare_cached(OF_PERSON)?.query_row(params![person_id, issuer], person).optional()
        });
        Ok(found?.is_some())
    }

    async fn link_identity(&self, person_id: Id, identity: &Identity) -> Result<Linking> {
        let (identity, issuer) = (identity.clone(), identity.issuer.clone());
        let deed = move |(_, person): &(Linking, Option<Person>)| {
            Deed::of_identity(Action::LinkIdentity, person.as_ref(), &issuer)
        };
        let link = self.recorded(move |writing| link(writing, person_id, &identity), deed);
        Ok(self.write(Effect::LinkIdentity, link).await?.0)
    }

    async fn unlink_identity(&self, person_id: Id, issuer: &str) -> Result<bool> {
        let (own, issuer) = (issuer.to_owned(), issuer.to_owned());
        let deed = move |person: &Option<Person>| Deed::of_identity(Action::UnlinkIdentity, person.as_ref(), &issuer);
        let unlink = self.recorded(move |writing| unlink(writing, person_id, &own), deed);
        Ok(self.write(Effect::LinkIdentity, unlink).await?.is_some())
    }
}
