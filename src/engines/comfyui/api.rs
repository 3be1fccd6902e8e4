//! The routes of ComfyUI that a render needs. Old servers lack those below `/api/jobs`, and choose ids themselves.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use reqwest::header::CONTENT_TYPE;
use reqwest::multipart::{Form, Part};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tintype_engine::{Device, EngineError};

use crate::engines::endpoint::{Answer, Endpoint, Fault, Words};
use crate::engines::results::MAX_FILE_BYTES;
use crate::engines::servers::Server;

/// An answer about a run holds its whole workflow, and the queue those of all runs that wait.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time for a reference or a picture.
const FILE_LIMIT: Duration = Duration::from_secs(60);
/// Time for the answers to a probe; less than the worker waits for one.
const PROBE_LIMIT: Duration = Duration::from_secs(4);
/// Longest name of a device, in characters.
const MAX_NAME: usize = 100;

/// One server.
#[derive(Debug)]
pub(super) struct ComfyServer {
    endpoint: Endpoint,
    /// Kinds of nodes that the workflow needs.
    node_classes: Vec<String>,
}

/// A run of the workflow, as the server sees it.
#[derive(Debug)]
pub(super) enum Run {
    /// It waits or is being rendered.
    Unfinished,
    /// The files of its pictures.
    Completed(Vec<File>),
    /// The error that ended it.
    Failed(Words),
    /// The server does not know it: it was started again, or somebody removed the run.
    Gone,
}

/// A file in a folder of the server.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct File {
    filename: String,
    #[serde(default)]
    subfolder: String,
    #[serde(rename = "type", default)]
    folder: String,
}

impl File {
    fn query(&self) -> String {
        let parts = [("filename", &self.filename), ("subfolder", &self.subfolder), ("type", &self.folder)];
        url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parts).finish()
    }
}

#[derive(Deserialize)]
struct Accepted {
    prompt_id: String,
    #[serde(default)]
    node_errors: Value,
}

/// A run that the server has queued.
#[derive(Debug)]
pub(super) struct Queued {
    /// The id that the server uses. An old one has chosen it.
    pub(super) id: String,
    /// The errors of nodes that it leaves out.
    pub(super) left_out: Option<Words>,
}

#[derive(Deserialize)]
struct Uploaded {
    name: String,
    #[serde(default)]
    subfolder: String,
}

#[async_trait]
impl Server for ComfyServer {
    fn name(&self) -> &str {
        self.endpoint.name()
    }

    async fn probe(&self) -> Result<(), Fault> {
        let asking = async {
            let stats = self.get("system_stats").await?;
            if !stats["system"].is_object() {
                let what = "does not answer as ComfyUI does: give its base URL, such as http://127.0.0.1:8188";
                return Err(self.unclear(what));
            }
            let asked = self.node_classes.iter().map(async |class| {
                let path = format!("object_info/{}", encoded(class));
                Ok::<_, Fault>(self.get(&path).await?.get(class).is_none().then_some(class.as_str()))
            });
            let missing: Vec<_> = try_join_all(asked).await?.into_iter().flatten().collect();
            match missing.is_empty() {
                true => Ok(()),
                false => Err(self.unclear(&format!("lacks nodes of the workflow: {}", missing.join(", ")))),
            }
        };
        let overlong = || Err(self.unclear("did not answer a probe in time"));
        tokio::time::timeout(PROBE_LIMIT, asking).await.unwrap_or_else(|_| overlong())
    }
}

impl ComfyServer {
    pub(super) fn new(endpoint: Endpoint, node_classes: Vec<String>) -> Self {
        Self { endpoint, node_classes }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The devices of the server; none if it does not answer.
    pub(super) async fn devices(&self) -> Vec<Device> {
        let asked = tokio::time::timeout(PROBE_LIMIT, self.get("system_stats")).await;
        let Ok(Ok(stats)) = asked else { return Vec::new() };
        let devices = stats["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
        let device = |device: &Value| {
            // It is shown on a terminal.
            let name = device["name"].as_str()?.chars().filter(|char| !char.is_control()).take(MAX_NAME).collect();
            Some(Device { name, memory: device["vram_total"].as_u64(), free_memory: device["vram_free"].as_u64() })
        };
        devices.iter().filter_map(device).collect()
    }

    async fn get(&self, path: &str) -> Result<Value, Fault> {
        let request = self.endpoint.request(Method::GET, path)?;
        self.json(&self.endpoint.send(request, MAX_ANSWER, ANSWER_LIMIT).await?)
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Answer, Fault> {
        let request = self.endpoint.request(Method::POST, path)?.header(CONTENT_TYPE, "application/json");
        self.endpoint.send(request.body(body.to_string()), MAX_ANSWER, ANSWER_LIMIT).await
    }

    fn json(&self, answer: &Answer) -> Result<Value, Fault> {
        if answer.status != StatusCode::OK {
            return Err(self.endpoint.failure(answer, &words(answer)));
        }
        serde_json::from_slice(&answer.body).map_err(|_| {
            let kind = answer.media_type();
            self.unclear(&format!(
                "answered 200 with {} instead of JSON",
                if kind.is_empty() { "bytes" } else { &kind }
            ))
        })
    }

    fn unclear(&self, what: &str) -> Fault {
        EngineError::Temporary(format!("{} {what}", self.endpoint.name())).into()
    }

    /// Uploads a PNG, and returns the name by which the workflow finds it.
    ///
    /// # Errors
    /// [`Fault`].
    pub(super) async fn upload(&self, name: String, png: Bytes) -> Result<String, Fault> {
        let part = Part::stream_with_length(png.clone(), png.len() as u64).file_name(name).mime_str("image/png");
        let part = part.map_err(|error| EngineError::Permanent(error.to_string()))?;
        let request = self.endpoint.request(Method::POST, "upload/image")?;
        let request = request.multipart(Form::new().part("image", part).text("type", "input"));
        let answer = self.json(&self.endpoint.send(request, MAX_ANSWER, FILE_LIMIT).await?)?;
        let uploaded = serde_json::from_value(answer);
        // Another name, if a file of this one had another content.
        let Uploaded { name, subfolder } = uploaded.map_err(|_| self.unclear("did not name a file that it took"))?;
        Ok(if subfolder.is_empty() { name } else { format!("{subfolder}/{name}") })
    }

    /// Queues the workflow. The id is also that of the client whose websocket hears of the run.
    ///
    /// # Errors
    /// [`Fault`]; a workflow with errors is [`EngineError::Permanent`].
    pub(super) async fn submit(&self, graph: &Value, id: &str) -> Result<Queued, Fault> {
        let body = json!({ "prompt": graph, "prompt_id": id, "client_id": id });
        let answer = self.json(&self.post("prompt", &body).await?)?;
        let accepted: Option<Accepted> = serde_json::from_value(answer).ok();
        // The id becomes part of a path.
        let is_id = |id: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            (1..=64).contains(&id.len()) && id.bytes().all(plain)
        };
        let accepted = accepted.filter(|accepted| is_id(&accepted.prompt_id));
        let Accepted { prompt_id, node_errors } =
            accepted.ok_or_else(|| self.unclear("accepted a workflow without a valid id"))?;
        Ok(Queued { id: prompt_id, left_out: first_node_error(&node_errors) })
    }

    /// The error of a workflow of which the server leaves nodes out.
    pub(super) fn incomplete(&self, words: &Words) -> EngineError {
        let (name, quoted) = (self.endpoint.name(), self.endpoint.quoted(words));
        EngineError::Permanent(format!("{name} does not run the whole workflow{quoted}"))
    }

    /// The error of a run that failed.
    pub(super) fn failed(&self, words: &Words) -> EngineError {
        let (name, quoted) = (self.endpoint.name(), self.endpoint.quoted(words));
        EngineError::Temporary(format!("{name} failed to render{quoted}"))
    }

    /// The state of a run.
    ///
    /// # Errors
    /// [`Fault`]: the server gave no valid answer.
    pub(super) async fn run(&self, id: &str) -> Result<Run, Fault> {
        let request = self.endpoint.request(Method::GET, &format!("api/jobs/{id}"))?;
        let answer = self.endpoint.send(request, MAX_ANSWER, ANSWER_LIMIT).await?;
        // Either the run is unknown, or the route is.
        if answer.status == StatusCode::NOT_FOUND {
            return self.run_of_old(id).await;
        }
        let job = self.json(&answer)?;
        match job["status"].as_str() {
            Some("pending" | "in_progress") => Ok(Run::Unfinished),
            Some("completed") => Ok(Run::Completed(files(&job["outputs"]))),
            Some(ended @ ("failed" | "cancelled")) => Ok(Run::Failed(error_words(&job["execution_error"], ended))),
            _ => Err(self.unclear("gave a run in an unknown state")),
        }
    }

    /// The state of a run in the history and the queue, which old servers have too.
    async fn run_of_old(&self, id: &str) -> Result<Run, Fault> {
        let queue = self.get("queue").await?;
        // Asked after the queue: runs move from there into the history.
        let history = self.get(&format!("history/{id}")).await?;
        let Some(entry) = history.get(id) else {
            let waits = ["queue_running", "queue_pending"].iter().any(|list| entry_of(&queue[list], id).is_some());
            return Ok(if waits { Run::Unfinished } else { Run::Gone });
        };
        let status = &entry["status"];
        if status["status_str"] != "error" {
            return Ok(Run::Completed(files(&entry["outputs"])));
        }
        let messages = status["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let last = messages
            .iter()
            .rfind(|message| matches!(message[0].as_str(), Some("execution_error" | "execution_interrupted")));
        let (name, details) =
            last.map_or(("failed", &Value::Null), |last| (last[0].as_str().unwrap_or_default(), &last[1]));
        Ok(Run::Failed(error_words(details, name)))
    }

    /// Fetches a file.
    ///
    /// # Errors
    /// [`Fault`].
    pub(super) async fn fetch(&self, file: &File) -> Result<Vec<u8>, Fault> {
        let request = self.endpoint.request(Method::GET, &format!("view?{}", file.query()))?;
        let answer = self.endpoint.send(request, MAX_FILE_BYTES, FILE_LIMIT).await?;
        match answer.status {
            StatusCode::OK => Ok(answer.body),
            _ => Err(self.endpoint.failure(&answer, &words(&answer))),
        }
    }

    /// Cancels a run. `id` is the one that it was submitted with, or the one that an old server has chosen for it.
    ///
    /// # Errors
    /// [`Fault`]: it is unknown whether the run goes on.
    pub(super) async fn cancel(&self, id: &str) -> Result<(), Fault> {
        let answer = self.post(&format!("api/jobs/{id}/cancel"), &json!({})).await?;
        if answer.status == StatusCode::OK {
            return Ok(());
        }
        let queue = self.get("queue").await?;
        if let Some(id) = entry_of(&queue["queue_pending"], id) {
            self.post("queue", &json!({ "delete": [id] })).await?;
        }
        // It may have begun meanwhile. An old server interrupts whatever it is running, even if it is given an id, so that it
        // is asked only while that is this run.
        let queue = self.get("queue").await?;
        if let Some(id) = entry_of(&queue["queue_running"], id) {
            self.post("interrupt", &json!({ "prompt_id": id })).await?;
        }
        Ok(())
    }
}

/// The server's id of a run in a list of its queue. `id` is that id, or the one of the client that submitted the run.
fn entry_of<'a>(list: &'a Value, id: &str) -> Option<&'a str> {
    let entries = list.as_array().map(Vec::as_slice).unwrap_or_default();
    entries.iter().find(|entry| entry[1] == id || entry[3]["client_id"] == id)?[1].as_str()
}

/// Files of the folder `output`, or if there are none, temporary ones.
fn files(outputs: &Value) -> Vec<File> {
    let outputs = outputs.as_object().into_iter().flat_map(|outputs| outputs.values());
    let images = outputs.filter_map(|output| output["images"].as_array()).flatten();
    let files: Vec<File> = images.filter_map(|image| serde_json::from_value(image.clone()).ok()).collect();
    let kept: Vec<File> = files.iter().filter(|file| file.folder == "output").cloned().collect();
    if kept.is_empty() { files } else { kept }
}

/// The words of an error that ended a run.
fn error_words(details: &Value, otherwise: &str) -> Words {
    let text = |name: &str| details[name].as_str().map(str::to_owned);
    Words { code: text("exception_type").or_else(|| Some(otherwise.to_owned())), message: text("exception_message") }
}

/// The first error of a node.
fn first_node_error(errors: &Value) -> Option<Words> {
    let node = errors.as_object()?.values().next()?;
    let error = &node["errors"][0];
    let message = [&node["class_type"], &error["message"], &error["details"]];
    let message: Vec<_> = message.iter().filter_map(|part| part.as_str()).collect();
    Some(Words { code: error["type"].as_str().map(str::to_owned), message: Some(message.join(": ")) })
}

/// The words of an error: `{"error": {"type", "message", …}, "node_errors": {…}}`, in old versions `{"error": "…"}`.
fn words(answer: &Answer) -> Words {
    let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let node = first_node_error(&value["node_errors"]).unwrap_or_default();
    let error = &value["error"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Words {
        code: node.code.or_else(|| text(&error["type"])),
        message: node.message.or_else(|| text(&error["message"])).or_else(|| text(error)),
    }
}

/// A segment of a path.
fn encoded(segment: &str) -> String {
    url::form_urlencoded::byte_serialize(segment.as_bytes()).collect::<String>().replace('+', "%20")
}
