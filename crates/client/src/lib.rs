//! A client of the Tintype API: submits a task, polls it, downloads its images. Prints nothing.
//!
//! Invariants:
//! - A submit is sent once, because a repeated submit can charge twice.
//! - The key is sent to the API only: not to the file host, not to the target of a redirect, and over plain HTTP to
//!   this machine only, unless the caller allows more.

mod edit;
mod messages;
mod polling;
mod processing;
mod tls;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Response, StatusCode};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};
use url::{Host, Url};

pub use edit::{Choices, EditRequest, Reference};
pub use messages::Labels;
use polling::{Polled, persist, poll_until_finished};
use processing::ignored_fields;
pub use processing::{Processing, Waiting};

/// A task that is not terminal after this time is stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(10 * 60);

const TASK_ID_PREFIX: &str = "imgmodel-";
const TASK_ID_CHARS: usize = 21;
const USER_AGENT: &str = concat!("tintype/", env!("CARGO_PKG_VERSION"));
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Longest silence in the middle of a download.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// Longest silence of a tool: the minute that it may wait, and as much again for its pictures.
const TOOL_LIMIT: Duration = Duration::from_secs(120);
/// Time for one image, repetitions included.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(10 * 60);
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
const MAX_IMAGE_BYTES: usize = 64 * 1024 * 1024;
/// Redirects followed to an image, which may have moved behind a content network.
const MAX_IMAGE_REDIRECTS: usize = 3;
const MAX_MESSAGE_CHARS: usize = 500;

const PNG_SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Hosts that the key may be sent to over plain HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainHttp {
    /// This machine only.
    LoopbackOnly,
    /// Any host.
    Anywhere,
}

/// The identifier of a task, as the API returns it: `imgmodel-` and 21 characters of `[A-Za-z0-9_-]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct TaskId(String);

/// The text is not a task id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a task_id is {TASK_ID_PREFIX} and {TASK_ID_CHARS} characters of A-Z, a-z, 0-9, '-' and '_'")]
pub struct InvalidTaskId;

impl FromStr for TaskId {
    type Err = InvalidTaskId;

    fn from_str(text: &str) -> Result<Self, InvalidTaskId> {
        let id = text.strip_prefix(TASK_ID_PREFIX).ok_or(InvalidTaskId)?;
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if id.len() == TASK_ID_CHARS && id.bytes().all(valid) { Ok(Self(text.to_owned())) } else { Err(InvalidTaskId) }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The body of a submit. The server validates it.
#[derive(Debug, Clone, Serialize)]
pub struct TaskRequest {
    /// Description of the images.
    pub prompt: String,
    /// One of the 13 ratios; `None` leaves it to the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aspect_ratio: Option<String>,
    /// Number of images; `None` leaves it to the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<i64>,
    /// URLs of reference images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reference_images: Vec<String>,
}

/// A task that was created and charged.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// The id to poll.
    pub task_id: TaskId,
    /// The state of the task, as the server reports it.
    pub state: Processing,
    /// The names of the fields of the submit that the server ignored.
    pub ignored_fields: Vec<String>,
}

/// A terminal task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finished {
    /// The URLs of its images, in order.
    Completed(Vec<Url>),
    /// The reason for the failure. The credits are refunded.
    Failed(String),
}

/// The arguments of [`Client::new`] cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The key is empty, or not of printable ASCII.
    #[error("the key is empty or holds characters that no key has")]
    Key,
    /// Not a URL, or a URL with a user name, which would compete with the key.
    #[error("the URL of the server must look like https://images.example.com")]
    Url,
    /// The URL uses plain HTTP and its host is not this machine.
    #[error("over plain HTTP anyone on the way to {0} can read the key")]
    PlainHttp(String),
    /// The PEM holds no certificate.
    #[error("it holds no certificate authority in PEM")]
    Authority,
    /// The TLS library refused the configuration.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The HTTP library refused the configuration.
    #[error("HTTP client: {0}")]
    Http(#[from] reqwest::Error),
}

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection was made, so nothing was sent.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// Nothing listens at the address, so nothing was sent.
    #[error("no connection: nothing listens there")]
    NothingThere,
    /// The certificate of the server is not accepted, so nothing was sent.
    #[error("the certificate of the server is not accepted: {0}")]
    Certificate(String),
    /// The server does not speak TLS, so nothing was sent.
    #[error("the server does not speak TLS")]
    NotTls,
    /// Something was sent, but no complete answer came.
    #[error("no complete answer: {0}")]
    NoAnswer(String),
    /// The server answered with an error.
    #[error("{0}")]
    Refused(Refusal),
    /// The server answered with a redirect, to this `Location`.
    #[error("redirected to {0}")]
    Redirected(String),
    /// The answer is not one of the Tintype API.
    #[error("the answer is not of this API")]
    NotThisApi,
    /// [`STUCK_AFTER`] has passed, or the time for a download.
    #[error("not finished in time")]
    NotFinished,
    /// The download is not an acceptable PNG.
    #[error("the file {0}")]
    BadImage(&'static str),
}

/// An error response. Displays as its message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The HTTP status.
    pub status: StatusCode,
    /// Whether the API itself answered, and not a gateway in front of it.
    pub from_api: bool,
    /// A message for display.
    pub message: String,
    /// The id to quote to support.
    pub request_id: Option<String>,
    /// The wait that `Retry-After` asks for.
    pub retry_after: Option<Duration>,
}

/// Calls one server with one key.
#[derive(Debug)]
pub struct Client {
    tasks_url: String,
    generate_url: String,
    messages_url: String,
    edits_url: String,
    generations_url: String,
    models_url: String,
    authorization: HeaderValue,
    api: reqwest::Client,
    uploads: reqwest::Client,
    messages: reqwest::Client,
    /// Never sends the key, and follows redirects.
    files: reqwest::Client,
}

#[derive(Deserialize)]
struct Success<T> {
    data: T,
}

#[derive(Deserialize)]
struct TaskBody {
    task_id: String,
    status: String,
    #[serde(default)]
    images: Option<Vec<ImageBody>>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
struct ImageBody {
    url: String,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    message: String,
    #[serde(default)]
    code: serde_json::Value,
    #[serde(default)]
    request_id: Option<String>,
    /// Where an error of JSON-RPC has the request id.
    #[serde(default)]
    data: serde_json::Value,
}

impl Client {
    /// A client of the API below `base_url`. Does not connect yet. Trusts the public certificate authorities and those
    /// in `authorities` (PEM), which can also contain the server's own certificate.
    pub fn new(
        base_url: &str,
        key: &str,
        plain_http: PlainHttp,
        authorities: Option<&[u8]>,
    ) -> Result<Self, SetupError> {
        let url = Url::parse(base_url).map_err(|_| SetupError::Url)?;
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some() {
            return Err(SetupError::Url);
        }
        let plain = url.scheme() == "http";
        if plain && plain_http == PlainHttp::LoopbackOnly && !is_loopback(&url) {
            return Err(SetupError::PlainHttp(url.host_str().unwrap_or_default().to_owned()));
        }
        // Such as an invisible one from a web page, or the name before a value.
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'=') {
            return Err(SetupError::Key);
        }
        let mut authorization = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| SetupError::Key)?;
        authorization.set_sensitive(true);
        let base_url = base_url.trim_end_matches('/');
        let tls = tls::config(authorities)?;
        Ok(Self {
            tasks_url: format!("{base_url}/api/v1/images/task"),
            generate_url: format!("{base_url}/api/v1/images/generate"),
            messages_url: format!("{base_url}/mcp"),
            edits_url: format!("{base_url}/v1/images/edits/async"),
            generations_url: format!("{base_url}/v1/images/generations/async"),
            models_url: format!("{base_url}/v1/models"),
            authorization,
            api: http_client(plain, tls.clone(), Policy::none()).read_timeout(SILENCE_LIMIT).build()?,
            // A tool that waits says nothing until its task has ended.
            messages: http_client(plain, tls.clone(), Policy::none()).read_timeout(TOOL_LIMIT).build()?,
            // While it sends files there is nothing to read.
            uploads: http_client(plain, tls.clone(), Policy::none()).build()?,
            files: http_client(plain, tls, Policy::limited(MAX_IMAGE_REDIRECTS)).read_timeout(SILENCE_LIMIT).build()?,
        })
    }

    /// The URL of the list of tasks.
    pub fn tasks_url(&self) -> &str {
        &self.tasks_url
    }

    /// The URL of one task.
    pub fn task_url(&self, task_id: &TaskId) -> String {
        format!("{}/{task_id}", self.tasks_url)
    }

    /// Creates a task. Never sends more than one request.
    ///
    /// # Errors
    /// [`ClientError`]. No task exists after `Unreachable`, `NothingThere`, `Certificate`, `NotTls`, `Redirected`, a `Refused` by the API itself or with a 4xx
    /// status. After any other error a task may exist.
    pub async fn submit(&self, request: &TaskRequest) -> Result<Accepted, ClientError> {
        let body = serde_json::to_vec(request).expect("our own types are always JSON");
        let request = self.api.post(&self.generate_url).header(header::CONTENT_TYPE, "application/json").body(body);
        let (task, headers) = self.call(request).await?;
        let task_id = task.task_id.parse().map_err(|_| ClientError::NotThisApi)?;
        Ok(Accepted { task_id, state: Processing::read(&headers), ignored_fields: ignored_fields(&headers) })
    }

    /// Polls a task that was just created until it is terminal, as the interface recommends. Tintype holds its answers
    /// back until the next poll would be due, so that the end is known at once. Calls `on_event` after each poll that
    /// does not end the wait.
    ///
    /// # Errors
    /// [`ClientError`]: `NotFinished` after [`STUCK_AFTER`]; another when a retry cannot help.
    pub async fn wait(&self, task: Accepted, on_event: impl FnMut(Waiting<'_>)) -> Result<Finished, ClientError> {
        let url = self.task_url(&task.task_id);
        // Only Tintype suggests when to poll.
        let is_tintype = task.state.poll_after.is_some();
        let poll = async |wait| self.poll_after(&url, wait, is_tintype).await;
        poll_until_finished(task.state.poll_after, poll, on_event).await
    }

    /// Polls a task after `wait`; a server that can hold its answer back until then is asked at once.
    async fn poll_after(&self, url: &str, wait: Duration, can_hold: bool) -> Result<Polled, ClientError> {
        let (request, due) = (self.api.get(url), Instant::now() + wait);
        if !can_hold || wait.is_zero() {
            sleep_until(due).await;
            return self.poll(request).await;
        }
        let seconds = wait.as_secs_f64().ceil();
        let polled = self.poll(request.header("prefer", format!("wait={seconds}"))).await?;
        if matches!(polled, Polled::Processing(_)) {
            // It has answered at once if too many others wait.
            sleep_until(due).await;
        }
        Ok(polled)
    }

    async fn poll(&self, request: reqwest::RequestBuilder) -> Result<Polled, ClientError> {
        let (task, headers) = self.call(request).await?;
        match (task.status.as_str(), task.images) {
            ("processing", _) => Ok(Polled::Processing(Processing::read(&headers))),
            ("failed", _) => {
                let reason = task.error.as_deref().unwrap_or("The server gave no reason.");
                Ok(Polled::Finished(Finished::Failed(printable(reason))))
            }
            ("completed", Some(images)) if !images.is_empty() => {
                let urls = images.iter().map(|image| Url::parse(&image.url)).collect::<Result<_, _>>();
                urls.map(|urls| Polled::Finished(Finished::Completed(urls))).map_err(|_| ClientError::NotThisApi)
            }
            _ => Err(ClientError::NotThisApi),
        }
    }

    /// Downloads an image, with the retries of polling. Calls `on_progress` with the bytes so far and the bytes
    /// announced. Does not send the key.
    ///
    /// # Errors
    /// [`ClientError`]: `BadImage` for anything but a PNG of an acceptable size.
    pub async fn download(
        &self,
        url: &Url,
        mut on_progress: impl FnMut(u64, Option<u64>),
    ) -> Result<Vec<u8>, ClientError> {
        let download = persist(async || self.download_once(url, &mut on_progress).await);
        tokio::time::timeout(DOWNLOAD_LIMIT, download).await.unwrap_or(Err(ClientError::NotFinished))
    }

    async fn download_once(
        &self,
        url: &Url,
        on_progress: impl FnMut(u64, Option<u64>),
    ) -> Result<Vec<u8>, ClientError> {
        let response = success(self.files.get(url.clone()).send().await?).await?;
        let content_type = response.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        if !content_type.eq_ignore_ascii_case(b"image/png") {
            return Err(ClientError::BadImage("is not labelled image/png"));
        }
        let image = read(response, MAX_IMAGE_BYTES, on_progress).await?;
        let image = image.ok_or(ClientError::BadImage("is larger than 64 MiB"))?;
        if image.starts_with(&PNG_SIGNATURE) { Ok(image) } else { Err(ClientError::BadImage("is not a PNG")) }
    }

    /// Sends one request with the key; returns the task and the headers of the answer.
    async fn call(&self, request: reqwest::RequestBuilder) -> Result<(TaskBody, HeaderMap), ClientError> {
        let request = request.header(header::AUTHORIZATION, self.authorization.clone()).timeout(ANSWER_LIMIT);
        let response = success(request.send().await?).await?;
        let headers = response.headers().clone();
        let body = read(response, MAX_ANSWER_BYTES, |_, _| ()).await?.ok_or(ClientError::NotThisApi)?;
        let success: Success<TaskBody> = serde_json::from_slice(&body).map_err(|_| ClientError::NotThisApi)?;
        Ok((success.data, headers))
    }
}

/// An HTTP client that never retries on its own.
fn http_client(plain: bool, tls: ClientConfig, redirects: Policy) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .redirect(redirects)
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(CONNECT_LIMIT)
        .user_agent(USER_AGENT);
    // A proxy cannot read HTTPS. Plain HTTP is for this machine, and a proxy would read the key.
    if plain { builder.no_proxy() } else { builder }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

impl From<reqwest::Error> for ClientError {
    fn from(error: reqwest::Error) -> Self {
        let causes = || std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let cause = causes().last().map(ToString::to_string).unwrap_or_default();
        if !error.is_connect() {
            return Self::NoAnswer(cause);
        }
        match causes().find_map(tls_error) {
            Some(rustls::Error::InvalidCertificate(fault)) => return Self::Certificate(fault.to_string()),
            Some(rustls::Error::InvalidMessage(_)) => return Self::NotTls,
            _ => {}
        }
        let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        let nothing_there = causes().any(|cause| cause.downcast_ref().is_some_and(refused));
        if nothing_there { Self::NothingThere } else { Self::Unreachable(cause) }
    }
}

/// The TLS error in an error, which may be wrapped in several of I/O.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    error.downcast_ref().or_else(|| tls_error(error.downcast_ref::<std::io::Error>()?.get_ref()?))
}

/// Returns a 200 or a 202 and turns any other response into an error.
async fn success(response: Response) -> Result<Response, ClientError> {
    let status = response.status();
    if matches!(status, StatusCode::OK | StatusCode::ACCEPTED) {
        return Ok(response);
    }
    if status.is_redirection() {
        let location = response.headers().get(header::LOCATION).map_or(&b"?"[..], HeaderValue::as_bytes);
        return Err(ClientError::Redirected(printable(&String::from_utf8_lossy(location))));
    }
    let retry_after = seconds(response.headers(), &header::RETRY_AFTER);
    let body = read(response, MAX_ANSWER_BYTES, |_, _| ()).await.ok().flatten().unwrap_or_default();
    Err(refused(status, &body, retry_after))
}

fn refused(status: StatusCode, body: &[u8], retry_after: Option<Duration>) -> ClientError {
    ClientError::Refused(match serde_json::from_slice::<ErrorBody>(body) {
        Ok(ErrorBody { error }) => Refusal {
            // OpenAI's dialect, which is used for sending files, has a single status for too few credits and too many
            // requests.
            status: if error.code == "insufficient_quota" { StatusCode::PAYMENT_REQUIRED } else { status },
            // By this code the service says that the task exists.
            from_api: error.code != "task_goes_on",
            message: printable(&error.message),
            request_id: error.request_id.as_deref().or(error.data["request_id"].as_str()).map(printable),
            retry_after,
        },
        Err(_) => {
            let number = status.as_u16();
            let message = format!("HTTP {number}, and not from the Tintype API: look at the proxy in between");
            Refusal { status, from_api: false, message, request_id: None, retry_after }
        }
    })
}

/// Reads a body; `None` when it is longer than `max_bytes`.
async fn read(
    mut response: Response,
    max_bytes: usize,
    mut on_progress: impl FnMut(u64, Option<u64>),
) -> Result<Option<Vec<u8>>, ClientError> {
    let announced = response.content_length();
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if chunk.len() > max_bytes - bytes.len() {
            return Ok(None);
        }
        bytes.extend_from_slice(&chunk);
        on_progress(bytes.len() as u64, announced);
    }
    Ok(Some(bytes))
}

/// The value of a header in seconds; `None` for a date, which `Retry-After` may hold as well.
fn seconds(headers: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    let seconds: f64 = headers.get(name)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The text without control characters, which could drive a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(MAX_MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_ids_have_one_form() {
        let id = "imgmodel-0abcdefghijklmnopq_-Z";
        assert_eq!(id.parse::<TaskId>().map(|id| id.to_string()).as_deref(), Ok(id));
        for text in [
            "",
            "imgmodel-",
            "0abcdefghijklmnopq_-Z",
            "imgmodel-0abcdefghijklmnopq_-",
            "imgmodel-0abcdefghijklmnopq/-Z",
        ] {
            assert_eq!(text.parse::<TaskId>(), Err(InvalidTaskId), "{text}");
        }
    }
}
