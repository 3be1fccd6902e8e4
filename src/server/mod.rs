//! The accept loop and the life cycle of a server: start, run, drain, stop.

mod acme;
mod connection_slots;
mod listener;
mod pace;
mod tls;
mod validity;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use futures::FutureExt as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use crate::config::{ConnectionLimits, MAX_HEADER, MAX_HEADER_FIELDS, RESERVED_FILE_DESCRIPTORS, TrustedProxy};
use crate::domain::source::Peer;
use crate::http::{Arrival, Enveloping, NoAnswer, refusal};
use connection_slots::{ConnectionSlot, ConnectionSlots};
use listener::Accepted;
use pace::{AnswerBody, Paced, Stage};

pub use listener::{Listener, SocketListener};
pub use tls::Certificate;

/// Time that open requests get to finish when the server stops.
const CLOSE_TIME_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, usually caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The first byte of every TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;
/// Most connections that are refused with a 503 at the same time; further ones are closed without a response.
const MAX_REFUSALS: usize = 64;
/// Time limit for one of these refusals.
const REFUSAL_TIME_LIMIT: Duration = Duration::from_secs(1);

/// Settings of a listener.
#[derive(Debug)]
pub struct Front {
    /// Serves HTTPS.
    pub certificate: Option<Arc<Certificate>>,
    /// Limits on connections.
    pub limits: ConnectionLimits,
    /// Peers without a limit on connections per address.
    pub trusted_proxies: Vec<TrustedProxy>,
}

impl Default for Front {
    fn default() -> Self {
        Self { certificate: None, limits: ConnectionLimits::DEFAULT, trusted_proxies: Vec::new() }
    }
}

/// State shared by all connections of a listener.
#[derive(Clone)]
struct Host {
    router: Router,
    tls: Option<TlsAcceptor>,
    limits: ConnectionLimits,
}

/// Raises the limit on open files of this process to its hard limit.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "could not raise the limit on open files; the server accepts fewer connections");
    }
}

/// Number of connections that fit next to the file descriptors that the rest of the process needs.
fn spare_files() -> usize {
    let files =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    files.saturating_sub(RESERVED_FILE_DESCRIPTORS).clamp(1, Semaphore::MAX_PERMITS)
}

/// Serves `router` on all listeners until `stop`, then waits for open requests to finish.
pub async fn serve(listeners: Vec<Listener>, router: Router, front: Front, stop: CancellationToken) {
    let door = Door {
        slots: ConnectionSlots::new(&front.limits, spare_files(), front.trusted_proxies),
        refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
        host: Host { router, tls: front.certificate.as_ref().map(Certificate::acceptor), limits: front.limits },
        open: GracefulShutdown::new(),
    };
    if let Some(certificate) = front.certificate {
        let stop = stop.clone();
        tokio::spawn(async move { stop.run_until_cancelled(certificate.watch()).await });
    }
    let admitting = listeners.into_iter().map(|listener| door.admit(listener, &stop));
    futures::future::join_all(admitting).await;
    if tokio::time::timeout(CLOSE_TIME_LIMIT, door.open.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time and were aborted");
    }
}

/// The way in, which all listeners share.
struct Door {
    slots: Arc<ConnectionSlots>,
    refusals: Arc<Semaphore>,
    host: Host,
    open: GracefulShutdown,
}

impl Door {
    /// Accepts connections until `stop`.
    async fn admit(&self, listener: Listener, stop: &CancellationToken) {
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok(Accepted::Tcp(stream, address)) => self.enter_from(stream, address.ip()),
                Ok(Accepted::Socket(stream)) => self.enter_from_socket(stream),
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn enter_from(&self, stream: TcpStream, address: IpAddr) {
        let peer = Peer::Address(address);
        let Some((stream, slot)) = self.slot(stream, peer, self.host.tls.is_some()) else { return };
        let (host, watcher) = (self.host.clone(), self.open.watcher());
        tokio::spawn(async move {
            host.welcome(stream, peer, watcher).await;
            drop(slot);
        });
    }

    /// Nothing leaves this machine on the way to a proxy at a Unix domain socket, so there is no TLS.
    fn enter_from_socket(&self, stream: UnixStream) {
        let Some((stream, slot)) = self.slot(stream, Peer::Socket, false) else { return };
        let (host, watcher) = (self.host.clone(), self.open.watcher());
        tokio::spawn(async move {
            host.converse(stream, Peer::Socket, false, watcher).await;
            drop(slot);
        });
    }

    /// A slot for a connection, which is refused if there is none.
    fn slot<S>(&self, stream: S, peer: Peer, tls: bool) -> Option<(S, ConnectionSlot)>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if let Some(slot) = self.slots.take(peer) {
            return Some((stream, slot));
        }
        tracing::debug!(%peer, "refused a connection: the limit on connections is reached");
        if let Some(permit) = (!tls).then(|| self.refusals.clone().try_acquire_owned().ok()).flatten() {
            tokio::spawn(refuse(stream, permit));
        }
        None
    }
}

/// Responds with 503 to any plain HTTP request.
async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin, permit: OwnedSemaphorePermit) {
    let answer = async {
        // Closing a connection with unread data resets it, which would discard the response.
        drop(stream.read(&mut [0; 4_096]).await);
        stream.write_all(&refusal(StatusCode::SERVICE_UNAVAILABLE)).await?;
        stream.shutdown().await?;
        stream.read(&mut [0; 4_096]).await
    };
    // This response is a courtesy, so errors do not matter.
    drop(tokio::time::timeout(REFUSAL_TIME_LIMIT, answer).await);
    drop(permit);
}

impl Host {
    /// Detects whether a connection uses TLS, and serves it.
    async fn welcome(self, stream: TcpStream, peer: Peer, watcher: Watcher) {
        let Some(tls) = self.tls.clone() else {
            return self.converse(stream, peer, false, watcher).await;
        };
        let shake_hands = async {
            let mut first = [0];
            tokio::time::timeout(self.limits.first_byte, stream.peek(&mut first)).await??;
            // Plain HTTP on an HTTPS port gets a plain HTTP response from the authentication of the API.
            if first == [TLS_HANDSHAKE] { tls.accept(stream).await.map(Ok) } else { Ok(Err(stream)) }
        };
        match tokio::time::timeout(self.limits.handshake, shake_hands).await {
            Ok(Ok(Ok(stream))) if tls::is_challenge(stream.get_ref().1) => {
                tracing::debug!(%peer, "answered an ACME challenge")
            }
            Ok(Ok(Ok(stream))) => self.converse(stream, peer, true, watcher).await,
            Ok(Ok(Err(stream))) => self.converse(stream, peer, false, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "the TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "the TLS handshake took too long"),
        }
    }

    /// Serves HTTP/1.1 over one connection until it ends.
    async fn converse<S>(self, stream: S, peer: Peer, tls: bool, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stage = Arc::new(Stage::new());
        let stream = Paced::new(stream, stage.clone(), self.limits);
        let stream = Enveloping::new(stream, self.limits.write_stall);
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            let unambiguous = stage.begin_exchange();
            request.extensions_mut().insert(Arrival { peer, tls, unambiguous });
            let stage = stage.clone();
            self.router.clone().call(request).map(move |Ok(answer)| match answer.extensions().get::<NoAnswer>() {
                // An error of the service makes hyper close the connection.
                Some(no_answer) => Err(*no_answer),
                None => Ok(answer.map(|body| AnswerBody::new(body, stage))),
            })
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // The stream enforces the time limits; it distinguishes waiting for a request from waiting for its end.
            .header_read_timeout(None)
            .max_headers(MAX_HEADER_FIELDS)
            .max_header_size(MAX_HEADER)
            .max_buf_size(MAX_HEADER)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, %peer, "a connection ended with an error");
        }
    }
}
