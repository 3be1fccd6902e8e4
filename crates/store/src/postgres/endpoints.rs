//! Statements for endpoints.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{of_account, word};
use super::connection::{Parameter, Transaction};
use crate::failure::Failure;
use crate::{Action, Deed, EndpointChange, EndpointCreation, Endpoints, NewEndpoint, Result};
use tintype_domain::endpoint::{DisabledFor, Endpoint};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// The columns of an [`Endpoint`], of the table or alias `e`.
pub(super) const ENDPOINT: &str =
    "e.id, e.account_id, e.url, e.events, e.added_by, e.failing_since, e.disabled_at, e.disabled_for";

pub(super) fn endpoint(row: &Row) -> Result<Endpoint> {
    let disabled_at: Option<Timestamp> = row.try_get("disabled_at")?;
    Ok(Endpoint {
        id: row.try_get("id")?,
        account_id: row.try_get("account_id")?,
        url: word(row, "url")?,
        events: word(row, "events")?,
        added_by: word(row, "added_by")?,
        failing_since: row.try_get("failing_since")?,
        disabled_at,
        disabled_for: disabled_at.map(|_| word(row, "disabled_for")).transpose()?,
    })
}

pub(super) async fn find(begun: &Transaction<'_>, id: Id) -> std::result::Result<Option<Endpoint>, Failure> {
    let sql = format!("SELECT {ENDPOINT} FROM endpoints e WHERE id = $1");
    Ok(begun.query_opt(&sql, &[&id]).await?.as_ref().map(endpoint).transpose()?)
}

/// Disables an endpoint, and gives up what waits for it.
pub(super) async fn disable(
    begun: &Transaction<'_>,
    id: Id,
    reason: DisabledFor,
    now: Timestamp,
) -> std::result::Result<(), Failure> {
    let sql = "UPDATE endpoints SET disabled_at = $2, disabled_for = $3 WHERE id = $1 AND disabled_at IS NULL";
    if begun.execute(sql, &[&id, &now, &reason.as_str()]).await? > 0 {
        give_up(begun, id).await?;
    }
    Ok(())
}

/// Enables a disabled endpoint. An event whose commit ended after the endpoint was disabled was written for it if the
/// commit began before: that one is given up now.
async fn enable(begun: &Transaction<'_>, id: Id) -> std::result::Result<(), Failure> {
    let sql = "UPDATE endpoints SET disabled_at = NULL, disabled_for = NULL, failing_since = NULL, resume_at = NULL
        WHERE id = $1 AND disabled_at IS NOT NULL";
    if begun.execute(sql, &[&id]).await? > 0 {
        give_up(begun, id).await?;
    }
    Ok(())
}

/// Gives up what waits for an endpoint, which this transaction has locked: a statement of its own sees all that was
/// written before the lock.
async fn give_up(begun: &Transaction<'_>, id: Id) -> std::result::Result<(), Failure> {
    let sql = "UPDATE deliveries SET next_attempt_at = NULL WHERE endpoint_id = $1 AND next_attempt_at IS NOT NULL";
    begun.execute(sql, &[&id]).await?;
    Ok(())
}

/// Adds the endpoint $2 to the account $1, which is locked, if that has fewer than $7.
const ADD: &str = "
    INSERT INTO endpoints AS e (id, account_id, url, events, added_by, secret) SELECT $2, $1, $3, $4, $5, $6
    WHERE (SELECT count(*) FROM endpoints WHERE account_id = $1) < $7";

#[async_trait]
impl Endpoints for PostgresStore {
    async fn add_endpoint(&self, account_id: Id, new: NewEndpoint, most: u32) -> Result<EndpointCreation> {
        let id = self.database.new_id();
        let events = new.events.to_string();
        let add = async |begun: &Transaction<'_>| {
            // Several that are added at once wait for each other here, and see each other in the next statement.
            let lock = "SELECT 1 FROM accounts WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE";
            if begun.query_opt(lock, &[&account_id]).await?.is_none() {
                return Ok(EndpointCreation::NoAccount);
            }
            let (url, added_by, secret) = (new.url.as_str(), new.added_by.as_str(), new.secret.reveal());
            let parameters: [Parameter<'_>; 7] =
                [&account_id, &id, &url, &events, &added_by, &secret, &i64::from(most)];
            let added = begun.query_opt(&format!("{ADD} RETURNING {ENDPOINT}"), &parameters).await?;
            Ok(match added {
                Some(row) => EndpointCreation::Created(Box::new(endpoint(&row)?)),
                None => EndpointCreation::TooMany,
            })
        };
        self.write(Effect::ChangeEndpoint, self.recorded(add, Deed::of_new_endpoint)).await
    }

    async fn find_endpoint(&self, id: Id) -> Result<Option<Endpoint>> {
        let sql = format!("SELECT {ENDPOINT} FROM endpoints e WHERE id = $1");
        self.database.read_one(&sql, &[&id]).await?.as_ref().map(endpoint).transpose()
    }

    async fn list_endpoints(&self, account_id: Option<Id>) -> Result<Vec<Endpoint>> {
        let sql = format!("SELECT {ENDPOINT} FROM endpoints e WHERE {} ORDER BY id", of_account(account_id));
        self.database.read(&sql, &[&account_id]).await?.iter().map(endpoint).collect()
    }

    async fn change_endpoint(&self, id: Id, wanted: EndpointChange) -> Result<Option<Endpoint>> {
        let now = self.database.now();
        let change = async |begun: &Transaction<'_>| {
            match &wanted {
                EndpointChange::Enable => enable(begun, id).await?,
                EndpointChange::Disable => disable(begun, id, DisabledFor::Request, now).await?,
                EndpointChange::Rotate { secret, overlap } => {
                    let sql =
                        "UPDATE endpoints SET old_secret = secret, old_secret_until = $3, secret = $2 WHERE id = $1";
                    begun.execute(sql, &[&id, &secret.reveal(), &now.saturating_add(*overlap)]).await?;
                }
                EndpointChange::Subscribe(events) => {
                    let sql = "UPDATE endpoints SET events = $2 WHERE id = $1";
                    begun.execute(sql, &[&id, &events.to_string()]).await?;
                }
            }
            find(begun, id).await
        };
        let deed = |endpoint: &Option<Endpoint>| Deed::of_endpoint_change(&wanted, endpoint.as_ref());
        self.write(Effect::ChangeEndpoint, self.recorded(change, deed)).await
    }

    async fn remove_endpoint(&self, id: Id) -> Result<Option<Endpoint>> {
        let remove = async |begun: &Transaction<'_>| {
            let sql = format!("DELETE FROM endpoints e WHERE id = $1 RETURNING {ENDPOINT}");
            Ok(begun.query_opt(&sql, &[&id]).await?.as_ref().map(endpoint).transpose()?)
        };
        let deed = |endpoint: &Option<Endpoint>| {
            endpoint.as_ref().map(|endpoint| Deed::of_endpoint(Action::RemoveEndpoint, endpoint))
        };
        self.write(Effect::ChangeEndpoint, self.recorded(remove, deed)).await
    }
}
