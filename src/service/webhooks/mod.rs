//! Delivers events to the endpoints of accounts, as Standard Webhooks 1.0 says: at least once, with a new signature for
//! each attempt, on its schedule.
//!
//! Every process with an API delivers. The database determines which deliveries are due, and leases each to one process
//! at a time; if a process dies, another takes over. `attempt_slots.rs` keeps a slow or dead endpoint from taking
//! others' slots.

mod attempt_slots;
pub mod endpoints;
mod schedule;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::service::ServiceContext;
use crate::service::endings::Ending;
use tintype_config::POLL_EVERY;
use tintype_domain::endpoint::{AddedBy, Trouble};
use tintype_domain::event::{EventType, webhook_id};
use tintype_domain::model::{Id, Surface};
use tintype_outbound::receivers::{NoAnswer, ReceiverAnswer, Receivers, SignedRequest};
use tintype_store::{AttemptEnd, AttemptFailure, AttemptWrite, DeliveryClaim, DueEndpoint, EndpointEffect, Result};
use tintype_system::locked::Locked as _;

use self::attempt_slots::{AttemptSlot, AttemptSlots};

pub use self::attempt_slots::MAX_OF_ENDPOINT;

/// An attempt that hasn't ended after this time is repeated, by any process: longer than a request's time limit.
pub const ATTEMPT_LEASE: Duration = Duration::from_secs(30);
/// An endpoint is disabled when an attempt at an event that has waited for this long fails, and nothing was delivered to it
/// for this long. It is a little less than the schedule takes.
pub const DISABLE_AFTER: Duration = Duration::from_secs(3 * 24 * 60 * 60);
/// Endpoints read at once.
const BATCH: u32 = 256;
/// Shortest time between two attempts at a failing endpoint.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// Delivers the events of one installation, beside the deliverers of other processes.
#[derive(Debug)]
pub struct Deliverer {
    shared: Arc<ServiceContext>,
    receivers: Receivers,
    slots: Arc<AttemptSlots>,
    /// The endpoint after which the next round begins.
    cursor: Mutex<Option<Id>>,
}

struct Begun {
    claim: DeliveryClaim,
    _slot: AttemptSlot,
}

impl Deliverer {
    /// Delivers what the store of `shared` holds.
    pub fn new(shared: Arc<ServiceContext>, receivers: Receivers) -> Arc<Self> {
        Arc::new(Self { shared, receivers, slots: Arc::default(), cursor: Mutex::default() })
    }

    /// Delivers until `stop`, then finishes the deliveries in progress.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut endings = self.shared.endings.subscribe();
        let mut under_way = JoinSet::new();
        let mut is_blind = false;
        while !stop.is_cancelled() {
            match self.begin().await {
                Ok(begun) => {
                    is_blind = false;
                    for one in begun {
                        let deliverer = self.clone();
                        under_way.spawn(async move { deliverer.deliver(one).await });
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_blind, true) {
                        tracing::error!(%error, "could not poll for webhooks to deliver; retrying every second");
                    }
                    tokio::time::sleep(POLL_EVERY).await;
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(POLL_EVERY) => {}
                () = self.shared.endings.elsewhere.notified() => {}
                () = ending_of_api(&mut endings) => {}
                Some(ended) = under_way.join_next() => report(ended),
            }
            while let Some(ended) = under_way.try_join_next() {
                report(ended);
            }
        }
        while let Some(ended) = under_way.join_next().await {
            report(ended);
        }
    }

    /// Makes due deliveries for one round, and waits until they have ended. Returns the number of attempts.
    pub async fn step(&self) -> Result<usize> {
        let begun = self.begin().await?;
        let attempts = begun.len();
        join_all(begun.into_iter().map(|one| self.deliver(one))).await;
        Ok(attempts)
    }

    /// Begins as many attempts as there is room for.
    async fn begin(&self) -> Result<Vec<Begun>> {
        let due = self.due().await?;
        let shares = self.slots.share(&due);
        if due.len() >= BATCH as usize && !self.slots.is_filled_by(&shares) {
            // There may be more endpoints, and only their own limits left these out: the next round looks further.
            *self.cursor.locked() = due.last().map(|endpoint| endpoint.id);
        } else if !shares.is_empty() {
            // A round that could not serve all begins the next one where it stopped.
            let left_out = shares.len() < due.len() || due.len() == BATCH as usize;
            *self.cursor.locked() = shares.last().map(|(id, _)| *id).filter(|_| left_out);
        }
        if shares.is_empty() {
            return Ok(Vec::new());
        }
        let claims = self.shared.store.claim_deliveries(&shares, ATTEMPT_LEASE).await?;
        let begun = claims.into_iter().map(|claim| {
            let _slot = self.slots.take(&claim.endpoint);
            Begun { claim, _slot }
        });
        Ok(begun.collect())
    }

    /// Endpoints with due deliveries, starting after the one served last.
    async fn due(&self) -> Result<Vec<DueEndpoint>> {
        let after = *self.cursor.locked();
        let mut due = self.shared.store.due_endpoints(after, BATCH).await?;
        if after.is_some() && due.len() < BATCH as usize {
            let more = self.shared.store.due_endpoints(None, BATCH).await?;
            due.extend(more.into_iter().filter(|endpoint| Some(endpoint.id) <= after));
        }
        Ok(due)
    }

    async fn deliver(&self, begun: Begun) {
        let claim = &begun.claim;
        let answer = self.receivers.send(&claim.endpoint, self.signed(claim)).await;
        let end = self.judge(claim, answer);
        let outcome = match end {
            AttemptEnd::Delivered { .. } => "delivered",
            AttemptEnd::Failed(_) => "failed",
        };
        self.shared.metrics.webhook_attempted(outcome);
        let (delivery, endpoint) = (claim.id, claim.endpoint.id);
        match self.shared.store.end_attempt(delivery, claim.attempt, end).await {
            Ok(AttemptWrite::Disabled(reason)) => {
                let (origin, reason) = (claim.endpoint.url.origin(), reason.as_str());
                tracing::warn!(%endpoint, origin, reason, "endpoint disabled; `tintype webhook enable` enables it again");
            }
            Ok(AttemptWrite::Done) => {}
            Ok(AttemptWrite::Lost) => tracing::info!(%delivery, "another attempt at this delivery has already started"),
            Err(error) => {
                tracing::error!(%delivery, %error, "could not record the end of a delivery attempt; the event will be sent again");
            }
        }
    }

    /// The request of an attempt, with the signatures of this moment.
    fn signed(&self, claim: &DeliveryClaim) -> SignedRequest {
        let (id, body) = (webhook_id(claim.event.id), claim.event.body());
        let seconds = self.shared.store.now().as_millis().div_euclid(1_000);
        let signatures: Vec<_> = claim.secrets.iter().map(|secret| secret.sign(&id, seconds, &body)).collect();
        let headers = [
            ("webhook-id", id),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", signatures.join(" ")),
        ];
        SignedRequest { headers, body }
    }

    /// The end of an attempt with this answer.
    fn judge(&self, claim: &DeliveryClaim, answer: std::result::Result<ReceiverAnswer, NoAnswer>) -> AttemptEnd {
        let now = self.shared.store.now();
        let (delivery, endpoint, attempt) = (claim.id, claim.endpoint.id, claim.attempt);
        let (status, trouble, retry_after) = match answer {
            Ok(ReceiverAnswer { status, .. }) if (200..300).contains(&status) => {
                tracing::debug!(%delivery, %endpoint, attempt, status, "webhook delivered");
                return AttemptEnd::Delivered { status };
            }
            Ok(ReceiverAnswer { status, retry_after }) => {
                tracing::info!(%delivery, %endpoint, attempt, status, "webhook refused by its receiver");
                (Some(status), None, retry_after.map(schedule::accepted))
            }
            Err(NoAnswer { trouble, cause }) => {
                let origin = claim.endpoint.url.origin();
                tracing::info!(%delivery, %endpoint, origin, attempt, cause, "webhook not delivered");
                (None, Some(shown(trouble, claim.endpoint.added_by)), None)
            }
        };
        let is_test = claim.event.kind == EventType::Test;
        let dead = now.saturating_sub(DISABLE_AFTER);
        let effect = match status {
            Some(410) => EndpointEffect::Gone,
            _ if is_test => EndpointEffect::Nothing,
            _ if claim.id.timestamp() <= dead => EndpointEffect::FailingSince(dead),
            _ => EndpointEffect::Failing,
        };
        let again_in = match effect {
            EndpointEffect::Gone | EndpointEffect::Nothing => None,
            _ => schedule::wait_after(attempt, retry_after, rand::random::<f64>()),
        };
        let hold = retry_after.unwrap_or_default().max(MIN_PAUSE);
        AttemptEnd::Failed(AttemptFailure { status, trouble, again_in, hold, effect })
    }
}

/// The trouble as the people of the account see it. An owner does not learn which names and addresses are private.
fn shown(trouble: Trouble, added_by: AddedBy) -> Trouble {
    match (trouble, added_by) {
        (Trouble::Address, AddedBy::Owner) => Trouble::Unreachable,
        _ => trouble,
    }
}

/// Waits until this process has ended a task of the API, or may have.
async fn ending_of_api(endings: &mut Receiver<Ending>) {
    loop {
        match endings.recv().await {
            Ok(Ending { task, .. }) if task.surface == Surface::Web => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => return std::future::pending().await,
        }
    }
}

fn report(ended: std::result::Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "webhook delivery was interrupted; retrying");
    }
}
