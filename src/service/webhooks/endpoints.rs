//! What owners and operators may do with the endpoints of an account.

use tintype_domain::endpoint::{AddedBy, Endpoint, EndpointState, EndpointUrl, MAX_ENDPOINTS, SigningSecret};
use tintype_domain::event::Subscription;
use tintype_domain::model::Id;
use tintype_store::{Addition, EndpointChange, NewEndpoint, Result, Store};

/// Why an endpoint was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointRefusal {
    /// The server would send nothing to its URL, which does not use https.
    NotHttps,
    /// The account has [`MAX_ENDPOINTS`].
    TooMany,
    /// The account is deleted.
    NoAccount,
}

/// Adds an endpoint that gets these events, and returns it with its secret, which cannot be read later. The server
/// may reach an endpoint of the operator by http, too, if that is or may be `in_reach`.
///
/// # Errors
/// [`StoreError`](tintype_store::StoreError); in it [`EndpointRefusal`].
pub async fn add(
    store: &Store,
    account_id: Id,
    url: EndpointUrl,
    events: Subscription,
    added_by: AddedBy,
    in_reach: bool,
) -> Result<std::result::Result<(Endpoint, SigningSecret), EndpointRefusal>> {
    if !url.is_https() && (added_by != AddedBy::Operator || !in_reach) {
        return Ok(Err(EndpointRefusal::NotHttps));
    }
    let secret = SigningSecret::random();
    let new = NewEndpoint { url, events, added_by, secret: secret.clone() };
    Ok(match store.add_endpoint(account_id, new, MAX_ENDPOINTS).await? {
        Addition::Created(endpoint) => Ok((endpoint, secret)),
        Addition::TooMany => Err(EndpointRefusal::TooMany),
        Addition::NotPossible => Err(EndpointRefusal::NoAccount),
    })
}

/// Whether an endpoint can be changed. An endpoint added by the operator belongs to the operator's receiver, which
/// would reject another secret's signatures.
pub fn may_change(endpoint: &Endpoint, operates: bool) -> bool {
    operates || endpoint.added_by == AddedBy::Owner
}

/// The URL as someone may know it: the operator's without its path and query, which may hold a secret.
pub fn shown_url(endpoint: &Endpoint, operates: bool) -> String {
    if may_change(endpoint, operates) { endpoint.url.as_str().to_owned() } else { endpoint.url.origin() }
}

/// Whether a change makes a difference to an endpoint.
pub fn changes(endpoint: &Endpoint, change: &EndpointChange) -> bool {
    match change {
        EndpointChange::Enable => endpoint.state() != EndpointState::Active,
        EndpointChange::Disable => endpoint.state() != EndpointState::Disabled,
        EndpointChange::Subscribe(events) => endpoint.events != *events,
        EndpointChange::Rotate { .. } => true,
    }
}
