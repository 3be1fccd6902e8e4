//! Creating, retrieving and listing tasks (docs/use/api.md).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request};
use axum::http::header::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::body::read_json;
use super::hints::{with_poll_hint, with_progress};
use super::prefer::Wait;
use super::words::{ContentType, CreatedStatus, ModelWord, StatusWord, SubmittedTask, TypeWord};
use super::{Success, examples, success};
use crate::files::FilesError;
use crate::http::pipeline::auth::Caller;
use crate::http::pipeline::error::{ApiError, ErrorBody, NoAnswer};
use crate::http::routes;
use crate::http::state::ApiState;
use crate::http::submitted;
use crate::service::tasks::{DEFAULT_PAGE, MAX_PAGE, PolledTask};
use crate::service::waiters::WaitSlot;
use tintype_domain::ignored_fields::IgnoredFields;
use tintype_domain::model::{Id, MODEL_NAME, Status, Surface, Task, TaskId};
use tintype_domain::preset::Chosen;
use tintype_domain::request::GenerateRequest;
use tintype_store::Call;
use tintype_system::clock::Timestamp;

/// The names of the fields of a submit that the service does not know.
pub(in crate::http) static IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-ignored-fields");

/// A result image.
#[derive(Debug, Serialize, ToSchema)]
pub struct Image {
    /// URL of the PNG. It needs no key.
    #[schema(format = "uri")]
    url: String,
    /// Always `image/png`.
    #[schema(value_type = ContentType)]
    content_type: &'static str,
}

/// A task, as polling and listing return it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Task)]
pub struct TaskBody<'a> {
    /// Internal row identifier. Not used for polling.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9_-]{21}$")]
    id: Id,
    /// The identifier to poll with.
    #[schema(value_type = String, pattern = "^imgmodel-[A-Za-z0-9_-]{21}$")]
    task_id: TaskId,
    /// Poll while this is `processing`.
    #[schema(value_type = StatusWord)]
    status: &'static str,
    /// Always `imgmodel`.
    #[schema(value_type = ModelWord)]
    provider: &'static str,
    /// Always `imgmodel`.
    #[schema(value_type = ModelWord)]
    model: &'static str,
    /// Whether the task has reference images.
    #[schema(value_type = TypeWord)]
    r#type: &'static str,
    /// The URL of the first image, once completed; null until then and when failed.
    #[schema(required = true, format = "uri")]
    media_url: Option<String>,
    /// The images in order, once completed; null until then and when failed.
    #[schema(required = true, min_items = 1, max_items = 4)]
    images: Option<Vec<Image>>,
    /// A message that says why the task failed; null unless failed.
    #[schema(required = true)]
    error: Option<&'a str>,
    /// Creation in UTC, with milliseconds.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change of the status in UTC, with milliseconds.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// A task, as submitting returns it.
#[derive(Debug, Serialize, ToSchema)]
pub struct CreatedTask {
    /// Internal row identifier. Not used for polling.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9_-]{21}$")]
    id: Id,
    /// The identifier to poll with.
    #[schema(value_type = String, pattern = "^imgmodel-[A-Za-z0-9_-]{21}$")]
    task_id: TaskId,
    /// Always `processing`: poll the task.
    #[schema(value_type = CreatedStatus)]
    status: &'static str,
    /// Always `imgmodel`.
    #[schema(value_type = ModelWord)]
    provider: &'static str,
    /// Always `imgmodel`.
    #[schema(value_type = ModelWord)]
    model: &'static str,
    /// Whether the task has reference images.
    #[schema(value_type = TypeWord)]
    r#type: &'static str,
    /// Null, because no image exists yet.
    #[schema(required = true, format = "uri")]
    media_url: Option<String>,
    /// Empty, because no image exists yet.
    #[schema(max_items = 0)]
    images: Vec<Image>,
    /// Creation in UTC, with milliseconds.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// One page of tasks, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskPage)]
pub struct PageBody {
    /// At most `limit` tasks.
    #[schema(value_type = Vec<TaskBody>, max_items = 100)]
    items: Vec<Arc<RawValue>>,
    /// Pass it as `cursor` to get the next page; null on the last one. Opaque.
    #[schema(required = true, pattern = "^[A-Za-z0-9_-]{44}$")]
    next_cursor: Option<String>,
}

impl<'a> TaskBody<'a> {
    async fn new(task: &'a Task, api: &ApiState) -> Result<Self, FilesError> {
        let (images, error) = match &task.status {
            Status::Processing => (None, None),
            Status::Failed(failure) => (None, Some(failure.message.as_str())),
            Status::Completed(names) => {
                let mut images = Vec::with_capacity(names.len());
                for name in names {
                    images.push(Image { url: api.links.url(name).await?, content_type: "image/png" });
                }
                (Some(images), None)
            }
        };
        let first = images.as_ref().and_then(|images| images.first());
        Ok(Self {
            id: task.id,
            task_id: task.task_id(),
            status: task.status.as_str(),
            provider: MODEL_NAME,
            model: MODEL_NAME,
            r#type: task.type_name(),
            media_url: first.map(|image| image.url.clone()),
            images,
            error,
            created_at: task.created_at(),
            updated_at: task.updated_at,
        })
    }
}

/// A task as JSON. The JSON of a finished task is cached while its links are valid.
async fn task_json(api: &ApiState, task: &Task) -> Result<Arc<RawValue>, FilesError> {
    let terminal = task.status.is_terminal();
    if terminal && let Some(json) = api.tasks.finished.get_json(task.id) {
        return Ok(json);
    }
    // Read before the links are made, so that their validity is never overestimated.
    let shown = api.links.shown();
    let body = serde_json::value::to_raw_value(&TaskBody::new(task, api).await?);
    let json: Arc<RawValue> = Arc::from(body.expect("our own types are always JSON"));
    if terminal {
        api.tasks.finished.insert_json(task.id, json.clone(), shown);
    }
    Ok(json)
}

impl CreatedTask {
    fn new(task: &Task) -> Self {
        Self {
            id: task.id,
            task_id: task.task_id(),
            status: task.status.as_str(),
            provider: MODEL_NAME,
            model: MODEL_NAME,
            r#type: task.type_name(),
            media_url: None,
            images: Vec::new(),
            created_at: task.created_at(),
        }
    }
}

/// The task when it has ended, or when the caller's requested wait is over; `None` if there was no wait, because none
/// was requested or too many callers are already waiting.
async fn task_after_wait(wait: Option<Wait>, caller: &Caller, task_id: TaskId) -> Result<Option<PolledTask>, ApiError> {
    let Some(wait) = wait else { return Ok(None) };
    task_at_end(caller, task_id, wait.limit()).await
}

/// The task when it has ended, or after `limit`; `None` if too many callers are already waiting.
///
/// # Errors
/// [`ApiError::no_such_task`] if it was removed meanwhile; [`ApiError`] of the caller's key or of the store.
pub(in crate::http) async fn task_at_end(
    caller: &Caller,
    task_id: TaskId,
    limit: Duration,
) -> Result<Option<PolledTask>, ApiError> {
    let Ok(slot) = caller.api.shared.endings.waiters.slot(caller.account_id) else { return Ok(None) };
    let found = task_with_slot(&slot, caller, task_id, limit).await?;
    found.map(Some).ok_or_else(ApiError::no_such_task)
}

/// The task at its end, or after `limit`, for a caller who has room to wait.
pub(in crate::http) async fn task_with_slot(
    slot: &WaitSlot,
    caller: &Caller,
    task_id: TaskId,
    limit: Duration,
) -> Result<Option<PolledTask>, ApiError> {
    let (tasks, stopping) = (&caller.api.tasks, caller.readiness.stopping());
    let found = tasks.wait(slot, caller.account_id, Surface::Api, task_id, limit, stopping).await?;
    // The key may have been revoked meanwhile.
    caller.recheck().await?;
    Ok(found)
}

/// The response with the whole task, for a caller who may have waited for its end.
async fn ended(task: &Task, wait: Option<Wait>, api: &ApiState) -> Result<Response, ApiError> {
    let response = success(task_json(api, task).await?);
    Ok(match wait {
        Some(wait) => wait.applied_to(response),
        None => response,
    })
}

/// The response to an accepted submit: the whole task if its caller waits and it ends in time.
async fn accepted(task: &Task, wait: Option<Wait>, caller: &Caller) -> Result<Response, ApiError> {
    match task_after_wait(wait, caller, task.task_id()).await? {
        Some(found) if found.task.status.is_terminal() => ended(&found.task, wait, &caller.api).await,
        _ => Ok(created(task, &caller.api)),
    }
}

fn created(task: &Task, api: &ApiState) -> Response {
    with_poll_hint(success(CreatedTask::new(task)), api, task.id, api.shared.wait_estimator.last_wait(task))
}

/// Names the ignored fields of a submit, which are often misspelled ones.
pub(in crate::http) fn with_ignored_fields(ignored: IgnoredFields, mut response: Response) -> Response {
    if !ignored.is_empty()
        && let Ok(names) = HeaderValue::try_from(ignored.to_string())
    {
        response.headers_mut().insert(IGNORED_FIELDS.clone(), names);
    }
    response
}

/// Create a task
///
/// Charges 2 credits per image and returns at once; poll the task until it is `completed` or `failed`.
/// Credits are refunded automatically if it fails. There is no idempotency key: repeating a submit
/// creates and charges another task.
///
/// With `Prefer: wait=N` the response waits up to N seconds, at most 60, for the end of the task. If the task ends in that
/// time, `data` is the whole task and `Preference-Applied` says so; otherwise the response is the usual one.
#[utoipa::path(
    post, path = routes::GENERATE, operation_id = "generate", tag = "images",
    security(("key" = [])),
    params(
        ("Prefer" = Option<String>, Header, example = "wait=5",
            description = "`wait=N`: wait up to N seconds, at most 60, for the end of the task"),
    ),
    request_body(content = GenerateRequest, description = "The prompt, and any of the options", examples(
        ("Prompt" = (summary = "A prompt", value = json!({ "prompt": "A red fox in the snow at dawn" }))),
        ("Two wide images" = (summary = "Two wide images", value = json!({
            "prompt": "A lighthouse in a storm, watercolour", "aspect_ratio": "16:9", "n": 2
        }))),
        ("Rehearsed failure" = (summary = "A task that fails on purpose", value = json!({
            "prompt": "A red fox in the snow at dawn [[fail]]"
        }))),
    )),
    responses(
        (status = 200, description = "Accepted and charged. The task is processing; if it ended during the wait that \
            `Prefer` asked for, `data` has all fields of a task.", body = Success<SubmittedTask>, examples(
            ("Created" = (summary = "Poll the task", value = json!(examples::created()))),
            ("Completed" = (summary = "It completed during the wait", value = json!(examples::completed()))),
            ("Failed" = (summary = "It failed during the wait: the credits are refunded",
                value = json!(examples::failed()))),
        )),
        (status = 400, description = "`INVALID_REQUEST`: the message names the field and its rule.", body = ErrorBody,
            example = json!(examples::invalid("n must be an integer from 1 to 4."))),
    ),
)]
pub async fn generate(caller: Caller, request: Request) -> Result<Response, ApiError> {
    let wait = Wait::of(request.headers());
    let body = read_json(request, &caller.api.settings.connections).await?;
    let (task, ignored) = submit(&caller, &body, None).await?;
    let Some(task) = task else { return Ok(NoAnswer.into_response()) };
    let response = accepted(&task, wait, &caller).await;
    // The task is charged, so an error of the wait must not look like one of the submit.
    let response = response.unwrap_or_else(|error| {
        let cause = error.cause().map(tracing::field::display);
        tracing::warn!(task = %task.id, cause, "the task was accepted, but waiting for its result failed");
        created(&task, &caller.api)
    });
    Ok(with_ignored_fields(ignored, response))
}

/// Charges and queues the task in a body, and names its unknown fields; `None` if it is unknown whether the task exists.
/// A `tool` has a preset with settings, which a body cannot have, and may repeat an earlier call.
pub(in crate::http) async fn submit(
    caller: &Caller,
    body: &[u8],
    tool: Option<(Chosen, Call)>,
) -> Result<(Option<Task>, IgnoredFields), ApiError> {
    let api = &caller.api;
    let arrived = api.shared.clock.elapsed();
    caller.recheck().await?;
    let (mut request, ignored) = GenerateRequest::parse_noting(body, &api.settings.studio.reference_ports)
        .map_err(|fault| ApiError::invalid_request(fault.to_string()))?;
    request.request_id = Some(caller.request_id.to_string());
    let mut origin = caller.origin();
    if let Some((Chosen { engine, settings, .. }, call)) = tool {
        (origin.call, origin.engine, request.settings) = (Some(call), engine, settings);
    }
    let required = request.cost();
    let submission = api.tasks.submit(caller.right(), caller.account_id, origin, Surface::Api, request, arrived).await;
    Ok((submitted::task(submission, required, caller)?, ignored))
}

/// Retrieve a task
///
/// The task in any state. Processing and failed tasks also have status 200.
#[utoipa::path(
    get, path = routes::TASK, operation_id = "getTask", tag = "images",
    security(("key" = [])),
    params(
        ("id" = String, Path, pattern = "^imgmodel-[A-Za-z0-9_-]{21}$",
            description = "The `task_id` that the submit returned"),
        ("Prefer" = Option<String>, Header, example = "wait=5",
            description = "`wait=N`: wait up to N seconds, at most 60, for the end of the task"),
    ),
    responses(
        (status = 200, description = "The task", body = Success<TaskBody>, examples(
            ("Processing" = (summary = "Poll again", value = json!(examples::processing()))),
            ("Completed" = (summary = "Download the images", value = json!(examples::completed()))),
            ("Failed" = (summary = "The credits are refunded", value = json!(examples::failed()))),
        )),
    ),
)]
pub async fn find(
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    // A malformed task id gets the same response as an unknown one.
    let task_id: TaskId = id.ok().and_then(|Path(text)| text.parse().ok()).ok_or_else(ApiError::no_such_task)?;
    let api = &caller.api;
    let mut found =
        api.tasks.find(caller.account_id, Surface::Api, task_id).await?.ok_or_else(ApiError::no_such_task)?;
    let wait = Wait::of(&headers);
    if !found.task.status.is_terminal() {
        found = task_after_wait(wait, &caller, task_id).await?.unwrap_or(found);
    }
    if found.task.status.is_terminal() {
        return ended(&found.task, wait, api).await;
    }
    let response = success(task_json(api, &found.task).await?);
    Ok(with_progress(response, api, &found).await)
}

/// The query of a list request, still as text.
#[derive(Debug, Deserialize)]
pub struct ListQuery {
    limit: Option<String>,
    cursor: Option<String>,
}

impl ListQuery {
    pub(in crate::http) fn new(limit: Option<String>, cursor: Option<String>) -> Self {
        Self { limit, cursor }
    }
}

/// List tasks
///
/// The account's API-created tasks, newest first. Also the way to check whether a submit that got no
/// response created a task.
#[utoipa::path(
    get, path = routes::TASKS, operation_id = "listTasks", tag = "images",
    security(("key" = [])),
    params(
        ("limit" = Option<u32>, Query, description = "Page size, 20 if omitted", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, pattern = "^([A-Za-z0-9_-]{44})?$",
            description = "The previous page's `next_cursor`. Omit it for the first page."),
    ),
    responses(
        (status = 200, description = "One page", body = Success<PageBody>, example = json!(examples::page())),
        (status = 400, description = "`INVALID_REQUEST`: the limit or the cursor is wrong.", body = ErrorBody,
            example = json!(examples::invalid("limit must be an integer from 1 to 100."))),
    ),
)]
pub async fn list(caller: Caller, query: Result<Query<ListQuery>, QueryRejection>) -> Result<Response, ApiError> {
    let api = &caller.api;
    let Query(query) = query.map_err(|_| ApiError::invalid_request("limit and cursor may each be given once."))?;
    let limit = match query.limit.as_deref() {
        None => DEFAULT_PAGE,
        Some(text) => page_size(text)?,
    };
    let page = api.tasks.list(caller.account_id, Surface::Api, query.cursor.as_deref(), limit).await?;
    let page = page.map_err(|_| {
        ApiError::invalid_request("cursor must be a next_cursor of an earlier response. Omit it to start over.")
    })?;
    let mut items = Vec::with_capacity(page.tasks.len());
    for task in &page.tasks {
        items.push(task_json(api, task).await?);
    }
    Ok(success(PageBody { items, next_cursor: page.next_cursor }))
}

fn page_size(text: &str) -> Result<u32, ApiError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let limit = text.parse().ok().filter(|limit| digits && (1..=MAX_PAGE).contains(limit));
    limit.ok_or_else(|| ApiError::invalid_request("limit must be an integer from 1 to 100."))
}
