//! A whole service in this process: real HTTP, a clock that tests move by hand, a worker that tests step.

use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::Full;
use hyper::Request;
use tempfile::TempDir;
use tintype::files::{Files, WRITE_LIMIT};
use tintype::http::{ApiSettings, ApiState, Readiness, router};
use tintype::policy::Policy;
use tintype::server::{self, Certificate, ListenerSettings};
use tintype::service::ServiceContext;
use tintype::service::sweeper::Sweeper;
use tintype::service::webhooks::Deliverer;
use tintype::worker::Worker;
use tintype::worker::render::{EngineRenderer, RenderControl, Renderer};
use tintype_config::{ConnectionLimits, ServerSettings};
use tintype_domain::key::KeySecret;
use tintype_domain::model::Id;
use tintype_engine::{Brief, Engine, EngineError, EngineInfo, Picture, Progress};
use tintype_engines::{EngineChoice, EngineContext};
use tintype_outbound::receivers::{ReceiverOptions, Receivers};
use tintype_store::{NewKey, Reclaim, Store};
use tintype_system::clock::Clock;
use tintype_system::data_dir::backup_lock;
use tintype_system::fault::Faults;
use tintype_system::sandbox::Decoder;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::binary::TINTYPE;
pub use super::caller::Caller;
use super::http::{Answer, exchange};
use super::redis::{self, RedisServer};
use super::s3::S3Server;
use super::visitor::Visitor;
use super::wait::until;
pub use tintype_rigs::database::{Backend, NOON};

/// The store of result files. Both kinds keep them in the directory `files` as `DAY/NAME`.
#[derive(Debug, Clone, Copy)]
enum FilesKind {
    Disk,
    Bucket,
}

impl FilesKind {
    /// The disk, unless `TEST_FILES=s3`.
    #[expect(clippy::disallowed_methods, reason = "how the tests run is no setting")]
    fn chosen() -> Self {
        match std::env::var("TEST_FILES").as_deref() {
            Err(_) | Ok("disk") => Self::Disk,
            Ok("s3") => Self::Bucket,
            Ok(other) => panic!("TEST_FILES={other} is neither disk nor s3"),
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Disk => &[],
            Self::Bucket => &["--files", "s3://files"],
        }
    }

    async fn open(self, directory: &TempDir) -> (Files, Option<S3Server>) {
        match self {
            Self::Disk => {
                let files = directory.path().join("files");
                std::fs::create_dir(&files).expect("a directory for files");
                (Files::on_disk(&files).expect("a store of files"), None)
            }
            Self::Bucket => {
                let s3 = S3Server::start(directory.path(), "files").await;
                (Files::in_bucket(&s3.settings("s3://files")).expect("a store of files"), Some(s3))
            }
        }
    }
}

pub struct Process {
    pub settings: ServerSettings,
    pub shared: Arc<ServiceContext>,
    pub api: Arc<ApiState>,
    pub policy: Arc<Policy>,
    pub worker: Arc<Worker>,
    pub sweeper: Arc<Sweeper>,
    pub deliverer: Arc<Deliverer>,
}

impl Process {
    async fn build(settings: ServerSettings, api: ApiSettings, shared: Arc<ServiceContext>) -> Self {
        let engine = chosen_engine(&settings);
        shared.presets.set_engines(std::iter::once((engine.info.name.clone(), &engine.info)), false);
        let api = ApiState::open(api, shared.clone(), engine.info.typical_duration).await.expect("an API");
        let policy = Policy::open(settings.policy.policy.as_deref()).await.expect("a policy");
        let renderer = renderer(&settings, &shared, &policy, engine.info.clone(), build(&engine, &settings));
        let worker = worker(&settings, &shared, &policy, "sketch", Arc::new(renderer));
        let sweeper = Sweeper::new(shared.clone(), &settings);
        let receivers = Receivers::new(ReceiverOptions::reaching(&settings.webhooks.webhook_network));
        let deliverer = Deliverer::new(shared.clone(), receivers.expect("clients"));
        Self { settings, shared, api, policy, worker, sweeper, deliverer }
    }

    /// A process with the same settings, but a clock, a store and files of its own, that listens nowhere.
    pub async fn beside(&self, clock: Clock, store: Arc<Store>, files: Files) -> Self {
        let shared = ServiceContext::new(&self.settings, clock, store, files, Vec::new());
        Self::build(self.settings.clone(), self.api.settings.clone(), shared).await
    }

    pub fn renderer(&self) -> EngineRenderer {
        let engine = chosen_engine(&self.settings);
        self.renderer_with(engine.info.clone(), build(&engine, &self.settings))
    }

    /// A renderer of this process with another engine.
    pub fn renderer_with(&self, info: EngineInfo, engine: Arc<dyn Engine>) -> EngineRenderer {
        renderer(&self.settings, &self.shared, &self.policy, info, engine)
    }

    pub fn worker_with(&self, renderer: Arc<dyn Renderer>) -> Arc<Worker> {
        self.worker_named("sketch", renderer)
    }

    /// A second worker of this process, for an engine of this name.
    pub fn worker_named(&self, engine: &str, renderer: Arc<dyn Renderer>) -> Arc<Worker> {
        worker(&self.settings, &self.shared, &self.policy, engine, renderer)
    }
}

fn chosen_engine(settings: &ServerSettings) -> EngineChoice {
    tintype_engines::choose(&settings.worker.engine, Path::new(".")).expect("an engine")
}

fn build(choice: &EngineChoice, settings: &ServerSettings) -> Arc<dyn Engine> {
    let decoder = Decoder::new(&settings.worker.test_picture_decoder);
    let engine = choice.build(EngineContext { decoder, ..EngineContext::default() }).expect("an engine");
    if choice.info.name == "sketch" { Arc::new(Small(engine)) } else { engine }
}

/// The sketch engine at an eighth of the size. The worker enlarges what it draws, which takes a tenth of the time.
#[derive(Debug)]
struct Small(Arc<dyn Engine>);

#[async_trait]
impl Engine for Small {
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError> {
        let small = Brief { width: brief.width / 8, height: brief.height / 8, ..brief };
        self.0.render(small, progress, cancel).await
    }
}

fn slots(settings: &ServerSettings) -> usize {
    let engine = settings.worker.engine.engines().expect("an engine").remove(0);
    settings.worker.render_slots(&engine, chosen_engine(settings).info.slots)
}

fn worker(
    settings: &ServerSettings,
    shared: &Arc<ServiceContext>,
    policy: &Arc<Policy>,
    engine: &str,
    renderer: Arc<dyn Renderer>,
) -> Arc<Worker> {
    Worker::new(settings.worker.clone(), engine, slots(settings), shared.clone(), policy.clone(), renderer)
}

fn renderer(
    settings: &ServerSettings,
    shared: &Arc<ServiceContext>,
    policy: &Arc<Policy>,
    info: EngineInfo,
    engine: Arc<dyn Engine>,
) -> EngineRenderer {
    EngineRenderer::new(&settings.worker, shared.clone(), policy.clone(), info, engine).expect("a renderer")
}

/// A running service. Clones are the same one, which stops with the last of them.
#[derive(Clone)]
pub struct Service(Arc<Running>);

pub struct Running {
    process: Process,
    pub clock: Clock,
    pub address: SocketAddr,
    pub readiness: Readiness,
    pub directory: TempDir,
    pub faults: Faults,
    /// The server of its bucket, if its files are in one.
    pub s3: Option<S3Server>,
    /// The Redis that counts its rate limits, if one does.
    _redis: Option<RedisServer>,
    _stop: DropGuard,
}

impl Deref for Service {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.0
    }
}

impl Deref for Running {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl Service {
    /// Starts with default settings.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts with flags of `tintype serve`.
    pub async fn start_with(flags: &[&str]) -> Self {
        Self::start_changed(flags, |_| {}).await
    }

    /// Makes callers, of which there are none yet, connect to another address.
    pub fn reach_at(&mut self, address: SocketAddr) {
        Arc::get_mut(&mut self.0).expect("no clones").address = address;
    }

    /// Starts with flags of `tintype serve`, and a [`Service::caller`] `ada` with these credits.
    pub async fn with_caller(flags: &[&str], credits: i64) -> (Self, Caller) {
        let (service, [caller]) = Self::with_callers(flags, ["ada"], credits).await;
        (service, caller)
    }

    /// Starts with flags of `tintype serve`, and a [`Service::caller`] with each of these names and these credits.
    pub async fn with_callers<const N: usize>(flags: &[&str], names: [&str; N], credits: i64) -> (Self, [Caller; N]) {
        let service = Self::start_with(flags).await;
        let callers = stream::iter(names).then(|name| service.caller(name, credits));
        let callers = callers.collect::<Vec<_>>().await.try_into();
        (service, callers.ok().expect("as many"))
    }

    /// Starts with flags of `tintype serve`, and a [`Service::visitor`] `ada` with these credits.
    pub async fn with_visitor(flags: &[&str], credits: i64) -> (Self, Visitor) {
        let (service, [visitor]) = Self::with_visitors(flags, ["ada"], credits).await;
        (service, visitor)
    }

    /// Starts with flags of `tintype serve`, and a [`Service::visitor`] with each of these names and these credits.
    pub async fn with_visitors<const N: usize>(flags: &[&str], names: [&str; N], credits: i64) -> (Self, [Visitor; N]) {
        let service = Self::start_with(flags).await;
        let visitors = stream::iter(names).then(|name| service.visitor(name, credits));
        let visitors = visitors.collect::<Vec<_>>().await.try_into();
        (service, visitors.ok().expect("as many"))
    }

    /// Starts with result files in a directory, even if `TEST_FILES` names another store.
    pub async fn start_on_disk(flags: &[&str]) -> Self {
        Self::start_with_files(FilesKind::Disk, flags, |_| {}).await
    }

    /// Starts with result files in a bucket.
    pub async fn start_on_s3(flags: &[&str]) -> Self {
        Self::start_with_files(FilesKind::Bucket, flags, |_| {}).await
    }

    /// Starts with flags of `tintype serve` and other limits on connections.
    pub async fn start_changed(flags: &[&str], change: impl FnOnce(&mut ConnectionLimits)) -> Self {
        Self::start_with_files(FilesKind::chosen(), flags, change).await
    }

    /// Starts with its database in SQLite, even if `TEST_STORE` names another driver.
    pub async fn start_on_sqlite(flags: &[&str]) -> Self {
        Self::start_on(Backend::Sqlite, FilesKind::chosen(), flags, |_| {}).await
    }

    pub async fn start_on_postgres(flags: &[&str]) -> Self {
        Self::start_on(Backend::Postgres, FilesKind::chosen(), flags, |_| {}).await
    }

    async fn start_with_files(kind: FilesKind, flags: &[&str], change: impl FnOnce(&mut ConnectionLimits)) -> Self {
        Self::start_on(Backend::of_services(), kind, flags, change).await
    }

    async fn start_on(
        backend: Backend,
        kind: FilesKind,
        flags: &[&str],
        change: impl FnOnce(&mut ConnectionLimits),
    ) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let clock = Clock::manual(NOON);
        let redis = RedisServer::of_services();
        let url = redis.as_ref().map(RedisServer::url);
        let mut all = url.as_deref().map_or_else(Vec::new, |url| redis::counting(url, &[]));
        all.extend(kind.flags().iter().chain(flags));
        let settings = settings(&all);
        let store = backend.open_with_faults(&directory, &clock, settings.test_fault.clone());
        let (files, s3) = kind.open(&directory).await;
        let files = files.with_faults(settings.test_fault.clone()).guarded_by(backup_lock(directory.path()));
        Self::serve(settings, change, clock, store, files, directory, (s3, redis)).await
    }

    /// Another process of this service with its own flags, and the same database, files and clock.
    pub async fn join(&self, flags: &[&str]) -> Self {
        self.join_with_write_limit(flags, WRITE_LIMIT).await
    }

    /// Another process as [`Service::join`] makes it, with another time limit for a write to a bucket.
    pub async fn join_with_write_limit(&self, flags: &[&str], limit: Duration) -> Self {
        self.join_on(settings(flags), &self.clock, self.open_files().with_write_limit(limit)).await
    }

    /// Another process of this service on a machine whose clock is its own. The database keeps the service's time.
    pub async fn join_with_clock(&self, clock: &Clock) -> Self {
        self.join_on(settings(&[]), clock, self.open_files()).await
    }

    /// Another process of this service on PostgreSQL, which hears of this one through the database alone.
    pub async fn join_apart(&self) -> Self {
        let store = Backend::Postgres.open_with_faults(&self.directory, &self.clock, Faults::default());
        let directory = TempDir::new().expect("a temporary directory");
        Self::serve(settings(&[]), |_| {}, self.clock.clone(), store, self.open_files(), directory, (None, None)).await
    }

    async fn join_on(&self, settings: ServerSettings, clock: &Clock, files: Files) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let store = self.shared.store.clone();
        Self::serve(settings, |_| {}, clock.clone(), store, files, directory, (None, None)).await
    }

    /// The store of its files, opened once more.
    fn open_files(&self) -> Files {
        let files = match &self.s3 {
            Some(s3) => Files::in_bucket(&s3.settings("s3://files")),
            None => Files::on_disk(&self.directory.path().join("files")),
        };
        files.expect("a store of files")
    }

    async fn serve(
        settings: ServerSettings,
        change: impl FnOnce(&mut ConnectionLimits),
        clock: Clock,
        store: Arc<Store>,
        files: Files,
        directory: TempDir,
        (s3, _redis): (Option<S3Server>, Option<RedisServer>),
    ) -> Self {
        let faults = settings.test_fault.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let mut api = ApiSettings::new(&settings, &format!("http://{address}")).expect("valid settings");
        change(&mut api.connections);
        let directories = vec![directory.path().to_owned()];
        let shared = ServiceContext::new(&settings, clock.clone(), store, files, directories);
        let process = Process::build(settings, api, shared).await;
        let readiness = Readiness::default();
        let stop = CancellationToken::new();
        let certificate = match (&process.settings.tls_cert, &process.settings.tls_key) {
            (Some(cert), Some(key)) => Some(Certificate::read(cert, key).expect("a certificate")),
            _ => None,
        };
        let ApiSettings { connections, trusted_proxies, balancers, .. } = process.api.settings.clone();
        let front = ListenerSettings { certificate, limits: connections, trusted_proxies, balancers };
        let router = router(process.api.clone(), readiness.clone());
        tokio::spawn(server::serve(vec![listener.into()], router, front, stop.clone()));
        let _stop = stop.drop_guard();
        Self(Arc::new(Running { process, clock, address, readiness, directory, faults, s3, _redis, _stop }))
    }

    /// A new account with credits and a key.
    pub async fn caller(&self, name: &str, credits: i64) -> Caller {
        let Some(account) = self.shared.store.create_account(name, credits).await.expect("a store") else {
            panic!("the name {name} is taken")
        };
        let (key_id, key) = self.new_key(account.id, |_| {}).await;
        Caller { service: self.clone(), account, key_id, key }
    }

    pub async fn new_key(&self, account_id: Id, change: impl FnOnce(&mut NewKey)) -> (Id, String) {
        let secret = KeySecret::random();
        let mut new = NewKey::new(&secret);
        change(&mut new);
        let key = self.shared.store.create_key(account_id, new).await.expect("a store").expect("the account exists");
        (key.id, secret.reveal().to_owned())
    }

    /// Steps the worker until the queue is empty, moving the clock over retry delays.
    pub async fn work(&self) {
        for _ in 0..8 {
            while self.worker.step().await.expect("a store") > 0 {}
            self.clock.advance(Duration::from_secs(1));
        }
    }

    /// Completes when `count` callers wait for their tasks.
    pub async fn waiting(&self, count: usize) {
        until(async || self.shared.endings.waiters.count() == count).await;
    }

    /// The answer to a call that waits until the worker has done its task.
    pub async fn worked(&self, call: impl Future<Output = Answer>) -> Answer {
        let works = Cell::new(false);
        let work = async {
            self.waiting(1).await;
            works.set(true);
            self.work().await;
        };
        let answered = async {
            let answer = call.await;
            assert!(works.get(), "answered before the task ended: {}", answer.status);
            answer
        };
        tokio::join!(answered, work).0
    }

    /// Steps the worker for the calls of a program until it ends.
    pub async fn work_for(&self, program: &JoinHandle<String>) {
        until(async || {
            let has_ended = program.is_finished();
            if !has_ended && self.shared.endings.waiters.count() > 0 {
                self.work().await;
            }
            has_ended
        })
        .await;
    }

    /// [`Service::waiting`] for the calls of a program, which has to run until then.
    pub async fn waiting_for(&self, program: &JoinHandle<String>, count: usize) {
        until(async || {
            let are_there = self.shared.endings.waiters.count() == count;
            assert!(are_there || !program.is_finished(), "the program ended without waiting");
            are_there
        })
        .await;
    }

    /// Delivers webhooks until none is due.
    pub async fn deliver(&self) {
        while self.deliverer.step().await.expect("a store") > 0 {}
    }

    /// Asserts that no balance and no count differs from its rows.
    pub async fn assert_sound(&self) {
        assert_eq!(self.shared.store.audit().await.expect("a store").drifts, []);
    }

    pub async fn sweep(&self) {
        self.sweeper.sweep(Reclaim::Expired).await;
    }

    /// Sends one request on a connection of its own.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let stream = TcpStream::connect(self.address).await.expect("the service listens");
        exchange(stream, request).await
    }

    /// Sends one request made of its parts.
    pub async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header("host", self.address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::new(body.into())).expect("a valid request")).await
    }

    pub async fn fetch(&self, url: &str, headers: &[(&str, &str)]) -> Answer {
        let base = format!("http://{}", self.address);
        let path = url.strip_prefix(&base).unwrap_or_else(|| panic!("{url} does not begin with {base}"));
        self.call("GET", path, headers, "").await
    }
}

/// Parses flags of `tintype serve`.
fn settings(flags: &[&str]) -> ServerSettings {
    let mut settings = ServerSettings::from_flags(flags.iter().copied()).expect("valid flags");
    if !flags.contains(&"--test-picture-decoder") {
        settings.worker.test_picture_decoder = TINTYPE.into();
    }
    settings
}

/// Names of all result files on the disk.
pub fn files(service: &Service) -> Vec<String> {
    let mut names = Vec::new();
    let root = service.directory.path().join("files");
    for day in std::fs::read_dir(&root).expect("a directory") {
        let day = day.expect("an entry").path();
        for file in std::fs::read_dir(&day).expect("a directory") {
            let file = file.expect("an entry").path();
            names.push(file.strip_prefix(&root).expect("inside").display().to_string());
        }
    }
    names.sort();
    names
}

/// Lets so much time of the runtime pass, and then whatever follows from it happen.
pub async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Controls of a render that has a minute and is never cancelled.
pub fn control() -> RenderControl {
    RenderControl {
        time_limit: Duration::from_secs(60),
        progress: Progress::default(),
        cancel: CancellationToken::new(),
    }
}
