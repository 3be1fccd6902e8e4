//! The workers of this process: all there are, as only one server uses the file.

use std::collections::BTreeMap;

use super::SqliteStore;
use super::writer::Writing;
use crate::{EngineState, Result, WorkerReport};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::locked::Locked as _;

impl SqliteStore {
    pub(crate) fn keep_report(&self, report: WorkerReport) {
        self.workers.locked().insert(report.id, (report, self.clock.now()));
    }

    pub(crate) fn forget_reports(&self, id: Id) {
        self.workers.locked().remove(&id);
    }

    /// The last reports of the workers, the latest first.
    pub(crate) fn seen_workers(&self) -> Vec<(WorkerReport, Timestamp)> {
        let mut workers: Vec<_> = self.workers.locked().values().cloned().collect();
        workers.sort_by_key(|(_, seen_at)| std::cmp::Reverse(*seen_at));
        workers
    }

    pub(crate) fn seen_engines(&self) -> Vec<EngineState> {
        let mut engines: BTreeMap<String, EngineState> = BTreeMap::new();
        for (report, seen_at) in self.workers.locked().values() {
            let name = report.engine.clone();
            let unseen =
                EngineState { name: name.clone(), max_references: 0, masks: true, workers: 0, seen_at: *seen_at };
            let engine = engines.entry(name).or_insert(unseen);
            engine.max_references = engine.max_references.max(report.max_references);
            engine.masks &= report.masks;
            engine.workers += u64::from(report.is_available);
            engine.seen_at = engine.seen_at.max(*seen_at);
        }
        engines.into_values().collect()
    }

    pub(crate) async fn check_writes(&self) -> Result<()> {
        // Rewrites a page with the same content: nothing changes, but a full disk refuses the write. The version is
        // read first, because a command of a later release may have migrated the database.
        let write = |writing: &mut Writing| {
            let version: i64 = writing.connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            writing.connection.pragma_update(None, "user_version", version)
        };
        self.writer.write(write).await
    }
}
