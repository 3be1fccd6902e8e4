//! Sweeps: taking away lost leases, and failing overdue tasks. Account by account, so that one whose rows are damaged
//! or locked delays no other.

use tokio_postgres::types::ToSql;

use super::connection::{Database, Transaction};
use crate::driver::{self, Row, millis};
use crate::endings::{GivenUp, Loss, select_lost};
use crate::failure::{Done, Failure};
use crate::fleet::engines_in_json;
use crate::{LONGEST_LEASE, Rescue, Rescued, Result};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Most tasks that a sweep ends in one transaction.
const BATCH: usize = 32;

/// A sweep.
pub(super) struct Sweep {
    /// Condition for a row `q` of the queue, in which `$bound` stands for the parameter `bound`.
    sought: String,
    bound: Box<dyn ToSql + Send + Sync>,
    /// No unfinished task is below this id.
    horizon: Id,
    loss: Loss,
}

impl Sweep {
    /// Takes away leases that have ended, or last longer than any lease: the server's clock was set back since.
    pub(super) fn rescue(database: &Database, which: Rescue, loss: Loss) -> Self {
        let until = match which {
            Rescue::Expired => database.given_time(),
            Rescue::All => Some(Timestamp::MAX.saturating_sub(LONGEST_LEASE)),
        };
        let (now, longest) = ("tintype_now($bound)", millis(LONGEST_LEASE));
        let sought = format!("(q.lease_until <= {now} OR q.lease_until > {now} + {longest})");
        Self { sought, bound: Box::new(until), horizon: database.horizon(), loss }
    }

    /// Fails the tasks created at or before `cutoff`.
    pub(super) fn expire(database: &Database, cutoff: Timestamp, loss: Loss) -> Self {
        // Ids begin with the time of creation, so the first id after the cutoff bounds a range of them.
        let end = Id::floor(Timestamp::from_millis(cutoff.as_millis().saturating_add(1)));
        Self { sought: "q.task_id < $bound".into(), bound: Box::new(end), horizon: database.horizon(), loss }
    }

    /// Fails the waiting tasks with more references than this.
    pub(super) fn beyond(database: &Database, max_references: u32, loss: Loss) -> Self {
        let sought = "q.reference_count > $bound::bigint AND q.lease_until IS NULL".into();
        Self { sought, bound: Box::new(i64::from(max_references)), horizon: database.horizon(), loss }
    }

    /// Fails the waiting tasks whose engine is not among these, or takes fewer references than they have.
    pub(super) fn unmatched(database: &Database, engines: &[(String, u32)], loss: Loss) -> Self {
        let sought = "q.engine > '' AND q.lease_until IS NULL AND q.reference_count > coalesce(
            (SELECT e.value::bigint FROM json_each_text($bound::text::json) e WHERE e.key = q.engine), -1)";
        let engines = engines_in_json(engines);
        Self { sought: sought.into(), bound: Box::new(engines), horizon: database.horizon(), loss }
    }

    /// Gives up the tasks, in one or more transactions for each account.
    pub(super) async fn run(&self, database: &Database) -> Result<Rescued> {
        // On a connection for writing, whose plan begins at the horizon.
        let sought = self.sought.replace("$bound", "$1");
        let sql = format!("SELECT DISTINCT q.account_id FROM queue q WHERE {sought} AND q.task_id >= $2");
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
            self.sought.replace("$bound", "$1")
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
