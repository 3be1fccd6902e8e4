//! The outermost layer: a request id, a written error, a measurement and a log line for every response.

use std::panic::AssertUnwindSafe;

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures::FutureExt as _;

use super::error::ApiError;
use super::{GENERATE, TASK, TASKS};
use crate::service::Shared;

/// Tells browsers to come over HTTPS alone, for a year.
const STRICT_TRANSPORT: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// The header that names a response, for support.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A new correlation identifier. Callers cannot choose it, so it means one request only.
fn request_id() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 15]>())
}

/// Answers where no route does.
pub(super) async fn no_route() -> ApiError {
    ApiError::not_found()
}

/// Runs the request and sees to it that what leaves is an answer of ours. A `strict` one tells browsers to come over
/// HTTPS alone.
pub(super) async fn observe<F: Future<Output = Response>>(
    shared: &Shared,
    strict: bool,
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let started = shared.clock.elapsed();
    let request_id = request_id();
    let method = request.method().clone();
    let route = route_of(&request);
    let answered = AssertUnwindSafe(answer(request)).catch_unwind().await;
    let response = answered.unwrap_or_else(|_| {
        tracing::error!(request_id, route, "a handler panicked");
        ApiError::internal().into_response()
    });
    let mut response = finish(response, &request_id);
    if let Ok(value) = HeaderValue::try_from(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if strict {
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, STRICT_TRANSPORT);
    }
    let took = shared.clock.elapsed().saturating_sub(started);
    let status = response.status().as_u16();
    shared.metrics.answered(route, status, took);
    let millis = took.as_secs_f64() * 1_000.0;
    if status >= 500 {
        tracing::warn!(request_id, %method, route, status, millis, "answered");
    } else if status >= 400 || method == Method::POST {
        tracing::info!(request_id, %method, route, status, millis, "answered");
    } else {
        tracing::debug!(request_id, %method, route, status, millis, "answered");
    }
    response
}

/// The route's pattern: paths asked for hold ids, and may hold anything.
fn route_of(request: &Request) -> &'static str {
    match request.extensions().get::<MatchedPath>().map(MatchedPath::as_str) {
        Some(GENERATE) => GENERATE,
        Some(TASKS) => TASKS,
        Some(TASK) => TASK,
        Some("/files/{*name}") => "/files/{name}",
        Some("/healthz") => "/healthz",
        Some("/readyz") => "/readyz",
        Some("/metrics") => "/metrics",
        Some("/openapi.json" | "/docs" | "/docs/" | "/docs/{asset}" | "/") => "/docs",
        _ => "none",
    }
}

/// Writes the envelope of an error, also of one that the framework made.
fn finish(mut response: Response<Body>, request_id: &str) -> Response<Body> {
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        return error.write(response, request_id);
    }
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        return ApiError::of_status(status).write(response, request_id);
    }
    response
}

/// The whole answer to something that is not HTTP/1.1, in the bytes of HTTP/1.1.
pub fn refusal(status: StatusCode) -> Vec<u8> {
    let request_id = request_id();
    let body = ApiError::of_status(status).body(&request_id);
    let reason = status.canonical_reason().unwrap_or("Error");
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         {REQUEST_ID}: {request_id}\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        body.len()
    );
    [head.into_bytes(), body].concat()
}
