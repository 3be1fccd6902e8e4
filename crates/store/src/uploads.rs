//! Pictures that people bring, which tasks use as references.

use async_trait::async_trait;

use super::Result;
use tintype_domain::model::{Id, Surface};
use tintype_system::clock::Timestamp;

/// A stored upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The upload.
    pub id: Id,
    /// The account that it belongs to.
    pub account_id: Id,
    /// The surface through which it came, whose tasks alone may use it.
    pub surface: Surface,
    /// The picture.
    pub picture: UploadedPicture,
    /// Time of its removal, which hides it from its owner. A task that was created before may use it still.
    pub removed_at: Option<Timestamp>,
    /// The person who uploaded it in the studio, even if the person was removed since. An upload of the API has none, and
    /// neither has one of an earlier release.
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
    /// A picture that nobody in particular brings.
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

/// Uploads. An upload is begun, which reserves its place among those of its account, and finished when its file is
/// stored.
#[async_trait]
pub trait Uploads: std::fmt::Debug + Send + Sync + 'static {
    /// Begins an upload. `None` if the account has `most` uploads, is disabled or does not exist.
    async fn begin_upload(&self, new: NewUpload, most: u32) -> Result<Option<Id>>;

    /// Finishes an upload, whose file is stored. `false` if it is unknown, finished or removed; nothing refers to the
    /// file then.
    async fn finish_upload(&self, id: Id, picture: UploadedPicture) -> Result<bool>;

    /// The number of an account's uploads that were not removed, including those that are not finished.
    async fn count_uploads(&self, account_id: Id) -> Result<u32>;

    /// The finished upload of this account and surface, even if it was removed.
    async fn held_upload(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Upload>>;

    /// The finished upload of this account and surface, unless it was removed.
    async fn find_upload(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Upload>> {
        Ok(self.held_upload(account_id, surface, id).await?.filter(|upload| upload.removed_at.is_none()))
    }

    /// The finished uploads of an account on one surface, newest first, older than the upload `before`.
    async fn list_uploads(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<Upload>>;

    /// Removes the upload of this account and surface, if it is `author`'s; anyone's without an author. Returns whether
    /// there was one. The audit log records the removal of another person's.
    async fn remove_upload(&self, account_id: Id, surface: Surface, id: Id, author: Option<Id>) -> Result<bool>;

    /// Removes the finished uploads of the studio that began before `finished_before`, and the others that began before
    /// `begun_before`: an upload of the API is for one task, which is submitted at once. Returns their number.
    async fn remove_uploads(&self, finished_before: Timestamp, begun_before: Timestamp) -> Result<usize>;

    /// Up to `limit` finished uploads that were removed before `cutoff`.
    async fn removed_uploads(&self, cutoff: Timestamp, limit: u32) -> Result<Vec<Upload>>;

    /// Deletes a removed upload, whose file is gone.
    async fn forget_upload(&self, id: Id) -> Result<()>;
}
