//! Deliveries of events to endpoints. What causes an event, such as the end of a task or the suspension of a key,
//! queues it in the same commit.
//!
//! A transaction that locks an endpoint and its deliveries locks the endpoint first. Other transactions never wait for
//! a lock on a delivery while they hold one.

use std::collections::HashMap;
use std::time::Duration;

use super::driver::{Dialect, Driver, List, Row, Store, Transaction, from_row};
use super::endpoints::{self, ENDPOINT, endpoint};
use super::tasks::{TASK, task, upper};
use super::{Action, Actor, AuditedChange, Result, StoreError, audit_log};
use crate::failure::DbResult;
use tintype_domain::endpoint::{Delivery, DisabledFor, Endpoint, SigningSecret, Trouble};
use tintype_domain::event::{self, Event, EventType};
use tintype_domain::model::{Id, Surface, Task};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

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

/// A delivery with an attempt in progress.
#[derive(Debug, Clone)]
pub struct DeliveryClaim {
    /// The delivery.
    pub id: Id,
    /// The number of this attempt, from 1. Only the outcome of the latest attempt counts.
    pub attempt: u32,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its secret, and the previous one if it still signs.
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
    /// Wait before the next attempt; `None` abandons the delivery.
    pub again_in: Option<Duration>,
    /// How long the endpoint gets nothing at all.
    pub hold: Duration,
    /// The consequence for the endpoint.
    pub effect: EndpointEffect,
}

/// The consequence of a failed attempt for its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointEffect {
    /// None.
    Nothing,
    /// It is failing from now on, if it was not already.
    Failing,
    /// It is failing; if it has been since this time or before, it is disabled.
    FailingSince(Timestamp),
    /// It is disabled, because its receiver is gone.
    Gone,
}

/// Outcome of the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptWrite {
    /// It was recorded.
    Done,
    /// It was recorded, and its endpoint was disabled.
    Disabled(DisabledFor),
    /// Nothing was changed: another attempt has begun, or the delivery is gone.
    Lost,
}

/// Rows deleted or abandoned per transaction, so that callers' writes can run in between.
const BATCH: i64 = 1_000;

/// A delivery that is due at this time goes before all others.
const AT_ONCE: Timestamp = Timestamp::from_millis(0);

/// Queues an event that is not the end of a task for the endpoints of an account.
pub(super) async fn queue_event(
    tx: &Transaction<'_>,
    account_id: Id,
    kind: EventType,
    data: &str,
    happened_at: Timestamp,
) -> DbResult {
    let event_id = tx.new_id();
    write(tx, account_id, &NewEvent { kind, event_id, data: Some(data), happened_at, due_at: happened_at }).await
}

/// Queues the end of a task for the endpoints of an account, if it is a task of the API.
pub(super) async fn queue_task_event(
    tx: &Transaction<'_>,
    account_id: Id,
    surface: Surface,
    kind: EventType,
    task_id: Id,
    ended_at: Timestamp,
) -> DbResult {
    if surface == Surface::Web {
        return Ok(());
    }
    let event = NewEvent { kind, event_id: task_id, data: None, happened_at: ended_at, due_at: ended_at };
    write(tx, account_id, &event).await
}

/// An event to queue. The end of a task has no data: they are read from the task.
struct NewEvent<'a> {
    kind: EventType,
    event_id: Id,
    data: Option<&'a str>,
    happened_at: Timestamp,
    due_at: Timestamp,
}

/// Writes a delivery to each endpoint of an account that subscribes to a type of events. It comes last in a
/// transaction, when all other locks are held.
async fn write(tx: &Transaction<'_>, account_id: Id, event: &NewEvent<'_>) -> DbResult {
    // One that someone removes at the same time is passed over.
    let subscribed = format!(
        "SELECT id FROM endpoints WHERE account_id = $1 AND disabled_at IS NULL
         AND {}(' ' || events || ' ', ' ' || $2 || ' ') > 0 {}",
        tx.position(),
        tx.locking("FOR KEY SHARE")
    );
    for row in tx.query(&subscribed, &[&account_id, &event.kind]).await? {
        add(tx, row.get("id")?, event).await?;
    }
    Ok(())
}

async fn add(tx: &Transaction<'_>, endpoint_id: Id, event: &NewEvent<'_>) -> DbResult<Id> {
    let (id, NewEvent { kind, event_id, data, happened_at, due_at }) = (tx.new_id(), event);
    let sql = "INSERT INTO deliveries (id, endpoint_id, event_id, type, data, happened_at, next_attempt_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)";
    tx.execute(sql, &[&id, &endpoint_id, event_id, &kind, data, happened_at, due_at]).await?;
    Ok(id)
}

const DELIVERY: &str = "id, endpoint_id, event_id, type, attempts, next_attempt_at, delivered_at, status, trouble";

from_row! { fn delivery(row) -> Delivery {
    id, endpoint_id, event_id, kind: row.get("type")?, attempts, next_attempt_at, delivered_at, status, trouble,
} }

/// Locks an endpoint, unless it is disabled; `false` if it is or does not exist.
async fn lock_enabled(tx: &Transaction<'_>, id: Id) -> DbResult<bool> {
    Ok(tx.lock("SELECT 1 FROM endpoints WHERE id = $1 AND disabled_at IS NULL", &[&id]).await?.is_some())
}

/// Makes a delivery due at once, or adds one like it that is. Returns the delivery that is sent.
async fn send_at_once(tx: &Transaction<'_>, id: Id) -> DbResult<Option<Id>> {
    let sql = "UPDATE deliveries SET next_attempt_at = $2 WHERE id = $1 AND next_attempt_at IS NOT NULL";
    if tx.execute(sql, &[&id, &AT_ONCE]).await? > 0 {
        return Ok(Some(id));
    }
    let waiting = "SELECT w.id FROM deliveries w JOIN deliveries d USING (endpoint_id, event_id)
        WHERE d.id = $1 AND w.next_attempt_at = $2 LIMIT 1";
    let waiting = tx.find(waiting, &[&id, &AT_ONCE], |row| row.get("id")).await?;
    if waiting.is_some() {
        return Ok(waiting);
    }
    let new_id = tx.new_id();
    let sql = "INSERT INTO deliveries (id, endpoint_id, event_id, type, data, happened_at, next_attempt_at)
        SELECT $2, endpoint_id, event_id, type, data, happened_at, $3 FROM deliveries WHERE id = $1";
    Ok((tx.execute(sql, &[&id, &new_id, &AT_ONCE]).await? > 0).then_some(new_id))
}

/// Whether anything may be sent to an endpoint `e`: neither it nor its account is disabled.
const ENABLED: &str = "e.disabled_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM accounts a WHERE a.id = e.account_id AND a.disabled_at IS NOT NULL)";

/// Endpoints with a delivery due at `now`, found by one index lookup for each endpoint with waiting deliveries. A
/// delivery due at 0 is a test or a replay, and doesn't wait for its endpoint.
fn due(now: &str) -> String {
    format!(
        "WITH RECURSIVE waiting (id) AS (
             SELECT min(endpoint_id) FROM deliveries WHERE next_attempt_at IS NOT NULL AND endpoint_id > $1
             UNION ALL
             SELECT (SELECT min(endpoint_id) FROM deliveries WHERE next_attempt_at IS NOT NULL AND endpoint_id > w.id)
             FROM waiting w WHERE w.id IS NOT NULL
         )
         SELECT e.id, e.account_id, e.failing_since IS NOT NULL AS is_failing
         FROM waiting w JOIN endpoints e ON e.id = w.id
         WHERE {ENABLED} AND (
             EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at = 0)
             OR (e.resume_at IS NULL OR e.resume_at <= {now} OR e.resume_at > {now} + $3) AND (
                 EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at <= {now})
                 OR EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at > {now} + $3)))
         ORDER BY w.id LIMIT $4"
    )
}

from_row! { fn due_endpoint(row) -> DueEndpoint { id, account_id, is_failing } }

/// The delivery of an attempt that has just begun. `tasks` has the task of an event that is the end of one.
fn claimed(row: &Row, endpoints: &HashMap<Id, &Row>, tasks: &HashMap<Id, Task>) -> Result<DeliveryClaim> {
    let (event_id, endpoint_id): (Id, Id) = (row.get("event_id")?, row.get("endpoint_id")?);
    let invalid = |what: &str| StoreError::other(format!("a delivery has no {what} that can be read"));
    let data = match row.get::<Option<String>>("data")? {
        Some(text) => serde_json::from_str(&text).map_err(|_| invalid("data"))?,
        None => event::of_task(tasks.get(&event_id).ok_or_else(|| invalid("task"))?),
    };
    let of = endpoints.get(&endpoint_id).ok_or_else(|| invalid("endpoint"))?;
    let mut secrets = vec![of.get("secret")?];
    secrets.extend(of.get::<Option<SigningSecret>>("old_secret")?);
    Ok(DeliveryClaim {
        id: row.get("id")?,
        attempt: row.get("attempts")?,
        endpoint: endpoint(of)?,
        secrets,
        event: Event { id: event_id, kind: row.get("type")?, happened_at: row.get("happened_at")?, data },
    })
}

/// The claims in these rows.
async fn claims(driver: &Driver, rows: &[Row]) -> Result<Vec<DeliveryClaim>> {
    let mut ends: Vec<Id> = Vec::new();
    for row in rows {
        if row.get::<Option<String>>("data")?.is_none() {
            ends.push(row.get("event_id")?);
        }
    }
    let mut tasks = HashMap::new();
    if !ends.is_empty() {
        // They never change. A damaged one is missing, and its delivery with it.
        let sql = format!("SELECT {TASK} FROM tasks WHERE id {}", driver.in_list(1));
        let rows = driver.read(&sql, &[&List(&ends)]).await?;
        tasks.extend(rows.iter().filter_map(|row| task(row).ok()).map(|task| (task.id, task)));
    }
    // The old secret is among the columns while it still signs.
    let sql = format!(
        "SELECT {ENDPOINT}, secret, CASE WHEN old_secret_until > $2 THEN old_secret END AS old_secret
         FROM endpoints WHERE id {}",
        driver.in_list(1)
    );
    let ids = rows.iter().map(|row| row.get("endpoint_id")).collect::<Result<Vec<Id>>>()?;
    let found = driver.read(&sql, &[&List(&ids), &driver.now()]).await?;
    let endpoints = found.iter().map(|row| Ok((row.get("id")?, row))).collect::<Result<HashMap<Id, _>>>()?;
    let mut claims = Vec::new();
    for row in rows {
        // An endpoint that was removed meanwhile took its deliveries with it.
        if !endpoints.contains_key(&row.get::<Id>("endpoint_id")?) {
            continue;
        }
        match claimed(row, &endpoints, &tasks) {
            Ok(claim) => claims.push(claim),
            // A damaged row must not stop the other deliveries. It comes again after the lease.
            Err(error) => {
                let delivery = row.get::<Id>("id").ok().map(tracing::field::display);
                tracing::error!(delivery, %error, "could not read a delivery; check the database");
            }
        }
    }
    Ok(claims)
}

/// Begins up to $2 attempts at the deliveries to the endpoint $1 that have been due for longest. A row that another
/// process claims at the same time is passed over.
fn claim(tx: &Transaction<'_>) -> String {
    let now = tx.time_in(3);
    let due = format!(
        "SELECT d.id FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id
         WHERE d.endpoint_id = $1 AND {ENABLED} AND d.next_attempt_at IS NOT NULL
             AND (d.next_attempt_at = 0 OR (e.resume_at IS NULL OR e.resume_at <= {now} OR e.resume_at > {now} + $5)
                 AND (d.next_attempt_at <= {now} OR d.next_attempt_at > {now} + $5))
         ORDER BY d.next_attempt_at LIMIT $2 {}",
        tx.locking("FOR UPDATE OF d SKIP LOCKED")
    );
    format!(
        "UPDATE deliveries SET attempts = attempts + 1, next_attempt_at = {now} + $4 WHERE id {}
         RETURNING id, endpoint_id, event_id, type, data, happened_at, attempts",
        tx.in_subquery(&due)
    )
}

/// Records the success of an attempt, which ends the troubles of its endpoint.
async fn delivered(tx: &Transaction<'_>, id: Id, attempt: u32, status: u16) -> DbResult<AttemptWrite> {
    let troubled = "SELECT id FROM endpoints WHERE id = (SELECT endpoint_id FROM deliveries WHERE id = $1)
        AND (failing_since IS NOT NULL OR resume_at IS NOT NULL)";
    let troubled = tx.lock(troubled, &[&id]).await?;
    let sql = "UPDATE deliveries SET delivered_at = $3, next_attempt_at = NULL, status = $4, trouble = NULL
        WHERE id = $1 AND attempts = $2 AND delivered_at IS NULL";
    if tx.execute(sql, &[&id, &attempt, &tx.now(), &status]).await? == 0 {
        return Ok(AttemptWrite::Lost);
    }
    if let Some(row) = troubled {
        let sql = "UPDATE endpoints SET failing_since = NULL, resume_at = NULL WHERE id = $1";
        tx.execute(sql, &[&row.get::<Id>("id")?]).await?;
    }
    Ok(AttemptWrite::Done)
}

async fn failed(tx: &Transaction<'_>, id: Id, attempt: u32, failure: AttemptFailure) -> DbResult<AttemptWrite> {
    let of = "SELECT id FROM endpoints WHERE id = (SELECT endpoint_id FROM deliveries WHERE id = $1)";
    let Some(row) = tx.lock(of, &[&id]).await? else { return Ok(AttemptWrite::Lost) };
    let (endpoint_id, now): (Id, _) = (row.get("id")?, tx.now());
    let again_at = failure.again_in.map(|wait| now.saturating_add(wait));
    let AttemptFailure { status, trouble, .. } = failure;
    // 0 or null: a replay, or the end of the endpoint, came during the attempt.
    let sql = "UPDATE deliveries SET status = $4, trouble = $5, next_attempt_at =
            CASE WHEN coalesce(next_attempt_at, 0) = 0 THEN next_attempt_at ELSE CAST($3 AS bigint) END
        WHERE id = $1 AND attempts = $2 AND delivered_at IS NULL";
    if tx.execute(sql, &[&id, &attempt, &again_at, &status, &trouble]).await? == 0 {
        return Ok(AttemptWrite::Lost);
    }
    if failure.effect == EndpointEffect::Nothing {
        return Ok(AttemptWrite::Done);
    }
    let sql = "UPDATE endpoints SET failing_since = coalesce(failing_since, $2), resume_at = $3
        WHERE id = $1 AND disabled_at IS NULL RETURNING failing_since";
    let resume_at = now.saturating_add(failure.hold);
    let failing_since: Option<Timestamp> =
        tx.find(sql, &[&endpoint_id, &now, &resume_at], |row| row.get("failing_since")).await?;
    let reason = match (failure.effect, failing_since) {
        (EndpointEffect::Gone, Some(_)) => DisabledFor::Gone,
        (EndpointEffect::FailingSince(dead), Some(since)) if since <= dead => DisabledFor::Failing,
        _ => return Ok(AttemptWrite::Done),
    };
    endpoints::disable(tx, endpoint_id, reason).await?;
    if let Some(endpoint) = endpoints::find(tx, endpoint_id).await? {
        let audited = AuditedChange::of_endpoint(Action::DisableEndpoint, &endpoint).with(reason.as_str());
        audit_log::record(tx, &Actor::webhooks(), &audited).await?;
    }
    Ok(AttemptWrite::Disabled(reason))
}

/// Deletes up to [`BATCH`] old deliveries, and returns their number. Skips locked ones.
async fn delete(tx: &Transaction<'_>, cutoff: Timestamp) -> DbResult<usize> {
    let old = format!(
        "SELECT id FROM deliveries WHERE id < $1 ORDER BY id LIMIT $2 {}",
        tx.locking("FOR UPDATE SKIP LOCKED")
    );
    let delete = format!("DELETE FROM deliveries WHERE id {}", tx.in_subquery(&old));
    Ok(tx.execute(&delete, &[&Id::floor(cutoff), &BATCH]).await? as usize)
}

/// Abandons the oldest of more than `most` deliveries that wait for an endpoint, up to [`BATCH`].
async fn trim_backlog(tx: &Transaction<'_>, endpoint_id: Id, most: i64) -> DbResult<usize> {
    if tx.lock("SELECT id FROM endpoints WHERE id = $1", &[&endpoint_id]).await?.is_none() {
        return Ok(0);
    }
    let oldest = "SELECT id FROM deliveries WHERE endpoint_id = $1 AND next_attempt_at IS NOT NULL
        ORDER BY id DESC LIMIT $3 OFFSET $2";
    let sql = format!("UPDATE deliveries SET next_attempt_at = NULL WHERE id {}", tx.in_subquery(oldest));
    Ok(tx.execute(&sql, &[&endpoint_id, &most, &BATCH]).await? as usize)
}

/// Deletes and abandons deliveries as in [`Store::trim_deliveries`], some rows per transaction.
async fn trim(store: &Store, cutoff: Timestamp, most: i64) -> Result<usize> {
    let mut trimmed = store.write(Effect::TrimDeliveries, async move |tx| delete(tx, cutoff).await).await?;
    let crowded = "SELECT endpoint_id FROM deliveries WHERE next_attempt_at IS NOT NULL
        GROUP BY endpoint_id HAVING count(*) > $1";
    for row in store.driver.long_read(crowded.into(), &[&most]).await? {
        let endpoint_id = row.get("endpoint_id")?;
        trimmed +=
            store.write(Effect::TrimDeliveries, async move |tx| trim_backlog(tx, endpoint_id, most).await).await?;
    }
    Ok(trimmed)
}

impl Store {
    /// Queues a test event for an endpoint, ahead of all others and regardless of the endpoint's pause, unless one is
    /// already pending. Returns its delivery; `None` if the endpoint is disabled or does not exist.
    pub async fn test_endpoint(&self, id: Id) -> Result<Option<Id>> {
        self.write(Effect::AddDelivery, async move |tx| {
            if !lock_enabled(tx, id).await? {
                return Ok(None);
            }
            let kind = EventType::Test;
            let waiting =
                "SELECT id FROM deliveries WHERE endpoint_id = $1 AND type = $2 AND next_attempt_at = $3 LIMIT 1";
            let waiting = tx.find(waiting, &[&id, &kind, &AT_ONCE], |row| row.get("id")).await?;
            if waiting.is_some() {
                return Ok(waiting);
            }
            let (event_id, data) = (tx.new_id(), event::of_test(id).to_string());
            let event = NewEvent { kind, event_id, data: Some(&data), happened_at: tx.now(), due_at: AT_ONCE };
            Ok(Some(add(tx, id, &event).await?))
        })
        .await
    }

    /// Sends an ended delivery once more, as a new delivery of the same event, or a waiting one immediately: before all
    /// others, ignoring the endpoint's wait. If the event is already waiting to be sent like this, nothing is added.
    /// Returns the delivery to be sent; `None` if there is none, or its endpoint is disabled.
    pub async fn replay_delivery(&self, id: Id) -> Result<Option<Id>> {
        self.write(Effect::AddDelivery, async move |tx| {
            let sql =
                "SELECT id, account_id FROM endpoints WHERE id = (SELECT endpoint_id FROM deliveries WHERE id = $1)";
            let Some(row) = tx.query_opt(sql, &[&id]).await? else { return Ok(None) };
            if !lock_enabled(tx, row.get("id")?).await? {
                return Ok(None);
            }
            let replayed = send_at_once(tx, id).await?;
            if replayed.is_some() {
                tx.audit(AuditedChange::of(Action::ReplayDelivery, row.get::<Id>("account_id")?).about(id)).await?;
            }
            Ok(replayed)
        })
        .await
    }

    /// The delivery with this id.
    pub async fn find_delivery(&self, id: Id) -> Result<Option<Delivery>> {
        let sql = format!("SELECT {DELIVERY} FROM deliveries WHERE id = $1");
        self.driver.find(&sql, &[&id], delivery).await
    }

    /// Deliveries to an endpoint, newest first, older than the delivery `before`.
    pub async fn list_deliveries(&self, endpoint_id: Id, before: Option<Id>, limit: u32) -> Result<Vec<Delivery>> {
        let sql =
            format!("SELECT {DELIVERY} FROM deliveries WHERE endpoint_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3");
        self.driver.list(&sql, &[&endpoint_id, &upper(before), &limit], delivery).await
    }

    /// Endpoints with deliveries that are due, in the order of their ids, after the endpoint `after`.
    pub async fn due_endpoints(&self, after: Option<Id>, limit: u32) -> Result<Vec<DueEndpoint>> {
        let after = after.map(|id| id.to_string()).unwrap_or_default();
        let sql = due(&self.driver.time_in(2));
        let rows = self.driver.read_by_index(&sql, &[&after, &self.driver.time(), &LONGEST_WAIT, &limit]).await?;
        rows.iter().map(due_endpoint).collect()
    }

    /// Begins attempts at the deliveries that have been due for longest, up to a number for each of these endpoints. A
    /// delivery is due again after `lease`, unless [`Store::end_attempt`] comes first.
    pub async fn claim_deliveries(&self, wanted: &[(Id, u32)], lease: Duration) -> Result<Vec<DeliveryClaim>> {
        let wanted = wanted.to_owned();
        let begin = async move |tx: &Transaction<'_>| {
            let (claim, time, mut rows) = (claim(tx), tx.time(), Vec::new());
            for (endpoint_id, room) in &wanted {
                rows.extend(tx.query(&claim, &[endpoint_id, room, &time, &lease, &LONGEST_WAIT]).await?);
            }
            Ok(rows)
        };
        let rows = self.write(Effect::ClaimDelivery, begin).await?;
        claims(&self.driver, &rows).await
    }

    /// Ends the attempt of this number at a delivery.
    pub async fn end_attempt(&self, delivery: Id, attempt: u32, end: AttemptEnd) -> Result<AttemptWrite> {
        self.write(Effect::EndDelivery, async move |tx| match end {
            AttemptEnd::Delivered { status } => delivered(tx, delivery, attempt, status).await,
            AttemptEnd::Failed(failure) => failed(tx, delivery, attempt, failure).await,
        })
        .await
    }

    /// Deletes deliveries written before `cutoff`, and abandons the oldest if more than `most_waiting` wait for an
    /// endpoint. Returns the total number.
    pub async fn trim_deliveries(&self, cutoff: Timestamp, most_waiting: u32) -> Result<usize> {
        let mut all = 0;
        loop {
            match trim(self, cutoff, most_waiting.into()).await? {
                0 => return Ok(all),
                some => all += some,
            }
        }
    }

    /// Number of deliveries that wait for an attempt or its end.
    pub async fn waiting_deliveries(&self) -> Result<u64> {
        let sql = "SELECT count(*) AS waiting FROM deliveries WHERE next_attempt_at IS NOT NULL";
        Ok(self.driver.find(sql, &[], |row| row.get("waiting")).await?.unwrap_or(0))
    }
}
