//! Endpoints of accounts, which are told of events.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use tintype_domain::endpoint::{AddedBy, Endpoint, EndpointUrl, SigningSecret};
use tintype_domain::event::Subscription;
use tintype_domain::model::Id;

/// An endpoint to add.
#[derive(Debug, Clone)]
pub struct NewEndpoint {
    /// Its URL.
    pub url: EndpointUrl,
    /// The types of events.
    pub events: Subscription,
    /// The one who adds it.
    pub added_by: AddedBy,
    /// The secret that signs.
    pub secret: SigningSecret,
}

/// Outcome of adding an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointCreation {
    /// It was added.
    Created(Box<Endpoint>),
    /// The account has as many as it may have.
    TooMany,
    /// There is no such account, or it is deleted.
    NoAccount,
}

/// A change to an endpoint.
#[derive(Debug, Clone)]
pub enum EndpointChange {
    /// Sends events again, from now on. None that was written before is sent.
    Enable,
    /// Sends no more events, and gives up those that wait.
    Disable,
    /// Replaces its secret. The one before signs too, for the time of the overlap.
    Rotate {
        /// The new secret.
        secret: SigningSecret,
        /// Time for which both sign.
        overlap: Duration,
    },
    /// Subscribes to these types instead.
    Subscribe(Subscription),
}

/// Endpoints of accounts.
#[async_trait]
pub trait Endpoints: std::fmt::Debug + Send + Sync + 'static {
    /// Adds an endpoint to an account that has fewer than `most`.
    async fn add_endpoint(&self, account_id: Id, new: NewEndpoint, most: u32) -> Result<EndpointCreation>;

    /// The endpoint with this id.
    async fn find_endpoint(&self, id: Id) -> Result<Option<Endpoint>>;

    /// The endpoints of one account, or of all, oldest first.
    async fn list_endpoints(&self, account_id: Option<Id>) -> Result<Vec<Endpoint>>;

    /// Changes an endpoint and returns it.
    async fn change_endpoint(&self, id: Id, change: EndpointChange) -> Result<Option<Endpoint>>;

    /// Removes an endpoint with its deliveries. Returns it as it was.
    async fn remove_endpoint(&self, id: Id) -> Result<Option<Endpoint>>;
}
