//! The audit: what must be true of accounts, tasks, ledger entries and grants. Both databases run the same statements.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::IgnoredAny;

use super::Result;
use super::driver::{Row, Snapshot, from_row, poll_once};
use tintype_domain::model::{CREDITS_PER_IMAGE, Id, TaskId};
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

const COUNTS: &str = "SELECT (SELECT count(*) FROM accounts) AS accounts, (SELECT count(*) FROM tasks) AS tasks,
    (SELECT count(*) FROM ledger) AS entries";

/// The invariants: each statement finds what breaks one. COST stands for the price of the task `t`.
const INVARIANTS: [&str; 16] = [
    // The balance of an entry follows from the account's entries up to it.
    "SELECT account_id, task_id, 'entry ' || id || ' says the balance was ' || balance
         || ', but entries up to it add up to ' || credits AS fault
     FROM (SELECT id, account_id, task_id, balance,
               sum(amount) OVER (PARTITION BY account_id ORDER BY id ROWS UNBOUNDED PRECEDING) AS credits
           FROM ledger) AS sums WHERE balance <> credits",
    // A task is charged once. If it failed, it is refunded once, and no other task is.
    "SELECT t.account_id, t.id AS task_id, 'the task was never charged' AS fault FROM tasks t
     WHERE NOT EXISTS (SELECT 1 FROM ledger l WHERE l.task_id = t.id AND l.kind = 'charge')",
    "SELECT t.account_id, t.id AS task_id, 'the failed task was never refunded' AS fault FROM tasks t
     WHERE t.status = 'failed' AND NOT EXISTS (SELECT 1 FROM ledger l WHERE l.task_id = t.id AND l.kind = 'refund')",
    "SELECT t.account_id, t.id AS task_id, entries || ' entries of kind ' || kind AS fault
     FROM (SELECT task_id, kind, count(*) AS entries FROM ledger WHERE task_id IS NOT NULL
           GROUP BY task_id, kind HAVING count(*) > 1) AS l JOIN tasks t ON t.id = l.task_id",
    "SELECT t.account_id, t.id AS task_id,
         CASE WHEN l.kind = 'refund' AND t.status <> 'failed' THEN 'was refunded although it is ' || t.status
              WHEN l.kind = 'refund' THEN 'refunded ' || l.amount || ' to ' || l.account_id || ' instead of ' || (COST)
              ELSE 'charged ' || (-l.amount) || ' to ' || l.account_id || ' instead of ' || (COST) END AS fault
     FROM ledger l JOIN tasks t ON t.id = l.task_id
     WHERE (l.kind = 'refund' AND t.status <> 'failed') OR l.account_id <> t.account_id
         OR l.amount <> CASE l.kind WHEN 'charge' THEN -(COST) ELSE (COST) END",
    // The entries of a task name the key that submitted it.
    "SELECT t.account_id, t.id AS task_id, 'its entries name different keys' AS fault
     FROM ledger r JOIN ledger c ON c.task_id = r.task_id AND c.kind = 'charge' JOIN tasks t ON t.id = r.task_id
     WHERE r.kind = 'refund' AND r.key_id IS DISTINCT FROM c.key_id",
    "SELECT t.account_id, t.id AS task_id, 'its charge does not name the key of its queue row' AS fault
     FROM queue q JOIN tasks t ON t.id = q.task_id JOIN ledger l ON l.task_id = t.id AND l.kind = 'charge'
     WHERE l.key_id IS DISTINCT FROM q.key_id",
    "SELECT l.account_id, l.task_id, 'entry ' || l.id || ' is for a task that does not exist' AS fault FROM ledger l
     WHERE l.task_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = l.task_id)",
    // Exactly the tasks that are processing are in the queue.
    "SELECT t.account_id, t.id AS task_id, CASE t.status WHEN 'completed' THEN 'is completed without images'
         ELSE 'is processing, but not in the queue' END AS fault
     FROM tasks t WHERE (t.status = 'completed' AND t.images IS NULL)
         OR (t.status = 'processing' AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.task_id = t.id))",
    "SELECT q.account_id, q.task_id, CASE WHEN t.id IS NULL THEN 'is in the queue, but does not exist'
         ELSE 'is in the queue although it is ' || t.status END AS fault
     FROM queue q LEFT JOIN tasks t ON t.id = q.task_id WHERE t.status IS DISTINCT FROM 'processing'",
    "SELECT t.account_id, t.id AS task_id, 'is queued for ' || q.account_id AS fault
     FROM queue q JOIN tasks t ON t.id = q.task_id WHERE q.account_id <> t.account_id",
    // An entry brought the credits of each grant. The entry of a charge brought those that were refunded a second time
    // after their expiry. One entry took from the balance what lapsed.
    "SELECT g.account_id, NULL AS task_id,
         'entry ' || g.entry_id || ' brought less than the ' || g.amount || ' of its grant' AS fault
     FROM expiring_grants g WHERE NOT EXISTS (
         SELECT 1 FROM ledger l WHERE l.id = g.entry_id AND l.account_id = g.account_id AND abs(l.amount) >= g.amount)",
    "SELECT g.account_id, NULL AS task_id, coalesce(g.lapsed, 0) || ' of the grant of entry ' || g.entry_id
         || ' lapsed, but its entry says ' || coalesce(-l.amount, 0) AS fault
     FROM expiring_grants g LEFT JOIN ledger l ON l.grant_id = g.entry_id
     WHERE coalesce(g.lapsed, 0) <> coalesce(-l.amount, 0) OR l.account_id <> g.account_id",
    "SELECT account_id, NULL AS task_id, 'entry ' || id || ' is about a grant that does not exist' AS fault
     FROM ledger l WHERE grant_id IS NOT NULL
         AND NOT EXISTS (SELECT 1 FROM expiring_grants g WHERE g.entry_id = l.grant_id)",
    "SELECT account_id, NULL AS task_id,
         'its grants have ' || remaining || ' left, but the balance is ' || balance AS fault
     FROM (SELECT account_id, sum(remaining) AS remaining, coalesce((
               SELECT balance FROM ledger l WHERE l.account_id = g.account_id ORDER BY l.id DESC LIMIT 1), 0) AS balance
           FROM expiring_grants g GROUP BY account_id) AS held WHERE remaining > balance",
    "SELECT DISTINCT account_id, NULL AS task_id,
         'entries or queued tasks name this account, but it does not exist' AS fault
     FROM (SELECT account_id FROM ledger UNION ALL SELECT account_id FROM queue) AS named
     WHERE NOT EXISTS (SELECT 1 FROM accounts a WHERE a.id = named.account_id)",
];

/// Tasks in the queue after $1 that have references, or that took credits of grants. There is JSON in their columns.
const QUEUED: &str = "
    SELECT t.account_id, t.id, t.n, q.reference_count, t.reference_images, coalesce(q.taken, '[]') AS taken
    FROM queue q JOIN tasks t ON t.id = q.task_id
    WHERE t.id > $1 AND (q.reference_count <> 0 OR t.reference_images <> '[]' OR q.taken IS NOT NULL)
    ORDER BY t.id LIMIT $2";

/// Rows per page.
const PAGE: usize = 1_000;

const GRANTS: &str = "SELECT account_id, entry_id, amount, remaining, coalesce(lapsed, 0) AS lapsed
    FROM expiring_grants";

from_row! { fn drift(row) -> Drift { account_id, task_id: row.get::<Option<_>>("task_id")?.map(TaskId), fault } }

from_row! { fn counts(row) -> Audit { accounts, tasks, entries, drifts: Vec::new() } }

/// Audits a database of SQLite.
pub(super) fn on_sqlite(connection: &rusqlite::Connection) -> Result<Audit> {
    let snapshot = connection.unchecked_transaction()?;
    poll_once(of(&snapshot))
}

/// Audits the rows of a snapshot.
pub(super) async fn of(snapshot: &impl Snapshot) -> Result<Audit> {
    let mut audit = Audit::default();
    for row in snapshot.query(COUNTS, &[]).await? {
        audit = counts(&row)?;
    }
    let cost = format!("{CREDITS_PER_IMAGE} * t.n");
    for invariant in INVARIANTS {
        let broken = snapshot.query(&invariant.replace("COST", &cost), &[]).await?;
        audit.drifts.extend(broken.iter().map(drift).collect::<Result<Vec<_>>>()?);
    }
    let mut taken = BTreeMap::new();
    let mut last = String::new();
    loop {
        let page = snapshot.query(QUEUED, &[&last, &PAGE]).await?;
        for row in &page {
            match_queued(row, &mut taken, &mut audit.drifts)?;
            last = row.get("id")?;
        }
        if page.len() < PAGE {
            break;
        }
    }
    for row in snapshot.query(GRANTS, &[]).await? {
        match_grant(&row, &mut taken, &mut audit.drifts)?;
    }
    for (grant, (account_id, _)) in taken {
        let fault = format!("tasks took credits of a grant of entry {grant}, which does not exist");
        audit.drifts.push(Drift { account_id, task_id: None, fault });
    }
    Ok(audit)
}

/// The credits that queued tasks took from grants, with the account of one of the tasks.
type Taken = BTreeMap<i64, (Id, i64)>;

/// Compares a queued task with its references, and adds up the credits that it took from grants.
fn match_queued(row: &Row, all_taken: &mut Taken, drifts: &mut Vec<Drift>) -> Result<()> {
    let (account_id, task_id) = (row.get("account_id")?, Some(TaskId(row.get("id")?)));
    let mut fault = |fault: String| drifts.push(Drift { account_id, task_id, fault });
    let (count, cost): (u64, i64) = (row.get("reference_count")?, row.get::<i64>("n")? * CREDITS_PER_IMAGE);
    // If the references cannot be read, the task ends when it is claimed.
    let references = serde_json::from_str::<Vec<IgnoredAny>>(&row.get::<String>("reference_images")?);
    if let Some(references) = references.ok().map(|all| all.len() as u64).filter(|number| *number != count) {
        let queued = counted(count, "reference image", "reference images");
        fault(format!("is queued as a task with {queued} but has {references}"));
    }
    let taken: String = row.get("taken")?;
    let Ok(parts) = serde_json::from_str::<Vec<(i64, i64)>>(&taken) else {
        fault(format!("took unreadable credits of grants: {taken}"));
        return Ok(());
    };
    let all = parts.iter().fold(0, |sum: i64, (_, part)| sum.saturating_add(*part));
    if all > cost || parts.iter().any(|(_, part)| *part <= 0) {
        fault(format!("took {all} of grants, but costs {cost}"));
    }
    for (grant, part) in parts {
        let (_, sum) = all_taken.entry(grant).or_insert((account_id, 0));
        *sum = sum.saturating_add(part);
    }
    Ok(())
}

/// Checks that no credit of a grant is there twice.
fn match_grant(row: &Row, taken: &mut Taken, drifts: &mut Vec<Drift>) -> Result<()> {
    let (account_id, entry_id): (Id, i64) = (row.get("account_id")?, row.get("entry_id")?);
    let (amount, remaining): (i64, i64) = (row.get("amount")?, row.get("remaining")?);
    let lapsed: i64 = row.get("lapsed")?;
    let (_, held) = taken.remove(&entry_id).unwrap_or((account_id, 0));
    if (remaining + lapsed).saturating_add(held) > amount {
        let fault = format!(
            "of the {amount} granted by entry {entry_id}, {remaining} are left, {lapsed} lapsed and unfinished tasks \
             took {held}"
        );
        drifts.push(Drift { account_id, task_id: None, fault });
    }
    Ok(())
}
