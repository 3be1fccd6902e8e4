//! Statements for deliveries. Those that lock an endpoint and deliveries to it lock the endpoint first; others wait for
//! no lock on a delivery while they hold one.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::columns::{TASK, number, task, word};
use super::connection::{Database, Parameter, Transaction};
use super::queue::millis;
use super::{PostgresStore, audit_log, endpoints};
use crate::failure::Failure;
use crate::{
    Action, Actor, AttemptEnd, AttemptFailure, AttemptWrite, Deed, Deliveries, DeliveryClaim, DueEndpoint,
    LONGEST_WAIT, Result, StoreError, Verdict,
};
use tintype_domain::endpoint::{Delivery, DisabledFor, SigningSecret};
use tintype_domain::event::{self, Event, EventType};
use tintype_domain::model::{Id, Surface, Task};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Rows deleted or given up per transaction.
const BATCH: i64 = 1_000;

/// Tells the endpoints of an account of an event that is not the end of a task.
pub(crate) async fn tell(
    database: &Database,
    begun: &Transaction<'_>,
    account_id: Id,
    kind: EventType,
    data: &str,
    happened_at: Timestamp,
) -> std::result::Result<(), Failure> {
    write(database, begun, account_id, kind, database.new_id(), Some(data), happened_at).await
}

/// Tells the endpoints of an account of the end of a task, if it is one of the API.
pub(super) async fn tell_end(
    database: &Database,
    begun: &Transaction<'_>,
    account_id: Id,
    surface: Surface,
    kind: EventType,
    task_id: Id,
    ended_at: Timestamp,
) -> std::result::Result<(), Failure> {
    match surface {
        Surface::Api => write(database, begun, account_id, kind, task_id, None, ended_at).await,
        Surface::Web => Ok(()),
    }
}

/// Writes a delivery to each endpoint of an account that subscribes to a type of events. It comes last in a
/// transaction, when all other locks are held. The end of a task has no data of its own: they are those of the task.
async fn write(
    database: &Database,
    begun: &Transaction<'_>,
    account_id: Id,
    kind: EventType,
    event_id: Id,
    data: Option<&str>,
    happened_at: Timestamp,
) -> std::result::Result<(), Failure> {
    // One that somebody removes at the same time is passed over.
    let subscribed = "SELECT id FROM endpoints WHERE account_id = $1 AND disabled_at IS NULL
        AND position(' ' || $2 || ' ' IN ' ' || events || ' ') > 0 FOR KEY SHARE";
    for endpoint in begun.query(subscribed, &[&account_id, &kind.as_str()]).await? {
        let sql = "INSERT INTO deliveries (id, endpoint_id, event_id, type, data, happened_at, next_attempt_at)
            VALUES ($1, $2, $3, $4, $5, $6, $6)";
        let (id, endpoint_id): (Id, Id) = (database.new_id(), endpoint.try_get("id")?);
        begun.execute(sql, &[&id, &endpoint_id, &event_id, &kind.as_str(), &data, &happened_at]).await?;
    }
    Ok(())
}

fn delivery(row: &Row) -> Result<Delivery> {
    let status: Option<i64> = row.try_get("status")?;
    let trouble: Option<&str> = row.try_get("trouble")?;
    Ok(Delivery {
        id: row.try_get("id")?,
        endpoint_id: row.try_get("endpoint_id")?,
        event_id: row.try_get("event_id")?,
        kind: word(row, "type")?,
        attempts: number(row, "attempts")?,
        next_attempt_at: row.try_get("next_attempt_at")?,
        delivered_at: row.try_get("delivered_at")?,
        status: status.map(|_| number(row, "status")).transpose()?,
        trouble: trouble.map(|_| word(row, "trouble")).transpose()?,
    })
}

/// The columns of a [`Delivery`].
const DELIVERY: &str = "id, endpoint_id, event_id, type, attempts, next_attempt_at, delivered_at, status, trouble";

/// Locks an endpoint, unless it is disabled; `false` if it is or does not exist.
async fn lock_enabled(begun: &Transaction<'_>, id: Id) -> std::result::Result<bool, Failure> {
    let sql = "SELECT 1 FROM endpoints WHERE id = $1 AND disabled_at IS NULL FOR NO KEY UPDATE";
    Ok(begun.query_opt(sql, &[&id]).await?.is_some())
}

/// Endpoints with waiting deliveries, each at the cost of an index lookup; then those of them that are due. A delivery
/// that is due at 0, a test or a replay, does not wait for its endpoint.
const DUE: &str = "
    WITH RECURSIVE waiting (id) AS (
        SELECT min(endpoint_id) FROM deliveries WHERE next_attempt_at IS NOT NULL AND endpoint_id > $1
        UNION ALL
        SELECT (SELECT min(endpoint_id) FROM deliveries WHERE next_attempt_at IS NOT NULL AND endpoint_id > w.id)
        FROM waiting w WHERE w.id IS NOT NULL
    )
    SELECT e.id, e.account_id, e.failing_since IS NOT NULL AS is_failing FROM waiting w JOIN endpoints e ON e.id = w.id
    WHERE e.disabled_at IS NULL AND (
        EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at = 0)
        OR (e.resume_at IS NULL OR e.resume_at <= tintype_now($2) OR e.resume_at > tintype_now($2) + $3)
        AND (EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at <= tintype_now($2))
            OR EXISTS (
                SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at > tintype_now($2) + $3)))
    ORDER BY w.id LIMIT $4";

/// Begins attempts. A row that another process claims at the same time is passed over.
const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT d.id FROM unnest($1::text[], $2::bigint[]) AS wanted (endpoint_id, room)
        JOIN endpoints e ON e.id = wanted.endpoint_id AND e.disabled_at IS NULL
        CROSS JOIN LATERAL (
            SELECT id FROM deliveries
            WHERE deliveries.endpoint_id = wanted.endpoint_id AND next_attempt_at IS NOT NULL AND (next_attempt_at = 0
                OR (e.resume_at IS NULL OR e.resume_at <= tintype_now($3) OR e.resume_at > tintype_now($3) + $5)
                AND (next_attempt_at <= tintype_now($3) OR next_attempt_at > tintype_now($3) + $5))
            ORDER BY next_attempt_at LIMIT wanted.room FOR UPDATE SKIP LOCKED
        ) d
    ),
    claimed AS (
        UPDATE deliveries d SET attempts = attempts + 1, next_attempt_at = tintype_now($3) + $4
        WHERE d.id = ANY (ARRAY (SELECT id FROM due))
        RETURNING d.id, d.endpoint_id, d.event_id, d.type, d.data, d.happened_at, d.attempts
    )
    SELECT claimed.id AS delivery_id, claimed.event_id, claimed.type, claimed.data, claimed.happened_at,
        claimed.attempts, e.secret,
        CASE WHEN e.old_secret_until > tintype_now($3) THEN e.old_secret END AS old_secret";

/// The delivery of an attempt that has just begun; `tasks` are those whose ends are told.
fn claimed(row: &Row, tasks: &HashMap<Id, Task>) -> Result<DeliveryClaim> {
    let event_id: Id = row.try_get("event_id")?;
    let invalid = |what: &str| StoreError::Other(format!("a delivery has no {what} that can be read").into());
    let data = match row.try_get::<_, Option<&str>>("data")? {
        Some(text) => serde_json::from_str(text).map_err(|_| invalid("data"))?,
        None => event::of_task(tasks.get(&event_id).ok_or_else(|| invalid("task"))?),
    };
    let mut secrets: Vec<SigningSecret> = vec![word(row, "secret")?];
    if row.try_get::<_, Option<&str>>("old_secret")?.is_some() {
        secrets.push(word(row, "old_secret")?);
    }
    Ok(DeliveryClaim {
        id: row.try_get("delivery_id")?,
        attempt: number(row, "attempts")?,
        endpoint: endpoints::endpoint(row)?,
        secrets,
        event: Event { id: event_id, kind: word(row, "type")?, happened_at: row.try_get("happened_at")?, data },
    })
}

/// Records the success $1 of the attempt $2, which ends the troubles of its endpoint.
const DELIVERED: &str = "
    WITH troubled AS MATERIALIZED (
        SELECT id FROM endpoints WHERE id = (SELECT endpoint_id FROM deliveries WHERE id = $1)
            AND (failing_since IS NOT NULL OR resume_at IS NOT NULL)
        FOR NO KEY UPDATE
    ),
    -- The count makes it wait for the lock on the endpoint.
    done AS (
        UPDATE deliveries SET delivered_at = tintype_now($3), next_attempt_at = NULL, status = $4, trouble = NULL
        WHERE id = $1 AND attempts = $2 AND delivered_at IS NULL AND (SELECT count(*) FROM troubled) >= 0 RETURNING 1
    ),
    well AS (
        UPDATE endpoints SET failing_since = NULL, resume_at = NULL
        WHERE id = (SELECT id FROM troubled) AND EXISTS (SELECT 1 FROM done)
    )
    SELECT 1 FROM done";

/// Locks the endpoint of the delivery $1.
const LOCK_OF: &str = "
    SELECT id FROM endpoints WHERE id = (SELECT endpoint_id FROM deliveries WHERE id = $1) FOR NO KEY UPDATE";

/// Records the failure of the attempt $2 at the delivery $1. 0 or null: a replay, or the end of the endpoint, came
/// during the attempt.
const FAILED: &str = "
    UPDATE deliveries
    SET next_attempt_at = CASE WHEN coalesce(next_attempt_at, 0) = 0 THEN next_attempt_at ELSE $3::bigint END,
        status = $4, trouble = $5
    WHERE id = $1 AND attempts = $2 AND delivered_at IS NULL";

impl PostgresStore {
    /// The tasks whose ends these rows tell of. They never change.
    async fn tasks_of(&self, rows: &[Row]) -> Result<HashMap<Id, Task>> {
        let mut ids: Vec<Id> = Vec::new();
        for row in rows {
            if row.try_get::<_, Option<&str>>("data")?.is_none() {
                ids.push(row.try_get("event_id")?);
            }
        }
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = self.database.read(&format!("SELECT {TASK} FROM tasks WHERE id = ANY ($1)"), &[&ids]).await?;
        // A damaged one is missing, and its delivery with it.
        Ok(rows.iter().filter_map(|row| task(row).ok()).map(|task| (task.id, task)).collect())
    }

    async fn delivered(&self, id: Id, attempt: u32, status: u16) -> Result<AttemptWrite> {
        let given = self.database.given_time();
        let parameters: [Parameter<'_>; 4] = [&id, &i64::from(attempt), &given, &i64::from(status)];
        let done = self.database.write(DELIVERED, &parameters).await?;
        Ok(if done.is_empty() { AttemptWrite::Lost } else { AttemptWrite::Done })
    }

    async fn failed(&self, id: Id, attempt: u32, failure: AttemptFailure) -> Result<AttemptWrite> {
        let now = self.database.now();
        let again_at = failure.again_in.map(|wait| now.saturating_add(wait));
        let status = failure.status.map(i64::from);
        let trouble = failure.trouble.map(|trouble| trouble.as_str());
        let fail = async |begun: &Transaction<'_>| {
            let Some(row) = begun.query_opt(LOCK_OF, &[&id]).await? else { return Ok(AttemptWrite::Lost) };
            let endpoint_id: Id = row.try_get(0)?;
            let parameters: [Parameter<'_>; 5] = [&id, &i64::from(attempt), &again_at, &status, &trouble];
            if begun.execute(FAILED, &parameters).await? == 0 {
                return Ok(AttemptWrite::Lost);
            }
            if failure.verdict == Verdict::Nothing {
                return Ok(AttemptWrite::Done);
            }
            let sql = "UPDATE endpoints SET failing_since = coalesce(failing_since, $2), resume_at = $3
                WHERE id = $1 AND disabled_at IS NULL RETURNING failing_since";
            let row = begun.query_opt(sql, &[&endpoint_id, &now, &now.saturating_add(failure.hold)]).await?;
            let failing_since: Option<Timestamp> = row.map(|row| row.try_get(0)).transpose()?;
            let reason = match (failure.verdict, failing_since) {
                (Verdict::Gone, Some(_)) => DisabledFor::Gone,
                (Verdict::FailingSince(dead), Some(since)) if since <= dead => DisabledFor::Failing,
                _ => return Ok(AttemptWrite::Done),
            };
            endpoints::disable(begun, endpoint_id, reason, now).await?;
            if let Some(endpoint) = endpoints::find(begun, endpoint_id).await? {
                let deed = Deed::of_endpoint(Action::DisableEndpoint, &endpoint).with(reason.as_str());
                audit_log::record(&self.database, begun, &Actor::webhooks(), &deed).await?;
            }
            Ok(AttemptWrite::Disabled(reason))
        };
        Ok(self.database.transaction(fail).await?)
    }

    async fn trim(&self, cutoff: Timestamp, most_waiting: u32) -> Result<usize> {
        let delete = "DELETE FROM deliveries WHERE id = ANY (ARRAY (
            SELECT id FROM deliveries WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1";
        let deleted = self.database.write(delete, &[&Id::floor(cutoff), &BATCH]).await?.len();
        let crowded = "SELECT endpoint_id FROM deliveries WHERE next_attempt_at IS NOT NULL
            GROUP BY endpoint_id HAVING count(*) > $1";
        let most_waiting = i64::from(most_waiting);
        let mut given_up = 0;
        for row in self.database.read(crowded, &[&most_waiting]).await? {
            let endpoint_id: Id = row.try_get(0)?;
            let give_up = "WITH locked AS MATERIALIZED (SELECT id FROM endpoints WHERE id = $1 FOR NO KEY UPDATE)
                UPDATE deliveries SET next_attempt_at = NULL WHERE id = ANY (ARRAY (
                    SELECT id FROM deliveries WHERE endpoint_id = (SELECT id FROM locked)
                        AND next_attempt_at IS NOT NULL
                    ORDER BY id DESC LIMIT $3 OFFSET $2)) RETURNING 1";
            given_up += self.database.write(give_up, &[&endpoint_id, &most_waiting, &BATCH]).await?.len();
        }
        Ok(deleted + given_up)
    }
}

#[async_trait]
impl Deliveries for PostgresStore {
    async fn test_endpoint(&self, id: Id) -> Result<Option<Id>> {
        let (delivery_id, event_id, now) = (self.database.new_id(), self.database.new_id(), self.database.now());
        let data = event::of_test(id).to_string();
        let test = async |begun: &Transaction<'_>| {
            if !lock_enabled(begun, id).await? {
                return Ok(None);
            }
            let waiting =
                "SELECT id FROM deliveries WHERE endpoint_id = $1 AND type = $2 AND next_attempt_at = 0 LIMIT 1";
            if let Some(row) = begun.query_opt(waiting, &[&id, &EventType::Test.as_str()]).await? {
                return Ok(Some(row.try_get(0)?));
            }
            let sql = "INSERT INTO deliveries (id, endpoint_id, event_id, type, data, happened_at, next_attempt_at)
                VALUES ($1, $2, $3, $4, $5, $6, 0)";
            begun.execute(sql, &[&delivery_id, &id, &event_id, &EventType::Test.as_str(), &data, &now]).await?;
            Ok(Some(delivery_id))
        };
        let test = async { Ok(self.transaction(test).await?) };
        self.write(Effect::AddDelivery, test).await
    }

    async fn replay_delivery(&self, id: Id) -> Result<Option<Id>> {
        let new_id = self.database.new_id();
        let replay = async |begun: &Transaction<'_>| {
            let sql = "SELECT e.id, e.account_id FROM endpoints e
                WHERE e.id = (SELECT endpoint_id FROM deliveries WHERE id = $1)";
            let Some(row) = begun.query_opt(sql, &[&id]).await? else { return Ok((None, None)) };
            let (endpoint_id, account_id): (Id, Id) = (row.try_get(0)?, row.try_get(1)?);
            if !lock_enabled(begun, endpoint_id).await? {
                return Ok((None, None));
            }
            let sql = "UPDATE deliveries SET next_attempt_at = 0 WHERE id = $1 AND next_attempt_at IS NOT NULL";
            if begun.execute(sql, &[&id]).await? > 0 {
                return Ok((Some(id), Some(account_id)));
            }
            let waiting = "SELECT w.id FROM deliveries w JOIN deliveries d USING (endpoint_id, event_id)
                WHERE d.id = $1 AND w.next_attempt_at = 0 LIMIT 1";
            if let Some(row) = begun.query_opt(waiting, &[&id]).await? {
                return Ok((Some(row.try_get(0)?), Some(account_id)));
            }
            let sql = "INSERT INTO deliveries (id, endpoint_id, event_id, type, data, happened_at, next_attempt_at)
                SELECT $2, endpoint_id, event_id, type, data, happened_at, 0 FROM deliveries WHERE id = $1";
            let added = begun.execute(sql, &[&id, &new_id]).await? > 0;
            Ok((added.then_some(new_id), Some(account_id)))
        };
        let deed = |(replayed, account_id): &(Option<Id>, Option<Id>)| Deed::of_replay(id, *replayed, *account_id);
        Ok(self.write(Effect::AddDelivery, self.recorded(replay, deed)).await?.0)
    }

    async fn find_delivery(&self, id: Id) -> Result<Option<Delivery>> {
        let sql = format!("SELECT {DELIVERY} FROM deliveries WHERE id = $1");
        self.database.read_one(&sql, &[&id]).await?.as_ref().map(delivery).transpose()
    }

    async fn list_deliveries(&self, endpoint_id: Id, before: Option<Id>, limit: u32) -> Result<Vec<Delivery>> {
        let older = if before.is_some() { "id < $2" } else { "$2::text IS NULL" };
        let sql =
            format!("SELECT {DELIVERY} FROM deliveries WHERE endpoint_id = $1 AND {older} ORDER BY id DESC LIMIT $3");
        let rows = self.database.read(&sql, &[&endpoint_id, &before, &i64::from(limit)]).await?;
        rows.iter().map(delivery).collect()
    }

    async fn due_endpoints(&self, after: Option<Id>, limit: u32) -> Result<Vec<DueEndpoint>> {
        let after = after.map(|id| id.to_string()).unwrap_or_default();
        let given = self.database.given_time();
        let parameters: [Parameter<'_>; 4] = [&after, &given, &millis(LONGEST_WAIT), &i64::from(limit)];
        // On a connection for writing, whose plan uses the indexes.
        let rows = self.database.write(DUE, &parameters).await?;
        let of_row = |row: &Row| {
            let (id, account_id) = (row.try_get("id")?, row.try_get("account_id")?);
            Ok(DueEndpoint { id, account_id, is_failing: row.try_get("is_failing")? })
        };
        rows.iter().map(of_row).collect()
    }

    async fn claim_deliveries(&self, wanted: &[(Id, u32)], lease: Duration) -> Result<Vec<DeliveryClaim>> {
        let claim = async {
            let (ids, rooms): (Vec<Id>, Vec<i64>) = wanted.iter().map(|(id, room)| (*id, i64::from(*room))).unzip();
            let sql = format!(
                "{CLAIM}, {} FROM claimed JOIN endpoints e ON e.id = claimed.endpoint_id ORDER BY claimed.id",
                endpoints::ENDPOINT
            );
            let given = self.database.given_time();
            let parameters: [Parameter<'_>; 5] = [&ids, &rooms, &given, &millis(lease), &millis(LONGEST_WAIT)];
            let rows = self.database.write(&sql, &parameters).await?;
            let tasks = self.tasks_of(&rows).await?;
            let mut claims = Vec::new();
            for row in &rows {
                match claimed(row, &tasks) {
                    Ok(claim) => claims.push(claim),
                    // A damaged row must not stop the other deliveries. It comes again after the lease.
                    Err(error) => {
                        let delivery = row.try_get::<_, Id>("delivery_id").ok().map(tracing::field::display);
                        tracing::error!(delivery, %error, "could not read a delivery; check the database");
                    }
                }
            }
            Ok(claims)
        };
        self.write(Effect::ClaimDelivery, claim).await
    }

    async fn end_attempt(&self, delivery: Id, attempt: u32, end: AttemptEnd) -> Result<AttemptWrite> {
        let end = async {
            match end {
                AttemptEnd::Delivered { status } => self.delivered(delivery, attempt, status).await,
                AttemptEnd::Failed(failure) => self.failed(delivery, attempt, failure).await,
            }
        };
        self.write(Effect::EndDelivery, end).await
    }

    async fn trim_deliveries(&self, cutoff: Timestamp, most_waiting: u32) -> Result<usize> {
        let mut all = 0;
        loop {
            let trimmed = self.write(Effect::TrimDeliveries, self.trim(cutoff, most_waiting)).await?;
            all += trimmed;
            if trimmed == 0 {
                return Ok(all);
            }
        }
    }

    async fn waiting_deliveries(&self) -> Result<u64> {
        let sql = "SELECT count(*) FROM deliveries WHERE next_attempt_at IS NOT NULL";
        number(&self.database.read(sql, &[]).await?[0], "count")
    }
}
