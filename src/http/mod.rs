//! The route table and the layers around it.

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

use crate::app::App;

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

pub use auth::Arrival;
pub use framing::HeadCheck;
pub use health::Readiness;
pub use malformed::Enveloping;
pub use observe::{REQUEST_ID, refusal};

// The routes of the API by their patterns, which limits and metrics go by too.
const GENERATE: &str = "/api/v1/images/generate";
const TASKS: &str = "/api/v1/images/task";
const TASK: &str = "/api/v1/images/task/{id}";

/// Every URL there is. Reading it from the bottom up gives the order in which a request passes.
pub fn router(app: Arc<App>, readiness: Readiness) -> Router {
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
        .layer(from_fn_with_state(app.clone(), auth::guard))
        .layer(from_fn(leftover::read_on))
        .layer(from_fn(host::one_reading))
        .layer(from_fn_with_state(app.clone(), observe::observe))
        .layer(from_fn_with_state(readiness, health::see_off))
        .with_state(app)
}

/// The metrics, on a listener of their own.
pub fn metrics_router(app: Arc<App>) -> Router {
    Router::new()
        .route("/metrics", get(health::metrics))
        .fallback(observe::no_route)
        .layer(from_fn_with_state(app.clone(), observe::observe))
        .with_state(app)
}
