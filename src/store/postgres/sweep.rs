//! Ending what nobody else ends: lost leases and overdue tasks.
//!
//! Both are looked for from the oldest on. That is where the dead rows are as long as somebody keeps an old snapshot, so
//! a sweep begins where an earlier one left nothing behind, and once a minute at the very beginning: for rows
//! that somebody held then, and clocks that were set back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::connection::{Database, Failure, Parameter};
use super::queue::{GivenUp, count, give_up, given_up, gone, lost_limit, refund};
use crate::clock::Timestamp;
use crate::domain::model::{CREDITS_PER_IMAGE, Id};
use crate::store::{Rescue, Rescued, Result};

/// Tasks that a sweep ends in one transaction.
pub(super) const SWEEP_BATCH: i64 = 256;
/// How often a sweep begins at the very beginning.
const WHOLE_EVERY: Duration = Duration::from_secs(60);
/// What a sweep looks through once more: far more than clocks differ and statements last.
const OVERLAP: Duration = Duration::from_secs(60);

/// How far sweeps of one kind have come.
#[derive(Debug, Default)]
pub(super) struct Swept {
    known: Mutex<Option<Known>>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// When a sweep last began at the very beginning.
    whole_at: Duration,
    /// Up to here nothing was left.
    through: Timestamp,
}

impl Swept {
    /// Where a sweep begins. With a clock moved by hand, always at the very beginning.
    pub(super) fn from(&self, database: &Database) -> Timestamp {
        let now = database.clock.elapsed();
        match *self.known() {
            Some(Known { whole_at, through })
                if database.given_time().is_none() && now.saturating_sub(whole_at) < WHOLE_EVERY =>
            {
                through.saturating_sub(OVERLAP)
            }
            _ => Timestamp::MIN,
        }
    }

    /// A sweep that began at `from` has left nothing up to `through`.
    pub(super) fn done(&self, database: &Database, from: Timestamp, through: Timestamp) {
        let mut known = self.known();
        let whole_at = match *known {
            Some(before) if from != Timestamp::MIN => before.whole_at,
            _ => database.clock.elapsed(),
        };
        *known = Some(Known { whole_at, through });
    }

    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a sweep looks for, and the error that tasks which it fails end with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sought<'a> {
    /// Leases that ran out after `from`, by the server's time alone, or all that run out after it.
    Leases { which: Rescue, from: Timestamp, last_error: &'a str },
    /// Tasks made after `from` and up to `cutoff`.
    Overdue { from: Timestamp, cutoff: Timestamp, error: &'a str },
}

/// What one step of a sweep came to.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) rescued: Rescued,
    /// Whether there may be more to do.
    pub(super) more: bool,
    /// Whether nothing was left behind.
    pub(super) clean: bool,
}

/// What a statement found and did.
struct Batch {
    found: usize,
    rescued: Rescued,
}

impl Sought<'_> {
    /// Ends or queues up to [`SWEEP_BATCH`] tasks. When some account cannot be written, because somebody holds it or its
    /// books are damaged, each account is seen to by itself, so that no other waits.
    pub(super) async fn step(self, database: &Database) -> Result<Step> {
        match self.batch(database, None).await {
            Ok(Batch { found, rescued }) => {
                let full = found as i64 >= SWEEP_BATCH;
                Ok(Step { rescued, more: full && rescued != Rescued::default(), clean: !full })
            }
            Err(Failure::Locked(error) | Failure::Refused(error)) => {
                tracing::warn!(%error, "tasks that were to be swept together are swept by accounts");
                self.by_accounts(database).await
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn by_accounts(self, database: &Database) -> Result<Step> {
        let mut step = Step { clean: true, ..Step::default() };
        for account_id in self.accounts(database).await? {
            loop {
                let Batch { found, rescued } = match self.batch(database, Some(&account_id)).await {
                    Ok(batch) => batch,
                    Err(Failure::Locked(error) | Failure::Refused(error)) => {
                        tracing::error!(account = account_id, %error, "cannot sweep the tasks of an account");
                        step.clean = false;
                        break;
                    }
                    Err(failure) => return Err(failure.into()),
                };
                step.rescued.queued += rescued.queued;
                step.rescued.failed += rescued.failed;
                if (found as i64) < SWEEP_BATCH {
                    break;
                }
                if rescued == Rescued::default() {
                    step.clean = false;
                    break;
                }
            }
        }
        Ok(step)
    }

    /// Whose tasks it finds.
    async fn accounts(self, database: &Database) -> Result<Vec<String>> {
        let rows = match self {
            Self::Leases { which, from, .. } => {
                let sql = "SELECT DISTINCT account_id FROM queue
                    WHERE lease_until > $1 AND lease_until <= tintype_now($2)";
                database.read(sql, &[&from, &until(database, which)]).await?
            }
            Self::Overdue { from, cutoff, .. } => {
                let sql = "SELECT DISTINCT account_id FROM queue WHERE task_id >= $1 AND task_id < $2";
                database.read(sql, &[&Id::floor(from), &after(cutoff)]).await?
            }
        };
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Up to [`SWEEP_BATCH`] of one account or of all.
    async fn batch(self, database: &Database, account_id: Option<&str>) -> std::result::Result<Batch, Failure> {
        let batch = match self {
            Self::Leases { which, from, last_error } => rescue(database, account_id, which, from, last_error).await?,
            Self::Overdue { from, cutoff, error } => expire(database, account_id, from, cutoff, error).await?,
        };
        let Batch { found, rescued } = &batch;
        if *found > rescued.queued + rescued.failed {
            let tasks = found - rescued.queued - rescued.failed;
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

/// What a rescue takes for the time: up to then it looks into the index of leases, and no further.
fn until(database: &Database, which: Rescue) -> Option<Timestamp> {
    match which {
        Rescue::Expired => database.given_time(),
        Rescue::All => Some(Timestamp::MAX),
    }
}

async fn expire(
    database: &Database,
    account_id: Option<&str>,
    from: Timestamp,
    cutoff: Timestamp,
    error: &str,
) -> std::result::Result<Batch, Failure> {
    let (gone, refund) = (gone("q.task_id IN (SELECT task_id FROM overdue)"), refund());
    let sql = format!(
        "WITH overdue AS (
            SELECT task_id FROM queue
            WHERE task_id >= $6 AND task_id < $4 AND ($7::text IS NULL OR account_id = $7)
            ORDER BY task_id LIMIT $5 FOR UPDATE SKIP LOCKED
        ), {gone}, {refund}
        SELECT (SELECT count(*) FROM overdue) AS overdue, (SELECT count(*) FROM gone) AS failed"
    );
    let given = database.given_time();
    let parameters: [Parameter<'_>; 7] =
        [&error, &given, &CREDITS_PER_IMAGE, &after(cutoff), &SWEEP_BATCH, &Id::floor(from), &account_id];
    let rows = database.write(&sql, &parameters).await?;
    let counts = || Ok((count(&rows[0], "overdue")?, count(&rows[0], "failed")?));
    let (found, failed) = counts().map_err(Failure::Unknown)?;
    Ok(Batch { found, rescued: Rescued { queued: 0, failed } })
}

/// Ids begin with the time of creation, so the first id after the cutoff bounds a range of them.
fn after(cutoff: Timestamp) -> Id {
    Id::floor(Timestamp::from_millis(cutoff.as_millis().saturating_add(1)))
}
