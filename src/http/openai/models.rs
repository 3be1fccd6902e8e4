//! The models that callers may name.

use std::collections::HashSet;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer;
use crate::http::pipeline::auth::Caller;
use crate::http::pipeline::error::ApiError;
use tintype_domain::model::MODEL_NAME;

/// Longest name of a model that is repeated, in bytes.
const MAX_NAME: usize = 800;
/// Models have no date here; 0 would be shown as 1970. This is 21 November 2026, 12:00 UTC.
const CREATED: i64 = 1_795_262_400;

fn model(id: &str) -> Value {
    json!({ "id": id, "object": "model", "created": CREATED, "owned_by": "tintype" })
}

/// `GET /v1/models`
pub(in crate::http) async fn list(caller: Caller) -> Result<Response, ApiError> {
    caller.recheck().await?;
    let api = &caller.api;
    let presets = api.shared.presets.all();
    let aliases = api.settings.model_aliases.keys().map(String::as_str);
    let presets = presets.iter().map(|preset| preset.name.as_str());
    let mut listed = HashSet::new();
    let names = std::iter::once(MODEL_NAME).chain(presets).chain(aliases).filter(|name| listed.insert(*name));
    let data = names.map(model).collect::<Value>();
    Ok(answer::json(&json!({ "object": "list", "data": data })))
}

/// `GET /v1/models/{id}`: every name may be used, so every name is a model, also one with a slash.
pub(in crate::http) async fn find(
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    caller.recheck().await?;
    let id = id.ok().map(|Path(id)| id).filter(|id| id.len() <= MAX_NAME).ok_or_else(ApiError::not_found)?;
    Ok(answer::json(&model(&id)))
}
