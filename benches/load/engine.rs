//! The service beside its engine: what it adds to the time of a picture, and whether it keeps slow servers busy. Both are
//! compared, in turns, with a bare client that calls the same servers directly.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::future::try_join_all;
use hdrhistogram::Histogram;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tempfile::TempDir;
use tintype::policy::Policy;
use tintype::worker::Worker;
use tintype::worker::render::EngineRenderer;
use tintype_engine::picture::Picture;
use tintype_engines::EngineContext;
use tintype_system::sandbox::Decoder;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fixture::{self, Caller, PROMPT};
use crate::generator::{histogram, now};
use crate::report::{Aim, Report};
use crate::service::{self, Service};
use crate::subjects::GENERATE;
use crate::{Options, Outcome, median};

const SLOW_SERVERS: usize = 8;
const SLOW: Duration = Duration::from_secs(2);
const SLOW_TASKS: usize = 64;
/// Interval at which the benchmark checks whether the queue is empty.
const CHECK_EVERY: Duration = Duration::from_millis(2);
pub const SIDE: u32 = 1024;
/// The program that decodes.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_tintype");
/// A word of prompts that the server turns away.
const POISON: &[u8] = b"poison";

/// A server with OpenAI's Images API, which takes `time` for a picture and paints one after another.
pub struct Server {
    url: String,
    seen: Arc<Seen>,
}

struct Seen {
    time: Duration,
    painting: tokio::sync::Mutex<()>,
    answer: Bytes,
    /// Begin of the latest request, and end of its answer.
    latest: Mutex<Option<(Instant, Instant)>>,
}

impl Server {
    pub async fn start(time: Duration) -> Outcome<Self> {
        Self::with(time, &picture()?).await
    }

    /// A server whose pictures are this PNG.
    pub async fn with(time: Duration, png: &[u8]) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let seen =
            Seen { time, painting: tokio::sync::Mutex::default(), answer: answer(png), latest: Mutex::default() };
        let seen = Arc::new(seen);
        let paint = |State(seen): State<Arc<Seen>>, request: axum::extract::Request| async move {
            let begun = now();
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            if body.windows(POISON.len()).any(|bytes| bytes == POISON) {
                return Err(StatusCode::SERVICE_UNAVAILABLE);
            }
            let _one_at_a_time = seen.painting.lock().await;
            tokio::time::sleep(seen.time).await;
            *seen.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some((begun, now()));
            Ok(([("content-type", "application/json")], seen.answer.clone()))
        };
        let models = get(|| async { r#"{"object":"list","data":[]}"# });
        let routes = Router::new().route("/v1/images/generations", post(paint)).route("/v1/models", models);
        let routes = routes.with_state(seen.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(Self { url, seen })
    }

    /// The URL to name as an engine.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Begin of the latest request, and end of its answer.
    pub fn latest(&self) -> Outcome<(Instant, Instant)> {
        let latest = self.seen.latest.lock().unwrap_or_else(PoisonError::into_inner).take();
        latest.ok_or_else(|| "the engine was not asked".into())
    }
}

/// A picture that does not compress to nothing.
fn picture() -> Outcome<Vec<u8>> {
    let pixels = (0..SIDE * SIDE).flat_map(|at| [at % SIDE, at / SIDE, at % 251].map(|channel| (channel / 4) as u8));
    Ok(Picture::from_rgb(SIDE, SIDE, pixels.collect()).ok_or("a picture")?.to_png())
}

/// The answer with this picture.
fn answer(png: &[u8]) -> Bytes {
    json!({ "created": 1, "data": [{ "b64_json": BASE64_STANDARD.encode(png) }] }).to_string().into()
}

/// A connection that is kept.
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Client {
    pub async fn connect(host: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, host: host.to_owned() })
    }

    /// Posts a prompt and returns the body of the answer.
    pub async fn post(&mut self, path: &str, headers: &[(&str, &str)]) -> Outcome<Bytes> {
        let body = json!({ "prompt": PROMPT, "response_format": "b64_json", "size": "1024x1024", "n": 1 }).to_string();
        let mut request = Request::post(path).header("host", &self.host).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::new(body.into()))?).await
    }

    /// Gets a path and returns the body of the answer.
    pub async fn get(&mut self, path: &str) -> Outcome<Bytes> {
        let request = Request::get(path).header("host", &self.host).body(Full::default())?;
        self.send(request).await
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Outcome<Bytes> {
        // Right after an answer the connection may not take the next request yet.
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if status == 200 { Ok(body) } else { Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into()) }
    }
}

/// A service with a worker, beside these servers.
pub struct Beside {
    pub service: Service,
    pub caller: Caller,
    _worker: JoinHandle<()>,
    _stop: DropGuard,
}

impl Beside {
    pub async fn start(directory: &TempDir, name: &str, servers: &[Server]) -> Outcome<Self> {
        Self::decoding(directory, name, servers, Decoder::new(PROGRAM).keeping_ready()).await
    }

    /// Starts it with this picture decoder.
    pub async fn decoding(directory: &TempDir, name: &str, servers: &[Server], decoder: Decoder) -> Outcome<Self> {
        let data = directory.path().join(name);
        std::fs::create_dir(&data)?;
        let urls: Vec<_> = servers.iter().map(|server| server.url.as_str()).collect();
        let settings = service::settings(&["--engine", &format!("openai:{}", urls.join(","))])?;
        let service = Service::start(&data, &settings).await?;
        let shared = service.shared.clone();
        let named = settings.worker.engine.engines()?.remove(0);
        let choice = tintype_engines::choose(&named.settings, Path::new("."))?;
        let engine = choice.build(EngineContext { decoder, ..EngineContext::default() })?;
        let policy = Policy::open(None).await?;
        let slots = settings.worker.render_slots(&named, choice.info.slots);
        let renderer = EngineRenderer::new(&settings.worker, shared.clone(), policy.clone(), choice.info, engine)?;
        let caller = fixture::caller(&shared.store, name).await?;
        let worker = Worker::new(settings.worker.clone(), &named.name, slots, shared, policy, Arc::new(renderer));
        let stop = CancellationToken::new();
        let _worker = tokio::spawn(worker.run(stop.clone()));
        Ok(Self { service, caller, _worker, _stop: stop.drop_guard() })
    }
}

/// Times before and after the engine, in nanoseconds.
struct Sides {
    before: Histogram<u64>,
    after: Histogram<u64>,
    all: Histogram<u64>,
}

impl Sides {
    fn new() -> Self {
        Self { before: histogram(), after: histogram(), all: histogram() }
    }

    /// Adds a picture that the caller asked for at one time and had at another.
    fn add(&mut self, server: &Server, asked: Instant, had: Instant) -> Outcome<()> {
        let (begun, ended) = server.latest()?;
        for (side, time) in
            [(&mut self.before, begun - asked), (&mut self.after, had - ended), (&mut self.all, had - asked)]
        {
            side.record(time.as_nanos() as u64)?;
        }
        Ok(())
    }
}

/// Measures both.
pub fn measure(runtime: &Runtime, directory: &TempDir, options: &Options, report: &mut Report) -> Outcome<()> {
    let (service, direct) = runtime.block_on(overhead(directory, options))?;
    let millis = |side: &Histogram<u64>, quantile| side.value_at_quantile(quantile) as f64 / 1e6;
    for (name, side, quantile) in [
        ("submit to engine's first byte, p50", &service.before, 0.5),
        ("submit to engine's first byte, p99", &service.before, 0.99),
        ("  the same without the service, p50", &direct.before, 0.5),
        ("  the same without the service, p99", &direct.before, 0.99),
        ("engine's last byte to completed, p50", &service.after, 0.5),
        ("engine's last byte to completed, p99", &service.after, 0.99),
        ("  last byte to all bytes read without it, p50", &direct.after, 0.5),
        ("  last byte to all bytes read without it, p99", &direct.after, 0.99),
    ] {
        report.fact(name, millis(side, quantile), "ms", None);
    }
    let ratio = millis(&service.all, 0.5) / millis(&direct.all, 0.5);
    report.fact("one picture, ratio to the engine alone, p50", ratio, "times", None);
    let (mut ours, mut bare) = runtime.block_on(slow_servers(directory, options))?;
    let (ours, bare) = (median(&mut ours), median(&mut bare));
    report.fact("64 tasks on 8 servers of 2 s", ours, "s", None);
    report.fact("  the same calls without the service", bare, "s", None);
    report.fact("  ratio", ours / bare, "times", Some(Aim::AtMost(1.1)));
    Ok(())
}

/// One picture after another, from an engine that answers at once, in turns with and without the service.
async fn overhead(directory: &TempDir, options: &Options) -> Outcome<(Sides, Sides)> {
    let server = [Server::start(Duration::ZERO).await?];
    let beside = Beside::start(directory, "beside", &server).await?;
    let [server] = &server;
    let authorization = format!("Bearer {}", beside.caller.key);
    let mut api = Client::connect(&beside.service.address.to_string()).await?;
    let host = server.url.trim_start_matches("http://").trim_end_matches("/v1");
    let mut engine = Client::connect(host).await?;
    let (mut service, mut direct) = (Sides::new(), Sides::new());
    for turn in 0..options.pictures {
        if turn % 50 == 0 {
            eprintln!("beside an engine, picture {turn} of {}", options.pictures);
        }
        let asked = now();
        let task = api.post(GENERATE, &[("authorization", &authorization), ("prefer", "wait=60")]).await?;
        service.add(server, asked, now())?;
        let task: serde_json::Value = serde_json::from_slice(&task)?;
        if task["data"]["status"] != "completed" {
            return Err(format!("a task was not completed: {task}").into());
        }
        let asked = now();
        engine.post("/v1/images/generations", &[]).await?;
        direct.add(server, asked, now())?;
    }
    Ok((service, direct))
}

/// Seconds for all tasks on slow servers, with and without the service.
async fn slow_servers(directory: &TempDir, options: &Options) -> Outcome<(Vec<f64>, Vec<f64>)> {
    let servers = try_join_all((0..SLOW_SERVERS).map(|_| Server::start(SLOW))).await?;
    let beside = Beside::start(directory, "slow", &servers).await?;
    let store = &*beside.service.shared.store;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    // Each round takes as long as the servers do.
    for round in 1..=options.rounds.min(2) {
        eprintln!("slow servers, round {round}");
        let begun = now();
        fixture::queue(store, std::slice::from_ref(&beside.caller), SLOW_TASKS).await?;
        beside.service.shared.queued.send_replace(());
        loop {
            let depth = store.queue_depth().await?;
            if depth.waiting + depth.leased == 0 {
                break;
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
        ours.push(begun.elapsed().as_secs_f64());
        let begun = now();
        try_join_all(servers.iter().map(call_directly)).await?;
        bare.push(begun.elapsed().as_secs_f64());
    }
    let completed = store.completed_tasks(None, u32::MAX).await?.len();
    if completed == SLOW_TASKS * ours.len() { Ok((ours, bare)) } else { Err("not all tasks were completed".into()) }
}

/// One server's share of the calls, one after the other.
async fn call_directly(server: &Server) -> Outcome<()> {
    let host = server.url.trim_start_matches("http://").trim_end_matches("/v1");
    let mut client = Client::connect(host).await?;
    for _ in 0..SLOW_TASKS / SLOW_SERVERS {
        client.post("/v1/images/generations", &[]).await?;
    }
    Ok(())
}
