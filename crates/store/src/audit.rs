//! The audit, which recomputes all balances; it is the same for every database.
//!
//! It reads each table in order and page by page: the ledger once in the order of accounts and entries, for the
//! balances, and once in the order of tasks, in step with the tasks and the queue (a merge join). Memory therefore
//! grows only with the number of accounts.

use std::collections::HashMap;
use std::iter::Peekable;

use serde::Serialize;
use serde::de::IgnoredAny;

use super::Result;
use super::driver::{Snapshot, at_once, from_row};
use tintype_domain::model::{CREDITS_PER_IMAGE, EntryKind, Id, TaskId};
use tintype_domain::text::counted;

/// An inconsistency in the ledger, or a result file that does not match it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The affected account.
    pub account_id: Id,
    /// The affected task, if any.
    pub task_id: Option<TaskId>,
    /// Description of the inconsistency.
    pub fault: String,
}

/// Result of an audit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Accounts examined.
    pub accounts: u64,
    /// Tasks examined.
    pub tasks: u64,
    /// Ledger entries examined.
    pub entries: u64,
    /// All inconsistencies found.
    pub drifts: Vec<Drift>,
}

/// The grants that expire, with the entries about them. The entry of a charge names the grant of credits that were
/// refunded a second time after their expiry.
const GRANTS: &str = "
    SELECT g.entry_id, g.account_id, g.amount, g.remaining, g.lapsed, s.account_id AS source,
        abs(s.amount) AS brought, x.account_id AS expiry, x.amount AS expired
    FROM expiring_grants g LEFT JOIN ledger s ON s.id = g.entry_id AND s.account_id = g.account_id
    LEFT JOIN ledger x ON x.grant_id = g.entry_id ORDER BY g.entry_id";

/// The entries of grants that do not exist.
const STRAY_EXPIRIES: &str = "
    SELECT id, account_id FROM ledger x
    WHERE grant_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM expiring_grants g WHERE g.entry_id = x.grant_id)
    ORDER BY id";

/// Rows per page.
const PAGE: i64 = 10_000;

/// Audits a database of SQLite.
pub(super) fn on_sqlite(connection: &rusqlite::Connection) -> Result<Audit> {
    let snapshot = connection.unchecked_transaction()?;
    at_once(of(&snapshot))
}

/// Audits the rows of a snapshot.
pub(super) async fn of(snapshot: &impl Snapshot) -> Result<Audit> {
    let mut run = AuditRun::default();
    add_up_entries(snapshot, &mut run).await?;
    match_tasks(snapshot, &mut run).await?;
    for row in snapshot.query(GRANTS, &[]).await? {
        run.match_grant(&grant(&row)?);
    }
    for row in snapshot.query(STRAY_EXPIRIES, &[]).await? {
        let id: i64 = row.get("id")?;
        run.drift(row.get("account_id")?, None, format!("entry {id} is about a grant that does not exist"));
    }
    compare_accounts(snapshot, &mut run).await?;
    Ok(run.close())
}

async fn add_up_entries(snapshot: &impl Snapshot, run: &mut AuditRun) -> Result<()> {
    let page = "SELECT id, account_id, amount, balance, task_id FROM ledger
        WHERE (account_id, id) > ($1, $2) ORDER BY account_id, id LIMIT $3";
    let mut last = (String::new(), i64::MIN);
    loop {
        let rows = snapshot.query(page, &[&last.0, &last.1, &PAGE]).await?;
        for row in &rows {
            let entry = account_entry(row)?;
            last = (entry.account_id.to_string(), entry.id);
            run.add_up(&entry);
        }
        if rows.is_empty() {
            return Ok(());
        }
    }
}

/// Compares tasks, ledger entries and the queue, in pages bounded by task ids.
async fn match_tasks(snapshot: &impl Snapshot, run: &mut AuditRun) -> Result<()> {
    let page_end = "SELECT task_id FROM ledger WHERE task_id > $1 ORDER BY task_id LIMIT 1 OFFSET $2";
    let tasks = "SELECT id, account_id, status, images IS NOT NULL AS has_images, CAST(n AS bigint) AS n FROM tasks
        WHERE id > $1 AND id <= $2 ORDER BY id";
    let entries = "SELECT id, task_id, account_id, kind, amount, key_id FROM ledger
        WHERE task_id > $1 AND task_id <= $2 ORDER BY task_id, id";
    let queue = "SELECT q.task_id, q.account_id, q.key_id, CAST(q.reference_count AS bigint) AS reference_count,
            t.reference_images, q.taken
        FROM queue q LEFT JOIN tasks t ON t.id = q.task_id
        WHERE q.task_id > $1 AND q.task_id <= $2 ORDER BY q.task_id";
    let mut after = String::new();
    loop {
        let end = snapshot.query(page_end, &[&after, &PAGE]).await?;
        // "~" sorts after every id.
        let until = end.first().map_or(Ok("~".to_owned()), |row| row.get("task_id"))?;
        let tasks = snapshot.query(tasks, &[&after, &until]).await?;
        let entries = snapshot.query(entries, &[&after, &until]).await?;
        let queue = snapshot.query(queue, &[&after, &until]).await?;
        let mut entries = entries.iter().map(entry).collect::<Result<Vec<_>>>()?.into_iter().peekable();
        let mut queue = queue.iter().map(queued).collect::<Result<Vec<_>>>()?.into_iter().peekable();
        for row in &tasks {
            run.match_task(&task(row)?, &mut entries, &mut queue);
        }
        run.report_strays(&mut entries, &mut queue, None);
        if end.is_empty() {
            return Ok(());
        }
        after = until;
    }
}

/// Compares the accounts, after all entries, tasks and queue rows: balance and number of unfinished tasks, where a
/// database stores them with the account, must follow from its entries and its tasks.
async fn compare_accounts<S: Snapshot>(snapshot: &S, run: &mut AuditRun) -> Result<()> {
    let stored = if S::KEEPS_SUMS { ", balance, unfinished" } else { "" };
    for row in snapshot.query(&format!("SELECT id{stored} FROM accounts ORDER BY id"), &[]).await? {
        run.audit.accounts += 1;
        let id = row.get("id")?;
        let Sums { credits, expiring, queued } = run.sums.remove(&id).unwrap_or_default();
        if expiring > credits {
            run.drift(id, None, format!("{} of grants are left, but the balance is {credits}", credits_of(expiring)));
        }
        if !S::KEEPS_SUMS {
            // Every entry was checked against those before it, so the balance of an account is right if they are.
            continue;
        }
        let (balance, unfinished): (i64, u64) = (row.get("balance")?, row.get("unfinished")?);
        if balance != credits {
            run.drift(id, None, format!("the balance is {balance} but its entries add up to {credits}"));
        }
        if unfinished != queued {
            let unfinished = counted(unfinished, "unfinished task", "unfinished tasks");
            run.drift(id, None, format!("the account counts {unfinished} but has {queued}"));
        }
    }
    Ok(())
}

from_row! { fn account_entry(row) -> AccountEntry { id, account_id, amount, balance, task_id } }

from_row! { fn grant(row) -> Grant {
    entry_id, account_id, amount, remaining, lapsed, source: row.get::<Option<_>>("source")?.zip(row.get("brought")?),
    expiry: row.get::<Option<_>>("expiry")?.zip(row.get("expired")?),
} }

from_row! { fn task(row) -> Task {
    id, account_id, status, has_images, cost: row.get::<i64>("n")? * CREDITS_PER_IMAGE,
} }

from_row! { fn entry(row) -> TaskEntry { id, task_id, account_id, kind, amount, key_id } }

from_row! { fn queued(row) -> Queued {
    task_id, account_id, key_id, reference_count, references: row.get("reference_images")?, taken,
} }

#[derive(Debug, Default)]
struct Sums {
    credits: i64,
    /// Credits of grants that expire.
    expiring: i64,
    queued: u64,
}

/// The columns of a ledger entry that the balances need.
#[derive(Debug)]
struct AccountEntry {
    id: i64,
    account_id: Id,
    amount: i64,
    balance: i64,
    task_id: Option<Id>,
}

/// The columns of a ledger entry that the match with its task needs.
#[derive(Debug)]
struct TaskEntry {
    id: i64,
    task_id: Id,
    account_id: Id,
    kind: EntryKind,
    amount: i64,
    key_id: Option<Id>,
}

/// A grant that expires, with the entries about it.
#[derive(Debug)]
struct Grant {
    /// The entry that brought the credits.
    entry_id: i64,
    account_id: Id,
    amount: i64,
    remaining: i64,
    lapsed: Option<i64>,
    /// Account and credits of the entry that brought the credits.
    source: Option<(Id, i64)>,
    /// Account and amount of the entry of the kind `expiry`.
    expiry: Option<(Id, i64)>,
}

/// The columns of a task that the audit needs.
#[derive(Debug)]
struct Task {
    id: Id,
    account_id: Id,
    status: String,
    has_images: bool,
    /// In credits.
    cost: i64,
}

#[derive(Debug)]
struct Queued {
    task_id: Id,
    account_id: Id,
    /// The key that submitted its task.
    key_id: Option<Id>,
    /// The number of references that workers claim it by.
    reference_count: i64,
    /// The references of its task in JSON, if that exists and has any.
    references: Option<String>,
    /// The credits of grants that expire which its task took, in JSON.
    taken: Option<String>,
}

impl Queued {
    /// The number of references that the task has. `None` if they cannot be read, which ends the task when it is
    /// claimed.
    fn references(&self) -> Option<i64> {
        let Some(references) = &self.references else { return Some(0) };
        let references: Vec<IgnoredAny> = serde_json::from_str(references).ok()?;
        i64::try_from(references.len()).ok()
    }
}

#[derive(Debug, Default)]
struct AuditRun {
    audit: Audit,
    sums: HashMap<Id, Sums>,
    /// Credits that queued tasks took from grants, with the account of one of the tasks.
    held: HashMap<i64, (Id, i64)>,
}

impl AuditRun {
    fn drift(&mut self, account_id: Id, task_id: Option<Id>, fault: String) {
        self.audit.drifts.push(Drift { account_id, task_id: task_id.map(TaskId), fault });
    }

    fn drift_of(&mut self, task: &Task, fault: impl Into<String>) {
        self.drift(task.account_id, Some(task.id), fault.into());
    }

    /// Adds the next ledger entry, whose balance must follow from its account's earlier entries.
    fn add_up(&mut self, entry: &AccountEntry) {
        self.audit.entries += 1;
        let sums = self.sums.entry(entry.account_id).or_default();
        sums.credits += entry.amount;
        let (id, balance, credits) = (entry.id, entry.balance, sums.credits);
        if balance != credits {
            let fault = format!("entry {id} says the balance was {balance}, but entries up to it add up to {credits}");
            self.drift(entry.account_id, entry.task_id, fault);
        }
    }

    /// Matches the next task with its entries and its queue row: it must have its entries, every entry its task, and
    /// exactly the processing tasks must be in the queue. The caller passes the entries and queue rows after the last
    /// task to [`AuditRun::report_strays`].
    fn match_task(
        &mut self,
        task: &Task,
        entries: &mut Peekable<impl Iterator<Item = TaskEntry>>,
        queue: &mut Peekable<impl Iterator<Item = Queued>>,
    ) {
        self.audit.tasks += 1;
        self.report_strays(entries, queue, Some(task.id));
        let of_task: Vec<_> = std::iter::from_fn(|| entries.next_if(|entry| entry.task_id == task.id)).collect();
        self.check_entries(task, &of_task);
        let queued = queue.next_if(|queued| queued.task_id == task.id);
        if let Some(queued) = &queued {
            self.check_queued(task, queued, &of_task);
        }
        self.check_state(task, queued.as_ref());
    }

    /// Reports entries and queue rows before the task `until`, which belong to no task.
    fn report_strays(
        &mut self,
        entries: &mut Peekable<impl Iterator<Item = TaskEntry>>,
        queue: &mut Peekable<impl Iterator<Item = Queued>>,
        until: Option<Id>,
    ) {
        let before = |id: Id| until.is_none_or(|until| id < until);
        while let Some(stray) = entries.next_if(|entry| before(entry.task_id)) {
            let fault = format!("entry {} is for a task that does not exist", stray.id);
            self.drift(stray.account_id, Some(stray.task_id), fault);
        }
        while let Some(stray) = queue.next_if(|queued| before(queued.task_id)) {
            self.sums.entry(stray.account_id).or_default().queued += 1;
            self.drift(stray.account_id, Some(stray.task_id), "is in the queue, but does not exist".into());
        }
    }

    /// Checks that a task was charged once, 2 x n, to its account, and refunded the same amount exactly if it failed.
    fn check_entries(&mut self, task: &Task, entries: &[TaskEntry]) {
        for (kind, amount) in [(EntryKind::Charge, -task.cost), (EntryKind::Refund, task.cost)] {
            let count = entries.iter().filter(|entry| entry.kind == kind).count();
            if count > 1 {
                self.drift_of(task, format!("{count} entries of kind {}", kind.as_str()));
            }
            for entry in entries.iter().filter(|entry| entry.kind == kind) {
                if kind == EntryKind::Refund && task.status != "failed" {
                    self.drift_of(task, format!("was refunded although it is {}", task.status));
                } else if entry.amount != amount || entry.account_id != task.account_id {
                    let done = if kind == EntryKind::Charge { "charged" } else { "refunded" };
                    let (credits, to) = (entry.amount * amount.signum(), entry.account_id);
                    self.drift_of(task, format!("{done} {credits} to {to} instead of {}", task.cost));
                }
            }
            if count == 0 && kind == EntryKind::Charge {
                self.drift_of(task, "the task was never charged");
            }
            if count == 0 && kind == EntryKind::Refund && task.status == "failed" {
                self.drift_of(task, "the failed task was never refunded");
            }
        }
        if entries.iter().any(|entry| entry.key_id != entries[0].key_id) {
            self.drift_of(task, "its entries name different keys");
        }
    }

    /// Checks that the charge of a task in the queue names its key, and notes the credits of expiring grants that it
    /// took.
    fn check_queued(&mut self, task: &Task, queued: &Queued, entries: &[TaskEntry]) {
        if entries.iter().any(|entry| entry.kind == EntryKind::Charge && entry.key_id != queued.key_id) {
            self.drift_of(task, "its charge does not name the key of its queue row");
        }
        let Some(taken) = &queued.taken else { return };
        let Ok(parts) = serde_json::from_str::<Vec<(i64, i64)>>(taken) else {
            return self.drift_of(task, format!("took unreadable credits of grants: {taken}"));
        };
        let all = parts.iter().fold(0, |sum: i64, (_, part)| sum.saturating_add(*part));
        if all > task.cost || parts.iter().any(|(_, part)| *part <= 0) {
            self.drift_of(task, format!("took {} of grants, but costs {}", credits_of(all), task.cost));
        }
        for (grant, part) in parts {
            let held = &mut self.held.entry(grant).or_insert((task.account_id, 0)).1;
            *held = held.saturating_add(part);
        }
    }

    /// Compares the next grant that expires with its entries, after all tasks: no credit of it may be there twice, and
    /// what lapsed was taken from the balance by one entry.
    fn match_grant(&mut self, grant: &Grant) {
        let Grant { entry_id, account_id, amount, remaining, lapsed, source, expiry } = *grant;
        let lapsed = lapsed.unwrap_or(0);
        let (_, held) = self.held.remove(&entry_id).unwrap_or((account_id, 0));
        if !source.is_some_and(|(account, credits)| account == account_id && credits >= amount) {
            let fault = format!("entry {entry_id} did not bring the {} of its grant", credits_of(amount));
            self.drift(account_id, None, fault);
        }
        if (remaining + lapsed).saturating_add(held) > amount {
            let fault = format!(
                "of the {} granted by entry {entry_id}, {remaining} are left, {lapsed} lapsed and unfinished tasks \
                 took {held}",
                credits_of(amount)
            );
            self.drift(account_id, None, fault);
        }
        if expiry != (lapsed > 0).then_some((account_id, -lapsed)) {
            let recorded = expiry.map_or(0, |(_, amount)| -amount);
            let lapsed = credits_of(lapsed);
            let fault = format!("of the grant of entry {entry_id} {lapsed} lapsed, but its entry says {recorded}");
            self.drift(account_id, None, fault);
        }
        self.sums.entry(account_id).or_default().expiring += remaining;
    }

    fn check_state(&mut self, task: &Task, queued: Option<&Queued>) {
        let mut fault = |fault: String| self.drift_of(task, fault);
        if task.status == "completed" && !task.has_images {
            fault("is completed without images".into());
        }
        match queued {
            None if task.status == "processing" => fault("is processing, but not in the queue".into()),
            Some(_) if task.status != "processing" => fault(format!("is in the queue although it is {}", task.status)),
            Some(queued) if queued.account_id != task.account_id => {
                fault(format!("is queued for {}", queued.account_id))
            }
            _ => {}
        }
        if let Some(queued) = queued {
            if let Some(references) = queued.references().filter(|references| *references != queued.reference_count) {
                let queued = counted(queued.reference_count, "reference image", "reference images");
                fault(format!("is queued as a task with {queued} but has {references}"));
            }
            self.sums.entry(queued.account_id).or_default().queued += 1;
        }
    }

    /// Ends the audit after all grants and accounts were compared.
    fn close(mut self) -> Audit {
        let mut unknown: Vec<(i64, Id)> = self.held.iter().map(|(grant, (account, _))| (*grant, *account)).collect();
        unknown.sort();
        for (grant, account) in unknown {
            self.drift(account, None, format!("tasks took credits of a grant of entry {grant}, which does not exist"));
        }
        let mut unknown: Vec<Id> = self.sums.keys().copied().collect();
        unknown.sort();
        for id in unknown {
            self.drift(id, None, "entries or queued tasks name this account, but it does not exist".into());
        }
        self.audit
    }
}

fn credits_of(amount: i64) -> String {
    counted(amount, "credit", "credits")
}
