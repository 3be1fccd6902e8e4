//! The native API of stable-diffusion.cpp's server: jobs are submitted, polled and, while they wait, cancelled.
//!
//! Its OpenAI and A1111 routes aren't used: they block until the picture is ready, and the former ignores the seed.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tintype_engine::{EngineError, RenderSettings};

use crate::endpoint::{Endpoint, EngineResponse, Fault, ServerMessage, is_plain};
use crate::results::MAX_FILE_BYTES;

/// Answers without a picture are small, except capabilities, which list all LoRA files on the server.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// A picture in base64, with the JSON around it.
const MAX_JOB: usize = MAX_FILE_BYTES / 3 * 4 + 64 * 1024;
/// Values for servers that don't report theirs.
const DEFAULT_STRENGTH: f64 = 0.75;
const DEFAULT_STEPS: u32 = 20;
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a body with reference pictures, or an answer with a picture.
const PICTURE_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Api {
    endpoint: Endpoint,
}

/// The relevant part of a server's capabilities.
#[derive(Debug, Deserialize)]
pub(super) struct Capabilities {
    model: Model,
    supported_modes: Vec<String>,
    #[serde(default)]
    defaults: Defaults,
}

/// Default values for jobs.
#[derive(Debug, Default, Deserialize)]
struct Defaults {
    strength: Option<f64>,
    #[serde(default)]
    sample_params: SampleParams,
}

#[derive(Debug, Default, Deserialize)]
struct SampleParams {
    sample_steps: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Model {
    #[serde(default)]
    name: String,
}

impl Capabilities {
    pub(super) fn model(&self) -> &str {
        &self.model.name
    }

    /// How strongly a reference is painted over, from 0 to 1: as set by the task or the server, but never so strongly
    /// that the first step removes the reference. `None` if the server paints in a single step, which always removes
    /// it.
    pub(super) fn strength(&self, settings: &RenderSettings) -> Option<f64> {
        let strength = settings.strength.or(self.defaults.strength).unwrap_or(DEFAULT_STRENGTH);
        // A single step would leave nothing of the reference.
        let steps = settings
            .steps
            .map(|steps| steps.max(2))
            .or(self.defaults.sample_params.sample_steps)
            .unwrap_or(DEFAULT_STEPS);
        // The server begins at step `steps - 1 - floor(steps * strength)`, and step 0 is pure noise.
        let most = f64::from(steps.checked_sub(2)?) + 0.5;
        Some(strength.min(most / f64::from(steps)))
    }
}

#[derive(Debug)]
pub(super) enum Job {
    /// It waits or is being rendered.
    Unfinished,
    /// Its pictures' files.
    Completed(Vec<Vec<u8>>),
    /// It failed, or someone cancelled it.
    Failed(ServerMessage),
    /// The server doesn't know it: it was restarted, or has forgotten the job.
    Gone,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cancellation {
    /// The job won't be rendered, or already has been.
    Done,
    /// The job is being rendered, which cannot be stopped.
    Rendering,
}

#[derive(Deserialize)]
struct SubmittedAnswer {
    id: String,
}

#[derive(Deserialize)]
struct JobAnswer {
    status: String,
    result: Option<ResultAnswer>,
    error: Option<ErrorAnswer>,
}

#[derive(Deserialize)]
struct ResultAnswer {
    images: Vec<ImageAnswer>,
}

#[derive(Deserialize)]
struct ImageAnswer {
    index: usize,
    b64_json: String,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    code: Option<String>,
    message: Option<String>,
}

impl Api {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// The server's name for the operator.
    pub(super) fn name(&self) -> &str {
        self.endpoint.name()
    }

    /// Asks for the server's capabilities.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`]: no or an unexpected answer, or no image model.
    pub(super) async fn capabilities(&self) -> Result<Capabilities, EngineError> {
        let request = self.endpoint.request(Method::GET, "sdcpp/v1/capabilities")?;
        let answer = self.endpoint.send(request, MAX_ANSWER, ANSWER_LIMIT).await.map_err(unavailable)?;
        let not_ours = |what: &str| {
            EngineError::NotAvailable(format!(
                "{} {what}: give the base URL of stable-diffusion.cpp's sd-server, such as http://127.0.0.1:1234",
                self.name()
            ))
        };
        match answer.status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(not_ours("has no route /sdcpp/v1/capabilities")),
            _ => return Err(unavailable(self.endpoint.failure(&answer, &words(&answer)))),
        }
        let capabilities: Capabilities =
            serde_json::from_slice(&answer.body).map_err(|_| not_ours("does not describe its capabilities"))?;
        if !capabilities.supported_modes.iter().any(|mode| mode == "img_gen") {
            let cause = format!("{} has loaded a model that paints no pictures (no mode img_gen)", self.name());
            return Err(EngineError::NotAvailable(cause));
        }
        Ok(capabilities)
    }

    /// Submits a job and returns its id.
    ///
    /// # Errors
    /// [`Fault`]; a full queue is [`EngineError::NotAvailable`].
    pub(super) async fn submit(&self, body: &Value) -> Result<String, Fault> {
        let request = self.endpoint.request(Method::POST, "sdcpp/v1/img_gen")?;
        let request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        let answer = self.endpoint.send(request, MAX_ANSWER, PICTURE_LIMIT).await?;
        if answer.status != StatusCode::ACCEPTED {
            return Err(self.endpoint.failure(&answer, &words(&answer)));
        }
        let submitted: Option<SubmittedAnswer> = serde_json::from_slice(&answer.body).ok();
        let id = submitted.map(|submitted| submitted.id).filter(|id| is_plain(id, 128, b"_-"));
        id.ok_or_else(|| self.endpoint.unclear("accepted a job without a valid id"))
    }

    /// A job's state.
    ///
    /// # Errors
    /// [`Fault`]: the server sent no valid answer.
    pub(super) async fn job(&self, id: &str) -> Result<Job, Fault> {
        let request = self.endpoint.request(Method::GET, &format!("sdcpp/v1/jobs/{id}"))?;
        let answer = self.endpoint.send(request, MAX_JOB, PICTURE_LIMIT).await?;
        match answer.status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::GONE => return Ok(Job::Gone),
            _ => return Err(self.endpoint.failure(&answer, &words(&answer))),
        }
        let job: JobAnswer = serde_json::from_slice(&answer.body)
            .map_err(|_| self.endpoint.unclear("returned something that is not a job"))?;
        match (job.status.as_str(), job.result, job.error) {
            ("queued" | "generating", _, _) => Ok(Job::Unfinished),
            ("completed", Some(result), _) => Ok(Job::Completed(self.files(result.images)?)),
            ("failed" | "cancelled", _, error) => {
                let ErrorAnswer { code, message } = error.unwrap_or(ErrorAnswer { code: None, message: None });
                Ok(Job::Failed(ServerMessage { code: code.or(Some(job.status)), message, advice: None }))
            }
            _ => Err(self.endpoint.unclear("gave a job in an unknown state")),
        }
    }

    fn files(&self, images: Vec<ImageAnswer>) -> Result<Vec<Vec<u8>>, Fault> {
        let mut images = images;
        images.sort_by_key(|image| image.index);
        let decode = |image: ImageAnswer| BASE64_STANDARD.decode(image.b64_json);
        let files = images.into_iter().map(decode).collect::<Result<_, _>>();
        files.map_err(|_| self.endpoint.unclear("gave a picture that is not valid base64"))
    }

    /// Cancels a job.
    ///
    /// # Errors
    /// [`Fault`]: it is unknown whether the job is cancelled.
    pub(super) async fn cancel(&self, id: &str) -> Result<Cancellation, Fault> {
        let request = self.endpoint.request(Method::POST, &format!("sdcpp/v1/jobs/{id}/cancel"))?;
        let answer = self.endpoint.send(request, MAX_JOB, ANSWER_LIMIT).await?;
        match answer.status {
            StatusCode::OK | StatusCode::NOT_FOUND | StatusCode::GONE => Ok(Cancellation::Done),
            StatusCode::CONFLICT => Ok(Cancellation::Rendering),
            _ => Err(self.endpoint.failure(&answer, &words(&answer))),
        }
    }

    pub(super) fn failed(&self, words: &ServerMessage) -> EngineError {
        self.endpoint.failed(words)
    }
}

/// The error of a server that was only asked whether it is accepting work.
fn unavailable(fault: Fault) -> EngineError {
    EngineError::NotAvailable(fault.error.into_cause())
}

/// An error's words: `{"error": …}`, with a message in `message` if `error` is a code.
fn words(answer: &EngineResponse) -> ServerMessage {
    let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    match text("message") {
        Some(message) => ServerMessage { code: text("error"), message: Some(message), advice: None },
        None => ServerMessage { code: None, message: text("error"), advice: None },
    }
}
