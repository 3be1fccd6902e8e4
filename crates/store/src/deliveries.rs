//! Deliveries of events to endpoints. Events are written by the methods that make them happen: the end of a task and
//! the suspension of a key are told in their own commit.

use std::sync::PoisonError;
use std::time::Duration;

use async_trait::async_trait;

use super::driver::Transaction;
use super::{Result, postgres, sqlite};
use crate::failure::Failure;
use tintype_domain::endpoint::{Delivery, DisabledFor, Endpoint, SigningSecret, Trouble};
use tintype_domain::event::{Event, EventType};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Longest time between two attempts. A delivery that is due later than that was postponed before the clock was set
/// back, and counts as due.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30 * 60 * 60);

/// An endpoint with deliveries that are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueEndpoint {
    /// The endpoint.
    pub id: Id,
    /// Its account.
    pub account_id: Id,
    /// Whether its latest attempt failed.
    pub is_failing: bool,
}

/// A delivery whose attempt has begun.
#[derive(Debug, Clone)]
pub struct DeliveryClaim {
    /// The delivery.
    pub id: Id,
    /// The number of this attempt, from 1. A later attempt has another one, so that it tells whose outcome counts.
    pub attempt: u32,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its secret, and the one before if that still signs.
    pub secrets: Vec<SigningSecret>,
    /// The event.
    pub event: Event,
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The receiver took it.
    Delivered {
        /// The status of its answer.
        status: u16,
    },
    /// The receiver did not.
    Failed(AttemptFailure),
}

/// A failed attempt, and the consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptFailure {
    /// The status of the answer.
    pub status: Option<u16>,
    /// The reason why there was none.
    pub trouble: Option<Trouble>,
    /// Wait before the next attempt; `None` gives the delivery up.
    pub again_in: Option<Duration>,
    /// Time for which the endpoint gets nothing at all.
    pub hold: Duration,
    /// The consequence for the endpoint.
    pub verdict: Verdict,
}

/// The consequence of a failed attempt for its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// None.
    Nothing,
    /// It is failing from now on, if it was not already.
    Failing,
    /// It is failing; if it has been since this time or before, it is disabled.
    FailingSince(Timestamp),
    /// It is disabled: there is no receiver any more.
    Gone,
}

/// Outcome of the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptWrite {
    /// It was written down.
    Done,
    /// It was written down, and its endpoint was disabled.
    Disabled(DisabledFor),
    /// Nothing was changed: another attempt has begun, or the delivery is gone.
    Lost,
}

/// Deliveries of events to endpoints.
#[async_trait]
pub trait Deliveries: std::fmt::Debug + Send + Sync + 'static {
    /// Writes an event that tries an endpoint, to be sent before all others and without regard to the wait of the
    /// endpoint, unless one waits to be sent so. Returns its delivery; `None` if the endpoint is disabled or does not
    /// exist.
    async fn test_endpoint(&self, id: Id) -> Result<Option<Id>>;

    /// Sends a delivery that has ended once more, as a new delivery of the same event, or one that waits at once;
    /// before all others and without regard to the wait of the endpoint. While the event waits to be sent so, that is
    /// enough. Returns the delivery that is sent; `None` if there is none, or its endpoint is disabled.
    async fn replay_delivery(&self, id: Id) -> Result<Option<Id>>;

    /// The delivery with this id.
    async fn find_delivery(&self, id: Id) -> Result<Option<Delivery>>;

    /// Deliveries to an endpoint, newest first, older than the delivery `before`.
    async fn list_deliveries(&self, endpoint_id: Id, before: Option<Id>, limit: u32) -> Result<Vec<Delivery>>;

    /// Endpoints with deliveries that are due, in the order of their ids, after the endpoint `after`.
    async fn due_endpoints(&self, after: Option<Id>, limit: u32) -> Result<Vec<DueEndpoint>>;

    /// Begins attempts at the deliveries that have been due for longest, up to so many of each of these endpoints. A
    /// delivery is due again after `lease`, unless [`Deliveries::end_attempt`] comes first.
    async fn claim_deliveries(&self, wanted: &[(Id, u32)], lease: Duration) -> Result<Vec<DeliveryClaim>>;

    /// Ends the attempt of this number at a delivery.
    async fn end_attempt(&self, delivery: Id, attempt: u32, end: AttemptEnd) -> Result<AttemptWrite>;

    /// Deletes the deliveries that were written before `cutoff`, and gives up the oldest of more than `most_waiting`
    /// that wait for an endpoint. Returns the number of both.
    async fn trim_deliveries(&self, cutoff: Timestamp, most_waiting: u32) -> Result<usize>;

    /// Number of deliveries that wait for an attempt or its end.
    async fn waiting_deliveries(&self) -> Result<u64>;
}

/// Tells the endpoints of an account of an event that is not the end of a task.
pub(crate) async fn tell(
    begun: &Transaction<'_>,
    account_id: Id,
    kind: EventType,
    data: &str,
    happened_at: Timestamp,
) -> std::result::Result<(), Failure> {
    match begun {
        Transaction::Sqlite(writing) => {
            let writing = writing.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(sqlite::tell(&writing, account_id, kind, data, happened_at)?)
        }
        Transaction::Postgres(database, begun) => {
            postgres::tell(database, begun, account_id, kind, data, happened_at).await
        }
    }
}
