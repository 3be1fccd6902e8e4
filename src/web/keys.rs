//! The keys of the account, for its owners.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use axum::response::{IntoResponse as _, Redirect};

use super::Studio;
use super::error::PageError;
use super::page::{Frame, html, secured};
use super::session::{Form, Visitor};
use crate::clock::Timestamp;
use crate::domain::key::{ApiKey, KeySecret, KeyState};
use crate::domain::model::Id;
use crate::domain::person::Role;
use crate::domain::text;
use crate::store::{KeyChange, NewKey};

const KEYS: &str = "/studio/keys";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Time for which a rotated key works on.
const OVERLAP: Duration = DAY;
/// Most keys of one account that the studio creates.
const MAX_KEYS: usize = 100;

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage<'a> {
    frame: Frame<'a>,
    keys: Vec<ApiKey>,
    now: Timestamp,
    /// A key that was just made, and the name of the text about it.
    made: Option<(KeySecret, &'static str)>,
}

impl KeysPage<'_> {
    fn state(&self, key: &ApiKey) -> &'static str {
        match key.state(self.now) {
            KeyState::Active => "key-active",
            KeyState::Disabled => "key-disabled",
            KeyState::Suspended => "key-suspended-state",
            KeyState::Expired => "key-expired",
            KeyState::Revoked => "key-revoked",
        }
    }

    /// Whether it can still be changed.
    fn is_alive(&self, key: &ApiKey) -> bool {
        !matches!(key.state(self.now), KeyState::Revoked | KeyState::Expired)
    }

    fn is_suspended(&self, key: &ApiKey) -> bool {
        key.state(self.now) == KeyState::Suspended
    }
}

async fn page(visitor: &Visitor, made: Option<(KeySecret, &'static str)>) -> Result<Response<Body>, PageError> {
    let store = &visitor.studio.shared.store;
    let mut keys = store.list_keys(Some(visitor.session.person.account_id)).await?;
    keys.reverse();
    let frame = Frame::new("keys", visitor).await?;
    Ok(html(KeysPage { frame, keys, now: store.now(), made }.render()?))
}

/// The page.
pub async fn keys(visitor: Visitor) -> Result<Response<Body>, PageError> {
    visitor.needs(Role::Owner)?;
    page(&visitor, None).await
}

/// Creates a key and shows it, this once.
pub async fn create(State(studio): State<Arc<Studio>>, form: Form) -> Result<Response<Body>, PageError> {
    let Form { visitor, fields, .. } = form;
    visitor.needs(Role::Owner)?;
    let account = visitor.session.person.account_id;
    let store = &studio.shared.store;
    let name = text::key_label(fields.text("name").trim()).map_err(|_| PageError::bad_request())?;
    let expires_at = match fields.text("days") {
        "" => None,
        days => {
            let days: u32 = days.parse().map_err(|_| PageError::bad_request())?;
            Some(store.now().saturating_add(DAY * days.clamp(1, 3_650)))
        }
    };
    if store.list_keys(Some(account)).await?.len() >= MAX_KEYS {
        return Err(PageError::new(StatusCode::CONFLICT, "error-request"));
    }
    let secret = KeySecret::random();
    let (hash, hint) = (secret.hash(), secret.hint());
    let new = NewKey { hash, hint, name, submit_rate: None, read_rate: None, expires_at };
    let key = visitor.store().create_key(account, new).await?.ok_or_else(PageError::not_found)?;
    tracing::info!(key = %key.id, person = %visitor.session.person.id, "a key was created in the studio");
    page(&visitor, Some((secret, "key-created"))).await
}

/// Disables, enables, revokes or rotates a key.
pub async fn change(
    State(studio): State<Arc<Studio>>,
    Path((id, change)): Path<(String, String)>,
    form: Form,
) -> Result<Response<Body>, PageError> {
    let visitor = form.visitor;
    visitor.needs(Role::Owner)?;
    let id: Id = id.parse().map_err(|_| PageError::not_found())?;
    let store = &studio.shared.store;
    let own = store.find_key(id).await?.filter(|key| key.account_id == visitor.session.person.account_id);
    let key = own.ok_or_else(PageError::not_found)?;
    let person = visitor.session.person.id;
    let change = match change.as_str() {
        "rotate" => {
            let secret = KeySecret::random();
            let rotated = visitor.store().rotate_key(id, secret.hash(), &secret.hint(), OVERLAP).await?;
            let new = rotated.ok_or_else(PageError::not_found)?;
            tracing::info!(key = %id, new = %new.id, %person, "a key was rotated in the studio");
            return page(&visitor, Some((secret, "key-rotated"))).await;
        }
        // Only the operator lifts a suspension.
        "enable" if key.suspension.is_some() => return Err(PageError::forbidden("key-suspended")),
        "enable" => KeyChange::Enable,
        "disable" => KeyChange::Disable,
        "revoke" => KeyChange::Revoke,
        _ => return Err(PageError::not_found()),
    };
    visitor.store().change_key(id, change).await?;
    tracing::info!(key = %id, ?change, %person, "a key was changed in the studio");
    Ok(secured(Redirect::to(KEYS).into_response()))
}
