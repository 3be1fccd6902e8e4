//! The result files of tasks, the times of their sweeps, and the marker of their store.

use std::time::Duration;

use tokio_postgres::Row;

use super::columns::images;
use super::connection::Database;
use super::queue::millis;
use crate::domain::files_marker::FilesMarker;
use crate::domain::model::Id;
use crate::store::{LONGEST_PAUSE, Result, StoreError, TaskFiles};

/// Each id is looked up in the partition of its month alone.
const OF_TASKS: &str = "SELECT id, status = 'processing' AS is_processing, images, updated_at, removed_at
    FROM unnest($1::text[]) AS wanted (task_id) JOIN tasks ON id = task_id";

pub(super) async fn of_tasks(database: &Database, ids: &[Id]) -> Result<Vec<TaskFiles>> {
    database.read(OF_TASKS, &[&ids]).await?.iter().map(task_files).collect()
}

fn task_files(row: &Row) -> Result<TaskFiles> {
    let named: Option<&str> = row.try_get("images")?;
    Ok(TaskFiles {
        id: row.try_get("id")?,
        is_processing: row.try_get("is_processing")?,
        images: if named.is_some() { images(row)? } else { Vec::new() },
        updated_at: row.try_get("updated_at")?,
        removed_at: row.try_get("removed_at")?,
    })
}

/// Takes the first sweep that is due, unless somebody is quicker.
const TAKE: &str = "
    WITH first AS (
        SELECT wanted.name FROM unnest($1::text[]) WITH ORDINALITY AS wanted (name, place)
        LEFT JOIN sweeps s ON s.name = wanted.name
        WHERE s.due_at IS NULL OR s.due_at <= tintype_now($2) OR s.due_at > tintype_now($2) + $4
        ORDER BY place LIMIT 1
    )
    INSERT INTO sweeps AS s (name, due_at) SELECT name, tintype_now($2) + $3 FROM first
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at
    WHERE s.due_at <= tintype_now($2) OR s.due_at > tintype_now($2) + $4
    RETURNING name";

/// Postpones a sweep. Also deletes the rows of sweeps that have long been due: the day of such a sweep has no files any
/// more, or the sweep is due with or without a row.
const POSTPONE: &str = "
    WITH gone AS (DELETE FROM sweeps WHERE due_at < tintype_now($2) - $4 AND name <> $1)
    INSERT INTO sweeps (name, due_at) VALUES ($1, tintype_now($2) + $3)
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at";

pub(super) async fn take_sweep(database: &Database, sweeps: &[String], hold: Duration) -> Result<Option<String>> {
    let (hold, longest) = (millis(hold), millis(LONGEST_PAUSE));
    let taken = database.write(TAKE, &[&sweeps, &database.given_time(), &hold, &longest]).await?;
    Ok(taken.first().map(|row| row.try_get(0)).transpose()?)
}

pub(super) async fn postpone_sweep(database: &Database, sweep: &str, pause: Duration) -> Result<()> {
    let (pause, longest) = (millis(pause), millis(LONGEST_PAUSE));
    database.write(POSTPONE, &[&sweep, &database.given_time(), &pause, &longest]).await?;
    Ok(())
}

/// The marker of the store of result files, beside the other random values of this installation.
pub(super) async fn marker(database: &Database) -> Result<Option<FilesMarker>> {
    let rows = database.read("SELECT value FROM secrets WHERE name = 'files'", &[]).await?;
    rows.first().map(read_marker).transpose()
}

pub(super) async fn claim(database: &Database, marker: FilesMarker) -> Result<FilesMarker> {
    let sql = "INSERT INTO secrets (name, value) VALUES ('files', $1)
        ON CONFLICT (name) DO UPDATE SET value = secrets.value RETURNING value";
    read_marker(&database.write(sql, &[&&marker.as_bytes()[..]]).await?[0])
}

pub(super) async fn adopt(database: &Database, marker: FilesMarker) -> Result<()> {
    let sql = "INSERT INTO secrets (name, value) VALUES ('files', $1)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    database.write(sql, &[&&marker.as_bytes()[..]]).await?;
    Ok(())
}

fn read_marker(row: &Row) -> Result<FilesMarker> {
    let value: Vec<u8> = row.try_get("value")?;
    let bytes: [u8; 16] =
        value.try_into().map_err(|_| StoreError::Other("the marker of the result files is damaged".into()))?;
    Ok(bytes.into())
}
