//! The route table and the layers around it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};

use crate::service::Shared;

pub mod api;
pub mod auth;
pub mod docs;
pub mod error;
mod files;
mod framing;
mod health;
mod host;
mod leftover;
mod malformed;
mod observe;
mod proxy;
mod state;

pub use auth::Arrival;
pub use framing::HeadCheck;
pub use health::Readiness;
pub use malformed::Enveloping;
pub use observe::{REQUEST_ID, refusal};
pub use state::{ApiSettings, ApiState};

// The routes of the API by their patterns, which limits and metrics go by too.
const GENERATE: &str = "/api/v1/images/generate";
const TASKS: &str = "/api/v1/images/task";
const TASK: &str = "/api/v1/images/task/{id}";

/// Every URL there is.
pub fn router(api: Arc<ApiState>, readiness: Readiness) -> Router {
    Router::new()
        .route(GENERATE, post(api::generate))
        .route(TASKS, get(api::list))
        .route(TASK, get(api::find))
        .route("/files/{*name}", get(files::serve))
        .route("/", get(docs::home))
        .route("/docs", get(docs::home))
        .route("/docs/", get(docs::index))
        .route("/docs/{asset}", get(docs::asset))
        .route("/openapi.json", get(docs::openapi))
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready).layer(axum::Extension(readiness.clone())))
        .fallback(observe::no_route)
        .layer(from_fn_with_state((api.clone(), readiness), approach))
        .with_state(api)
}

/// The way of every request to its route, from the outside in. It is one layer, because each costs every
/// request several allocations.
async fn approach(
    State((api, readiness)): State<(Arc<ApiState>, Readiness)>,
    request: Request,
    next: Next,
) -> Response {
    let strict = api.settings.production && proxy::arrived_over_https(&api.settings.trusted_proxies, &request);
    let within = async |request| match host::refuse_two_readings(&request) {
        None => leftover::read_on(request, |request| auth::guard(&api, request, next)).await,
        Some(refusal) => refusal,
    };
    readiness.see_off(observe::observe(&api.shared, strict, request, within).await)
}

/// The same for the metrics, which are for the operator alone.
async fn approach_metrics(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    observe::observe(&shared, false, request, |request| next.run(request)).await
}

/// The metrics, on a listener of their own.
pub fn metrics_router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/metrics", get(health::metrics))
        .fallback(observe::no_route)
        .layer(from_fn_with_state(shared.clone(), approach_metrics))
        .with_state(shared)
}
