//! Statements for deliveries.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, named_params, params};

use super::columns::word;
use super::writer::Writing;
use super::{SqliteStore, audit_log, endpoints, tasks};
use crate::{
    Action, Actor, AttemptEnd, AttemptFailure, AttemptWrite, Deed, Deliveries, DeliveryClaim, DueEndpoint,
    LONGEST_WAIT, Result, Verdict,
};
use tintype_domain::endpoint::{Delivery, DisabledFor, SigningSecret};
use tintype_domain::event::{self, Event, EventType};
use tintype_domain::model::{Id, Surface};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Rows deleted or given up per transaction, so that the writes of callers can run in between.
const BATCH: u32 = 1_000;

/// The endpoints of an account that subscribe to a type of events.
fn subscribed(connection: &Connection, account_id: Id, kind: EventType) -> rusqlite::Result<Vec<Id>> {
    connection
        .prepare_cached(
            "SELECT id FROM endpoints WHERE account_id = ?1 AND disabled_at IS NULL
             AND instr(' ' || events || ' ', ' ' || ?2 || ' ') > 0",
        )?
        .query_map(params![account_id, kind.as_str()], |row| row.get(0))?
        .collect()
}

/// Tells the endpoints of an account of an event that is not the end of a task.
pub(crate) fn tell(
    writing: &Writing,
    account_id: Id,
    kind: EventType,
    data: &str,
    happened_at: Timestamp,
) -> rusqlite::Result<()> {
    let event_id = writing.ids.next(happened_at);
    for endpoint_id in subscribed(&writing.connection, account_id, kind)? {
        add(writing, endpoint_id, &Written { kind, event_id, data: Some(data), happened_at, due_at: happened_at })?;
    }
    Ok(())
}

/// Tells the endpoints of an account of the end of a task, if it is one of the API.
pub(super) fn tell_end(writing: &Writing, account_id: Id, kind: EventType, task_id: Id) -> rusqlite::Result<()> {
    let subscribed = subscribed(&writing.connection, account_id, kind)?;
    if subscribed.is_empty() {
        return Ok(());
    }
    let (surface, happened_at): (Surface, Timestamp) = writing
        .connection
        .prepare_cached("SELECT surface, updated_at FROM tasks WHERE id = ?1")?
        .query_row([task_id], |row| Ok((word(row, "surface")?, row.get("updated_at")?)))?;
    if surface == Surface::Api {
        for endpoint_id in subscribed {
            let event = Written { kind, event_id: task_id, data: None, happened_at, due_at: happened_at };
            add(writing, endpoint_id, &event)?;
        }
    }
    Ok(())
}

/// An event as a delivery has it. The end of a task has no data of its own: they are those of the task.
struct Written<'a> {
    kind: EventType,
    event_id: Id,
    data: Option<&'a str>,
    happened_at: Timestamp,
    due_at: Timestamp,
}

/// A delivery that is due at this time goes before all others.
const AT_ONCE: Timestamp = Timestamp::from_millis(0);

fn add(writing: &Writing, endpoint_id: Id, event: &Written<'_>) -> rusqlite::Result<Id> {
    let id = writing.ids.next(writing.clock.now());
    writing
        .connection
        .prepare_cached(
            "INSERT INTO deliveries (id, endpoint_id, event_id, type, data, happened_at, next_attempt_at)
             VALUES (:id, :endpoint, :event, :type, :data, :happened, :due)",
        )?
        .execute(named_params! {
            ":id": id,
            ":endpoint": endpoint_id,
            ":event": event.event_id,
            ":type": event.kind.as_str(),
            ":data": event.data,
            ":happened": event.happened_at,
            ":due": event.due_at,
        })?;
    Ok(id)
}

fn delivery(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    let trouble: Option<String> = row.get("trouble")?;
    Ok(Delivery {
        id: row.get("id")?,
        endpoint_id: row.get("endpoint_id")?,
        event_id: row.get("event_id")?,
        kind: word(row, "type")?,
        attempts: row.get("attempts")?,
        next_attempt_at: row.get("next_attempt_at")?,
        delivered_at: row.get("delivered_at")?,
        status: row.get("status")?,
        trouble: trouble.map(|_| word(row, "trouble")).transpose()?,
    })
}

/// Whether an endpoint exists and is not disabled.
fn is_enabled(connection: &Connection, id: Id) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM endpoints WHERE id = ?1 AND disabled_at IS NULL")?.exists([id])
}

fn test(writing: &mut Writing, id: Id) -> rusqlite::Result<Option<Id>> {
    if !is_enabled(&writing.connection, id)? {
        return Ok(None);
    }
    let kind = EventType::Test;
    let waiting = writing
        .connection
        .prepare_cached("SELECT id FROM deliveries WHERE endpoint_id = ?1 AND type = ?2 AND next_attempt_at = ?3")?
        .query_row(params![id, kind.as_str(), AT_ONCE], |row| row.get(0))
        .optional()?;
    if waiting.is_some() {
        return Ok(waiting);
    }
    let now = writing.clock.now();
    let data = event::of_test(id).to_string();
    let event_id = writing.ids.next(now);
    add(writing, id, &Written { kind, event_id, data: Some(&data), happened_at: now, due_at: AT_ONCE }).map(Some)
}

fn replay(writing: &mut Writing, id: Id) -> rusqlite::Result<Option<Id>> {
    let found = writing
        .connection
        .prepare_cached(
            "SELECT endpoint_id, event_id, type, data, happened_at, next_attempt_at FROM deliveries WHERE id = ?1",
        )?
        .query_row([id], |row| {
            let (endpoint, event): (Id, Id) = (row.get("endpoint_id")?, row.get("event_id")?);
            let (data, happened_at): (Option<String>, Timestamp) = (row.get("data")?, row.get("happened_at")?);
            let waits = row.get::<_, Option<Timestamp>>("next_attempt_at")?.is_some();
            Ok((endpoint, event, word(row, "type")?, data, happened_at, waits))
        })
        .optional()?;
    let Some((endpoint_id, event_id, kind, data, happened_at, waits)) = found else { return Ok(None) };
    if !is_enabled(&writing.connection, endpoint_id)? {
        return Ok(None);
    }
    if waits {
        let sql = "UPDATE deliveries SET next_attempt_at = ?2 WHERE id = ?1";
        writing.connection.prepare_cached(sql)?.execute(params![id, AT_ONCE])?;
        return Ok(Some(id));
    }
    let waiting = writing
        .connection
        .prepare_cached("SELECT id FROM deliveries WHERE endpoint_id = ?1 AND event_id = ?2 AND next_attempt_at = ?3")?
        .query_row(params![endpoint_id, event_id, AT_ONCE], |row| row.get(0))
        .optional()?;
    if waiting.is_some() {
        return Ok(waiting);
    }
    let event = Written { kind, event_id, data: data.as_deref(), happened_at, due_at: AT_ONCE };
    add(writing, endpoint_id, &event).map(Some)
}

/// Endpoints with waiting deliveries, each at the cost of an index lookup; then those of them that are due. A delivery
/// that is due at 0, a test or a replay, does not wait for its endpoint.
const DUE: &str = "
    WITH RECURSIVE waiting (id) AS (
        SELECT min(endpoint_id) FROM deliveries WHERE next_attempt_at IS NOT NULL AND endpoint_id > ?1
        UNION ALL
        SELECT (SELECT min(endpoint_id) FROM deliveries WHERE next_attempt_at IS NOT NULL AND endpoint_id > w.id)
        FROM waiting w WHERE w.id IS NOT NULL
    )
    SELECT e.id, e.account_id, e.failing_since IS NOT NULL AS is_failing FROM waiting w JOIN endpoints e ON e.id = w.id
    WHERE e.disabled_at IS NULL AND (
        EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at = 0)
        OR (e.resume_at IS NULL OR e.resume_at <= ?2 OR e.resume_at > ?3) AND (
            EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at <= ?2)
            OR EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at > ?3)))
    LIMIT ?4";

fn due(connection: &Connection, after: Option<Id>, now: Timestamp, limit: u32) -> rusqlite::Result<Vec<DueEndpoint>> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let of_row = |row: &Row<'_>| {
        let (id, account_id) = (row.get("id")?, row.get("account_id")?);
        Ok(DueEndpoint { id, account_id, is_failing: row.get("is_failing")? })
    };
    let parameters = params![after, now, now.saturating_add(LONGEST_WAIT), limit];
    connection.prepare_cached(DUE)?.query_map(parameters, of_row)?.collect()
}

fn claim(writing: &mut Writing, wanted: &[(Id, u32)], lease: Duration) -> rusqlite::Result<Vec<DeliveryClaim>> {
    let (connection, now) = (&writing.connection, writing.clock.now());
    let mut claims = Vec::new();
    for (endpoint_id, room) in wanted {
        let due: Vec<Id> = connection
            .prepare_cached(
                "SELECT d.id FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id
                 WHERE d.endpoint_id = ?1 AND e.disabled_at IS NULL AND d.next_attempt_at IS NOT NULL
                     AND (d.next_attempt_at = 0 OR (e.resume_at IS NULL OR e.resume_at <= ?2 OR e.resume_at > ?3)
                         AND (d.next_attempt_at <= ?2 OR d.next_attempt_at > ?3))
                 ORDER BY d.next_attempt_at LIMIT ?4",
            )?
            .query_map(params![endpoint_id, now, now.saturating_add(LONGEST_WAIT), room], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for id in due {
            connection
                .prepare_cached("UPDATE deliveries SET attempts = attempts + 1, next_attempt_at = ?2 WHERE id = ?1")?
                .execute(params![id, now.saturating_add(lease)])?;
            match claimed(connection, id, now) {
                Ok(claim) => claims.push(claim),
                // A damaged row must not stop the other deliveries. It comes again after the lease.
                Err(error) => {
                    tracing::error!(delivery = %id, %error, "could not read a delivery; \
                        check the database with `tintype doctor`");
                }
            }
        }
    }
    Ok(claims)
}

/// The delivery of an attempt that has just begun.
fn claimed(connection: &Connection, id: Id, now: Timestamp) -> rusqlite::Result<DeliveryClaim> {
    let sql = "SELECT d.endpoint_id, d.event_id, d.type, d.data, d.happened_at, d.attempts, e.secret,
            iif(e.old_secret_until > ?2, e.old_secret, NULL) AS old_secret
        FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id WHERE d.id = ?1";
    connection.prepare_cached(sql)?.query_row(params![id, now], |row| {
        let (kind, event_id): (EventType, Id) = (word(row, "type")?, row.get("event_id")?);
        let data = match row.get_ref("data")?.as_str_or_null()? {
            Some(text) => serde_json::from_str(text).map_err(unreadable)?,
            None => {
                let sql = format!("SELECT {} FROM tasks WHERE id = ?1", tasks::TASK);
                event::of_task(&connection.prepare_cached(&sql)?.query_row([event_id], tasks::task)?)
            }
        };
        let mut secrets: Vec<SigningSecret> = vec![word(row, "secret")?];
        if row.get_ref("old_secret")?.as_str_or_null()?.is_some() {
            secrets.push(word(row, "old_secret")?);
        }
        let of_endpoint = format!("SELECT {} FROM endpoints WHERE id = ?1", endpoints::ENDPOINT);
        let endpoint_id: Id = row.get("endpoint_id")?;
        Ok(DeliveryClaim {
            id,
            attempt: row.get("attempts")?,
            endpoint: connection.prepare_cached(&of_endpoint)?.query_row([endpoint_id], endpoints::endpoint)?,
            secrets,
            event: Event { id: event_id, kind, happened_at: row.get("happened_at")?, data },
        })
    })
}

fn unreadable(error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
}

fn end(writing: &mut Writing, id: Id, attempt: u32, end: AttemptEnd) -> rusqlite::Result<AttemptWrite> {
    match end {
        AttemptEnd::Delivered { status } => delivered(writing, id, attempt, status),
        AttemptEnd::Failed(failure) => failed(writing, id, attempt, failure),
    }
}

fn delivered(writing: &Writing, id: Id, attempt: u32, status: u16) -> rusqlite::Result<AttemptWrite> {
    let connection = &writing.connection;
    let endpoint_id: Option<Id> = connection
        .prepare_cached(
            "UPDATE deliveries SET delivered_at = ?3, next_attempt_at = NULL, status = ?4, trouble = NULL
             WHERE id = ?1 AND attempts = ?2 AND delivered_at IS NULL RETURNING endpoint_id",
        )?
        .query_row(params![id, attempt, writing.clock.now(), status], |row| row.get(0))
        .optional()?;
    let Some(endpoint_id) = endpoint_id else { return Ok(AttemptWrite::Lost) };
    connection
        .prepare_cached(
            "UPDATE endpoints SET failing_since = NULL, resume_at = NULL
             WHERE id = ?1 AND (failing_since IS NOT NULL OR resume_at IS NOT NULL)",
        )?
        .execute([endpoint_id])?;
    Ok(AttemptWrite::Done)
}

fn failed(writing: &mut Writing, id: Id, attempt: u32, failure: AttemptFailure) -> rusqlite::Result<AttemptWrite> {
    let now = writing.clock.now();
    let again_at = failure.again_in.map(|wait| now.saturating_add(wait));
    let endpoint_id: Option<Id> = writing
        .connection
        .prepare_cached(
            // 0 or null: a replay, or the end of the endpoint, came during the attempt.
            "UPDATE deliveries
             SET next_attempt_at = iif(coalesce(next_attempt_at, 0) = 0, next_attempt_at, ?3), status = ?4, trouble = ?5
             WHERE id = ?1 AND attempts = ?2 AND delivered_at IS NULL RETURNING endpoint_id",
        )?
        .query_row(params![id, attempt, again_at, failure.status, failure.trouble.map(|it| it.as_str())], |row| {
            row.get(0)
        })
        .optional()?;
    let Some(endpoint_id) = endpoint_id else { return Ok(AttemptWrite::Lost) };
    if failure.verdict == Verdict::Nothing {
        return Ok(AttemptWrite::Done);
    }
    let failing_since: Option<Timestamp> = writing
        .connection
        .prepare_cached(
            "UPDATE endpoints SET failing_since = coalesce(failing_since, ?2), resume_at = ?3
             WHERE id = ?1 AND disabled_at IS NULL RETURNING failing_since",
        )?
        .query_row(params![endpoint_id, now, now.saturating_add(failure.hold)], |row| row.get(0))
        .optional()?;
    let reason = match (failure.verdict, failing_since) {
        (Verdict::Gone, Some(_)) => DisabledFor::Gone,
        (Verdict::FailingSince(dead), Some(since)) if since <= dead => DisabledFor::Failing,
        _ => return Ok(AttemptWrite::Done),
    };
    endpoints::disable(writing, endpoint_id, reason)?;
    if let Some(endpoint) = endpoints::find(&writing.connection, endpoint_id)? {
        let deed = Deed::of_endpoint(Action::DisableEndpoint, &endpoint).with(reason.as_str());
        audit_log::record(writing, &Actor::webhooks(), &deed)?;
    }
    Ok(AttemptWrite::Disabled(reason))
}

/// Deletes and gives up as [`Deliveries::trim_deliveries`] says, up to [`BATCH`] rows.
fn trim(writing: &mut Writing, cutoff: Timestamp, most_waiting: u32) -> rusqlite::Result<usize> {
    let connection = &writing.connection;
    let deleted = connection
        .prepare_cached("DELETE FROM deliveries WHERE id IN (SELECT id FROM deliveries WHERE id < ?1 LIMIT ?2)")?
        .execute(params![Id::floor(cutoff), BATCH])?;
    let mut given_up = 0;
    let crowded: Vec<Id> = connection
        .prepare_cached(
            "SELECT endpoint_id FROM deliveries WHERE next_attempt_at IS NOT NULL
             GROUP BY endpoint_id HAVING count(*) > ?1",
        )?
        .query_map([most_waiting], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for endpoint_id in crowded {
        given_up += connection
            .prepare_cached(
                "UPDATE deliveries SET next_attempt_at = NULL WHERE id IN (
                     SELECT id FROM deliveries WHERE endpoint_id = ?1 AND next_attempt_at IS NOT NULL
                     ORDER BY id DESC LIMIT ?3 OFFSET ?2)",
            )?
            .execute(params![endpoint_id, most_waiting, BATCH])?;
    }
    Ok(deleted + given_up)
}

#[async_trait]
impl Deliveries for SqliteStore {
    async fn test_endpoint(&self, id: Id) -> Result<Option<Id>> {
        self.write(Effect::AddDelivery, move |writing| test(writing, id)).await
    }

    async fn replay_delivery(&self, id: Id) -> Result<Option<Id>> {
        let replay = move |writing: &mut Writing| -> rusqlite::Result<_> {
            let account_id =
                "SELECT account_id FROM endpoints WHERE id = (SELECT endpoint_id FROM deliveries WHERE id = ?1)";
            let account_id =
                writing.connection.prepare_cached(account_id)?.query_row([id], |row| row.get(0)).optional()?;
            Ok((replay(writing, id)?, account_id))
        };
        let deed = move |(replayed, account_id): &(Option<Id>, Option<Id>)| Deed::of_replay(id, *replayed, *account_id);
        Ok(self.write(Effect::AddDelivery, self.recorded(replay, deed)).await?.0)
    }

    async fn find_delivery(&self, id: Id) -> Result<Option<Delivery>> {
        let sql = "SELECT * FROM deliveries WHERE id = ?1";
        self.read(|connection| connection.prepare_cached(sql)?.query_row([id], delivery).optional())
    }

    async fn list_deliveries(&self, endpoint_id: Id, before: Option<Id>, limit: u32) -> Result<Vec<Delivery>> {
        let older = if before.is_some() { "id < ?2" } else { "?2 IS NULL" };
        let sql = format!("SELECT * FROM deliveries WHERE endpoint_id = ?1 AND {older} ORDER BY id DESC LIMIT ?3");
        let parameters = params![endpoint_id, before, limit];
        self.read(|connection| connection.prepare_cached(&sql)?.query_map(parameters, delivery)?.collect())
    }

    async fn due_endpoints(&self, after: Option<Id>, limit: u32) -> Result<Vec<DueEndpoint>> {
        let now = self.clock.now();
        self.read(|connection| due(connection, after, now, limit))
    }

    async fn claim_deliveries(&self, wanted: &[(Id, u32)], lease: Duration) -> Result<Vec<DeliveryClaim>> {
        let wanted = wanted.to_owned();
        self.write(Effect::ClaimDelivery, move |writing| claim(writing, &wanted, lease)).await
    }

    async fn end_attempt(&self, delivery: Id, attempt: u32, ended: AttemptEnd) -> Result<AttemptWrite> {
        self.write(Effect::EndDelivery, move |writing| end(writing, delivery, attempt, ended)).await
    }

    async fn trim_deliveries(&self, cutoff: Timestamp, most_waiting: u32) -> Result<usize> {
        let mut all = 0;
        loop {
            let trimmed =
                self.write(Effect::TrimDeliveries, move |writing| trim(writing, cutoff, most_waiting)).await?;
            all += trimmed;
            if trimmed == 0 {
                return Ok(all);
            }
        }
    }

    async fn waiting_deliveries(&self) -> Result<u64> {
        let sql = "SELECT count(*) FROM deliveries WHERE next_attempt_at IS NOT NULL";
        self.read(|connection| connection.prepare_cached(sql)?.query_row([], |row| row.get(0)))
    }
}
