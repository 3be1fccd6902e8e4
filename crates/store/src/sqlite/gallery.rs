//! Statements for the gallery.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, Rows, named_params, params};

use super::columns::json;
use super::tasks::upper;
use super::writer::Writing;
use super::{SqliteStore, audit_log, failed_prompts, tasks};
use crate::gallery::{GALLERY_BATCH, MOST_COUNTED, SCAN};
use crate::{Actor, Board, BoardWrite, CompletedTask, Deed, Gallery, GalleryFilter, GalleryPage, Result, TaskRecord};
use tintype_domain::model::Id;
use tintype_domain::search::{Sought, sought, terms};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// The tasks of the studio among the tasks `t` that this account may see.
const OWN: &str = "t.account_id = :account AND t.surface = 'web' AND t.removed_at IS NULL";

/// Whether a task `t` fits the filter, except its words.
const FITS: &str = "t.account_id = :account AND t.surface = 'web' AND t.removed_at IS NULL
    AND (:state IS NULL OR iif(t.cause = 'cancelled', t.cause, t.status) = :state)
    AND (:image_to_image IS NULL OR t.image_to_image = :image_to_image)
    AND (:aspect_ratio IS NULL OR t.aspect_ratio = :aspect_ratio)
    AND (:starred_by IS NULL OR EXISTS (SELECT 1 FROM stars s WHERE s.task_id = t.id AND s.person_id = :starred_by))
    AND (:person IS NULL OR t.person_id IS :person)
    AND (:board IS NULL OR EXISTS (SELECT 1 FROM board_tasks o JOIN boards b ON b.id = o.board_id
         WHERE o.board_id = :board AND o.task_id = t.id AND b.account_id = :account))";

/// The tables to read, newest task first, and the conditions of their index: the one that has the fewest other tasks.
/// CROSS JOIN keeps SQLite from reading them in another order.
fn source(filter: &GalleryFilter, has_words: bool) -> &'static str {
    if has_words {
        "prompt_words w CROSS JOIN prompts p ON p.number = w.rowid CROSS JOIN tasks t ON t.id = p.task_id
         WHERE w.prompt_words MATCH :words AND w.rowid >= :first AND w.rowid < :end AND t.id >= :from AND t.id < :before
         ORDER BY w.rowid DESC"
    } else if filter.board.is_some() {
        "board_tasks m CROSS JOIN tasks t ON t.id = m.task_id
         WHERE m.board_id = :board AND m.task_id >= :from AND m.task_id < :before AND :words IS NULL AND :first < :end
         ORDER BY m.task_id DESC"
    } else if filter.starred_by.is_some() {
        "stars m CROSS JOIN tasks t ON t.id = m.task_id
         WHERE m.person_id = :starred_by AND m.task_id >= :from AND m.task_id < :before AND :words IS NULL
         AND :first < :end
         ORDER BY m.task_id DESC"
    } else if filter.person.is_some() {
        "tasks t WHERE t.account_id = :account AND t.person_id = :person AND t.removed_at IS NULL
         AND t.id >= :from AND t.id < :before AND :words IS NULL AND :first < :end ORDER BY t.id DESC"
    } else {
        "tasks t WHERE t.account_id = :account AND t.surface = 'web' AND t.removed_at IS NULL
         AND t.id >= :from AND t.id < :before AND :words IS NULL AND :first < :end ORDER BY t.id DESC"
    }
}

fn candidates(filter: &GalleryFilter, has_words: bool) -> String {
    format!("SELECT t.id, {FITS} FROM {}", source(filter, has_words))
}

/// All of these terms, in the language of FTS5. A term has letters and digits only.
fn matching(words: &[Sought]) -> String {
    let term = |one: &Sought| format!("\"{}\"{}", one.term, if one.is_beginning { "*" } else { "" });
    words.iter().map(term).collect::<Vec<_>>().join(" AND ")
}

fn page(
    connection: &Connection,
    account_id: Id,
    filter: &GalleryFilter,
    before: Option<Id>,
    limit: u32,
) -> rusqlite::Result<GalleryPage> {
    let words = sought(account_id, &filter.text);
    if words.is_empty() && !filter.text.trim().is_empty() {
        return Ok(GalleryPage::default());
    }
    let until = filter.until.map(Id::floor);
    let before = before.into_iter().chain(until).min();
    let mut statement = connection.prepare_cached(&candidates(filter, !words.is_empty()))?;
    let rows = statement.query(named_params! {
        ":account": account_id,
        ":state": filter.state.map(|state| state.as_str()),
        ":image_to_image": filter.image_to_image,
        ":aspect_ratio": filter.aspect_ratio.map(|ratio| ratio.as_str()),
        ":starred_by": filter.starred_by,
        ":person": filter.person,
        ":board": filter.board,
        ":words": (!words.is_empty()).then(|| matching(&words)),
        ":from": filter.from.map_or_else(String::new, |from| Id::floor(from).to_string()),
        ":before": upper(before),
        ":first": filter.from.map_or(0, |from| Id::floor(from).rank()),
        ":end": before.map_or(i64::MAX, Id::rank_after),
    })?;
    fitting(connection, rows, limit)
}

/// The page of up to `limit` tasks that fit, among the first [`SCAN`] rows: each has a task's id and whether it fits.
fn fitting(connection: &Connection, mut rows: Rows<'_>, limit: u32) -> rusqlite::Result<GalleryPage> {
    let (mut found, mut seen, mut last, mut older) = (Vec::new(), 0, None, None);
    while let Some(row) = rows.next()? {
        if found.len() == limit as usize || seen == SCAN {
            older = last;
            break;
        }
        seen += 1;
        let id: Id = row.get(0)?;
        last = Some(id);
        if row.get(1)? {
            found.push(id);
        }
    }
    let records: Vec<Option<TaskRecord>> =
        found.into_iter().map(|id| tasks::inspect(connection, id)).collect::<rusqlite::Result<_>>()?;
    Ok(GalleryPage { records: records.into_iter().flatten().collect(), older })
}

/// Ids as a parameter for `json_each`.
fn list(ids: &[Id]) -> String {
    serde_json::to_string(ids).expect("ids are always JSON")
}

fn ids(connection: &Connection, sql: &str, parameters: impl rusqlite::Params) -> rusqlite::Result<Vec<Id>> {
    connection.prepare_cached(sql)?.query_map(parameters, |row| row.get(0))?.collect()
}

fn board(row: &Row<'_>) -> rusqlite::Result<Board> {
    Ok(Board { id: row.get("id")?, name: row.get("name")?, owner: row.get("person_id")?, images: row.get("images")? })
}

/// Whether another board that the owner of this one sees among its like has this name.
fn is_taken(
    connection: &Connection,
    account_id: Id,
    owner: Option<Id>,
    name: &str,
    except: Option<Id>,
) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (
        SELECT 1 FROM boards WHERE account_id = ?1 AND person_id IS ?2 AND name = ?3 AND id IS NOT ?4)";
    connection.prepare_cached(sql)?.query_row(params![account_id, owner, name, except], |row| row.get(0))
}

/// The name and the owner of a board that a person sees.
fn seen(
    connection: &Connection,
    account_id: Id,
    person_id: Id,
    board: Id,
) -> rusqlite::Result<Option<(String, Option<Id>)>> {
    let sql = "SELECT name, person_id FROM boards
        WHERE id = ?3 AND account_id = ?1 AND (person_id IS NULL OR person_id = ?2)";
    let columns = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    connection.prepare_cached(sql)?.query_row(params![account_id, person_id, board], columns).optional()
}

/// Whether the owner of private boards, or the account, has as many boards as they may have.
fn is_full(connection: &Connection, account_id: Id, owner: Option<Id>, most: u32) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM boards WHERE account_id = ?1 AND person_id IS ?2";
    let count: u32 = connection.prepare_cached(sql)?.query_row(params![account_id, owner], |row| row.get(0))?;
    Ok(count >= most)
}

/// Terms that one commit overwrites in the index of words, besides those of its last task. Each costs the only writer
/// some 20 µs, and a prompt may have ten thousand.
pub(super) const TERMS_AT_A_TIME: usize = 2_000;

/// Takes a task out of the search. It still has its prompt: the index of words is told which of them to overwrite.
/// Returns their number.
pub(super) fn unsearch(writing: &mut Writing, task: Id) -> rusqlite::Result<usize> {
    let connection = &writing.connection;
    let mut overwritten = 0;
    let indexed = "SELECT p.number, t.account_id, t.prompt FROM prompts p JOIN tasks t ON t.id = p.task_id
        WHERE p.task_id = ?1";
    let columns = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let indexed: Option<(i64, Id, String)> =
        connection.prepare_cached(indexed)?.query_row([task], columns).optional()?;
    if let Some((number, account, prompt)) = indexed {
        let terms = terms(account, &prompt);
        overwritten = terms.len();
        connection
            .prepare_cached("INSERT INTO prompt_words (prompt_words, rowid, words) VALUES ('delete', ?1, ?2)")?
            .execute(params![number, terms.join(" ")])?;
    }
    for sql in ["DELETE FROM prompts WHERE task_id = ?1", "DELETE FROM unindexed WHERE task_id = ?1"] {
        connection.prepare_cached(sql)?.execute([task])?;
    }
    writing.empties_log = true;
    Ok(overwritten)
}

/// Deletes what the gallery keeps of a task, except its deletion, like [`unsearch`].
pub(super) fn forget(writing: &mut Writing, task: Id) -> rusqlite::Result<usize> {
    let overwritten = unsearch(writing, task)?;
    for table in ["stars", "board_tasks", "shared_links"] {
        let sql = format!("DELETE FROM {table} WHERE task_id = ?1");
        writing.connection.prepare_cached(&sql)?.execute([task])?;
    }
    Ok(overwritten)
}

fn delete(
    writing: &mut Writing,
    account_id: Id,
    wanted: &[Id],
    author: Option<Id>,
    actor: Option<&Actor>,
) -> rusqlite::Result<Vec<Id>> {
    let now = writing.clock.now();
    let sql = format!(
        "SELECT t.id, t.person_id FROM tasks t WHERE t.id IN (SELECT value FROM json_each(:tasks)) AND {OWN}
         AND t.status <> 'processing' AND (:author IS NULL OR t.person_id = :author) ORDER BY t.id"
    );
    let wanted = named_params! { ":tasks": list(wanted), ":account": account_id, ":author": author };
    let ended: Vec<(Id, Option<Id>)> = writing
        .connection
        .prepare_cached(&sql)?
        .query_map(wanted, |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (id, author) in &ended {
        let hide = "UPDATE tasks SET removed_at = ?2 WHERE id = ?1";
        writing.connection.prepare_cached(hide)?.execute(params![id, now])?;
        let record = "INSERT INTO deletions (task_id, account_id, deleted_at) VALUES (?1, ?2, ?3)";
        writing.connection.prepare_cached(record)?.execute(params![id, account_id, now])?;
        let deed = actor.and_then(|actor| Some((actor, Deed::of_deletion(*id, account_id, *author, actor)?)));
        if let Some((actor, deed)) = deed {
            audit_log::record(writing, actor, &deed)?;
        }
    }
    Ok(ended.into_iter().map(|(id, _)| id).collect())
}

/// The deletions `d` of tasks `t` that can be taken back, of the account ?1.
const BIN: &str = "FROM deletions d CROSS JOIN tasks t ON t.id = d.task_id
    WHERE d.account_id = ?1 AND NOT d.erased AND NOT d.is_final";

fn bin(
    connection: &Connection,
    account_id: Id,
    author: Option<Id>,
    before: Option<Id>,
    limit: u32,
) -> rusqlite::Result<GalleryPage> {
    let sql =
        format!("SELECT d.task_id, ?2 IS NULL OR t.person_id IS ?2 {BIN} AND d.task_id < ?3 ORDER BY d.task_id DESC");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query(params![account_id, author, upper(before)])?;
    fitting(connection, rows, limit)
}

/// Those of these tasks that are in the bin, of the author if there is one.
fn in_bin(connection: &Connection, account_id: Id, wanted: &[Id], author: Option<Id>) -> rusqlite::Result<Vec<Id>> {
    let sql = format!(
        "SELECT d.task_id {BIN} AND (?2 IS NULL OR t.person_id = ?2)
         AND d.task_id IN (SELECT value FROM json_each(?3)) ORDER BY d.task_id"
    );
    ids(connection, &sql, params![account_id, author, list(wanted)])
}

fn restore(connection: &Connection, account_id: Id, wanted: &[Id], author: Option<Id>) -> rusqlite::Result<Vec<Id>> {
    let back = in_bin(connection, account_id, wanted, author)?;
    for id in &back {
        connection.prepare_cached("UPDATE tasks SET removed_at = NULL WHERE id = ?1")?.execute([id])?;
        connection.prepare_cached("DELETE FROM deletions WHERE task_id = ?1")?.execute([id])?;
    }
    Ok(back)
}

/// Deleted tasks to erase, up to ?4: each part reads an index. No task ends before it is created, so ?3 is the lowest id of
/// the time ?2.
const DUE: &str = "
    SELECT task_id FROM (SELECT task_id FROM deletions WHERE erased = 0 AND deleted_at < ?1 LIMIT ?4)
    UNION SELECT task_id FROM (SELECT task_id FROM deletions WHERE is_final AND NOT erased LIMIT ?4)
    UNION SELECT task_id FROM (
        SELECT d.task_id FROM deletions d CROSS JOIN tasks t ON t.id = d.task_id
        WHERE d.task_id < ?3 AND NOT d.erased AND t.updated_at < ?2 LIMIT ?4)
    LIMIT ?4";

fn due(
    connection: &Connection,
    deleted_before: Timestamp,
    ended_before: Option<Timestamp>,
    limit: u32,
) -> rusqlite::Result<Vec<Id>> {
    let floor = ended_before.map(Id::floor);
    ids(connection, DUE, params![deleted_before, ended_before, floor, limit])
}

fn erase(writing: &mut Writing, deleted_before: Timestamp, ended_before: Option<Timestamp>) -> rusqlite::Result<usize> {
    let due = due(&writing.connection, deleted_before, ended_before, GALLERY_BATCH)?;
    let (mut erased, mut overwritten) = (0, 0);
    for id in &due {
        if overwritten >= TERMS_AT_A_TIME {
            break;
        }
        overwritten += forget(writing, *id)?;
        erased += 1;
        let connection = &writing.connection;
        let blank =
            "UPDATE tasks SET prompt = '', reference_images = '[]', settings = NULL, request_id = NULL WHERE id = ?1";
        connection.prepare_cached(blank)?.execute([id])?;
        failed_prompts::forget(connection, *id)?;
        connection.prepare_cached("UPDATE deletions SET erased = 1 WHERE task_id = ?1")?.execute([id])?;
    }
    Ok(erased)
}

/// The number of a task in the index: its rank, or the next free one, so that a search reads the newest tasks first,
/// also after the clock was set back.
fn number(connection: &Connection, task: Id) -> rusqlite::Result<i64> {
    let mut taken = connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM prompts WHERE number = ?1)")?;
    let mut number = task.rank();
    while taken.query_row([number], |row| row.get(0))? {
        number += 1;
    }
    Ok(number)
}

/// Indexes the oldest tasks first, so that those that share a rank have numbers in the order of their ids.
fn index(connection: &Connection) -> rusqlite::Result<usize> {
    let sql = "SELECT t.id, t.account_id, t.prompt FROM unindexed u CROSS JOIN tasks t ON t.id = u.task_id
        ORDER BY u.task_id LIMIT ?1";
    let columns = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let due: Vec<(Id, Id, String)> =
        connection.prepare_cached(sql)?.query_map([GALLERY_BATCH], columns)?.collect::<rusqlite::Result<_>>()?;
    for (task, account, prompt) in &due {
        let number = number(connection, *task)?;
        connection
            .prepare_cached("INSERT INTO prompts (number, task_id) VALUES (?1, ?2)")?
            .execute(params![number, task])?;
        connection
            .prepare_cached("INSERT INTO prompt_words (rowid, words) VALUES (?1, ?2)")?
            .execute(params![number, terms(*account, prompt).join(" ")])?;
        connection.prepare_cached("DELETE FROM unindexed WHERE task_id = ?1")?.execute([task])?;
    }
    Ok(due.len())
}

#[async_trait]
impl Gallery for SqliteStore {
    async fn gallery(
        &self,
        account_id: Id,
        filter: &GalleryFilter,
        before: Option<Id>,
        limit: u32,
    ) -> Result<GalleryPage> {
        self.read(|connection| page(connection, account_id, filter, before, limit))
    }

    async fn neighbours(&self, account_id: Id, task: Id) -> Result<[Option<Id>; 2]> {
        let next = |beyond| {
            format!(
                "(SELECT id FROM tasks WHERE account_id = ?1 AND surface = 'web' AND removed_at IS NULL AND id {beyond}
                  LIMIT 1)"
            )
        };
        let sql = format!("SELECT {}, {}", next("> ?2 ORDER BY id"), next("< ?2 ORDER BY id DESC"));
        self.read(|connection| {
            let both = |row: &Row<'_>| Ok([row.get(0)?, row.get(1)?]);
            connection.prepare_cached(&sql)?.query_row(params![account_id, task], both)
        })
    }

    async fn starred(&self, person_id: Id, tasks: &[Id]) -> Result<Vec<Id>> {
        let sql = "SELECT task_id FROM stars WHERE task_id IN (SELECT value FROM json_each(?1)) AND person_id = ?2";
        self.read(|connection| ids(connection, sql, params![list(tasks), person_id]))
    }

    async fn star_tasks(&self, account_id: Id, person_id: Id, tasks: &[Id], starred: bool) -> Result<()> {
        let tasks = list(tasks);
        let star = move |writing: &mut Writing| -> rusqlite::Result<_> {
            let sql = if starred {
                format!(
                    "INSERT OR IGNORE INTO stars (task_id, person_id)
                     SELECT t.id, p.id FROM tasks t JOIN people p ON p.id = :person AND p.account_id = :account
                     WHERE t.id IN (SELECT value FROM json_each(:tasks)) AND {OWN}"
                )
            } else {
                "DELETE FROM stars WHERE task_id IN (SELECT value FROM json_each(:tasks)) AND person_id = :person
                 AND EXISTS (SELECT 1 FROM people WHERE id = :person AND account_id = :account)"
                    .to_owned()
            };
            let parameters = named_params! { ":tasks": tasks, ":account": account_id, ":person": person_id };
            writing.connection.prepare_cached(&sql)?.execute(parameters).map(drop)
        };
        self.write(Effect::MarkTasks, star).await
    }

    async fn boards(&self, account_id: Id, person_id: Id) -> Result<Vec<Board>> {
        let sql = "SELECT b.id, b.name, b.person_id, (
                SELECT iif(count(*) = ?3, NULL, coalesce(sum(n), 0)) FROM (
                    SELECT iif(t.status = 'completed', t.n, 0) AS n FROM board_tasks o JOIN tasks t ON t.id = o.task_id
                    WHERE o.board_id = b.id AND t.removed_at IS NULL LIMIT ?3)) AS images
            FROM boards b WHERE b.account_id = ?1 AND (b.person_id IS NULL OR b.person_id = ?2) ORDER BY b.name, b.id";
        self.read(|connection| {
            let values = params![account_id, person_id, MOST_COUNTED];
            connection.prepare_cached(sql)?.query_map(values, board)?.collect()
        })
    }

    async fn sees_board(&self, account_id: Id, person_id: Id, board: Id) -> Result<bool> {
        self.read(|connection| Ok(seen(connection, account_id, person_id, board)?.is_some()))
    }

    async fn create_board(&self, account_id: Id, owner: Option<Id>, name: &str, most: u32) -> Result<BoardWrite> {
        let name = name.to_owned();
        let create = move |writing: &mut Writing| -> rusqlite::Result<_> {
            if is_taken(&writing.connection, account_id, owner, &name, None)? {
                return Ok(BoardWrite::NameTaken);
            }
            if is_full(&writing.connection, account_id, owner, most)? {
                return Ok(BoardWrite::Full);
            }
            let id = writing.ids.next(writing.clock.now());
            let sql = "INSERT INTO boards (id, account_id, name, person_id)
                SELECT ?1, id, ?3, ?4 FROM accounts WHERE id = ?2 AND deleted_at IS NULL
                AND (?4 IS NULL OR EXISTS (SELECT 1 FROM people WHERE id = ?4 AND account_id = ?2))";
            let made = writing.connection.prepare_cached(sql)?.execute(params![id, account_id, name, owner])?;
            Ok(if made > 0 { BoardWrite::Done(id) } else { BoardWrite::NotFound })
        };
        self.write(Effect::ChangeBoard, create).await
    }

    async fn rename_board(&self, account_id: Id, person_id: Id, board: Id, name: &str) -> Result<BoardWrite> {
        let name = name.to_owned();
        let rename = move |writing: &mut Writing| -> rusqlite::Result<_> {
            let Some((_, owner)) = seen(&writing.connection, account_id, person_id, board)? else {
                return Ok(BoardWrite::NotFound);
            };
            if is_taken(&writing.connection, account_id, owner, &name, Some(board))? {
                return Ok(BoardWrite::NameTaken);
            }
            let sql = "UPDATE boards SET name = ?2 WHERE id = ?1";
            writing.connection.prepare_cached(sql)?.execute(params![board, name])?;
            Ok(BoardWrite::Done(board))
        };
        self.write(Effect::ChangeBoard, rename).await
    }

    async fn publish_board(&self, account_id: Id, person_id: Id, board: Id, most: u32) -> Result<BoardWrite> {
        let publish = move |writing: &mut Writing| -> rusqlite::Result<_> {
            let Some((name, owner)) = seen(&writing.connection, account_id, person_id, board)? else {
                return Ok(BoardWrite::NotFound);
            };
            if owner.is_none() {
                return Ok(BoardWrite::Done(board));
            }
            if is_taken(&writing.connection, account_id, None, &name, None)? {
                return Ok(BoardWrite::NameTaken);
            }
            if is_full(&writing.connection, account_id, None, most)? {
                return Ok(BoardWrite::Full);
            }
            let sql = "UPDATE boards SET person_id = NULL WHERE id = ?1";
            writing.connection.prepare_cached(sql)?.execute([board])?;
            Ok(BoardWrite::Done(board))
        };
        self.write(Effect::ChangeBoard, publish).await
    }

    async fn remove_board(&self, account_id: Id, person_id: Id, board: Id) -> Result<bool> {
        let remove = move |writing: &mut Writing| -> rusqlite::Result<_> {
            let sql = "DELETE FROM boards
                WHERE id = ?3 AND account_id = ?1 AND (person_id IS NULL OR person_id = ?2)";
            Ok(writing.connection.prepare_cached(sql)?.execute(params![account_id, person_id, board])? > 0)
        };
        self.write(Effect::ChangeBoard, remove).await
    }

    async fn put_on_board(&self, account_id: Id, person_id: Id, board: Id, tasks: &[Id], put: bool) -> Result<bool> {
        let tasks = list(tasks);
        let change = move |writing: &mut Writing| -> rusqlite::Result<_> {
            if seen(&writing.connection, account_id, person_id, board)?.is_none() {
                return Ok(false);
            }
            if put {
                let sql = format!(
                    "INSERT OR IGNORE INTO board_tasks (board_id, task_id) SELECT :board, t.id FROM tasks t
                     WHERE t.id IN (SELECT value FROM json_each(:tasks)) AND {OWN}"
                );
                let parameters = named_params! { ":board": board, ":tasks": tasks, ":account": account_id };
                writing.connection.prepare_cached(&sql)?.execute(parameters)?;
            } else {
                let sql =
                    "DELETE FROM board_tasks WHERE board_id = ?1 AND task_id IN (SELECT value FROM json_each(?2))";
                writing.connection.prepare_cached(sql)?.execute(params![board, tasks])?;
            }
            Ok(true)
        };
        self.write(Effect::MarkTasks, change).await
    }

    async fn delete_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<Vec<Id>> {
        let (tasks, actor) = (tasks.to_owned(), self.actor.clone());
        let delete = move |writing: &mut Writing| delete(writing, account_id, &tasks, author, actor.as_deref());
        self.write(Effect::DeleteTasks, delete).await
    }

    async fn bin(&self, account_id: Id, author: Option<Id>, before: Option<Id>, limit: u32) -> Result<GalleryPage> {
        self.read(|connection| bin(connection, account_id, author, before, limit))
    }

    async fn restore_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<Vec<Id>> {
        let tasks = tasks.to_owned();
        let restore = move |writing: &mut Writing| restore(&writing.connection, account_id, &tasks, author);
        self.write(Effect::RestoreTasks, restore).await
    }

    async fn purge_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<usize> {
        let tasks = tasks.to_owned();
        let purge = move |writing: &mut Writing| -> rusqlite::Result<_> {
            let found = in_bin(&writing.connection, account_id, &tasks, author)?;
            let sql = "UPDATE deletions SET is_final = 1 WHERE task_id IN (SELECT value FROM json_each(?1))";
            writing.connection.prepare_cached(sql)?.execute([list(&found)])
        };
        self.write(Effect::DeleteTasks, purge).await
    }

    async fn erase_deleted(&self, deleted_before: Timestamp, ended_before: Option<Timestamp>) -> Result<usize> {
        // Read first: a write that changes nothing would be a commit, too.
        if self.read(|connection| due(connection, deleted_before, ended_before, 1))?.is_empty() {
            return Ok(0);
        }
        self.write(Effect::EraseTasks, move |writing| erase(writing, deleted_before, ended_before)).await
    }

    async fn erased_tasks(&self, cutoff: Timestamp, limit: u32) -> Result<Vec<CompletedTask>> {
        let sql = "SELECT t.id, t.account_id, coalesce(t.images, '[]') FROM deletions d
            CROSS JOIN tasks t ON t.id = d.task_id
            WHERE d.erased = 1 AND d.deleted_at < ?1 ORDER BY d.deleted_at LIMIT ?2";
        self.read(|connection| {
            let erased =
                |row: &Row<'_>| Ok(CompletedTask { id: row.get(0)?, account_id: row.get(1)?, images: json(row, 2)? });
            connection.prepare_cached(sql)?.query_map(params![cutoff, limit], erased)?.collect()
        })
    }

    async fn forget_deletion(&self, task: Id) -> Result<()> {
        let sql = "DELETE FROM deletions WHERE task_id = ?1 AND erased = 1";
        let forget = move |writing: &mut Writing| writing.connection.prepare_cached(sql)?.execute([task]).map(drop);
        self.write(Effect::EraseTasks, forget).await
    }

    async fn index_prompts(&self) -> Result<usize> {
        let due = "SELECT EXISTS (SELECT 1 FROM unindexed)";
        if !self.read(|connection| connection.prepare_cached(due)?.query_row([], |row| row.get(0)))? {
            return Ok(0);
        }
        self.write(Effect::IndexPrompts, |writing| index(&writing.connection)).await
    }
}
