//! Ends what nobody else ends: lost leases, overdue tasks, files without a task.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::clock::Timestamp;
use crate::config::{LEASE, ORPHAN_AGE, ORPHAN_SWEEP_EVERY, SWEEP_EVERY, TASK_TIME_LIMIT};
use crate::files::{FileName, FilesLock};
use crate::model::Status;
use crate::store::{Rescue, StoreError};
use crate::tasks::{GAVE_UP, OVERDUE};

/// The wall clock was set, or the machine slept, when it moved this much more than time passed.
const CLOCK_JUMP: Duration = Duration::from_secs(5);
/// Days that are looked through again at every sweep for orphans after the first.
const RECENT_DAYS: usize = 4;

/// Sweeps until `stop`.
pub async fn run(app: Arc<App>, stop: CancellationToken) {
    let orphans = tokio::spawn(sweep_orphans_forever(app.clone()));
    let mut last = (app.clock.now(), app.clock.elapsed());
    let mut rescue_from = Duration::ZERO;
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP_EVERY) => {}
            () = stop.cancelled() => break,
        }
        let (now, elapsed) = (app.clock.now(), app.clock.elapsed());
        if now.since(last.0) > elapsed.saturating_sub(last.1) + CLOCK_JUMP {
            tracing::warn!("the clock jumped ahead; workers get time to renew their leases");
            rescue_from = elapsed + LEASE;
        }
        last = (now, elapsed);
        expire(&app).await;
        if elapsed >= rescue_from {
            rescue(&app, Rescue::Expired).await;
        }
    }
    orphans.abort();
}

/// One sweep: overdue tasks are failed and refunded, lost leases go back to the queue. What fails is
/// logged, and the next sweep tries again.
pub async fn sweep(app: &App, which: Rescue) {
    expire(app).await;
    rescue(app, which).await;
}

async fn expire(app: &App) {
    let cutoff = app.clock.now().saturating_sub(TASK_TIME_LIMIT);
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

/// Not at the start, which may be a start with the wrong database. The first sweep looks through all
/// days, those that follow only where new orphans can be.
async fn sweep_orphans_forever(app: Arc<App>) {
    let mut days = usize::MAX;
    loop {
        tokio::time::sleep(ORPHAN_SWEEP_EVERY).await;
        if lock_for_removal(&app).is_none() {
            continue;
        }
        match sweep_orphans(&app, days).await {
            0 => {}
            removed => tracing::info!(removed, "removed result files that belong to no completed task"),
        }
        days = RECENT_DAYS;
    }
}

/// Removes from the latest `days` what attempts left behind: files that are no result of their task,
/// a day after both were last touched. Files of unknown tasks stay, and so do those of tasks that ended
/// just now, in case the wrong database was opened beside them. What fails is logged and left for the
/// next sweep, and so is everything while a backup runs. Returns how many were removed.
pub async fn sweep_orphans(app: &App, days: usize) -> usize {
    let cutoff = app.clock.now().saturating_sub(ORPHAN_AGE);
    let mut removed = 0;
    let all = app.files.days().await.unwrap_or_else(|error| {
        tracing::error!(%error, "could not list the result files");
        Vec::new()
    });
    for day in all.into_iter().rev().take(days) {
        let Some(_removing) = lock_for_removal(app) else { break };
        let old = app.files.written_before(day, cutoff).await;
        let old = old.inspect_err(|error| tracing::error!(%error, "could not look through a day of result files"));
        for name in old.unwrap_or_default() {
            if is_orphan(app, &name, cutoff).await {
                match app.files.remove(&name).await {
                    Ok(()) => removed += 1,
                    Err(error) => tracing::error!(%error, "could not remove an orphaned file"),
                }
            }
        }
    }
    removed
}

/// The right to remove files; `None` while a backup needs all of them, or when it cannot be known.
fn lock_for_removal(app: &App) -> Option<FilesLock> {
    match app.files.try_removal() {
        Ok(Some(lock)) => Some(lock),
        Ok(None) => {
            tracing::info!("a backup is running; removing files later");
            None
        }
        Err(error) => {
            tracing::error!(%error, "could not lock the result files; none is removed");
            None
        }
    }
}

async fn is_orphan(app: &App, name: &str, cutoff: Timestamp) -> bool {
    // A write that was cut off leaves its file under the name it was to get and a number.
    let (intended, half_written) = name.split_once('#').map_or((name, false), |(intended, _)| (intended, true));
    let Some(intended) = FileName::parse(intended) else { return false };
    let task = match app.store.inspect_task(intended.task_id()).await {
        Ok(Some(record)) => record.task,
        Ok(None) => return false,
        Err(error) => {
            failed(&error);
            return false;
        }
    };
    let is_result = match &task.status {
        Status::Processing => return false,
        Status::Failed(_) => false,
        Status::Completed(images) => !half_written && images.iter().any(|image| image == name),
    };
    !is_result && task.updated_at < cutoff
}
