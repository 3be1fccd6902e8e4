//! Statements for endpoints.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::SqliteStore;
use super::columns::{of_account, word};
use super::writer::Writing;
use crate::{Action, Deed, EndpointChange, EndpointCreation, Endpoints, NewEndpoint, Result};
use tintype_domain::endpoint::{DisabledFor, Endpoint};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// The columns of an [`Endpoint`].
pub(super) const ENDPOINT: &str = "id, account_id, url, events, added_by, failing_since, disabled_at, disabled_for";

pub(super) fn endpoint(row: &Row<'_>) -> rusqlite::Result<Endpoint> {
    let disabled_at: Option<Timestamp> = row.get("disabled_at")?;
    Ok(Endpoint {
        id: row.get("id")?,
        account_id: row.get("account_id")?,
        url: word(row, "url")?,
        events: word(row, "events")?,
        added_by: word(row, "added_by")?,
        failing_since: row.get("failing_since")?,
        disabled_at,
        disabled_for: disabled_at.map(|_| word(row, "disabled_for")).transpose()?,
    })
}

pub(super) fn find(connection: &Connection, id: Id) -> rusqlite::Result<Option<Endpoint>> {
    let sql = format!("SELECT {ENDPOINT} FROM endpoints WHERE id = ?1");
    connection.prepare_cached(&sql)?.query_row([id], endpoint).optional()
}

fn create(writing: &mut Writing, account_id: Id, new: &NewEndpoint, most: u32) -> rusqlite::Result<EndpointCreation> {
    let connection = &writing.connection;
    let count: Option<u32> = connection
        .prepare_cached(
            "SELECT (SELECT count(*) FROM endpoints WHERE account_id = a.id) FROM accounts a
             WHERE id = ?1 AND deleted_at IS NULL",
        )?
        .query_row([account_id], |row| row.get(0))
        .optional()?;
    match count {
        None => return Ok(EndpointCreation::NoAccount),
        Some(count) if count >= most => return Ok(EndpointCreation::TooMany),
        Some(_) => {}
    }
    let id = writing.ids.next(writing.clock.now());
    let sql = format!(
        "INSERT INTO endpoints (id, account_id, url, events, added_by, secret) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         RETURNING {ENDPOINT}"
    );
    let events = new.events.to_string();
    let parameters = params![id, account_id, new.url.as_str(), events, new.added_by.as_str(), new.secret.reveal()];
    connection.prepare_cached(&sql)?.query_row(parameters, endpoint).map(Box::new).map(EndpointCreation::Created)
}

fn change(writing: &mut Writing, id: Id, change: &EndpointChange) -> rusqlite::Result<Option<Endpoint>> {
    let (connection, now) = (&writing.connection, writing.clock.now());
    match change {
        EndpointChange::Enable => {
            connection
                .prepare_cached(
                    "UPDATE endpoints SET disabled_at = NULL, disabled_for = NULL, failing_since = NULL,
                        resume_at = NULL
                     WHERE id = ?1 AND disabled_at IS NOT NULL",
                )?
                .execute([id])?;
        }
        EndpointChange::Disable => disable(writing, id, DisabledFor::Request)?,
        EndpointChange::Rotate { secret, overlap } => {
            connection
                .prepare_cached(
                    "UPDATE endpoints SET old_secret = secret, old_secret_until = ?3, secret = ?2 WHERE id = ?1",
                )?
                .execute(params![id, secret.reveal(), now.saturating_add(*overlap)])?;
        }
        EndpointChange::Subscribe(events) => {
            connection
                .prepare_cached("UPDATE endpoints SET events = ?2 WHERE id = ?1")?
                .execute(params![id, events.to_string()])?;
        }
    }
    find(&writing.connection, id)
}

/// Disables an endpoint, and gives up what waits for it.
pub(super) fn disable(writing: &Writing, id: Id, reason: DisabledFor) -> rusqlite::Result<()> {
    let disabled = writing
        .connection
        .prepare_cached(
            "UPDATE endpoints SET disabled_at = ?2, disabled_for = ?3 WHERE id = ?1 AND disabled_at IS NULL",
        )?
        .execute(params![id, writing.clock.now(), reason.as_str()])?;
    if disabled > 0 {
        writing
            .connection
            .prepare_cached(
                "UPDATE deliveries SET next_attempt_at = NULL WHERE endpoint_id = ?1 AND next_attempt_at IS NOT NULL",
            )?
            .execute([id])?;
    }
    Ok(())
}

fn remove(writing: &mut Writing, id: Id) -> rusqlite::Result<Option<Endpoint>> {
    let found = find(&writing.connection, id)?;
    writing.connection.prepare_cached("DELETE FROM endpoints WHERE id = ?1")?.execute([id])?;
    Ok(found)
}

/// Removes the endpoints of an account, with their deliveries.
#[async_trait]
impl Endpoints for SqliteStore {
    async fn add_endpoint(&self, account_id: Id, new: NewEndpoint, most: u32) -> Result<EndpointCreation> {
        let add = self.recorded(move |writing| create(writing, account_id, &new, most), Deed::of_new_endpoint);
        self.write(Effect::ChangeEndpoint, add).await
    }

    async fn find_endpoint(&self, id: Id) -> Result<Option<Endpoint>> {
        self.read(|connection| find(connection, id))
    }

    async fn list_endpoints(&self, account_id: Option<Id>) -> Result<Vec<Endpoint>> {
        let sql = format!("SELECT {ENDPOINT} FROM endpoints WHERE {} ORDER BY id", of_account(account_id));
        self.read(|connection| connection.prepare_cached(&sql)?.query_map([account_id], endpoint)?.collect())
    }

    async fn change_endpoint(&self, id: Id, wanted: EndpointChange) -> Result<Option<Endpoint>> {
        let done = wanted.clone();
        let deed = move |endpoint: &Option<Endpoint>| Deed::of_endpoint_change(&done, endpoint.as_ref());
        let change = self.recorded(move |writing| change(writing, id, &wanted), deed);
        self.write(Effect::ChangeEndpoint, change).await
    }

    async fn remove_endpoint(&self, id: Id) -> Result<Option<Endpoint>> {
        let deed = |endpoint: &Option<Endpoint>| {
            endpoint.as_ref().map(|endpoint| Deed::of_endpoint(Action::RemoveEndpoint, endpoint))
        };
        self.write(Effect::ChangeEndpoint, self.recorded(move |writing| remove(writing, id), deed)).await
    }
}
