//! Removes old tasks, erases prompts and audits the ledger. No request waits for this work.

use std::time::Duration;

use super::driver::{Dialect, List, Parameter, Store, Transaction, with_store};
use super::failure::DbResult;
use super::gallery::{delete_of, forget, remove_from_index};
use super::{Audit, LONGEST_PAUSE, Result};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Up to $4 tasks of the account $3 that ended before $1. No task ends before its creation, so all of them have an id
/// beyond $2, the lowest id of that time. They form one range of the index `tasks_of_account`, which contains no
/// removed tasks, and few that were unfinished then.
const REMOVABLE_ON_SQLITE: &str = "
    SELECT id FROM tasks INDEXED BY tasks_of_account
    WHERE account_id = $3 AND surface IN ('api', 'web') AND id < $2 AND removed_at IS NULL AND status <> 'processing'
    AND updated_at < $1 LIMIT $4";

/// The same tasks on PostgreSQL. Only this index is ordered by surface.
const REMOVABLE_ON_POSTGRES: &str = "
    SELECT id FROM tasks
    WHERE account_id = $3 AND id < $2 AND removed_at IS NULL AND status <> 'processing' AND updated_at < $1
    ORDER BY surface, id LIMIT $4";

/// Erases what a request asked for.
pub(super) const ERASED: &str = "prompt = '', reference_images = '[]', settings = NULL";

/// Tasks that are removed, or prompts that are erased, in one transaction. SQLite lets the writes of callers run in
/// between.
fn batch(tx: &Transaction<'_>) -> i64 {
    tx.either(256, 1_000)
}

/// Removes some tasks of an account. Returns their number, and whether more may be due.
async fn remove(tx: &Transaction<'_>, account_id: Id, cutoff: Timestamp) -> DbResult<(usize, bool)> {
    let due = format!(
        "{} {}",
        tx.either(REMOVABLE_ON_SQLITE, REMOVABLE_ON_POSTGRES),
        tx.locking("FOR NO KEY UPDATE SKIP LOCKED")
    );
    let most = batch(tx);
    let parameters: [&dyn Parameter; 4] = [&cutoff, &Id::floor(cutoff), &account_id, &most];
    let due: Vec<Id> = tx.list(&due, &parameters, |row| row.get("id")).await?;
    let removed = forget(tx, &due).await?;
    let hide = format!("UPDATE tasks SET removed_at = $2, {ERASED}, request_id = NULL WHERE id {}", tx.in_list(1));
    tx.execute(&hide, &[&List(removed), &tx.now()]).await?;
    Ok((removed.len(), due.len() as i64 == most || removed.len() < due.len()))
}

/// Notes the prompt of the task $1 that fails, for its removal later.
pub(super) const KEEP_FAILED_PROMPT: &str = "INSERT INTO failed_prompts (task_id, account_id, bytes)
    SELECT id, account_id,
        octet_length(prompt) + octet_length(reference_images) + coalesce(octet_length(settings), 0)
    FROM tasks WHERE id = $1";

/// Erases some of an account's prompts, up to the prompt of the task `latest`; returns their number.
async fn erase(tx: &Transaction<'_>, account_id: Id, latest: Id) -> DbResult<usize> {
    let due = format!(
        "SELECT task_id FROM failed_prompts WHERE account_id = $1 AND task_id <= $2
         ORDER BY account_id, task_id LIMIT $3 {}",
        tx.locking("FOR UPDATE SKIP LOCKED")
    );
    let due: Vec<Id> = tx.list(&due, &[&account_id, &latest, &batch(tx)], |row| row.get("task_id")).await?;
    let erased = remove_from_index(tx, &due).await?;
    let blank = format!("UPDATE tasks SET {ERASED} WHERE id {}", tx.in_list(1));
    tx.execute(&blank, &[&List(erased)]).await?;
    delete_of(tx, "failed_prompts", erased).await?;
    Ok(erased.len())
}

/// Takes the first of the sweeps $1 that is due at `now`, unless someone is quicker.
fn take(sweeps: &str, now: &str) -> String {
    format!(
        "WITH first AS (
             SELECT wanted.name FROM {sweeps} LEFT JOIN sweeps s ON s.name = wanted.name
             WHERE s.due_at IS NULL OR s.due_at <= {now} OR s.due_at > {now} + $4 ORDER BY wanted.place LIMIT 1
         )
         INSERT INTO sweeps AS s (name, due_at) SELECT name, {now} + $3 FROM first WHERE TRUE
         ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at
         WHERE s.due_at <= {now} OR s.due_at > {now} + $4
         RETURNING name"
    )
}

impl Store {
    /// Removes every task that ended before `cutoff` of [`Store::now`]: erases its request and hides it from every
    /// lookup except [`Store::inspect_task`] and [`Store::task_files`]. Its ledger entries and the names of its files
    /// stay. Returns the number of tasks.
    pub async fn remove_tasks(&self, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        let mut last = String::new();
        loop {
            let sql = "SELECT id FROM accounts WHERE id > $1 ORDER BY id LIMIT 1000";
            let page = self.driver.read(sql, &[&last]).await?;
            let Some(row) = page.last() else { return Ok(all) };
            last = row.get("id")?;
            for row in &page {
                all += self.remove_tasks_of(row.get("id")?, cutoff).await?;
            }
        }
    }

    /// Removes the tasks of one account that ended before `cutoff` of [`Store::now`], as [`Store::remove_tasks`] does.
    pub async fn remove_tasks_of(&self, account_id: Id, cutoff: Timestamp) -> Result<usize> {
        let due = self.driver.either(REMOVABLE_ON_SQLITE, REMOVABLE_ON_POSTGRES);
        let floor = Id::floor(cutoff);
        // Read first: a write that changes nothing would be a commit, too.
        if self.driver.read_one(due, &[&cutoff, &floor, &account_id, &1_i64]).await?.is_none() {
            return Ok(0);
        }
        let mut all = 0;
        loop {
            let (some, has_more) =
                self.write(Effect::RemoveTasks, async move |tx| remove(tx, account_id, cutoff).await).await?;
            all += some;
            if !has_more {
                return Ok(all);
            }
        }
    }

    /// Claims the first due one of `sweeps`, by the database's time; `None` if none is due. Postpones it by `hold`, so
    /// that no other process claims it. A sweep that was never claimed is due.
    pub async fn claim_sweep(&self, sweeps: &[String], hold: Duration) -> Result<Option<String>> {
        let wanted = self.driver.either(
            "(SELECT value AS name, key AS place FROM json_each($1)) wanted",
            "unnest(CAST($1 AS text[])) WITH ORDINALITY AS wanted (name, place)",
        );
        let sql = take(wanted, &self.driver.time_in(2));
        let parameters: [&dyn Parameter; 4] = [&List(sweeps), &self.driver.time(), &hold, &LONGEST_PAUSE];
        let taken = self.statement(None, sql, &parameters).await?;
        taken.first().map(|row| row.get("name")).transpose()
    }

    /// Postpones a sweep by `pause`, at most [`LONGEST_PAUSE`].
    pub async fn postpone_sweep(&self, sweep: &str, pause: Duration) -> Result<()> {
        let sweep = sweep.to_owned();
        self.write(None, async move |tx| {
            // The day of a sweep that has long been due has no files any more, or it is due with or without a row.
            let gone = tx.now().saturating_sub(LONGEST_PAUSE);
            tx.execute("DELETE FROM sweeps WHERE due_at < $1 AND name <> $2", &[&gone, &sweep]).await?;
            let sql = "INSERT INTO sweeps (name, due_at) VALUES ($1, $2)
                ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at";
            tx.execute(sql, &[&sweep, &tx.now().saturating_add(pause)]).await.map(drop)
        })
        .await
    }

    /// Recomputes every balance and matches every task with its charge and refund.
    pub async fn audit(&self) -> Result<Audit> {
        with_store!(self.driver, store => store.audit_credits().await)
    }

    /// Time of the `nth` most recent failure (1-based) of the account after `since` and up to `until`; `None` if fewer
    /// tasks failed. Cancelled tasks did not fail.
    pub async fn failed_at(
        &self,
        account_id: Id,
        since: Timestamp,
        until: Timestamp,
        nth: u32,
    ) -> Result<Option<Timestamp>> {
        let sql = format!(
            "SELECT l.created_at FROM ledger l {} CROSS JOIN tasks t WHERE t.id = l.task_id
             AND l.account_id = $1 AND l.kind = 'refund' AND l.created_at > $2 AND l.created_at <= $4
             AND t.cause IS DISTINCT FROM 'cancelled'
             ORDER BY l.account_id DESC, l.created_at DESC LIMIT 1 OFFSET CAST($3 AS bigint) - 1",
            self.driver.either("INDEXED BY refunds_of_account", "")
        );
        let parameters: [&dyn Parameter; 4] = [&account_id, &since, &nth, &until];
        self.driver.find(&sql, &parameters, |row| row.get("created_at")).await
    }

    /// Erases prompts and references of tasks that failed: of all that were submitted before `cutoff` of
    /// [`Store::now`], and of each account the oldest beyond `most` bytes. The tasks stay. Returns their number.
    pub async fn erase_failed_prompts(&self, cutoff: Timestamp, most: u64) -> Result<usize> {
        // The accounts with prompts to erase, each with the latest task to lose its prompt.
        let due = "SELECT account_id, max(task_id) AS latest FROM (
                SELECT account_id, task_id, sum(bytes) OVER (PARTITION BY account_id ORDER BY task_id DESC) AS kept
                FROM failed_prompts) AS sums
            WHERE task_id < $1 OR kept > CAST($2 AS bigint) GROUP BY account_id";
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut all = 0;
        for row in self.driver.long_read(due.to_owned(), &[&Id::floor(cutoff), &most]).await? {
            let (account_id, latest) = (row.get("account_id")?, row.get("latest")?);
            loop {
                match self.write(Effect::EraseTasks, async move |tx| erase(tx, account_id, latest).await).await? {
                    0 => break,
                    some => all += some,
                }
            }
        }
        Ok(all)
    }
}
