//! The handlers of the public API.

use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::fresh::{JSON, fresh};

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
    fresh(JSON, body)
}
