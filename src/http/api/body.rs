//! Request bodies.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::header;
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;

use super::coding::Coding;
use crate::http::pipeline::error::ApiError;
use tintype_config::{ConnectionLimits, MAX_BODY};

/// Reads a JSON body (by `Content-Type`) within the limits of size and time, decompressed, as UTF-8.
pub(in crate::http) async fn read_json(request: Request, limits: &ConnectionLimits) -> Result<Bytes, ApiError> {
    if !is_json(request.headers()) {
        return Err(ApiError::invalid_request("The header Content-Type must be application/json."));
    }
    let coding = Coding::of(request.headers())?;
    // Before a client that waits for "100 Continue" sends it.
    if request.body().size_hint().lower() > MAX_BODY as u64 {
        return Err(ApiError::of_status(StatusCode::PAYLOAD_TOO_LARGE));
    }
    let reading = tokio::time::timeout(limits.body_total, read_body(request.into_body(), limits.body_idle));
    coding.text(reading.await.unwrap_or_else(|_| Err(ApiError::of_status(StatusCode::REQUEST_TIMEOUT)))?)
}

/// Reads a whole body, with at most `idle` between two parts.
async fn read_body(mut body: Body, idle: Duration) -> Result<Bytes, ApiError> {
    let mut whole = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(idle, body.frame()).await;
        let frame = frame.map_err(|_| ApiError::of_status(StatusCode::REQUEST_TIMEOUT))?;
        let Some(frame) = frame else { return Ok(whole.freeze()) };
        let frame = frame.map_err(|_| ApiError::invalid_request("The body ended early."))?;
        let data = frame.into_data().unwrap_or_default();
        if data.len() > MAX_BODY - whole.len() {
            return Err(ApiError::of_status(StatusCode::PAYLOAD_TOO_LARGE));
        }
        // Most bodies arrive in one part, which needs no copy.
        whole = if whole.is_empty() {
            data.into()
        } else {
            whole.extend_from_slice(&data);
            whole
        };
    }
}

/// Whether the body is JSON, by its `Content-Type`.
pub(in crate::http) fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}
