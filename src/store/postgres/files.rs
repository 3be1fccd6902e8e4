//! What the sweep of result files asks.

use tokio_postgres::Row;

use super::columns::images;
use super::connection::Database;
use crate::model::Id;
use crate::store::{Result, TaskFiles};

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
