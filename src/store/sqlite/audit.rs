//! Recomputing the books.

use rusqlite::Connection;

use crate::model::{Id, TaskId};
use crate::store::{Audit, Drift};

/// Each check names account, task and fault of what does not balance.
const CHECKS: [&str; 9] = [
    // Balances follow from entries.
    "SELECT a.id, NULL, format('the balance is %d but its entries add up to %d', a.balance, coalesce(l.total, 0))
     FROM accounts a LEFT JOIN (SELECT account_id, sum(amount) AS total FROM ledger GROUP BY account_id) l
       ON l.account_id = a.id
     WHERE a.balance <> coalesce(l.total, 0)",
    // Each entry's balance follows from the entry before it.
    "SELECT account_id, task_id, format('entry %d says the balance was %d, but entries up to it add up to %d', id, balance, running)
     FROM (SELECT *, sum(amount) OVER (PARTITION BY account_id ORDER BY id) AS running FROM ledger)
     WHERE balance <> running",
    // No task has two entries of a kind.
    "SELECT account_id, task_id, format('%d entries of kind %s', count(*), kind)
     FROM ledger WHERE task_id IS NOT NULL GROUP BY task_id, kind HAVING count(*) > 1",
    // Every entry that names a task names one that exists.
    "SELECT l.account_id, l.task_id, format('entry %d is for a task that does not exist', l.id)
     FROM ledger l LEFT JOIN tasks t ON t.id = l.task_id WHERE l.task_id IS NOT NULL AND t.id IS NULL",
    // Every task was charged 2 x n, once, to its account.
    "SELECT t.account_id, t.id, CASE WHEN l.id IS NULL THEN 'the task was never charged'
            ELSE format('charged %d to %s instead of %d', -l.amount, l.account_id, 2 * t.n) END
     FROM tasks t LEFT JOIN ledger l ON l.task_id = t.id AND l.kind = 'charge'
     WHERE l.id IS NULL OR l.amount <> -2 * t.n OR l.account_id <> t.account_id",
    // Failed tasks, and no others, were refunded what they cost.
    "SELECT t.account_id, t.id, CASE WHEN l.id IS NULL THEN 'the failed task was never refunded'
            WHEN t.status <> 'failed' THEN format('refunded although it is %s', t.status)
            ELSE format('refunded %d to %s instead of %d', l.amount, l.account_id, 2 * t.n) END
     FROM tasks t LEFT JOIN ledger l ON l.task_id = t.id AND l.kind = 'refund'
     WHERE (l.id IS NULL) = (t.status = 'failed')
        OR l.amount <> 2 * t.n OR l.account_id <> t.account_id",
    // Completed tasks have images.
    "SELECT account_id, id, 'completed without images' FROM tasks WHERE status = 'completed' AND images IS NULL",
    // Processing tasks, and no others, are in the queue.
    "SELECT t.account_id, t.id, CASE WHEN q.task_id IS NULL THEN 'processing, but not in the queue'
            ELSE format('in the queue although it is %s', t.status) END
     FROM tasks t LEFT JOIN queue q ON q.task_id = t.id
     WHERE (q.task_id IS NULL) = (t.status = 'processing')",
    // Accounts know how many of their tasks are unfinished.
    "SELECT a.id, NULL, format('counts %d unfinished tasks but has %d', a.unfinished, coalesce(q.unfinished, 0))
     FROM accounts a LEFT JOIN (SELECT account_id, count(*) AS unfinished FROM queue GROUP BY account_id) q
       ON q.account_id = a.id
     WHERE a.unfinished <> coalesce(q.unfinished, 0)",
];

pub(super) fn audit(connection: &Connection) -> rusqlite::Result<Audit> {
    // One read transaction, so that all checks see the same moment.
    let snapshot = connection.unchecked_transaction()?;
    let count = |table: &str| snapshot.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0));
    let mut audit =
        Audit { accounts: count("accounts")?, tasks: count("tasks")?, entries: count("ledger")?, drifts: Vec::new() };
    for check in CHECKS {
        let mut statement = snapshot.prepare(check)?;
        let found = statement.query_map([], |row| {
            Ok(Drift { account_id: row.get(0)?, task_id: row.get::<_, Option<Id>>(1)?.map(TaskId), fault: row.get(2)? })
        })?;
        for drift in found {
            audit.drifts.push(drift?);
        }
    }
    Ok(audit)
}
