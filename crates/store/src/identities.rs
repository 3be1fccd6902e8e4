//! The identities of people at OpenID Connect providers.

use async_trait::async_trait;

use super::Result;
use tintype_domain::identity::Identity;
use tintype_domain::model::Id;
use tintype_domain::person::Person;

/// Outcome of linking an identity with a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linking {
    /// The person has the identity.
    Linked,
    /// Nothing changed: the identity is another person's, the person has another one of this provider, or there is no
    /// such person.
    Taken,
}

/// Identities. One is that of at most one person, who has at most one of each provider.
#[async_trait]
pub trait Identities: std::fmt::Debug + Send + Sync + 'static {
    /// The person with an identity.
    async fn find_identity(&self, identity: &Identity) -> Result<Option<Person>>;

    /// Whether a person has an identity of a provider.
    async fn has_identity(&self, person_id: Id, issuer: &str) -> Result<bool>;

    /// Gives a person an identity.
    async fn link_identity(&self, person_id: Id, identity: &Identity) -> Result<Linking>;

    /// Takes the identity of a provider from a person. Returns whether there was one.
    async fn unlink_identity(&self, person_id: Id, issuer: &str) -> Result<bool>;
}
