//! Statements for waiting tasks that name an engine.

use rusqlite::{Connection, params};

use super::endings::fail_all;
use super::queue::SWEEP_BATCH;
use super::writer::Writing;
use crate::{Ended, Result, WaitingForEngine};
use tintype_domain::model::{Id, TaskFailure};

/// Fails and refunds up to [`SWEEP_BATCH`] waiting tasks whose engine is not in `engines`, an object of JSON, or takes
/// fewer references than they have.
pub(super) fn fail_unmatched(writing: &mut Writing, engines: &str, failure: &TaskFailure) -> Result<Vec<Ended>> {
    let unmatched: Vec<Id> = writing
        .connection
        .prepare_cached(
            "SELECT task_id FROM queue INDEXED BY queue_named
             WHERE lease_until IS NULL AND engine > ''
                 AND reference_count > coalesce((SELECT value FROM json_each(?1) WHERE key = engine), -1) LIMIT ?2",
        )?
        .query_map(params![engines, SWEEP_BATCH], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    fail_all(writing, unmatched, failure)
}

/// The waiting tasks that name an engine, by engine.
pub(super) fn waiting(connection: &Connection) -> rusqlite::Result<Vec<WaitingForEngine>> {
    connection
        .prepare_cached(
            "SELECT engine, count(*), max(reference_count) FROM queue INDEXED BY queue_named
             WHERE lease_until IS NULL AND engine > '' GROUP BY engine ORDER BY engine",
        )?
        .query_map([], |row| Ok(WaitingForEngine { engine: row.get(0)?, tasks: row.get(1)?, references: row.get(2)? }))?
        .collect()
}
