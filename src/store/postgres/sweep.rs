//! Ending what nobody else ends: lost leases and overdue tasks.
//!
//! Both are looked for from the oldest on. That is where the dead rows are as long as somebody keeps an old snapshot, so
//! a sweep begins where an earlier one left nothing behind, and once a minute at the very beginning: for rows
//! that somebody held then, and clocks that were set back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::connection::{Database, Parameter};
use super::queue::{GivenUp, count, give_up, given_up, gone, lost_limit, refund};
use crate::clock::Timestamp;
use crate::model::{CREDITS_PER_IMAGE, Id};
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

/// Takes up to [`SWEEP_BATCH`] leases away that ran out after `from`; returns also how many there were. Leases go by the
/// server's time alone.
pub(super) async fn rescue(
    database: &Database,
    which: Rescue,
    from: Timestamp,
    last_error: &str,
) -> Result<(usize, Rescued)> {
    let lost = "SELECT task_id FROM queue
        WHERE lease_until > $7 AND ($6 OR lease_until <= tintype_now($2))
        ORDER BY lease_until LIMIT $5 FOR UPDATE SKIP LOCKED";
    let all = which == Rescue::All;
    let given = database.given_time();
    let sql = give_up(lost, "0");
    let rows = database
        .write(&sql, &[&last_error, &given, &CREDITS_PER_IMAGE, &lost_limit(), &SWEEP_BATCH, &all, &from])
        .await?;
    let GivenUp { lost, rescued } = given_up(&rows)?;
    report_damaged(lost, rescued.queued + rescued.failed);
    Ok((lost, rescued))
}

/// Fails and refunds up to [`SWEEP_BATCH`] tasks made after `from`, and up to `cutoff`.
pub(super) async fn expire(database: &Database, from: Timestamp, cutoff: Timestamp, error: &str) -> Result<usize> {
    // Ids begin with the time of creation, so the first id after the cutoff bounds a range of them.
    let bound = Id::floor(Timestamp::from_millis(cutoff.as_millis().saturating_add(1)));
    let (gone, refund) = (gone("q.task_id IN (SELECT task_id FROM overdue)"), refund());
    let sql = format!(
        "WITH overdue AS (
            SELECT task_id FROM queue WHERE task_id >= $6 AND task_id < $4
            ORDER BY task_id LIMIT $5 FOR UPDATE SKIP LOCKED
        ), {gone}, {refund}
        SELECT (SELECT count(*) FROM overdue) AS overdue, (SELECT count(*) FROM gone) AS failed"
    );
    let given = database.given_time();
    let parameters: [Parameter<'_>; 6] = [&error, &given, &CREDITS_PER_IMAGE, &bound, &SWEEP_BATCH, &Id::floor(from)];
    let rows = database.write(&sql, &parameters).await?;
    let failed = count(&rows[0], "failed")?;
    report_damaged(count(&rows[0], "overdue")?, failed);
    Ok(failed)
}

fn report_damaged(found: usize, ended: usize) {
    if found > ended {
        tracing::error!(tasks = found - ended, "could not end or requeue tasks: see `tintype credits audit`");
    }
}
