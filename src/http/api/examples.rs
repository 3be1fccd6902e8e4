//! Examples for the documentation of the API. A test compares each with its schema.

use serde_json::{Value, json};

use crate::http::docs::document;
use crate::http::pipeline::error::ApiError;

const ID: &str = "PQbp3v0kT9aXJ2mWc7RzY";
const TASK_ID: &str = "imgmodel-PQbp3v0kT9aXJ2mWc7RzY";
const URL: &str = "https://images.example.com/files/2026-11-21/PQbp3v0kT9aXJ2mWc7RzY-0-q3Jx0vZ8nLw5Tb2RkYcE7g.png";
const CREATED: &str = "2026-11-21T12:00:00.000Z";
const UPDATED: &str = "2026-11-21T12:00:48.250Z";

fn success(data: &Value) -> Value {
    json!({ "success": true, "data": data })
}

/// The answer to a submit.
pub fn created() -> Value {
    success(&json!({
        "id": ID,
        "task_id": TASK_ID,
        "status": "processing",
        "provider": "imgmodel",
        "model": "imgmodel",
        "type": "text-to-image",
        "media_url": null,
        "images": [],
        "created_at": CREATED,
    }))
}

fn task(status: &str, url: Option<&str>, error: Option<&str>, updated_at: &str) -> Value {
    json!({
        "id": ID,
        "task_id": TASK_ID,
        "status": status,
        "provider": "imgmodel",
        "model": "imgmodel",
        "type": "text-to-image",
        "media_url": url,
        "images": url.map(|url| json!([{ "url": url, "content_type": "image/png" }])),
        "error": error,
        "created_at": CREATED,
        "updated_at": updated_at,
    })
}

/// A task that is worked on.
pub fn processing() -> Value {
    success(&task("processing", None, None, CREATED))
}

pub fn completed() -> Value {
    success(&task("completed", Some(URL), None, UPDATED))
}

pub fn failed() -> Value {
    success(&task("failed", None, Some("The prompt violates the content policy."), UPDATED))
}

/// A page with one task, and no page after it.
pub fn page() -> Value {
    success(&json!({ "items": [task("completed", Some(URL), None, UPDATED)], "next_cursor": null }))
}

/// An account with the limits that a server has by default.
pub fn account() -> Value {
    let limits = json!({ "submits_per_minute": 60, "reads_per_minute": 1200, "unfinished_tasks": 100 });
    let budget = json!({
        "credits": 500,
        "period": "day",
        "spent": 120,
        "left": 380,
        "resets_at": "2026-11-22T00:00:00.000Z",
    });
    success(&json!({ "name": "ada", "credits": 480, "unfinished_tasks": 1, "limits": limits, "budget": budget }))
}

/// The body of a 400 with this message.
pub fn invalid(message: &str) -> Value {
    document::example(&ApiError::invalid_request(message))
}
