//! Statements for identities.

use super::PostgresStore;
use super::connection::Transaction;
use super::people::{PERSON, person};
use crate::{Action, Deed, Identities, Linking, Result};
use async_trait::async_trait;
use tintype_domain::identity::Identity;
use tintype_domain::model::Id;
use tintype_domain::person::Person;
use tintype_system::fault::Effect;

/// Finds the person with the identity $1, $2.
pub(super) fn find() -> String {
    format!(
        "SELECT {PERSON} FROM people p JOIN person_identities i ON i.person_id = p.id
         WHERE i.issuer = $1 AND i.subject = $2"
    )
}

#[async_trait]
impl Identities for PostgresStore {
    async fn find_identity(&self, identity: &Identity) -> Result<Option<Person>> {
        self.database.read_one(&find(), &[&identity.issuer, &identity.subject]).await?.as_ref().map(person).transpose()
    }

    async fn has_identity(&self, person_id: Id, issuer: &str) -> Result<bool> {
        let sql = "SELECT 1 FROM person_identities WHERE person_id = $1 AND issuer = $2";
        Ok(self.database.read_one(sql, &[&person_id, &issuer]).await?.is_some())
    }

    async fn link_identity(&self, person_id: Id, identity: &Identity) -> Result<Linking> {
        let Identity { issuer, subject } = identity;
        let link = async |begun: &Transaction<'_>| {
            // Of two processes that link the same identity, one waits here for the other.
            let add = "INSERT INTO person_identities (issuer, subject, person_id)
                SELECT $1, $2, id FROM people WHERE id = $3 ON CONFLICT DO NOTHING";
            let added = begun.execute(add, &[issuer, subject, &person_id]).await?;
            let sql = format!(
                "SELECT {PERSON} FROM people p JOIN person_identities i ON i.person_id = p.id
                 WHERE i.issuer = $1 AND i.subject = $2 AND p.id = $3"
            );
            let row = begun.query_opt(&sql, &[issuer, subject, &person_id]).await?;
            let found = row.as_ref().map(person).transpose()?;
            let linking = if found.is_some() { Linking::Linked } else { Linking::Taken };
            Ok((linking, found.filter(|_| added > 0)))
        };
        let deed =
            |(_, person): &(Linking, Option<Person>)| Deed::of_identity(Action::LinkIdentity, person.as_ref(), issuer);
        Ok(self.write(Effect::LinkIdentity, self.recorded(link, deed)).await?.0)
    }

    async fn unlink_identity(&self, person_id: Id, issuer: &str) -> Result<bool> {
        let sql = format!(
            "WITH gone AS (
                 DELETE FROM person_identities WHERE person_id = $1 AND issuer = $2 RETURNING person_id
             )
             SELECT {PERSON} FROM people p JOIN gone ON gone.person_id = p.id"
        );
        let unlink = async |begun: &Transaction<'_>| {
            let row = begun.query_opt(&sql, &[&person_id, &issuer]).await?;
            Ok(row.as_ref().map(person).transpose()?)
        };
        let deed = |person: &Option<Person>| Deed::of_identity(Action::UnlinkIdentity, person.as_ref(), issuer);
        Ok(self.write(Effect::LinkIdentity, self.recorded(unlink, deed)).await?.is_some())
    }
}
