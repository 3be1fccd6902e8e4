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
