//! The handlers of the public API.

use axum::body::Body;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

pub mod account;
pub(in crate::http) mod body;
pub(in crate::http) mod coding;
mod examples;
pub(in crate::http) mod hints;
pub mod images;
pub(in crate::http) mod prefer;
mod words;

/// The body of every success.
#[derive(Debug, Serialize, ToSchema)]
pub struct Success<T> {
    /// Always true.
    success: bool,
    /// The result.
    data: T,
}

fn success(data: impl Serialize) -> Response {
    let body = serde_json::to_vec(&Success { success: true, data }).expect("our own types are always JSON");
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
