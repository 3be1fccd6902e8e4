//! The prompts of failed tasks, which are kept for some time.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::gallery;
use super::writer::Writing;
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Prompts erased per transaction, so that the writes of callers can run in between.
const BATCH: usize = 256;

/// Notes a task that has just failed.
pub(super) fn keep(connection: &Connection, id: Id, account_id: Id) -> rusqlite::Result<()> {
    let sql = "INSERT INTO failed_prompts (task_id, account_id, bytes)
        SELECT id, ?2, octet_length(prompt) + octet_length(reference_images) + coalesce(octet_length(settings), 0) FROM tasks WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![id, account_id]).map(drop)
}

/// Forgets a task whose prompt has been erased.
pub(super) fn forget(connection: &Connection, id: Id) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM failed_prompts WHERE task_id = ?1")?.execute([id]).map(drop)
}

pub(super) fn failed_at(
    connection: &Connection,
    account_id: Id,
    since: Timestamp,
    until: Timestamp,
    nth: u32,
) -> rusqlite::Result<Option<Timestamp>> {
    let sql = "SELECT l.created_at FROM ledger l INDEXED BY refunds_of_account CROSS JOIN tasks t ON t.id = l.task_id
        WHERE l.account_id = ?1 AND l.kind = 'refund' AND l.created_at > ?2 AND l.created_at <= ?4
        AND t.cause IS NOT 'cancelled' ORDER BY l.created_at DESC LIMIT 1 OFFSET ?3 - 1";
    connection.prepare_cached(sql)?.query_row(params![account_id, since, nth, until], |row| row.get(0)).optional()
}

/// The accounts with prompts to erase, and the latest task of each whose prompt goes.
pub(super) fn due(connection: &Connection, cutoff: Timestamp, most: u64) -> rusqlite::Result<Vec<(Id, Id)>> {
    let sql = "SELECT account_id, max(task_id) FROM (
            SELECT account_id, task_id, sum(bytes) OVER (PARTITION BY account_id ORDER BY task_id DESC) AS kept
            FROM failed_prompts)
        WHERE task_id < ?1 OR kept > ?2 GROUP BY account_id";
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let pair = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    connection.prepare_cached(sql)?.query_map(params![Id::floor(cutoff), most], pair)?.collect()
}

/// Erases up to [`BATCH`] prompts of an account, fewer if they are long, up to that of the task `latest`; returns their
/// number.
pub(super) fn erase(writing: &mut Writing, account_id: Id, latest: Id) -> rusqlite::Result<usize> {
    let sql = "SELECT task_id FROM failed_prompts WHERE account_id = ?1 AND task_id <= ?2 ORDER BY task_id LIMIT ?3";
    let due: Vec<Id> = writing
        .connection
        .prepare_cached(sql)?
        .query_map(params![account_id, latest, BATCH], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let (mut erased, mut overwritten) = (0, 0);
    for id in due {
        if overwritten >= gallery::TERMS_AT_A_TIME {
            break;
        }
        overwritten += gallery::unsearch(writing, id)?;
        erased += 1;
        let blank = "UPDATE tasks SET prompt = '', reference_images = '[]', settings = NULL WHERE id = ?1";
        writing.connection.prepare_cached(blank)?.execute([id])?;
        forget(&writing.connection, id)?;
    }
    Ok(erased)
}
