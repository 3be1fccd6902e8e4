//! A hub with Hugging Face's protocol: lists a repository's files, and serves them.

use std::fmt;
use std::time::Duration;

use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_RANGE, HeaderMap, LOCATION, RANGE};
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use url::Url;

use super::manifest::{Source, is_sha256};
use super::selection::RemoteFile;
use tintype_domain::address::is_this_machine;
use tintype_outbound::{Proxies, asked_wait, client_builder};

/// The header with the hub's reason for a refusal.
const ERROR_CODE: &str = "x-error-code";
const ERROR_MESSAGE: &str = "x-error-message";
/// Time limit for a connection, including its TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// Most redirects from one URL.
const MAX_REDIRECTS: usize = 5;
/// Most bytes in a list of files.
const MAX_LIST_BYTES: usize = 8 << 20;
/// The longest wait that a hub can ask for; beyond that the command ends.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Time limits of requests.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimits {
    /// Longest time without an answer, or with almost no data.
    pub stall: Duration,
    /// First pause before a retry; each further one is twice as long.
    pub pause: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self { stall: Duration::from_secs(60), pause: Duration::from_secs(1) }
    }
}

/// A hub, and the credentials to use it.
pub struct Hub {
    endpoint: Url,
    token: Option<String>,
    client: Client,
    /// Time limits.
    pub limits: TimeLimits,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("endpoint", &self.endpoint.as_str()).finish_non_exhaustive()
    }
}

/// A request that failed: a message for the operator.
#[derive(Debug)]
pub enum HubError {
    /// Retrying cannot help.
    Final(String),
    /// Retrying may help, after the time that the server asks for.
    Passing(String, Option<Duration>),
    /// The answer isn't the requested part of the file. Retrying with the whole file may help.
    Misfit(String),
}

/// A repository's files at one commit.
#[derive(Debug)]
pub struct Repository {
    /// The commit.
    pub commit: String,
    /// The licence, as named by the repository itself.
    pub licence: Option<String>,
    /// Its files. Their names are untrusted.
    pub files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Listed {
    sha: String,
    siblings: Vec<Sibling>,
    #[serde(default, rename = "cardData")]
    card: Option<Card>,
}

#[derive(Deserialize)]
struct Card {
    #[serde(default)]
    license: Option<serde_json::Value>,
    #[serde(default)]
    license_name: Option<String>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default, rename = "blobId")]
    blob: Option<String>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(default)]
    sha256: Option<String>,
    #[serde(default)]
    size: Option<u64>,
}

impl From<Sibling> for RemoteFile {
    fn from(Sibling { rfilename, size, blob, lfs }: Sibling) -> Self {
        let bytes = lfs.as_ref().and_then(|lfs| lfs.size).or(size).unwrap_or(0);
        // For a file in LFS, the blob is the pointer's.
        let git_sha1 = blob.filter(|blob| lfs.is_none() && is_git_sha1(blob));
        let sha256 = lfs.and_then(|lfs| lfs.sha256).filter(|hash| is_sha256(hash));
        Self { path: rfilename, bytes, sha256, git_sha1 }
    }
}

/// Whether a text is a lower-case hexadecimal SHA-1, such as a commit.
pub fn is_git_sha1(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl Hub {
    /// A hub at `endpoint`. `authorities` (PEM) are trusted in addition to the public ones.
    ///
    /// # Errors
    /// A message for the operator: the URL or the authorities cannot be used, or the token would be sent unencrypted.
    pub fn new(
        endpoint: &str,
        token: Option<String>,
        authorities: Option<&[u8]>,
        limits: TimeLimits,
    ) -> Result<Self, String> {
        // The URL can contain a password, so no message repeats it.
        let unusable = |reason: &str| format!("HF_ENDPOINT {reason}");
        let url = Url::parse(endpoint)
            .map_err(|error| unusable(&format!("is not a URL that begins with https://: {error}")))?;
        if url.host().is_none() {
            return Err(unusable("names no host"));
        }
        if !["https", "http"].contains(&url.scheme()) || !url.username().is_empty() || url.password().is_some() {
            return Err(unusable("must begin with https:// and hold no password"));
        }
        if url.scheme() == "http" && token.is_some() && !is_this_machine(&url) {
            return Err(unusable("is plain HTTP, so anyone on the network could read the token: use https://"));
        }
        let builder = client_builder(authorities, Proxies::FromEnvironment).map_err(|error| error.to_string())?;
        let client = builder.connect_timeout(CONNECT_LIMIT.min(limits.stall)).build();
        let client = client.map_err(|error| format!("HTTP client: {error}"))?;
        Ok(Self { endpoint: url, token, client, limits })
    }

    /// Its URL without a trailing slash.
    pub fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// A repository's web page.
    pub fn page(&self, repository: &str) -> String {
        format!("{}/{repository}", self.endpoint())
    }

    /// Requests a repository's files at a revision: a commit, a tag or a branch.
    pub async fn list(&self, repository: &str, revision: &str) -> Result<Repository, HubError> {
        let revision: String = url::form_urlencoded::byte_serialize(revision.as_bytes()).collect();
        let url = format!("{}/api/models/{repository}/revision/{revision}?blobs=true", self.endpoint());
        let page = self.page(repository);
        let mut response = self.get(&url, None, &page, "the list of files").await?;
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk(&mut response).await? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_LIST_BYTES {
                return Err(HubError::Final(format!("the list of files of {repository} is larger than 8 MiB")));
            }
        }
        let odd = |reason: String| HubError::Final(format!("{} gave no list of files: {reason}", self.endpoint()));
        let listed: Listed = serde_json::from_slice(&body).map_err(|error| match body.trim_ascii_start().first() {
            Some(b'<') => odd("it sent a web page, perhaps of a proxy that you must sign in to".into()),
            _ => odd(error.to_string()),
        })?;
        if !is_git_sha1(&listed.sha) {
            return Err(odd("it names no commit".into()));
        }
        let licence = listed.card.and_then(|card| {
            let license = card.license.and_then(|license| license.as_str().map(str::to_owned));
            card.license_name
                .or(license)
                .map(|name| name.chars().filter(|letter| !letter.is_control()).take(80).collect())
        });
        let files = listed.siblings.into_iter().map(RemoteFile::from).collect();
        Ok(Repository { commit: listed.sha, licence, files })
    }

    /// The URL of a repository's file.
    pub fn url_of(&self, source: &Source, path: &str) -> String {
        format!("{}/{}/resolve/{}/{path}", self.endpoint(), source.repository, source.commit)
    }

    /// Requests a file of `bytes` bytes, starting from byte `from`. With status 200, the answer starts at byte 0
    /// instead. Errors call the file `path` of `page`.
    pub async fn file(&self, url: &str, page: &str, path: &str, from: u64, bytes: u64) -> Result<Response, HubError> {
        let response = self.get(url, (from > 0).then_some(from), page, path).await?;
        let odd = |what: &str| HubError::Misfit(format!("the server answers with {what}"));
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
            let expected = format!("bytes {from}-{}/{bytes}", bytes.saturating_sub(1));
            if from == 0 || range != Some(&*expected) {
                return Err(odd("another range than was asked for"));
            }
        }
        let left = if response.status() == StatusCode::PARTIAL_CONTENT { bytes - from } else { bytes };
        if response.content_length().is_some_and(|length| length != left) {
            return Err(odd(&format!("{} bytes instead of {left}", response.content_length().unwrap_or(0))));
        }
        Ok(response)
    }

    /// An answer's next bytes.
    pub async fn chunk(&self, response: &mut Response) -> Result<Option<bytes::Bytes>, HubError> {
        let next = tokio::time::timeout(self.limits.stall, response.chunk()).await;
        let next = next.map_err(|_| HubError::Passing("the server sends nothing more".into(), None))?;
        next.map_err(|error| HubError::Passing(format!("the connection broke: {}", cause(error)), None))
    }

    /// Sends a GET, and follows redirects. The token is only sent to the endpoint: the hub redirects to a file store,
    /// whose URL contains its own secret.
    async fn get(&self, url: &str, from: Option<u64>, page: &str, what: &str) -> Result<Response, HubError> {
        let mut url = Url::parse(url).map_err(|error| HubError::Final(format!("{url:?} is not a URL: {error}")))?;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.client.get(url.clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(from) = from {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| url.origin() == self.endpoint.origin()) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            let host = url.host_str().unwrap_or_default().to_owned();
            let answer = tokio::time::timeout(self.limits.stall, request.send()).await;
            let answer = answer.map_err(|_| HubError::Passing(format!("no answer from {host}"), None))?;
            let response =
                answer.map_err(|error| HubError::Passing(format!("cannot reach {host}: {}", cause(error)), None))?;
            if !response.status().is_redirection() {
                return self.accept(response, &host, page, what);
            }
            let target = response.headers().get(LOCATION).and_then(|target| target.to_str().ok());
            let target = target.and_then(|target| url.join(target).ok());
            let target = target.ok_or_else(|| HubError::Final(format!("{host} redirects to nowhere for {what}")))?;
            // A redirect from HTTPS to anything else would remove the encryption.
            if target.scheme() != self.endpoint.scheme() && target.scheme() != "https" {
                let reason = format!("{host} redirects to a URL with {}:// for {what}", target.scheme());
                return Err(HubError::Final(reason));
            }
            url = target;
        }
        Err(HubError::Final(format!("more than {MAX_REDIRECTS} redirects for {what}")))
    }

    /// The error of an answer that isn't a success.
    fn accept(&self, response: Response, host: &str, page: &str, what: &str) -> Result<Response, HubError> {
        let status = response.status();
        let said = |header: &str| response.headers().get(header).and_then(|said| said.to_str().ok());
        match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            // A file store answers 403 if its URL has expired; the hub then creates a new one.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if Some(host) != self.endpoint.host_str() => {
                Err(HubError::Passing(format!("{host} answers {status} for {what}"), None))
            }
            // The hub doesn't reveal whether a repository exists without permission to read it, so a typing error is
            // answered with 401.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND
                if said(ERROR_CODE) == Some("RepoNotFound") =>
            {
                let advice = match &self.token {
                    None => "if it is a private one, give a token of your account with --token-file",
                    Some(_) => "if it is a private one, give a token of an account that may read it",
                };
                Err(HubError::Final(format!("{host} knows no repository at {page}: check the name, or {advice}")))
            }
            StatusCode::FORBIDDEN if said(ERROR_MESSAGE).is_some_and(|said| said.contains("is disabled")) => {
                Err(HubError::Final(format!("{host} has disabled the repository at {page}: choose another one")))
            }
            StatusCode::UNAUTHORIZED
                if said(ERROR_MESSAGE).is_some_and(|said| said.contains("Invalid credentials")) =>
            {
                let reason = format!("{host} does not know the token: make a new one in the settings of your account");
                Err(HubError::Final(reason))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let advice = match &self.token {
                    None => "then give a token of your account with --token-file",
                    Some(_) => "with the account of the token, which must have the right to read repositories",
                };
                Err(HubError::Final(format!(
                    "{host} answers {status} for {what}: accept the licence at {page}, {advice}"
                )))
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                Err(HubError::Final(format!("{host} answers {status}: {what} of {page} is not there at this revision")))
            }
            StatusCode::RANGE_NOT_SATISFIABLE => Err(HubError::Misfit(format!("{host} cannot resume a download"))),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => self.wait(status, response.headers(), host),
            status if status.is_server_error() => self.wait(status, response.headers(), host),
            status => Err(HubError::Final(format!("{host} answers {status} for {what} of {page}"))),
        }
    }

    /// The error from a server that asks for a later retry.
    fn wait(&self, status: StatusCode, headers: &HeaderMap, host: &str) -> Result<Response, HubError> {
        let after = asked_wait(headers);
        match after.filter(|after| *after > MAX_RETRY_AFTER) {
            Some(after) => {
                let seconds = after.as_secs();
                let or = if self.token.is_none() { ", or give a token of your account with --token-file" } else { "" };
                let reason = format!("{host} answers {status} and asks to wait for {seconds} s: try again then{or}");
                Err(HubError::Final(reason))
            }
            None => Err(HubError::Passing(format!("{host} answers {status}"), after)),
        }
    }
}

/// An error's root cause. Outer errors only say that a request failed, and can show a URL, which may be signed.
fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut root: &dyn std::error::Error = &error;
    while let Some(cause) = root.source() {
        root = cause;
    }
    root.to_string()
}
