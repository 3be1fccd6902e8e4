//! The prompts of failed tasks, which are kept for some time.

use super::connection::{Database, Transaction};
use crate::Result;
use crate::failure::Failure;
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Prompts erased per transaction.
const BATCH: i64 = 1_000;

/// Notes the prompt of a task that fails, for its removal later.
pub(super) async fn keep(begun: &Transaction<'_>, task_id: Id) -> std::result::Result<(), Failure> {
    let sql = "INSERT INTO failed_prompts (task_id, account_id, bytes)
        SELECT id, account_id, octet_length(prompt) + octet_length(reference_images) + coalesce(octet_length(settings), 0) FROM tasks WHERE id = $1";
    begun.execute(sql, &[&task_id]).await?;
    Ok(())
}

pub(super) async fn failed_at(
    database: &Database,
    account_id: Id,
    since: Timestamp,
    until: Timestamp,
    nth: u32,
) -> Result<Option<Timestamp>> {
    let sql = "SELECT l.created_at FROM ledger l JOIN tasks t ON t.id = l.task_id
        WHERE l.account_id = $1 AND l.kind = 'refund' AND l.created_at > $2 AND l.created_at <= $4
        AND t.cause IS DISTINCT FROM 'cancelled'
        ORDER BY l.account_id DESC, l.created_at DESC LIMIT 1 OFFSET $3::bigint - 1";
    let row = database.read_one(sql, &[&account_id, &since, &i64::from(nth), &until]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// The accounts with prompts to erase, and the latest task of each whose prompt goes.
pub(super) async fn due(database: &Database, cutoff: Timestamp, most: u64) -> Result<Vec<(Id, Id)>> {
    let sql = "SELECT account_id, max(task_id) FROM (
            SELECT account_id, task_id, sum(bytes) OVER (PARTITION BY account_id ORDER BY task_id DESC) AS kept
            FROM failed_prompts) AS kept
        WHERE task_id < $1 OR kept > $2::bigint GROUP BY account_id";
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let rows = database.read(sql, &[&Id::floor(cutoff), &most]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Erases up to [`BATCH`] prompts of an account, up to that of the task `latest`; returns their number.
pub(super) async fn erase(database: &Database, account_id: Id, latest: Id) -> Result<usize> {
    let sql = "WITH gone AS MATERIALIZED (
            SELECT task_id FROM failed_prompts WHERE account_id = $1 AND task_id <= $2
            ORDER BY account_id, task_id LIMIT $3 FOR UPDATE SKIP LOCKED
        ),
        blank AS (
            UPDATE tasks SET prompt = '', reference_images = '[]', settings = NULL WHERE id = ANY (ARRAY (SELECT task_id FROM gone))
        ),
        unsearched AS (DELETE FROM prompts WHERE task_id = ANY (ARRAY (SELECT task_id FROM gone))),
        never_indexed AS (DELETE FROM unindexed WHERE task_id = ANY (ARRAY (SELECT task_id FROM gone)))
        DELETE FROM failed_prompts WHERE task_id = ANY (ARRAY (SELECT task_id FROM gone)) RETURNING task_id";
    Ok(database.write(sql, &[&account_id, &latest, &BATCH]).await?.len())
}
