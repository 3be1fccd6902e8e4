//! `tintype serve`, and its parts `api` and `worker`.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures::future::BoxFuture;
use rustix::process::{Resource, getrlimit};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::banner::FirstKey;
use self::rendering::{Chosen, Rendering};
use self::started::{Ready, shows_secrets};
use super::logging::{LogFormat, Logging};
use super::signals::Signals;
use super::systemd;
use super::{Failure, Outcome, open_files, operator};
use crate::http::{ApiSettings, ApiState, Readiness, metrics_router, router};
use crate::policy::Policy;
use crate::server::{self, Certificate, Listener, ListenerSettings, Probe};
use crate::service::ServiceContext;
use crate::service::file_store;
use crate::service::sweeper::Sweeper;
use crate::service::webhooks::Deliverer;
use tintype_config::{
    DataSettings, DatabaseUrl, LOCK_PATIENCE, ListenAddress, PublishedSettings, ServerSettings, SettingsInForce,
};
use tintype_outbound::receivers::{ReceiverOptions, Receivers};
use tintype_store::postgres;
use tintype_store::sqlite;
use tintype_store::{Reclaim, Store, StoreError};
use tintype_system::clock::Clock;
use tintype_system::data_dir::{self, DataLock};
use tintype_system::locked::Locked as _;

mod banner;
mod rendering;
mod started;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Everything,
    Api,
    Worker,
}

/// The parts of a server process. Each role needs only some of them.
struct Parts {
    shared: Arc<ServiceContext>,
    sweeper: Arc<Sweeper>,
    api: Option<Arc<ApiState>>,
    /// In a process with the API.
    deliverer: Option<Arc<Deliverer>>,
    rendering: Option<Rendering>,
}

struct Listeners {
    /// Sockets of the API; empty in a process without it.
    api: Vec<Listener>,
    /// Sockets of the metrics; empty without --metrics-listen.
    metrics: Vec<Listener>,
    /// The socket for health checks of a worker; a process with only the API has none.
    probe: Option<Probe>,
    certificate: Option<Arc<Certificate>>,
}

/// Rejects one address that is given twice. The system would call it taken, as if by another program.
fn refuse_twice(server: &ServerSettings, role: Role) -> Result<(), Failure> {
    let api = server.listen.iter().filter(|_| role != Role::Worker).map(|address| (address, "--listen"));
    let metrics = server.metrics_listen.iter().map(|address| (address, "--metrics-listen"));
    let mut seen = Vec::new();
    for (address, flag) in api.chain(metrics) {
        if address.has_known_port() && seen.contains(&address) {
            return Err(format!("{address} is given twice: remove one of them, or choose another with {flag}").into());
        }
        seen.push(address);
    }
    Ok(())
}

impl Listeners {
    async fn bind(server: &ServerSettings, data: &DataSettings, role: Role, clock: &Clock) -> Result<Self, Failure> {
        let certificate = match (&server.tls_cert, &server.tls_key) {
            (Some(cert), Some(key)) => Some(Certificate::read(cert, key)?),
            _ if server.serves_https() => Some(Certificate::order(&server.acme, &data.data, clock.clone())?),
            _ => None,
        };
        refuse_twice(server, role)?;
        let (mut api, mut metrics) = (Vec::new(), Vec::new());
        if role != Role::Worker {
            for address in &server.listen {
                api.extend(Listener::bind(address, "--listen").await?);
            }
        }
        if let Some(address) = &server.metrics_listen {
            metrics = Listener::bind(address, "--metrics-listen").await?;
        }
        let probe = (role != Role::Api).then(|| Probe::bind(&data.data)).transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "health probe unavailable for this worker; rendering is not affected");
            None
        });
        Ok(Self { api, metrics, probe, certificate })
    }

    fn addresses(&self) -> std::io::Result<Vec<SocketAddr>> {
        self.api.iter().filter_map(|listener| listener.address().transpose()).collect()
    }

    /// Where the API is reached on this machine: URLs, and the paths of sockets.
    fn urls(&self) -> std::io::Result<Vec<String>> {
        let tls = self.certificate.is_some();
        let url = |listener: &Listener| match (listener.address()?, listener.path()) {
            (None, Some(path)) => Ok(format!("unix:{}", path.display())),
            (address, _) => Ok(address.map_or_else(String::new, |address| listening_url(address, tls))),
        };
        self.api.iter().map(url).collect()
    }

    /// Shows this server's settings to the commands beside it, with the ports that the system chose for port 0.
    fn show(&self, in_force: &SettingsInForce, server: &ServerSettings) -> Option<PublishedSettings> {
        let place = |listener: &Listener| match (listener.address(), listener.path()) {
            (Ok(Some(address)), _) => Some(address.to_string()),
            (_, path) => path.map(|path| format!("unix:{}", path.display())),
        };
        let shown = match server.listen.iter().all(ListenAddress::has_known_port) || self.api.is_empty() {
            true => in_force.show(),
            false => in_force.listening_on(self.api.iter().filter_map(place).collect()).show(),
        };
        let failed = |error| tracing::warn!(%error, "commands beside this server will read its config file again");
        shown.map_err(failed).ok()
    }

    /// The URL of the API, for result URLs and commands to paste; `None` in a process without the API.
    fn url(&self, server: &ServerSettings) -> Result<Option<String>, Failure> {
        if self.api.is_empty() {
            return Ok(None);
        }
        // A server with a certificate from ACME is reached by the name in the certificate, on port 443.
        let named = server.acme.acme_domain.first().map(|name| format!("https://{name}"));
        let listening = self.addresses()?.first().map(|address| listening_url(*address, self.certificate.is_some()));
        server.public_url.clone().or(named).or(listening).map(Some).ok_or_else(|| {
            Failure("--listen unix:PATH alone needs --public-url, which every result URL starts with".into())
        })
    }
}

/// Threads and processes that a server needs in addition to one thread per processor: for the command, the log, the
/// output, the database, a blocking call, and a decoder.
const THREADS: usize = 6;

/// Bytes of addresses below which a server can run out of them: each thread reserves some, and the allocator does.
const FEW_ADDRESSES: u64 = 4 << 30;

/// Refuses a machine on which parts of a server would panic, or fail with an error that names no cause.
pub(super) fn check_machine() -> Result<(), Failure> {
    if Clock::system().since_epoch().is_zero() {
        return Err(Failure("the system clock shows a time before 1970; set it".into()));
    }
    // An allocation that fails ends the process, at best with a line that names no limit.
    if let Some(most) = getrlimit(Resource::As).current.filter(|most| *most < FEW_ADDRESSES) {
        tracing::warn!(
            "a limit of {} MiB on memory addresses can end this server without an error message; lift it (ulimit -v, LimitAS= of \
             systemd) and limit the memory of its container or unit instead",
            most >> 20
        );
    }
    let count = thread::available_parallelism().map_or(1, NonZero::get) + THREADS;
    let gate = Mutex::new(());
    let started = thread::scope(|scope| {
        // All of them run at the same time.
        let closed = gate.locked();
        let start = |_| thread::Builder::new().spawn_scoped(scope, || drop(gate.locked()));
        let started: std::io::Result<Vec<_>> = (0..count).map(start).collect();
        drop(closed);
        // Joined, because the system counts a thread until it has ended.
        started.map(|threads| threads.into_iter().for_each(|thread| drop(thread.join())))
    });
    started.map_err(|error| {
        Failure(format!(
            "cannot start the {count} threads that a server needs: {error}; raise the limit on processes (ulimit -u, \
             TasksMax= and LimitNPROC= of systemd, --pids-limit of a container)"
        ))
    })
}

pub(super) async fn run(
    server: ServerSettings,
    data: &DataSettings,
    role: Role,
    in_force: &SettingsInForce,
    logging: Logging,
) -> Outcome {
    let mut signals = Signals::catch()?;
    // A start may have to wait for a database or a bucket. Its effects until then stay valid, as after a crash.
    let Started { parts, listeners, lock: _lock, shown: _shown } = tokio::select! {
        started = start(&server, data, role, in_force, logging.format) => started?,
        signal = signals.stop() => {
            tracing::info!(signal, "stopped before the server was ready");
            return Ok(ExitCode::SUCCESS);
        }
    };
    work(parts, listeners, server.shutdown_delay, &mut signals, logging).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// A server that is ready, and its hold on the data directory.
struct Started {
    parts: Parts,
    listeners: Listeners,
    lock: Option<DataLock>,
    shown: Option<PublishedSettings>,
}

fn lock(data: &Path, database: &Path) -> Result<DataLock, String> {
    if let Some(kind) = data_dir::network_file_system(data_dir::directory_of(database)) {
        tracing::warn!(
            kind,
            database = %database.display(),
            "other machines may use the file system of the database: run the server and all commands on one machine, or use PostgreSQL"
        );
    }
    data_dir::lock(data, database, LOCK_PATIENCE)
}

async fn start(
    server: &ServerSettings,
    data: &DataSettings,
    role: Role,
    in_force: &SettingsInForce,
    format: LogFormat,
) -> Result<Started, Failure> {
    let database = data.database()?;
    if role != Role::Everything && matches!(database, DatabaseUrl::Sqlite(_)) {
        // SQLite serves one process, and an API without a worker would charge for tasks that no worker claims.
        return Err(Failure(
            "SQLite serves one process only: run `tintype serve`, which runs API and worker in one process, or use PostgreSQL".into(),
        ));
    }
    server::raise_file_limit();
    if role != Role::Worker {
        server::check_file_limit();
    }
    data_dir::create(&data.data)?;
    data_dir::keep_private(&data.data, database.path())?;
    let lock = match &database {
        DatabaseUrl::Sqlite(path) => Some(lock(&data.data, path)?),
        DatabaseUrl::Postgres(_) => None,
    };
    let clock = Clock::system();
    let listeners = Listeners::bind(server, data, role, &clock).await?;
    let shown = listeners.show(in_force, server);
    if !listeners.api.is_empty() {
        warn_about_callers(server, &listeners.addresses()?, listeners.certificate.is_some());
    }
    if server.worker.test_reference_host.is_some() {
        tracing::warn!(
            "--test-reference-host makes a private host reachable for reference images: never use it in production"
        );
    }
    let url = listeners.url(server)?;
    let parts = open_parts(server, data, &database, clock, role, url.as_deref()).await?;
    // Before the first sweep, which fails the tasks that no known engine can do.
    let mut workers: Vec<_> = parts.rendering.iter().flat_map(Rendering::workers).collect();
    // Another process may sweep meanwhile.
    workers.sort_by_key(|worker| Reverse(worker.max_references()));
    for worker in workers {
        worker.register().await?;
    }
    if let DatabaseUrl::Sqlite(_) = &database {
        // This process holds the lock on the database, so every process that held a lease has ended.
        parts.sweeper.sweep(Reclaim::All).await;
    }
    let store = parts.shared.store.acting(operator(data));
    let key = match &parts.api {
        Some(_) => FirstKey::create(&store, &data.data, shows_secrets(format)).await?,
        None => None,
    };
    let ready = Ready { parts: &parts, server, data, urls: listeners.urls()? };
    ready.report(format, store, url.as_deref(), key).await?;
    Ok(Started { parts, listeners, lock, shown })
}

/// Builds the parts that the role needs, for an API that listens at `url`.
async fn open_parts(
    server: &ServerSettings,
    data: &DataSettings,
    database: &DatabaseUrl,
    clock: Clock,
    role: Role,
    url: Option<&str>,
) -> Result<Parts, Failure> {
    let store = open_store(database, data, &clock, server).await?;
    let files = open_files(data, server.files.files.as_deref()).await?;
    let files = files.guarded_by(data_dir::backup_lock(&data.data)).with_faults(server.test_fault.clone());
    file_store::open(&store, &files).await?;
    if !store.is_shared() {
        // No other process answers calls.
        store.release_calls().await?;
    }
    let mut directories: Vec<_> = files.directory().map(Path::to_owned).into_iter().collect();
    if let DatabaseUrl::Sqlite(path) = database {
        directories.push(data_dir::directory_of(path).to_owned());
    }
    // An API needs no file of an engine, such as a workflow.
    let engines = if role == Role::Api { Vec::new() } else { rendering::choose_at_start(&server.worker, &data.data)? };
    let shared = ServiceContext::new(server, clock, store, files, directories);
    let are_all = role == Role::Everything && !shared.store.is_shared();
    rendering::announce(&shared, &engines, are_all);
    shared.presets.check()?;
    let api = match url {
        Some(url) => {
            check_engines(server, &shared, &engines).await?;
            let settings = ApiSettings::new(server, url)?;
            if settings.redis.is_none() && shared.store.is_shared() {
                tracing::info!(
                    "this process counts rate limits on its own; to share counts between processes, give each of them --redis"
                );
            }
            Some(ApiState::open(settings, shared.clone(), rendering::quickest(server, &engines)?).await?)
        }
        None => None,
    };
    let rendering = match role {
        Role::Api => None,
        Role::Everything | Role::Worker => {
            let policy = Policy::open(server.policy.policy.as_deref()).await?;
            let rendering = Rendering::open(&server.worker, &data.data, &shared, policy, engines, are_all)?;
            // A worker gets the settings of presets with its tasks.
            if role == Role::Everything {
                rendering.check_presets().await?;
                // From now on the loop of the rendering checks them.
                shared.presets.check_loras_later();
            }
            Some(rendering)
        }
    };
    // Workers may run where they cannot reach receivers, so the processes with the API send webhooks.
    let deliverer = match &api {
        Some(_) => {
            let receivers = Receivers::new(ReceiverOptions::reaching(&server.webhooks.webhook_network))?;
            Some(Deliverer::new(shared.clone(), receivers))
        }
        None => None,
    };
    Ok(Parts { sweeper: Sweeper::new(shared.clone(), server), shared, api, deliverer, rendering })
}

/// Rejects a preset or a name of a model with an engine that this installation cannot have. On a shared database another
/// process may have it.
async fn check_engines(server: &ServerSettings, shared: &ServiceContext, engines: &[Chosen]) -> Result<(), Failure> {
    let store = &*shared.store;
    let mut known: Vec<String> = engines.iter().map(|chosen| chosen.engine.name.clone()).collect();
    if store.is_shared() {
        known.extend(store.engines().await?.into_iter().map(|engine| engine.name));
    }
    let aliases = server.models.aliases()?.into_iter();
    let aliases = aliases.map(|(name, engine)| (format!("--model-alias {name}={engine}"), engine));
    let presets = server
        .presets
        .presets()
        .into_iter()
        .filter_map(|preset| Some((format!("[preset.{}]", preset.name), preset.engine?)));
    for (setting, engine) in aliases.chain(presets).filter(|(_, engine)| !known.contains(engine)) {
        if !store.is_shared() {
            let known = known.join(", ");
            return Err(Failure(format!(
                "{setting}: there is no engine {engine:?}; the engines of this server are {known}"
            )));
        }
        tracing::warn!(
            setting,
            engine,
            "no worker with the engine of this setting has reported within a day: its tasks fail until one does"
        );
    }
    Ok(())
}

/// Does this part of the server's work until `stop`.
fn until<F: Future>(stop: &CancellationToken, part: F) -> impl Future<Output = ()> + use<F> {
    let stop = stop.clone();
    async move { _ = stop.run_until_cancelled(part).await }
}

/// Runs the parts until a signal or until one of them ends, then stops the worker at once and the listeners after `delay`.
async fn work(
    parts: Parts,
    listeners: Listeners,
    delay: Duration,
    signals: &mut Signals,
    logging: Logging,
) -> Result<(), Failure> {
    let alive = tokio::spawn(systemd::keep_alive(listeners.addresses()?.first().copied()));
    let (stop, close, readiness) = (CancellationToken::new(), CancellationToken::new(), Readiness::default());
    let Parts { shared, sweeper, api, deliverer, rendering } = parts;
    let delay = if api.is_some() { delay } else { Duration::ZERO };
    let mut running = JoinSet::new();
    // Boxed, so that Tokio's code for a task is compiled once and not for each part.
    let mut run = |part: BoxFuture<'static, ()>| drop(running.spawn(part));
    run(Box::pin(until(&stop, shared.presets.clone().watch())));
    if let Some(api) = &api {
        let ApiSettings { connections: limits, trusted_proxies, balancers, .. } = api.settings.clone();
        let listener = ListenerSettings { certificate: listeners.certificate, limits, trusted_proxies, balancers };
        let router = router(api.clone(), readiness.clone());
        run(Box::pin(server::serve(listeners.api, router, listener, close.clone())));
        run(Box::pin(api.keys.clone().run(stop.clone())));
        run(Box::pin(api.studio.clone().run(stop.clone())));
        run(Box::pin(api.previews.clone().run(stop.clone())));
        let shared = api.shared.clone();
        run(Box::pin(until(&stop, async move { shared.endings.receive().await })));
    }
    if let Some(probe) = listeners.probe {
        run(Box::pin(probe.run(shared.clone(), stop.clone())));
    }
    if !listeners.metrics.is_empty() {
        let (router, settings) = (metrics_router(shared), ListenerSettings::default());
        run(Box::pin(server::serve(listeners.metrics, router, settings, close.clone())));
    }
    if let Some(rendering) = rendering {
        run(Box::pin(until(&stop, rendering.policy.clone().watch())));
        run(Box::pin(rendering.run(stop.clone())));
    }
    if let Some(deliverer) = deliverer {
        run(Box::pin(deliverer.run(stop.clone())));
    }
    run(Box::pin(sweeper.run(stop.clone())));
    let broken = tokio::select! {
        signal = signals.until_stop(&logging) => {
            tracing::info!(signal, "stopping");
            false
        }
        _ = running.join_next() => true,
    };
    systemd::notify("STOPPING=1");
    readiness.stop();
    stop.cancel();
    let end = async {
        if !broken {
            tokio::time::sleep(delay).await;
        }
        close.cancel();
        while running.join_next().await.is_some() {}
    };
    tokio::select! {
        () = end => {}
        _ = signals.stop() => return Err(Failure("stopped at the second signal without waiting for running renders".into())),
    }
    alive.abort();
    if let Some(api) = api {
        api.keys.record_uses().await;
    }
    let ended = "the server stopped because one of its tasks ended unexpectedly: report this as a bug, with the log";
    if broken { Err(Failure(ended.into())) } else { Ok(()) }
}

fn listening_url(address: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    // The unspecified address is not a destination; this machine always reaches itself at its loopback address.
    let host = if address.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { address.ip() };
    format!("{scheme}://{}", SocketAddr::new(host, address.port()))
}

fn warn_about_callers(server: &ServerSettings, listening: &[SocketAddr], tls: bool) {
    let unspecified = listening.first().is_some_and(|address| address.ip().is_unspecified());
    if server.public_url.is_none() && server.acme.acme_domain.is_empty() && unspecified {
        tracing::warn!(
            "result URLs will point to 127.0.0.1: set --public-url to the URL at which callers reach this server"
        );
    }
    if server.production && !tls && (server.trusted_proxy.is_empty() || server.proxy_protocol) {
        tracing::warn!(
            "every API call will be refused: with --production, set --acme-domain, --tls-cert and --tls-key, or --trusted-proxy without --proxy-protocol"
        );
    }
    if !server.production && listening.iter().any(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            "API keys are sent over plain HTTP, readable by anyone on the network: use HTTPS and --production"
        );
    }
}

async fn open_store(
    database: &DatabaseUrl,
    data: &DataSettings,
    clock: &Clock,
    server: &ServerSettings,
) -> Result<Arc<Store>, Failure> {
    let (clock, faults) = (clock.clone(), server.test_fault.clone());
    match database {
        DatabaseUrl::Sqlite(path) => {
            let store = sqlite::open_with_faults(path, clock, faults)?;
            match store.begin_new_log() {
                Err(StoreError::Full(error)) => {
                    tracing::warn!(%error, "the disk is full, so the write-ahead log of the last run stays; free space, and the next checkpoint tries again")
                }
                outcome => outcome?,
            }
            Ok(Arc::new(store))
        }
        DatabaseUrl::Postgres(url) => {
            let store = postgres::open(url, data.database_ca.as_deref(), clock, faults).await?;
            if let Some(file) = data.url_file() {
                store.follow(file.to_owned());
            }
            if let Err(warning) = store.check_durability().await {
                tracing::warn!("{warning}");
            }
            Ok(Arc::new(store))
        }
    }
}
