//! Calls that are answered before their tasks end, and the tasks as such callers poll them.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;
use serde_json::{Value, json};

use super::answer;
use crate::http::api::hints::with_progress;
use crate::http::api::prefer::PREFERENCE_APPLIED;
pub(super) use crate::http::api::prefer::responds_async as is_preferred;
use crate::http::pipeline::auth::Caller;
use crate::http::pipeline::error::ApiError;
use crate::http::state::ApiState;
use crate::service::tasks::PolledTask;
use tintype_domain::images_api_request::{ImagesCall, InvalidCall, OutputFormat};
use tintype_domain::model::{Status, Surface, Task, TaskId};

/// `Retry-After` of an unfinished task, in seconds.
const POLL_SECONDS: u64 = 3;

/// Whether the query asks for an answer at once, a convention of some gateways. Python writes `True`.
///
/// # Errors
/// 400: the value isn't a boolean.
pub(super) fn is_asked_for(request: &Request) -> Result<bool, InvalidCall> {
    let query = request.uri().query().unwrap_or_default();
    let mut values = url::form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "async");
    let Some((_, value)) = values.next() else { return Ok(false) };
    if values.next().is_some() {
        return Err(InvalidCall { message: "async must not be repeated.".into(), param: Some("async") });
    }
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => Err(InvalidCall { message: "async must be true or false.".into(), param: Some("async") }),
    }
}

/// Rejects a stream, which would have no events, and a format that the URLs of a finished task do not serve.
pub(super) fn check(call: &ImagesCall) -> Result<(), InvalidCall> {
    let (message, param) = match (call.stream, call.format) {
        (Some(_), _) => ("stream must be false in a call that is answered at once.", "stream"),
        (None, OutputFormat::Png) => return Ok(()),
        (None, _) => {
            ("output_format must be png in a call that is answered at once: its URLs serve PNG files.", "output_format")
        }
    };
    Err(InvalidCall { message: message.into(), param: Some(param) })
}

/// The answer to a call with an accepted task, and whether a header asked for an immediate answer.
pub(super) async fn accepted(task_id: TaskId, preferred: bool, caller: &Caller) -> Result<Response, ApiError> {
    let found = caller.api.tasks.find(caller.account_id, Surface::Api, task_id).await?;
    let mut response = polled(&found.ok_or_else(ApiError::removed_task)?, &caller.api).await?;
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::try_from(path(task_id)).map_err(ApiError::caused_by)?);
    headers.insert(header::RETRY_AFTER, POLL_SECONDS.into());
    if preferred {
        headers.insert(PREFERENCE_APPLIED.clone(), HeaderValue::from_static("respond-async"));
    }
    Ok(response)
}

/// `GET /v1/images/tasks/{id}`
pub(in crate::http) async fn find(
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let task_id = id.ok().and_then(|Path(text)| text.parse().ok()).ok_or_else(ApiError::no_such_task)?;
    let found = caller.api.tasks.find(caller.account_id, Surface::Api, task_id).await?;
    polled(&found.ok_or_else(ApiError::no_such_task)?, &caller.api).await
}

async fn polled(found: &PolledTask, api: &ApiState) -> Result<Response, ApiError> {
    let response = answer::json(&body(&found.task, api).await?);
    if found.task.status.is_terminal() {
        return Ok(response);
    }
    let mut response = with_progress(response, api, found).await;
    response.headers_mut().insert(header::RETRY_AFTER, POLL_SECONDS.into());
    Ok(response)
}

fn path(task_id: TaskId) -> String {
    format!("/v1/images/tasks/{task_id}")
}

/// A task, in the shape that gateways in front of OpenAI's API have given it.
async fn body(task: &Task, api: &ApiState) -> Result<Value, ApiError> {
    let created_at = task.created_at().as_millis().div_euclid(1_000);
    let kept = api.settings.retention.and_then(|retention| i64::try_from(retention.as_secs()).ok());
    let mut body = json!({
        "id": task.task_id(),
        "task_id": task.task_id(),
        "object": "image.generation.task",
        "status": task.status.as_str(),
        "created_at": created_at,
        "expires_at": kept.map(|seconds| created_at + seconds),
        "poll_url": path(task.task_id()),
    });
    // The status that a call waiting for the task would get.
    match &task.status {
        Status::Processing => {}
        Status::Failed(failure) => {
            let error = ApiError::failed_task(failure);
            body["http_status"] = error.dialect_status().as_u16().into();
            body["error"] = json!(error.object());
        }
        Status::Completed(names) => {
            let ended_at = task.updated_at.as_millis().div_euclid(1_000);
            let data = answer::urls(names, api).await?;
            body["completed_at"] = ended_at.into();
            body["http_status"] = StatusCode::OK.as_u16().into();
            if let Some(image) = data.first() {
                body["image_url"] = json!(image.url);
            }
            body["result"] = json!({ "created": ended_at, "data": data });
        }
    }
    Ok(body)
}
