//! OpenAI's Images API: calls that wait for their tasks. Its tasks are those of the native API.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::{HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};

use super::api::body::read_json;
use super::api::images::naming;
use super::ops::Readiness;
use super::pipeline::auth::Caller;
use super::pipeline::error::{ApiError, NoAnswer};
use super::pipeline::observe::RequestId;
use super::state::ApiState;
use super::submitted;
use crate::config::TASK_TIME_LIMIT;
use crate::domain::images_api_request::{CallKind, ImagesCall};
use crate::domain::model::{Status, Surface, Task, TaskId};

mod answer;
pub(super) mod models;

/// The id of the task of a call, which finds it in the native API.
static TASK_ID: HeaderName = HeaderName::from_static("x-tintype-task-id");

/// `POST /v1/images/generations`
pub(super) async fn generations(
    State(api): State<Arc<ApiState>>,
    State(readiness): State<Readiness>,
    caller: Caller,
    Extension(request_id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    answer_call(CallKind::Generation, api, readiness, caller, request_id, request).await
}

async fn answer_call(
    kind: CallKind,
    api: Arc<ApiState>,
    readiness: Readiness,
    caller: Caller,
    request_id: RequestId,
    request: Request,
) -> Result<Response, ApiError> {
    let body = read_json(request, &api.settings.connections).await?;
    let arrived = api.shared.clock.elapsed();
    caller.check_again(&api).await?;
    let mut call = ImagesCall::parse(kind, &body, &api.settings.reference_ports)?;
    drop(body);
    let ignored = std::mem::take(&mut call.ignored);
    call.request.request_id = Some(request_id.to_string());
    let (order, required) = (call.request.clone(), call.request.cost());
    let submission = api.tasks.submit(caller.account_id, Some(caller.key_id), Surface::Api, order, arrived).await;
    let Some(task) = submitted::task(submission, required, &api, &caller)? else {
        return Ok(NoAnswer.into_response());
    };
    let answered = finished(&call, task.task_id(), &api, &readiness, &caller).await;
    Ok(naming_task(&task, naming(ignored, answered.unwrap_or_else(|error| error.after_the_charge().into_response()))))
}

/// The answer to a call, once its task has ended.
async fn finished(
    call: &ImagesCall,
    task_id: TaskId,
    api: &ApiState,
    readiness: &Readiness,
    caller: &Caller,
) -> Result<Response, ApiError> {
    let released = readiness.stopping();
    let (key_id, account_id) = (caller.key_id, caller.account_id);
    let found = api.tasks.wait(key_id, account_id, Surface::Api, task_id, TASK_TIME_LIMIT, released).await?;
    // The key may have been revoked meanwhile.
    caller.check_again(api).await?;
    let found = found.ok_or_else(ApiError::goes_on)?;
    match &found.task.status {
        Status::Processing => Err(ApiError::goes_on()),
        Status::Failed(sentence) => Err(ApiError::failed_task(sentence)),
        Status::Completed(names) => answer::completed(call, &found.task, names, api).await,
    }
}

fn naming_task(task: &Task, mut response: Response) -> Response {
    if let Ok(id) = HeaderValue::try_from(task.task_id().to_string()) {
        response.headers_mut().insert(TASK_ID.clone(), id);
    }
    response
}
