//! The accept loop and the life cycle of a server: start, run, drain, stop.

mod acme;
mod connection_slots;
mod connection_timeouts;
mod listener;
mod probe;
mod proxy_protocol;
mod socket;
mod tls;
mod validity;

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use crate::http::{ConnectionInfo, EnvelopeStream, NoAnswer};
use connection_slots::{ConnectionSlot, ConnectionSlots};
use connection_timeouts::{ConnectionPhase, Exchange, TimedStream};
use listener::Accepted;
use socket::{Ending, LentStream, Socket, lend};
use tintype_config::{ConnectionLimits, MAX_HEADER, MAX_HEADER_FIELDS, RESERVED_FILE_DESCRIPTORS, TrustedProxy};
use tintype_domain::source::Peer;

pub use listener::{Listener, SocketListener};
pub use probe::{Probe, workers};
pub use tls::Certificate;

/// Time that open requests get to finish when the server stops.
const CLOSE_TIME_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, usually caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The first byte of every TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;
/// Time limit for a connection of the reserve, and again for its peer to close.
const RESERVE_TIME_LIMIT: Duration = Duration::from_secs(2);

/// Settings of a listener.
#[derive(Debug)]
pub struct ListenerSettings {
    /// Serves HTTPS.
    pub certificate: Option<Arc<Certificate>>,
    /// Limits on connections.
    pub limits: ConnectionLimits,
    /// Peers without a limit on connections per address.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// If there are any, every TCP connection comes from one of these, which says in front for whom.
    pub balancers: Vec<TrustedProxy>,
}

impl Default for ListenerSettings {
    fn default() -> Self {
        let limits = ConnectionLimits::DEFAULT;
        Self { certificate: None, limits, trusted_proxies: Vec::new(), balancers: Vec::new() }
    }
}

#[derive(Clone)]
struct ListenerState {
    router: Router,
    tls: Option<TlsAcceptor>,
    limits: ConnectionLimits,
}

#[derive(Clone, Copy)]
struct Connection {
    peer: Peer,
    tls: bool,
    /// The connection is one of the reserve.
    over_limit: bool,
}

/// The stream of a connection: of TCP, of TLS or of a Unix domain socket.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Raises the limit on open files of this process to its hard limit.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "could not raise the limit on open files; the server accepts fewer connections");
    }
}

/// Warns if the limit on open files leaves room for few connections.
pub fn check_file_limit() {
    if spare_files() < RESERVED_FILE_DESCRIPTORS {
        tracing::warn!(
            "the limit on open files leaves room for few connections, and others get 503: raise it (ulimit -n, \
             LimitNOFILE= of systemd, --ulimit nofile of a container)"
        );
    }
}

/// Number of connections that fit next to the file descriptors that the rest of the process needs.
fn spare_files() -> usize {
    let files =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    files.saturating_sub(RESERVED_FILE_DESCRIPTORS).clamp(1, Semaphore::MAX_PERMITS)
}

/// Serves `router` on all listeners until `stop`, then waits for open requests to finish.
pub async fn serve(listeners: Vec<Listener>, router: Router, settings: ListenerSettings, stop: CancellationToken) {
    let exempt = [&settings.trusted_proxies[..], &settings.balancers].concat();
    let acceptor = ConnectionAcceptor {
        slots: Arc::new(ConnectionSlots::new(&settings.limits, spare_files(), exempt)),
        balancers: settings.balancers,
        state: ListenerState {
            router,
            tls: settings.certificate.as_ref().map(Certificate::acceptor),
            limits: settings.limits,
        },
        open: GracefulShutdown::new(),
    };
    if let Some(certificate) = settings.certificate {
        let stop = stop.clone();
        tokio::spawn(async move { stop.run_until_cancelled(certificate.watch()).await });
    }
    for listener in &listeners {
        if let Err(error) = listener.bound(settings.limits.write_stall) {
            tracing::warn!(%error, "could not limit the send buffers of connections: slow clients will use more kernel memory");
        }
    }
    let admitting = listeners.into_iter().map(|listener| acceptor.accept_all(listener, &stop));
    futures::future::join_all(admitting).await;
    if tokio::time::timeout(CLOSE_TIME_LIMIT, acceptor.open.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time and were aborted");
    }
}

/// Waits before the next accept.
async fn pause_after(error: &io::Error) {
    tracing::warn!(%error, "could not accept a connection; retrying");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

struct ConnectionAcceptor {
    slots: Arc<ConnectionSlots>,
    /// With the PROXY protocol, those that speak it.
    balancers: Vec<TrustedProxy>,
    state: ListenerState,
    open: GracefulShutdown,
}

impl ConnectionAcceptor {
    async fn accept_all(&self, listener: Listener, stop: &CancellationToken) {
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok(Accepted::Tcp(stream, address)) => self.serve_tcp(stream, address.ip()),
                Ok(Accepted::Socket(stream)) => self.serve_unix(stream),
                Err(error) => pause_after(&error).await,
            }
        }
    }

    fn serve_tcp(&self, mut stream: TcpStream, address: IpAddr) {
        let peer = Peer::Address(address);
        let is_balanced = !self.balancers.is_empty();
        if is_balanced && !self.balancers.iter().any(|balancer| balancer.is(peer)) {
            tracing::debug!(%peer, "closed a connection: --trusted-proxy names no balancer at this address");
            return;
        }
        let Some((mut slot, mut connection)) = slot(&self.slots, peer) else { return };
        let (state, watcher) = (self.state.clone(), self.open.watcher());
        let slots = is_balanced.then(|| self.slots.clone());
        tokio::spawn(async move {
            if let Some(slots) = slots {
                let limit = if connection.over_limit { RESERVE_TIME_LIMIT } else { state.limits.handshake };
                match caller_of(&mut stream, peer, limit).await {
                    None => return,
                    Some(caller) if caller == peer => {}
                    Some(caller) => match self::slot(&slots, caller) {
                        Some(of_caller) => (slot, connection) = of_caller,
                        None => return,
                    },
                }
            }
            let (stream, returned) = lend(stream);
            let limit = state.limits.write_stall;
            finish(state.handshake(stream, connection, watcher), returned, connection, limit).await;
            drop(slot);
        });
    }

    /// On the way to a proxy at a Unix domain socket, nothing leaves this machine, so there is no TLS.
    fn serve_unix(&self, stream: UnixStream) {
        let Some((slot, connection)) = slot(&self.slots, Peer::Socket) else { return };
        let (state, watcher) = (self.state.clone(), self.open.watcher());
        tokio::spawn(async move {
            let (stream, returned) = lend(stream);
            let limit = state.limits.write_stall;
            finish(state.serve_http(Box::new(stream), connection, watcher), returned, connection, limit).await;
            drop(slot);
        });
    }
}

/// A slot for a connection, which is closed if none is free.
fn slot(slots: &ConnectionSlots, peer: Peer) -> Option<(ConnectionSlot, Connection)> {
    let Some(slot) = slots.take(peer) else {
        tracing::debug!(%peer, "closed a connection: the limit on connections is reached");
        return None;
    };
    if slot.reserve {
        tracing::debug!(%peer, "the limit on connections is reached: this one may only ask for the server's health");
    }
    let connection = Connection { peer, tls: false, over_limit: slot.reserve };
    Some((slot, connection))
}

/// The caller for whom a balancer has made a connection, or the balancer itself.
async fn caller_of(stream: &mut TcpStream, balancer: Peer, limit: Duration) -> Option<Peer> {
    let read = tokio::time::timeout(limit, proxy_protocol::read(stream)).await;
    match read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(caller) => Some(caller.map_or(balancer, Peer::Address)),
        Err(error) => {
            tracing::debug!(%error, %balancer, "closed a connection: it has no header of the PROXY protocol");
            None
        }
    }
}

/// Serves a connection, then waits until its peer has closed it, or has had the time to.
async fn finish<S: Socket>(
    service: impl Future<Output = Ending>,
    returned: oneshot::Receiver<S>,
    connection: Connection,
    limit: Duration,
) {
    let (ending, limit) = if connection.over_limit {
        let served = tokio::time::timeout(RESERVE_TIME_LIMIT, service).await;
        (served.unwrap_or(Ending::Broken), RESERVE_TIME_LIMIT)
    } else {
        (service.await, limit)
    };
    if let Ok(stream) = returned.await {
        socket::close(stream, ending, limit).await;
    }
}

impl ListenerState {
    /// Detects whether a connection uses TLS, and serves it.
    async fn handshake(self, stream: Pin<LentStream<TcpStream>>, connection: Connection, watcher: Watcher) -> Ending {
        let Some(tls) = self.tls.clone() else {
            return self.serve_http(Box::new(stream), connection, watcher).await;
        };
        let peer = connection.peer;
        let shake_hands = async {
            let mut first = [0];
            tokio::time::timeout(self.limits.first_byte, stream.peek(&mut first)).await??;
            // Plain HTTP on an HTTPS port gets a plain HTTP response from the authentication of the API.
            if first == [TLS_HANDSHAKE] { tls.accept(stream).await.map(Ok) } else { Ok(Err(stream)) }
        };
        match tokio::time::timeout(self.limits.handshake, shake_hands).await {
            Ok(Ok(Ok(stream))) if tls::is_challenge(stream.get_ref().1) => {
                tracing::debug!(%peer, "answered an ACME challenge");
                Ending::Complete
            }
            Ok(Ok(Ok(stream))) => {
                self.serve_http(Box::new(stream), Connection { tls: true, ..connection }, watcher).await
            }
            Ok(Ok(Err(stream))) => self.serve_http(Box::new(stream), connection, watcher).await,
            Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Ending::Broken,
            Ok(Err(error)) => {
                tracing::debug!(%error, %peer, "the TLS handshake failed");
                Ending::Complete
            }
            Err(_) => {
                tracing::debug!(%peer, "the TLS handshake took too long");
                Ending::Broken
            }
        }
    }

    /// Serves HTTP/1.1 over one connection until it ends. One type of streams, so that hyper is compiled once.
    async fn serve_http(self, stream: Box<dyn Stream>, connection: Connection, watcher: Watcher) -> Ending {
        let Connection { peer, tls, over_limit } = connection;
        let phase = Arc::new(ConnectionPhase::new());
        let stream = TimedStream::new(stream, phase.clone(), self.limits);
        let stream = EnvelopeStream::new(stream, self.limits.write_stall);
        let of_service = phase.clone();
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            let unambiguous = of_service.begin_exchange();
            request.extensions_mut().insert(ConnectionInfo { peer, tls, unambiguous, over_limit });
            let phase = of_service.clone();
            self.router.clone().call(request).map(move |Ok(mut answer)| {
                // An error of the service makes hyper close the connection.
                answer.extensions().get::<NoAnswer>().map_or(Ok(()), |no_answer| Err(*no_answer))?;
                // The router adds it wherever the path lacks the method, and a 401 looks the same everywhere.
                if answer.status() == StatusCode::UNAUTHORIZED {
                    answer.headers_mut().remove(header::ALLOW);
                }
                // The body holds the exchange until it has been sent.
                let exchange = Exchange(phase);
                let holding = move |error: axum::Error| {
                    let _ = &exchange;
                    error
                };
                Ok::<_, NoAnswer>(answer.map(|body| body.map_err(holding)))
            })
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(!over_limit)
            // The stream enforces the time limits; it distinguishes waiting for a request from waiting for its end.
            .header_read_timeout(None)
            .max_headers(MAX_HEADER_FIELDS)
            .max_header_size(MAX_HEADER)
            .max_buf_size(MAX_HEADER)
            .serve_connection(TokioIo::new(stream), service);
        match watcher.watch(connection).await {
            Ok(()) => Ending::Complete,
            Err(error) => {
                tracing::debug!(%error, %peer, "a connection ended with an error");
                // A request that cannot be parsed has a response, and one that gets none is to end in peace.
                if error.is_parse() || error.is_user() {
                    Ending::Complete
                } else if phase.awaits_request() {
                    Ending::Late
                } else {
                    Ending::Broken
                }
            }
        }
    }
}
