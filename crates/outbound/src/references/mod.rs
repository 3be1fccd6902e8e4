//! Downloads reference images from callers' URLs, without giving callers access to the operator's network.
//!
//! Invariant: only public addresses are dialled. A [`ReferenceUrl`] cannot be made for a host that is literally not
//! public, each redirect must become a `ReferenceUrl` first, and [`PublicClient`] checks every address.
//!
//! A caller learns little from a failure: refused, closed, silent and missing are all [`FaultKind::Unreachable`]. The
//! exact cause is logged at debug level.

mod encodings;
mod retries;
mod slots;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::public::{Lookup, PublicClient, PublicResolver, SendError, SystemLookup};
use super::{Proxies, SetupError, asked_wait, client_builder, describe};
use tintype_domain::model::Id;
use tintype_domain::reference_url::{HTTPS_PORT, ReferenceUrl, UrlFault};
use tintype_engine::picture::{Picture, PictureError};
use tintype_system::sandbox::{DecodeError, Decoder};

use encodings::{Encoding, EncodingError};
use slots::{MAX_PER_HOST, Slots};

pub use slots::MAX_PER_ACCOUNT;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const MAX_REDIRECTS: usize = 3;
/// References of one task that are downloaded at a time; a task has no more.
const MAX_DOWNLOADS: usize = 4;
/// References of all tasks that are in memory at a time, until they are decoded.
const MAX_ALL_DOWNLOADS: usize = 16;

/// Limits of a download.
#[derive(Debug, Clone)]
pub struct ReferenceOptions {
    /// The ports that URLs and redirects can use.
    pub ports: Vec<u16>,
    /// Time for one reference from the first look-up to the last byte, redirects and further tries included.
    pub time_limit: Duration,
    /// The pause before the second try; each further one is twice as long.
    pub retry_pause: Duration,
    /// Time for one answer to begin, from the look-up to the end of its header.
    pub first_byte_limit: Duration,
    /// The period of the minimum rate.
    pub rate_period: Duration,
    /// Bytes of a body that must arrive in each [`Self::rate_period`].
    pub min_period_bytes: usize,
    /// Most bytes of one reference as downloaded.
    pub max_bytes: usize,
    /// Decodes the pictures.
    pub decoder: Decoder,
    /// Set by tests only.
    pub trust: Option<TrustedTestHost>,
}

/// For tests: a host that may be reached although it is not public.
#[derive(Debug, Clone)]
pub struct TrustedTestHost {
    /// The host name in the URLs.
    pub host: String,
    /// The address that the name resolves to. A port in the URL overrides its port.
    pub address: SocketAddr,
    /// PEM of certificate authorities to trust in addition to the public ones.
    pub ca_pem: Vec<u8>,
}

impl Default for ReferenceOptions {
    fn default() -> Self {
        Self {
            ports: vec![HTTPS_PORT],
            time_limit: Duration::from_secs(20),
            retry_pause: Duration::from_millis(300),
            first_byte_limit: Duration::from_secs(10),
            rate_period: Duration::from_secs(5),
            min_period_bytes: 16 * 1024,
            max_bytes: 20 * 1024 * 1024,
            decoder: Decoder::default(),
            trust: None,
        }
    }
}

/// A reference that cannot be used. Displays as a message for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("reference_images[{index}] {kind}.")]
pub struct ReferenceFault {
    /// Position among the references of the task, from 0.
    pub index: usize,
    /// The cause that the caller learns.
    pub kind: FaultKind,
}

/// The cause of a [`ReferenceFault`] that the caller learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// No complete answer came from a public host. Callers do not learn how far the attempt got.
    #[error("could not be downloaded")]
    Unreachable,
    /// More bytes or more pixels than allowed.
    #[error("is too large")]
    TooLarge,
    /// Another format, or beyond the limits of the decoder.
    #[error("is not a PNG, JPEG or WebP image")]
    NotAnImage,
    /// A PNG, JPEG or WebP that cannot be decoded to its end.
    #[error("is a damaged image")]
    Damaged,
    /// The decoder could not be started. Another attempt may succeed.
    #[error("could not be examined")]
    Unexamined,
}

/// The exact cause of a failed download. For the log only: callers must not learn it.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("time limit")]
    TimeLimit,
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("less than {0} bytes in {1:?}")]
    Slow(usize, Duration),
    #[error("{0}")]
    Send(#[from] SendError),
    #[error("the body ended early: {}", describe(.0))]
    Body(reqwest::Error),
    #[error("status {0}")]
    Status(StatusCode, Option<Duration>),
    #[error("redirect without a readable Location")]
    Location,
    #[error("redirect to a URL that {0}")]
    Redirect(#[from] UrlFault),
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    #[error("{0}")]
    Encoding(#[from] EncodingError),
    #[error("the decoder of an encoding panicked")]
    Panicked,
    #[error("more than {0} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Decode(#[from] DecodeError),
}

impl FetchError {
    fn kind(&self) -> FaultKind {
        match self {
            Self::TooLarge(_)
            | Self::Encoding(EncodingError::TooLarge(..))
            | Self::Decode(DecodeError::Picture(PictureError::TooLarge)) => FaultKind::TooLarge,
            Self::Decode(DecodeError::Picture(PictureError::Damaged(_))) => FaultKind::Damaged,
            Self::Decode(DecodeError::NotStarted(_) | DecodeError::Killed) => FaultKind::Unexamined,
            Self::Decode(_) => FaultKind::NotAnImage,
            _ => FaultKind::Unreachable,
        }
    }

    /// The pause that the server asks for before another try, if one may have another outcome. A host that cannot be
    /// connected to, or may not, is not tried again: that would help to scan it.
    fn passes(&self) -> Option<Option<Duration>> {
        match self {
            Self::Status(status, asked) if retries::passes(*status) => Some(*asked),
            Self::Send(SendError::Request(error)) if !error.is_connect() && !error.is_builder() => Some(None),
            Self::Body(_) => Some(None),
            _ => None,
        }
    }
}

/// The downloader of a process.
#[derive(Debug)]
pub struct References {
    options: ReferenceOptions,
    http: PublicClient,
    accounts: Slots<Id>,
    hosts: Slots<String>,
    downloads: Semaphore,
}

enum DownloadResponse {
    Body(Response),
    Elsewhere(ReferenceUrl),
}

impl References {
    /// Creates a downloader without connecting.
    ///
    /// # Errors
    /// [`SetupError`]: the certificate authority of the test host cannot be used.
    pub fn new(options: ReferenceOptions) -> Result<Self, SetupError> {
        Self::with_lookup(options, Arc::new(SystemLookup::new()))
    }

    /// [`References::new`] with `lookup` instead of the DNS.
    pub fn with_lookup(options: ReferenceOptions, lookup: Arc<dyn Lookup>) -> Result<Self, SetupError> {
        let exception = options.trust.as_ref().map(|trust| (trust.host.clone(), trust.address));
        Self::with_resolver(options, PublicResolver::new(lookup, exception))
    }

    fn with_resolver(options: ReferenceOptions, resolver: PublicResolver) -> Result<Self, SetupError> {
        let authorities = options.trust.as_ref().map(|trust| trust.ca_pem.as_slice());
        let builder = client_builder(authorities, Proxies::None)?
            .https_only(true)
            .connect_timeout(CONNECT_LIMIT)
            .default_headers(HeaderMap::from_iter([
                (header::ACCEPT, HeaderValue::from_static("image/png, image/jpeg, image/webp")),
                (header::ACCEPT_ENCODING, HeaderValue::from_static("identity")),
            ]));
        let http = PublicClient::new(builder, resolver)?;
        let (accounts, hosts) = (Slots::new(MAX_PER_ACCOUNT), Slots::new(MAX_PER_HOST));
        Ok(Self { options, http, accounts, hosts, downloads: Semaphore::new(MAX_ALL_DOWNLOADS) })
    }

    /// Downloads and decodes all of `urls` concurrently and returns the pictures in the same order. Dropping the future
    /// cancels the downloads.
    ///
    /// # Errors
    /// [`ReferenceFault`] for the first unusable one of `urls`, in order.
    pub async fn fetch(&self, urls: &[ReferenceUrl]) -> Result<Vec<Picture>, ReferenceFault> {
        self.fetch_all(None, urls).await
    }

    /// [`References::fetch`] within the account's share of concurrent downloads, so that its slow references do not
    /// delay other accounts.
    pub async fn fetch_for(&self, account: Id, urls: &[ReferenceUrl]) -> Result<Vec<Picture>, ReferenceFault> {
        self.fetch_all(Some(account), urls).await
    }

    /// Downloads a file that a server named, under the same guards as a reference, without decoding it.
    pub async fn file(&self, url: &ReferenceUrl) -> Result<Vec<u8>, FaultKind> {
        self.bytes(url).await.map_err(|error| {
            tracing::debug!(url = url.loggable(), %error, "a file cannot be downloaded");
            error.kind()
        })
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
            // The caller gets a vaguer message, which reveals nothing about the network of this server.
            let account = account.map(tracing::field::display);
            tracing::info!(account, index, url = url.loggable(), %error, "a reference image cannot be used");
            ReferenceFault { index, kind: error.kind() }
        })
    }

    /// The time limit excludes the wait for slots, which isn't the reference's fault.
    async fn picture(&self, account: Option<Id>, url: &ReferenceUrl) -> Result<Picture, FetchError> {
        // The account's slot comes first, so that an account that waits for one of its own slots holds no shared slot.
        let _account_slot = match account {
            Some(account) => Some(self.accounts.take(account).await),
            None => None,
        };
        let slot = self.hosts.take(url.host()).await;
        let _download = self.downloads.acquire().await.expect("the semaphore is never closed");
        let bytes = self.bytes_in_time(url, slot).await?;
        Ok(self.options.decoder.decode(&bytes).await?)
    }

    async fn bytes(&self, url: &ReferenceUrl) -> Result<Vec<u8>, FetchError> {
        let slot = self.hosts.take(url.host()).await;
        let _download = self.downloads.acquire().await.expect("the semaphore is never closed");
        self.bytes_in_time(url, slot).await
    }

    async fn bytes_in_time(&self, url: &ReferenceUrl, slot: OwnedSemaphorePermit) -> Result<Vec<u8>, FetchError> {
        let download = tokio::time::timeout(self.options.time_limit, self.tries(url, slot));
        download.await.map_err(|_| FetchError::TimeLimit)?
    }

    /// Downloads, more than once if need be. `slot` is for the host of `url`.
    async fn tries(&self, url: &ReferenceUrl, mut slot: OwnedSemaphorePermit) -> Result<Vec<u8>, FetchError> {
        let mut tries = 0;
        loop {
            let error = match self.download(url, slot).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            tries += 1;
            let pause = error
                .passes()
                .and_then(|asked| retries::pause_after(tries, self.options.retry_pause, asked, rand::random()));
            let Some(pause) = pause else { return Err(error) };
            tracing::debug!(url = url.loggable(), %error, ?pause, "a download failed; retrying");
            tokio::time::sleep(pause).await;
            slot = self.hosts.take(url.host()).await;
        }
    }

    /// `slot` is for the host of `url`.
    async fn download(&self, url: &ReferenceUrl, mut slot: OwnedSemaphorePermit) -> Result<Vec<u8>, FetchError> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            match self.request(&url).await? {
                DownloadResponse::Body(response) => {
                    let encodings = encodings::of(response.headers())?;
                    let bytes = self.read(response).await?;
                    return decoded(encodings, bytes, self.options.max_bytes).await;
                }
                DownloadResponse::Elsewhere(next) => url = next,
            }
            // Released first: holding one slot while waiting for another can deadlock.
            drop(slot);
            slot = self.hosts.take(url.host()).await;
        }
        Err(FetchError::TooManyRedirects)
    }

    /// Sends one request and checks the head of the response.
    async fn request(&self, url: &ReferenceUrl) -> Result<DownloadResponse, FetchError> {
        let limit = self.options.first_byte_limit;
        let request = Request::new(Method::GET, url.url().clone());
        let response = tokio::time::timeout(limit, self.http.send(request)).await;
        let response = response.map_err(|_| FetchError::Silent(limit))??;
        match response.status() {
            StatusCode::OK => Ok(DownloadResponse::Body(response)),
            StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT => {
                let location = response.headers().get(header::LOCATION).ok_or(FetchError::Location)?;
                let location = str::from_utf8(location.as_bytes()).map_err(|_| FetchError::Location)?;
                Ok(DownloadResponse::Elsewhere(url.redirected(location, &self.options.ports)?))
            }
            other => Err(FetchError::Status(other, asked_wait(response.headers()))),
        }
    }

    /// Reads a body as it was sent, up to the limits of size and pace.
    async fn read(&self, mut response: Response) -> Result<Vec<u8>, FetchError> {
        let max_bytes = self.options.max_bytes;
        // Memory is allocated as bytes arrive, never by the announced length.
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
                    let Some(chunk) = chunk.map_err(|error| FetchError::Body(error.without_url()))? else { return Ok(bytes) };
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

/// A body without its encodings.
async fn decoded(encodings: Vec<Encoding>, body: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, FetchError> {
    if encodings.is_empty() {
        return Ok(body);
    }
    let decode = move || {
        let mut last_first = encodings.into_iter().rev();
        last_first.try_fold(body, |body, encoding| encodings::undo(encoding, &body, max_bytes))
    };
    Ok(tokio::task::spawn_blocking(decode).await.map_err(|_| FetchError::Panicked)??)
}
