//! What every part of a running server shares, built once and before anything is served.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytesize::ByteSize;
use ipnet::IpNet;
use quick_cache::sync::Cache;
use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::clock::{Clock, Timestamp};
use crate::disk::Disk;
use crate::domain::cursor::CursorSigner;
use crate::domain::model::{Id, Task};
use crate::files::{Files, FilesError};
use crate::metrics::Metrics;
use crate::outbound::references::{ReferenceOptions, References, TrustedTestHost};
use crate::policy::Policy;
use crate::sandbox::Decoder;
use crate::service::backlog::Backlog;
use crate::service::failures::Failures;
use crate::service::keyring::Keyring;
use crate::service::limits::RateLimits;
use crate::store::Store;
use tintype_engine::Engine;
use tintype_sketch::Sketch;

use crate::config::{
    ConnectionLimits, FINISHED_TASK_TTL, FileLinks, LimitSettings, PolicySettings, REMOVED_FILES_GRACE, RedisServer,
    RetentionSettings, ServerSettings, WorkerSettings,
};

/// Finished tasks kept in memory.
const CACHED_TASKS: usize = 20_000;
const REFERENCE_TIME_LIMIT: Duration = Duration::from_secs(20);
const REFERENCE_MAX_BYTES: usize = 20 * 1024 * 1024;

/// The settings that a running server consults.
#[derive(Debug, Clone)]
pub struct Config {
    /// The URLs of result files.
    pub file_links: FileLinks,
    /// Whether API calls must come over HTTPS.
    pub require_https: bool,
    /// Whether browsers are told to come over HTTPS alone.
    pub production: bool,
    /// Networks whose `X-Forwarded-Proto` and `X-Forwarded-For` are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// How long finished tasks are kept.
    pub retention: RetentionSettings,
    /// Directories whose disks must not fill up.
    pub directories: Vec<PathBuf>,
    /// How much of them must be free.
    pub min_free_space: Option<ByteSize>,
    /// What may not be drawn.
    pub policy: PolicySettings,
    /// Limits on callers.
    pub limits: LimitSettings,
    /// What counts them for all processes.
    pub redis: Option<RedisServer>,
    /// Limits on connections.
    pub connections: ConnectionLimits,
    /// What the worker does.
    pub worker: WorkerSettings,
    /// How long the API goes on answering after it is told to stop.
    pub shutdown_delay: Duration,
}

/// The shared parts.
#[derive(Debug)]
pub struct App {
    /// Settings.
    pub config: Config,
    /// The time.
    pub clock: Clock,
    /// Accounts, keys, credits, tasks.
    pub store: Arc<dyn Store>,
    /// Result files.
    pub files: Files,
    /// What draws.
    pub engine: Arc<dyn Engine>,
    /// What may not be drawn.
    pub policy: Policy,
    /// The downloader of reference images.
    pub references: References,
    /// Rate limits.
    pub limits: RateLimits,
    /// Failed authentications.
    pub failures: Failures,
    /// Key look-ups.
    pub keys: Keyring,
    /// List cursors.
    pub cursors: CursorSigner,
    /// Room for more.
    pub disk: Disk,
    /// Time for more.
    pub backlog: Backlog,
    /// Counters and gauges.
    pub metrics: Metrics,
    /// Rung when a task may be waiting in the queue.
    pub bell: Notify,
    /// Terminal tasks never change, so they may be remembered until they are removed: see [`App::recall`].
    finished: Cache<Id, Remembered>,
    /// The same tasks as JSON. Whether the caller may see one is decided before looking here.
    pub finished_json: Cache<Id, FinishedJson>,
    /// Tasks that ended before this may have been removed; in milliseconds, and it never falls.
    removed_before: AtomicI64,
}

/// A finished task, and when it was seen in the store.
#[derive(Debug, Clone)]
struct Remembered {
    task: Arc<Task>,
    seen: Duration,
}

/// A finished task as JSON, with links that hold good for a time.
#[derive(Debug, Clone)]
pub struct FinishedJson {
    /// The task.
    pub json: Arc<RawValue>,
    /// When it may be shown: from when its links were made until too little would be left of them.
    pub shown: Range<Timestamp>,
}

impl App {
    /// Puts the parts together.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub async fn build(config: Config, clock: Clock, store: Arc<dyn Store>, files: Files) -> Result<Arc<Self>, String> {
        let engine = engine(&config.worker.engine)?;
        Self::with_engine(config, clock, store, files, engine).await
    }

    /// Puts the parts together around an engine.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub async fn with_engine(
        config: Config,
        clock: Clock,
        store: Arc<dyn Store>,
        files: Files,
        engine: Arc<dyn Engine>,
    ) -> Result<Arc<Self>, String> {
        let secret = store.cursor_secret().await.map_err(|error| error.to_string())?;
        let references = References::new(reference_options(&config.worker)?).map_err(|error| error.to_string())?;
        let policy = Policy::open(config.policy.policy.as_deref())?;
        if matches!(config.file_links, FileLinks::Signed(_)) {
            files.check_signing().await?;
        }
        Ok(Arc::new(Self {
            limits: RateLimits::open(&config.limits, config.redis.as_ref(), clock.clone()).await?,
            failures: Failures::new(clock.clone()),
            keys: Keyring::new(store.clone(), clock.clone()),
            cursors: CursorSigner::new(&secret),
            disk: Disk::new(config.directories.clone(), config.min_free_space, clock.clone()),
            backlog: Backlog::new(config.worker.render_slots(), clock.clone()),
            metrics: Metrics::new(),
            bell: Notify::new(),
            finished: Cache::new(CACHED_TASKS),
            finished_json: Cache::new(CACHED_TASKS),
            removed_before: AtomicI64::new(i64::MIN),
            references,
            policy,
            config,
            clock,
            store,
            files,
            engine,
        }))
    }

    /// Remembers a terminal task that was looked for in the store at this time of [`Clock::elapsed`].
    pub fn remember(&self, task: &Arc<Task>, seen: Duration) {
        self.finished.insert(task.id, Remembered { task: task.clone(), seen });
    }

    /// A finished task from memory; none that this process may have removed, and for long none that another has.
    pub fn recall(&self, id: Id) -> Option<Arc<Task>> {
        let Remembered { task, seen } = self.finished.get(&id)?;
        let removed_before = Timestamp::from_millis(self.removed_before.load(Ordering::SeqCst));
        let fresh = !self.store.is_shared() || self.clock.elapsed().saturating_sub(seen) < FINISHED_TASK_TTL;
        (fresh && task.updated_at >= removed_before).then_some(task)
    }

    /// A finished task from memory that the store has just named, so that nobody has removed it.
    pub fn recall_named(&self, id: Id) -> Option<Arc<Task>> {
        self.finished.get(&id).map(|remembered| remembered.task)
    }

    /// The URL of a result file, as good as when it was made while [`App::links_shown`] says so.
    ///
    /// # Errors
    /// [`FilesError`] when the URL cannot be signed.
    pub async fn file_link(&self, name: &str) -> Result<String, FilesError> {
        match &self.config.file_links {
            FileLinks::Names(base) => Ok(format!("{base}/{name}")),
            FileLinks::Keys(base) => Ok(format!("{base}/{}", self.files.key(name))),
            FileLinks::Signed(links) => self.files.signed_url(name, links.signed_for()).await,
        }
    }

    /// When links that are made now may be shown.
    pub fn links_shown(&self) -> Range<Timestamp> {
        match &self.config.file_links {
            FileLinks::Names(_) | FileLinks::Keys(_) => Timestamp::MIN..Timestamp::MAX,
            FileLinks::Signed(links) => {
                let now = self.clock.now();
                now..now.saturating_add(links.handed_out_for())
            }
        }
    }

    /// How long the files of a removed task stay, for whoever saw it just before.
    pub fn removed_files_age(&self) -> Duration {
        match &self.config.file_links {
            FileLinks::Signed(links) => REMOVED_FILES_GRACE.max(links.lifetime),
            FileLinks::Names(_) | FileLinks::Keys(_) => REMOVED_FILES_GRACE,
        }
    }

    /// Must be called before tasks that ended before `cutoff` are removed.
    pub fn forget_before(&self, cutoff: Timestamp) {
        self.removed_before.fetch_max(cutoff.as_millis(), Ordering::SeqCst);
    }
}

impl Config {
    /// From the settings of a server that callers reach at `listening_url` unless told otherwise.
    pub fn new(settings: &ServerSettings, listening_url: &str) -> Self {
        let public_url = settings.public_url.as_deref().unwrap_or(listening_url);
        Self {
            file_links: settings.file_urls.links(&settings.files, public_url),
            require_https: settings.production || settings.serves_https(),
            production: settings.production,
            trusted_proxies: settings.trusted_proxy.clone(),
            retention: settings.retention,
            directories: Vec::new(),
            min_free_space: settings.min_free_space,
            policy: settings.policy.clone(),
            limits: settings.limits.clone(),
            redis: None,
            connections: ConnectionLimits {
                max_connections: settings.limits.max_connections,
                max_per_address: settings.limits.max_connections_per_address,
                ..ConnectionLimits::DEFAULT
            },
            worker: settings.worker.clone(),
            shutdown_delay: settings.shutdown_delay,
        }
    }
}

/// The engine that `--engine` names.
fn engine(name: &str) -> Result<Arc<dyn Engine>, String> {
    match name {
        "sketch" => Ok(Arc::new(Sketch::new())),
        _ => Err(format!("there is no engine {name:?}; this release has: sketch")),
    }
}

fn reference_options(settings: &WorkerSettings) -> Result<ReferenceOptions, String> {
    let trust = match (&settings.test_reference_host, &settings.test_reference_ca) {
        (Some(host), Some(ca)) => Some(trusted_test_host(host, ca)?),
        _ => None,
    };
    Ok(ReferenceOptions {
        ports: settings.reference_ports.clone(),
        time_limit: REFERENCE_TIME_LIMIT,
        max_bytes: REFERENCE_MAX_BYTES,
        decoder: Decoder::new(&settings.test_picture_decoder),
        trust,
        ..ReferenceOptions::default()
    })
}

fn trusted_test_host(host: &str, ca: &PathBuf) -> Result<TrustedTestHost, String> {
    let invalid = || format!("{host:?} is not NAME=ADDR, such as pictures.test.example=127.0.0.1:8443");
    let (name, address) = host.split_once('=').ok_or_else(invalid)?;
    let ca_pem = std::fs::read(ca).map_err(|error| format!("cannot read {}: {error}", ca.display()))?;
    Ok(TrustedTestHost { host: name.to_owned(), address: address.parse().map_err(|_| invalid())?, ca_pem })
}
