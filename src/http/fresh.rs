//! Responses that hold now and that no cache keeps.

use axum::body::Body;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;

pub(super) const JSON: &str = "application/json";

pub(super) fn fresh(content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A stream of server-sent events. No proxy on the way may hold it back, to fill a buffer (nginx) or to compress it.
pub(super) fn event_stream(body: Body) -> Response {
    let mut response = fresh("text/event-stream", body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
