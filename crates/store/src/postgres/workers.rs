//! State that the processes of one database share: reports of workers about their capacity, secrets, the marker of the
//! result files, and the clock.

use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::columns::number;
use super::connection::Parameter;
use super::queue::millis;
use super::{PostgresStore, pooler, progress};
use crate::{ENGINE_SILENCE, EngineState, Fleet, Lease, Result, StoreError, WORKER_SILENCE, WorkerReport};
use tintype_domain::files_marker::FilesMarker;
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Stores a report. Deletes those of the same engine by workers that are gone, and of all engines that have not been
/// seen for long. It skips a row that another process is writing.
const REPORT: &str = "
    WITH gone AS (DELETE FROM workers WHERE id = ANY (ARRAY (
        SELECT id FROM workers WHERE id <> $1
            AND (engine = $2 AND seen_at <= tintype_now($7) - $8 OR seen_at <= tintype_now($7) - $9)
        FOR UPDATE SKIP LOCKED)))
    INSERT INTO workers AS w (id, engine, max_references, slots, mean_ms, image_ms, is_available, seen_at, masks)
    VALUES ($1, $2, $3, $4, $5, $10, $6, tintype_now($7), $11)
    ON CONFLICT (id) DO UPDATE SET engine = $2, max_references = $3, slots = $4, mean_ms = $5, image_ms = $10,
        is_available = $6, seen_at = tintype_now($7), masks = $11";

/// Condition for a row of `workers` whose worker is alive, with the parameters `$now` and `$silence`. A report from the
/// future was written before the clock was set back. It is ignored as well.
const ALIVE: &str =
    "is_available AND seen_at > tintype_now($now) - $silence AND seen_at < tintype_now($now) + $silence";

fn alive(now: &str, silence: &str) -> String {
    ALIVE.replace("$now", now).replace("$silence", silence)
}

pub(super) fn worker(row: &Row) -> Result<WorkerReport> {
    let time = |column| -> Result<Option<Duration>> {
        let millis: Option<i64> = row.try_get(column)?;
        Ok(millis.map(|millis| Duration::from_millis(millis.unsigned_abs())))
    };
    Ok(WorkerReport {
        id: row.try_get("id")?,
        engine: row.try_get("engine")?,
        max_references: number(row, "max_references")?,
        masks: row.try_get("masks")?,
        slots: number(row, "slots")?,
        mean: time("mean_ms")?,
        mean_of_image: time("image_ms")?,
        is_available: true,
    })
}

fn engine(row: &Row) -> Result<EngineState> {
    Ok(EngineState {
        name: row.try_get("engine")?,
        max_references: number(row, "max_references")?,
        masks: row.try_get("masks")?,
        workers: number(row, "workers")?,
        seen_at: row.try_get("seen_at")?,
    })
}

fn files_marker(row: &Row) -> Result<FilesMarker> {
    let value: Vec<u8> = row.try_get("value")?;
    let bytes: [u8; 16] =
        value.try_into().map_err(|_| StoreError::Other("the marker of the result files is damaged".into()))?;
    Ok(bytes.into())
}

#[async_trait]
impl Fleet for PostgresStore {
    async fn report_worker(&self, report: WorkerReport) -> Result<()> {
        let WorkerReport { id, engine, max_references, masks, slots, mean, mean_of_image, is_available } = report;
        let small = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let (max_references, slots) = (small(max_references), small(slots));
        let [mean_ms, image_ms] = [mean, mean_of_image].map(|mean| mean.map(|mean| millis(mean).max(1)));
        let (given, silence, forgotten) = (self.database.given_time(), millis(WORKER_SILENCE), millis(ENGINE_SILENCE));
        let [given, silence, forgotten]: [Parameter<'_>; 3] = [&given, &silence, &forgotten];
        let parameters: [Parameter<'_>; 11] = [
            &id,
            &engine,
            &max_references,
            &slots,
            &mean_ms,
            &is_available,
            given,
            silence,
            forgotten,
            &image_ms,
            &masks,
        ];
        self.database.write(REPORT, &parameters).await?;
        Ok(())
    }

    async fn withdraw_worker(&self, id: Id) -> Result<()> {
        self.database.write("DELETE FROM workers WHERE id = $1", &[&id]).await?;
        Ok(())
    }

    async fn other_workers(&self, own: &[Id]) -> Result<Vec<WorkerReport>> {
        let sql = format!(
            "SELECT id, engine, max_references::bigint AS max_references, masks, slots::bigint AS slots, mean_ms, image_ms
             FROM workers
             WHERE id <> ALL ($1) AND {} ORDER BY id",
            alive("$2", "$3")
        );
        let (given, silence) = (self.database.given_time(), millis(WORKER_SILENCE));
        self.database.read(&sql, &[&own, &given, &silence]).await?.iter().map(worker).collect()
    }

    async fn engines(&self) -> Result<Vec<EngineState>> {
        let sql = format!(
            "SELECT engine, max(max_references)::bigint AS max_references, bool_and(masks) AS masks,
                 count(*) FILTER (WHERE {}) AS workers, max(seen_at) AS seen_at
             FROM workers WHERE seen_at > tintype_now($1) - $3 GROUP BY engine ORDER BY engine",
            alive("$1", "$2")
        );
        let (given, silence, forgotten) = (self.database.given_time(), millis(WORKER_SILENCE), millis(ENGINE_SILENCE));
        self.database.read(&sql, &[&given, &silence, &forgotten]).await?.iter().map(engine).collect()
    }

    async fn lost(&self, leases: Vec<Lease>) -> Result<Vec<Lease>> {
        progress::lost(&self.database, leases).await
    }

    async fn cursor_secret(&self) -> Result<[u8; 32]> {
        let rows = self.database.read("SELECT value FROM secrets WHERE name = 'cursor'", &[]).await?;
        let lost = || StoreError::Other("the secret that signs cursors is gone".into());
        let value: Vec<u8> = rows.first().ok_or_else(lost)?.try_get(0)?;
        value.try_into().map_err(|_| lost())
    }

    async fn files_marker(&self) -> Result<Option<FilesMarker>> {
        let row = self.database.read_one("SELECT value FROM secrets WHERE name = 'files'", &[]).await?;
        row.as_ref().map(files_marker).transpose()
    }

    async fn claim_files(&self, marker: FilesMarker) -> Result<FilesMarker> {
        let sql = "INSERT INTO secrets (name, value) VALUES ('files', $1)
            ON CONFLICT (name) DO UPDATE SET value = secrets.value RETURNING value";
        files_marker(&self.database.write(sql, &[&&marker.as_bytes()[..]]).await?[0])
    }

    async fn adopt_files(&self, marker: FilesMarker) -> Result<()> {
        let sql = "INSERT INTO secrets (name, value) VALUES ('files', $1)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        self.database.write(sql, &[&&marker.as_bytes()[..]]).await?;
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.database.now()
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn ping(&self) -> Result<()> {
        let _one_at_a_time = self.ping.lock().await;
        pooler::check(&self.database).await?;
        // Changes nothing, but a read-only server refuses it.
        self.database.write("UPDATE tintype SET version = version", &[]).await?;
        Ok(())
    }
}
