//! The search in the gallery, and its index of words.

use rusqlite::{Connection, Row, named_params, params};

use super::SqliteStore;
use crate::driver::Transaction;
use crate::failure::Done;
use crate::gallery::{GALLERY_BATCH, SCAN};
use crate::tasks::upper;
use crate::{GalleryFilter, Result};
use tintype_domain::model::Id;
use tintype_domain::search::{SearchTerm, sought, terms};
use tintype_system::fault::Effect;

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

/// All of these terms, in the language of FTS5. A term has letters and digits only.
fn matching(words: &[SearchTerm]) -> String {
    let term = |one: &SearchTerm| format!("\"{}\"{}", one.term, if one.is_beginning { "*" } else { "" });
    words.iter().map(term).collect::<Vec<_>>().join(" AND ")
}

/// The ids of up to `limit` tasks that fit, among the first [`SCAN`] of the source, and the id before which the next
/// page begins.
fn search(
    connection: &Connection,
    account_id: Id,
    filter: &GalleryFilter,
    before: Option<Id>,
    limit: u32,
) -> rusqlite::Result<(Vec<Id>, Option<Id>)> {
    let words = sought(account_id, &filter.text);
    if words.is_empty() && !filter.text.trim().is_empty() {
        return Ok((Vec::new(), None));
    }
    let until = filter.until.map(Id::floor);
    let before = before.into_iter().chain(until).min();
    let sql = format!("SELECT t.id, {FITS} FROM {}", source(filter, !words.is_empty()));
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(named_params! {
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
    Ok((found, older))
}

/// Terms that one commit overwrites in the index of words, besides those of its last task. Each costs the only writer
/// some 20 µs, and a prompt may have ten thousand.
const TERMS_AT_A_TIME: usize = 2_000;

/// Overwrites the words of tasks in the index, which needs the words to find them. Returns the tasks, or only the first
/// ones if they have many words.
pub(crate) async fn overwrite_words<'a>(begun: &Transaction<'_>, tasks: &'a [Id]) -> Done<&'a [Id]> {
    let (mut overwritten, mut done) = (0, 0);
    for task in tasks {
        if overwritten >= TERMS_AT_A_TIME {
            break;
        }
        done += 1;
        let indexed = "SELECT p.number, t.account_id, t.prompt FROM prompts p JOIN tasks t ON t.id = p.task_id
            WHERE p.task_id = $1";
        if let Some(row) = begun.query_opt(indexed, &[task]).await? {
            let terms = terms(row.get("account_id")?, &row.get::<String>("prompt")?);
            overwritten += terms.len();
            let sql = "INSERT INTO prompt_words (prompt_words, rowid, words) VALUES ('delete', $1, $2)";
            begun.execute(sql, &[&row.get::<i64>("number")?, &terms.join(" ")]).await?;
        }
    }
    Ok(&tasks[..done])
}

/// The first number from `first` on that no task has in the index.
fn free_number(connection: &Connection, first: i64) -> rusqlite::Result<i64> {
    let mut taken = connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM prompts WHERE number = ?1)")?;
    let mut number = first;
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
    // The number of a task is its rank, or the next free one, so that a search reads the newest tasks first, also after the
    // clock was set back. From the rank of a task to its number all are taken.
    let mut free = 0;
    for (task, account, prompt) in &due {
        let number = free_number(connection, task.rank().max(free))?;
        free = number + 1;
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

impl SqliteStore {
    pub(crate) async fn search(
        &self,
        account_id: Id,
        filter: &GalleryFilter,
        before: Option<Id>,
        limit: u32,
    ) -> Result<(Vec<Id>, Option<Id>)> {
        self.read(|connection| search(connection, account_id, filter, before, limit))
    }

    pub(crate) async fn index(&self) -> Result<usize> {
        let due = "SELECT EXISTS (SELECT 1 FROM unindexed)";
        if !self.read(|connection| connection.prepare_cached(due)?.query_row([], |row| row.get(0)))? {
            return Ok(0);
        }
        self.write(Effect::IndexPrompts, None, |writing| Ok(index(&writing.connection)?)).await
    }
}
