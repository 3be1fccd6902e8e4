//! The search in the gallery, and its index of words.

use rusqlite::types::FromSqlError;

use super::SqliteStore;
use crate::driver::{Parameter, Transaction, prepare, values};
use crate::failure::DbResult;
use crate::gallery::{FITS, GALLERY_BATCH, SCAN};
use crate::tasks::upper;
use crate::{GalleryFilter, Result};
use tintype_domain::model::Id;
use tintype_domain::search::{SearchTerm, terms};

/// The tables to read, newest task first, with the conditions for the index that includes the fewest other tasks. CROSS
/// JOIN keeps SQLite from reading them in another order.
fn source(filter: &GalleryFilter, has_words: bool) -> &'static str {
    if has_words {
        "prompt_words w CROSS JOIN prompts p ON p.number = w.rowid CROSS JOIN tasks t ON t.id = p.task_id
         WHERE w.prompt_words MATCH $9 AND w.rowid >= $10 AND w.rowid < $11 AND t.id >= $2 AND t.id < $3
         ORDER BY w.rowid DESC"
    } else if filter.board.is_some() {
        "board_tasks m CROSS JOIN tasks t ON t.id = m.task_id
         WHERE m.board_id = $8 AND m.task_id >= $2 AND m.task_id < $3 AND $9 IS NULL AND $10 < $11
         ORDER BY m.task_id DESC"
    } else if filter.starred_by.is_some() {
        "stars m CROSS JOIN tasks t ON t.id = m.task_id
         WHERE m.person_id = $7 AND m.task_id >= $2 AND m.task_id < $3 AND $9 IS NULL AND $10 < $11
         ORDER BY m.task_id DESC"
    } else if filter.person.is_some() {
        "tasks t WHERE t.account_id = $1 AND t.person_id = $12 AND t.removed_at IS NULL
         AND t.id >= $2 AND t.id < $3 AND $9 IS NULL AND $10 < $11 ORDER BY t.id DESC"
    } else {
        "tasks t WHERE t.account_id = $1 AND t.surface = 'web' AND t.removed_at IS NULL
         AND t.id >= $2 AND t.id < $3 AND $9 IS NULL AND $10 < $11 ORDER BY t.id DESC"
    }
}

/// All of these terms, in the language of FTS5. A term has letters and digits only.
fn matching(words: &[SearchTerm]) -> String {
    let term = |one: &SearchTerm| format!("\"{}\"{}", one.term, if one.is_beginning { "*" } else { "" });
    words.iter().map(term).collect::<Vec<_>>().join(" AND ")
}

/// Terms that one commit adds to the word index or overwrites there, not counting its last task's. Each takes the only
/// writer some 20 µs, and a prompt can have ten thousand.
const TERMS_AT_A_TIME: usize = 2_000;

/// Overwrites the words of tasks in the index, which needs the words to find them. Returns the tasks, or only the first
/// ones if they have many words.
pub(crate) async fn overwrite_words<'a>(tx: &Transaction<'_>, tasks: &'a [Id]) -> DbResult<&'a [Id]> {
    let (mut overwritten, mut done) = (0, 0);
    for task in tasks {
        if overwritten >= TERMS_AT_A_TIME {
            break;
        }
        done += 1;
        let indexed = "SELECT p.number, t.account_id, t.prompt FROM prompts p JOIN tasks t ON t.id = p.task_id
            WHERE p.task_id = $1";
        if let Some(row) = tx.query_opt(indexed, &[task]).await? {
            let terms = terms(row.get("account_id")?, &row.get::<String>("prompt")?);
            overwritten += terms.len();
            let sql = "INSERT INTO prompt_words (prompt_words, rowid, words) VALUES ('delete', $1, $2)";
            tx.execute(sql, &[&row.get::<i64>("number")?, &terms.join(" ")]).await?;
        }
    }
    Ok(&tasks[..done])
}

/// The first number from `first` on that no task has in the index.
async fn free_number(tx: &Transaction<'_>, first: i64) -> DbResult<i64> {
    let mut number = first;
    while tx.query_opt("SELECT 1 FROM prompts WHERE number = $1", &[&number]).await?.is_some() {
        number += 1;
    }
    Ok(number)
}

/// Indexes the oldest tasks first, so that those that share a rank have numbers in the order of their ids; only some of
/// them if they have many words.
pub(crate) async fn index_prompts(tx: &Transaction<'_>) -> DbResult<usize> {
    let due = "SELECT t.id, t.account_id, t.prompt FROM unindexed u CROSS JOIN tasks t ON t.id = u.task_id
        ORDER BY u.task_id LIMIT $1";
    let due = tx.query(due, &[&GALLERY_BATCH]).await?;
    // The number of a task is its rank, or the next free one, so that a search reads the newest tasks first, also after
    // the clock was set back. From the rank of a task to its number all are taken.
    let (mut free, mut indexed, mut done) = (0, 0, 0);
    for row in &due {
        if indexed >= TERMS_AT_A_TIME {
            break;
        }
        done += 1;
        let (task, words): (Id, _) = (row.get("id")?, terms(row.get("account_id")?, &row.get::<String>("prompt")?));
        let number = free_number(tx, task.rank().max(free)).await?;
        free = number + 1;
        indexed += words.len();
        tx.execute("INSERT INTO prompts (number, task_id) VALUES ($1, $2)", &[&number, &task]).await?;
        let sql = "INSERT INTO prompt_words (rowid, words) VALUES ($1, $2)";
        tx.execute(sql, &[&number, &words.join(" ")]).await?;
        tx.execute("DELETE FROM unindexed WHERE task_id = $1", &[&task]).await?;
    }
    Ok(done)
}

impl SqliteStore {
    /// The ids of up to `limit` matching tasks among the first [`SCAN`] of the source, and the id before which the next
    /// page begins.
    pub(crate) async fn search(
        &self,
        account_id: Id,
        filter: &GalleryFilter,
        words: &[SearchTerm],
        before: Option<Id>,
        limit: u32,
    ) -> Result<(Vec<Id>, Option<Id>)> {
        let sql = format!("SELECT t.id, {FITS} FROM {}", source(filter, !words.is_empty()));
        let parameters: [&dyn Parameter; 12] = [
            &account_id,
            &filter.from.map_or_else(String::new, |from| Id::floor(from).to_string()),
            &upper(before),
            &filter.state,
            &filter.image_to_image,
            &filter.aspect_ratio,
            &filter.starred_by,
            &filter.board,
            &(!words.is_empty()).then(|| matching(words)),
            &filter.from.map_or(0, |from| Id::floor(from).rank()),
            &before.map_or(i64::MAX, Id::rank_after),
            &filter.person,
        ];
        self.read(|connection| {
            let mut statement = prepare(connection, &sql, values(&parameters))?;
            let mut rows = statement.raw_query();
            let (mut found, mut seen, mut last, mut older) = (Vec::new(), 0, None, None);
            while let Some(row) = rows.next()? {
                if found.len() == limit as usize || seen == SCAN {
                    older = last;
                    break;
                }
                seen += 1;
                let id = row.get_ref(0)?.as_str()?.parse().map_err(FromSqlError::other)?;
                last = Some(id);
                if row.get(1)? {
                    found.push(id);
                }
            }
            Ok((found, older))
        })
    }
}
