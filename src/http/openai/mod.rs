//! OpenAI's Images API: calls that wait for their tasks. Its tasks are those of the native API.

use std::sync::Arc;
use std::time::Duration;

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
use super::pipeline::repeats::Repeat;
use super::state::ApiState;
use super::submitted;
use crate::config::TASK_TIME_LIMIT;
use crate::domain::images_api_request::{CallKind, ImagesCall};
use crate::domain::model::{Id, Status, Surface, TaskId};
use crate::store::{Attachment, Call, Origin, Submission};

use self::hold::Hold;

pub(super) mod answer;
mod hold;
pub(super) mod models;

/// The id of the task of a call, which finds it in the native API.
static TASK_ID: HeaderName = HeaderName::from_static("x-tintype-task-id");

/// Most looks for the task of an earlier attempt. Each but the first follows a change by another attempt at the same call.
const MAX_LOOKS: u32 = 5;

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
    let repeat = Repeat::of(request.headers())?;
    let body = read_json(request, &api.settings.connections).await?;
    let arrived = api.shared.clock.elapsed();
    caller.check_again(&api).await?;
    let mut call = ImagesCall::parse(kind, &body, &api.settings.reference_ports)?;
    drop(body);
    let ignored = std::mem::take(&mut call.ignored);
    let attempt = repeat.call(caller.key_id, &call);
    call.request.request_id = Some(request_id.to_string());
    let Some(task_id) = task_of(&call, attempt, &api, &caller, arrived).await? else {
        return Ok(NoAnswer.into_response());
    };
    let hold = Hold::of(&attempt, task_id, &api);
    let answered = finished(&call, TaskId(task_id), &api, &readiness, &caller).await;
    if let Some(hold) = &hold
        && !hold.is_held().await.unwrap_or(true)
    {
        // A later attempt has the task; this one has no caller any more, or one that tries again.
        return Ok(NoAnswer.into_response());
    }
    let response = match (answered, hold) {
        (Ok(response), Some(hold)) => hold.deliver(response).await,
        (Ok(response), None) => response,
        (Err(error), hold) => {
            // The failure is refunded, so that a new attempt may make a new task.
            if let Some(hold) = hold.filter(|_| error.is_final())
                && let Err(cause) = hold.settle().await
            {
                tracing::warn!(task = %task_id, %cause, "could not write down that a call has got its failure");
            }
            error.after_the_charge().into_response()
        }
    };
    Ok(naming_task(task_id, naming(ignored, response)))
}

/// The task of a call: that of the attempt before, or a new one; `None` when it is unknown whether there is one.
async fn task_of(
    call: &ImagesCall,
    attempt: Call,
    api: &ApiState,
    caller: &Caller,
    arrived: Duration,
) -> Result<Option<Id>, ApiError> {
    let origin = Origin { key_id: Some(caller.key_id), call: Some(attempt), ..Origin::default() };
    let mut counted = !attempt.may_repeat();
    let mut looks = 0;
    loop {
        if attempt.may_repeat() {
            match api.shared.store.attach_call(caller.key_id, attempt).await? {
                Attachment::Task(id) => return Ok(Some(id)),
                Attachment::OtherChoices => return Err(ApiError::reused_idempotency_key()),
                Attachment::None => {}
            }
        }
        if !std::mem::replace(&mut counted, true) {
            caller.count_submit(api).await?;
        }
        let submission = api.tasks.submit(caller.account_id, origin, Surface::Api, call.request.clone(), arrived).await;
        looks += 1;
        if matches!(submission, Ok(Submission::Repeated)) && looks < MAX_LOOKS {
            continue;
        }
        let task = submitted::task(submission, call.request.cost(), api, caller)?;
        return Ok(task.map(|task| task.id));
    }
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

fn naming_task(task_id: Id, mut response: Response) -> Response {
    if let Ok(id) = HeaderValue::try_from(TaskId(task_id).to_string()) {
        response.headers_mut().insert(TASK_ID.clone(), id);
    }
    response
}
