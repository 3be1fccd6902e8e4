//! OpenAI's Images API: calls that wait for their tasks, or are answered at once. They share tasks with the native API.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};

use super::answer_memory::deliver;
use super::api::body::read_json;
use super::api::images::{task_with_slot, with_ignored_fields};
use super::pipeline::auth::Caller;
use super::pipeline::error::{ApiError, NoAnswer};
use super::pipeline::repeats::RetryHeaders;
use super::state::ApiState;
use super::submitted;
use crate::service::call_hold::CallHold;
use crate::service::limits::RateLimit;
use crate::service::presets::NoEngineForMask;
use crate::service::waiters::WaitSlot;
use tintype_config::{SWEEP_EVERY, TASK_TIME_LIMIT};
use tintype_domain::images_api_request::{CallKind, ImagesCall, InvalidCall, OutputFormat};
use tintype_domain::model::{Id, Status, Surface, Task, TaskId};
use tintype_domain::preset::Chosen;
use tintype_domain::request::AspectRatio;
use tintype_domain::text::counted;
use tintype_store::{Attachment, Call, CallEnd, EngineState, Origin, StoreError, Submission};

use self::pictures::Pictures;

mod answer;
pub(super) mod background;
mod edit;
mod events;
pub(super) mod models;
mod pictures;

/// The id of the task of a call, which finds it in the native API.
static TASK_ID: HeaderName = HeaderName::from_static("x-tintype-task-id");

/// `Retry-After` of a call while too many others wait, in seconds.
const WAIT_RETRY_SECONDS: u64 = 5;

/// Most looks for the task of an earlier attempt. Each but the first follows a change by another attempt at the same call.
const MAX_LOOKS: u32 = 5;

/// The moment at which a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerMode {
    /// When its task has ended, unless the caller prefers an answer at once.
    AtTheEnd,
    AtOnce,
}

/// `POST /v1/images/generations`
pub(super) async fn generations(caller: Caller, request: Request) -> Result<Response, ApiError> {
    answer_call(CallKind::Generation, AnswerMode::AtTheEnd, caller, request).await
}

/// `POST /v1/images/generations/async`
pub(super) async fn generations_async(caller: Caller, request: Request) -> Result<Response, ApiError> {
    answer_call(CallKind::Generation, AnswerMode::AtOnce, caller, request).await
}

/// `POST /v1/images/edits`
pub(super) async fn edits(caller: Caller, request: Request) -> Result<Response, ApiError> {
    answer_call(CallKind::Edit, AnswerMode::AtTheEnd, caller, request).await
}

/// `POST /v1/images/edits/async`
pub(super) async fn edits_async(caller: Caller, request: Request) -> Result<Response, ApiError> {
    answer_call(CallKind::Edit, AnswerMode::AtOnce, caller, request).await
}

/// The parts of a call that decide its answer. The rest is dropped before the wait: a prompt can be long.
#[derive(Debug, Clone)]
struct AnswerOptions {
    kind: CallKind,
    format: OutputFormat,
    as_urls: bool,
    /// For a stream of events, the most partial images.
    stream: Option<u8>,
    aspect_ratio: AspectRatio,
    named_size: Option<String>,
    cost: i64,
}

impl AnswerOptions {
    fn of(call: &ImagesCall) -> Self {
        Self {
            kind: call.kind,
            format: call.format,
            as_urls: call.as_urls,
            stream: call.stream,
            aspect_ratio: call.request.aspect_ratio,
            named_size: call.named_size.clone(),
            cost: call.request.cost(),
        }
    }

    /// The size in answers, as `WIDTHxHEIGHT`: the size in the call, as in OpenAI's API, or else the size of the pictures.
    fn size(&self) -> String {
        let (width, height) = self.aspect_ratio.size();
        self.named_size.clone().unwrap_or_else(|| format!("{width}x{height}"))
    }
}

/// A call's task, with a caller who waits for its end.
#[derive(Debug, Clone)]
struct PendingCall {
    task_id: Id,
    caller: Caller,
    slot: Arc<WaitSlot>,
}

async fn answer_call(
    kind: CallKind,
    answer: AnswerMode,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let api = &caller.api;
    let repeat = RetryHeaders::of(request.headers())?;
    let preferred = background::is_preferred(request.headers());
    let answer = if preferred || background::is_asked_for(&request)? { AnswerMode::AtOnce } else { answer };
    // Asked for before the body arrives and taken after that, so that a slow body takes no room from others.
    drop(slot(answer, &caller)?);
    let (mut call, pictures) = match kind {
        CallKind::Generation => {
            let body = read_json(request, &api.settings.connections).await?;
            caller.recheck().await?;
            (ImagesCall::parse(kind, &body, &api.settings.studio.reference_ports)?, Pictures::none())
        }
        CallKind::Edit => match edit::read(request, repeat.may_repeat(), &caller).await {
            Ok(read) => read,
            Err(error) => {
                // A revoked key must not learn more than an unknown one.
                caller.recheck().await?;
                return Err(error);
            }
        },
    };
    if answer == AnswerMode::AtOnce {
        background::check(&call)?;
    }
    let arrived = api.shared.clock.elapsed();
    caller.recheck().await?;
    let slot = slot(answer, &caller)?;
    let mut ignored = std::mem::take(&mut call.ignored);
    let attempt = repeat.call(caller.line, &call);
    let engines = match &call.request.settings.mask {
        Some(_) => api.shared.store.engines().await?,
        None => Vec::new(),
    };
    let chosen = choose(&mut call, &engines, api);
    for setting in chosen.iter().flat_map(|chosen| &chosen.ignored) {
        ignored.note(setting.as_str());
    }
    call.request.request_id = Some(caller.request_id.to_string());
    let found = task_of(&mut call, pictures, (attempt, chosen), &caller, arrived).await?;
    let Some((task_id, mut hold)) = found else { return Ok(NoAnswer.into_response()) };
    let options = AnswerOptions::of(&call);
    drop(call);
    let awaited = |slot| PendingCall { task_id, caller: caller.clone(), slot: Arc::new(slot) };
    let answered = match slot.map(awaited) {
        Some(awaited) if options.stream.is_some() => events::begin(options, awaited, &mut hold).await,
        Some(awaited) => answer::completed(&options, &awaited).await,
        None => background::accepted(TaskId(task_id), preferred, &caller).await,
    };
    Ok(with_task_id(task_id, with_ignored_fields(ignored, end_attempt(answered, hold).await)))
}

/// Applies the preset of a call to its settings, its images and its mask. `engines` are those that workers have reported.
fn choose(call: &mut ImagesCall, engines: &[EngineState], api: &ApiState) -> Result<Chosen, InvalidCall> {
    let model = call.model.as_deref();
    let presets = &api.shared.presets;
    let preset = model.and_then(|model| presets.named(model)).unwrap_or_else(|| {
        let alias = model.and_then(|model| api.settings.model_aliases.get(model));
        presets.unnamed(alias.map(String::as_str))
    });
    if let Some(most) = preset.references.filter(|most| call.request.reference_images.len() > *most) {
        let message = format!("The preset {} takes at most {}.", preset.name, counted(most as u64, "image", "images"));
        return Err(InvalidCall { message, param: Some("image") });
    }
    let mut chosen = preset.choose(std::mem::take(&mut call.settings))?;
    if call.request.settings.mask.is_some() {
        let no_engine = |reason: NoEngineForMask| InvalidCall { message: format!("{reason}."), param: Some("mask") };
        let references = call.request.reference_images.len();
        chosen.engine = presets.engine_for_mask(chosen.engine, references, engines).map_err(no_engine)?;
    }
    Ok(chosen)
}

/// Room to wait for the task of a call, before anything is charged; `None` if the call is answered at once.
fn slot(answer: AnswerMode, caller: &Caller) -> Result<Option<WaitSlot>, ApiError> {
    if answer == AnswerMode::AtOnce {
        return Ok(None);
    }
    let refusal = |held| {
        let who = match held {
            0 => "Too many requests are open on this server.".into(),
            held => format!(
                "This account already has {}, which is its current limit.",
                counted(held as u64, "open request", "open requests")
            ),
        };
        let message = format!(
            "{who} This call created no task, and the task of an earlier attempt continues; try again in {WAIT_RETRY_SECONDS} s."
        );
        ApiError::rate_limited(message, WAIT_RETRY_SECONDS)
    };
    caller.api.shared.endings.waiters.slot(caller.account_id).map(Some).map_err(refusal)
}

/// The answer to this attempt at a call. Ends its hold on the task.
async fn end_attempt(answered: Result<Response, ApiError>, hold: Option<CallHold>) -> Response {
    if let Some(hold) = &hold
        && !hold.is_held().await.unwrap_or(true)
    {
        // A later attempt has the task; this one has no caller any more, or one that tries again.
        return NoAnswer.into_response();
    }
    match (answered, hold) {
        (Ok(response), Some(hold)) => deliver(hold, response),
        (Ok(response), None) => response,
        (Err(error), hold) => {
            if let Some(hold) = hold {
                // A final failure is refunded, so that a new attempt may make a new task. After any other error it gets this
                // one, which is paid.
                hold.end_before_answer(if error.is_final() { CallEnd::Delivered } else { CallEnd::HungUp }).await;
            }
            error.after_the_charge().into_response()
        }
    }
}

/// The task of a call and this attempt's hold on it: the task of an earlier attempt, or a new one; `None` if it is unknown
/// whether one exists. Pictures are decoded and stored only for a new task.
async fn task_of(
    call: &mut ImagesCall,
    mut pictures: Pictures,
    (attempt, chosen): (Call, Result<Chosen, InvalidCall>),
    caller: &Caller,
    mut arrived: Duration,
) -> Result<Option<(Id, Option<CallHold>)>, ApiError> {
    let api = &caller.api;
    let hold = |id| (id, CallHold::of(&attempt, id, &api.shared));
    let mut origin = Origin { call: Some(attempt), ..caller.origin() };
    let mut chosen = Some(chosen);
    let mut counted = !attempt.may_repeat();
    let mut looks = 0;
    loop {
        if attempt.may_repeat() || !(attempt.counted || looks > 0) {
            match api.tasks.attach(caller.right(), caller.key_id, attempt).await? {
                Attachment::Task(id) => {
                    let held = hold(id);
                    pictures.remove().await;
                    if call.auto_size {
                        // Its picture has been decoded for the attempt before, and not for this one.
                        let record = api.shared.store.find_record(caller.account_id, Surface::Api, id).await;
                        let record = record.map_err(|error| ApiError::from(error).after_the_charge())?;
                        call.request.aspect_ratio =
                            record.map_or(call.request.aspect_ratio, |record| record.request.aspect_ratio);
                    }
                    return Ok(Some(held));
                }
                Attachment::OtherChoices => return Err(ApiError::reused_idempotency_key()),
                Attachment::None => {}
            }
        }
        // After the search: a task that is already charged must not fail because its preset has changed since.
        if let Some(chosen) = chosen.take() {
            let mask = call.request.settings.mask.take();
            Chosen { engine: origin.engine, settings: call.request.settings, .. } = chosen?;
            call.request.settings.mask = mask;
        }
        if !std::mem::replace(&mut counted, true) {
            caller.count(RateLimit::Submit).await?;
        }
        if pictures.store(call, caller).await? {
            // Pictures take a while, during which the key may have been revoked.
            caller.recheck().await?;
            arrived = api.shared.clock.elapsed();
        }
        let (right, request) = (caller.right(), call.request.clone());
        let submission =
            api.tasks.submit(right, caller.account_id, origin.clone(), Surface::Api, request, arrived).await;
        looks += 1;
        if matches!(submission, Ok(Submission::Repeated)) && looks < MAX_LOOKS {
            continue;
        }
        let may_exist = matches!(submission, Err(StoreError::Unknown(_)));
        let task = submitted::task(submission, call.request.cost(), caller);
        // Before the next wait, so that the hold ends if the caller hangs up during it.
        let held = task.map(|task| task.map(|task| hold(task.id)));
        if !may_exist {
            pictures.remove().await;
        }
        return held;
    }
}

impl PendingCall {
    /// The task, once it has completed; any other end is an error.
    async fn completed(&self) -> Result<Arc<Task>, ApiError> {
        // The sweep fails a task that has had its time at its next round.
        let limit = TASK_TIME_LIMIT + SWEEP_EVERY * 5;
        let found = task_with_slot(&self.slot, &self.caller, TaskId(self.task_id), limit).await?;
        let task = found.ok_or_else(ApiError::removed_task)?.task;
        match &task.status {
            Status::Processing => Err(ApiError::task_continues()),
            Status::Failed(failure) => Err(ApiError::failed_task(failure)),
            Status::Completed(_) => Ok(task),
        }
    }
}

fn with_task_id(task_id: Id, mut response: Response) -> Response {
    if let Ok(id) = HeaderValue::try_from(TaskId(task_id).to_string()) {
        response.headers_mut().insert(TASK_ID.clone(), id);
    }
    response
}
