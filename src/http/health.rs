//! For those who run the service: is it up, is it ready, how is it doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{self, HeaderValue};
use axum::http::{Response, StatusCode};

use super::error::ApiError;
use super::state::ApiState;
use crate::service::Shared;

/// Whether new requests are welcome; turned off when the server begins to stop.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Welcoming.
    pub fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// Turns `/readyz` red, and lets each answer be the last of its connection: who asks again comes by a new one,
    /// which a balancer leads elsewhere.
    pub fn stop(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    fn is_stopping(&self) -> bool {
        !self.0.load(Ordering::SeqCst)
    }

    /// Lets an answer be the last of its connection once the server is stopping.
    pub(super) fn see_off(&self, mut response: Response<Body>) -> Response<Body> {
        if self.is_stopping() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

fn text(content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The process answers.
pub(super) async fn live() -> Response<Body> {
    text("application/json", r#"{"status":"ok"}"#)
}

/// The database takes writes, the disk has room, and the server is not stopping.
pub(super) async fn ready(
    State(api): State<Arc<ApiState>>,
    Extension(readiness): Extension<Readiness>,
) -> Result<Response<Body>, ApiError> {
    let ApiState { shared, .. } = &*api;
    let broken = shared.store.ping().await.inspect_err(|error| tracing::error!(%error, "not ready")).is_err();
    if readiness.is_stopping() || broken || shared.disk.is_low() {
        return Err(ApiError::of_status(StatusCode::SERVICE_UNAVAILABLE));
    }
    Ok(text("application/json", r#"{"status":"ready"}"#))
}

/// Counters and gauges.
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Result<Response<Body>, ApiError> {
    let depth = shared.store.queue_depth().await?;
    let exposition = shared.metrics.expose(&depth, shared.clock.now(), shared.disk.free());
    Ok(text("application/openmetrics-text; version=1.0.0; charset=utf-8", exposition))
}
