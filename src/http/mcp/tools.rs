//! Calls of the tools.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Path, Query};
use axum::http::HeaderMap;
use axum::response::Response;
use futures::FutureExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest, CustomResult, ErrorCode,
    Implementation, JsonObject, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tintype_engine::{Setting, Stage};

use super::AnswerMemory;
use super::definitions::{CREDITS, GENERATE, GET, INSTRUCTIONS, LIST, MAX_WAIT, TOOLS, USUAL_WAIT, offering};
use crate::http::api::{account, images};
use crate::http::pipeline::auth::Caller;
use crate::http::pipeline::error::ApiError;
use crate::service::call_hold::CallHold;
use crate::service::encoder::Encoded;
use crate::service::limits::RateLimit;
use crate::service::tasks::PolledTask;
use tintype_domain::images_api_request::{OutputFormat, settings_of_json};
use tintype_domain::model::{Status, Surface, TaskId};
use tintype_domain::preset::Chosen;
use tintype_domain::request::{InvalidRequest, is_image_count};
use tintype_store::{Attachment, Call};

/// Time between two progress reports, which keep clients from abandoning the call.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// JPEG qualities for images shown to an agent: the first that fits into [`MAX_IMAGE_BYTES`] is used.
const QUALITIES: [u8; 3] = [85, 60, 30];

/// Most bytes of Base64 JPEG in one answer. The official Python client rejects answers of more than 1 MiB.
const MAX_IMAGE_BYTES: usize = 900 * 1024;

#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) caller: Caller,
    pub(super) memory: AnswerMemory,
    /// Whether the client takes reports before the answer.
    pub(super) reports: bool,
    /// The number of images as the call writes it.
    pub(super) count: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImageForm {
    None,
    Jpeg,
    Png,
}

/// The outcome of a call as the agent sees it: a response of the API, or an error message.
type ToolResult = Result<Value, String>;

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let name = Implementation::new("tintype", env!("CARGO_PKG_VERSION")).with_title("Tintype");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(name)
            .with_instructions(INSTRUCTIONS)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools().into_iter().find(|tool| tool.name == name)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if self.get_tool(&call.name).is_none() {
            return Err(ErrorData::invalid_params(format!("There is no tool {:?}.", call.name), None));
        }
        let mut arguments = call.arguments.unwrap_or_default();
        // Many agents write null or an empty text for an argument that they leave out.
        arguments.retain(|name, value| !value.is_null() && (name == "prompt" || value != ""));
        // A call that panics would never be answered.
        let result = AssertUnwindSafe(self.call(&call.name, arguments, &context)).catch_unwind();
        let result = result.await.unwrap_or_else(|_| {
            tracing::error!(tool = %call.name, "a tool panicked");
            Err("Something went wrong on our side. Call list_tasks before you call generate_image again.".into())
        });
        let result = result.unwrap_or_else(|message| CallToolResult::error(vec![ContentBlock::text(message)]));
        Ok(result.into())
    }

    /// A request that isn't part of this protocol, or one with parameters of another kind.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let needed = match request.method.as_str() {
            "initialize" => "protocolVersion, capabilities (an object) and clientInfo with name and version",
            "tools/call" => "name, and arguments as an object",
            "ping" | "tools/list" => "none",
            method => {
                return Err(ErrorData::new(
                    ErrorCode::METHOD_NOT_FOUND,
                    format!("There is no method {method:?}."),
                    None,
                ));
            }
        };
        Err(ErrorData::invalid_params(format!("Wrong params. {} takes: {needed}.", request.method), None))
    }
}

/// A whole number as text, even if it is written with a fraction of zero.
fn whole(value: &Value) -> Option<String> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e9)?;
    Some(format!("{number:.0}"))
}

impl Tools {
    async fn call(
        &self,
        tool: &str,
        arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        match tool {
            GENERATE => self.generate(arguments, context).await,
            GET => self.get(&arguments, context).await,
            LIST => self.list(&arguments).await.map(structured),
            CREDITS => self.credits().await.map(structured),
            other => unreachable!("{other} is no tool"),
        }
    }

    async fn generate(
        &self,
        mut arguments: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        unquote(&mut arguments);
        let (wait, form) = (wait(&arguments, USUAL_WAIT)?, image_form(&arguments)?);
        arguments.remove("wait_seconds");
        arguments.remove("images");
        self.caller.count(RateLimit::Submit).await.map_err(message_of)?;
        if arguments.contains_key("n") && self.count.as_deref().is_some_and(|written| !is_image_count(written)) {
            return Err(message_of(ApiError::invalid_request(InvalidRequest::Count.to_string())));
        }
        let attempt = self.attempt(&arguments);
        let chosen = self.choice(&mut arguments);
        let ignored = chosen.as_ref().map(|chosen| chosen.ignored.clone()).unwrap_or_default();
        let task_id = match self.earlier(attempt).await? {
            Some(task_id) => task_id,
            // After the search: a task that is already charged must not fail because its preset has changed since.
            None => self.create(arguments, chosen?, attempt).await?,
        };
        // If the client hangs up before it has the answer, the same call gets this task.
        let hold = CallHold::of(&attempt, task_id.0, &self.caller.api.shared);
        // The task is charged, so whatever goes wrong from here on names it.
        let named = |_| format!("The task {task_id} is charged, but could not be shown: call get_task.");
        self.wait(task_id, wait, context).await.map_err(named)?;
        if context.ct.is_cancelled() {
            return Err("The caller hung up.".into());
        }
        let mut shown = self.shown(task_id, form, context).await.map_err(named)?;
        if !ignored.is_empty() {
            let names = ignored.iter().map(|setting| setting.as_str()).collect::<Vec<_>>().join(", ");
            shown.content.push(ContentBlock::text(format!("Without effect here: {names}.")));
        }
        if let Some(hold) = hold {
            self.memory.end_with(hold);
        }
        Ok(shown)
    }

    /// This call. Clients repeat a call that brought no answer, and do not say so.
    fn attempt(&self, arguments: &JsonObject) -> Call {
        let in_order: BTreeMap<_, _> = arguments.iter().collect();
        let digest = Sha256::new().chain_update(b"tintype tool ").chain_update(self.caller.line.as_str());
        let digest = digest.chain_update(serde_json::to_vec(&in_order).expect("JSON")).finalize().into();
        Call { digest, holder: rand::random(), ..Call::default() }
    }

    /// The task of the same call, if its client has hung up.
    async fn earlier(&self, attempt: Call) -> Result<Option<TaskId>, String> {
        let found = self.caller.api.tasks.attach(self.caller.right(), self.caller.key_id, attempt).await;
        match found.map_err(|error| message_of(error.into()))? {
            Attachment::Task(id) => Ok(Some(TaskId(id))),
            Attachment::None | Attachment::OtherChoices => Ok(None),
        }
    }

    async fn create(&self, arguments: JsonObject, chosen: Chosen, attempt: Call) -> Result<TaskId, String> {
        let body = Value::Object(arguments).to_string();
        let submitted = images::submit(&self.caller, body.as_bytes(), Some((chosen, attempt))).await;
        let (task, _) = submitted.map_err(message_of)?;
        let unknown = "It is unknown whether the task was created. Call list_tasks before generate_image.";
        task.map(|task| task.task_id()).ok_or_else(|| unknown.into())
    }

    /// All tools. The tool that creates a task lists the presets, if there are any.
    fn tools(&self) -> Vec<Tool> {
        let presets = self.caller.api.shared.presets.all();
        let mut tools = TOOLS.clone();
        if let Some(generate) = tools.iter_mut().find(|tool| tool.name == GENERATE).filter(|_| !presets.is_empty()) {
            *generate = offering(generate, &presets);
        }
        tools
    }

    /// Removes the preset and the settings from the arguments and applies them.
    fn choice(&self, arguments: &mut JsonObject) -> Result<Chosen, String> {
        let presets = &self.caller.api.shared.presets;
        let preset = match arguments.remove("preset") {
            None => presets.unnamed(None),
            Some(Value::String(name)) => presets.named(&name).ok_or_else(|| {
                let all = presets.all();
                let known = all.iter().map(|preset| preset.name.as_str()).collect::<Vec<_>>().join(", ");
                let known =
                    if known.is_empty() { "This server has none.".into() } else { format!("There are: {known}.") };
                format!("There is no preset {name:?}. {known}")
            })?,
            Some(_) => return Err("preset must be a string.".into()),
        };
        let take = |setting: Setting| Some((setting.as_str().to_owned(), arguments.remove(setting.as_str())?));
        let settings: JsonObject = Setting::ALL.into_iter().filter_map(take).collect();
        let settings =
            settings_of_json(Value::Object(settings).to_string().as_bytes()).map_err(|fault| fault.to_string())?;
        preset.choose(settings).map_err(|fault| fault.to_string())
    }

    async fn get(
        &self,
        arguments: &JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        let (wait, form) = (wait(arguments, 0)?, image_form(arguments)?);
        let task_id = arguments.get("task_id").and_then(Value::as_str).ok_or("task_id must be a string.")?;
        let task_id: TaskId = task_id.parse().map_err(|_| message_of(ApiError::no_such_task()))?;
        self.wait(task_id, wait, context).await?;
        self.shown(task_id, form, context).await
    }

    async fn list(&self, arguments: &JsonObject) -> ToolResult {
        let text = |name| match arguments.get(name) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(other) => Some(whole(other).unwrap_or_else(|| other.to_string())),
        };
        let query = images::ListQuery::new(text("limit"), text("cursor"));
        data(images::list(self.caller.clone(), Ok(Query(query))).await).await
    }

    async fn credits(&self) -> ToolResult {
        data(account::find(self.caller.clone()).await).await
    }

    /// Waits for the end of a task, with progress reports if the client wants them. Ends when the client hangs up.
    async fn wait(&self, task_id: TaskId, limit: Duration, context: &RequestContext<RoleServer>) -> Result<(), String> {
        let token = context.meta.get_progress_token().filter(|_| self.reports);
        let whole = async {
            let mut reports = 0_u32;
            let mut left = limit;
            while !left.is_zero() && !self.caller.readiness.is_stopping() {
                let slice = match (&token, reports) {
                    (None, _) => left,
                    // The first report comes at once.
                    (Some(_), 0) => Duration::ZERO,
                    (Some(_), _) => left.min(REPORT_EVERY),
                };
                left = left.saturating_sub(slice);
                let waited = images::task_at_end(&self.caller, task_id, slice).await;
                let Some(found) = waited.map_err(message_of)? else { return Ok(()) };
                if found.task.status.is_terminal() {
                    return Ok(());
                }
                reports += 1;
                if let Some(token) = token.clone() {
                    let report = ProgressNotificationParam::new(token, f64::from(reports));
                    let report = report.with_message(self.progress(&found).await);
                    // A client that is gone ends the wait below.
                    drop(context.peer.notify_progress(report).await);
                }
            }
            Ok(())
        };
        tokio::select! {
            waited = whole => waited,
            () = context.ct.cancelled() => Ok(()),
        }
    }

    async fn progress(&self, found: &PolledTask) -> String {
        if let Some(Stage::Step { done, of }) = found.attempt.and_then(|attempt| attempt.stage) {
            return format!("step {done} of {of}");
        }
        match self.caller.api.tasks.queue_position(found).await.position {
            0 => "rendering".into(),
            position => format!("place {position} in your queue"),
        }
    }

    async fn shown(
        &self,
        task_id: TaskId,
        form: ImageForm,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, String> {
        let found = images::find(self.caller.clone(), Ok(Path(task_id.to_string())), HeaderMap::new()).await;
        let task = data(found).await?;
        if task["status"] == "failed" {
            let message = format!("The task {task_id} failed: {}", task["error"].as_str().unwrap_or_default());
            return Ok(CallToolResult::error(vec![ContentBlock::text(message), json_text(&task)]));
        }
        // No structured content: agents such as Codex and Claude Code show that in place of the images and of the advice.
        let mut result = CallToolResult::success(vec![json_text(&task)]);
        if task["status"] == "processing" {
            let advice =
                "The task is still processing. Call get_task with its task_id and a wait; do not generate again.";
            result.content.push(ContentBlock::text(advice));
        } else if form != ImageForm::None {
            let images = tokio::select! {
                images = self.images(task_id, form) => images,
                // Nobody reads them any more.
                () = context.ct.cancelled() => Ok(Vec::new()),
            };
            match images {
                Ok(images) => result.content.extend(images),
                Err(error) => {
                    let reason = message_of(error);
                    let message = format!("The images could not be added; they are at their URLs. {reason}");
                    result.content.push(ContentBlock::text(message));
                }
            }
        }
        Ok(result)
    }

    async fn images(&self, task_id: TaskId, form: ImageForm) -> Result<Vec<ContentBlock>, ApiError> {
        let found = self.caller.api.tasks.find(self.caller.account_id, Surface::Api, task_id).await?;
        let found = found.ok_or_else(ApiError::no_such_task)?;
        let Status::Completed(names) = &found.task.status else { return Ok(Vec::new()) };
        let (encoder, account_id) = (&self.caller.api.encoder, self.caller.account_id);
        let memory = encoder.memory_of_tools();
        if form == ImageForm::Png {
            let Encoded { pictures, room } = encoder.pictures(memory, account_id, OutputFormat::Png, names).await?;
            self.memory.keep(room);
            return Ok(blocks(pictures, "image/png"));
        }
        // To encode an image takes a hundred times as long as to read a task.
        for _ in names {
            self.caller.count(RateLimit::Read).await?;
        }
        for quality in QUALITIES {
            let Encoded { pictures, room } =
                encoder.pictures(memory, account_id, OutputFormat::Jpeg(quality), names).await?;
            if pictures.iter().map(String::len).sum::<usize>() <= MAX_IMAGE_BYTES {
                self.memory.keep(room);
                return Ok(blocks(pictures, "image/jpeg"));
            }
        }
        Ok(vec![ContentBlock::text("The images are too large for an answer; they are at their URLs.")])
    }
}

fn blocks(pictures: Vec<String>, kind: &str) -> Vec<ContentBlock> {
    pictures.into_iter().map(|picture| ContentBlock::image(picture, kind)).collect()
}

fn json_text(data: &Value) -> ContentBlock {
    ContentBlock::text(serde_json::to_string_pretty(data).expect("JSON"))
}

fn structured(data: Value) -> CallToolResult {
    let mut result = CallToolResult::success(vec![json_text(&data)]);
    result.structured_content = Some(data);
    result
}

/// Reads a number and a list that an agent wrote as text, and one reference image as a list.
fn unquote(arguments: &mut JsonObject) {
    for name in ["n", "reference_images"] {
        let Some(value) = arguments.get_mut(name) else { continue };
        if let Value::String(text) = value {
            *value = serde_json::from_str(text).unwrap_or_else(|_| json!([text]));
        }
    }
}

/// The seconds that an agent wants to wait.
fn wait(arguments: &JsonObject, usual: u64) -> Result<Duration, String> {
    let seconds = match arguments.get("wait_seconds") {
        None => Some(usual),
        // The value counts, not its spelling: 30.0 is 30.
        Some(given) => {
            let number = given.as_f64().or_else(|| given.as_str()?.parse().ok());
            let whole = number.filter(|seconds| seconds.fract() == 0.0 && (0.0..=MAX_WAIT as f64).contains(seconds));
            whole.map(|seconds| seconds as u64)
        }
    };
    let seconds = seconds.ok_or_else(|| format!("wait_seconds must be an integer from 0 to {MAX_WAIT}."))?;
    Ok(Duration::from_secs(seconds))
}

fn image_form(arguments: &JsonObject) -> Result<ImageForm, String> {
    match arguments.get("images").unwrap_or(&json!("jpeg")).as_str() {
        Some("jpeg") => Ok(ImageForm::Jpeg),
        Some("png") => Ok(ImageForm::Png),
        Some("none") => Ok(ImageForm::None),
        _ => Err("images must be \"jpeg\", \"png\" or \"none\".".into()),
    }
}

/// The data of a response of the API, or its error as a message.
async fn data(response: Result<Response, ApiError>) -> ToolResult {
    let response = response.map_err(message_of)?;
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
    let mut body: Value = serde_json::from_slice(&body).unwrap_or_default();
    Ok(body.get_mut("data").map(Value::take).unwrap_or_default())
}

fn message_of(error: ApiError) -> String {
    if let Some(cause) = error.cause() {
        tracing::error!(%cause, "a call of a tool failed");
    }
    error.message()
}
