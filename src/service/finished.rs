//! The cache of finished tasks. A terminal task never changes, so it is cached until retention removes it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;
use serde_json::value::RawValue;

use crate::service::ServiceContext;
use tintype_config::FINISHED_TASK_TTL;
use tintype_domain::model::{Id, Task};
use tintype_system::clock::Timestamp;

const MAX_TASKS: usize = 20_000;

/// Finished tasks, as structs and as JSON.
#[derive(Debug)]
pub struct Finished {
    shared: Arc<ServiceContext>,
    tasks: Cache<Id, CachedTask>,
    /// Callers must check that the account may see a task before they use this cache.
    json: Cache<Id, CachedJson>,
}

/// A finished task, and the time by [`Clock::elapsed`](tintype_system::clock::Clock::elapsed) just before it was read from the
/// store.
#[derive(Debug, Clone)]
struct CachedTask {
    task: Arc<Task>,
    read_at: Duration,
}

/// A finished task as JSON, which holds links that expire.
#[derive(Debug, Clone)]
struct CachedJson {
    json: Arc<RawValue>,
    shown: Range<Timestamp>,
}

impl Finished {
    /// An empty cache.
    pub fn new(shared: Arc<ServiceContext>) -> Self {
        Self { shared, tasks: Cache::new(MAX_TASKS), json: Cache::new(MAX_TASKS) }
    }

    /// Caches a terminal task. `read_at` is the time by [`Clock::elapsed`](tintype_system::clock::Clock::elapsed) just before it was
    /// read from the store.
    pub fn insert(&self, task: &Arc<Task>, read_at: Duration) {
        self.tasks.insert(task.id, CachedTask { task: task.clone(), read_at });
    }

    /// The task, unless it may have been removed since: by this process, or by another one if the entry is older than
    /// [`FINISHED_TASK_TTL`].
    pub fn get(&self, id: Id) -> Option<Arc<Task>> {
        let CachedTask { task, read_at } = self.tasks.get(&id)?;
        let age = self.shared.clock.elapsed().saturating_sub(read_at);
        let fresh = !self.shared.store.is_shared() || age < FINISHED_TASK_TTL;
        (fresh && task.updated_at >= self.shared.removed_before.get()).then_some(task)
    }

    /// The task, without the check for removal: the caller has just found its id in the store.
    pub fn get_listed(&self, id: Id) -> Option<Arc<Task>> {
        self.tasks.get(&id).map(|cached| cached.task)
    }

    /// Caches the JSON of a terminal task, which may be shown during `shown`.
    pub fn insert_json(&self, id: Id, json: Arc<RawValue>, shown: Range<Timestamp>) {
        self.json.insert(id, CachedJson { json, shown });
    }

    /// The JSON of a task, while its links may be shown.
    pub fn get_json(&self, id: Id) -> Option<Arc<RawValue>> {
        let now = self.shared.clock.now();
        self.json.get(&id).filter(|cached| cached.shown.contains(&now)).map(|cached| cached.json)
    }
}

/// Tasks that ended before this time may have been removed. It never moves back.
#[derive(Debug, Default)]
pub struct RemovedBefore {
    millis: AtomicI64,
}

impl RemovedBefore {
    /// Must be called before tasks that ended before `cutoff` are removed.
    pub fn advance(&self, cutoff: Timestamp) {
        self.millis.fetch_max(cutoff.as_millis(), Ordering::SeqCst);
    }

    fn get(&self) -> Timestamp {
        Timestamp::from_millis(self.millis.load(Ordering::SeqCst))
    }
}
