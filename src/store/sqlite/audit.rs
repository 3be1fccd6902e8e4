//! Recomputing the books.
//!
//! The ledger is read once in the order it was written, for the balances, and once in the order of its
//! tasks, beside tasks and queue in the same order. So each row is read once or twice, none is looked
//! up, and memory grows with the accounts alone.

use std::collections::HashMap;
use std::iter::Peekable;

use rusqlite::{Connection, Row};

use super::columns::word;
use crate::model::{CREDITS_PER_IMAGE, EntryKind, Id, TaskId};
use crate::store::{Audit, Drift};

/// What the rows of an account add up to.
#[derive(Debug, Default)]
struct Sums {
    credits: i64,
    queued: u64,
}

/// A ledger entry as its task sees it.
struct Entry {
    id: i64,
    task_id: Id,
    account_id: Id,
    kind: EntryKind,
    amount: i64,
}

struct Task {
    id: Id,
    account_id: Id,
    status: String,
    has_images: bool,
    cost: i64,
}

struct Queued {
    task_id: Id,
    account_id: Id,
}

/// The audit so far.
#[derive(Debug, Default)]
struct Books {
    audit: Audit,
    sums: HashMap<Id, Sums>,
}

pub(super) fn audit(connection: &Connection) -> rusqlite::Result<Audit> {
    // One read transaction, so that all checks see the same moment.
    let snapshot = connection.unchecked_transaction()?;
    let mut books = Books::default();
    books.add_up_entries(&snapshot)?;
    books.match_tasks(&snapshot)?;
    books.compare_accounts(&snapshot)?;
    Ok(books.audit)
}

impl Books {
    fn drift(&mut self, account_id: Id, task_id: Option<Id>, fault: String) {
        self.audit.drifts.push(Drift { account_id, task_id: task_id.map(TaskId), fault });
    }

    /// Each entry's balance follows from the entry before it.
    fn add_up_entries(&mut self, snapshot: &Connection) -> rusqlite::Result<()> {
        let mut statement =
            snapshot.prepare("SELECT id, account_id, amount, balance, task_id FROM ledger ORDER BY id")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            self.audit.entries += 1;
            let (account_id, balance): (Id, i64) = (row.get(1)?, row.get(3)?);
            let sums = self.sums.entry(account_id).or_default();
            sums.credits += row.get::<_, i64>(2)?;
            let credits = sums.credits;
            if balance != credits {
                let id: i64 = row.get(0)?;
                let fault =
                    format!("entry {id} says the balance was {balance}, but entries up to it add up to {credits}");
                self.drift(account_id, row.get(4)?, fault);
            }
        }
        Ok(())
    }

    /// Every task has its entries, every entry its task, and exactly what is processing is in the queue.
    fn match_tasks(&mut self, snapshot: &Connection) -> rusqlite::Result<()> {
        let mut tasks =
            snapshot.prepare("SELECT id, account_id, status, images IS NOT NULL, n FROM tasks ORDER BY id")?;
        let mut entries = snapshot.prepare(
            "SELECT id, task_id, account_id, kind, amount FROM ledger WHERE task_id IS NOT NULL ORDER BY task_id",
        )?;
        let mut queue = snapshot.prepare("SELECT task_id, account_id FROM queue ORDER BY task_id")?;
        let mut entries = entries.query_map([], entry)?.peekable();
        let mut queue = queue.query_map([], queued)?.peekable();
        for task in tasks.query_map([], task)? {
            let task = task?;
            self.audit.tasks += 1;
            self.report_strays(&mut entries, &mut queue, Some(task.id))?;
            let mut of_task = Vec::with_capacity(2);
            while let Some(entry) = next_if(&mut entries, |entry| entry.task_id == task.id)? {
                of_task.push(entry);
            }
            self.check_entries(&task, &of_task);
            let queued = next_if(&mut queue, |queued| queued.task_id == task.id)?;
            self.check_state(&task, queued.as_ref());
        }
        self.report_strays(&mut entries, &mut queue, None)
    }

    /// Reports what comes before the task `until` and so belongs to no task.
    fn report_strays<E, Q>(
        &mut self,
        entries: &mut Peekable<E>,
        queue: &mut Peekable<Q>,
        until: Option<Id>,
    ) -> rusqlite::Result<()>
    where
        E: Iterator<Item = rusqlite::Result<Entry>>,
        Q: Iterator<Item = rusqlite::Result<Queued>>,
    {
        let before = |id: Id| until.is_none_or(|until| id < until);
        while let Some(stray) = next_if(entries, |entry| before(entry.task_id))? {
            let fault = format!("entry {} is for a task that does not exist", stray.id);
            self.drift(stray.account_id, Some(stray.task_id), fault);
        }
        while let Some(stray) = next_if(queue, |queued| before(queued.task_id))? {
            self.sums.entry(stray.account_id).or_default().queued += 1;
            self.drift(stray.account_id, Some(stray.task_id), "in the queue, but there is no such task".into());
        }
        Ok(())
    }

    /// A task was charged 2 x n, once, to its account; if it failed, and only then, it was refunded as much.
    fn check_entries(&mut self, task: &Task, entries: &[Entry]) {
        for (kind, amount) in [(EntryKind::Charge, -task.cost), (EntryKind::Refund, task.cost)] {
            let count = entries.iter().filter(|entry| entry.kind == kind).count();
            if count > 1 {
                self.drift(task.account_id, Some(task.id), format!("{count} entries of kind {}", kind.as_str()));
            }
            for entry in entries.iter().filter(|entry| entry.kind == kind) {
                if kind == EntryKind::Refund && task.status != "failed" {
                    self.drift(task.account_id, Some(task.id), format!("refunded although it is {}", task.status));
                } else if entry.amount != amount || entry.account_id != task.account_id {
                    let done = if kind == EntryKind::Charge { "charged" } else { "refunded" };
                    let (credits, to) = (entry.amount * amount.signum(), entry.account_id);
                    let fault = format!("{done} {credits} to {to} instead of {}", task.cost);
                    self.drift(task.account_id, Some(task.id), fault);
                }
            }
            if count == 0 && kind == EntryKind::Charge {
                self.drift(task.account_id, Some(task.id), "the task was never charged".into());
            }
            if count == 0 && kind == EntryKind::Refund && task.status == "failed" {
                self.drift(task.account_id, Some(task.id), "the failed task was never refunded".into());
            }
        }
    }

    fn check_state(&mut self, task: &Task, queued: Option<&Queued>) {
        let mut fault = |fault: String| self.drift(task.account_id, Some(task.id), fault);
        if task.status == "completed" && !task.has_images {
            fault("completed without images".into());
        }
        match queued {
            None if task.status == "processing" => fault("processing, but not in the queue".into()),
            Some(_) if task.status != "processing" => fault(format!("in the queue although it is {}", task.status)),
            Some(queued) if queued.account_id != task.account_id => fault(format!("queued for {}", queued.account_id)),
            _ => {}
        }
        if let Some(queued) = queued {
            self.sums.entry(queued.account_id).or_default().queued += 1;
        }
    }

    /// Balances follow from entries, and accounts know how many of their tasks are unfinished.
    fn compare_accounts(&mut self, snapshot: &Connection) -> rusqlite::Result<()> {
        let mut statement = snapshot.prepare("SELECT id, balance, unfinished FROM accounts ORDER BY id")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            self.audit.accounts += 1;
            let (id, balance, unfinished): (Id, i64, u64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let Sums { credits, queued } = self.sums.remove(&id).unwrap_or_default();
            if balance != credits {
                self.drift(id, None, format!("the balance is {balance} but its entries add up to {credits}"));
            }
            if unfinished != queued {
                self.drift(id, None, format!("counts {unfinished} unfinished tasks but has {queued}"));
            }
        }
        let mut unknown: Vec<Id> = self.sums.keys().copied().collect();
        unknown.sort();
        for id in unknown {
            self.drift(id, None, "entries or queued tasks name this account, but it does not exist".into());
        }
        Ok(())
    }
}

/// The next row, if it is wanted; one that cannot be read is an error at once.
fn next_if<T>(
    rows: &mut Peekable<impl Iterator<Item = rusqlite::Result<T>>>,
    wanted: impl Fn(&T) -> bool,
) -> rusqlite::Result<Option<T>> {
    rows.next_if(|row| row.as_ref().map_or(true, &wanted)).transpose()
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

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry {
        id: row.get(0)?,
        task_id: row.get(1)?,
        account_id: row.get(2)?,
        kind: word(row, 3)?,
        amount: row.get(4)?,
    })
}

fn queued(row: &Row<'_>) -> rusqlite::Result<Queued> {
    Ok(Queued { task_id: row.get(0)?, account_id: row.get(1)? })
}
