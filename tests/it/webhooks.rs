//! Webhooks: what receivers are sent, when, and what cannot reach whom.

use serde_json::Value;
use tintype_domain::endpoint::{AddedBy, Delivery, Endpoint, SigningSecret};
use tintype_domain::event::Subscription;
use tintype_domain::model::Id;
use tintype_store::{Addition, NewEndpoint, Result, Store};

use crate::rigs::service::Service;

mod command;
pub mod delivery;
pub mod hostile;

/// Names the network of the receivers of these tests.
pub const NETWORK: [&str; 2] = ["--webhook-network", "127.0.0.0/8"];

/// Adds an endpoint of an account; returns its secret, too.
pub async fn add(store: &Store, account: Id, url: &str, added_by: AddedBy) -> Result<(Endpoint, SigningSecret)> {
    let secret = SigningSecret::random();
    let new = NewEndpoint {
        url: url.parse().expect("a URL"),
        events: Subscription::to_all(),
        added_by,
        secret: secret.clone(),
    };
    match store.add_endpoint(account, new, 20).await? {
        Addition::Created(endpoint) => Ok((endpoint, secret)),
        refused => panic!("{refused:?}"),
    }
}

async fn found(service: &Service, endpoint: Id) -> Endpoint {
    service.shared.store.find_endpoint(endpoint).await.expect("a store").expect("an endpoint")
}

/// The deliveries to an endpoint, newest first.
async fn deliveries(service: &Service, endpoint: Id) -> Vec<Delivery> {
    service.shared.store.list_deliveries(endpoint, None, 1_000).await.expect("a store")
}

fn task_of(event: &Value) -> &str {
    event["data"]["task_id"].as_str().expect("a task_id")
}
