//! Downloads the reference images that callers name, without becoming their way into the operator's network.
//!
//! Invariant: nothing but a public address is ever dialled. Three places hold it. [`ReferenceUrl`] cannot be made for a
//! host that is literally not public, and a redirect has to become a `ReferenceUrl` first; the connector asks no
//! resolver about IP literals, so those are looked at here, for the addresses of this machine as well. Names go through `PublicResolver`. And the peer of every
//! answer is looked at once more before the answer is read.
//!
//! A caller learns little from a failure: [`FaultKind`] has three values, and refused, closed, silent and missing are
//! all the same one. Why exactly is logged at debug level.

mod resolver;
mod slots;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Client, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::rustls;

use crate::domain::model::Id;
use crate::domain::reference_url::{HTTPS_PORT, ReferenceUrl, UrlFault};
use crate::outbound::trust;
use crate::sandbox::{DecodeError, Decoder};
use tintype_engine::picture::{Picture, PictureError};

pub use resolver::Lookup;
use resolver::{PublicResolver, SystemLookup};
use slots::{MAX_PER_ACCOUNT, MAX_PER_HOST, Slots};

const USER_AGENT: &str = concat!("tintype/", env!("CARGO_PKG_VERSION"));
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const MAX_REDIRECTS: usize = 3;
/// References of one task that are downloaded at a time; a task has no more.
const MAX_DOWNLOADS: usize = 4;
/// References of all tasks that are in memory at a time, until they are decoded.
const MAX_ALL_DOWNLOADS: usize = 16;

/// Limits of a download.
#[derive(Debug, Clone)]
pub struct ReferenceOptions {
    /// The ports that a URL, and a redirect, may lead to.
    pub ports: Vec<u16>,
    /// Time for one reference from the first look-up to the last byte, redirects included.
    pub time_limit: Duration,
    /// Time for one answer to begin, from the look-up to the end of its header.
    pub first_byte_limit: Duration,
    /// In each period of this length...
    pub rate_period: Duration,
    /// ...so many bytes of a body must arrive.
    pub min_period_bytes: usize,
    /// Most bytes of one reference as downloaded.
    pub max_bytes: usize,
    /// What decodes.
    pub decoder: Decoder,
    /// Present in tests only.
    pub trust: Option<TrustedTestHost>,
}

/// For tests: a host that is reached although it is not public.
#[derive(Debug, Clone)]
pub struct TrustedTestHost {
    /// The host name in the URLs.
    pub host: String,
    /// Where the name leads, instead of wherever the DNS says. The port gives way to one in the URL.
    pub address: SocketAddr,
    /// PEM of the authorities that vouch for the host, trusted besides the public ones.
    pub ca_pem: Vec<u8>,
}

impl Default for ReferenceOptions {
    fn default() -> Self {
        Self {
            ports: vec![HTTPS_PORT],
            time_limit: Duration::from_secs(20),
            first_byte_limit: Duration::from_secs(10),
            rate_period: Duration::from_secs(5),
            min_period_bytes: 16 * 1024,
            max_bytes: 20 * 1024 * 1024,
            decoder: Decoder::default(),
            trust: None,
        }
    }
}

/// Why no downloader could be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// [`TrustedTestHost::ca_pem`] cannot be read.
    #[error("the test authority: {0}")]
    Authority(String),
    /// No TLS client can be configured.
    #[error("TLS for reference images: {0}")]
    Tls(#[from] rustls::Error),
    /// No HTTP client can be configured.
    #[error("HTTP client for reference images: {0}")]
    Client(#[from] reqwest::Error),
}

/// Which reference cannot be used, and roughly why. Displays as a sentence for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("reference_images[{index}] {kind}.")]
pub struct ReferenceFault {
    /// Position among the references of the task, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub kind: FaultKind,
}

/// Why a reference cannot be used, as far as the caller is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// No complete answer came from a public host. It is not said how far the attempt got.
    #[error("could not be downloaded")]
    Unreachable,
    /// More bytes or more pixels than allowed.
    #[error("is too large")]
    TooLarge,
    /// Another format, or damaged, or more than the decoder could bear.
    #[error("is not a PNG, JPEG or WebP image")]
    NotAnImage,
    /// This machine could not look at it, which says nothing about the reference: another attempt may.
    #[error("could not be examined")]
    Unexamined,
}

/// What happened in detail. For the log only: it tells apart what callers must not.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("time limit")]
    TimeLimit,
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("less than {0} bytes in {1:?}")]
    Slow(usize, Duration),
    #[error("the address {0} is not public or this machine's own")]
    Literal(IpAddr),
    #[error("request failed: {}", with_sources(.0))]
    Request(reqwest::Error),
    #[error("connected to {0:?}, which is not public")]
    Peer(Option<SocketAddr>),
    #[error("status {0}")]
    Status(StatusCode),
    #[error("redirect without a readable Location")]
    Location,
    #[error("redirect to a URL that {0}")]
    Redirect(#[from] UrlFault),
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    #[error("Content-Encoding {0:?}")]
    Encoding(HeaderValue),
    #[error("more than {0} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Decode(#[from] DecodeError),
}

impl FetchError {
    fn kind(&self) -> FaultKind {
        match self {
            Self::TooLarge(_) | Self::Decode(DecodeError::Picture(PictureError::TooLarge)) => FaultKind::TooLarge,
            Self::Decode(DecodeError::NotStarted(_)) => FaultKind::Unexamined,
            Self::Decode(_) => FaultKind::NotAnImage,
            _ => FaultKind::Unreachable,
        }
    }
}

impl From<reqwest::Error> for FetchError {
    fn from(error: reqwest::Error) -> Self {
        // The URL may carry a signature in its query.
        Self::Request(error.without_url())
    }
}

/// The downloader. One serves a whole process.
#[derive(Debug)]
pub struct References {
    options: ReferenceOptions,
    resolver: PublicResolver,
    client: Client,
    accounts: Slots<Id>,
    hosts: Slots<String>,
    downloads: Semaphore,
}

/// What a server said.
enum Answer {
    Body(Response),
    Elsewhere(ReferenceUrl),
}

impl References {
    /// Prepares the HTTP client. Connects to nothing.
    ///
    /// # Errors
    /// [`SetupError`], of which an unreadable test authority is the only one to expect.
    pub fn new(options: ReferenceOptions) -> Result<Self, SetupError> {
        Self::with_lookup(options, Arc::new(SystemLookup::new()))
    }

    /// The same, with something else in the place of the DNS.
    ///
    /// # Errors
    /// As [`References::new`].
    pub fn with_lookup(options: ReferenceOptions, lookup: Arc<dyn Lookup>) -> Result<Self, SetupError> {
        let exception = options.trust.as_ref().map(|trust| (trust.host.clone(), trust.address));
        let resolver = PublicResolver::new(lookup, exception);
        let authorities = options.trust.as_ref().map(|trust| trust.ca_pem.as_slice());
        let roots = trust::roots(authorities).map_err(SetupError::Authority)?;
        let client = Client::builder()
            .tls_backend_preconfigured(trust::client_tls(roots)?)
            .dns_resolver(resolver.clone())
            .https_only(true)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            // A kept connection would outlive the check of its address.
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_LIMIT)
            .user_agent(USER_AGENT)
            .default_headers(HeaderMap::from_iter([
                (header::ACCEPT, HeaderValue::from_static("image/png, image/jpeg, image/webp")),
                (header::ACCEPT_ENCODING, HeaderValue::from_static("identity")),
            ]))
            .build()?;
        let (accounts, hosts) = (Slots::new(MAX_PER_ACCOUNT), Slots::new(MAX_PER_HOST));
        Ok(Self { options, resolver, client, accounts, hosts, downloads: Semaphore::new(MAX_ALL_DOWNLOADS) })
    }

    /// Downloads and decodes all of `urls` at the same time and returns the pictures in the same order. Dropping the
    /// future abandons the downloads.
    ///
    /// # Errors
    /// [`ReferenceFault`] for the first of `urls` that cannot be used, whichever failed earliest.
    pub async fn fetch(&self, urls: &[ReferenceUrl]) -> Result<Vec<Picture>, ReferenceFault> {
        self.fetch_all(None, urls).await
    }

    /// The same for an account, which has only a part of the downloads that go on at a time: however slow its
    /// references are, those of others go on.
    ///
    /// # Errors
    /// As [`References::fetch`].
    pub async fn fetch_for(&self, account: Id, urls: &[ReferenceUrl]) -> Result<Vec<Picture>, ReferenceFault> {
        self.fetch_all(Some(account), urls).await
    }

    async fn fetch_all(&self, account: Option<Id>, urls: &[ReferenceUrl]) -> Result<Vec<Picture>, ReferenceFault> {
        let fetch = |(index, url)| self.fetch_one(account, index, url);
        // Collected first: a stream over the lazy iterator is not `Send` in the compiler's eyes.
        let downloads: Vec<_> = urls.iter().enumerate().map(fetch).collect();
        stream::iter(downloads).buffered(MAX_DOWNLOADS).try_collect().await
    }

    async fn fetch_one(
        &self,
        account: Option<Id>,
        index: usize,
        url: &ReferenceUrl,
    ) -> Result<Picture, ReferenceFault> {
        self.picture(account, url).await.map_err(|error| {
            tracing::debug!(index, url = url.loggable(), %error, "reference image refused");
            ReferenceFault { index, kind: error.kind() }
        })
    }

    /// Waiting for a turn does not count against the time limit: that others are busy is no fault of the reference.
    async fn picture(&self, account: Option<Id>, url: &ReferenceUrl) -> Result<Picture, FetchError> {
        // First of all, so that who waits for its own part holds nothing that others wait for.
        let _part = match account {
            Some(account) => Some(self.accounts.take(account).await),
            None => None,
        };
        let slot = self.hosts.take(url.host()).await;
        let _turn = self.downloads.acquire().await.expect("the semaphore is never closed");
        let bytes = tokio::time::timeout(self.options.time_limit, self.download(url, slot))
            .await
            .map_err(|_| FetchError::TimeLimit)??;
        Ok(self.options.decoder.decode(&bytes).await?)
    }

    /// `slot` is for the host of `url`.
    async fn download(&self, url: &ReferenceUrl, mut slot: OwnedSemaphorePermit) -> Result<Vec<u8>, FetchError> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            match self.ask(&url).await? {
                Answer::Body(response) => return self.read(response).await,
                Answer::Elsewhere(next) => url = next,
            }
            // Given back first: who holds one slot while waiting for another can wait for ever.
            drop(slot);
            slot = self.hosts.take(url.host()).await;
        }
        Err(FetchError::TooManyRedirects)
    }

    /// Sends one request and judges the head of its answer.
    async fn ask(&self, url: &ReferenceUrl) -> Result<Answer, FetchError> {
        if let Some(ip) = url.ip().filter(|ip| !self.resolver.may_dial(*ip)) {
            return Err(FetchError::Literal(ip));
        }
        let limit = self.options.first_byte_limit;
        let response = tokio::time::timeout(limit, self.client.get(url.url().clone()).send())
            .await
            .map_err(|_| FetchError::Silent(limit))??;
        let peer = response.remote_addr();
        if !peer.is_some_and(|peer| self.resolver.may_reach(url.host(), peer)) {
            return Err(FetchError::Peer(peer));
        }
        match response.status() {
            StatusCode::OK => Ok(Answer::Body(response)),
            StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => {
                let location = response.headers().get(header::LOCATION).ok_or(FetchError::Location)?;
                let location = str::from_utf8(location.as_bytes()).map_err(|_| FetchError::Location)?;
                Ok(Answer::Elsewhere(url.redirected(location, &self.options.ports)?))
            }
            other => Err(FetchError::Status(other)),
        }
    }

    /// Reads a body that was sent as it is, up to the limit.
    async fn read(&self, mut response: Response) -> Result<Vec<u8>, FetchError> {
        let max_bytes = self.options.max_bytes;
        let encodings = response.headers().get_all(header::CONTENT_ENCODING);
        if let Some(encoding) = encodings.into_iter().find(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
        {
            return Err(FetchError::Encoding(encoding.clone()));
        }
        // Only announced so far: memory is taken as bytes arrive, not on the server's word.
        if response.content_length().is_some_and(|announced| announced > max_bytes as u64) {
            return Err(FetchError::TooLarge(max_bytes));
        }
        let ReferenceOptions { rate_period, min_period_bytes, .. } = self.options;
        let mut bytes = Vec::new();
        let mut arrived = 0;
        let mut period = std::pin::pin!(tokio::time::sleep(rate_period));
        loop {
            tokio::select! {
                chunk = response.chunk() => {
                    let Some(chunk) = chunk? else { return Ok(bytes) };
                    if chunk.len() > max_bytes - bytes.len() {
                        return Err(FetchError::TooLarge(max_bytes));
                    }
                    arrived += chunk.len();
                    bytes.extend_from_slice(&chunk);
                }
                () = &mut period => {
                    if arrived < min_period_bytes {
                        return Err(FetchError::Slow(min_period_bytes, rate_period));
                    }
                    arrived = 0;
                    period.set(tokio::time::sleep(rate_period));
                }
            }
        }
    }
}

/// An error and its causes on one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}
