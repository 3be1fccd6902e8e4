//! The parts that every process of the service has, whether it serves the API, renders, or both.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::files::Files;
use crate::metrics::Metrics;
use crate::service::endings::Endings;
use crate::service::engine_record::EngineRecords;
use crate::service::finished::RemovedBefore;
use crate::service::presets::Presets;
use crate::service::task_ages::TaskAges;
use crate::service::wait_estimator::WaitEstimator;
use tintype_config::ServerSettings;
use tintype_store::{Store, StoreError};
use tintype_system::clock::Clock;
use tintype_system::disk::Disk;

/// The parts that the API, the worker and the sweeper of one process share.
#[derive(Debug)]
pub struct ServiceContext {
    /// The clock of this process.
    pub clock: Clock,
    /// Accounts, keys, credits, tasks.
    pub store: Arc<Store>,
    /// Ages of tasks.
    pub ages: TaskAges,
    /// Result files.
    pub files: Files,
    /// Free space on the disks that hold the data.
    pub disk: Disk,
    /// Estimates how long a task that is accepted now would wait.
    pub wait_estimator: WaitEstimator,
    /// Counters and gauges.
    pub metrics: Arc<Metrics>,
    /// The presets in force.
    pub presets: Arc<Presets>,
    /// Ends tasks.
    pub endings: Endings,
    /// Changes when a task may be waiting in the queue. Every worker of this process looks.
    pub queued: watch::Sender<()>,
    /// What the engines of this process have done with the latest tasks.
    pub engine_records: Arc<EngineRecords>,
    /// Tasks that ended before this time may have been removed.
    pub removed_before: RemovedBefore,
}

impl ServiceContext {
    /// Creates the shared parts for an open store. Submits are refused while the disks of `directories` are nearly full,
    /// and while the queue is too long for all workers.
    pub fn new(
        settings: &ServerSettings,
        clock: Clock,
        store: Arc<Store>,
        files: Files,
        directories: Vec<PathBuf>,
    ) -> Arc<Self> {
        let metrics = Arc::new(Metrics::new(clock.now()));
        Arc::new(Self {
            disk: Disk::new(directories, settings.space.min_free_space, clock.clone()),
            wait_estimator: WaitEstimator::new(clock.clone()),
            ages: TaskAges::new(store.clone(), clock.clone()),
            endings: Endings::new(store.clone(), metrics.clone()),
            presets: Arc::new(Presets::new(&settings.presets)),
            metrics,
            queued: watch::Sender::new(()),
            engine_records: Arc::default(),
            removed_before: RemovedBefore::default(),
            clock,
            store,
            files,
        })
    }

    /// Checks that the database accepts writes, that result files are there and can be written, and that the disk has
    /// room.
    pub async fn check(&self) -> Result<(), String> {
        if self.disk.is_low() {
            return Err("the disk is nearly full: make room".into());
        }
        self.files.check_there().await.map_err(|error| format!("result files are not there: {error}"))?;
        if !self.files.are_writable() {
            return Err(format!("result files cannot be written: {}", self.files.describe()));
        }
        self.store.ping().await.map_err(|error| match error {
            StoreError::Full(_) => format!("{error}; make room"),
            error => format!("the database does not answer: {error}"),
        })
    }
}
