//! Reads the rows from which the audit recomputes the balances.

use rusqlite::{Connection, Row};

use super::columns::word;
use crate::Audit;
use crate::audit::{AccountEntry, Books, GRANTS, Grant, Queued, STRAY_EXPIRIES, Task, TaskEntry};
use tintype_domain::model::{CREDITS_PER_IMAGE, Id};

pub(super) fn audit(connection: &Connection) -> rusqlite::Result<Audit> {
    // One read transaction, so that all checks see the same snapshot.
    let snapshot = connection.unchecked_transaction()?;
    let mut books = Books::default();
    add_up_entries(&snapshot, &mut books)?;
    match_tasks(&snapshot, &mut books)?;
    match_grants(&snapshot, &mut books)?;
    compare_accounts(&snapshot, &mut books)?;
    Ok(books.close())
}

fn add_up_entries(snapshot: &Connection, books: &mut Books) -> rusqlite::Result<()> {
    let mut statement = snapshot.prepare("SELECT id, account_id, amount, balance, task_id FROM ledger ORDER BY id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        books.add_up(&AccountEntry {
            id: row.get(0)?,
            account_id: row.get(1)?,
            amount: row.get(2)?,
            balance: row.get(3)?,
            task_id: row.get(4)?,
        });
    }
    Ok(())
}

fn match_tasks(snapshot: &Connection, books: &mut Books) -> rusqlite::Result<()> {
    let mut tasks = snapshot.prepare("SELECT id, account_id, status, images IS NOT NULL, n FROM tasks ORDER BY id")?;
    let mut entries = snapshot.prepare(
        "SELECT id, task_id, account_id, kind, amount, key_id FROM ledger WHERE task_id IS NOT NULL ORDER BY task_id",
    )?;
    let mut queue = snapshot.prepare(
        "SELECT q.task_id, q.account_id, q.key_id, q.reference_count, t.reference_images, q.taken
         FROM queue q LEFT JOIN tasks t ON t.id = q.task_id ORDER BY q.task_id",
    )?;
    let mut entries = entries.query_map([], entry)?.peekable();
    let mut queue = queue.query_map([], queued)?.peekable();
    books.match_tasks(tasks.query_map([], task)?, &mut entries, &mut queue)?;
    books.report_strays(&mut entries, &mut queue, None)
}

fn match_grants(snapshot: &Connection, books: &mut Books) -> rusqlite::Result<()> {
    let mut grants = snapshot.prepare(GRANTS)?;
    let mut rows = grants.query([])?;
    while let Some(row) = rows.next()? {
        let (source, expiry): (Option<Id>, Option<Id>) = (row.get(5)?, row.get(7)?);
        books.match_grant(&Grant {
            entry_id: row.get(0)?,
            account_id: row.get(1)?,
            amount: row.get(2)?,
            remaining: row.get(3)?,
            lapsed: row.get(4)?,
            source: source.zip(row.get(6)?),
            expiry: expiry.zip(row.get(8)?),
        });
    }
    let mut strays = snapshot.prepare(STRAY_EXPIRIES)?;
    let mut rows = strays.query([])?;
    while let Some(row) = rows.next()? {
        books.report_expiry(row.get(0)?, row.get(1)?);
    }
    Ok(())
}

fn compare_accounts(snapshot: &Connection, books: &mut Books) -> rusqlite::Result<()> {
    let mut statement = snapshot.prepare("SELECT id, balance, unfinished FROM accounts ORDER BY id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        books.compare_account(row.get(0)?, Some((row.get(1)?, row.get(2)?)));
    }
    Ok(())
}

fn task(row: &Row<'_>) -> rusqlite::Result<Task> {
    Ok(Task {
        id: row.get(0)?,
        account_id: row.get(1)?,
        status: row.get(2)?,
        has_images: row.get(3)?,
        cost: row.get::<_, i64>(4)? * CREDITS_PER_IMAGE,
    })
}

fn entry(row: &Row<'_>) -> rusqlite::Result<TaskEntry> {
    Ok(TaskEntry {
        id: row.get(0)?,
        task_id: row.get(1)?,
        account_id: row.get(2)?,
        kind: word(row, 3)?,
        amount: row.get(4)?,
        key_id: row.get(5)?,
    })
}

fn queued(row: &Row<'_>) -> rusqlite::Result<Queued> {
    Ok(Queued {
        task_id: row.get(0)?,
        account_id: row.get(1)?,
        key_id: row.get(2)?,
        reference_count: row.get(3)?,
        references: row.get(4)?,
        taken: row.get(5)?,
    })
}
