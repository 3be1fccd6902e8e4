//! The services under test: the real one, and bare handlers that send the same responses.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tintype::files::Files;
use tintype::http::{ApiSettings, ApiState, Readiness, router};
use tintype::server::{self, ListenerSettings};
use tintype::service::ServiceContext;
use tintype_config::ServerSettings;
use tintype_store::Store;
use tintype_store::sqlite;
use tintype_system::clock::Clock;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Outcome;
use crate::generator::Load;

/// A complete service on the system clock, without limits on callers and without a worker.
pub struct Service {
    pub shared: Arc<ServiceContext>,
    pub address: SocketAddr,
    _stop: DropGuard,
}

/// Settings without limits on callers, and these flags.
pub fn settings(flags: &[&str]) -> Outcome<ServerSettings> {
    let unlimited = ["--submit-rate", "0", "--read-rate", "0", "--max-unfinished", "0", "--max-failed-tasks", "0"];
    let mut settings = ServerSettings::from_flags(unlimited.iter().chain(flags).copied())?;
    settings.worker.test_picture_decoder = env!("CARGO_BIN_EXE_tintype").into();
    Ok(settings)
}

/// Builds the shared parts of a process on an empty data directory.
pub fn shared(data: &Path, settings: &ServerSettings) -> Outcome<Arc<ServiceContext>> {
    let store = Arc::new(sqlite::open(&data.join("tintype.db"), Clock::system())?);
    shared_on(store, data, settings)
}

/// Builds the shared parts of a process on a store.
pub fn shared_on(store: Arc<Store>, data: &Path, settings: &ServerSettings) -> Outcome<Arc<ServiceContext>> {
    let files = data.join("files");
    std::fs::create_dir(&files)?;
    let files = Files::on_disk(&files)?;
    Ok(ServiceContext::new(settings, Clock::system(), store, files, Vec::new()))
}

impl Service {
    /// Starts the service on an empty data directory.
    pub async fn start(data: &Path, settings: &ServerSettings) -> Outcome<Self> {
        Self::start_on(shared(data, settings)?, settings).await
    }

    /// Starts the service on shared parts.
    pub async fn start_on(shared: Arc<ServiceContext>, settings: &ServerSettings) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let typical_duration = tintype_engines::typical_duration(&settings.worker.engine);
        let api_settings = ApiSettings::new(settings, &format!("http://{address}"))?;
        let api = ApiState::open(api_settings, shared.clone(), typical_duration).await?;
        let stop = CancellationToken::new();
        tokio::spawn(api.studio.clone().run(stop.clone()));
        tokio::spawn(server::serve(
            vec![listener.into()],
            router(api, Readiness::default()),
            ListenerSettings::default(),
            stop.clone(),
        ));
        Ok(Self { shared, address, _stop: stop.drop_guard() })
    }
}

/// Starts a bare axum handler behind the same accept loop. It accepts the same requests and repeats, byte for byte, the
/// response of the service to the first request of `load`: the upper bound for the service's throughput.
pub async fn ceiling(load: &Load) -> Outcome<Load> {
    let once = load.clone();
    let (head, body) = tokio::task::spawn_blocking(move || once.once()).await??;
    let headers = headers(&head)?;
    let answer = || async move {
        let mut response = Response::new(Body::from(body));
        *response.headers_mut() = headers;
        response
    };
    let answer_after_body = {
        let answer = answer.clone();
        |_: Bytes| answer()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let path = path(&load.requests[0])?;
    let router = Router::new().route(path, get(answer).post(answer_after_body));
    tokio::spawn(server::serve(vec![listener.into()], router, ListenerSettings::default(), CancellationToken::new()));
    Ok(Load { address, requests: load.requests.clone() })
}

/// The path of a request without the query.
fn path(request: &[u8]) -> Outcome<&str> {
    let target = std::str::from_utf8(request)?.split(' ').nth(1).ok_or("a request has a target")?;
    Ok(target.split('?').next().unwrap_or(target))
}

/// The headers of a response, except those that the server library adds itself.
fn headers(head: &[u8]) -> Outcome<HeaderMap> {
    let mut headers = HeaderMap::new();
    for line in std::str::from_utf8(head)?.lines().skip(1) {
        let Some((name, value)) = line.split_once(": ") else { continue };
        if !matches!(name, "date" | "content-length") {
            headers.insert(name.parse::<HeaderName>()?, value.parse::<HeaderValue>()?);
        }
    }
    Ok(headers)
}
