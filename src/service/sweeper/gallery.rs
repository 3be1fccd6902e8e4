//! Indexes the prompts of new tasks of the studio, and erases the tasks that people have deleted and the prompts of failed
//! ones.

use super::{Sweeper, failed, report};
use tintype_config::DELETED_FILES_GRACE;

/// Tasks whose files are removed in one round.
const BATCH: u32 = 256;

impl Sweeper {
    /// Indexes new prompts for the search of the gallery. Logs an error and leaves it to the next sweep.
    pub async fn index_prompts(&self) {
        if let Err(error) = self.shared.store.index_prompts().await {
            tracing::error!(%error, "could not index prompts, so that searches miss new tasks; the next sweep tries again");
        }
    }

    /// Erases prompts of failed tasks that are old or take too much space. Logs an error and leaves it to the next sweep.
    pub async fn erase_failed_prompts(&self) {
        let (retention, most) = self.failed_prompts;
        let cutoff = self.shared.store.now().saturating_sub(retention);
        report(self.shared.store.erase_failed_prompts(cutoff, most).await, |erased| {
            tracing::info!(tasks = erased, "prompts of failed tasks erased")
        });
    }

    /// Erases tasks whose time in the bin is over, or whose deletion is final; then removes the files of tasks deleted
    /// before every unfinished task began, so that unfinished tasks keep their references. Logs failures and leaves
    /// them to the next sweep. Returns the number of tasks whose files are gone.
    pub async fn sweep_deleted(&self) -> usize {
        let store = &self.shared.store;
        let now = store.now();
        let (due, aged) = (now.saturating_sub(self.in_bin), now.saturating_sub(DELETED_FILES_GRACE));
        let ended = self.retention.map(|retention| now.saturating_sub(retention));
        loop {
            match store.erase_deleted(due, ended).await {
                Ok(0) => break,
                Ok(erased) => tracing::info!(tasks = erased, "deleted tasks erased"),
                Err(error) => {
                    failed(&error);
                    return 0;
                }
            }
        }
        let Ok(depth) = store.queue_depth().await.inspect_err(failed) else { return 0 };
        let before = depth.oldest.map_or(aged, |oldest| oldest.min(aged));
        let mut gone = 0;
        while let Ok(erased) = store.erased_tasks(before, BATCH).await.inspect_err(failed)
            && !erased.is_empty()
            && let Some(_removing) = self.lock_for_removal()
        {
            for task in erased {
                for name in &task.images {
                    if let Err(error) = self.shared.files.remove(name).await {
                        tracing::error!(%error, task = %task.id, "could not remove a file of a deleted task; the next sweep tries again");
                        return gone;
                    }
                }
                // The deletion goes last, so that no file is left without one.
                let Ok(()) = store.forget_deletion(task.id).await.inspect_err(failed) else { return gone };
                gone += 1;
            }
        }
        gone
    }
}
