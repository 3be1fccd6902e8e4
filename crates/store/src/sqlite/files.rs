//! The result files of tasks, the schedule of their sweeps, and the marker of their store.

use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::columns::json;
use super::writer::Writing;
use crate::{LONGEST_PAUSE, TaskFiles};
use tintype_domain::files_marker::FilesMarker;
use tintype_domain::model::Id;

pub(super) fn of_tasks(connection: &Connection, ids: &[Id]) -> rusqlite::Result<Vec<TaskFiles>> {
    let wanted = serde_json::to_string(ids).expect("ids are always JSON");
    connection
        .prepare_cached(
            "SELECT id, status = 'processing', images, updated_at,
                 iif(EXISTS (SELECT 1 FROM deletions d WHERE d.task_id = tasks.id AND NOT d.erased), NULL, removed_at)
             FROM tasks
             WHERE id IN (SELECT value FROM json_each(?1))
             UNION ALL SELECT id, name IS NULL AND removed_at IS NULL, iif(name IS NULL, NULL, json_array(name)),
             updated_at,
             removed_at FROM uploads WHERE id IN (SELECT value FROM json_each(?1))",
        )?
        .query_map([wanted], task_files)?
        .collect()
}

fn task_files(row: &Row<'_>) -> rusqlite::Result<TaskFiles> {
    let images = if row.get_ref(2)? == ValueRef::Null { Vec::new() } else { json(row, 2)? };
    Ok(TaskFiles {
        id: row.get(0)?,
        is_processing: row.get(1)?,
        images,
        updated_at: row.get(3)?,
        removed_at: row.get(4)?,
    })
}

/// Claims the first sweep that is due.
pub(super) fn take_sweep(writing: &mut Writing, sweeps: &[String], hold: Duration) -> rusqlite::Result<Option<String>> {
    let now = writing.clock.now();
    let wanted = serde_json::to_string(sweeps).expect("strings are always JSON");
    let due = writing
        .connection
        .prepare_cached(
            "SELECT wanted.value FROM json_each(?1) wanted LEFT JOIN sweeps s ON s.name = wanted.value
             WHERE s.due_at IS NULL OR s.due_at <= ?2 OR s.due_at > ?3 ORDER BY wanted.key LIMIT 1",
        )?
        .query_row(params![wanted, now, now.saturating_add(LONGEST_PAUSE)], |row| row.get::<_, String>(0))
        .optional()?;
    if let Some(sweep) = &due {
        postpone_sweep(writing, sweep, hold)?;
    }
    Ok(due)
}

/// Postpones a sweep. Also deletes the rows of sweeps that have long been due: the day of such a sweep has no files any
/// more, or the sweep is due with or without a row.
pub(super) fn postpone_sweep(writing: &mut Writing, sweep: &str, pause: Duration) -> rusqlite::Result<()> {
    let now = writing.clock.now();
    let gone = now.saturating_sub(LONGEST_PAUSE);
    writing.connection.prepare_cached("DELETE FROM sweeps WHERE due_at < ?1")?.execute([gone])?;
    writing
        .connection
        .prepare_cached(
            "INSERT INTO sweeps (name, due_at) VALUES (?1, ?2)
             ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at",
        )?
        .execute(params![sweep, now.saturating_add(pause)])
        .map(drop)
}

/// The marker of the store of result files, beside the other random values of this installation.
pub(super) fn marker(connection: &Connection) -> rusqlite::Result<Option<FilesMarker>> {
    connection
        .query_row("SELECT value FROM secrets WHERE name = 'files'", [], |row| row.get::<_, [u8; 16]>(0))
        .optional()
        .map(|found| found.map(FilesMarker::from))
}

pub(super) fn claim(writing: &mut Writing, marker: FilesMarker) -> rusqlite::Result<FilesMarker> {
    let sql = "INSERT INTO secrets (name, value) VALUES ('files', ?1)
        ON CONFLICT (name) DO UPDATE SET value = secrets.value RETURNING value";
    let noted = writing.connection.query_row(sql, [marker.as_bytes()], |row| row.get::<_, [u8; 16]>(0));
    noted.map(FilesMarker::from)
}

pub(super) fn adopt(writing: &mut Writing, marker: FilesMarker) -> rusqlite::Result<()> {
    let sql = "INSERT INTO secrets (name, value) VALUES ('files', ?1)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    writing.connection.execute(sql, [marker.as_bytes()]).map(drop)
}
