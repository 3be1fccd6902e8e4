//! State that the processes of one database share: reports of workers about their capacity, secrets, the marker of the
//! result files, and the clock.

use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::number;
use super::queue::millis;
use crate::clock::Timestamp;
use crate::domain::files_marker::FilesMarker;
use crate::domain::model::Id;
use crate::store::{Fleet, Result, StoreError, WORKER_SILENCE, WorkerReport};

/// Stores a report and deletes those of silent workers. It skips a row that another process is writing.
const REPORT: &str = "
    WITH gone AS (DELETE FROM workers WHERE id = ANY (ARRAY (
        SELECT id FROM workers WHERE id <> $1 AND seen_at <= tintype_now($4) - $5 FOR UPDATE SKIP LOCKED)))
    INSERT INTO workers AS w (id, slots, mean_ms, seen_at) VALUES ($1, $2, $3, tintype_now($4))
    ON CONFLICT (id) DO UPDATE SET slots = $2, mean_ms = $3, seen_at = tintype_now($4)";

fn worker(row: &Row) -> Result<WorkerReport> {
    let mean_ms: Option<i64> = row.try_get("mean_ms")?;
    Ok(WorkerReport {
        id: row.try_get("id")?,
        slots: number(row, "slots")?,
        mean: mean_ms.map(|mean_ms| Duration::from_millis(mean_ms.unsigned_abs())),
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
        let slots = i32::try_from(report.slots).unwrap_or(i32::MAX);
        let mean_ms = report.mean.map(|mean| millis(mean).max(1));
        let (given, silence) = (self.database.given_time(), millis(WORKER_SILENCE));
        self.database.write(REPORT, &[&report.id, &slots, &mean_ms, &given, &silence]).await?;
        Ok(())
    }

    async fn withdraw_worker(&self, id: Id) -> Result<()> {
        self.database.write("DELETE FROM workers WHERE id = $1", &[&id]).await?;
        Ok(())
    }

    async fn other_workers(&self, id: Id) -> Result<Vec<WorkerReport>> {
        // A report from the future was written before the clock was set back. It is ignored as well.
        let sql = "SELECT id, slots::bigint AS slots, mean_ms FROM workers
            WHERE id <> $1 AND seen_at > tintype_now($2) - $3 AND seen_at < tintype_now($2) + $3 ORDER BY id";
        let (given, silence) = (self.database.given_time(), millis(WORKER_SILENCE));
        self.database.read(sql, &[&id, &given, &silence]).await?.iter().map(worker).collect()
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
        // Changes nothing, but a read-only server refuses it.
        self.database.write("UPDATE tintype SET version = version", &[]).await?;
        Ok(())
    }
}
