//! The gallery: the tasks of the studio, searched, marked, put on boards and deleted. The API sees none of it.

use async_trait::async_trait;

use super::{CompletedTask, Result, TaskRecord};
use tintype_domain::model::Id;
use tintype_domain::request::AspectRatio;
use tintype_system::clock::Timestamp;

/// Maximum rows scanned per page, so rare matches stay cheap.
pub const SCAN: u32 = 1_000;

/// A state to filter by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// Waiting or rendering.
    Processing,
    /// Completed.
    Completed,
    /// Failed.
    Failed,
    /// Cancelled.
    Cancelled,
}

impl TaskState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Processing, Self::Failed, Self::Cancelled];

    /// The name in the interface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The tasks to show: those that fit everything that is set.
#[derive(Debug, Clone, Default)]
pub struct GalleryFilter {
    /// Words of the prompt; each may be the beginning of one.
    pub text: String,
    /// The state.
    pub state: Option<TaskState>,
    /// Whether the task has references.
    pub image_to_image: Option<bool>,
    /// The aspect ratio.
    pub aspect_ratio: Option<AspectRatio>,
    /// Only those that have a star of this person.
    pub starred_by: Option<Id>,
    /// Only those that this person created.
    pub person: Option<Id>,
    /// Only those on this board of the account.
    pub board: Option<Id>,
    /// Only those created at this time or later.
    pub from: Option<Timestamp>,
    /// Only those created before this time.
    pub until: Option<Timestamp>,
}

impl GalleryFilter {
    /// Whether it leaves any task out.
    pub fn is_set(&self) -> bool {
        let Self { text, state, image_to_image, aspect_ratio, starred_by, person, board, from, until } = self;
        !text.trim().is_empty()
            || state.is_some()
            || image_to_image.is_some()
            || aspect_ratio.is_some()
            || starred_by.is_some()
            || person.is_some()
            || board.is_some()
            || from.is_some()
            || until.is_some()
    }
}

/// A page of the gallery.
#[derive(Debug, Clone, Default)]
pub struct GalleryPage {
    /// The tasks, newest first.
    pub records: Vec<TaskRecord>,
    /// The next page begins before this id; `None` on the last page. A page may be short or empty although more pages
    /// follow, because each scans a limited number of tasks.
    pub older: Option<Id>,
}

/// A board, on which people collect tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// The board.
    pub id: Id,
    /// Its name, which no other board of the account has, or no other private one of its owner.
    pub name: String,
    /// The only person who sees it; `None` for one that the whole account sees.
    pub owner: Option<Id>,
    /// The images of its tasks that are not deleted; `None` if it has [`MOST_COUNTED`] tasks or more.
    pub images: Option<u32>,
}

/// So many tasks of a board are not counted any more, so that a list of boards stays cheap.
pub const MOST_COUNTED: u32 = 200;

/// Outcome of making, renaming or publishing a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoardWrite {
    /// The board.
    Done(Id),
    /// Another board has this name.
    NameTaken,
    /// There are as many boards as there may be.
    Full,
    /// There is no such account or person, or the person sees no such board.
    NotFound,
}

/// Tasks of the studio as their people arrange them. A method that takes ids of tasks ignores those that are not tasks
/// of the account on the surface `web`, or that were deleted.
#[async_trait]
pub trait Gallery: std::fmt::Debug + Send + Sync + 'static {
    /// Up to `limit` tasks of an account that fit, newest first, older than the task `before`.
    async fn gallery(
        &self,
        account_id: Id,
        filter: &GalleryFilter,
        before: Option<Id>,
        limit: u32,
    ) -> Result<GalleryPage>;

    /// The next newer and the next older task of an account than this one.
    async fn neighbours(&self, account_id: Id, task: Id) -> Result<[Option<Id>; 2]>;

    /// Those of these tasks that have a star of a person.
    async fn starred(&self, person_id: Id, tasks: &[Id]) -> Result<Vec<Id>>;

    /// Gives stars of a person of the account to tasks, or takes them away.
    async fn star_tasks(&self, account_id: Id, person_id: Id, tasks: &[Id], starred: bool) -> Result<()>;

    /// The boards of an account that a person sees, by name.
    async fn boards(&self, account_id: Id, person_id: Id) -> Result<Vec<Board>>;

    /// Whether a person sees a board.
    async fn sees_board(&self, account_id: Id, person_id: Id, board: Id) -> Result<bool>;

    /// Makes a board, which only its owner sees, or else the whole account. Each owner, and the account, has at most `most`.
    async fn create_board(&self, account_id: Id, owner: Option<Id>, name: &str, most: u32) -> Result<BoardWrite>;

    /// Renames a board that a person sees.
    async fn rename_board(&self, account_id: Id, person_id: Id, board: Id, name: &str) -> Result<BoardWrite>;

    /// Shows a private board of a person to the whole account, unless that has `most`. Nothing changes for one that it sees.
    async fn publish_board(&self, account_id: Id, person_id: Id, board: Id, most: u32) -> Result<BoardWrite>;

    /// Removes a board that a person sees, and no task. Returns whether there was one.
    async fn remove_board(&self, account_id: Id, person_id: Id, board: Id) -> Result<bool>;

    /// Puts tasks on a board that a person sees, or takes them off. Returns whether there is such a board.
    async fn put_on_board(&self, account_id: Id, person_id: Id, board: Id, tasks: &[Id], put: bool) -> Result<bool>;

    /// Moves tasks that have ended to the bin, which hides them at once; with an `author`, only this person's. Returns
    /// those that were moved. Their ledger entries stay. The audit log records tasks of other people than the one who acts.
    async fn delete_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<Vec<Id>>;

    /// Up to `limit` tasks of an account in the bin, newest first, older than the task `before`; with an `author`, only this
    /// person's.
    async fn bin(&self, account_id: Id, author: Option<Id>, before: Option<Id>, limit: u32) -> Result<GalleryPage>;

    /// Restores tasks from the bin; with an `author`, only this person's. Returns them. Erased ones do not come back.
    async fn restore_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<Vec<Id>>;

    /// Makes the deletion of tasks in the bin final: the next sweep erases them. With an `author`, only this person's.
    /// Returns their number.
    async fn purge_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<usize>;

    /// Erases deleted tasks, up to some hundred: those that were deleted before `deleted_before` or ended before
    /// `ended_before`, and those whose deletion is final. Requests, entries of the search, stars and places on boards go.
    /// Returns their number.
    async fn erase_deleted(&self, deleted_before: Timestamp, ended_before: Option<Timestamp>) -> Result<usize>;

    /// Up to `limit` erased tasks that were deleted before `cutoff`, with the names of the files that are theirs.
    async fn erased_tasks(&self, cutoff: Timestamp, limit: u32) -> Result<Vec<CompletedTask>>;

    /// Forgets that an erased task was deleted; its files are gone.
    async fn forget_deletion(&self, task: Id) -> Result<()>;

    /// Indexes the prompts of up to some hundred new tasks for the search. Returns their number.
    async fn index_prompts(&self) -> Result<usize>;
}

/// Tasks that are indexed or erased in one transaction.
pub const GALLERY_BATCH: u32 = 256;
