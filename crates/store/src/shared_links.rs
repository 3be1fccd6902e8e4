//! Shared links: each shows one task or one board of the studio to everybody who has the link, without a sign-in.

use async_trait::async_trait;

use super::{Result, TaskRecord};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// What a shared link shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The images of a task.
    Task(Id),
    /// The images on a board, as it is when somebody looks.
    Board(Id),
}

impl Target {
    /// The task and the board, one of which is there.
    pub(super) fn ids(self) -> (Option<Id>, Option<Id>) {
        match self {
            Self::Task(id) => (Some(id), None),
            Self::Board(id) => (None, Some(id)),
        }
    }

    /// The inverse of [`ids`](Self::ids).
    pub(super) fn of(task: Option<Id>, board: Option<Id>) -> Option<Self> {
        task.map(Self::Task).or(board.map(Self::Board))
    }
}

/// A shared link to make.
#[derive(Debug, Clone, Copy)]
pub struct NewSharedLink {
    /// The account of its maker and its target.
    pub account_id: Id,
    /// Who makes it.
    pub person_id: Id,
    /// What it shows.
    pub target: Target,
    /// Whether its page shows the prompts.
    pub with_prompts: bool,
    /// When it stops working; `None` for one that works until it is revoked.
    pub expires_at: Option<Timestamp>,
}

/// A shared link that works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLink {
    /// The link.
    pub id: Id,
    /// The account that shares.
    pub account_id: Id,
    /// Who made it.
    pub person_id: Id,
    /// What it shows.
    pub target: Target,
    /// The name of the board, or the prompt of the task.
    pub title: String,
    /// Whether it shows a private board, which belongs to the link's maker.
    pub is_private: bool,
    /// Whether its page shows the prompts.
    pub with_prompts: bool,
    /// When it stops working; `None` for one that works until it is revoked.
    pub expires_at: Option<Timestamp>,
    /// How often its page was shown.
    pub views: i64,
}

/// Outcome of making a shared link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedLinkCreation {
    /// The link was made.
    Created(Id),
    /// The account has no such board, and no such task in the studio, or the maker is not one of its people.
    NoTarget,
    /// The account has as many links as it may have.
    TooMany,
}

/// Links that are shared. One works until it expires or is revoked, its maker is removed or may only look, its account is
/// disabled, or its target is deleted; while its task is in the bin, it shows nothing.
#[async_trait]
pub trait SharedLinks: std::fmt::Debug + Send + Sync + 'static {
    /// Makes a link, unless the account has `most`. The audit log records it.
    async fn create_shared_link(&self, new: NewSharedLink, most: u32) -> Result<SharedLinkCreation>;

    /// A link, if it works.
    async fn find_shared_link(&self, id: Id) -> Result<Option<SharedLink>>;

    /// A task that a link shows.
    async fn find_shared_task(&self, link: Id, task: Id) -> Result<Option<TaskRecord>>;

    /// Up to `limit` links of an account that work, newest first, older than the link `before`; with a `maker`, only this
    /// person's.
    async fn list_shared_links(
        &self,
        account_id: Id,
        maker: Option<Id>,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<SharedLink>>;

    /// Counts a view of a link.
    async fn count_view(&self, link: Id) -> Result<()>;

    /// Revokes a link of an account; with a `maker`, only if it is this person's. The audit log records it. Returns whether
    /// there was one.
    async fn revoke_shared_link(&self, account_id: Id, link: Id, maker: Option<Id>) -> Result<bool>;

    /// Deletes the links that have expired. Returns their number.
    async fn delete_expired_links(&self) -> Result<usize>;
}
