//! Statements for people who join an account by a rule.

use super::connection::{Database, Transaction};
use super::people::{self, person};
use super::{audit_log, identities, sign_up};
use crate::failure::Failure;
use crate::{Actor, Deed, Joining, Newcomer, PersonCreation};
use tintype_domain::identity::Identity;

/// Adds a person with an identity to an account.
pub(super) async fn join(
    database: &Database,
    begun: &Transaction<'_>,
    new: &Newcomer,
) -> std::result::Result<Joining, Failure> {
    let Identity { issuer, subject } = &new.identity;
    sign_up::lock(begun, &new.identity).await?;
    if let Some(row) = begun.query_opt(&identities::find(), &[issuer, subject]).await? {
        return Ok(Joining::Known(person(&row)?));
    }
    let id = database.new_id();
    let created = match people::create(begun, id, new.account_id, &new.name, new.role).await? {
        PersonCreation::NameTaken => people::create(begun, id, new.account_id, &new.name_with(id), new.role).await?,
        creation => creation,
    };
    let PersonCreation::Created(person) = created else { return Ok(Joining::NotPossible) };
    let sql = "INSERT INTO person_identities (issuer, subject, person_id) VALUES ($1, $2, $3)";
    begun.execute(sql, &[issuer, subject, &id]).await?;
    let (actor, deed) = (Actor::newcomer(&person, &new.source), Deed::of_newcomer(&person, new));
    audit_log::record(begun, database.new_id(), &actor, &deed).await?;
    Ok(Joining::Done(person))
}
