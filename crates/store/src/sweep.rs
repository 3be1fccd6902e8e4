//! Sweeps: reclaiming lost leases, failing overdue tasks, and ending expired grants. They go account by account, and
//! task by task, so that damaged or locked rows delay nothing else.

use std::time::Duration;

#[cfg(doc)]
use super::MAX_LOST_LEASES;
use super::driver::{Dialect, Parameter, Row, Store, Transaction, between_faults};
use super::endings::{FailOrRequeue, select_queue_rows};
use super::{LONGEST_LEASE, Reclaim, Reclaimed, Result, StoreError, ledger, progress};
use crate::failure::{DbError, DbResult};
use crate::values::Value;
use tintype_domain::model::{FailureCause, Id, TaskRef};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// A sweep of the queue, which ends tasks or queues them again.
#[derive(Debug, Clone)]
enum Sweep {
    /// Tasks whose leases are reclaimed.
    Leases(Reclaim),
    /// Tasks with an id below this one.
    Before(Id),
    /// Waiting tasks with more references than this.
    Beyond(u32),
    /// Waiting tasks whose engine isn't in this JSON object, or takes fewer references than they have. The object maps
    /// engines to their most references.
    Unmatched(String),
}

impl Sweep {
    /// The parameter $1 of its condition.
    fn bound(&self, time: Option<Timestamp>) -> Value<'static> {
        match self {
            Self::Leases(Reclaim::Expired) => time.map_or(Value::Null, |time| Value::Integer(time.as_millis())),
            Self::Leases(Reclaim::All) => Value::Integer(Timestamp::MAX.saturating_sub(LONGEST_LEASE).as_millis()),
            Self::Before(end) => Value::Text(end.to_string().into()),
            Self::Beyond(most) => Value::Integer((*most).into()),
            Self::Unmatched(engines) => Value::Text(engines.clone().into()),
        }
    }

    /// The condition for the queue rows `q` that it looks for, and SQLite's hint at an index for them.
    fn sought(&self, dialect: &impl Dialect) -> (String, &'static str) {
        match self {
            // Leases that have ended, or last longer than any lease: the clock was set back since.
            Self::Leases(_) => {
                let (now, longest) = (dialect.time_in(1), LONGEST_LEASE.as_millis());
                let ended = format!("(q.lease_until <= {now} OR q.lease_until > {now} + {longest})");
                (format!("q.lease_until IS NOT NULL AND {ended}"), "INDEXED BY queue_leased")
            }
            Self::Before(_) => ("q.task_id < $1".into(), ""),
            Self::Beyond(_) => {
                let beyond = "q.reference_count > 0 AND q.reference_count > CAST($1 AS bigint)";
                (format!("q.lease_until IS NULL AND {beyond}"), "INDEXED BY queue_with_references")
            }
            Self::Unmatched(_) => {
                let engines = dialect.either("json_each($1)", "json_each_text(CAST(CAST($1 AS text) AS json))");
                let unmatched = format!(
                    "q.engine > '' AND q.lease_until IS NULL AND q.reference_count > coalesce(
                         (SELECT CAST(e.value AS bigint) FROM {engines} e WHERE e.key = q.engine), -1)"
                );
                (unmatched, "INDEXED BY queue_named")
            }
        }
    }
}

/// What a sweep asks for.
struct Statements {
    /// The accounts with tasks that it looks for.
    accounts: String,
    /// Up to `most` of those of the account $3.
    lost: String,
    most: usize,
}

impl Sweep {
    fn statements(&self, dialect: &impl Dialect) -> Statements {
        let (condition, hint) = self.sought(dialect);
        let hint = dialect.either(hint, "");
        let accounts =
            format!("SELECT DISTINCT q.account_id FROM queue q {hint} WHERE {condition} AND q.task_id >= $2");
        let (by_id, most) = dialect.either(("", 256), ("COLLATE \"POSIX\"", 32));
        let of_account = format!(
            "{condition} AND q.task_id {by_id} >= $2 AND q.account_id = $3 ORDER BY q.task_id {by_id} LIMIT {most}"
        );
        // Never waits: skips tasks that another transaction is about to end, and locked accounts.
        let locking = dialect.locking("FOR UPDATE OF q SKIP LOCKED FOR NO KEY UPDATE OF a SKIP LOCKED");
        Statements { accounts, lost: select_queue_rows(hint, &of_account, locking), most }
    }
}

/// The part of a sweep for one account or task.
enum Part<T> {
    Done(T),
    /// A row is damaged; nothing was done.
    Damaged,
    /// Another transaction holds a lock on a row; nothing was done.
    Locked,
}

/// Runs the part of a sweep for one account or task. If rows are damaged, or locked for too long, only this part is
/// undone.
async fn part_of_sweep<T>(
    tx: &Transaction<'_>,
    id: String,
    part: impl Future<Output = DbResult<T>>,
) -> DbResult<Part<T>> {
    tx.execute("SAVEPOINT part", &[]).await?;
    let undone = match part.await {
        Ok(done) => {
            tx.execute("RELEASE part", &[]).await?;
            return Ok(Part::Done(done));
        }
        Err(failure @ (DbError::Broken(_) | DbError::Unknown(_) | DbError::Refused(StoreError::Full(_)))) => {
            return Err(failure);
        }
        Err(DbError::Busy(error) | DbError::Deadlock(error)) => {
            tracing::warn!(%id, %error, "another transaction locks an account or a task; the next sweep tries again");
            Part::Locked
        }
        Err(DbError::Refused(error)) => {
            tracing::error!(%id, %error, "could not sweep an account or a task; see `tintype credits audit`");
            Part::Damaged
        }
    };
    // Fails if SQLite has rolled back everything.
    tx.execute("ROLLBACK TO part", &[]).await.map_err(|failure| DbError::Broken(failure.into()))?;
    tx.execute("RELEASE part", &[]).await?;
    Ok(undone)
}

/// Limits how long this transaction waits for the locks of others: while one account waits, all others of the sweep do.
async fn limit_lock_waits(tx: &Transaction<'_>) -> DbResult {
    match tx {
        Transaction::Sqlite(..) => Ok(()),
        Transaction::Postgres(..) => tx.query("SELECT set_config('lock_timeout', '500ms', true)", &[]).await.map(drop),
    }
}

/// The account in a row of those to sweep, unless it is damaged.
fn account_of(row: &Row) -> Option<Id> {
    let account_id = row.get("account_id");
    account_id.inspect_err(|error| tracing::error!(%error, "could not sweep an account; see `tintype doctor`")).ok()
}

/// Some tasks of one account that a sweep looks for.
struct SomeTasks {
    /// Selects them.
    lost: String,
    bound: Value<'static>,
    horizon: String,
    account_id: Id,
    rule: FailOrRequeue,
}

impl SomeTasks {
    /// Fails or requeues them. Returns how many were found, too, or 0 if the account has to wait for the next sweep.
    async fn apply(&self, tx: &Transaction<'_>) -> DbResult<(usize, Reclaimed)> {
        limit_lock_waits(tx).await?;
        let parameters: [&dyn Parameter; 3] = [&self.bound, &self.horizon, &self.account_id];
        let rows = match part_of_sweep(tx, self.account_id.to_string(), tx.query(&self.lost, &parameters)).await? {
            Part::Done(rows) => rows,
            Part::Damaged | Part::Locked => return Ok((0, Reclaimed::default())),
        };
        let mut all = Reclaimed::default();
        for row in &rows {
            let part = self.rule.apply_to_rows(tx, std::slice::from_ref(row));
            match part_of_sweep(tx, row.get("task_id")?, part).await? {
                Part::Done(one) => all.add(one),
                Part::Damaged => {}
                // Each of the account's other tasks could wait as long, and the other accounts with it.
                Part::Locked => return Ok((0, all)),
            }
        }
        Ok((rows.len(), all))
    }
}

/// Ends the grants of an account that have expired.
async fn end_grants(tx: &Transaction<'_>, account_id: Id, now: Timestamp) -> DbResult<usize> {
    let expired = "SELECT entry_id, remaining, expires_at FROM expiring_grants
        WHERE account_id = $1 AND lapsed IS NULL AND expires_at <= $2 ORDER BY expires_at, entry_id";
    let grants = tx.list(expired, &[&account_id, &now], ledger::grant).await?;
    ledger::end_grants(tx, account_id, grants, now).await
}

impl Store {
    /// Queues the tasks that a sweep looks for again, or fails and refunds them, in one or more transactions for each
    /// account.
    async fn sweep_accounts(&self, sweep: &Sweep, rule: &FailOrRequeue) -> Result<Reclaimed> {
        let horizon = self.driver.horizon();
        let Statements { accounts, lost, most } = sweep.statements(&self.driver);
        let mut all = Reclaimed::default();
        let bound = sweep.bound(self.driver.time());
        for row in self.driver.read_by_index(&accounts, &[&bound, &horizon]).await? {
            let Some(account_id) = account_of(&row) else { continue };
            loop {
                let some = SomeTasks {
                    lost: lost.clone(),
                    bound: sweep.bound(self.driver.time()),
                    horizon: horizon.clone(),
                    account_id,
                    rule: rule.clone(),
                };
                let (found, reclaimed) = match self.write(None, async move |tx| some.apply(tx).await).await {
                    Ok(applied) => applied,
                    // Those who wait for the tasks that have ended must learn of it.
                    Err(error) if all.queued + all.failed.len() > 0 => {
                        tracing::error!(%error, "a sweep ended early; the next one tries again");
                        return Ok(all);
                    }
                    Err(error) => return Err(error),
                };
                let ended = reclaimed.queued + reclaimed.failed.len();
                all.add(reclaimed);
                if found > ended {
                    let (account, tasks) = (account_id.as_str(), found - ended);
                    tracing::error!(account, tasks, "could not end or requeue tasks; see `tintype credits audit`");
                }
                if found < most || ended == 0 {
                    break;
                }
            }
        }
        Ok(all)
    }

    async fn sweep(&self, effect: Effect, sweep: Sweep, rule: FailOrRequeue) -> Result<Reclaimed> {
        between_faults(self.driver.faults(), effect, self.sweep_accounts(&sweep, &rule)).await
    }

    /// Reclaims leases. Their tasks are queued again, or failed with `last_error` after [`MAX_LOST_LEASES`] lost
    /// leases. Also deletes the progress of attempts that have ended.
    pub async fn reclaim(&self, which: Reclaim, last_error: &str) -> Result<Reclaimed> {
        let rule = FailOrRequeue::lost(last_error, Duration::ZERO);
        let reclaimed = self.sweep(Effect::Reclaim, Sweep::Leases(which), rule).await?;
        // The tasks are reclaimed all the same.
        if let Err(error) = self.write(None, async |tx| progress::forget_ended(tx).await).await {
            tracing::debug!(%error, "could not delete the progress of attempts that have ended; \
                the next sweep tries again");
        }
        Ok(reclaimed)
    }

    /// Fails and refunds every unfinished task created at or before `cutoff` of [`Store::now`]; returns them in any
    /// order.
    pub async fn expire(&self, cutoff: Timestamp, error: &str) -> Result<Vec<TaskRef>> {
        // Ids begin with the creation time, so the first id after the cutoff bounds a range of them.
        let end = Id::floor(Timestamp::from_millis(cutoff.as_millis().saturating_add(1)));
        let rule = FailOrRequeue::fail(FailureCause::Expired, error);
        Ok(self.sweep(Effect::Expire, Sweep::Before(end), rule).await?.failed)
    }

    /// Fails and refunds every waiting task with more than `max_references` reference images; returns them in any
    /// order.
    pub async fn fail_over_reference_limit(&self, max_references: u32, error: &str) -> Result<Vec<TaskRef>> {
        let rule = FailOrRequeue::fail(FailureCause::TooManyReferences(max_references), error);
        Ok(self.sweep(Effect::FailBeyond, Sweep::Beyond(max_references), rule).await?.failed)
    }

    /// Fails and refunds every waiting task that names an engine which is not among these, or has more reference images
    /// than its engine takes; returns them in any order. Each of `engines` is a name and the most reference images that
    /// it takes.
    pub async fn fail_without_engine(&self, engines: &[(String, u32)], error: &str) -> Result<Vec<TaskRef>> {
        let engines: serde_json::Map<String, serde_json::Value> =
            engines.iter().map(|(name, most)| (name.clone(), (*most).into())).collect();
        let engines = serde_json::Value::from(engines).to_string();
        let rule = FailOrRequeue::fail(FailureCause::NoEngine, error);
        Ok(self.sweep(Effect::FailUnmatched, Sweep::Unmatched(engines), rule).await?.failed)
    }

    /// Ends the grants that have expired by [`Store::now`]: an entry of kind `expiry` takes each grant's remaining
    /// credits from its account. Returns the number of grants. Skips an account that another transaction has locked.
    pub async fn expire_grants(&self) -> Result<usize> {
        let due = "SELECT DISTINCT account_id FROM expiring_grants WHERE lapsed IS NULL AND expires_at <= $1";
        let lapse = async {
            let (now, mut all) = (self.now(), 0);
            let due = self.driver.read_by_index(due, &[&now]).await?;
            for row in due {
                let Some(account_id) = account_of(&row) else { continue };
                let end = async move |tx: &Transaction<'_>| {
                    limit_lock_waits(tx).await?;
                    let locking = tx.locking("FOR NO KEY UPDATE SKIP LOCKED");
                    let lock = format!("SELECT 1 FROM accounts WHERE id = $1 {locking}");
                    if tx.query_opt(&lock, &[&account_id]).await?.is_none() {
                        return Ok(0);
                    }
                    let end = end_grants(tx, account_id, now);
                    Ok(match part_of_sweep(tx, account_id.to_string(), end).await? {
                        Part::Done(ended) => ended,
                        Part::Damaged | Part::Locked => 0,
                    })
                };
                all += self.write(None, end).await?;
            }
            Ok(all)
        };
        between_faults(self.driver.faults(), Effect::LapseGrants, lapse).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{self, plans};
    use tintype_system::clock::Clock;

    #[test]
    fn sweeps_read_no_tasks_that_they_do_not_look_for() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let store = sqlite::open(&directory.path().join("tintype.db"), Clock::system()).expect("a database");
        let database = plans::empty();
        for sweep in [Sweep::Leases(Reclaim::Expired), Sweep::Beyond(1), Sweep::Unmatched("{}".into())] {
            let (_, hint) = sweep.sought(&store.driver);
            let index = hint.strip_prefix("INDEXED BY ").expect("an index");
            let Statements { accounts, lost, .. } = sweep.statements(&store.driver);
            for sql in [accounts, lost] {
                let steps = plans::steps(&database, &sql);
                assert!(steps.iter().any(|step| step.contains(index)), "{sweep:?}: {steps:?}");
            }
        }
    }
}
