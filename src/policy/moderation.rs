//! Client of a moderation endpoint compatible with OpenAI's `POST /v1/moderations`.
//!
//! The operator chooses the endpoint, so it may have any address. Prompts and pictures are private, so plain HTTP is
//! allowed only to this machine, and the client neither follows redirects nor uses a proxy.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Client;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Deserialize;
use serde_json::json;
use url::Url;

use super::Subject;
use super::file::Unreachable;
use tintype_domain::address::is_this_machine;
use tintype_engine::picture::Picture;
use tintype_outbound::{Proxies, client_builder};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Largest response, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;
/// Longest side of a picture sent to the endpoint; larger pictures are scaled down.
const PICTURE_SIDE: u32 = 768;

#[derive(Debug, Clone)]
pub(super) struct Endpoint(Url);

impl Endpoint {
    /// Parses the URL.
    ///
    /// # Errors
    /// A message for the operator: the URL is invalid, or it uses plain HTTP to another machine.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("moderation: the url is not valid: {error}"))?;
        match url.scheme() {
            "https" => Ok(Self(url)),
            "http" if is_this_machine(&url) => Ok(Self(url)),
            _ => Err("moderation: the url must begin with https://, or be http:// on this machine".into()),
        }
    }
}

#[derive(Debug)]
pub(super) struct Settings {
    pub(super) endpoint: Endpoint,
    pub(super) key: Option<String>,
    pub(super) model: String,
    pub(super) check: Vec<Subject>,
    pub(super) categories: Vec<String>,
    pub(super) unreachable: Unreachable,
    pub(super) timeout: Duration,
}

pub(super) struct Moderation {
    settings: Settings,
    client: Client,
}

tintype_domain::opaque_debug!(Moderation);

/// Failure to get a verdict; displays as a message for the operator.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("the request failed: {0}")]
    Request(reqwest::Error),
    #[error("status {0}")]
    Status(reqwest::StatusCode),
    #[error("the response is larger than {MAX_ANSWER} bytes")]
    TooLarge,
    #[error("the response is not in the format of /v1/moderations")]
    Shape,
    #[error("the response has no category {0:?}: compare `categories` in the policy with the endpoint's names")]
    NoCategory(String),
}

impl From<reqwest::Error> for NoAnswer {
    fn from(error: reqwest::Error) -> Self {
        // The URL may contain a secret.
        Self::Request(error.without_url())
    }
}

#[derive(Debug, Deserialize)]
struct ModerationResponse {
    results: Vec<Judgement>,
}

#[derive(Debug, Deserialize)]
struct Judgement {
    flagged: bool,
    #[serde(default)]
    categories: HashMap<String, Option<bool>>,
}

impl Moderation {
    /// Creates the HTTP client without connecting.
    pub(super) fn new(settings: Settings) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        if let Some(key) = &settings.key {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                .map_err(|_| "moderation: the key contains characters that an HTTP header cannot hold")?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let client = client_builder(None, Proxies::None)
            .map_err(|error| error.to_string())?
            .connect_timeout(CONNECT_LIMIT)
            .timeout(settings.timeout)
            .default_headers(headers)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { settings, client })
    }

    pub(super) fn checks(&self, subject: Subject) -> bool {
        self.settings.check.contains(&subject)
    }

    /// Behaviour when the endpoint is unavailable.
    pub(super) fn unreachable(&self) -> Unreachable {
        self.settings.unreachable
    }

    pub(super) fn host(&self) -> &str {
        self.settings.endpoint.0.host_str().unwrap_or_default()
    }

    pub(super) async fn refuses_prompt(&self, prompt: &str) -> Result<bool, NoAnswer> {
        self.ask(&json!({ "type": "text", "text": prompt })).await
    }

    pub(super) async fn refuses_picture(&self, picture: Picture) -> Result<bool, NoAnswer> {
        let encode = move || BASE64_STANDARD.encode(picture.within(PICTURE_SIDE).to_png());
        let png = tokio::task::spawn_blocking(encode).await.map_err(|_| NoAnswer::Shape)?;
        let url = format!("data:image/png;base64,{png}");
        self.ask(&json!({ "type": "image_url", "image_url": { "url": url } })).await
    }

    async fn ask(&self, input: &serde_json::Value) -> Result<bool, NoAnswer> {
        let body = json!({ "model": self.settings.model, "input": [input] }).to_string();
        let mut response = self.client.post(self.settings.endpoint.0.clone()).body(body).send().await?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(NoAnswer::Status(response.status()));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if bytes.len() + chunk.len() > MAX_ANSWER {
                return Err(NoAnswer::TooLarge);
            }
            bytes.extend_from_slice(&chunk);
        }
        let answer: ModerationResponse = serde_json::from_slice(&bytes).map_err(|_| NoAnswer::Shape)?;
        let results = &answer.results;
        let wanted = &self.settings.categories;
        let counts = |judgement: &Judgement| match wanted.as_slice() {
            [] => judgement.flagged,
            wanted => wanted.iter().any(|name| judgement.categories.get(name) == Some(&Some(true))),
        };
        if results.is_empty() {
            return Err(NoAnswer::Shape);
        } else if results.iter().any(counts) {
            return Ok(true);
        }
        // A name that the endpoint does not know would turn the check off unnoticed.
        let lacks = |name: &&String| results.iter().any(|judgement| !judgement.categories.contains_key(*name));
        wanted.iter().find(lacks).map_or(Ok(false), |name| Err(NoAnswer::NoCategory(name.clone())))
    }
}
