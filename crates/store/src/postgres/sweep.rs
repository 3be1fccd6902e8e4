//! Sweeps: reclaiming lost leases, and failing overdue tasks. Account by account, so that an account whose rows are
//! damaged or locked delays no other.

use tokio_postgres::types::ToSql;

use super::connection::{Database, Transaction};
use crate::driver::{self, Row, millis};
use crate::endings::{GivenUp, Loss, select_lost};
use crate::failure::{Done, Failure};
use crate::upkeep::Sweep;
use crate::{LONGEST_LEASE, Rescue, Rescued, Result};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Most tasks that a sweep ends in one transaction.
const BATCH: usize = 32;

/// The tasks that a sweep looks for.
pub(super) struct Search<'a> {
    /// Condition for a row `q` of the queue, with the parameter $1.
    condition: String,
    bound: Box<dyn ToSql + Send + Sync>,
    /// No unfinished task is below this id.
    horizon: Id,
    loss: &'a Loss,
}

impl<'a> Search<'a> {
    pub(super) fn new(database: &Database, sweep: &Sweep, loss: &'a Loss) -> Self {
        let (condition, bound): (String, Box<dyn ToSql + Send + Sync>) = match sweep {
            // Leases that have ended, or last longer than any lease: the server's clock was set back since.
            Sweep::Leases(which) => {
                let until = match which {
                    Rescue::Expired => database.given_time(),
                    Rescue::All => Some(Timestamp::MAX.saturating_sub(LONGEST_LEASE)),
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
        };
        Self { condition, bound, horizon: database.horizon(), loss }
    }

    /// Gives up the tasks, in one or more transactions for each account.
    pub(super) async fn run(&self, database: &Database) -> Result<Rescued> {
        // On a connection for writing, whose plan begins at the horizon.
        let sql = format!("SELECT DISTINCT q.account_id FROM queue q WHERE {} AND q.task_id >= $2", self.condition);
        let mut all = Rescued::default();
        for row in database.write(&sql, &[&*self.bound, &self.horizon]).await? {
            let account: &str = row.try_get(0)?;
            match self.sweep_account(database, account).await {
                Ok(rescued) => all.add(rescued),
                Err(Failure::Busy(error) | Failure::Deadlock(error) | Failure::Refused(error)) => {
                    tracing::error!(account, %error, "cannot sweep the tasks of an account; \
                        see `tintype credits audit`");
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(all)
    }

    /// Skips tasks that another transaction is about to end, and an account that another transaction has locked, so
    /// that it never waits.
    async fn sweep_account(&self, database: &Database, account: &str) -> Done<Rescued> {
        let condition = format!(
            "{} AND q.task_id COLLATE \"POSIX\" >= $2 AND q.account_id = $3 ORDER BY q.task_id COLLATE \"POSIX\"",
            self.condition
        );
        let locking = format!("LIMIT {BATCH} FOR UPDATE OF q SKIP LOCKED FOR NO KEY UPDATE OF a SKIP LOCKED");
        let lost = select_lost(&condition, &locking);
        let sweep = async |begun: &Transaction<'_>| {
            let rows = begun.query(&lost, &[&*self.bound, &self.horizon, &account]).await?;
            let rows: Vec<Row> = rows.into_iter().map(Row::Postgres).collect();
            let begun = driver::Transaction::Postgres(database, begun);
            Ok((rows.len(), self.loss.give_up_rows(&begun, &rows).await?))
        };
        let mut all = Rescued::default();
        loop {
            let (found, GivenUp { queued, failed }) = database.transaction(sweep).await?;
            let failed: Vec<_> = failed.into_iter().map(|(ended, _)| ended).collect();
            let ended = queued + failed.len();
            all.add(Rescued { queued, failed });
            if found > ended {
                let tasks = found - ended;
                tracing::error!(account, tasks, "could not end or requeue tasks; see `tintype credits audit`");
            }
            if found < BATCH || ended == 0 {
                return Ok(all);
            }
        }
    }
}
