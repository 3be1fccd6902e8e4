//! A rendering server: its address, its key, and the HTTP client for both.
//!
//! The operator chooses the server, so it can have any address. The client follows no redirects, uses no proxy, and
//! doesn't reuse connections: if a server closed an idle connection just as a request is sent, that would cost an
//! attempt. The key is only sent to the server's own origin.

use std::time::Duration;

use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use tintype_engine::EngineError;
use url::Url;

use super::EngineContext;
use tintype_config::EngineSettings;
use tintype_domain::address::is_this_machine;
use tintype_outbound::{Proxies, asked_wait, client_builder, describe, trust};

/// Less than a probe can take: a host that doesn't accept connections is down, while a server that accepts and stays
/// silent is slow.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// A rendering server is silent for minutes; keepalive probes stop routers from dropping its connection.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
/// Before the key in its header.
const BEARER: &str = "Bearer ";
/// How much of an error answer is read, in bytes. Its message comes at the beginning.
const MAX_ERROR: usize = 64 * 1024;
/// How long the body of an error answer is read. With the time until its head, it is less than a probe can take.
const ERROR_LIMIT: Duration = Duration::from_secs(2);
/// Most characters of a server's error code that are logged.
const MAX_CODE: usize = 64;
/// Most characters of a server's message that are quoted.
const MAX_QUOTE: usize = 300;

/// Statuses that no prompt causes, and what the operator can do about them. Without advice, they pass by themselves:
/// the server is busy or starting, or a proxy cannot reach it.
const SERVER_FAULTS: [(u16, &str); 15] = [
    (401, CHECK_KEY),
    (402, "billing problem at the provider"),
    (403, CHECK_KEY),
    (404, CHECK_URL),
    (405, CHECK_URL),
    (429, ""),
    (502, ""),
    (503, ""),
    (504, ""),
    // From a content delivery network whose origin is down, slow, or unreachable.
    (520, ""),
    (521, ""),
    (522, ""),
    (523, ""),
    (524, ""),
    // From Anthropic's API, and proxies that imitate it: overloaded.
    (529, ""),
];
/// Statuses of a server that has too much to do: 429 of RFC 6585, and 529 of Anthropic's API.
const BUSY: [u16; 2] = [429, 529];
const CHECK_KEY: &str = "check --engine-key and what it may do";
const CHECK_URL: &str = "check the URL of the engine and the name of its model";

/// A rendering server.
#[derive(Debug)]
pub struct Endpoint {
    /// Its path ends with a slash.
    base: Url,
    http: Client,
    key: Option<HeaderValue>,
    quotes_server: bool,
}

/// A complete answer.
#[derive(Debug)]
pub struct EngineResponse {
    /// The status, never a redirect.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, within the request's limit; only its beginning for an error.
    pub body: Vec<u8>,
}

impl EngineResponse {
    /// The media type, in lower case and without parameters.
    pub fn media_type(&self) -> String {
        let value = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }
}

/// A server's description of an error.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServerMessage {
    /// A short identifier of the error.
    pub code: Option<String>,
    /// A message, which can repeat the prompt.
    pub message: Option<String>,
    /// The remedy, if no prompt causes this error, so that only the operator can resolve it.
    pub advice: Option<&'static str>,
}

/// A server's failure.
#[derive(Debug)]
pub struct Fault {
    /// The engine's error, if no other server can take the work.
    pub error: EngineError,
    /// The server's `Retry-After`.
    pub pause: Option<Duration>,
    /// Whether the server says that it has too much to do, which no brief causes.
    pub is_busy: bool,
    /// How far the request got.
    pub reached: Reached,
}

/// How far a failed request got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// No connection could be made, so nothing was sent.
    Refused,
    /// The time for the answer passed. A server can be silent because it is loading a model.
    Silent,
    /// The connection ended before the answer did.
    Cut,
    /// There was an answer.
    Answered,
}

impl Fault {
    /// The same fault after the server has begun the work: the attempt counts, and another one may succeed.
    pub fn begun(self) -> Self {
        match self.error {
            EngineError::NotAvailable(cause) | EngineError::Permanent(cause) => EngineError::Temporary(cause).into(),
            error => error.into(),
        }
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        Self { error, pause: None, is_busy: false, reached: Reached::Answered }
    }
}

impl From<Fault> for EngineError {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

impl Endpoint {
    /// An engine's servers at these base URLs. Reads the key and the certificate authorities, without connecting.
    pub fn all(urls: &[Url], settings: &EngineSettings, context: &EngineContext) -> Result<Vec<Self>, String> {
        let key = settings.key()?;
        let header = |key: &String| {
            let mut value = HeaderValue::try_from(format!("{BEARER}{key}"))
                .map_err(|_| "the engine's key contains characters that an HTTP header cannot hold")?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        };
        let key = key.as_ref().map(header).transpose()?;
        let http = client_builder(settings.authorities()?.as_deref(), Proxies::None)
            .map_err(|error| format!("--engine-ca: {error}"))?
            .connect_timeout(CONNECT_LIMIT)
            .tcp_keepalive(KEEPALIVE_EVERY)
            .pool_max_idle_per_host(0)
            .build()
            .map_err(|error| describe(&error))?;
        let quotes_server = context.quotes_server;
        let endpoint = |base: &Url| Self { base: base.clone(), http: http.clone(), key: key.clone(), quotes_server };
        let endpoints: Vec<_> = urls.iter().map(endpoint).collect();
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.exposes_key()) {
            let server = endpoint.name();
            tracing::warn!(server, "the engine's key travels unencrypted: use https, or an encrypted network");
        }
        Ok(endpoints)
    }

    /// The server's base URL, for the operator.
    pub fn name(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Whether the key would travel unencrypted over a network.
    fn exposes_key(&self) -> bool {
        self.key.is_some() && self.base.scheme() == "http" && !is_this_machine(&self.base)
    }

    /// A request to a path below the base URL, such as `images/generations`.
    ///
    /// # Errors
    /// [`EngineError::Permanent`]: the path is not valid.
    pub fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, EngineError> {
        let url = self.base.join(path.trim_start_matches('/'));
        let url = url.ok().filter(|url| url.origin() == self.base.origin());
        url.and_then(|url| self.request_for(method, &url))
            .ok_or_else(|| EngineError::Permanent(format!("{}: the path of a request is not valid", self.name())))
    }

    /// A request to a URL of the server's exact origin (scheme, host and port); `None` for any other URL, which must
    /// not get the key.
    pub fn request_for(&self, method: Method, url: &Url) -> Option<RequestBuilder> {
        if url.origin() != self.base.origin() {
            return None;
        }
        let request = self.http.request(method, url.clone()).header(ACCEPT_ENCODING, "identity");
        Some(match &self.key {
            Some(key) => request.header(AUTHORIZATION, key),
            None => request,
        })
    }

    /// Resolves a URL from the server, relative to the base URL.
    pub fn resolve(&self, url: &str) -> Option<Url> {
        self.base.join(url).ok()
    }

    /// Sends a request and reads the answer, regardless of its status, within `limit` and up to `max_bytes`.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`]: the connection failed, so nothing was sent, or the server redirects.
    /// [`EngineError::Temporary`]: the request was sent, but no complete answer arrived. Of an error, the head is
    /// enough.
    pub async fn send(
        &self,
        request: RequestBuilder,
        max_bytes: usize,
        limit: Duration,
    ) -> Result<EngineResponse, Fault> {
        let name = self.name();
        let exchange = async {
            let response = request.send().await.map_err(|error| self.unanswered(error))?;
            if response.status().is_redirection() {
                return Err(self.redirected(&response));
            }
            self.read(response, max_bytes).await
        };
        tokio::time::timeout(limit, exchange).await.unwrap_or_else(|_| {
            let cause = format!("incomplete response from {name} after {:.0} s", limit.as_secs_f64());
            Err(Fault { reached: Reached::Silent, ..EngineError::Temporary(cause).into() })
        })
    }

    async fn read(&self, mut response: Response, max_bytes: usize) -> Result<EngineResponse, Fault> {
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        if !status.is_success() {
            // The status and `Retry-After` count even if the body breaks off or drips. But what a rejection of the
            // request means is in its body.
            let read = tokio::time::timeout(ERROR_LIMIT, read_error(response, &mut body)).await;
            return match read {
                Ok(Err(error)) if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                    Err(self.unanswered(error))
                }
                _ => Ok(EngineResponse { status, headers, body }),
            };
        }
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unanswered(error))? {
            if body.len() + chunk.len() > max_bytes {
                let cause = format!("{} answered with more than {max_bytes} bytes", self.name());
                return Err(EngineError::Temporary(cause).into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(EngineResponse { status, headers, body })
    }

    fn unanswered(&self, error: reqwest::Error) -> Fault {
        let connected = !error.is_connect();
        // The message already begins with the URL.
        let cause = trust::explain(describe(&error.without_url()), "--engine-ca");
        let cause = format!("{}: {cause}", self.name());
        match connected {
            true => Fault { reached: Reached::Cut, ..EngineError::Temporary(cause).into() },
            false => Fault { reached: Reached::Refused, ..EngineError::NotAvailable(cause).into() },
        }
    }

    fn redirected(&self, response: &Response) -> Fault {
        let cause = format!(
            "{} answered with a redirect (status {}), and none is followed: give the engine's own URL",
            self.name(),
            response.status().as_u16()
        );
        EngineError::NotAvailable(cause).into()
    }

    /// The fault for an answer with a status other than 200. `words` come from its body.
    pub fn failure(&self, answer: &EngineResponse, words: &ServerMessage) -> Fault {
        let status = answer.status.as_u16();
        let cause = format!("{} answered {status}{}", self.name(), self.quoted(words));
        let known = SERVER_FAULTS.iter().find(|(known, _)| *known == status).map(|(_, advice)| *advice);
        let error = match words.advice.or(known) {
            Some("") => EngineError::NotAvailable(cause),
            Some(advice) => EngineError::NotAvailable(format!("{}: {advice}", cause.trim_end_matches('.'))),
            None if answer.status.is_client_error() && !matches!(status, 408 | 409 | 425) => {
                EngineError::Permanent(cause)
            }
            None => EngineError::Temporary(cause),
        };
        let pause = asked_wait(&answer.headers);
        Fault { pause, is_busy: pause.is_some() || BUSY.contains(&status), ..error.into() }
    }

    /// A server's error for the operator. The log must not show its message, which can repeat the prompt. The engine's
    /// own key, which some servers repeat, is never shown.
    pub fn quoted(&self, words: &ServerMessage) -> String {
        let is_code = |code: &&String| is_plain(code, MAX_CODE, b"_-.") && self.without_key(code) == **code;
        let code = words.code.as_ref().filter(is_code).map(|code| format!(" ({code})")).unwrap_or_default();
        match words.message.as_ref().filter(|_| self.quotes_server) {
            Some(message) => {
                let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
                let message = self.without_key(message);
                let message: String = message.chars().take(MAX_QUOTE).map(printable).collect();
                format!("{code}: {message}")
            }
            None => code,
        }
    }

    fn without_key(&self, text: &str) -> String {
        let key = self.key.as_ref().and_then(|value| str::from_utf8(value.as_bytes()).ok()?.strip_prefix(BEARER));
        key.map_or_else(|| text.to_owned(), |key| text.replace(key, "********"))
    }

    /// The error for a render that failed on the server.
    pub fn failed(&self, words: &ServerMessage) -> EngineError {
        EngineError::Temporary(format!("{} failed to render{}", self.name(), self.quoted(words)))
    }

    /// The fault for an invalid answer; `what` is the rest of a message that begins with the server's name.
    pub fn unclear(&self, what: &str) -> Fault {
        EngineError::Temporary(format!("{} {what}", self.name())).into()
    }
}

/// Reads the beginning of a body, as far as it arrives.
async fn read_error(mut response: Response, body: &mut Vec<u8>) -> reqwest::Result<()> {
    while body.len() < MAX_ERROR
        && let Some(chunk) = response.chunk().await?
    {
        body.extend_from_slice(&chunk[..chunk.len().min(MAX_ERROR - body.len())]);
    }
    Ok(())
}

/// Whether a text has 1 to `most` bytes, all of them ASCII letters, digits or one of `others`. A server's id must pass
/// this before it becomes part of a path.
pub fn is_plain(text: &str, most: usize, others: &[u8]) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    (1..=most).contains(&text.len()) && text.bytes().all(plain)
}
