//! The reports of workers about their capacity, which the processes of one database share.

use std::time::Duration;

use super::connection::Parameter;
use super::{PostgresStore, pooler};
use crate::driver::{Row, from_row, millis, rows};
use crate::{Cause, ENGINE_SILENCE, EngineState, Result, StoreError, WORKER_SILENCE, WorkerReport};
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

/// Condition for a live worker's row in `workers`. A report from the future was written before the clock was set back,
/// and is ignored too.
fn alive(now: &str, silence: &str) -> String {
    format!("is_available AND seen_at > tintype_now({now}) - {silence} AND seen_at < tintype_now({now}) + {silence}")
}

/// Reads the reports, with their times.
const REPORTS: &str = "SELECT id, engine, max_references::bigint AS max_references, masks, slots::bigint AS slots,
    mean_ms, image_ms, is_available, seen_at FROM workers";

fn time(row: &Row, column: &str) -> Result<Option<Duration>> {
    Ok(row.get::<Option<i64>>(column)?.map(|millis| Duration::from_millis(millis.unsigned_abs())))
}

from_row! { fn worker(row) -> WorkerReport {
    id, engine, max_references, masks, slots, mean: time(row, "mean_ms")?, mean_of_image: time(row, "image_ms")?,
    is_available,
} }

from_row! { fn engine(row) -> EngineState { name: row.get("engine")?, max_references, masks, workers, seen_at } }

impl PostgresStore {
    /// The last report of each worker that has not been forgotten, with its time, the latest first.
    pub(crate) async fn seen_workers(&self) -> Result<Vec<(WorkerReport, Timestamp)>> {
        let sql = format!("{REPORTS} WHERE seen_at > tintype_now($1) - $2 ORDER BY seen_at DESC, id");
        let found = rows(self.database.read(&sql, &[&self.database.given_time(), &millis(ENGINE_SILENCE)]).await?);
        found.iter().map(|row| Ok((worker(row)?, row.get("seen_at")?))).collect()
    }

    pub(crate) async fn keep_report(&self, report: WorkerReport) -> Result<()> {
        let WorkerReport { id, engine, max_references, masks, slots, mean, mean_of_image, is_available } = report;
        let small = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let (max_references, slots) = (small(max_references), small(slots));
        let [mean_ms, image_ms] = [mean, mean_of_image].map(|mean| mean.map(|mean| millis(mean).max(1)));
        let (given, silence, forgotten) = (self.database.given_time(), millis(WORKER_SILENCE), millis(ENGINE_SILENCE));
        let parameters: [Parameter<'_>; 11] = [
            &id,
            &engine,
            &max_references,
            &slots,
            &mean_ms,
            &is_available,
            &given,
            &silence,
            &forgotten,
            &image_ms,
            &masks,
        ];
        self.database.write(REPORT, &parameters).await?;
        Ok(())
    }

    pub(crate) async fn forget_reports(&self, id: Id) -> Result<()> {
        self.database.write("DELETE FROM workers WHERE id = $1", &[&id]).await?;
        Ok(())
    }

    pub(crate) async fn reports_of_others(&self, own: &[Id]) -> Result<Vec<WorkerReport>> {
        let sql = format!("{REPORTS} WHERE id <> ALL ($1) AND {} ORDER BY id", alive("$2", "$3"));
        let (given, silence) = (self.database.given_time(), millis(WORKER_SILENCE));
        rows(self.database.read(&sql, &[&own, &given, &silence]).await?).iter().map(worker).collect()
    }

    pub(crate) async fn seen_engines(&self) -> Result<Vec<EngineState>> {
        let sql = format!(
            "SELECT engine, max(max_references)::bigint AS max_references, bool_and(masks) AS masks,
                 count(*) FILTER (WHERE {}) AS workers, max(seen_at) AS seen_at
             FROM workers WHERE seen_at > tintype_now($1) - $3 GROUP BY engine ORDER BY engine",
            alive("$1", "$2")
        );
        let (given, silence, forgotten) = (self.database.given_time(), millis(WORKER_SILENCE), millis(ENGINE_SILENCE));
        rows(self.database.read(&sql, &[&given, &silence, &forgotten]).await?).iter().map(engine).collect()
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
