//! The identities of people at OpenID Connect providers.

use super::driver::{Store, Transaction};
use super::people::{PERSON, person};
use super::{Action, AuditedChange, Result, people};
use crate::failure::DbResult;
use tintype_domain::identity::Identity;
use tintype_domain::model::Id;
use tintype_domain::person::Person;
use tintype_system::fault::Effect;

/// The person with the identity $1, $2.
fn find() -> String {
    format!(
        "SELECT {PERSON} FROM people JOIN person_identities i ON i.person_id = people.id
         WHERE i.issuer = $1 AND i.subject = $2"
    )
}

/// The person with an identity.
pub(crate) async fn with_identity(
    tx: &Transaction<'_>,
    Identity { issuer, subject }: &Identity,
) -> DbResult<Option<Person>> {
    tx.find(&find(), &[issuer, subject], person).await
}

/// Gives a new person an identity.
pub(crate) async fn identify(tx: &Transaction<'_>, person_id: Id, Identity { issuer, subject }: &Identity) -> DbResult {
    let sql = "INSERT INTO person_identities (issuer, subject, person_id) VALUES ($1, $2, $3)";
    tx.execute(sql, &[issuer, subject, &person_id]).await?;
    Ok(())
}

/// Identities. Each belongs to at most one person, who has at most one per provider.
impl Store {
    /// The person with an identity.
    pub async fn find_identity(&self, identity: &Identity) -> Result<Option<Person>> {
        self.driver.find(&find(), &[&identity.issuer, &identity.subject], person).await
    }

    /// Whether a person has an identity of a provider.
    pub async fn has_identity(&self, person_id: Id, issuer: &str) -> Result<bool> {
        let sql = "SELECT 1 FROM person_identities WHERE person_id = $1 AND issuer = $2";
        Ok(self.driver.read_one(sql, &[&person_id, &issuer]).await?.is_some())
    }

    /// Gives a person an identity. Returns whether the person has it now: it may belong to another person, or the person
    /// may have another identity from this provider, or not exist.
    pub async fn link_identity(&self, person_id: Id, identity: &Identity) -> Result<bool> {
        let identity = identity.clone();
        self.write(Effect::LinkIdentity, async move |tx| {
            let Identity { issuer, subject } = &identity;
            // Of two processes that link the same identity, one waits here for the other.
            let sql = "INSERT INTO person_identities (issuer, subject, person_id)
                SELECT $1, $2, id FROM people WHERE id = $3 ON CONFLICT DO NOTHING";
            let added = tx.execute(sql, &[issuer, subject, &person_id]).await?;
            let found = with_identity(tx, &identity).await?.filter(|person| person.id == person_id);
            let Some(person) = found else { return Ok(false) };
            if added > 0 {
                tx.audit(AuditedChange::of_person(Action::LinkIdentity, &person).with(issuer)).await?;
            }
            Ok(true)
        })
        .await
    }

    /// Takes the identity of a provider from a person. Returns whether there was one.
    pub async fn unlink_identity(&self, person_id: Id, issuer: &str) -> Result<bool> {
        let issuer = issuer.to_owned();
        self.write(Effect::LinkIdentity, async move |tx| {
            let sql = "DELETE FROM person_identities WHERE person_id = $1 AND issuer = $2";
            if tx.execute(sql, &[&person_id, &issuer]).await? == 0 {
                return Ok(false);
            }
            let Some(person) = people::find(tx, person_id).await? else { return Ok(false) };
            tx.audit(AuditedChange::of_person(Action::UnlinkIdentity, &person).with(issuer.as_str())).await?;
            Ok(true)
        })
        .await
    }
}
