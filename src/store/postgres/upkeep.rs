//! Upkeep at the start of a process and from then on: it compares its clock with the server's, and creates the
//! partition of the coming month.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::connection::Database;
use super::partitions::Partitions;
use super::sweep::{Sought, Step};
use super::tasks::IndexPosition;
use super::{PostgresStore, audit, files, tasks};
use crate::clock::{Clock, Timestamp};
use crate::fault::Effect;
use crate::store::{Audit, Ended, LONGEST_LEASE, Rescue, Rescued, Result, Upkeep};

/// The clocks of two machines are never the same; from here on it is worth a word.
const CLOCKS_APART: Duration = Duration::from_secs(5);
/// How often it is done...
const EVERY: Duration = Duration::from_secs(60);
/// ...and how soon when this machine's clock has been set...
const SOON: Duration = Duration::from_secs(1);
/// ...by as much.
const STEP: Duration = Duration::from_secs(1);

pub(super) async fn once(database: &Database, partitions: &Partitions) -> Result<()> {
    let ahead = database.compare_clocks().await?;
    if u128::from(ahead.unsigned_abs()) > CLOCKS_APART.as_millis() {
        tracing::warn!(ahead_ms = ahead, "this machine's clock is not the database server's; the server's counts");
    }
    partitions.prepare_ahead(database, database.now()).await
}

/// Does it again and again, from now on.
pub(super) fn keep(database: Arc<Database>, partitions: Arc<Partitions>) -> impl Future<Output = ()> {
    let mut last = Moment::of(&database.clock);
    async move {
        loop {
            tokio::time::sleep(SOON).await;
            let now = Moment::of(&database.clock);
            if !last.is_over(now) {
                continue;
            }
            last = now;
            if let Err(error) = once(&database, &partitions).await {
                tracing::warn!(%error, "could not compare the clocks or prepare the tables of the coming month");
            }
        }
    }
}

/// A moment by both clocks of a process.
#[derive(Debug, Clone, Copy)]
struct Moment {
    elapsed: Duration,
    /// The wall clock at the origin of the monotonic clock, in milliseconds.
    origin: i64,
}

impl Moment {
    fn of(clock: &Clock) -> Self {
        let elapsed = clock.elapsed();
        Self { elapsed, origin: clock.now().saturating_sub(elapsed).as_millis() }
    }

    /// Whether what was done at this moment is to be done again.
    fn is_over(self, now: Self) -> bool {
        let set_by = Duration::from_millis(now.origin.abs_diff(self.origin));
        now.elapsed.saturating_sub(self.elapsed) >= EVERY || set_by >= STEP
    }
}

#[async_trait]
impl Upkeep for PostgresStore {
    async fn rescue(&self, which: Rescue, last_error: &str) -> Result<Rescued> {
        let ended = Sought::Leases { which, from: Timestamp::MIN, last_error };
        // No lease is that long: the server's clock was set back since it was given.
        let impossible = self.database.now().saturating_add(LONGEST_LEASE);
        let impossible = Sought::Leases { which: Rescue::All, from: impossible, last_error };
        let mut all = Rescued::default();
        loop {
            let step = async { Ok((ended.step(&self.database).await?, impossible.step(&self.database).await?)) };
            let (ended, impossible) = self.write(Effect::Rescue, step).await?;
            for Rescued { queued, failed } in [ended.rescued, impossible.rescued] {
                all.queued += queued;
                all.failed.extend(failed);
            }
            if !ended.more && !impossible.more {
                return Ok(all);
            }
        }
    }

    async fn expire(&self, cutoff: Timestamp, error: &str) -> Result<Vec<Ended>> {
        let sought = Sought::Overdue { cutoff, error };
        let mut all = Vec::new();
        loop {
            let Step { rescued, more } = self.write(Effect::Expire, sought.step(&self.database)).await?;
            all.extend(rescued.failed);
            if !more {
                return Ok(all);
            }
        }
    }

    async fn remove_tasks(&self, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        let mut after = String::new();
        loop {
            let page = tasks::removable_accounts(&self.database, &after, cutoff).await?;
            for account_id in page.removable {
                let mut next = Some(IndexPosition::default());
                while let Some(after) = next {
                    let remove = tasks::remove(&self.database, account_id, &after, cutoff);
                    let removal = self.write(Effect::RemoveTasks, remove).await?;
                    all += removal.removed;
                    next = removal.reached;
                }
            }
            match page.last {
                Some(last) => after = last.to_string(),
                None => return Ok(all),
            }
        }
    }

    async fn forget_months(&self, before: Timestamp, removed_before: Timestamp) -> Result<usize> {
        let mut all = 0;
        loop {
            let forget = self.partitions.forget_oldest(&self.database, before, removed_before);
            if !self.write(Effect::ForgetMonth, forget).await? {
                return Ok(all);
            }
            all += 1;
        }
    }

    async fn take_sweep(&self, sweeps: &[String], hold: Duration) -> Result<Option<String>> {
        files::take_sweep(&self.database, sweeps, hold).await
    }

    async fn put_off_sweep(&self, sweep: &str, pause: Duration) -> Result<()> {
        files::put_off_sweep(&self.database, sweep, pause).await
    }

    async fn audit(&self) -> Result<Audit> {
        audit::audit(&self.database).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_done_once_a_minute_and_when_the_clock_was_set() {
        let moment = |seconds, origin| Moment { elapsed: Duration::from_secs(seconds), origin };
        let last = moment(1_000, 50_000);
        for (now, is_over) in [
            (moment(1_001, 50_000), false),
            (moment(1_059, 50_900), false),
            (moment(1_060, 50_000), true),
            (moment(1_001, 47_000), true),
            (moment(1_001, 3_650_000), true),
        ] {
            assert_eq!(last.is_over(now), is_over, "{now:?}");
        }
    }
}
