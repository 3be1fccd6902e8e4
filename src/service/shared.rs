//! The parts that every process of the service has, whether it serves the API, renders, or both.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::config::ServerSettings;
use crate::disk::Disk;
use crate::files::Files;
use crate::metrics::Metrics;
use crate::service::backlog::Backlog;
use crate::service::endings::Endings;
use crate::service::finished::RemovedBefore;
use crate::service::task_ages::TaskAges;
use crate::store::Store;

/// The parts that the API, the worker and the sweeper of one process share.
#[derive(Debug)]
pub struct Shared {
    /// The clock of this process.
    pub clock: Clock,
    /// Accounts, keys, credits, tasks.
    pub store: Arc<dyn Store>,
    /// Ages of tasks.
    pub ages: TaskAges,
    /// Result files.
    pub files: Files,
    /// Free space on the disks that hold the data.
    pub disk: Disk,
    /// Estimates how long a task that is accepted now would wait.
    pub backlog: Backlog,
    /// Counters and gauges.
    pub metrics: Arc<Metrics>,
    /// Ends tasks.
    pub endings: Endings,
    /// Notified when a task may be waiting in the queue.
    pub queued: Notify,
    /// Tasks that ended before this time may have been removed.
    pub removed_before: RemovedBefore,
}

impl Shared {
    /// Creates the shared parts for an open store. Submits are refused while the disks of `directories` are nearly full,
    /// and while the queue is too long for all workers. This process has `render_slots` slots if it renders.
    pub fn new(
        settings: &ServerSettings,
        clock: Clock,
        store: Arc<dyn Store>,
        files: Files,
        directories: Vec<PathBuf>,
        render_slots: usize,
    ) -> Arc<Self> {
        let metrics = Arc::new(Metrics::new(clock.now()));
        Arc::new(Self {
            disk: Disk::new(directories, settings.min_free_space, clock.clone()),
            backlog: Backlog::new(render_slots, clock.clone()),
            ages: TaskAges::new(store.clone(), clock.clone()),
            endings: Endings::new(store.clone(), metrics.clone()),
            metrics,
            queued: Notify::new(),
            removed_before: RemovedBefore::default(),
            clock,
            store,
            files,
        })
    }
}
