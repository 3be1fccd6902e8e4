//! Health, readiness and metrics, for the operator.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{self, HeaderValue};
use axum::http::{Response, StatusCode};
use tokio_util::sync::CancellationToken;

use super::fresh::{JSON, fresh};
use super::pipeline::error::ApiError;
use super::state::ApiState;
use crate::metrics;
use crate::service::ServiceContext;

/// Whether the server is ready for new requests. It stops being ready some time before it closes its listener.
#[derive(Debug, Clone, Default)]
pub struct Readiness(CancellationToken);

impl Readiness {
    /// Makes `/readyz` fail, ends every wait for a task, and makes each answer the last of its connection, so that a
    /// balancer sends the next request to another server.
    pub fn stop(&self) {
        self.0.cancel();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Completes when the server begins to stop.
    pub(super) async fn stopping(&self) {
        self.0.cancelled().await;
    }

    /// Makes an answer the last of its connection if the server is stopping.
    pub(super) fn close_when_stopping(&self, mut response: Response<Body>) -> Response<Body> {
        if self.is_stopping() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Answers while the process is alive.
pub(super) async fn live() -> Response<Body> {
    // A cache such as Varnish keeps what does not forbid it, and would call a dead server ready.
    fresh(JSON, r#"{"status":"ok"}"#)
}

/// Succeeds while the database accepts writes, result files can be written, the disk has room and the server is not
/// stopping.
pub(super) async fn ready(
    State(api): State<Arc<ApiState>>,
    State(readiness): State<Readiness>,
) -> Result<Response<Body>, ApiError> {
    let not_ready = ApiError::of_status(StatusCode::SERVICE_UNAVAILABLE);
    if readiness.is_stopping() {
        return Err(not_ready);
    }
    api.shared.check().await.map_err(|reason| not_ready.with_cause(reason))?;
    Ok(fresh(JSON, r#"{"status":"ready"}"#))
}

pub(super) async fn expose_metrics(State(shared): State<Arc<ServiceContext>>) -> Result<Response<Body>, ApiError> {
    let depth = shared.store.queue_depth().await?;
    let engines = shared.store.engines().await?;
    shared.metrics.show_waiting_webhooks(shared.store.waiting_deliveries().await?);
    let exposition = shared.metrics.expose(&depth, &engines, shared.clock.now(), shared.disk.free());
    Ok(fresh(metrics::CONTENT_TYPE, exposition))
}
