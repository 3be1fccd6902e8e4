//! The database itself, the processes that share it, and the reports of their workers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::driver::{Dialect, Row, Store, with_store};
use super::{Result, StoreError};
use tintype_domain::files_marker::FilesMarker;
use tintype_domain::model::{Id, TaskRef};
use tintype_system::clock::Timestamp;

/// The limit of references in a claim that takes any task.
pub const ANY_REFERENCES: u32 = u32::MAX;

/// A worker without a report for this long, by the clock of the database, counts as gone.
pub const WORKER_SILENCE: Duration = Duration::from_secs(60);

/// An engine that no worker has reported for this long, by the clock of the database, no longer belongs to the
/// installation: no task waits for it.
pub const ENGINE_SILENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// The state of a worker, which has one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerReport {
    /// The worker.
    pub id: Id,
    /// Name of its engine.
    pub engine: String,
    /// Most reference images of a task that the engine takes.
    pub max_references: u32,
    /// Whether the engine takes masks.
    pub masks: bool,
    /// Number of render slots, at least one.
    pub slots: u32,
    /// Mean time that an attempt holds a slot, in whole milliseconds; `None` until some have ended.
    pub mean: Option<Duration>,
    /// Mean time that an attempt holds a slot, for each of its images.
    pub mean_of_image: Option<Duration>,
    /// Whether the engine takes work. False also after the worker has stopped.
    pub is_available: bool,
}

/// A task that no worker has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingTask {
    /// The task.
    pub task: TaskRef,
    /// The engine that it names, if it names one.
    pub engine: Option<String>,
}

/// An engine as its workers report it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineState {
    /// Its name.
    pub name: String,
    /// Most reference images of a task that it takes.
    pub max_references: u32,
    /// Whether it takes masks, as all of its workers say.
    pub masks: bool,
    /// Number of live workers whose engine is available.
    pub workers: u64,
    /// Time of the last report.
    pub seen_at: Timestamp,
}

/// The waiting tasks that name an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingForEngine {
    /// The name of the engine.
    pub engine: String,
    /// The number of the tasks, at least one.
    pub tasks: u64,
    /// The highest number of reference images that any of them takes.
    #[serde(skip)]
    pub references: u32,
}

impl WaitingForEngine {
    /// Whether some of the tasks can be done by none of these engines, whatever they do now.
    pub fn is_unmatched(&self, engines: &[EngineState]) -> bool {
        let engine = engines.iter().find(|engine| engine.name == self.engine);
        engine.is_none_or(|engine| engine.max_references < self.references)
    }

    /// Whether no worker with this engine takes work now.
    pub fn lacks_worker(&self, engines: &[EngineState]) -> bool {
        !engines.iter().any(|engine| engine.name == self.engine && engine.workers > 0)
    }
}

/// Most reference images of a task that some engines can do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReferenceLimits {
    /// The highest number of reference images per task that any of them takes; `None` if there is no engine.
    pub configured: Option<u32>,
    /// Most reference images of a task that an engine with an available worker takes.
    pub available: Option<u32>,
}

impl ReferenceLimits {
    /// The limits of these engines together.
    pub fn of(engines: &[EngineState]) -> Self {
        let available = engines.iter().filter(|engine| engine.workers > 0);
        Self {
            configured: engines.iter().map(|engine| engine.max_references).max(),
            available: available.map(|engine| engine.max_references).max(),
        }
    }

    /// The engines that could do more than all workers together currently can.
    pub fn missing(self, engines: &[EngineState]) -> impl Iterator<Item = &EngineState> {
        let more =
            move |engine: &&EngineState| self.available.is_none_or(|available| engine.max_references > available);
        engines.iter().filter(more)
    }
}

/// Endings of tasks by other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndingsElsewhere {
    /// These tasks ended.
    Of(Vec<Id>),
    /// Some were missed, so any task may have ended.
    Missed,
}

fn secret<T: TryFrom<Vec<u8>>>(row: &Row) -> Result<T> {
    let damaged = |_| StoreError::other("a random value of this installation is damaged");
    row.get::<Vec<u8>>("value")?.try_into().map_err(damaged)
}

fn marker(row: &Row) -> Result<FilesMarker> {
    Ok(FilesMarker::from(secret::<[u8; 16]>(row)?))
}

impl Store {
    /// Publishes a worker's state to all processes of this database. Unless the report is repeated, the worker counts
    /// as gone after [`WORKER_SILENCE`], and its engine after [`ENGINE_SILENCE`]. A report replaces the same engine's
    /// reports from workers that are gone.
    pub async fn report_worker(&self, report: WorkerReport) -> Result<()> {
        with_store!(self.driver, store => store.keep_report(report).await)
    }

    /// Deletes the reports of a stopped worker.
    pub async fn withdraw_worker(&self, id: Id) -> Result<()> {
        with_store!(self.driver, store => store.forget_reports(id).await)
    }

    /// Reports from other processes' workers whose engines are available. `own` are this process's workers.
    pub async fn other_workers(&self, own: &[Id]) -> Result<Vec<WorkerReport>> {
        if !self.is_shared() {
            // Only one server uses the file, and its workers are all there are.
            return Ok(Vec::new());
        }
        let workers = self.workers().await?.into_iter();
        let others = workers.filter(|(worker, seen_at)| self.is_live(worker, *seen_at) && !own.contains(&worker.id));
        let mut others: Vec<WorkerReport> = others.map(|(worker, _)| worker).collect();
        others.sort_by_key(|worker| worker.id);
        Ok(others)
    }

    /// This installation's engines, sorted by name, from all reports within [`ENGINE_SILENCE`].
    pub async fn engines(&self) -> Result<Vec<EngineState>> {
        let mut engines: BTreeMap<String, EngineState> = BTreeMap::new();
        for (worker, seen_at) in self.workers().await? {
            let name = worker.engine.clone();
            let unseen = EngineState { name: name.clone(), max_references: 0, masks: true, workers: 0, seen_at };
            let engine = engines.entry(name).or_insert(unseen);
            engine.max_references = engine.max_references.max(worker.max_references);
            engine.masks &= worker.masks;
            engine.workers += u64::from(self.is_live(&worker, seen_at));
            engine.seen_at = engine.seen_at.max(seen_at);
        }
        Ok(engines.into_values().collect())
    }

    /// The last report of each worker that has not been forgotten, with its time, the latest first.
    pub async fn workers(&self) -> Result<Vec<(WorkerReport, Timestamp)>> {
        with_store!(self.driver, store => store.seen_workers().await)
    }

    /// Whether a worker takes work. Reports in a shared database may be of processes that are gone; one dated ahead
    /// was written before the clock was set back, and does not count either.
    fn is_live(&self, worker: &WorkerReport, seen_at: Timestamp) -> bool {
        let silence = self.now().as_millis().abs_diff(seen_at.as_millis());
        worker.is_available && (!self.is_shared() || u128::from(silence) < WORKER_SILENCE.as_millis())
    }

    /// The random secret for signing cursors, which all processes on this database share.
    pub async fn cursor_secret(&self) -> Result<[u8; 32]> {
        let found = self.driver.find("SELECT value FROM secrets WHERE name = 'cursor'", &[], secret).await?;
        found.ok_or_else(|| StoreError::other("the secret that signs cursors is gone"))
    }

    /// The marker of the store of result files that this database uses; `None` before the first start.
    pub async fn files_marker(&self) -> Result<Option<FilesMarker>> {
        self.driver.find("SELECT value FROM secrets WHERE name = 'files'", &[], marker).await
    }

    /// Sets the marker of the store of result files unless there is one. Returns the marker that is then set.
    pub async fn claim_files(&self, new: FilesMarker) -> Result<FilesMarker> {
        let sql = "INSERT INTO secrets (name, value) VALUES ('files', $1)
            ON CONFLICT (name) DO UPDATE SET value = secrets.value RETURNING value";
        let rows = self.statement(None, sql, &[&&new.as_bytes()[..]]).await?;
        rows.first().map_or(Ok(new), marker)
    }

    /// Replaces the marker of the store of result files.
    pub async fn adopt_files(&self, marker: FilesMarker) -> Result<()> {
        let sql = "INSERT INTO secrets (name, value) VALUES ('files', $1)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        self.statement(None, sql, &[&&marker.as_bytes()[..]]).await.map(drop)
    }

    /// The time for ids and leases: the clock of this process or, for a shared database, an estimate of the clock of
    /// the database.
    pub fn now(&self) -> Timestamp {
        self.driver.now()
    }

    /// Whether other servers may use this database at the same time, and remove tasks from it.
    pub fn is_shared(&self) -> bool {
        self.driver.either(false, true)
    }
}
