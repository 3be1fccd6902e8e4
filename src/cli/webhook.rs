//! `tintype webhook`: endpoints that receive events, and deliveries to them.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::owners::{AccountFilterArgs, owner_name};
use super::printing::{JsonArgs, quoted, show, show_once, show_verdict};
use super::values::whole_number;
use super::{Failure, Outcome, complain, find_account, open_store, or_dash, table};
use crate::service::webhooks::endpoints::{self, EndpointRefusal};
use tintype_config::{AdoptedSettings, DataSettings, WebhookNetworks, overlap};
use tintype_domain::endpoint::{
    AddedBy, Delivery, DeliveryState, DisabledFor, Endpoint, EndpointState, EndpointUrl, MAX_ENDPOINTS, SigningSecret,
    Trouble,
};
use tintype_domain::event::{EventType, Subscription, webhook_id};
use tintype_domain::model::Id;
use tintype_domain::text::in_words;
use tintype_outbound::receivers::is_reachable;
use tintype_store::{EndpointChange, Store};

/// How long `test` waits for a server to send its event: longer than a request may take.
const TEST_PATIENCE: Duration = Duration::from_secs(20);
const TEST_PAUSE: Duration = Duration::from_millis(100);
const LISTED: &str = "50";

#[derive(Debug, Subcommand)]
pub(super) enum WebhookCommand {
    /// Add an endpoint and print its secret, which cannot be shown again
    Add(AddArgs),
    /// List endpoints without their secrets
    List(AccountFilterArgs),
    /// Send a `webhook.test` event and show the result
    Test(OneEndpointArgs),
    /// Stop sending events to an endpoint and discard pending ones
    Disable(OneEndpointArgs),
    /// Send new events to a disabled endpoint again
    Enable(OneEndpointArgs),
    /// Give an endpoint a new secret; both sign during the overlap
    Rotate(RotateArgs),
    /// Remove an endpoint and its deliveries
    Remove(OneEndpointArgs),
    /// List the deliveries to an endpoint, newest first
    Deliveries(DeliveriesArgs),
    /// Send a delivery again, with the same webhook-id
    Replay(ReplayArgs),
}

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    /// Name or id of the account
    #[arg(long, value_name = "NAME")]
    account: String,
    /// URL of the receiver: https, or http in a network that the server names with --webhook-network
    url: EndpointUrl,
    /// Types of events [default: all]
    #[arg(long = "event", value_name = "TYPE", num_args = 1.., value_delimiter = ',',
          value_parser = PossibleValuesParser::new(EventType::SUBSCRIBABLE.map(EventType::as_str)))]
    events: Vec<String>,
    #[command(flatten)]
    networks: WebhookNetworks,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct OneEndpointArgs {
    /// Id of the endpoint, as shown by `webhook list`
    #[arg(allow_hyphen_values = true)]
    id: Id,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct RotateArgs {
    #[command(flatten)]
    endpoint: OneEndpointArgs,
    /// How long deliveries are also signed with the old secret
    #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = overlap)]
    overlap: Duration,
}

#[derive(Debug, Args)]
pub(super) struct DeliveriesArgs {
    #[command(flatten)]
    endpoint: OneEndpointArgs,
    /// Number of deliveries to show
    #[arg(long, default_value = LISTED, value_name = "N", value_parser = whole_number::<u32>(0..=i64::from(u32::MAX)))]
    limit: u32,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Id of the delivery, as shown by `webhook deliveries`
    #[arg(allow_hyphen_values = true)]
    delivery: Id,
    #[command(flatten)]
    json: JsonArgs,
}

fn endpoint_json(endpoint: &Endpoint, account: &str) -> Value {
    json!({
        "id": endpoint.id,
        "account": account,
        "url": endpoint.url,
        "events": endpoint.events,
        "added_by": endpoint.added_by,
        "state": endpoint.state(),
        "failing_since": endpoint.failing_since,
        "disabled_at": endpoint.disabled_at,
        "disabled_for": endpoint.disabled_for,
        "created_at": endpoint.id.timestamp(),
    })
}

fn delivery_json(delivery: &Delivery) -> Value {
    json!({
        "id": delivery.id,
        "webhook_id": webhook_id(delivery.event_id),
        "type": delivery.kind,
        "state": delivery.state(),
        "attempts": delivery.attempts,
        "status": delivery.status,
        "trouble": delivery.trouble,
        "created_at": delivery.id.timestamp(),
        "next_attempt_at": delivery.next_at(),
        "delivered_at": delivery.delivered_at,
    })
}

fn last_outcome(delivery: &Delivery) -> String {
    match (delivery.status, delivery.trouble) {
        (Some(status), _) => format!("status {status}"),
        (None, Some(Trouble::Timeout)) => "no answer in time".into(),
        (None, Some(Trouble::Unreachable)) => {
            "no connection or no HTTP response: check its name, port and certificate".into()
        }
        (None, Some(Trouble::Address)) => "its address is in no network of --webhook-network".into(),
        (None, None) => "-".into(),
    }
}

pub(super) async fn run(command: WebhookCommand, data: &DataSettings, adopted: &AdoptedSettings) -> Outcome {
    let store = open_store(data).await?;
    match command {
        WebhookCommand::Add(args) => add(args, &store, data, adopted).await,
        WebhookCommand::List(args) => list(args, &store).await,
        WebhookCommand::Test(args) => test(args, &store).await,
        WebhookCommand::Disable(args) => change(args, EndpointChange::Disable, &store).await,
        WebhookCommand::Enable(args) => change(args, EndpointChange::Enable, &store).await,
        WebhookCommand::Rotate(args) => rotate(args, &store).await,
        WebhookCommand::Remove(args) => remove(args, &store).await,
        WebhookCommand::Deliveries(args) => deliveries(args, &store).await,
        WebhookCommand::Replay(args) => replay(args, &store).await,
    }
}

async fn add(args: AddArgs, store: &Store, data: &DataSettings, adopted: &AdoptedSettings) -> Outcome {
    let account = find_account(store, &args.account).await?;
    // On PostgreSQL another process may send the events.
    let is_known = adopted.is_running && data.database()?.path().is_some();
    let (is_reachable, origin) = (is_reachable(&args.url, args.networks.all()), args.url.origin());
    let kinds = args.events.iter().map(|name| name.parse()).collect::<Result<Vec<EventType>, _>>()?;
    let events = Subscription::to(&kinds).unwrap_or_else(Subscription::to_all);
    match endpoints::add(store, account.id, args.url, events, AddedBy::Operator, is_reachable || !is_known).await? {
        Ok((endpoint, secret)) => {
            if !is_reachable {
                let advice = "the server needs its network as --webhook-network CIDR";
                complain(&format!("note: {origin} is not a public address reached by https: {advice}"));
            }
            let unprinted = "the secret of the new endpoint could not be printed, so the endpoint was removed";
            let printed = show_secret(args.json, &endpoint, (&secret, ""), unprinted);
            if printed.is_err() {
                store.remove_endpoint(endpoint.id).await?;
            }
            printed
        }
        Err(EndpointRefusal::TooMany) => Err(Failure(format!(
            "account {} has {MAX_ENDPOINTS} endpoints, which is the most: remove one with `tintype webhook remove`",
            account.name
        ))),
        Err(EndpointRefusal::NoAccount) => Err(Failure(format!("account {} is deleted", account.name))),
        Err(EndpointRefusal::NotHttps) => {
            let advice = "use https, or restart it with the receiver's network as --webhook-network CIDR";
            Err(Failure(format!("the server sends events by plain http only in named networks: {advice}")))
        }
    }
}

fn show_secret(
    json: JsonArgs,
    endpoint: &Endpoint,
    (secret, note): (&SigningSecret, &str),
    unprinted: &str,
) -> Outcome {
    let secret = secret.reveal();
    let note =
        format!("Signing secret of endpoint {}. It will not be shown again: store it safely.{note}", endpoint.id);
    let with_secret = json!({ "id": endpoint.id, "url": endpoint.url, "secret": secret });
    show_once(json, &with_secret, (secret, &note), unprinted)
}

async fn list(args: AccountFilterArgs, store: &Store) -> Outcome {
    let owners = args.owners(store).await?;
    let endpoints = store.list_endpoints(owners.only).await?;
    let account = |endpoint: &Endpoint| owners.name(endpoint.account_id);
    let listed: Value = endpoints.iter().map(|endpoint| endpoint_json(endpoint, &account(endpoint))).collect();
    show(args.json, &listed, || {
        let rows = endpoints.iter().map(|endpoint| {
            let (account, url) = (account(endpoint), endpoint.url.as_str().to_owned());
            [endpoint.id.to_string(), account, state(endpoint), endpoint.events.to_string(), url]
        });
        table(["ID", "ACCOUNT", "STATE", "EVENTS", "URL"], rows)
    })
}

fn state(endpoint: &Endpoint) -> String {
    match (endpoint.state(), endpoint.disabled_for) {
        (EndpointState::Active, _) => "active".into(),
        (EndpointState::Failing, _) => format!("failing since {}", or_dash(endpoint.failing_since)),
        (EndpointState::Disabled, Some(DisabledFor::Gone)) => "disabled (its receiver answered 410 Gone)".into(),
        (EndpointState::Disabled, Some(DisabledFor::Failing)) => {
            format!("disabled (failing since {})", or_dash(endpoint.failing_since))
        }
        (EndpointState::Disabled, _) => "disabled".into(),
    }
}

async fn change(args: OneEndpointArgs, change: EndpointChange, store: &Store) -> Outcome {
    let endpoint = store.change_endpoint(args.id, change).await?.ok_or_else(|| no_such_endpoint(args.id))?;
    let account = owner_name(store, endpoint.account_id).await;
    show(args.json, &endpoint_json(&endpoint, &account), || {
        format!("Endpoint {} of {account} is {}.", endpoint.id, state(&endpoint))
    })
}

async fn rotate(args: RotateArgs, store: &Store) -> Outcome {
    let (id, secret) = (args.endpoint.id, SigningSecret::random());
    let endpoint = store.find_endpoint(id).await?.ok_or_else(|| no_such_endpoint(id))?;
    let overlap = in_words(args.overlap);
    let note = format!("\nThe previous secret stays valid for {overlap}.");
    let note = if args.overlap.is_zero() { "" } else { note.as_str() };
    // The present secret is lost with a rotation, so the new one must be printed first.
    let unprinted = "the new secret could not be printed, so nothing was rotated";
    show_secret(args.endpoint.json, &endpoint, (&secret, note), unprinted)?;
    let rotation = EndpointChange::Rotate { secret, overlap: args.overlap };
    let unused = |why: &dyn Display| Failure(format!("{why}; the secret that was printed signs nothing"));
    let changed = store.change_endpoint(id, rotation).await.map_err(|error| unused(&error))?;
    changed.map(|_| ExitCode::SUCCESS).ok_or_else(|| unused(&no_such_endpoint(id).0))
}

async fn remove(args: OneEndpointArgs, store: &Store) -> Outcome {
    let endpoint = store.remove_endpoint(args.id).await?.ok_or_else(|| no_such_endpoint(args.id))?;
    let account = owner_name(store, endpoint.account_id).await;
    show(args.json, &endpoint_json(&endpoint, &account), || {
        format!("Endpoint {} of {account} is removed, and its deliveries with it.", endpoint.id)
    })
}

/// Sends an event, and waits until a server has made an attempt at it.
async fn test(args: OneEndpointArgs, store: &Store) -> Outcome {
    check_can_send(store, args.id).await?;
    let id = store.test_endpoint(args.id).await?.ok_or("the endpoint was disabled or removed meanwhile")?;
    let mut waited = Duration::ZERO;
    let delivery = loop {
        let found = store.find_delivery(id).await?.ok_or("the endpoint was removed meanwhile")?;
        if found.state() != DeliveryState::Waiting || waited >= TEST_PATIENCE {
            break found;
        }
        tokio::time::sleep(TEST_PAUSE).await;
        waited += TEST_PAUSE;
    };
    let is_delivered = delivery.state() == DeliveryState::Delivered;
    show_verdict(is_delivered, args.json, &delivery_json(&delivery), || match delivery.state() {
        DeliveryState::Delivered => format!("Delivered: {}.", last_outcome(&delivery)),
        DeliveryState::Failed => format!("Not delivered: {}.", last_outcome(&delivery)),
        DeliveryState::Waiting => format!(
            "It is pending until a running server sends it; `tintype webhook deliveries {}` shows the result.",
            args.id
        ),
    })
}

async fn deliveries(args: DeliveriesArgs, store: &Store) -> Outcome {
    let id = args.endpoint.id;
    store.find_endpoint(id).await?.ok_or_else(|| no_such_endpoint(id))?;
    let deliveries = store.list_deliveries(id, None, args.limit).await?;
    let listed: Value = deliveries.iter().map(delivery_json).collect();
    show(args.endpoint.json, &listed, || {
        let rows = deliveries.iter().map(|delivery| {
            [
                delivery.id.to_string(),
                delivery.kind.to_string(),
                delivery.state().as_str().to_owned(),
                delivery.attempts.to_string(),
                last_outcome(delivery),
                or_dash(delivery.next_at()),
                webhook_id(delivery.event_id),
            ]
        });
        table(["ID", "TYPE", "STATE", "ATTEMPTS", "LAST", "NEXT", "WEBHOOK-ID"], rows)
    })
}

async fn replay(args: ReplayArgs, store: &Store) -> Outcome {
    let missing = || format!("there is no delivery {}; see `tintype webhook deliveries ID`", args.delivery);
    let found = store.find_delivery(args.delivery).await?.ok_or_else(missing)?;
    check_can_send(store, found.endpoint_id).await?;
    let id = store.replay_delivery(args.delivery).await?.ok_or("the endpoint was disabled or removed meanwhile")?;
    let delivery = store.find_delivery(id).await?.ok_or("the endpoint was removed meanwhile")?;
    show(args.json, &delivery_json(&delivery), || {
        format!("Sending delivery {id}. `tintype webhook deliveries {}` shows the result.", delivery.endpoint_id)
    })
}

/// Rejects an endpoint that no server currently sends anything to.
async fn check_can_send(store: &Store, id: Id) -> Result<(), Failure> {
    let endpoint = store.find_endpoint(id).await?.ok_or_else(|| no_such_endpoint(id))?;
    if endpoint.disabled_at.is_some() {
        return Err(Failure(format!("endpoint {id} is disabled: `tintype webhook enable {id}` enables it")));
    }
    let account = find_account(store, &endpoint.account_id.to_string()).await?;
    if account.disabled_at.is_some() {
        let name = &account.name;
        let command = format!("tintype account enable {}", quoted(name));
        return Err(Failure(format!("account {name} is disabled: `{command}` enables it")));
    }
    Ok(())
}

fn no_such_endpoint(id: Id) -> Failure {
    Failure(format!("there is no endpoint {id}: `tintype webhook list` shows all endpoints"))
}
