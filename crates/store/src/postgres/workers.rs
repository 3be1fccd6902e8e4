//! The reports of workers about their capacity, which the processes of one database share.

use std::time::Duration;

use super::{PostgresStore, pooler};
use crate::driver::{Parameter, from_row};
use crate::{Cause, ENGINE_SILENCE, Result, StoreError, WORKER_SILENCE, WorkerReport};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Stores a report. Deletes the same engine's reports from workers that are gone, and reports of all engines that
/// haven't been seen for long. It skips a row that another process is writing.
const REPORT: &str = "
    WITH gone AS (DELETE FROM workers WHERE id = ANY (ARRAY (
        SELECT id FROM workers WHERE id <> $1
            AND (engine = $2 AND seen_at <= tintype_now($7) - $8 OR seen_at <= tintype_now($7) - $9)
        FOR UPDATE SKIP LOCKED)))
    INSERT INTO workers AS w (id, engine, max_references, slots, mean_ms, image_ms, is_available, seen_at, masks)
    VALUES ($1, $2, $3, $4, $5, $10, $6, tintype_now($7), $11)
    ON CONFLICT (id) DO UPDATE SET engine = $2, max_references = $3, slots = $4, mean_ms = $5, image_ms = $10,
        is_available = $6, seen_at = tintype_now($7), masks = $11";

/// The column takes whole milliseconds, at least one.
const SHORTEST_MEAN: Duration = Duration::from_millis(1);

from_row! { fn worker(row) -> WorkerReport {
    id, engine, max_references, masks, slots, mean: row.get("mean_ms")?, mean_of_image: row.get("image_ms")?,
    is_available,
} }

impl PostgresStore {
    /// The last report of each worker that has not been forgotten, with its time, the latest first.
    pub(crate) async fn seen_workers(&self) -> Result<Vec<(WorkerReport, Timestamp)>> {
        let sql =
            "SELECT id, engine, max_references, masks, slots, mean_ms, image_ms, is_available, seen_at FROM workers
            WHERE seen_at > tintype_now($1) - $2 ORDER BY seen_at DESC, id";
        let found = self.database.read(sql, &[&self.database.given_time(), &ENGINE_SILENCE]).await?;
        found.iter().map(|row| Ok((worker(row)?, row.get("seen_at")?))).collect()
    }

    pub(crate) async fn keep_report(&self, report: WorkerReport) -> Result<()> {
        let WorkerReport { id, engine, max_references, masks, slots, mean, mean_of_image, is_available } = report;
        let [max_references, slots] = [max_references, slots].map(|number| number.min(i32::MAX.unsigned_abs()));
        let [mean, mean_of_image] = [mean, mean_of_image].map(|mean| mean.map(|mean| mean.max(SHORTEST_MEAN)));
        let given = self.database.given_time();
        let parameters: [&dyn Parameter; 11] = [
            &id,
            &engine,
            &max_references,
            &slots,
            &mean,
            &is_available,
            &given,
            &WORKER_SILENCE,
            &ENGINE_SILENCE,
            &mean_of_image,
            &masks,
        ];
        self.database.write(REPORT, &parameters).await?;
        Ok(())
    }

    pub(crate) async fn forget_reports(&self, id: Id) -> Result<()> {
        self.database.write("DELETE FROM workers WHERE id = $1", &[&id]).await?;
        Ok(())
    }

    pub(crate) async fn check_writes(&self) -> Result<()> {
        pooler::check(&self.database).await?;
        // Changes nothing, but a read-only server refuses it.
        self.database.write("UPDATE tintype SET version = version", &[]).await?;
        if self.database.was_full() {
            return Err(StoreError::Full(Cause::new("a write has failed lately")));
        }
        Ok(())
    }
}
