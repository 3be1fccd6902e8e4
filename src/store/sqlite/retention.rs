//! Removing old tasks: marking them, so that no caller sees them and the ledger goes on pointing at them.

use rusqlite::{Connection, params};

use super::writer::Writing;
use crate::clock::Timestamp;
use crate::domain::model::Id;

/// Tasks that are removed in one transaction; the writes of callers go in between.
pub(super) const BATCH: usize = 256;

/// What makes a task of an account removable: ?1 is the cutoff and ?2 the lowest id of that time. No task
/// ends before it is made, so these tasks are, but for the few that were unfinished at the cutoff, a whole
/// range of the index, and none that is removed is in it.
const REMOVABLE: &str = "surface IN ('api', 'web') AND id < ?2 AND removed_at IS NULL
    AND status <> 'processing' AND updated_at < ?1";

/// The accounts that have removable tasks, at the cost of a look into the index for each that has none.
pub(super) fn accounts(connection: &Connection, cutoff: Timestamp) -> rusqlite::Result<Vec<Id>> {
    connection
        .prepare_cached(&format!(
            "SELECT a.id FROM accounts a WHERE EXISTS
             (SELECT 1 FROM tasks INDEXED BY tasks_of_account WHERE account_id = a.id AND {REMOVABLE})"
        ))?
        .query_map(params![cutoff, Id::floor(cutoff)], |row| row.get(0))?
        .collect()
}

/// Removes up to [`BATCH`] tasks of an account and returns how many.
pub(super) fn remove(writing: &mut Writing, account_id: Id, cutoff: Timestamp) -> rusqlite::Result<usize> {
    writing
        .connection
        .prepare_cached(&format!(
            "UPDATE tasks SET removed_at = ?4, prompt = '', reference_images = '[]' WHERE id IN
             (SELECT id FROM tasks INDEXED BY tasks_of_account WHERE account_id = ?3 AND {REMOVABLE} LIMIT ?5)"
        ))?
        .execute(params![cutoff, Id::floor(cutoff), account_id, writing.clock.now(), BATCH])
}
