//! Ends what nobody else ends: lost leases, overdue tasks, files without a task, tasks past their retention.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Timestamp;
use crate::config::{
    FIRST_REMOVAL, MONTH_AGE, ORPHAN_SWEEP_EVERY, REMOVE_EVERY, SWEEP_EVERY, SWEEP_SLACK, ServerSettings,
    TASK_TIME_LIMIT,
};
use crate::service::Shared;
use crate::service::tasks::{GAVE_UP, OVERDUE};
use crate::store::{Rescue, StoreError};

mod files;

use self::files::FileRule;

/// The wall clock was set, or the machine slept, when it moved this much more than time passed.
const CLOCK_JUMP: Duration = Duration::from_secs(5);
/// What the sweep for the files of removed tasks is called, beside the days.
const REMOVALS: &str = "removals";

/// Sweeps the database and the result files of this process's installation.
#[derive(Debug)]
pub struct Sweeper {
    shared: Arc<Shared>,
    /// How long a lease lasts without a heartbeat.
    lease: Duration,
    /// How long finished tasks are kept.
    retention: Option<Duration>,
    /// How long the files of removed tasks are kept.
    removed_files_grace: Duration,
}

/// Notices when the wall clock moves ahead faster than time passes.
struct ClockWatch {
    now: Timestamp,
    elapsed: Duration,
}

impl ClockWatch {
    fn new(shared: &Shared) -> Self {
        Self { now: shared.store.now(), elapsed: shared.clock.elapsed() }
    }

    /// Whether the clock was set ahead, or the machine slept, since the last look.
    fn jumped(&mut self, now: Timestamp, elapsed: Duration) -> bool {
        let last = std::mem::replace(self, Self { now, elapsed });
        now.since(last.now) > elapsed.saturating_sub(last.elapsed) + CLOCK_JUMP
    }
}

impl Sweeper {
    /// A sweeper with the leases and the retention of these settings.
    pub fn new(shared: Arc<Shared>, settings: &ServerSettings) -> Arc<Self> {
        Arc::new(Self {
            shared,
            lease: settings.worker.lease,
            retention: settings.retention.retention,
            removed_files_grace: settings.file_urls.removed_files_grace(),
        })
    }

    /// Sweeps until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut orphans = tokio::spawn(self.clone().sweep_orphans_forever());
        let mut removals = tokio::spawn(self.clone().remove_forever());
        let mut watch = ClockWatch::new(&self.shared);
        let mut rescue_from = Duration::ZERO;
        loop {
            tokio::select! {
                () = tokio::time::sleep(SWEEP_EVERY) => {}
                () = stop.cancelled() => break,
                // They end only by a panic, which is to end the server rather than go unnoticed.
                _ = &mut orphans => return,
                _ = &mut removals => return,
            }
            let elapsed = self.shared.clock.elapsed();
            if watch.jumped(self.shared.store.now(), elapsed) {
                tracing::warn!("the clock jumped ahead; workers get time to renew their leases");
                rescue_from = elapsed + self.lease;
            }
            self.expire().await;
            if elapsed >= rescue_from {
                self.rescue(Rescue::Expired).await;
            }
        }
        orphans.abort();
        removals.abort();
    }

    /// One sweep: overdue tasks are failed and refunded, lost leases go back to the queue. What fails is
    /// logged, and the next sweep tries again.
    pub async fn sweep(&self, which: Rescue) {
        self.expire().await;
        self.rescue(which).await;
    }

    async fn expire(&self) {
        let cutoff = self.shared.store.now().saturating_sub(TASK_TIME_LIMIT);
        match self.shared.store.expire(cutoff, OVERDUE).await {
            Ok(0) => {}
            Ok(overdue) => {
                tracing::warn!(tasks = overdue, "overdue tasks failed and refunded");
                self.shared.metrics.tasks_ended("failed", overdue);
            }
            Err(error) => failed(&error),
        }
    }

    async fn rescue(&self, which: Rescue) {
        match self.shared.store.rescue(which, GAVE_UP).await {
            Ok(rescued) if rescued.queued + rescued.failed > 0 => {
                tracing::warn!(queued = rescued.queued, failed = rescued.failed, "lost leases taken away");
                self.shared.metrics.attempts_lost.inc_by((rescued.queued + rescued.failed) as u64);
                self.shared.metrics.tasks_ended("failed", rescued.failed);
                self.shared.queued.notify_one();
            }
            Ok(_) => {}
            Err(error) => failed(&error),
        }
    }

    /// Not at the start, which may be a start with the wrong database.
    async fn sweep_orphans_forever(self: Arc<Self>) {
        loop {
            tokio::time::sleep(ORPHAN_SWEEP_EVERY).await;
            match self.sweep_orphans_in_turn().await {
                0 => {}
                removed => tracing::info!(removed, "removed result files that belong to no completed task"),
            }
        }
    }

    /// Not at the start either. After a jump of the clock, which may be set back, tasks get another hour.
    async fn remove_forever(self: Arc<Self>) {
        if self.retention.is_none() {
            return std::future::pending().await;
        }
        let mut watch = ClockWatch::new(&self.shared);
        let mut pause = FIRST_REMOVAL;
        loop {
            tokio::time::sleep(pause).await;
            pause = REMOVE_EVERY;
            if watch.jumped(self.shared.store.now(), self.shared.clock.elapsed()) {
                tracing::warn!("the clock jumped ahead; no old tasks are removed for now");
            } else {
                self.remove_old_in_turn().await;
            }
        }
    }

    /// Removes old tasks, as [`Sweeper::remove_old`] does, once an hour for all processes of this database. Every process
    /// stops showing them.
    pub async fn remove_old_in_turn(&self) {
        let Some(retention) = self.retention else { return };
        self.shared.removed_before.advance(self.shared.store.now().saturating_sub(retention));
        if self.take_sweep(&[REMOVALS.to_owned()]).await.is_some() {
            self.holding(REMOVALS, self.remove_old()).await;
            self.put_off_sweep(REMOVALS, REMOVE_EVERY - SWEEP_SLACK).await;
        }
    }

    /// Removes the tasks that ended longer ago than the retention, if there is one, and the files of those that
    /// were removed a while ago: a URL that somebody was just shown works for some time. Then whole months of which
    /// nothing else is left. What fails is logged and left for the next sweep.
    pub async fn remove_old(&self) {
        let Some(retention) = self.retention else { return };
        let cutoff = self.shared.store.now().saturating_sub(retention);
        self.shared.removed_before.advance(cutoff);
        match self.shared.store.remove_tasks(cutoff).await {
            Ok(0) => {}
            Ok(removed) => {
                tracing::info!(tasks = removed, "old tasks removed");
                self.shared.metrics.removed.inc_by(removed as u64);
            }
            Err(error) => failed(&error),
        }
        let Some(days) = self.days_of_files().await else { return };
        // A file is in the day of its task, and no task was made after it ended.
        let latest = cutoff.to_string();
        let days = days.into_iter().filter(|day| *day.as_str() <= latest[..day.len()]);
        let swept = self.sweep_files(days, FileRule::REMOVED).await;
        if swept.removed > 0 {
            tracing::info!(files = swept.removed, "result files of removed tasks deleted");
        }
        self.forget_months(cutoff.min(swept.clear_before)).await;
    }

    /// Forgets the months that ended before `cutoff`, and not only just now, if all of their tasks were removed so long ago
    /// that their files may go.
    async fn forget_months(&self, cutoff: Timestamp) {
        let Some(removed_before) = self.may_remove_files().await else { return };
        let before = cutoff.min(self.shared.store.now().saturating_sub(MONTH_AGE));
        match self.shared.store.forget_months(before, removed_before).await {
            Ok(0) => {}
            Ok(months) => tracing::info!(months, "months dropped in which all tasks were removed"),
            Err(error) => failed(&error),
        }
    }
}

fn failed(error: &StoreError) {
    tracing::error!(%error, "sweep failed");
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_clock_that_moves_ahead_faster_than_time_passes_has_jumped() {
        let noon = Timestamp::from_millis(1_795_262_400_000);
        let mut watch = ClockWatch { now: noon, elapsed: Duration::ZERO };
        let later = noon.saturating_add(HOUR);
        assert!(!watch.jumped(later.saturating_add(CLOCK_JUMP), HOUR), "a clock is never exact");
        assert!(watch.jumped(later.saturating_add(HOUR), HOUR), "an hour in no time");
        assert!(!watch.jumped(later.saturating_add(HOUR * 2), HOUR * 2), "once is enough");
        assert!(!watch.jumped(noon, HOUR * 3), "back is not ahead");
        assert!(!watch.jumped(later, HOUR * 4));
    }
}
