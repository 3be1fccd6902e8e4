//! The accept loop and the life of a server: start, run, drain, stop.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use crate::config::{HEADER_TIME_LIMIT, MAX_CONNECTIONS, RESERVED_FILES};
use crate::http::Enveloping;
use crate::http::auth::Arrival;

/// Longest wait for a TLS handshake.
const HANDSHAKE_TIME_LIMIT: Duration = Duration::from_secs(10);
/// How long open requests get to finish when the server stops.
const CLOSE_TIME_LIMIT: Duration = Duration::from_secs(10);
/// Pause after the system refused a connection, mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest header, in bytes.
const MAX_HEADER: usize = 64 * 1024;
/// The first byte of every TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;

/// Reads a certificate chain and its key.
///
/// # Errors
/// A sentence for the operator.
pub fn tls_acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let unreadable = |path: &Path, error: &dyn std::fmt::Display| format!("cannot use {}: {error}", path.display());
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(|error| unreadable(cert, &error))?;
    let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key_der))
        .map_err(|error| unreadable(cert, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
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
fn connection_slots() -> usize {
    let files =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    files.saturating_sub(RESERVED_FILES).clamp(1, MAX_CONNECTIONS)
}

/// Serves `router` on `listener` until `stop`, then waits for open requests to finish.
pub async fn serve(listener: TcpListener, router: Router, tls: Option<TlsAcceptor>, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(connection_slots()));
    let open = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            () = stop.cancelled() => break,
        };
        let (stream, peer, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (router, tls, watcher) = (router.clone(), tls.clone(), open.watcher());
        tokio::spawn(async move {
            welcome(stream, peer, router, tls, watcher).await;
            drop(slot);
        });
    }
    drop(listener);
    if tokio::time::timeout(CLOSE_TIME_LIMIT, open.shutdown()).await.is_err() {
        tracing::warn!("some requests were cut off");
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.expect("the slots are never closed");
    let (stream, peer) = listener.accept().await?;
    // Answers are small and written whole: waiting to fill a packet only delays them.
    stream.set_nodelay(true)?;
    Ok((stream, peer, slot))
}

/// Finds out whether a connection is in TLS, and serves it.
async fn welcome(stream: TcpStream, peer: SocketAddr, router: Router, tls: Option<TlsAcceptor>, watcher: Watcher) {
    let Some(tls) = tls else {
        return converse(stream, router, Arrival { peer, tls: false }, watcher).await;
    };
    let handshake = async {
        let mut first = [0];
        stream.peek(&mut first).await?;
        // Who speaks plain HTTP here is told so in plain HTTP, by the guard of the API.
        if first == [TLS_HANDSHAKE] { tls.accept(stream).await.map(Ok) } else { Ok(Err(stream)) }
    };
    match tokio::time::timeout(HANDSHAKE_TIME_LIMIT, handshake).await {
        Ok(Ok(Ok(stream))) => converse(stream, router, Arrival { peer, tls: true }, watcher).await,
        Ok(Ok(Err(stream))) => converse(stream, router, Arrival { peer, tls: false }, watcher).await,
        Ok(Err(error)) => tracing::debug!(%error, %peer, "no handshake"),
        Err(_) => tracing::debug!(%peer, "no handshake in time"),
    }
}

/// Speaks HTTP/1.1 over one connection, to its end.
async fn converse<S>(stream: S, router: Router, arrival: Arrival, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(arrival);
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME_LIMIT)
        .max_buf_size(MAX_HEADER)
        .serve_connection(TokioIo::new(Enveloping::new(stream)), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, peer = %arrival.peer, "connection ended");
    }
}
