//! The ComfyUI routes that a render needs. Old servers lack the routes below `/api/jobs`, and choose ids themselves.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::header::CONTENT_TYPE;
use reqwest::multipart::Form;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tintype_engine::{Device, EngineError};

use super::answers::{self, Accepted, File, Job, Queue, Stats, Uploaded, entry_of};
use crate::endpoint::{Endpoint, EngineResponse, Fault, ServerMessage, is_plain};
use crate::results::{MAX_FILE_BYTES, png_part};
use crate::servers::Server;

/// Longest answer about a run, which contains its workflow, or about the queue, which contains all waiting runs'
/// workflows.
const MAX_WORKFLOWS: usize = 16 * 1024 * 1024;
/// Longest description of a node class. LoadImage's lists all files in the folder `input`.
const MAX_DESCRIPTION: usize = 4 * 1024 * 1024;
/// Longest answer of any other kind, except a picture.
const MAX_ANSWER: usize = 1024 * 1024;
/// Descriptions requested at a time.
const DESCRIPTIONS_AT_ONCE: usize = 4;
/// Time limit for small answers. While the server loads a model it is silent for longer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a cancellation. A server that is loading a model handles it only afterwards.
const CANCEL_LIMIT: Duration = Duration::from_secs(180);

#[derive(Debug)]
pub(super) struct ComfyServer {
    endpoint: Endpoint,
    node_classes: Vec<String>,
}

/// A run of the workflow, as the server sees it.
#[derive(Debug)]
pub(super) enum Run {
    /// It waits or is being rendered.
    Unfinished,
    /// It has ended; the file of its picture, if it saved one.
    Completed(Option<File>),
    /// The error that ended it.
    Failed(ServerMessage),
    /// The server doesn't know it: it was restarted, or someone removed the run.
    Gone,
}

#[derive(Debug)]
pub(super) struct Queued {
    /// The server's id for the run. Old servers choose it themselves.
    pub(super) id: String,
    /// The errors of nodes that it skips.
    pub(super) left_out: Option<ServerMessage>,
}

#[async_trait]
impl Server for ComfyServer {
    fn name(&self) -> &str {
        self.endpoint.name()
    }

    async fn probe(&self) -> Result<(), Fault> {
        let answer = self.get("system_stats", MAX_ANSWER, ANSWER_LIMIT).await?;
        if !self.json::<Stats<'_>>(&answer).map(|stats| stats.are_of_comfyui())? {
            let what = "does not answer as ComfyUI does: give its base URL, such as http://127.0.0.1:8188";
            return Err(self.endpoint.unclear(what));
        }
        let requests = self.node_classes.iter().map(async |class| {
            let path = format!("object_info/{}", encoded(class));
            let answer = self.get(&path, MAX_DESCRIPTION, ANSWER_LIMIT).await?;
            let known = answers::member(self.json(&answer)?, class).is_some();
            Ok::<_, Fault>((!known).then_some(class.as_str()))
        });
        let requests: Vec<_> = requests.collect();
        let answers: Vec<_> = stream::iter(requests).buffered(DESCRIPTIONS_AT_ONCE).try_collect().await?;
        let missing: Vec<_> = answers.into_iter().flatten().collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(self.endpoint.unclear(&format!("lacks nodes of the workflow: {}", missing.join(", ")))),
        }
    }
}

impl ComfyServer {
    pub(super) fn new(endpoint: Endpoint, node_classes: Vec<String>) -> Self {
        Self { endpoint, node_classes }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The server's devices; empty if it doesn't answer.
    pub(super) async fn devices(&self) -> Vec<Device> {
        let Ok(answer) = self.get("system_stats", MAX_ANSWER, ANSWER_LIMIT).await else { return Vec::new() };
        self.json::<Stats<'_>>(&answer).map(|stats| stats.devices()).unwrap_or_default()
    }

    async fn get(&self, path: &str, max_bytes: usize, limit: Duration) -> Result<EngineResponse, Fault> {
        let request = self.endpoint.request(Method::GET, path)?;
        self.endpoint.send(request, max_bytes, limit).await
    }

    async fn post(&self, path: &str, body: &Value, limit: Duration) -> Result<EngineResponse, Fault> {
        let request = self.endpoint.request(Method::POST, path)?.header(CONTENT_TYPE, "application/json");
        self.endpoint.send(request.body(body.to_string()), MAX_ANSWER, limit).await
    }

    /// An answer's content, which borrows from it.
    fn json<'a, T: Deserialize<'a>>(&self, answer: &'a EngineResponse) -> Result<T, Fault> {
        if answer.status != StatusCode::OK {
            return Err(self.endpoint.failure(answer, &answers::words(&answer.body)));
        }
        let parsed = serde_json::from_slice::<&RawValue>(&answer.body).map_err(|_| {
            let kind = answer.media_type();
            self.endpoint.unclear(&format!(
                "answered 200 with {} instead of JSON",
                if kind.is_empty() { "bytes" } else { &kind }
            ))
        })?;
        serde_json::from_str(parsed.get()).map_err(|_| self.endpoint.unclear("answered 200 with JSON of another shape"))
    }

    /// Uploads a PNG, and returns the name by which the workflow finds it.
    pub(super) async fn upload(&self, name: String, png: Bytes, limit: Duration) -> Result<String, Fault> {
        let request = self.endpoint.request(Method::POST, "upload/image")?;
        let form = Form::new().part("image", png_part(&png, name)?).text("type", "input");
        let request = request.multipart(form);
        let answer = self.endpoint.send(request, MAX_ANSWER, limit).await?;
        let uploaded = serde_json::from_str(self.json::<&RawValue>(&answer)?.get());
        // A different name, if a file with this one had different content.
        let Uploaded { name, subfolder } =
            uploaded.map_err(|_| self.endpoint.unclear("did not name a file that it took"))?;
        Ok(if subfolder.is_empty() { name } else { format!("{subfolder}/{name}") })
    }

    /// Queues the workflow. The id is also the client id for the websocket that gets the run's events.
    ///
    /// # Errors
    /// [`Fault`]; a workflow with errors is [`EngineError::Permanent`].
    pub(super) async fn submit(&self, graph: &Value, id: &str, limit: Duration) -> Result<Queued, Fault> {
        let body = json!({ "prompt": graph, "prompt_id": id, "client_id": id });
        let answer = self.post("prompt", &body, limit).await?;
        let accepted: Option<Accepted<'_>> = serde_json::from_str(self.json::<&RawValue>(&answer)?.get()).ok();
        let accepted = accepted.filter(|accepted| is_plain(&accepted.prompt_id, 64, b"-"));
        let accepted = accepted.ok_or_else(|| self.endpoint.unclear("accepted a workflow without a valid id"))?;
        Ok(Queued { left_out: accepted.left_out(), id: accepted.prompt_id })
    }

    /// The error for a workflow that the server runs only in part.
    pub(super) fn incomplete(&self, words: &ServerMessage) -> EngineError {
        let (name, quoted) = (self.endpoint.name(), self.endpoint.quoted(words));
        EngineError::NotAvailable(format!("{name} does not run the whole workflow{quoted}: check it in ComfyUI"))
    }

    /// A run's state. [`Fault`] if the server sent no valid answer.
    pub(super) async fn run(&self, id: &str, limit: Duration) -> Result<Run, Fault> {
        let answer = self.get(&format!("api/jobs/{id}"), MAX_WORKFLOWS, limit).await?;
        // Either the run is unknown, or the route is.
        if answer.status == StatusCode::NOT_FOUND {
            return self.run_of_old(id, limit).await;
        }
        self.json::<Job<'_>>(&answer)?.run().ok_or_else(|| self.endpoint.unclear("gave a run in an unknown state"))
    }

    /// A run's state from the history and the queue, which old servers also have.
    async fn run_of_old(&self, id: &str, limit: Duration) -> Result<Run, Fault> {
        let waits = {
            let answer = self.get("queue", MAX_WORKFLOWS, limit).await?;
            let Queue { queue_running, queue_pending } = self.json(&answer)?;
            [queue_running, queue_pending].into_iter().any(|list| entry_of(list, id).is_some())
        };
        // Requested after the queue: runs move from there into the history.
        let answer = self.get(&format!("history/{id}"), MAX_WORKFLOWS, limit).await?;
        let ended = answers::run_in_history(self.json(&answer)?, id);
        Ok(ended.unwrap_or(if waits { Run::Unfinished } else { Run::Gone }))
    }

    /// Downloads a file, if it is still there.
    pub(super) async fn fetch(&self, file: &File, limit: Duration) -> Result<Option<Vec<u8>>, Fault> {
        let request = self.endpoint.request(Method::GET, &format!("view?{}", file.query()))?;
        let answer = self.endpoint.send(request, MAX_FILE_BYTES, limit).await?;
        match answer.status {
            StatusCode::OK => Ok(Some(answer.body)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.endpoint.failure(&answer, &answers::words(&answer.body))),
        }
    }

    /// Cancels a run. `id` is the id that it was submitted with, or the one that an old server chose for it.
    ///
    /// # Errors
    /// [`Fault`]: it is unknown whether the run continues.
    pub(super) async fn cancel(&self, id: &str) -> Result<(), Fault> {
        let answer = self.post(&format!("api/jobs/{id}/cancel"), &json!({}), CANCEL_LIMIT).await?;
        if answer.status == StatusCode::OK {
            return Ok(());
        }
        if let Some(id) = self.queued(id, |queue| queue.queue_pending).await? {
            self.post("queue", &json!({ "delete": [id] }), CANCEL_LIMIT).await?;
        }
        // It may have begun meanwhile. Old servers interrupt whatever is running, even if given an id, so they are only
        // asked while this run is running.
        if let Some(id) = self.queued(id, |queue| queue.queue_running).await? {
            self.post("interrupt", &json!({ "prompt_id": id }), CANCEL_LIMIT).await?;
        }
        Ok(())
    }

    /// The run's server-side id in one of the queue's lists.
    async fn queued(
        &self,
        id: &str,
        list: impl for<'a> Fn(Queue<'a>) -> Option<&'a RawValue>,
    ) -> Result<Option<String>, Fault> {
        let answer = self.get("queue", MAX_WORKFLOWS, CANCEL_LIMIT).await?;
        Ok(entry_of(list(self.json(&answer)?), id))
    }
}

fn encoded(segment: &str) -> String {
    url::form_urlencoded::byte_serialize(segment.as_bytes()).collect::<String>().replace('+', "%20")
}
