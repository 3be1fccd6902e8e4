//! Removes old uploads, and the files of removed ones.

use super::{Sweeper, failed, report};
use tintype_config::{REMOVED_UPLOAD_LIFE, UPLOAD_ABANDONED, UPLOAD_LIFE};

/// Uploads whose files are removed in one round.
const BATCH: u32 = 256;

impl Sweeper {
    /// Removes uploads past their life, and those that were begun long ago and never finished; then the files of uploads
    /// that were removed before every unfinished task began, so that each of these has its references. Logs failures and
    /// leaves them to the next sweep. Returns the number of files.
    pub async fn sweep_uploads(&self) -> usize {
        let (store, now) = (&self.shared.store, self.shared.store.now());
        let life = self.retention.map_or(UPLOAD_LIFE, |retention| retention.min(UPLOAD_LIFE));
        let removed = store.remove_uploads(now.saturating_sub(life), now.saturating_sub(UPLOAD_ABANDONED)).await;
        report(removed, |removed| tracing::info!(uploads = removed, "old uploads removed"));
        let deleted = store.delete_uploads(now.saturating_sub(REMOVED_UPLOAD_LIFE)).await;
        report(deleted, |deleted| tracing::debug!(deleted, "removed uploads deleted"));
        let mut gone = 0;
        while let (Some(_removing), Some(before)) = (self.lock_for_removal(), self.may_remove_files().await)
            && let Ok(removed) = store.removed_uploads(before, BATCH).await.inspect_err(failed)
            && !removed.is_empty()
        {
            for upload in removed {
                if let Err(error) = self.shared.files.remove(&upload.picture.name).await {
                    tracing::error!(%error, upload = %upload.id, "could not remove the file of an upload; the next sweep tries again");
                    return gone;
                }
                // After the file, so that no file is left unknown.
                let Ok(()) = store.forget_upload_file(upload.id).await.inspect_err(failed) else { return gone };
                gone += 1;
            }
        }
        gone
    }
}
