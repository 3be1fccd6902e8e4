//! Connections over the limit may only call the health endpoints.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};

use super::auth::ConnectionInfo;
use super::error::ApiError;
use crate::http::routes::{Route, RouteGroup};

/// The error for a request that came over a connection of the reserve and does not ask for the health of the server.
pub(super) fn refuse_over_limit(request: &Request) -> Option<Response> {
    let over_limit = request.extensions().get::<ConnectionInfo>().is_some_and(|connection| connection.over_limit);
    let asks_for_health = || Route::of(request).is_some_and(|route| route.group == RouteGroup::Ops);
    (over_limit && !asks_for_health()).then(|| ApiError::of_status(StatusCode::SERVICE_UNAVAILABLE).into_response())
}
