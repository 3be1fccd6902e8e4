//! Reads the rows from which the audit recomputes the balances, page by page in one snapshot.

use tokio_postgres::{IsolationLevel, Row, Transaction};

use super::columns::word;
use super::connection::Database;
use crate::audit::{AccountEntry, Books, GRANTS, Grant, Queued, STRAY_EXPIRIES, Task, TaskEntry};
use crate::{Audit, Result};
use tintype_domain::model::{CREDITS_PER_IMAGE, Id};

/// Ledger entries per page.
const PAGE: i64 = 10_000;

pub(super) async fn audit(database: &Database) -> Result<Audit> {
    let mut client = database.reader().await?;
    // One snapshot, so that all checks see the same state.
    let snapshot = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
    let snapshot = snapshot.start().await?;
    let audit = of(&snapshot).await?;
    snapshot.rollback().await?;
    Ok(audit)
}

/// The rows as a transaction sees them.
pub(super) async fn of(snapshot: &Transaction<'_>) -> Result<Audit> {
    let mut books = Books::default();
    add_up_entries(snapshot, &mut books).await?;
    match_tasks(snapshot, &mut books).await?;
    match_grants(snapshot, &mut books).await?;
    compare_accounts(snapshot, &mut books).await?;
    Ok(books.close())
}

async fn add_up_entries(snapshot: &Transaction<'_>, books: &mut Books) -> Result<()> {
    let page = snapshot
        .prepare(
            "SELECT id, account_id, amount, balance, task_id FROM ledger
             WHERE (account_id, id) > ($1, $2) ORDER BY account_id, id LIMIT $3",
        )
        .await?;
    let mut last = (String::new(), i64::MIN);
    loop {
        let rows = snapshot.query(&page, &[&last.0, &last.1, &PAGE]).await?;
        for row in &rows {
            let entry = AccountEntry {
                id: row.try_get(0)?,
                account_id: row.try_get(1)?,
                amount: row.try_get(2)?,
                balance: row.try_get(3)?,
                task_id: row.try_get(4)?,
            };
            last = (entry.account_id.to_string(), entry.id);
            books.add_up(&entry);
        }
        if rows.is_empty() {
            return Ok(());
        }
    }
}

/// Matches tasks, entries and queue in pages, whose bounds are ids of tasks.
async fn match_tasks(snapshot: &Transaction<'_>, books: &mut Books) -> Result<()> {
    let page_end = "SELECT task_id FROM ledger WHERE task_id > $1 ORDER BY task_id LIMIT 1 OFFSET $2";
    let tasks = "SELECT id, account_id, status, images IS NOT NULL AS has_images, n FROM tasks
        WHERE id > $1 AND id <= $2 ORDER BY id";
    let entries = "SELECT id, task_id, account_id, kind, amount, key_id FROM ledger
        WHERE task_id > $1 AND task_id <= $2 ORDER BY task_id, id";
    let queue = "SELECT q.task_id, q.account_id, q.key_id, q.reference_count, t.reference_images, q.taken
        FROM queue q LEFT JOIN tasks t ON t.id = q.task_id
        WHERE q.task_id > $1 AND q.task_id <= $2 ORDER BY q.task_id";
    let mut after = String::new();
    loop {
        let end = snapshot.query_opt(page_end, &[&after, &PAGE]).await?;
        let is_last = end.is_none();
        // "~" sorts after every id.
        let until = end.map_or(Ok("~".to_owned()), |row| row.try_get(0))?;
        let tasks = snapshot.query(tasks, &[&after, &until]).await?;
        let entries = snapshot.query(entries, &[&after, &until]).await?;
        let queue = snapshot.query(queue, &[&after, &until]).await?;
        let mut entries = entries.iter().map(entry).peekable();
        let mut queue = queue.iter().map(queued).peekable();
        books.match_tasks(tasks.iter().map(task), &mut entries, &mut queue)?;
        books.report_strays(&mut entries, &mut queue, None)?;
        if is_last {
            return Ok(());
        }
        after = until;
    }
}

async fn match_grants(snapshot: &Transaction<'_>, books: &mut Books) -> Result<()> {
    for row in snapshot.query(GRANTS, &[]).await? {
        let (source, expiry): (Option<Id>, Option<Id>) = (row.try_get(5)?, row.try_get(7)?);
        books.match_grant(&Grant {
            entry_id: row.try_get(0)?,
            account_id: row.try_get(1)?,
            amount: row.try_get(2)?,
            remaining: row.try_get(3)?,
            lapsed: row.try_get(4)?,
            source: source.zip(row.try_get(6)?),
            expiry: expiry.zip(row.try_get(8)?),
        });
    }
    for row in snapshot.query(STRAY_EXPIRIES, &[]).await? {
        books.report_expiry(row.try_get(0)?, row.try_get(1)?);
    }
    Ok(())
}

/// Every entry was checked against those before it, so the balance of an account is right if they are.
async fn compare_accounts(snapshot: &Transaction<'_>, books: &mut Books) -> Result<()> {
    for row in snapshot.query("SELECT id FROM accounts ORDER BY id", &[]).await? {
        books.compare_account(row.try_get("id")?, None);
    }
    Ok(())
}

fn task(row: &Row) -> Result<Task> {
    Ok(Task {
        id: row.try_get("id")?,
        account_id: row.try_get("account_id")?,
        status: row.try_get("status")?,
        has_images: row.try_get("has_images")?,
        cost: i64::from(row.try_get::<_, i16>("n")?) * CREDITS_PER_IMAGE,
    })
}

fn entry(row: &Row) -> Result<TaskEntry> {
    Ok(TaskEntry {
        id: row.try_get("id")?,
        task_id: row.try_get("task_id")?,
        account_id: row.try_get("account_id")?,
        kind: word(row, "kind")?,
        amount: row.try_get("amount")?,
        key_id: row.try_get("key_id")?,
    })
}

fn queued(row: &Row) -> Result<Queued> {
    Ok(Queued {
        task_id: row.try_get("task_id")?,
        account_id: row.try_get("account_id")?,
        key_id: row.try_get("key_id")?,
        reference_count: row.try_get::<_, i16>("reference_count")?.into(),
        references: row.try_get("reference_images")?,
        taken: row.try_get("taken")?,
    })
}
