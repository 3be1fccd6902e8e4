//! Reports of workers about themselves and their engines.

use std::time::Duration;

use serde::Serialize;

use crate::clock::Timestamp;
use crate::domain::model::Id;

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
    /// Number of render slots, at least one.
    pub slots: u32,
    /// Mean time that an attempt holds a slot, in whole milliseconds; `None` until some have ended.
    pub mean: Option<Duration>,
    /// The same for each image that an attempt makes.
    pub mean_of_image: Option<Duration>,
    /// Whether the engine takes work. False also after the worker has stopped.
    pub is_available: bool,
}

/// An engine as its workers report it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineState {
    /// Its name.
    pub name: String,
    /// Most reference images of a task that it takes.
    pub max_references: u32,
    /// Number of workers that are alive and whose engine is available.
    pub workers: u64,
    /// Time of the last report.
    pub seen_at: Timestamp,
}

/// The tasks that some engines can do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Most reference images of a task that any of them takes; `None` if there is no engine.
    pub configured: Option<u32>,
    /// The same, of the engines with a worker that takes work.
    pub available: Option<u32>,
}

impl Abilities {
    /// Of these engines.
    pub fn of(engines: &[EngineState]) -> Self {
        let available = engines.iter().filter(|engine| engine.workers > 0);
        Self {
            configured: engines.iter().map(|engine| engine.max_references).max(),
            available: available.map(|engine| engine.max_references).max(),
        }
    }

    /// Those of the engines that could do more than all workers together can now.
    pub fn missing(self, engines: &[EngineState]) -> impl Iterator<Item = &EngineState> {
        let more =
            move |engine: &&EngineState| self.available.is_none_or(|available| engine.max_references > available);
        engines.iter().filter(more)
    }
}

/// Endings of tasks by other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndingsElsewhere {
    /// Of these tasks.
    Of(Vec<Id>),
    /// Some were missed, so any task may have ended.
    Missed,
}
