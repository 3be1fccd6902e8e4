//! An OpenID Connect provider.

use crate::joining::JoinRules;

/// A provider, and this server there.
#[derive(Clone)]
pub struct OidcProvider {
    /// The URL of the provider.
    pub issuer: String,
    /// The id of this server.
    pub client_id: String,
    /// The secret of this server, if it has one.
    pub client_secret: Option<String>,
    /// Other audiences that may have the same ID tokens.
    pub audiences: Vec<String>,
    /// Its display name, if configured.
    pub name: Option<String>,
    /// The scopes to request.
    pub scopes: Vec<String>,
    /// The rules for new people to join an account.
    pub joins: JoinRules,
    /// The claim with the groups of a person.
    pub groups_claim: String,
    /// PEM of certificate authorities to trust in addition to the public ones.
    pub authorities: Option<Vec<u8>>,
}

crate::opaque_debug!(OidcProvider);
