//! Sweeps the result files day by day and removes those that no task needs.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{Sweeper, failed};
use crate::files::{AnyName, FileName, FilesLock};
use tintype_config::{FILE_SWEEP_LEASE, FULL_ORPHAN_SWEEP_EVERY, ORPHAN_AGE, ORPHAN_SWEEP_EVERY, SWEEP_SLACK};
use tintype_domain::model::Id;
use tintype_store::{StoreError, TaskFiles};
use tintype_system::clock::Timestamp;

/// Number of latest days that are swept every hour.
const RECENT_DAYS: usize = 4;
/// Concurrent removals, because a bucket is slow to remove each file.
const CONCURRENT_REMOVALS: usize = 16;

/// The files that a sweep removes in addition to removed tasks' files.
pub(super) struct FileRule {
    /// The sweep checks files that were written before this.
    written_before: Timestamp,
    /// An orphaned file is removed if its task was last changed before this.
    touched_before: Timestamp,
}

impl FileRule {
    /// Removes orphaned files a day after the last change of file and task.
    fn orphans(now: Timestamp) -> Self {
        let cutoff = now.saturating_sub(ORPHAN_AGE);
        Self { written_before: cutoff, touched_before: cutoff }
    }

    /// Removes only removed tasks' files, regardless of their age; orphans have a separate sweep.
    pub(super) const REMOVED: Self = Self { written_before: Timestamp::MAX, touched_before: Timestamp::MIN };
}

pub(super) struct Swept {
    pub(super) removed: usize,
    /// Whether every day was swept completely.
    is_complete: bool,
}

fn is_removable(task: &TaskFiles, file: &AnyName<'_>, rule: &FileRule, removed_before: Timestamp) -> bool {
    if let Some(removed_at) = task.removed_at {
        return removed_at < removed_before;
    }
    if task.is_processing {
        return false;
    }
    !file.is_of(&task.images) && task.updated_at < rule.touched_before
}

impl Sweeper {
    /// Removes orphaned files of the latest `days`: files that are not a result of their task, a day after the last
    /// change of both. Files of unknown and of recently ended tasks stay, in case the database belongs to other files.
    /// Also removes files of removed tasks that a crash or a changed retention left behind. Removes nothing during a
    /// backup. Logs failures and leaves them to the next sweep. Returns the number of removed files.
    pub async fn sweep_orphans(&self, days: usize) -> usize {
        let days = self.days_of_files().await.unwrap_or_default().into_iter().rev().take(days);
        self.sweep_files(days, FileRule::orphans(self.shared.store.now())).await.removed
    }

    /// Sweeps orphans like [`Sweeper::sweep_orphans`], on all days that are due and that no other process of this
    /// database sweeps: the latest days once an hour, other days once a week at randomised times. A day whose sweep was
    /// interrupted is due again soon.
    pub async fn sweep_orphans_in_turn(&self) -> usize {
        let mut days = self.days_of_files().await.unwrap_or_default();
        days.reverse();
        let latest = days[..days.len().min(RECENT_DAYS)].to_vec();
        let mut removed = 0;
        // Without the lock this process claims no day, so that another process can. It sweeps each day once, even if a day
        // is due again before the last day is swept.
        while self.lock_for_removal().is_some()
            && let Some(day) = self.claim_sweep(&days).await
        {
            days.retain(|other| *other != day);
            let sweep = self.sweep_files(std::iter::once(day.clone()), FileRule::orphans(self.shared.store.now()));
            let swept = self.renewing_claim(&day, sweep).await;
            removed += swept.removed;
            if swept.is_complete {
                let once_a_week = FULL_ORPHAN_SWEEP_EVERY.mul_f64(0.5 + rand::random::<f64>() / 2.0);
                let pause = if latest.contains(&day) { ORPHAN_SWEEP_EVERY - SWEEP_SLACK } else { once_a_week };
                self.postpone_sweep(&day, pause).await;
            }
        }
        removed
    }

    pub(super) async fn claim_sweep(&self, sweeps: &[String]) -> Option<String> {
        match self.shared.store.claim_sweep(sweeps, FILE_SWEEP_LEASE).await {
            // On a full disk no sweep can be claimed, but a single process needs no claim, and removing files frees
            // space.
            Err(StoreError::Full(_)) if !self.shared.store.is_shared() => sweeps.first().cloned(),
            taken => taken.inspect_err(failed).ok().flatten(),
        }
    }

    pub(super) async fn postpone_sweep(&self, sweep: &str, pause: Duration) {
        drop(self.shared.store.postpone_sweep(sweep, pause).await.inspect_err(failed));
    }

    /// Runs a claimed sweep, and renews the claim until the sweep ends.
    pub(super) async fn renewing_claim<T>(&self, sweep: &str, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                outcome = &mut work => return outcome,
                () = tokio::time::sleep(FILE_SWEEP_LEASE / 4) => self.postpone_sweep(sweep, FILE_SWEEP_LEASE).await,
            }
        }
    }

    pub(super) async fn days_of_files(&self) -> Option<Vec<String>> {
        self.shared
            .files
            .days()
            .await
            .inspect_err(|error| tracing::error!(%error, "could not list the result files; the next sweep tries again"))
            .ok()
    }

    pub(super) async fn sweep_files(&self, days: impl Iterator<Item = String>, rule: FileRule) -> Swept {
        let mut swept = Swept { removed: 0, is_complete: true };
        for day in days {
            let (Some(_removing), Some(removed_before)) = (self.lock_for_removal(), self.may_remove_files().await)
            else {
                return Swept { is_complete: false, ..swept };
            };
            let before = swept.removed;
            let mut left = self.sweep_day(&day, &rule, removed_before, &mut swept.removed).await;
            if left == Some(0) && swept.removed > before {
                // A listing may miss files while others are removed, so an apparently empty day is listed again.
                left = self.sweep_day(&day, &rule, removed_before, &mut swept.removed).await;
            }
            swept.is_complete &= left.is_some();
        }
        swept
    }

    /// Sweeps one day. Returns the number of files that are left; `None` if it is unknown.
    async fn sweep_day(
        &self,
        day: &str,
        rule: &FileRule,
        removed_before: Timestamp,
        removed: &mut usize,
    ) -> Option<usize> {
        let mut listed = self.shared.files.written_before(day.to_owned(), rule.written_before);
        let mut left = 0;
        loop {
            match listed.try_next().await {
                Ok(Some(names)) => {
                    let files: Vec<AnyName<'_>> = names.iter().filter_map(|name| FileName::parse_any(name)).collect();
                    let gone = self.sweep_batch(&files, rule, removed_before).await;
                    (left, *removed) = (left + files.len() - gone, *removed + gone);
                }
                Ok(None) => return Some(left),
                Err(error) => {
                    tracing::error!(%error, "could not sweep a day of result files; the next sweep tries again");
                    return None;
                }
            }
        }
    }

    /// Removes the removable files of a batch; returns their number. A file that has become removable stays removable,
    /// so time may pass between the query and the removal.
    async fn sweep_batch(&self, files: &[AnyName<'_>], rule: &FileRule, removed_before: Timestamp) -> usize {
        let ids: BTreeSet<Id> = files.iter().map(|file| file.task_id).collect();
        let tasks = self.shared.store.task_files(&Vec::from_iter(ids)).await;
        let Ok(tasks) = tasks.inspect_err(failed) else { return 0 };
        let tasks: HashMap<Id, TaskFiles> = tasks.into_iter().map(|task| (task.id, task)).collect();
        let removable = files.iter().filter(|file| {
            let task = tasks.get(&file.task_id);
            task.is_some_and(|task| is_removable(task, file, rule, removed_before))
        });
        let removals: Vec<_> = removable.map(|file| self.shared.files.remove(file.text)).collect();
        let mut outcomes = stream::iter(removals).buffer_unordered(CONCURRENT_REMOVALS);
        let mut gone = 0;
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                Ok(()) => gone += 1,
                Err(error) => tracing::error!(%error, "could not remove a result file; the next sweep tries again"),
            }
        }
        gone
    }

    /// Time before which a task must have been removed for its files to be removable; `None` if no files may be removed
    /// now. It is never later than the creation of the oldest unfinished task, so that this task keeps every file that it
    /// may need.
    pub(super) async fn may_remove_files(&self) -> Option<Timestamp> {
        let depth = self.shared.store.queue_depth().await.inspect_err(failed).ok()?;
        let aged = self.shared.store.now().saturating_sub(self.removed_files_grace);
        Some(depth.oldest.map_or(aged, |oldest| oldest.min(aged)))
    }

    /// Locks the files for a removal; `None` while another process of this machine holds a lock, or if locking fails.
    pub(super) fn lock_for_removal(&self) -> Option<FilesLock> {
        match self.shared.files.try_removal() {
            Ok(Some(lock)) => Some(lock),
            Ok(None) => {
                tracing::info!("a backup, an audit or another process uses the result files: removing none for now");
                None
            }
            Err(error) => {
                tracing::error!(%error, "could not lock the result files, so none are removed; the next sweep tries again");
                None
            }
        }
    }
}
