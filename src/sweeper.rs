//! Ends what nobody else ends: lost leases, overdue tasks, files without a task.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::config::{ORPHAN_SWEEP_EVERY, SWEEP_EVERY, TASK_TIME_LIMIT};
use crate::files::FileName;
use crate::model::Status;
use crate::store::{Rescue, StoreError};
use crate::tasks::{GAVE_UP, OVERDUE};

/// Sweeps until `stop`.
pub async fn run(app: Arc<App>, stop: CancellationToken) {
    let orphans = tokio::spawn(sweep_orphans_forever(app.clone()));
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP_EVERY) => {}
            () = stop.cancelled() => break,
        }
        if let Err(error) = sweep(&app, Rescue::Expired).await {
            tracing::error!(%error, "sweep failed");
        }
    }
    orphans.abort();
}

/// One sweep: overdue tasks are failed and refunded, lost leases go back to the queue.
///
/// # Errors
/// [`StoreError`]; the next sweep goes on where this one ended.
pub async fn sweep(app: &App, which: Rescue) -> Result<(), StoreError> {
    let cutoff = app.clock.now().saturating_sub(TASK_TIME_LIMIT);
    let overdue = app.store.expire(cutoff, OVERDUE).await?;
    if overdue > 0 {
        tracing::warn!(tasks = overdue, "overdue tasks failed and refunded");
    }
    let rescued = app.store.rescue(which, GAVE_UP).await?;
    if rescued.queued + rescued.failed > 0 {
        tracing::warn!(queued = rescued.queued, failed = rescued.failed, "lost leases taken away");
        app.metrics.attempts_lost.inc_by((rescued.queued + rescued.failed) as u64);
        app.bell.notify_one();
    }
    app.metrics.tasks_ended("failed", overdue + rescued.failed);
    Ok(())
}

async fn sweep_orphans_forever(app: Arc<App>) {
    loop {
        match sweep_orphans(&app).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed result files that belong to no completed task"),
            Err(error) => tracing::error!(error, "sweep for orphaned files failed"),
        }
        tokio::time::sleep(ORPHAN_SWEEP_EVERY).await;
    }
}

/// Removes result files that an attempt left behind: old enough that their task has ended, and no
/// result of it. Files of unknown tasks stay, in case the wrong database was opened beside them.
/// Returns how many were removed.
///
/// # Errors
/// A sentence for the operator.
pub async fn sweep_orphans(app: &App) -> Result<usize, String> {
    let mut removed = 0;
    for text in app.files.settled(app.clock.now()).await.map_err(|error| error.to_string())? {
        let Some(name) = FileName::parse(&text) else { continue };
        let record = app.store.inspect_task(name.task_id()).await.map_err(|error| error.to_string())?;
        let orphaned = match record.map(|record| record.task.status) {
            None | Some(Status::Processing) => false,
            Some(Status::Failed(_)) => true,
            Some(Status::Completed(images)) => !images.contains(&text),
        };
        if orphaned {
            app.files.remove(&text).await.map_err(|error| error.to_string())?;
            removed += 1;
        }
        tokio::task::yield_now().await;
    }
    Ok(removed)
}
