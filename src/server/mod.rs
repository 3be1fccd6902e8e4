//! The accept loop and the life of a server: start, run, drain, stop.

mod acme;
mod pace;
mod places;
mod tls;
mod validity;

use std::net::SocketAddr;
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
use ipnet::IpNet;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use crate::config::{ConnectionLimits, MAX_HEADER, MAX_HEADER_FIELDS, RESERVED_FILE_DESCRIPTORS};
use crate::http::{Arrival, Enveloping, refusal};
use pace::{AnswerBody, Paced, Stage};
use places::Places;

pub use tls::Certificate;

/// How long open requests get to finish when the server stops.
const CLOSE_TIME_LIMIT: Duration = Duration::from_secs(10);
/// Pause after the system refused a connection, mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The first byte of every TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;
/// Most connections that are being told that there is no place for them; others are just closed...
const MAX_TURNED_AWAY: usize = 64;
/// ...and the longest time spent on one.
const TURN_AWAY_TIME_LIMIT: Duration = Duration::from_secs(1);

/// How connections are received.
#[derive(Debug)]
pub struct Front {
    /// Serves HTTPS.
    pub certificate: Option<Arc<Certificate>>,
    /// What connections may take.
    pub limits: ConnectionLimits,
    /// Peers that may open as many connections as there are places.
    pub trusted_proxies: Vec<IpNet>,
}

impl Default for Front {
    fn default() -> Self {
        Self { certificate: None, limits: ConnectionLimits::DEFAULT, trusted_proxies: Vec::new() }
    }
}

/// What every connection of a listener shares.
#[derive(Clone)]
struct Host {
    router: Router,
    tls: Option<TlsAcceptor>,
    limits: ConnectionLimits,
}

/// Lets this process hold as many files and connections as the system allows it.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
}

/// How many connections fit beside the files that the rest of the process needs.
fn spare_files() -> usize {
    let files =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    files.saturating_sub(RESERVED_FILE_DESCRIPTORS).clamp(1, Semaphore::MAX_PERMITS)
}

/// Serves `router` on `listener` until `stop`, then waits for open requests to finish.
pub async fn serve(listener: TcpListener, router: Router, front: Front, stop: CancellationToken) {
    let places = Places::new(&front.limits, spare_files(), front.trusted_proxies);
    let turned_away = Arc::new(Semaphore::new(MAX_TURNED_AWAY));
    let host = Host { router, tls: front.certificate.as_ref().map(Certificate::acceptor), limits: front.limits };
    if let Some(certificate) = front.certificate {
        let stop = stop.clone();
        tokio::spawn(async move { stop.run_until_cancelled(certificate.watch()).await });
    }
    let open = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        // Answers are small and written whole: waiting to fill a packet only delays them.
        let (stream, peer) = match accepted.and_then(|(stream, peer)| stream.set_nodelay(true).map(|()| (stream, peer)))
        {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = places.take(peer.ip()) else {
            tracing::debug!(%peer, "no place for a connection");
            if host.tls.is_none()
                && let Ok(permit) = turned_away.clone().try_acquire_owned()
            {
                tokio::spawn(turn_away(stream, permit));
            }
            continue;
        };
        let (host, watcher) = (host.clone(), open.watcher());
        tokio::spawn(async move {
            host.welcome(stream, peer, watcher).await;
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(CLOSE_TIME_LIMIT, open.shutdown()).await.is_err() {
        tracing::warn!("some requests were cut off");
    }
}

/// Answers 503 to whatever is asked, for who can be told in plain HTTP.
async fn turn_away(mut stream: TcpStream, permit: OwnedSemaphorePermit) {
    let answer = async {
        // What is not read when a connection closes takes the answer with it.
        drop(stream.read(&mut [0; 4_096]).await);
        stream.write_all(&refusal(StatusCode::SERVICE_UNAVAILABLE)).await?;
        stream.shutdown().await?;
        stream.read(&mut [0; 4_096]).await
    };
    // Nobody is owed this answer.
    drop(tokio::time::timeout(TURN_AWAY_TIME_LIMIT, answer).await);
    drop(permit);
}

impl Host {
    /// Finds out whether a connection is in TLS, and serves it.
    async fn welcome(self, stream: TcpStream, peer: SocketAddr, watcher: Watcher) {
        let Some(tls) = self.tls.clone() else {
            return self.converse(stream, peer, false, watcher).await;
        };
        let shake_hands = async {
            let mut first = [0];
            tokio::time::timeout(self.limits.first_byte, stream.peek(&mut first)).await??;
            // Who speaks plain HTTP here is told so in plain HTTP, by the guard of the API.
            if first == [TLS_HANDSHAKE] { tls.accept(stream).await.map(Ok) } else { Ok(Err(stream)) }
        };
        match tokio::time::timeout(self.limits.handshake, shake_hands).await {
            Ok(Ok(Ok(stream))) if tls::is_challenge(stream.get_ref().1) => {
                tracing::debug!(%peer, "a challenge was answered")
            }
            Ok(Ok(Ok(stream))) => self.converse(stream, peer, true, watcher).await,
            Ok(Ok(Err(stream))) => self.converse(stream, peer, false, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "no handshake"),
            Err(_) => tracing::debug!(%peer, "no handshake in time"),
        }
    }

    /// Speaks HTTP/1.1 over one connection, to its end.
    async fn converse<S>(self, stream: S, peer: SocketAddr, tls: bool, watcher: Watcher)
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
            let answered = self.router.clone().call(request);
            answered.map(move |answer| answer.map(|answer| answer.map(|body| AnswerBody::new(body, stage))))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // The stream keeps the time, and tells waiting for a request from waiting for its end.
            .header_read_timeout(None)
            .max_headers(MAX_HEADER_FIELDS)
            .max_header_size(MAX_HEADER)
            .max_buf_size(MAX_HEADER)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, %peer, "connection ended");
        }
    }
}
