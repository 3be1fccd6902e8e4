//! The gallery: the tasks of the studio, searched, marked, put on boards and deleted. The API sees none of it.

use super::driver::{Dialect, Driver, List, Parameter, Row, Store, Transaction, from_row, with_store};
use super::failure::DbResult;
use super::retention::ERASED;
use super::tasks::{completed, record, record_columns, upper};
use super::{Action, AuditedChange, CompletedTask, Result, TaskRecord, ledger};
use tintype_domain::model::Id;
use tintype_domain::request::AspectRatio;
use tintype_domain::search::sought;
use tintype_domain::string_enum;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Maximum rows scanned per page, so rare matches stay cheap.
pub const SCAN: u32 = 1_000;

/// Whether a task `t` is one of the account $1 in the studio and fits the filter, except its words.
pub(super) const FITS: &str = "t.account_id = $1 AND t.surface = 'web' AND t.removed_at IS NULL
    AND (CAST($4 AS text) IS NULL OR CASE WHEN t.cause = 'cancelled' THEN t.cause ELSE t.status END = $4)
    AND (CAST($5 AS boolean) IS NULL OR t.image_to_image = $5)
    AND (CAST($6 AS text) IS NULL OR t.aspect_ratio = $6)
    AND (CAST($7 AS text) IS NULL OR EXISTS (SELECT 1 FROM stars s WHERE s.task_id = t.id AND s.person_id = $7))
    AND (CAST($12 AS text) IS NULL OR t.person_id IS NOT DISTINCT FROM $12)
    AND (CAST($8 AS text) IS NULL OR EXISTS (SELECT 1 FROM board_tasks o JOIN boards b ON b.id = o.board_id
         WHERE o.board_id = $8 AND o.task_id = t.id AND b.account_id = $1))";

string_enum! {
    /// A state to filter by.
    pub enum TaskState: "state" {
        /// Waiting or rendering.
        Processing = "processing",
        /// Completed.
        Completed = "completed",
        /// Failed.
        Failed = "failed",
        /// Cancelled.
        Cancelled = "cancelled",
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
    /// Its name, unique in the account, or for a private board among its owner's.
    pub name: String,
    /// The only person who sees it; `None` for one that the whole account sees.
    pub owner: Option<Id>,
    /// The images of its tasks that are not deleted; `None` if it has [`MOST_COUNTED`] tasks or more.
    pub images: Option<u32>,
}

/// Tasks of a board that are counted at most, so that a list of boards stays cheap.
pub const MOST_COUNTED: u32 = 200;

/// Outcome of making, renaming or publishing a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoardWrite {
    /// The board.
    Done(Id),
    /// Another board has this name.
    NameTaken,
    /// The limit on boards is reached.
    Full,
    /// There is no such account or person, or the person can't see such a board.
    NotFound,
}

/// Tasks that are indexed or erased in one transaction.
pub const GALLERY_BATCH: u32 = 256;

/// Most transactions of one call that index prompts on SQLite. Other writes happen between them.
const INDEX_COMMITS: usize = 8;

/// A page of up to `limit` of these ids, and the id before which the next page begins, or `unseen` if there are fewer.
pub(super) fn paginate(mut found: Vec<Id>, unseen: Option<Id>, limit: u32) -> (Vec<Id>, Option<Id>) {
    if found.len() <= limit as usize {
        return (found, unseen);
    }
    found.truncate(limit as usize);
    let older = found.last().copied();
    (found, older)
}

/// A page with these tasks.
async fn page(driver: &Driver, (found, older): (Vec<Id>, Option<Id>)) -> Result<GalleryPage> {
    let sql = format!("SELECT {} FROM tasks WHERE id {} ORDER BY id DESC", record_columns(), driver.in_list(1));
    Ok(GalleryPage { records: driver.list(&sql, &[&List(&found)], record).await?, older })
}

from_row! { fn board(row) -> Board { id, name, owner: row.get("person_id")?, images } }

/// The board $1 of the account $2, if the person $3 sees it.
const SEEN: &str = "id = $1 AND account_id = $2 AND (person_id IS NULL OR person_id = $3)";

/// Locks the account of a board that a person sees, and returns the board's name and owner.
async fn seen(
    tx: &Transaction<'_>,
    account_id: Id,
    person_id: Id,
    board: Id,
) -> DbResult<Option<(String, Option<Id>)>> {
    if !ledger::lock(tx, account_id).await? {
        return Ok(None);
    }
    let sql = format!("SELECT name, person_id FROM boards WHERE {SEEN}");
    let named = |row: &Row| Ok((row.get("name")?, row.get("person_id")?));
    tx.find(&sql, &[&board, &account_id, &person_id], named).await
}

/// Why a board cannot have this name: another board than `own` of the same owner or account has it, or there are
/// already `most` boards. `None` if it can.
async fn refusal(
    tx: &Transaction<'_>,
    account_id: Id,
    owner: Option<Id>,
    (own, name): (Id, &str),
    most: Option<u32>,
) -> DbResult<Option<BoardWrite>> {
    let of_owner = "FROM boards WHERE account_id = $1 AND person_id IS NOT DISTINCT FROM $2";
    let taken = format!("SELECT 1 {of_owner} AND name = $3 AND id <> $4");
    if tx.query_opt(&taken, &[&account_id, &owner, &name, &own]).await?.is_some() {
        return Ok(Some(BoardWrite::NameTaken));
    }
    let Some(most) = most else { return Ok(None) };
    let boards = tx.query(&format!("SELECT 1 {of_owner}"), &[&account_id, &owner]).await?;
    Ok((boards.len() >= most as usize).then_some(BoardWrite::Full))
}

/// Locks the tasks that are in the bin, only the author's if there is one.
async fn in_bin(tx: &Transaction<'_>, account_id: Id, tasks: &[Id], author: Option<Id>) -> DbResult<Vec<Id>> {
    let sql = format!(
        "SELECT d.task_id FROM deletions d CROSS JOIN tasks t WHERE t.id = d.task_id AND d.task_id {}
         AND d.account_id = $2 AND (CAST($3 AS text) IS NULL OR t.person_id = $3) AND NOT d.erased AND NOT d.is_final
         ORDER BY d.task_id {}",
        tx.in_list(1),
        tx.locking("FOR UPDATE OF d")
    );
    tx.list(&sql, &[&List(tasks), &account_id, &author], |row| row.get("task_id")).await
}

/// Deletes the rows of these tasks from a table.
pub(super) async fn delete_of(tx: &Transaction<'_>, table: &str, tasks: &[Id]) -> DbResult {
    tx.execute(&format!("DELETE FROM {table} WHERE task_id {}", tx.in_list(1)), &[&List(tasks)]).await?;
    Ok(())
}

/// Takes tasks out of the search that still have their prompts. Returns them; SQLite takes fewer if their prompts are
/// long.
pub(super) async fn remove_from_index<'a>(tx: &Transaction<'_>, tasks: &'a [Id]) -> DbResult<&'a [Id]> {
    let gone = match tx {
        Transaction::Sqlite(..) => super::sqlite::overwrite_words(tx, tasks).await?,
        Transaction::Postgres(..) => tasks,
    };
    // In this order: a process that is indexing a task keeps its row locked until the words are there to be deleted.
    for table in ["unindexed", "prompts"] {
        delete_of(tx, table, gone).await?;
    }
    tx.erases();
    Ok(gone)
}

/// Deletes what the gallery keeps of tasks, except their deletion, like [`remove_from_index`].
pub(super) async fn forget<'a>(tx: &Transaction<'_>, tasks: &'a [Id]) -> DbResult<&'a [Id]> {
    let gone = remove_from_index(tx, tasks).await?;
    for table in ["failed_prompts", "stars", "board_tasks", "shared_links"] {
        delete_of(tx, table, gone).await?;
    }
    Ok(gone)
}

/// Deleted tasks to erase, up to $4: each part reads an index. No task ends before it is created, so $3 is the lowest
/// id of the time $2.
const DUE: &str = "
    SELECT task_id FROM (SELECT task_id FROM deletions WHERE erased = FALSE AND deleted_at < $1
        ORDER BY erased, deleted_at LIMIT $4) AS old
    UNION SELECT task_id FROM (SELECT task_id FROM deletions WHERE is_final AND NOT erased LIMIT $4) AS purged
    UNION SELECT task_id FROM (
        SELECT d.task_id FROM deletions d CROSS JOIN tasks t WHERE t.id = d.task_id
        AND d.task_id < $3 AND NOT d.erased AND t.updated_at < $2 ORDER BY d.task_id LIMIT $4) AS ended
    LIMIT $4";

/// Studio tasks as people arrange them. Methods ignore ids of deleted tasks, and of tasks that are not the account's on
/// the surface `web`.
impl Store {
    /// Up to `limit` tasks of an account that fit, newest first, older than the task `before`.
    pub async fn gallery(
        &self,
        account_id: Id,
        filter: &GalleryFilter,
        before: Option<Id>,
        limit: u32,
    ) -> Result<GalleryPage> {
        let words = sought(account_id, &filter.text);
        if words.is_empty() && !filter.text.trim().is_empty() {
            return Ok(GalleryPage::default());
        }
        let before = before.into_iter().chain(filter.until.map(Id::floor)).min();
        let found = with_store!(self.driver, store => store.search(account_id, filter, &words, before, limit).await?);
        let mut page = page(&self.driver, found).await?;
        // It may have been deleted meanwhile.
        page.records.retain(|record| record.removed_at.is_none());
        Ok(page)
    }

    /// The next newer and the next older task of an account than this one.
    pub async fn neighbours(&self, account_id: Id, task: Id) -> Result<[Option<Id>; 2]> {
        let next = |beyond| {
            format!(
                "(SELECT id FROM tasks WHERE account_id = $1 AND surface = 'web' AND removed_at IS NULL AND id {beyond}
                  LIMIT 1)"
            )
        };
        let (newer, older) = (next("> $2 ORDER BY surface, id"), next("< $2 ORDER BY surface DESC, id DESC"));
        let sql = format!("SELECT {newer} AS newer, {older} AS older");
        let both = |row: &Row| Ok([row.get("newer")?, row.get("older")?]);
        Ok(self.driver.find(&sql, &[&account_id, &task], both).await?.unwrap_or_default())
    }

    /// The tasks among these that the studio shows.
    pub async fn shown(&self, account_id: Id, tasks: &[Id]) -> Result<Vec<Id>> {
        let among = self.driver.in_list(1);
        let sql = format!(
            "SELECT id FROM tasks WHERE id {among} AND account_id = $2 AND surface = 'web' AND removed_at IS NULL"
        );
        self.driver.list(&sql, &[&List(tasks), &account_id], |row| row.get("id")).await
    }

    /// The tasks among these that a person has starred.
    pub async fn starred(&self, person_id: Id, tasks: &[Id]) -> Result<Vec<Id>> {
        let among = self.driver.in_list(1);
        let sql = format!("SELECT task_id FROM stars WHERE task_id {among} AND person_id = $2");
        self.driver.list(&sql, &[&List(tasks), &person_id], |row| row.get("task_id")).await
    }

    /// Gives stars of a person of the account to tasks, or takes them away.
    pub async fn star_tasks(&self, account_id: Id, person_id: Id, tasks: &[Id], starred: bool) -> Result<()> {
        let among = self.driver.in_list(1);
        let sql = if starred {
            // Locked, so that no task is erased meanwhile.
            let locking = self.driver.either("", "FOR SHARE");
            format!(
                "WITH own AS MATERIALIZED (
                     SELECT id FROM tasks WHERE id {among} AND account_id = $2 AND surface = 'web'
                     AND removed_at IS NULL ORDER BY id {locking}
                 )
                 INSERT INTO stars (task_id, person_id)
                 SELECT own.id, p.id FROM own CROSS JOIN people p WHERE p.id = $3 AND p.account_id = $2 ORDER BY own.id
                 ON CONFLICT DO NOTHING"
            )
        } else {
            format!(
                "DELETE FROM stars WHERE task_id {among} AND person_id = $3
                 AND EXISTS (SELECT 1 FROM people WHERE id = $3 AND account_id = $2)"
            )
        };
        self.statement(Effect::MarkTasks, sql, &[&List(tasks), &account_id, &person_id]).await.map(drop)
    }

    /// The boards of an account that a person sees, by name.
    pub async fn boards(&self, account_id: Id, person_id: Id) -> Result<Vec<Board>> {
        let sql = "SELECT b.id, b.name, b.person_id, (
                SELECT CASE WHEN count(*) < $3 THEN coalesce(sum(n), 0) END FROM (
                    SELECT CASE WHEN t.status = 'completed' THEN t.n ELSE 0 END AS n
                    FROM board_tasks o JOIN tasks t ON t.id = o.task_id
                    WHERE o.board_id = b.id AND t.removed_at IS NULL LIMIT $3) counted) AS images
            FROM boards b WHERE b.account_id = $1 AND (b.person_id IS NULL OR b.person_id = $2) ORDER BY b.name, b.id";
        self.driver.list(sql, &[&account_id, &person_id, &MOST_COUNTED], board).await
    }

    /// Whether a person sees a board.
    pub async fn sees_board(&self, account_id: Id, person_id: Id, board: Id) -> Result<bool> {
        let sql = format!("SELECT 1 FROM boards WHERE {SEEN}");
        Ok(self.driver.read_one(&sql, &[&board, &account_id, &person_id]).await?.is_some())
    }

    /// Makes a board, which only its owner sees, or else the whole account. Each owner, and the account, has at most
    /// `most`.
    pub async fn create_board(&self, account_id: Id, owner: Option<Id>, name: &str, most: u32) -> Result<BoardWrite> {
        let name = name.to_owned();
        self.write(Effect::ChangeBoard, async move |tx| {
            let id = tx.new_id();
            if !ledger::lock(tx, account_id).await? {
                return Ok(BoardWrite::NotFound);
            }
            if let Some(refusal) = refusal(tx, account_id, owner, (id, &name), Some(most)).await? {
                return Ok(refusal);
            }
            let sql = "INSERT INTO boards (id, account_id, name, person_id) SELECT $1, $2, $3, $4
                WHERE CAST($4 AS text) IS NULL OR EXISTS (SELECT 1 FROM people WHERE id = $4 AND account_id = $2)";
            let made = tx.execute(sql, &[&id, &account_id, &name, &owner]).await?;
            Ok(if made > 0 { BoardWrite::Done(id) } else { BoardWrite::NotFound })
        })
        .await
    }

    /// Renames a board that a person sees.
    pub async fn rename_board(&self, account_id: Id, person_id: Id, board: Id, name: &str) -> Result<BoardWrite> {
        let name = name.to_owned();
        self.write(Effect::ChangeBoard, async move |tx| {
            let Some((_, owner)) = seen(tx, account_id, person_id, board).await? else {
                return Ok(BoardWrite::NotFound);
            };
            if let Some(refusal) = refusal(tx, account_id, owner, (board, &name), None).await? {
                return Ok(refusal);
            }
            let renamed = tx.execute("UPDATE boards SET name = $2 WHERE id = $1", &[&board, &name]).await?;
            Ok(if renamed > 0 { BoardWrite::Done(board) } else { BoardWrite::NotFound })
        })
        .await
    }

    /// Shows a private board of a person to the whole account, unless that has `most`. Nothing changes for one that it
    /// sees.
    pub async fn publish_board(&self, account_id: Id, person_id: Id, board: Id, most: u32) -> Result<BoardWrite> {
        self.write(Effect::ChangeBoard, async move |tx| {
            let Some((name, owner)) = seen(tx, account_id, person_id, board).await? else {
                return Ok(BoardWrite::NotFound);
            };
            if owner.is_none() {
                return Ok(BoardWrite::Done(board));
            }
            if let Some(refusal) = refusal(tx, account_id, None, (board, &name), Some(most)).await? {
                return Ok(refusal);
            }
            let published = tx.execute("UPDATE boards SET person_id = NULL WHERE id = $1", &[&board]).await?;
            Ok(if published > 0 { BoardWrite::Done(board) } else { BoardWrite::NotFound })
        })
        .await
    }

    /// Removes a board that a person sees, and no task. Returns whether there was one.
    pub async fn remove_board(&self, account_id: Id, person_id: Id, board: Id) -> Result<bool> {
        let sql = format!("DELETE FROM boards WHERE {SEEN} RETURNING id");
        let removed = self.statement(Effect::ChangeBoard, sql, &[&board, &account_id, &person_id]).await?;
        Ok(!removed.is_empty())
    }

    /// Puts tasks on a board that a person sees, or takes them off. Returns whether there is such a board.
    pub async fn put_on_board(
        &self,
        account_id: Id,
        person_id: Id,
        board: Id,
        tasks: &[Id],
        put: bool,
    ) -> Result<bool> {
        let tasks = tasks.to_owned();
        self.write(Effect::MarkTasks, async move |tx| {
            // Locked, so that neither the board is removed nor a task erased meanwhile.
            let seen = format!("SELECT id FROM boards WHERE {SEEN} {}", tx.locking("FOR KEY SHARE"));
            if tx.query_opt(&seen, &[&board, &account_id, &person_id]).await?.is_none() {
                return Ok(false);
            }
            let (among, locking) = (tx.in_list(2), tx.locking("FOR SHARE"));
            if put {
                let sql = format!(
                    "WITH own AS MATERIALIZED (
                         SELECT id FROM tasks WHERE id {among} AND account_id = $3 AND surface = 'web'
                         AND removed_at IS NULL ORDER BY id {locking}
                     )
                     INSERT INTO board_tasks (board_id, task_id) SELECT $1, id FROM own WHERE TRUE ORDER BY id
                     ON CONFLICT DO NOTHING"
                );
                tx.execute(&sql, &[&board, &List(&tasks), &account_id]).await?;
            } else {
                let sql = format!("DELETE FROM board_tasks WHERE board_id = $1 AND task_id {among}");
                tx.execute(&sql, &[&board, &List(&tasks)]).await?;
            }
            Ok(true)
        })
        .await
    }

    /// Moves ended tasks to the bin, which hides them at once; with an `author`, only this person's. Returns the moved
    /// tasks. Their ledger entries stay. The audit log records tasks of people other than the actor.
    pub async fn delete_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<Vec<Id>> {
        let tasks = tasks.to_owned();
        self.write(Effect::DeleteTasks, async move |tx| {
            let among = tx.in_list(1);
            let ended = format!(
                "SELECT id, person_id FROM tasks WHERE id {among} AND account_id = $2 AND surface = 'web'
                 AND removed_at IS NULL AND status <> 'processing' AND (CAST($3 AS text) IS NULL OR person_id = $3)
                 ORDER BY id {}",
                tx.locking("FOR NO KEY UPDATE")
            );
            let task = |row: &Row| Ok((row.get("id")?, row.get("person_id")?));
            let ended: Vec<(Id, Option<Id>)> = tx.list(&ended, &[&List(&tasks), &account_id, &author], task).await?;
            let (deleted, now): (Vec<Id>, _) = (ended.iter().map(|(id, _)| *id).collect(), tx.now());
            let hide = format!("UPDATE tasks SET removed_at = $2 WHERE id {among}");
            tx.execute(&hide, &[&List(&deleted), &now]).await?;
            let note = format!(
                "INSERT INTO deletions (task_id, account_id, deleted_at)
                 SELECT id, account_id, $2 FROM tasks WHERE id {among} ORDER BY id"
            );
            tx.execute(&note, &[&List(&deleted), &now]).await?;
            for (id, author) in ended {
                if tx.is_of_another(author) {
                    tx.audit(AuditedChange::of(Action::DeleteTask, account_id).about(id)).await?;
                }
            }
            Ok(deleted)
        })
        .await
    }

    /// Up to `limit` tasks of an account in the bin, newest first, older than the task `before`; with an `author`, only
    /// this person's.
    pub async fn bin(&self, account_id: Id, author: Option<Id>, before: Option<Id>, limit: u32) -> Result<GalleryPage> {
        let sql = "WITH newest AS MATERIALIZED (
                SELECT task_id FROM deletions
                WHERE account_id = $1 AND NOT erased AND NOT is_final AND task_id < $3
                ORDER BY account_id DESC, task_id DESC LIMIT $4
            )
            SELECT id, CAST($2 AS text) IS NULL OR person_id IS NOT DISTINCT FROM $2 AS fits
            FROM newest CROSS JOIN tasks WHERE id = task_id ORDER BY id DESC";
        let most = if author.is_none() { limit + 1 } else { SCAN };
        let seen = |row: &Row| Ok((row.get("id")?, row.get("fits")?));
        let seen: Vec<(Id, bool)> = self.driver.list(sql, &[&account_id, &author, &upper(before), &most], seen).await?;
        let last = seen.last().map(|(id, _)| *id).filter(|_| seen.len() == most as usize);
        let found = seen.into_iter().filter_map(|(id, fits)| fits.then_some(id)).collect();
        page(&self.driver, paginate(found, last, limit)).await
    }

    /// Restores tasks from the bin; with an `author`, only this person's. Returns them. Erased tasks cannot be
    /// restored.
    pub async fn restore_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<Vec<Id>> {
        let tasks = tasks.to_owned();
        self.write(Effect::RestoreTasks, async move |tx| {
            let back = in_bin(tx, account_id, &tasks, author).await?;
            delete_of(tx, "deletions", &back).await?;
            let sql = format!("UPDATE tasks SET removed_at = NULL WHERE id {}", tx.in_list(1));
            tx.execute(&sql, &[&List(&back)]).await?;
            Ok(back)
        })
        .await
    }

    /// Makes the deletion of tasks in the bin final: the next sweep erases them. With an `author`, only this person's.
    /// Returns their number.
    pub async fn purge_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<usize> {
        let tasks = tasks.to_owned();
        self.write(Effect::DeleteTasks, async move |tx| {
            let purged = in_bin(tx, account_id, &tasks, author).await?;
            let sql = format!("UPDATE deletions SET is_final = TRUE WHERE task_id {}", tx.in_list(1));
            tx.execute(&sql, &[&List(&purged)]).await?;
            Ok(purged.len())
        })
        .await
    }

    /// Erases up to a few hundred deleted tasks: deleted before `deleted_before`, ended before `ended_before`, or
    /// permanently deleted. Their requests, search entries, stars and board places are removed. Returns their number.
    pub async fn erase_deleted(&self, deleted_before: Timestamp, ended_before: Option<Timestamp>) -> Result<usize> {
        // Read first: a write that changes nothing would be a commit, too.
        let floor = ended_before.map(Id::floor);
        if self.driver.read(DUE, &[&deleted_before, &ended_before, &floor, &1_i64]).await?.is_empty() {
            return Ok(0);
        }
        self.write(Effect::EraseTasks, async move |tx| {
            let sql = format!(
                "SELECT task_id FROM deletions WHERE NOT erased AND task_id {} ORDER BY task_id {}",
                tx.in_subquery(DUE),
                tx.locking("FOR UPDATE SKIP LOCKED")
            );
            let parameters: [&dyn Parameter; 4] = [&deleted_before, &ended_before, &floor, &GALLERY_BATCH];
            let due: Vec<Id> = tx.list(&sql, &parameters, |row| row.get("task_id")).await?;
            let erased = forget(tx, &due).await?;
            let blank = format!("tasks SET {ERASED}, request_id = NULL WHERE id");
            for set in [&*blank, "deletions SET erased = TRUE WHERE task_id"] {
                tx.execute(&format!("UPDATE {set} {}", tx.in_list(1)), &[&List(erased)]).await?;
            }
            Ok(erased.len())
        })
        .await
    }

    /// Up to `limit` erased tasks that were deleted before `cutoff`, with the names of the files that are theirs.
    pub async fn erased_tasks(&self, cutoff: Timestamp, limit: u32) -> Result<Vec<CompletedTask>> {
        let sql = "SELECT t.id, t.account_id, coalesce(t.images, '[]') AS images FROM deletions d
            CROSS JOIN tasks t WHERE t.id = d.task_id AND d.erased = TRUE AND d.deleted_at < $1
            ORDER BY d.deleted_at LIMIT $2";
        self.driver.list(sql, &[&cutoff, &limit], completed).await
    }

    /// Forgets that an erased task was deleted; its files are gone.
    pub async fn forget_deletion(&self, task: Id) -> Result<()> {
        let sql = "DELETE FROM deletions WHERE task_id = $1 AND erased";
        self.statement(Effect::EraseTasks, sql, &[&task]).await.map(drop)
    }

    /// Indexes the prompts of some new tasks for the search, at most some thousand. Returns their number.
    pub async fn index_prompts(&self) -> Result<usize> {
        match &self.driver {
            Driver::Sqlite(_) => {
                let mut indexed = 0;
                for _ in 0..INDEX_COMMITS {
                    if self.driver.read_one("SELECT 1 FROM unindexed LIMIT 1", &[]).await?.is_none() {
                        break;
                    }
                    indexed +=
                        self.write(Effect::IndexPrompts, async |tx| super::sqlite::index_prompts(tx).await).await?;
                }
                Ok(indexed)
            }
            Driver::Postgres(store) => store.index_prompts().await,
        }
    }
}
