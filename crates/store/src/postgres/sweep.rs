//! Sweeps: reclaiming lost leases, failing overdue tasks, and ending expired grants. They go account by account, so
//! that an account with damaged or locked rows doesn't delay others.

use super::PostgresStore;
use crate::driver::{Parameter, Transaction, millis};
use crate::endings::{Loss, select_lost};
use crate::failure::{Done, Failure};
use crate::upkeep::Sweep;
use crate::{LONGEST_LEASE, Reclaim, Reclaimed, Result, StoreError, ledger, progress};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Most tasks that a sweep ends in one transaction.
const BATCH: usize = 32;

type Bound = Box<dyn Parameter + Send>;

/// What a sweep of one account did; `None` if its rows are damaged or locked for too long.
fn unless_refused<T>(account: &str, what: &str, swept: Done<T>) -> Result<Option<T>> {
    match swept {
        Ok(swept) => Ok(Some(swept)),
        Err(Failure::Busy(error) | Failure::Deadlock(error) | Failure::Refused(error)) => {
            tracing::error!(account, %error, "could not {what} of an account; see `tintype credits audit`");
            Ok(None)
        }
        Err(failure) => Err(failure.into()),
    }
}

impl PostgresStore {
    pub(crate) async fn sweep(&self, effect: Effect, sweep: &Sweep, loss: &Loss) -> Result<Reclaimed> {
        let reclaimed = self.write(effect, self.give_up(sweep, loss)).await?;
        if let Sweep::Leases(_) = sweep {
            // The tasks are reclaimed all the same.
            let forget = async |tx: &Transaction<'_>| progress::forget_ended(tx).await;
            if let Err(failure) = self.database.transaction(None, forget).await {
                let error = StoreError::from(failure);
                tracing::debug!(%error, "could not delete the progress of attempts that have ended; \
                    the next sweep tries again");
            }
        }
        Ok(reclaimed)
    }

    /// The condition for the rows `q` of the queue that a sweep looks for, and its parameter $1.
    fn sought(&self, sweep: &Sweep) -> (String, Bound) {
        match sweep {
            // Leases that have ended, or last longer than any lease: the server's clock was set back since.
            Sweep::Leases(which) => {
                let until = match which {
                    Reclaim::Expired => self.database.given_time(),
                    Reclaim::All => Some(Timestamp::MAX.saturating_sub(LONGEST_LEASE)),
                };
                let (now, longest) = ("tintype_now($1)", millis(LONGEST_LEASE));
                (format!("(q.lease_until <= {now} OR q.lease_until > {now} + {longest})"), Box::new(until))
            }
            Sweep::Before(end) => ("q.task_id < $1".into(), Box::new(*end)),
            Sweep::Beyond(most) => {
                let beyond = "q.reference_count > $1::bigint AND q.lease_until IS NULL";
                (beyond.into(), Box::new(i64::from(*most)))
            }
            Sweep::Unmatched(engines) => {
                let unmatched = "q.engine > '' AND q.lease_until IS NULL AND q.reference_count > coalesce(
                    (SELECT e.value::bigint FROM json_each_text($1::text::json) e WHERE e.key = q.engine), -1)";
                (unmatched.into(), Box::new(engines.clone()))
            }
        }
    }

    /// Queues the tasks again, or fails and refunds them, in one or more transactions for each account.
    async fn give_up(&self, sweep: &Sweep, loss: &Loss) -> Result<Reclaimed> {
        let ((condition, bound), horizon) = (self.sought(sweep), self.database.horizon());
        // On a connection for writing, because its plan begins at the horizon.
        let accounts = format!("SELECT DISTINCT q.account_id FROM queue q WHERE {condition} AND q.task_id >= $2");
        let ordered = format!(
            "{condition} AND q.task_id COLLATE \"POSIX\" >= $2 AND q.account_id = $3
             ORDER BY q.task_id COLLATE \"POSIX\""
        );
        // Skips tasks that another transaction is about to end, and an account that another one has locked, so that it
        // never waits.
        let locking = format!("LIMIT {BATCH} FOR UPDATE OF q SKIP LOCKED FOR NO KEY UPDATE OF a SKIP LOCKED");
        let lost = select_lost(&ordered, &locking);
        let mut all = Reclaimed::default();
        for row in self.database.write(&accounts, &[bound.for_postgres(), &horizon]).await? {
            let account: &str = row.try_get(0)?;
            let some = async |tx: &Transaction<'_>| {
                let rows = tx.query(&lost, &[&*bound, &horizon, &account]).await?;
                Ok((rows.len(), loss.give_up_rows(tx, &rows).await?))
            };
            while let Some((found, reclaimed)) =
                unless_refused(account, "end or requeue tasks", self.database.transaction(None, some).await)?
            {
                let ended = reclaimed.queued + reclaimed.failed.len();
                all.add(reclaimed);
                if found > ended {
                    let tasks = found - ended;
                    tracing::error!(account, tasks, "could not end or requeue tasks; see `tintype credits audit`");
                }
                if found < BATCH || ended == 0 {
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Ends the grants that have expired. Skips an account that another transaction has locked.
    pub(crate) async fn lapse_all_grants(&self) -> Result<usize> {
        let due = "SELECT DISTINCT account_id FROM expiring_grants WHERE lapsed IS NULL AND expires_at <= $1";
        let lock = "SELECT 1 FROM accounts WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED";
        let expired = "SELECT entry_id, remaining, expires_at FROM expiring_grants
            WHERE account_id = $1 AND lapsed IS NULL AND expires_at <= $2 ORDER BY expires_at, entry_id";
        let lapse = async {
            let (now, mut all) = (self.database.now(), 0);
            for row in self.database.write(due, &[&now]).await? {
                let account_id: Id = row.try_get(0)?;
                let end = async |tx: &Transaction<'_>| {
                    if tx.query_opt(lock, &[&account_id]).await?.is_none() {
                        return Ok(0);
                    }
                    let grants = tx.list(expired, &[&account_id, &now], ledger::grant).await?;
                    ledger::end_grants(tx, account_id, grants, now).await
                };
                let ended = self.database.transaction(None, end).await;
                all += unless_refused(account_id.as_str(), "end expired grants", ended)?.unwrap_or(0);
            }
            Ok(all)
        };
        self.write(Effect::LapseGrants, lapse).await
    }
}
