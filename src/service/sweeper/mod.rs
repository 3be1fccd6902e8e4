//! Ends what nobody else ends: lost leases, overdue tasks, files without a task, tasks past their retention.
//! Writes down what can wait: when keys were used.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Timestamp;
use crate::config::{
    FIRST_REMOVAL, MONTH_AGE, ORPHAN_SWEEP_EVERY, RECORD_KEY_USES_EVERY, REMOVE_EVERY, SWEEP_EVERY, SWEEP_SLACK,
    TASK_TIME_LIMIT,
};
use crate::service::app::App;
use crate::service::tasks::{GAVE_UP, OVERDUE};
use crate::store::{Rescue, StoreError};

mod files;

use self::files::{FileRule, days_of_files, holding, may_remove_files, put_off_sweep, sweep_files, take_sweep};
pub use self::files::{sweep_orphans, sweep_orphans_in_turn};

/// The wall clock was set, or the machine slept, when it moved this much more than time passed.
const CLOCK_JUMP: Duration = Duration::from_secs(5);
/// What the sweep for the files of removed tasks is called, beside the days.
const REMOVALS: &str = "removals";
/// Most keys touched in one write, which submits have to wait for.
const USES_BATCH: usize = 256;

/// Sweeps until `stop`.
pub async fn run(app: Arc<App>, stop: CancellationToken) {
    let mut orphans = tokio::spawn(sweep_orphans_forever(app.clone()));
    let mut removals = tokio::spawn(remove_forever(app.clone()));
    let mut uses = tokio::spawn(record_uses_forever(app.clone()));
    let mut watch = ClockWatch::new(&app);
    let mut rescue_from = Duration::ZERO;
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP_EVERY) => {}
            () = stop.cancelled() => break,
            // They end only by a panic, which is to end the server rather than go unnoticed.
            _ = &mut orphans => return,
            _ = &mut removals => return,
            _ = &mut uses => return,
        }
        let elapsed = app.clock.elapsed();
        if watch.jumped(app.store.now(), elapsed) {
            tracing::warn!("the clock jumped ahead; workers get time to renew their leases");
            rescue_from = elapsed + app.config.worker.lease;
        }
        reread_policy(&app).await;
        expire(&app).await;
        if elapsed >= rescue_from {
            rescue(&app, Rescue::Expired).await;
        }
    }
    orphans.abort();
    removals.abort();
    uses.abort();
}

/// Notices when the wall clock moves ahead faster than time passes.
struct ClockWatch {
    now: Timestamp,
    elapsed: Duration,
}

impl ClockWatch {
    fn new(app: &App) -> Self {
        Self { now: app.store.now(), elapsed: app.clock.elapsed() }
    }

    /// Whether the clock was set ahead, or the machine slept, since the last look.
    fn jumped(&mut self, now: Timestamp, elapsed: Duration) -> bool {
        let last = std::mem::replace(self, Self { now, elapsed });
        now.since(last.now) > elapsed.saturating_sub(last.elapsed) + CLOCK_JUMP
    }
}

/// One sweep: overdue tasks are failed and refunded, lost leases go back to the queue. What fails is
/// logged, and the next sweep tries again.
pub async fn sweep(app: &App, which: Rescue) {
    expire(app).await;
    rescue(app, which).await;
}

async fn record_uses_forever(app: Arc<App>) {
    loop {
        tokio::time::sleep(RECORD_KEY_USES_EVERY).await;
        record_uses(&app).await;
    }
}

/// Writes down when keys were last used: each once, however often it was. What fails is logged and left for the
/// next time.
pub async fn record_uses(app: &App) {
    for some in app.keys.take_uses().chunks(USES_BATCH) {
        if let Err(error) = app.store.touch_keys(some.to_vec()).await {
            failed(&error);
            app.keys.note_uses(some.iter().copied());
        }
    }
}

/// Takes a changed policy file into use; a broken one changes nothing.
async fn reread_policy(app: &Arc<App>) {
    let of_app = app.clone();
    match tokio::task::spawn_blocking(move || of_app.policy.refresh()).await {
        Ok(Ok(false)) => {}
        Ok(Ok(true)) => tracing::info!(policy = app.policy.describe(), "the policy was changed"),
        Ok(Err(error)) => tracing::error!(error, "the changed policy cannot be used; the old one stays in force"),
        Err(error) => tracing::error!(%error, "could not look at the policy"),
    }
}

async fn expire(app: &App) {
    let cutoff = app.store.now().saturating_sub(TASK_TIME_LIMIT);
    match app.store.expire(cutoff, OVERDUE).await {
        Ok(0) => {}
        Ok(overdue) => {
            tracing::warn!(tasks = overdue, "overdue tasks failed and refunded");
            app.metrics.tasks_ended("failed", overdue);
        }
        Err(error) => failed(&error),
    }
}

async fn rescue(app: &App, which: Rescue) {
    match app.store.rescue(which, GAVE_UP).await {
        Ok(rescued) if rescued.queued + rescued.failed > 0 => {
            tracing::warn!(queued = rescued.queued, failed = rescued.failed, "lost leases taken away");
            app.metrics.attempts_lost.inc_by((rescued.queued + rescued.failed) as u64);
            app.metrics.tasks_ended("failed", rescued.failed);
            app.bell.notify_one();
        }
        Ok(_) => {}
        Err(error) => failed(&error),
    }
}

fn failed(error: &StoreError) {
    tracing::error!(%error, "sweep failed");
}

/// Not at the start, which may be a start with the wrong database.
async fn sweep_orphans_forever(app: Arc<App>) {
    loop {
        tokio::time::sleep(ORPHAN_SWEEP_EVERY).await;
        match sweep_orphans_in_turn(&app).await {
            0 => {}
            removed => tracing::info!(removed, "removed result files that belong to no completed task"),
        }
    }
}

/// Not at the start either. After a jump of the clock, which may be set back, tasks get another hour.
async fn remove_forever(app: Arc<App>) {
    if app.config.retention.retention.is_none() {
        return std::future::pending().await;
    }
    let mut watch = ClockWatch::new(&app);
    let mut pause = FIRST_REMOVAL;
    loop {
        tokio::time::sleep(pause).await;
        pause = REMOVE_EVERY;
        if watch.jumped(app.store.now(), app.clock.elapsed()) {
            tracing::warn!("the clock jumped ahead; no old tasks are removed for now");
        } else {
            remove_old_in_turn(&app).await;
        }
    }
}

/// As [`remove_old`], but once an hour for all processes of this database. The others know as well as the one that does it
/// what is to be shown no more.
pub async fn remove_old_in_turn(app: &App) {
    let Some(retention) = app.config.retention.retention else { return };
    app.forget_before(app.store.now().saturating_sub(retention));
    if take_sweep(app, &[REMOVALS.to_owned()]).await.is_some() {
        holding(app, REMOVALS, remove_old(app)).await;
        put_off_sweep(app, REMOVALS, REMOVE_EVERY - SWEEP_SLACK).await;
    }
}

/// Removes the tasks that ended longer ago than the retention, if there is one, and the files of those that
/// were removed a while ago: a URL that somebody was just shown works for some time. Then whole months of which
/// nothing else is left. What fails is logged and left for the next sweep.
pub async fn remove_old(app: &App) {
    let Some(retention) = app.config.retention.retention else { return };
    let cutoff = app.store.now().saturating_sub(retention);
    app.forget_before(cutoff);
    match app.store.remove_tasks(cutoff).await {
        Ok(0) => {}
        Ok(removed) => {
            tracing::info!(tasks = removed, "old tasks removed");
            app.metrics.removed.inc_by(removed as u64);
        }
        Err(error) => failed(&error),
    }
    let Some(days) = days_of_files(app).await else { return };
    // A file is in the day of its task, and no task was made after it ended.
    let latest = cutoff.to_string();
    let days = days.into_iter().filter(|day| *day.as_str() <= latest[..day.len()]);
    let swept = sweep_files(app, days, FileRule::REMOVED).await;
    if swept.removed > 0 {
        tracing::info!(files = swept.removed, "result files of removed tasks deleted");
    }
    forget_months(app, cutoff.min(swept.clear_before)).await;
}

/// Forgets the months that ended before `cutoff`, and not only just now, if all of their tasks were removed so long ago
/// that their files may go.
async fn forget_months(app: &App, cutoff: Timestamp) {
    let Some(removed_before) = may_remove_files(app).await else { return };
    let before = cutoff.min(app.store.now().saturating_sub(MONTH_AGE));
    match app.store.forget_months(before, removed_before).await {
        Ok(0) => {}
        Ok(months) => tracing::info!(months, "months dropped in which all tasks were removed"),
        Err(error) => failed(&error),
    }
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
