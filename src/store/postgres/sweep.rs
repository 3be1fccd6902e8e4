//! Sweeps: taking away lost leases, and failing overdue tasks.

use super::connection::{Database, Failure, Parameter};
use super::queue::{GivenUp, count, ended, give_up, given_up, gone, lost_limit, refund};
use crate::clock::Timestamp;
use crate::domain::model::{CREDITS_PER_IMAGE, Id};
use crate::store::{Rescue, Rescued, Result};

/// Most tasks that a sweep ends in one transaction.
const SWEEP_BATCH: i64 = 256;

/// The tasks that a sweep ends, and the error of those that it fails.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sought<'a> {
    /// Leases that ended after `from`, by the server's clock, or all that end after it.
    Leases { which: Rescue, from: Timestamp, last_error: &'a str },
    /// Tasks created up to `cutoff`.
    Overdue { cutoff: Timestamp, error: &'a str },
}

/// Outcome of one step of a sweep.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) rescued: Rescued,
    /// Whether there may be more to do.
    pub(super) more: bool,
}

/// Outcome of a statement.
struct Batch {
    found: usize,
    rescued: Rescued,
}

impl Sought<'_> {
    /// Ends or queues up to [`SWEEP_BATCH`] tasks. When an account cannot be written, because another transaction holds
    /// it or its row is damaged, the accounts are swept one by one, so that it keeps no other waiting.
    pub(super) async fn step(self, database: &Database) -> Result<Step> {
        match self.batch(database, None).await {
            Ok(Batch { found, rescued }) => {
                let full = found as i64 >= SWEEP_BATCH;
                let more = full && rescued != Rescued::default();
                Ok(Step { rescued, more })
            }
            Err(Failure::Locked(error) | Failure::Refused(error)) => {
                tracing::warn!(%error, "a sweep was refused; sweeping one account after the other");
                self.by_accounts(database).await
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn by_accounts(self, database: &Database) -> Result<Step> {
        let mut step = Step::default();
        for account_id in self.accounts(database).await? {
            loop {
                let Batch { found, rescued } = match self.batch(database, Some(&account_id)).await {
                    Ok(batch) => batch,
                    Err(Failure::Locked(error) | Failure::Refused(error)) => {
                        tracing::error!(account = account_id, %error, "cannot sweep the tasks of an account; see `tintype credits audit`");
                        break;
                    }
                    Err(failure) => return Err(failure.into()),
                };
                let is_last = (found as i64) < SWEEP_BATCH || rescued == Rescued::default();
                step.rescued.queued += rescued.queued;
                step.rescued.failed.extend(rescued.failed);
                if is_last {
                    break;
                }
            }
        }
        Ok(step)
    }

    /// The accounts of these tasks.
    async fn accounts(self, database: &Database) -> Result<Vec<String>> {
        let rows = match self {
            Self::Leases { which, from, .. } => {
                let sql = "SELECT DISTINCT account_id FROM queue
                    WHERE lease_until > $1 AND lease_until <= tintype_now($2)";
                database.read(sql, &[&from, &until(database, which)]).await?
            }
            Self::Overdue { cutoff, .. } => {
                let sql = "SELECT DISTINCT account_id FROM queue WHERE task_id < $1";
                database.read(sql, &[&after(cutoff)]).await?
            }
        };
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Up to [`SWEEP_BATCH`] of one account or of all.
    async fn batch(self, database: &Database, account_id: Option<&str>) -> std::result::Result<Batch, Failure> {
        let batch = match self {
            Self::Leases { which, from, last_error } => rescue(database, account_id, which, from, last_error).await?,
            Self::Overdue { cutoff, error } => expire(database, account_id, cutoff, error).await?,
        };
        let Batch { found, rescued } = &batch;
        let done = rescued.queued + rescued.failed.len();
        if *found > done {
            let tasks = found - done;
            tracing::error!(tasks, "could not end or requeue tasks: see `tintype credits audit`");
        }
        Ok(batch)
    }
}

async fn rescue(
    database: &Database,
    account_id: Option<&str>,
    which: Rescue,
    from: Timestamp,
    last_error: &str,
) -> std::result::Result<Batch, Failure> {
    let lost = "SELECT task_id FROM queue
        WHERE lease_until > $7 AND lease_until <= tintype_now($6) AND ($8::text IS NULL OR account_id = $8)
        ORDER BY lease_until LIMIT $5 FOR UPDATE SKIP LOCKED";
    let sql = give_up(lost, "0");
    let (until, given, limit) = (until(database, which), database.given_time(), lost_limit());
    let parameters: [Parameter<'_>; 8] =
        [&last_error, &given, &CREDITS_PER_IMAGE, &limit, &SWEEP_BATCH, &until, &from, &account_id];
    let rows = database.write(&sql, &parameters).await?;
    let GivenUp { lost, rescued } = given_up(&rows).map_err(Failure::Unknown)?;
    Ok(Batch { found: lost, rescued })
}

/// The upper end of the range of the index on leases that a rescue reads.
fn until(database: &Database, which: Rescue) -> Option<Timestamp> {
    match which {
        Rescue::Expired => database.given_time(),
        Rescue::All => Some(Timestamp::MAX),
    }
}

async fn expire(
    database: &Database,
    account_id: Option<&str>,
    cutoff: Timestamp,
    error: &str,
) -> std::result::Result<Batch, Failure> {
    let (gone, refund) = (gone("q.task_id IN (SELECT task_id FROM overdue)"), refund());
    let sql = format!(
        "WITH overdue AS (
            SELECT task_id FROM queue
            WHERE task_id < $4 AND ($6::text IS NULL OR account_id = $6)
            ORDER BY task_id LIMIT $5 FOR UPDATE SKIP LOCKED
        ), {gone}, {refund}
        SELECT overdue, id, account_id, surface
        FROM (SELECT count(*) AS overdue FROM overdue) counts LEFT JOIN failed ON true"
    );
    let given = database.given_time();
    let parameters: [Parameter<'_>; 6] =
        [&error, &given, &CREDITS_PER_IMAGE, &after(cutoff), &SWEEP_BATCH, &account_id];
    let rows = database.write(&sql, &parameters).await?;
    let outcome = || Ok((count(&rows[0], "overdue")?, ended(&rows)?));
    let (found, failed) = outcome().map_err(Failure::Unknown)?;
    Ok(Batch { found, rescued: Rescued { queued: 0, failed } })
}

/// Ids begin with the time of creation, so the first id after the cutoff bounds a range of them.
fn after(cutoff: Timestamp) -> Id {
    Id::floor(Timestamp::from_millis(cutoff.as_millis().saturating_add(1)))
}
