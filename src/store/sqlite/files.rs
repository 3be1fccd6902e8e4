//! What the sweep of result files asks.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use super::columns::json;
use crate::model::Id;
use crate::store::TaskFiles;

pub(super) fn of_tasks(connection: &Connection, ids: &[Id]) -> rusqlite::Result<Vec<TaskFiles>> {
    let wanted = serde_json::to_string(ids).expect("ids are always JSON");
    connection
        .prepare_cached(
            "SELECT id, status = 'processing', images, updated_at, removed_at FROM tasks
             WHERE id IN (SELECT value FROM json_each(?1))",
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
