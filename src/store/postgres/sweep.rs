//! Sweeps: taking away lost leases, and failing overdue tasks.

use super::connection::{Database, Parameter};
use super::failure::Failure;
use super::queue::{GivenUp, Loss, millis};
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::store::{LONGEST_LEASE, Rescue, Rescued, Result};

/// Most tasks that a sweep ends in one transaction.
const BATCH: usize = 256;

/// The tasks that a sweep gives up.
#[derive(Debug)]
enum Sought {
    /// Leases that ended by `until`, or last longer than any lease: the server's clock was set back since. `until` is
    /// `None` for the server's time.
    Lost { until: Option<Timestamp> },
    /// Tasks with an id below `end`.
    Overdue { end: Id },
}

/// A sweep.
#[derive(Debug)]
pub(super) struct Sweep<'a> {
    sought: Sought,
    /// No unfinished task is below this id.
    horizon: Id,
    loss: Loss<'a>,
}

/// Outcome of one step of a sweep.
#[derive(Debug, Default)]
pub(super) struct Swept {
    pub(super) rescued: Rescued,
    /// Whether there may be more to do.
    pub(super) more: bool,
}

impl<'a> Sweep<'a> {
    /// Takes leases away.
    pub(super) fn rescue(database: &Database, which: Rescue, loss: Loss<'a>) -> Self {
        let until = match which {
            Rescue::Expired => database.given_time(),
            Rescue::All => Some(Timestamp::MAX.saturating_sub(LONGEST_LEASE)),
        };
        Self { sought: Sought::Lost { until }, horizon: database.horizon(), loss }
    }

    /// Fails the tasks created at or before `cutoff`.
    pub(super) fn expire(database: &Database, cutoff: Timestamp, error: &'a str) -> Self {
        // Ids begin with the time of creation, so the first id after the cutoff bounds a range of them.
        let end = Id::floor(Timestamp::from_millis(cutoff.as_millis().saturating_add(1)));
        Self { sought: Sought::Overdue { end }, horizon: database.horizon(), loss: Loss::now(database, error) }
    }

    /// Condition for a row `q` of the queue, with the parameters of [`Sweep::parameters`] from `$first` on.
    fn condition(&self, first: usize) -> String {
        let sought = match self.sought {
            Sought::Lost { .. } => {
                let (now, longest) = (format!("tintype_now(${first})"), millis(LONGEST_LEASE));
                format!("(q.lease_until <= {now} OR q.lease_until > {now} + {longest})")
            }
            Sought::Overdue { .. } => format!("q.task_id < ${first}"),
        };
        format!("{sought} AND q.task_id >= ${}", first + 1)
    }

    fn parameters(&self) -> [Parameter<'_>; 2] {
        match &self.sought {
            Sought::Lost { until } => [until, &self.horizon],
            Sought::Overdue { end } => [end, &self.horizon],
        }
    }

    /// Gives up tasks, at most [`BATCH`]. When that fails because of an account whose rows are damaged, it sweeps the
    /// accounts one by one, so that this one delays no other.
    pub(super) async fn step(&self, database: &Database) -> Result<Swept> {
        match self.batch(database, None).await {
            Err(Failure::Busy(error) | Failure::Refused(error)) => {
                tracing::warn!(%error, "a sweep was refused; sweeping one account after the other");
            }
            outcome => return Ok(outcome?),
        }
        let sql = format!("SELECT DISTINCT q.account_id FROM queue q WHERE {}", self.condition(1));
        let mut all = Swept::default();
        for row in database.read(&sql, &self.parameters()).await? {
            let account: &str = row.try_get(0)?;
            match self.batch(database, Some(account)).await {
                Ok(Swept { rescued, more }) => {
                    all.rescued.add(rescued);
                    all.more |= more;
                }
                Err(Failure::Busy(error) | Failure::Refused(error)) => {
                    tracing::error!(account, %error, "cannot sweep the tasks of an account; see `tintype credits audit`");
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(all)
    }

    /// Gives up tasks of one account or of all. It skips tasks that another transaction is about to end, and those of
    /// accounts that another transaction has locked, so that it never waits.
    async fn batch(&self, database: &Database, account: Option<&str>) -> std::result::Result<Swept, Failure> {
        let lost = format!(
            "SELECT q.task_id FROM queue q JOIN accounts a ON a.id = q.account_id
             WHERE ($6::text IS NULL OR q.account_id = $6) AND {}
             ORDER BY q.task_id LIMIT $7 FOR UPDATE OF q SKIP LOCKED FOR NO KEY UPDATE OF a SKIP LOCKED",
            self.condition(8)
        );
        let limit = i64::try_from(BATCH).unwrap_or(i64::MAX);
        let of_batch: [Parameter<'_>; 2] = [&account, &limit];
        let parameters = [of_batch, self.parameters()].concat();
        let given_up = self.loss.give_up(database, &lost, &parameters).await?;
        let found = given_up.len();
        let mut rescued = Rescued::default();
        for GivenUp { queued, failed } in given_up {
            rescued.queued += usize::from(queued);
            rescued.failed.extend(failed.map(|(ended, _)| ended));
        }
        let ended = rescued.queued + rescued.failed.len();
        if found > ended {
            tracing::error!(tasks = found - ended, "could not end or requeue tasks: see `tintype credits audit`");
        }
        Ok(Swept { rescued, more: found == BATCH && ended > 0 })
    }
}
