//! Uploaded pictures, which tasks use as references.

use super::driver::{Parameter, Store, from_row};
use super::tasks::upper;
use super::{Action, AuditedChange, Result};
use tintype_domain::model::{Id, Surface};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// A stored upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The upload.
    pub id: Id,
    /// The account that it belongs to.
    pub account_id: Id,
    /// The surface that it came through. Only tasks from there can use it.
    pub surface: Surface,
    /// The picture.
    pub picture: UploadedPicture,
    /// Time of its removal, which hides it from its owner. A task that was created before may use it still.
    pub removed_at: Option<Timestamp>,
    /// The person who uploaded it in the studio, even if the person was removed since. An upload of the API has none,
    /// and neither has one of an earlier release.
    pub person_id: Option<Id>,
    /// Whether it was painted as a mask.
    pub is_mask: bool,
}

/// An upload to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewUpload {
    /// The account that it will belong to.
    pub account_id: Id,
    /// The surface through which it comes.
    pub surface: Surface,
    /// The person who uploads it in the studio.
    pub person_id: Option<Id>,
    /// Whether it was painted as a mask.
    pub is_mask: bool,
}

impl NewUpload {
    /// An upload without a person.
    pub fn of(account_id: Id, surface: Surface) -> Self {
        Self { account_id, surface, person_id: None, is_mask: false }
    }
}

/// The picture of an upload, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPicture {
    /// The name of its file.
    pub name: String,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

const COLUMNS: &str = "id, account_id, surface, name, width, height, removed_at, person_id, is_mask";

from_row! { fn upload(row) -> Upload {
    id, account_id, surface,
    picture: UploadedPicture { name: row.get("name")?, width: row.get("width")?, height: row.get("height")? },
    removed_at, person_id, is_mask,
} }

/// Uploads. Beginning an upload reserves one of its account's places, and it is finished when its file is stored.
impl Store {
    /// Begins an upload. `None` if the account has `most` uploads, is disabled or does not exist.
    pub async fn begin_upload(&self, new: NewUpload, most: u32) -> Result<Option<Id>> {
        self.write(Effect::BeginUpload, async move |tx| {
            let NewUpload { account_id, surface, person_id, is_mask } = new;
            // Several that begin at once wait for each other here, and see each other in the next statement.
            tx.lock("SELECT 1 FROM accounts WHERE id = $1", &[&account_id]).await?;
            let sql = "INSERT INTO uploads (id, account_id, surface, updated_at, person_id, is_mask)
                SELECT $1, id, $3, $4, $6, $7 FROM accounts WHERE id = $2 AND disabled_at IS NULL
                AND (SELECT count(*) FROM uploads WHERE account_id = $2 AND removed_at IS NULL) < $5";
            let (id, now) = (tx.new_id(), tx.now());
            let added = tx.execute(sql, &[&id, &account_id, &surface, &now, &most, &person_id, &is_mask]).await?;
            Ok((added > 0).then_some(id))
        })
        .await
    }

    /// Finishes an upload with a stored file. `false` if it is unknown, finished or removed; nothing refers to the file
    /// then.
    pub async fn finish_upload(&self, id: Id, picture: UploadedPicture) -> Result<bool> {
        let sql = "UPDATE uploads SET name = $2, width = $3, height = $4, updated_at = $5
            WHERE id = $1 AND name IS NULL AND removed_at IS NULL RETURNING id";
        let UploadedPicture { name, width, height } = picture;
        let parameters: [&dyn Parameter; 5] = [&id, &name, &width, &height, &self.driver.now()];
        let finished = self.statement(Effect::FinishUpload, sql, &parameters).await?;
        Ok(!finished.is_empty())
    }

    /// The number of an account's uploads that were not removed, including those that are not finished.
    pub async fn count_uploads(&self, account_id: Id) -> Result<u32> {
        let sql = "SELECT count(*) AS uploads FROM uploads WHERE account_id = $1 AND removed_at IS NULL";
        Ok(self.driver.find(sql, &[&account_id], |row| row.get("uploads")).await?.unwrap_or(0))
    }

    /// The finished upload of this account and surface, even if it was removed.
    pub async fn find_upload_even_removed(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Upload>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM uploads WHERE id = $1 AND account_id = $2 AND surface = $3 AND name IS NOT NULL"
        );
        self.driver.find(&sql, &[&id, &account_id, &surface], upload).await
    }

    /// The finished upload of this account and surface, unless it was removed.
    pub async fn find_upload(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Upload>> {
        Ok(self.find_upload_even_removed(account_id, surface, id).await?.filter(|upload| upload.removed_at.is_none()))
    }

    /// The finished uploads of an account on one surface, newest first, older than the upload `before`.
    pub async fn list_uploads(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<Upload>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM uploads WHERE account_id = $1 AND surface = $2 AND id < $3
             AND removed_at IS NULL AND name IS NOT NULL ORDER BY id DESC LIMIT $4"
        );
        self.driver.list(&sql, &[&account_id, &surface, &upper(before), &limit], upload).await
    }

    /// Removes the upload of this account and surface, if it is `author`'s; anyone's without an author. Returns whether
    /// there was one. The audit log records the removal of another person's.
    pub async fn remove_upload(&self, account_id: Id, surface: Surface, id: Id, author: Option<Id>) -> Result<bool> {
        self.write(Effect::RemoveUploads, async move |tx| {
            let sql = format!(
                "UPDATE uploads SET removed_at = $4 WHERE id = $1 AND account_id = $2 AND surface = $3
                 AND name IS NOT NULL AND removed_at IS NULL AND (person_id = $5 OR CAST($5 AS text) IS NULL)
                 RETURNING {COLUMNS}"
            );
            let removed = tx.find(&sql, &[&id, &account_id, &surface, &tx.now(), &author], upload).await?;
            if removed.as_ref().is_some_and(|upload| tx.is_of_another(upload.person_id)) {
                tx.audit(AuditedChange::of(Action::RemoveUpload, account_id).about(id)).await?;
            }
            Ok(removed.is_some())
        })
        .await
    }

    /// Removes the finished uploads of the studio that began before `finished_before`, and the others that began before
    /// `begun_before`: an upload of the API is for one task, which is submitted at once. Returns their number.
    pub async fn remove_uploads(&self, finished_before: Timestamp, begun_before: Timestamp) -> Result<usize> {
        let sql = "UPDATE uploads SET removed_at = $3 WHERE removed_at IS NULL
            AND id < CASE WHEN name IS NULL OR surface = 'api' THEN CAST($2 AS text) ELSE CAST($1 AS text) END
            RETURNING id";
        let (finished, tx, now) = (Id::floor(finished_before), Id::floor(begun_before), self.driver.now());
        Ok(self.statement(Effect::RemoveUploads, sql, &[&finished, &tx, &now]).await?.len())
    }

    /// Up to `limit` finished uploads that were removed before `cutoff`.
    pub async fn removed_uploads(&self, cutoff: Timestamp, limit: u32) -> Result<Vec<Upload>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM uploads WHERE removed_at < $1 AND name IS NOT NULL ORDER BY removed_at LIMIT $2"
        );
        self.driver.list(&sql, &[&cutoff, &limit], upload).await
    }

    /// Records that the file of a removed upload is gone.
    pub async fn forget_upload_file(&self, id: Id) -> Result<()> {
        let sql = "UPDATE uploads SET name = NULL WHERE id = $1 AND removed_at IS NOT NULL";
        self.statement(Effect::RemoveUploads, sql, &[&id]).await.map(drop)
    }

    /// Deletes uploads without a file that were removed before `cutoff`. Returns their number. Until then, the sweep of
    /// orphaned files knows them: a write to a bucket whose answer was lost may have left another copy.
    pub async fn delete_uploads(&self, cutoff: Timestamp) -> Result<usize> {
        let sql = "DELETE FROM uploads WHERE removed_at < $1 AND name IS NULL RETURNING id";
        Ok(self.statement(Effect::RemoveUploads, sql, &[&cutoff]).await?.len())
    }
}
