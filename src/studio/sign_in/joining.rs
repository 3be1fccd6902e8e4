//! People who join an account by a rule of the operator, and their roles at each later sign-in.

use super::agent;
use super::oidc::{disabled, lost, unknown};
use crate::studio::Studio;
use crate::studio::error::{PageError, PageResult};
use crate::studio::session::Guest;
use tintype_domain::identity::AuthenticationRequest;
use tintype_domain::joining::{Access, Claims, JoinRule};
use tintype_domain::person::Person;
use tintype_outbound::identity_provider::ProviderSignIn;
use tintype_store::{Actor, Newcomer, PersonAdded, PersonChange, Proof};

/// Adds someone new to the account of a rule, and signs that person in.
pub(super) async fn join(
    guest: &Guest,
    authentication: &AuthenticationRequest,
    sign_in: ProviderSignIn,
    rule: &JoinRule,
) -> PageResult {
    let studio = &guest.studio;
    let account = studio.shared.store.find_account(&rule.account).await?;
    let Some(account) = account.filter(|account| account.deleted_at.is_none()) else {
        tracing::warn!(%rule, "a rule of --oidc-join names an account that does not exist, so it has no effect");
        return Err(unknown());
    };
    if account.disabled_at.is_some() {
        return Err(disabled());
    }
    let ProviderSignIn { identity, name, .. } = sign_in;
    let new = Newcomer {
        account_id: account.id,
        name: studio.people.name_of(&name).await?,
        role: rule.role,
        identity: identity.clone(),
        source: guest.context.source.map(|source| source.to_string()).unwrap_or_default(),
    };
    let person = match studio.shared.store.join(new).await? {
        PersonAdded::Done(person) => {
            tracing::info!(person = %person.id, account = %account.id, %rule, "a person joined an account by a rule");
            person
        }
        PersonAdded::Known(person) => person,
        _ => {
            tracing::warn!(%rule, "cannot add a person by a rule of --oidc-join: the account has reached its limit of people");
            return Err(unknown());
        }
    };
    let proof = Proof::Identity(identity, authentication.began_at());
    let signed_in = studio.people.sign_in_as(&person, proof, agent(guest.headers())).await?.ok_or_else(lost)?;
    Ok(guest.enter(&signed_in))
}

/// Gives someone who signs in the role that the rules say, if roles follow them.
///
/// # Errors
/// The person has no access to the account any more.
pub(super) async fn follow(studio: &Studio, person: &Person, claims: &Claims) -> Result<(), PageError> {
    let joins = studio.provider()?.joins();
    let account = studio.shared.store.find_account(person.account_id.as_str()).await?;
    let Some(account) = account else { return Ok(()) };
    let store = studio.shared.store.acting(Actor::joining());
    match joins.access(&account, claims) {
        Access::Unmanaged => Ok(()),
        Access::Granted(role) if role == person.role => Ok(()),
        Access::Granted(role) => {
            match store.change_person(person.id, PersonChange::RoleByRule(role)).await? {
                Some(_) => {
                    tracing::info!(
                        person = %person.id, account = %account.id, %role, "role changed by an --oidc-join rule"
                    );
                }
                None => {
                    tracing::warn!(
                        person = %person.id, account = %account.id, %role,
                        "role not changed by an --oidc-join rule: the account would have no owner, or the person was removed"
                    );
                }
            }
            Ok(())
        }
        Access::Denied => {
            store.change_person(person.id, PersonChange::RevokeAccess).await?;
            tracing::info!(
                person = %person.id, account = %account.id,
                "person matches no --oidc-join rule any more; signed out everywhere"
            );
            Err(PageError::forbidden("oidc-shut-out"))
        }
    }
}
