//! Looks through the result files, day by day, and removes those that nobody needs.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{Sweeper, failed};
use crate::clock::Timestamp;
use crate::config::{FILE_SWEEP_LEASE, FULL_ORPHAN_SWEEP_EVERY, ORPHAN_AGE, ORPHAN_SWEEP_EVERY, SWEEP_SLACK};
use crate::domain::model::Id;
use crate::files::{FileName, FilesLock};
use crate::store::{StoreError, TaskFiles};

/// Days that are looked through again every hour.
const RECENT_DAYS: usize = 4;
/// Files that are removed at a time: a bucket takes its time for each.
const REMOVED_AT_ONCE: usize = 16;

/// Which files a sweep removes, besides those of removed tasks.
pub(super) struct FileRule {
    /// Files that were written before this are looked at.
    written_before: Timestamp,
    /// One that is no result of its task goes if the task was last touched before this.
    touched_before: Timestamp,
}

impl FileRule {
    /// Files without a task that needs them, a day after both were last touched.
    fn orphans(now: Timestamp) -> Self {
        let cutoff = now.saturating_sub(ORPHAN_AGE);
        Self { written_before: cutoff, touched_before: cutoff }
    }

    /// Those of removed tasks alone: the age of a file says nothing here, and orphans are left to their own sweep.
    pub(super) const REMOVED: Self = Self { written_before: Timestamp::MAX, touched_before: Timestamp::MIN };
}

/// What a sweep did to the files.
pub(super) struct Swept {
    /// Files that were removed.
    pub(super) removed: usize,
    /// On the days looked through no file is left of a task made before this.
    pub(super) clear_before: Timestamp,
    /// Whether every day was looked through to its end.
    is_whole: bool,
}

/// A file that was found.
struct Found<'a> {
    name: &'a str,
    /// What it is, or was to become.
    intended: FileName<'a>,
    half_written: bool,
}

impl<'a> Found<'a> {
    /// `None` for what is nobody's result.
    fn read(name: &'a str) -> Option<Self> {
        // A write that was cut off leaves its file under the name it was to get and a number.
        let (intended, half_written) = name.split_once('#').map_or((name, false), |(intended, _)| (intended, true));
        Some(Self { name, intended: FileName::parse(intended)?, half_written })
    }
}

fn may_go(task: &TaskFiles, file: &Found<'_>, rule: &FileRule, removed_before: Timestamp) -> bool {
    if let Some(removed_at) = task.removed_at {
        return removed_at < removed_before;
    }
    if task.is_processing {
        return false;
    }
    let is_result = !file.half_written && task.images.iter().any(|image| image == file.intended.as_str());
    !is_result && task.updated_at < rule.touched_before
}

impl Sweeper {
    /// Removes from the latest `days` what attempts left behind: files that are no result of their task,
    /// a day after both were last touched. Files of unknown tasks stay, and so do those of tasks that ended
    /// just now, in case the wrong database was opened beside them. The files of removed tasks go too, where a
    /// crash or another retention left them. What fails is logged and left for the next sweep, and so is
    /// everything while a backup runs. Returns how many were removed.
    pub async fn sweep_orphans(&self, days: usize) -> usize {
        let days = self.days_of_files().await.unwrap_or_default().into_iter().rev().take(days);
        self.sweep_files(days, FileRule::orphans(self.shared.store.now())).await.removed
    }

    /// Sweeps orphans, as [`Sweeper::sweep_orphans`] does, on the days that are due and that no other process of this
    /// database sweeps: the latest days once an hour, each other day once a week, at times that drift apart. A day whose
    /// sweep was cut short is soon due again.
    pub async fn sweep_orphans_in_turn(&self) -> usize {
        let mut days = self.days_of_files().await.unwrap_or_default();
        days.reverse();
        let latest = days[..days.len().min(RECENT_DAYS)].to_vec();
        let mut removed = 0;
        // Whoever cannot remove files now leaves the day to others. And each day once, however long all of them take.
        while self.lock_for_removal().is_some()
            && let Some(day) = self.take_sweep(&days).await
        {
            days.retain(|other| *other != day);
            let sweep = self.sweep_files(std::iter::once(day.clone()), FileRule::orphans(self.shared.store.now()));
            let swept = self.holding(&day, sweep).await;
            removed += swept.removed;
            if swept.is_whole {
                let once_a_week = FULL_ORPHAN_SWEEP_EVERY.mul_f64(0.5 + rand::random::<f64>() / 2.0);
                let pause = if latest.contains(&day) { ORPHAN_SWEEP_EVERY - SWEEP_SLACK } else { once_a_week };
                self.put_off_sweep(&day, pause).await;
            }
        }
        removed
    }

    pub(super) async fn take_sweep(&self, sweeps: &[String]) -> Option<String> {
        match self.shared.store.take_sweep(sweeps, FILE_SWEEP_LEASE).await {
            Ok(taken) => taken,
            // Nobody else would take it, and files that go make room.
            Err(StoreError::Full(_)) if !self.shared.store.is_shared() => sweeps.first().cloned(),
            Err(error) => {
                failed(&error);
                None
            }
        }
    }

    pub(super) async fn put_off_sweep(&self, sweep: &str, pause: Duration) {
        if let Err(error) = self.shared.store.put_off_sweep(sweep, pause).await {
            failed(&error);
        }
    }

    /// Does the work of a sweep that was taken, and says meanwhile that somebody is at it.
    pub(super) async fn holding<T>(&self, sweep: &str, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                outcome = &mut work => return outcome,
                () = tokio::time::sleep(FILE_SWEEP_LEASE / 4) => self.put_off_sweep(sweep, FILE_SWEEP_LEASE).await,
            }
        }
    }

    pub(super) async fn days_of_files(&self) -> Option<Vec<String>> {
        self.shared
            .files
            .days()
            .await
            .inspect_err(|error| tracing::error!(%error, "could not list the result files"))
            .ok()
    }

    pub(super) async fn sweep_files(&self, days: impl Iterator<Item = String>, rule: FileRule) -> Swept {
        let mut swept = Swept { removed: 0, clear_before: Timestamp::MAX, is_whole: true };
        for day in days {
            let (Some(_removing), Some(removed_before)) = (self.lock_for_removal(), self.may_remove_files().await)
            else {
                return Swept { clear_before: Timestamp::MIN, is_whole: false, ..swept };
            };
            let before = swept.removed;
            let mut left = self.sweep_day(&day, &rule, removed_before, &mut swept.removed).await;
            if left == Some(0) && swept.removed > before {
                // A listing may pass over files while others beside them are removed.
                left = self.sweep_day(&day, &rule, removed_before, &mut swept.removed).await;
            }
            swept.is_whole &= left.is_some();
            if left != Some(0) {
                swept.clear_before = swept.clear_before.min(Timestamp::of_day(&day).unwrap_or(Timestamp::MIN));
            }
        }
        swept
    }

    /// Returns how many files of tasks are left; `None` when that is not known.
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
                    let found: Vec<Found<'_>> = names.iter().filter_map(|name| Found::read(name)).collect();
                    let gone = self.sweep_some(&found, rule, removed_before).await;
                    (left, *removed) = (left + found.len() - gone, *removed + gone);
                }
                Ok(None) => return Some(left),
                Err(error) => {
                    tracing::error!(%error, "could not look through a day of result files");
                    return None;
                }
            }
        }
    }

    /// Removes those of some files that may go; returns how many. What a task said once makes a file go holds for ever, so
    /// that time may pass before the file does.
    async fn sweep_some(&self, found: &[Found<'_>], rule: &FileRule, removed_before: Timestamp) -> usize {
        let ids: BTreeSet<Id> = found.iter().map(|file| file.intended.task_id()).collect();
        let tasks = match self.shared.store.task_files(&Vec::from_iter(ids)).await {
            Ok(tasks) => tasks.into_iter().map(|task| (task.id, task)).collect::<HashMap<Id, TaskFiles>>(),
            Err(error) => {
                failed(&error);
                return 0;
            }
        };
        let going = found.iter().filter(|file| {
            let task = tasks.get(&file.intended.task_id());
            task.is_some_and(|task| may_go(task, file, rule, removed_before))
        });
        let removals: Vec<_> = going.map(|file| self.shared.files.remove(file.name)).collect();
        let mut outcomes = stream::iter(removals).buffer_unordered(REMOVED_AT_ONCE);
        let mut gone = 0;
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                Ok(()) => gone += 1,
                Err(error) => tracing::error!(%error, "could not delete a result file"),
            }
        }
        gone
    }

    /// Whether a sweep may remove files now: `None` if not, else the time before which a task must have been
    /// removed for its files to go. Whatever a task needs that was submitted before that removal stays until
    /// the task has ended.
    pub(super) async fn may_remove_files(&self) -> Option<Timestamp> {
        let depth = self.shared.store.queue_depth().await.inspect_err(failed).ok()?;
        let aged = self.shared.store.now().saturating_sub(self.removed_files_grace);
        Some(depth.oldest.map_or(aged, |oldest| oldest.min(aged)))
    }

    /// The right to remove files; `None` while others of this machine have them, or when it cannot be known.
    pub(super) fn lock_for_removal(&self) -> Option<FilesLock> {
        match self.shared.files.try_removal() {
            Ok(Some(lock)) => Some(lock),
            Ok(None) => {
                tracing::info!("a backup, an audit or another process has the result files; removing some later");
                None
            }
            Err(error) => {
                tracing::error!(%error, "could not lock the result files; none is removed");
                None
            }
        }
    }
}
