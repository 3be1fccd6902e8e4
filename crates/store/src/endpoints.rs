//! Webhook endpoints of accounts.

use std::time::Duration;

use super::driver::{Parameter, Store, Transaction, from_row, of_account};
use super::{Action, Addition, AuditedChange, Result, ledger};
use crate::failure::DbResult;
use tintype_domain::endpoint::{AddedBy, DisabledFor, Endpoint, EndpointUrl, SigningSecret};
use tintype_domain::event::Subscription;
use tintype_domain::model::Id;
use tintype_system::fault::Effect;

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

/// A change to an endpoint.
#[derive(Debug, Clone)]
pub enum EndpointChange {
    /// Sends events again, from now on. None that was written before is sent.
    Enable,
    /// Stops sending events, and abandons the waiting ones.
    Disable,
    /// Replaces its secret. The one before signs too, for the time of the overlap.
    Rotate {
        /// The new secret.
        secret: SigningSecret,
        /// How long both secrets sign.
        overlap: Duration,
    },
    /// Subscribes to these types instead.
    Subscribe(Subscription),
}

pub(super) const ENDPOINT: &str = "endpoints.id, endpoints.account_id, endpoints.url, endpoints.events,
    endpoints.added_by, endpoints.failing_since, endpoints.disabled_at, endpoints.disabled_for";

from_row! { pub(super) fn endpoint(row) -> Endpoint {
    id, account_id, url, events, added_by, failing_since, disabled_at, disabled_for,
} }

pub(super) async fn find(tx: &Transaction<'_>, id: Id) -> DbResult<Option<Endpoint>> {
    let sql = format!("SELECT {ENDPOINT} FROM endpoints WHERE id = $1");
    tx.find(&sql, &[&id], endpoint).await
}

/// Enables a disabled endpoint. On PostgreSQL, an event whose commit began before the endpoint was disabled and ended
/// afterwards was still written for it: it is abandoned now.
async fn enable(tx: &Transaction<'_>, id: Id) -> DbResult {
    let sql = "UPDATE endpoints SET disabled_at = NULL, disabled_for = NULL, failing_since = NULL, resume_at = NULL
        WHERE id = $1 AND disabled_at IS NOT NULL";
    if tx.execute(sql, &[&id]).await? > 0 {
        abandon_deliveries(tx, id).await?;
    }
    Ok(())
}

/// Disables an endpoint, and abandons its waiting deliveries.
pub(super) async fn disable(tx: &Transaction<'_>, id: Id, reason: DisabledFor) -> DbResult {
    let sql = "UPDATE endpoints SET disabled_at = $2, disabled_for = $3 WHERE id = $1 AND disabled_at IS NULL";
    if tx.execute(sql, &[&id, &tx.now(), &reason]).await? > 0 {
        abandon_deliveries(tx, id).await?;
    }
    Ok(())
}

/// Abandons the waiting deliveries of an endpoint locked by this transaction: a separate statement sees everything that
/// was written before the lock.
async fn abandon_deliveries(tx: &Transaction<'_>, id: Id) -> DbResult {
    let sql = "UPDATE deliveries SET next_attempt_at = NULL WHERE endpoint_id = $1 AND next_attempt_at IS NOT NULL";
    tx.execute(sql, &[&id]).await?;
    Ok(())
}

impl Store {
    /// Adds an endpoint to an account that has fewer than `most`.
    pub async fn add_endpoint(&self, account_id: Id, new: NewEndpoint, most: u32) -> Result<Addition<Endpoint>> {
        self.write(Effect::ChangeEndpoint, async move |tx| {
            if !ledger::lock(tx, account_id).await? {
                return Ok(Addition::NotPossible);
            }
            let sql = format!(
                "INSERT INTO endpoints (id, account_id, url, events, added_by, secret) SELECT $2, $1, $3, $4, $5, $6
                 WHERE (SELECT count(*) FROM endpoints WHERE account_id = $1) < $7 RETURNING {ENDPOINT}"
            );
            let NewEndpoint { url, events, added_by, secret } = &new;
            let parameters: [&dyn Parameter; 7] =
                [&account_id, &tx.new_id(), url, events, added_by, &secret.reveal(), &most];
            let Some(added) = tx.find(&sql, &parameters, endpoint).await? else {
                return Ok(Addition::TooMany);
            };
            tx.audit(AuditedChange::of_endpoint(Action::AddEndpoint, &added)).await?;
            Ok(Addition::Created(added))
        })
        .await
    }

    /// The endpoint with this id.
    pub async fn find_endpoint(&self, id: Id) -> Result<Option<Endpoint>> {
        let sql = format!("SELECT {ENDPOINT} FROM endpoints WHERE id = $1");
        self.driver.find(&sql, &[&id], endpoint).await
    }

    /// The endpoints of one account, or of all, oldest first.
    pub async fn list_endpoints(&self, account_id: Option<Id>) -> Result<Vec<Endpoint>> {
        let sql = format!("SELECT {ENDPOINT} FROM endpoints WHERE {} ORDER BY id", of_account(account_id));
        self.driver.list(&sql, &[&account_id], endpoint).await
    }

    /// Changes an endpoint and returns it.
    pub async fn change_endpoint(&self, id: Id, new: EndpointChange) -> Result<Option<Endpoint>> {
        self.write(Effect::ChangeEndpoint, async move |tx| {
            match &new {
                EndpointChange::Enable => enable(tx, id).await?,
                EndpointChange::Disable => disable(tx, id, DisabledFor::Request).await?,
                EndpointChange::Rotate { secret, overlap } => {
                    let sql =
                        "UPDATE endpoints SET old_secret = secret, old_secret_until = $3, secret = $2 WHERE id = $1";
                    tx.execute(sql, &[&id, &secret.reveal(), &tx.now().saturating_add(*overlap)]).await?;
                }
                EndpointChange::Subscribe(events) => {
                    tx.execute("UPDATE endpoints SET events = $2 WHERE id = $1", &[&id, events]).await?;
                }
            }
            let endpoint = find(tx, id).await?;
            if let Some(endpoint) = &endpoint {
                let of = |action| AuditedChange::of_endpoint(action, endpoint);
                let audited = match &new {
                    EndpointChange::Enable => of(Action::EnableEndpoint),
                    EndpointChange::Disable => of(Action::DisableEndpoint),
                    EndpointChange::Rotate { overlap, .. } => {
                        of(Action::RotateEndpoint).with(format!("{} h", overlap.as_secs() / 3_600))
                    }
                    EndpointChange::Subscribe(events) => of(Action::SubscribeEndpoint).with(events),
                };
                tx.audit(audited).await?;
            }
            Ok(endpoint)
        })
        .await
    }

    /// Removes an endpoint with its deliveries. Returns it as it was.
    pub async fn remove_endpoint(&self, id: Id) -> Result<Option<Endpoint>> {
        self.write(Effect::ChangeEndpoint, async move |tx| {
            let sql = format!("DELETE FROM endpoints WHERE id = $1 RETURNING {ENDPOINT}");
            let removed = tx.find(&sql, &[&id], endpoint).await?;
            if let Some(endpoint) = &removed {
                tx.audit(AuditedChange::of_endpoint(Action::RemoveEndpoint, endpoint)).await?;
            }
            Ok(removed)
        })
        .await
    }
}
