//! The workers of this process: all there are, as only one server uses the file.

use super::SqliteStore;
use super::writer::Writing;
use crate::{Result, WorkerReport};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::locked::Locked as _;

impl SqliteStore {
    pub(crate) async fn keep_report(&self, report: WorkerReport) -> Result<()> {
        self.workers.locked().insert(report.id, (report, self.clock.now()));
        Ok(())
    }

    pub(crate) async fn forget_reports(&self, id: Id) -> Result<()> {
        self.workers.locked().remove(&id);
        Ok(())
    }

    /// The last reports of the workers, the latest first.
    pub(crate) async fn seen_workers(&self) -> Result<Vec<(WorkerReport, Timestamp)>> {
        let mut workers: Vec<_> = self.workers.locked().values().cloned().collect();
        workers.sort_by_key(|(_, seen_at)| std::cmp::Reverse(*seen_at));
        Ok(workers)
    }

    pub(crate) async fn check_writes(&self) -> Result<()> {
        // Rewrites a page with the same content: nothing changes, but a full disk refuses the write. The version is
        // read first, because a command of a later release may have migrated the database.
        let write = |writing: &mut Writing| {
            let version: i64 = writing.connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            Ok(writing.connection.pragma_update(None, "user_version", version)?)
        };
        self.write(None, write).await
    }
}
