//! Statements for the gallery.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::PostgresStore;
use super::audit_log;
use super::columns::json;
use super::connection::{Database, Parameter, Transaction};
use super::tasks::{record, record_columns};
use crate::failure::Failure;
use crate::gallery::{GALLERY_BATCH, MOST_COUNTED, SCAN};
use crate::{Board, BoardWrite, CompletedTask, Deed, Gallery, GalleryFilter, GalleryPage, Result};
use tintype_domain::model::Id;
use tintype_domain::search::{Sought, sought, terms};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Of so many tasks at least one has the sought words if reading on in the order of tasks is better than to ask the
/// index of words, which gives all of them at once.
const COMMON: i64 = 20;

/// Most tasks that the index of words gives at once, for each of those that a page looks at.
const HITS: i64 = 5;

/// Deletes what the gallery keeps of the tasks `removed`, except their deletion.
pub(super) const FORGOTTEN: &str = "
    unkept AS (DELETE FROM failed_prompts WHERE task_id = ANY (ARRAY (SELECT id FROM removed))),
    unsearched AS (DELETE FROM prompts WHERE task_id = ANY (ARRAY (SELECT id FROM removed))),
    never_indexed AS (DELETE FROM unindexed WHERE task_id = ANY (ARRAY (SELECT id FROM removed))),
    unstarred AS (DELETE FROM stars WHERE task_id = ANY (ARRAY (SELECT id FROM removed))),
    off_boards AS (DELETE FROM board_tasks WHERE task_id = ANY (ARRAY (SELECT id FROM removed))),
    unshared AS (DELETE FROM shared_links WHERE task_id = ANY (ARRAY (SELECT id FROM removed)))";

/// Deleted tasks to erase, up to $4: each part reads an index. No task ends before it is created, so $3 is the lowest id of
/// the time $2.
const DUE: &str = "
    (SELECT task_id FROM deletions WHERE NOT erased AND deleted_at < $1 ORDER BY erased, deleted_at LIMIT $4)
    UNION (SELECT task_id FROM deletions WHERE is_final AND NOT erased LIMIT $4)
    UNION (SELECT d.task_id FROM deletions d JOIN tasks t ON t.id = d.task_id
        WHERE d.task_id < $3::text AND NOT d.erased AND t.updated_at < $2::bigint ORDER BY d.task_id LIMIT $4)
    LIMIT $4";

/// Locks those of the tasks $1 that are in the bin of the account $2, and of the author $3 if there is one.
const IN_BIN: &str = "WITH in_bin AS MATERIALIZED (
        SELECT d.task_id FROM deletions d JOIN tasks t ON t.id = d.task_id
        WHERE d.task_id = ANY ($1) AND d.account_id = $2 AND ($3::text IS NULL OR t.person_id = $3)
        AND NOT d.erased AND NOT d.is_final ORDER BY d.task_id FOR UPDATE OF d
    )";

/// Whether a task `t` is one of the account $1 in the studio and fits the filter, except its words.
const FITS: &str = "t.account_id = $1 AND t.surface = 'web' AND t.removed_at IS NULL
    AND ($4::text IS NULL OR CASE WHEN t.cause = 'cancelled' THEN t.cause ELSE t.status END = $4)
    AND ($5::boolean IS NULL OR t.image_to_image = $5)
    AND ($6::text IS NULL OR t.aspect_ratio = $6)
    AND ($7::text IS NULL OR EXISTS (SELECT 1 FROM stars s WHERE s.task_id = t.id AND s.person_id = $7))
    AND ($12::text IS NULL OR t.person_id = $12)
    AND ($8::text IS NULL OR EXISTS (SELECT 1 FROM board_tasks o JOIN boards b ON b.id = o.board_id
         WHERE o.board_id = $8 AND o.task_id = t.id AND b.account_id = $1))";

/// The newest tasks before $3, of which a page looks at $10: in the smallest table that has all that fit. No other
/// index has its order.
fn source(filter: &GalleryFilter) -> &'static str {
    if filter.board.is_some() {
        "SELECT task_id AS id FROM board_tasks WHERE board_id = $8 AND task_id >= $2 AND task_id < $3
         ORDER BY board_id DESC, task_id DESC LIMIT $10"
    } else if filter.starred_by.is_some() {
        "SELECT task_id AS id FROM stars WHERE person_id = $7 AND task_id >= $2 AND task_id < $3
         ORDER BY person_id DESC, task_id DESC LIMIT $10"
    } else if filter.person.is_some() {
        "SELECT id FROM tasks WHERE account_id = $1 AND person_id = $12 AND removed_at IS NULL AND id >= $2 AND id < $3
         ORDER BY person_id DESC, id DESC LIMIT $10"
    } else {
        "SELECT id FROM tasks WHERE account_id = $1 AND surface = 'web' AND removed_at IS NULL AND id >= $2 AND id < $3
         ORDER BY surface DESC, id DESC LIMIT $10"
    }
}

/// Looks at the newest tasks: how many there are, how many have the words $9, the last, and up to $11 that fit.
fn scan(filter: &GalleryFilter) -> String {
    format!(
        "WITH newest AS MATERIALIZED ({}),
         seen AS MATERIALIZED (
             SELECT n.id, {FITS} AS fits,
                 $9::text IS NULL OR EXISTS (SELECT 1 FROM prompts p WHERE p.task_id = n.id
                     AND p.words @@ $9::text::tsquery)
                 AS has_words
             FROM newest n JOIN tasks t ON t.id = n.id
         )
         SELECT count(*) AS seen, count(*) FILTER (WHERE has_words) AS with_words, min(id) AS last,
             coalesce((array_agg(id ORDER BY id DESC) FILTER (WHERE fits AND has_words))[1:$11::bigint], '{{}}') AS ids
         FROM seen",
        source(filter)
    )
}

/// Finds up to $11 tasks that fit by their words $9, unless more than $10 tasks have the words. It then finds none, and
/// says so: the index of words has no order, so it would have to give all of them.
///
/// The planner expects that `hits` is read to its end, and so asks the index of words and not the rows of all accounts;
/// the server reads no more of it than `bounded` takes. OFFSET makes it look up one task after the other, in the order
/// of the hits.
fn find() -> String {
    format!(
        "WITH hits AS MATERIALIZED (
             SELECT task_id FROM prompts WHERE words @@ $9::text::tsquery AND task_id >= $2 AND task_id < $3
         ),
         bounded AS MATERIALIZED (SELECT task_id FROM hits LIMIT $10::bigint + 1),
         counted AS MATERIALIZED (SELECT count(*) <= $10::bigint AS are_all FROM bounded),
         found AS MATERIALIZED (
             SELECT fit.id FROM (
                 SELECT task_id FROM bounded WHERE (SELECT are_all FROM counted) ORDER BY task_id DESC
             ) h CROSS JOIN LATERAL (SELECT t.id FROM tasks t WHERE t.id = h.task_id AND {FITS} OFFSET 0) fit
             ORDER BY h.task_id DESC LIMIT $11::bigint
         )
         SELECT are_all, (SELECT coalesce(array_agg(id ORDER BY id DESC), '{{}}') FROM found) AS ids FROM counted"
    )
}

/// All of these terms, as a `tsquery`. A term has letters and digits only.
fn matching(words: &[Sought]) -> String {
    let term = |one: &Sought| format!("'{}'{}", one.term, if one.is_beginning { ":*" } else { "" });
    words.iter().map(term).collect::<Vec<_>>().join(" & ")
}

fn ids(rows: &[Row]) -> Result<Vec<Id>> {
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// The ids of a page, and the id before which the next one begins.
async fn page(
    database: &Database,
    account_id: Id,
    filter: &GalleryFilter,
    before: Option<Id>,
    limit: u32,
) -> Result<(Vec<Id>, Option<Id>)> {
    let words = sought(account_id, &filter.text);
    if words.is_empty() && !filter.text.trim().is_empty() {
        return Ok((Vec::new(), None));
    }
    let before = before.into_iter().chain(filter.until.map(Id::floor)).min();
    // "~" sorts after every id.
    let upper = before.map_or_else(|| "~".to_owned(), |id| id.to_string());
    let lower = filter.from.map_or_else(String::new, |from| Id::floor(from).to_string());
    let (state, ratio) = (filter.state.map(|state| state.as_str()), filter.aspect_ratio.map(|ratio| ratio.as_str()));
    let query = (!words.is_empty()).then(|| matching(&words));
    let fits_all = words.is_empty() && state.is_none() && filter.image_to_image.is_none() && ratio.is_none();
    let wanted = i64::from(limit) + 1;
    let most = if fits_all && filter.starred_by.is_none() && filter.board.is_none() { wanted } else { i64::from(SCAN) };
    let parameters: [Parameter<'_>; 12] = [
        &account_id,
        &lower,
        &upper,
        &state,
        &filter.image_to_image,
        &ratio,
        &filter.starred_by,
        &filter.board,
        &query,
        &most,
        &wanted,
        &filter.person,
    ];
    let rows = database.read(&scan(filter), &parameters).await?;
    let (seen, with_words): (i64, i64) = (rows[0].try_get("seen")?, rows[0].try_get("with_words")?);
    let last: Option<Id> = rows[0].try_get("last")?;
    let mut found: Vec<Id> = rows[0].try_get("ids")?;
    let mut all = seen < most;
    if found.len() < limit as usize && !all && with_words * COMMON < seen {
        let hits = i64::from(SCAN) * HITS;
        let mut parameters = parameters;
        parameters[9] = &hits;
        let rows = database.read(&find(), &parameters).await?;
        if rows[0].try_get("are_all")? {
            (found, all) = (rows[0].try_get("ids")?, true);
        }
    }
    Ok(cut(found, last.filter(|_| !all), limit))
}

/// A page of these ids, of which it has up to `limit`, and the id before which the next one begins; `unseen` if these are
/// fewer.
fn cut(mut found: Vec<Id>, unseen: Option<Id>, limit: u32) -> (Vec<Id>, Option<Id>) {
    if found.len() <= limit as usize {
        return (found, unseen);
    }
    found.truncate(limit as usize);
    let older = found.last().copied();
    (found, older)
}

#[async_trait]
impl Gallery for PostgresStore {
    async fn gallery(
        &self,
        account_id: Id,
        filter: &GalleryFilter,
        before: Option<Id>,
        limit: u32,
    ) -> Result<GalleryPage> {
        let (found, older) = page(&self.database, account_id, filter, before, limit).await?;
        let sql = format!(
            "SELECT {} FROM tasks WHERE id = ANY ($1) AND removed_at IS NULL ORDER BY id DESC",
            record_columns()
        );
        let records = self.database.read(&sql, &[&found]).await?.iter().map(record).collect::<Result<_>>()?;
        Ok(GalleryPage { records, older })
    }

    async fn neighbours(&self, account_id: Id, task: Id) -> Result<[Option<Id>; 2]> {
        let next = |beyond| {
            format!(
                "(SELECT id FROM tasks WHERE account_id = $1 AND surface = 'web' AND removed_at IS NULL AND id {beyond}
                  LIMIT 1)"
            )
        };
        let (newer, older) = (next("> $2 ORDER BY surface, id"), next("< $2 ORDER BY surface DESC, id DESC"));
        let rows = self.database.read(&format!("SELECT {newer}, {older}"), &[&account_id, &task]).await?;
        Ok([rows[0].try_get(0)?, rows[0].try_get(1)?])
    }

    async fn starred(&self, person_id: Id, tasks: &[Id]) -> Result<Vec<Id>> {
        let sql = "SELECT task_id FROM stars WHERE task_id = ANY ($1) AND person_id = $2";
        ids(&self.database.read(sql, &[&tasks, &person_id]).await?)
    }

    async fn star_tasks(&self, account_id: Id, person_id: Id, tasks: &[Id], starred: bool) -> Result<()> {
        // Locked, so that no task is erased meanwhile.
        let add = "WITH own AS MATERIALIZED (
                SELECT id FROM tasks WHERE id = ANY ($1) AND account_id = $2 AND surface = 'web' AND removed_at IS NULL
                ORDER BY id FOR SHARE
            )
            INSERT INTO stars (task_id, person_id)
            SELECT own.id, p.id FROM own JOIN people p ON p.id = $3 AND p.account_id = $2 ORDER BY own.id
            ON CONFLICT DO NOTHING";
        let take = "DELETE FROM stars WHERE task_id = ANY ($1) AND person_id = $3
            AND EXISTS (SELECT 1 FROM people WHERE id = $3 AND account_id = $2)";
        let star = async {
            self.statement(if starred { add } else { take }, &[&tasks, &account_id, &person_id]).await?;
            Ok(())
        };
        self.write(Effect::MarkTasks, star).await
    }

    async fn boards(&self, account_id: Id, person_id: Id) -> Result<Vec<Board>> {
        let sql = "SELECT b.id, b.name, b.person_id, (
                SELECT CASE WHEN count(*) < $3 THEN coalesce(sum(n), 0) END FROM (
                    SELECT CASE WHEN t.status = 'completed' THEN t.n ELSE 0 END AS n
                    FROM board_tasks o JOIN tasks t ON t.id = o.task_id
                    WHERE o.board_id = b.id AND t.removed_at IS NULL LIMIT $3) counted) AS images
            FROM boards b WHERE b.account_id = $1 AND (b.person_id IS NULL OR b.person_id = $2) ORDER BY b.name, b.id";
        let rows = self.database.read(sql, &[&account_id, &person_id, &i64::from(MOST_COUNTED)]).await?;
        let board = |row: &Row| {
            let images: Option<i64> = row.try_get("images")?;
            let images = images.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            Ok(Board { id: row.try_get("id")?, name: row.try_get("name")?, owner: row.try_get("person_id")?, images })
        };
        rows.iter().map(board).collect()
    }

    async fn sees_board(&self, account_id: Id, person_id: Id, board: Id) -> Result<bool> {
        let sql = "SELECT 1 FROM boards
            WHERE id = $3 AND account_id = $1 AND (person_id IS NULL OR person_id = $2)";
        Ok(self.database.read_one(sql, &[&account_id, &person_id, &board]).await?.is_some())
    }

    async fn create_board(&self, account_id: Id, owner: Option<Id>, name: &str, most: u32) -> Result<BoardWrite> {
        let sql = "INSERT INTO boards (id, account_id, name, person_id) SELECT $1, $2, $3, $4
            WHERE $4::text IS NULL OR EXISTS (SELECT 1 FROM people WHERE id = $4 AND account_id = $2) RETURNING id";
        let id = self.database.new_id();
        let create = async |begun: &Transaction<'_>| {
            if !lock(begun, account_id).await? {
                return Ok(BoardWrite::NotFound);
            }
            if is_taken(begun, account_id, owner, name, id).await? {
                return Ok(BoardWrite::NameTaken);
            }
            if is_full(begun, account_id, owner, most).await? {
                return Ok(BoardWrite::Full);
            }
            let made = begun.query_opt(sql, &[&id, &account_id, &name, &owner]).await?;
            Ok(if made.is_some() { BoardWrite::Done(id) } else { BoardWrite::NotFound })
        };
        self.write(Effect::ChangeBoard, async { Ok(self.transaction(create).await?) }).await
    }

    async fn rename_board(&self, account_id: Id, person_id: Id, board: Id, name: &str) -> Result<BoardWrite> {
        let rename = async |begun: &Transaction<'_>| {
            let Some((_, owner)) = seen(begun, account_id, person_id, board).await? else {
                return Ok(BoardWrite::NotFound);
            };
            if is_taken(begun, account_id, owner, name, board).await? {
                return Ok(BoardWrite::NameTaken);
            }
            let renamed = begun.execute("UPDATE boards SET name = $2 WHERE id = $1", &[&board, &name]).await?;
            Ok(if renamed > 0 { BoardWrite::Done(board) } else { BoardWrite::NotFound })
        };
        self.write(Effect::ChangeBoard, async { Ok(self.transaction(rename).await?) }).await
    }

    async fn publish_board(&self, account_id: Id, person_id: Id, board: Id, most: u32) -> Result<BoardWrite> {
        let publish = async |begun: &Transaction<'_>| {
            let Some((name, owner)) = seen(begun, account_id, person_id, board).await? else {
                return Ok(BoardWrite::NotFound);
            };
            if owner.is_none() {
                return Ok(BoardWrite::Done(board));
            }
            if is_taken(begun, account_id, None, &name, board).await? {
                return Ok(BoardWrite::NameTaken);
            }
            if is_full(begun, account_id, None, most).await? {
                return Ok(BoardWrite::Full);
            }
            let published = begun.execute("UPDATE boards SET person_id = NULL WHERE id = $1", &[&board]).await?;
            Ok(if published > 0 { BoardWrite::Done(board) } else { BoardWrite::NotFound })
        };
        self.write(Effect::ChangeBoard, async { Ok(self.transaction(publish).await?) }).await
    }

    async fn remove_board(&self, account_id: Id, person_id: Id, board: Id) -> Result<bool> {
        let sql = "DELETE FROM boards
            WHERE id = $3 AND account_id = $1 AND (person_id IS NULL OR person_id = $2) RETURNING id";
        let remove = async { Ok(!self.statement(sql, &[&account_id, &person_id, &board]).await?.is_empty()) };
        self.write(Effect::ChangeBoard, remove).await
    }

    async fn put_on_board(&self, account_id: Id, person_id: Id, board: Id, tasks: &[Id], put: bool) -> Result<bool> {
        // Locked, so that neither the board is removed nor a task erased meanwhile.
        let add = "WITH board AS MATERIALIZED (
                SELECT id FROM boards
                WHERE id = $3 AND account_id = $2 AND (person_id IS NULL OR person_id = $4) FOR KEY SHARE
            ),
            own AS MATERIALIZED (
                SELECT id FROM tasks WHERE id = ANY ($1) AND account_id = $2 AND surface = 'web' AND removed_at IS NULL
                ORDER BY id FOR SHARE
            ),
            put AS (
                INSERT INTO board_tasks (board_id, task_id)
                SELECT board.id, own.id FROM board, own ORDER BY own.id ON CONFLICT DO NOTHING
            )
            SELECT id FROM board";
        let take = "WITH board AS MATERIALIZED (
                SELECT id FROM boards WHERE id = $3 AND account_id = $2 AND (person_id IS NULL OR person_id = $4)
            ),
            taken AS (DELETE FROM board_tasks WHERE board_id IN (SELECT id FROM board) AND task_id = ANY ($1))
            SELECT id FROM board";
        let change = async {
            let values: [Parameter<'_>; 4] = [&tasks, &account_id, &board, &person_id];
            Ok(!self.statement(if put { add } else { take }, &values).await?.is_empty())
        };
        self.write(Effect::MarkTasks, change).await
    }

    async fn delete_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<Vec<Id>> {
        let sql = "WITH ended AS MATERIALIZED (
                SELECT id, person_id FROM tasks WHERE id = ANY ($1) AND account_id = $2 AND surface = 'web'
                AND removed_at IS NULL AND status <> 'processing' AND ($4::text IS NULL OR person_id = $4)
                ORDER BY id FOR NO KEY UPDATE
            ),
            hidden AS (UPDATE tasks SET removed_at = $3 WHERE id = ANY (ARRAY (SELECT id FROM ended)) RETURNING id),
            deleted AS (
                INSERT INTO deletions (task_id, account_id, deleted_at) SELECT id, $2, $3 FROM hidden ORDER BY id
                RETURNING task_id
            )
            SELECT task_id, person_id FROM deleted JOIN ended ON id = task_id ORDER BY task_id";
        let delete = async |begun: &Transaction<'_>| {
            let now = self.database.now();
            let mut deleted = Vec::new();
            for row in begun.query(sql, &[&tasks, &account_id, &now, &author]).await? {
                let id: Id = row.try_get("task_id")?;
                deleted.push(id);
                let author = row.try_get("person_id")?;
                if let Some(actor) = self.actor.as_deref()
                    && let Some(deed) = Deed::of_deletion(id, account_id, author, actor)
                {
                    audit_log::record(&self.database, begun, actor, &deed).await?;
                }
            }
            Ok(deleted)
        };
        self.write(Effect::DeleteTasks, async { Ok(self.transaction(delete).await?) }).await
    }

    async fn bin(&self, account_id: Id, author: Option<Id>, before: Option<Id>, limit: u32) -> Result<GalleryPage> {
        let sql = "WITH newest AS MATERIALIZED (
                SELECT task_id AS id FROM deletions
                WHERE account_id = $1 AND NOT erased AND NOT is_final AND task_id < $3
                ORDER BY account_id DESC, task_id DESC LIMIT $5
            ),
            seen AS MATERIALIZED (
                SELECT n.id, $2::text IS NULL OR t.person_id IS NOT DISTINCT FROM $2 AS fits
                FROM newest n JOIN tasks t ON t.id = n.id
            )
            SELECT count(*) AS seen, min(id) AS last,
                coalesce((array_agg(id ORDER BY id DESC) FILTER (WHERE fits))[1:$4::bigint], '{}') AS ids
            FROM seen";
        let upper = before.map_or_else(|| "~".to_owned(), |id| id.to_string());
        let wanted = i64::from(limit) + 1;
        let most = if author.is_none() { wanted } else { i64::from(SCAN) };
        let row = &self.database.read(sql, &[&account_id, &author, &upper, &wanted, &most]).await?[0];
        let (seen, last): (i64, Option<Id>) = (row.try_get("seen")?, row.try_get("last")?);
        let (found, older) = cut(row.try_get("ids")?, last.filter(|_| seen == most), limit);
        let sql = format!("SELECT {} FROM tasks WHERE id = ANY ($1) ORDER BY id DESC", record_columns());
        let records = self.database.read(&sql, &[&found]).await?.iter().map(record).collect::<Result<_>>()?;
        Ok(GalleryPage { records, older })
    }

    async fn purge_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<usize> {
        let sql = format!(
            "{IN_BIN} UPDATE deletions SET is_final = true
            WHERE task_id = ANY (ARRAY (SELECT task_id FROM in_bin)) RETURNING task_id"
        );
        let purge = async { Ok(self.statement(&sql, &[&tasks, &account_id, &author]).await?.len()) };
        self.write(Effect::DeleteTasks, purge).await
    }

    async fn restore_tasks(&self, account_id: Id, tasks: &[Id], author: Option<Id>) -> Result<Vec<Id>> {
        let sql = format!(
            "{IN_BIN},
            back AS (DELETE FROM deletions WHERE task_id = ANY (ARRAY (SELECT task_id FROM in_bin)) RETURNING task_id)
            UPDATE tasks SET removed_at = NULL WHERE id = ANY (ARRAY (SELECT task_id FROM back)) RETURNING id"
        );
        let restore = async { ids(&self.statement(&sql, &[&tasks, &account_id, &author]).await?) };
        self.write(Effect::RestoreTasks, restore).await
    }

    async fn erase_deleted(&self, deleted_before: Timestamp, ended_before: Option<Timestamp>) -> Result<usize> {
        let floor = ended_before.map(Id::floor);
        let mut parameters: [Parameter<'_>; 4] = [&deleted_before, &ended_before, &floor, &1_i64];
        if self.database.read(DUE, &parameters).await?.is_empty() {
            return Ok(0);
        }
        let batch = i64::from(GALLERY_BATCH);
        parameters[3] = &batch;
        let sql = format!(
            "WITH removed AS MATERIALIZED (
                 SELECT task_id AS id FROM deletions WHERE NOT erased AND task_id = ANY (ARRAY ({DUE}))
                 ORDER BY task_id FOR UPDATE SKIP LOCKED
             ),
             blank AS (
                 UPDATE tasks SET prompt = '', reference_images = '[]', settings = NULL, request_id = NULL
                 WHERE id = ANY (ARRAY (SELECT id FROM removed))
             ),
             {FORGOTTEN}
             UPDATE deletions SET erased = true WHERE task_id = ANY (ARRAY (SELECT id FROM removed)) RETURNING task_id"
        );
        let erase = async { Ok(self.database.write(&sql, &parameters).await?.len()) };
        self.write(Effect::EraseTasks, erase).await
    }

    async fn erased_tasks(&self, cutoff: Timestamp, limit: u32) -> Result<Vec<CompletedTask>> {
        let sql = "SELECT t.id, t.account_id, coalesce(t.images, '[]') AS images FROM deletions d
            JOIN tasks t ON t.id = d.task_id WHERE d.erased AND d.deleted_at < $1 ORDER BY d.deleted_at LIMIT $2";
        let erased = |row: &Row| {
            Ok(CompletedTask {
                id: row.try_get("id")?,
                account_id: row.try_get("account_id")?,
                images: json(row, "images")?,
            })
        };
        self.database.read(sql, &[&cutoff, &i64::from(limit)]).await?.iter().map(erased).collect()
    }

    async fn forget_deletion(&self, task: Id) -> Result<()> {
        let sql = "DELETE FROM deletions WHERE task_id = $1 AND erased";
        let forget = async { Ok(self.database.write(sql, &[&task]).await.map(drop)?) };
        self.write(Effect::EraseTasks, forget).await
    }

    async fn index_prompts(&self) -> Result<usize> {
        let due = "SELECT t.id, t.account_id, t.prompt FROM unindexed u JOIN tasks t ON t.id = u.task_id
            ORDER BY u.task_id LIMIT $1";
        let due = self.database.read(due, &[&i64::from(GALLERY_BATCH)]).await?;
        if due.is_empty() {
            return Ok(0);
        }
        let (mut tasks, mut words) = (Vec::<Id>::new(), Vec::new());
        for row in &due {
            tasks.push(row.try_get("id")?);
            words.push(terms(row.try_get("account_id")?, row.try_get("prompt")?).join(" "));
        }
        // Of two processes, one takes a task. One that was erased meanwhile is not there any more.
        let sql = "WITH free AS MATERIALIZED (
                SELECT task_id FROM unindexed WHERE task_id = ANY ($1) ORDER BY task_id FOR UPDATE SKIP LOCKED
            ),
            taken AS (DELETE FROM unindexed WHERE task_id = ANY (ARRAY (SELECT task_id FROM free)) RETURNING task_id)
            INSERT INTO prompts (task_id, words)
            SELECT task_id, array_to_tsvector(string_to_array(words, ' '))
            FROM unnest($1::text[], $2::text[]) AS read (task_id, words) JOIN taken USING (task_id)
            RETURNING task_id";
        let index = async { Ok(self.database.write(sql, &[&tasks, &words]).await?.len()) };
        self.write(Effect::IndexPrompts, index).await
    }
}

/// Locks an account that is not deleted, so that concurrent changes of its boards and shared links wait for each other;
/// false if there is none. The statements after this one see all that was committed before the lock, which this one may not.
pub(super) async fn lock(begun: &Transaction<'_>, account_id: Id) -> std::result::Result<bool, Failure> {
    let sql = "SELECT id FROM accounts WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE";
    Ok(begun.query_opt(sql, &[&account_id]).await?.is_some())
}

/// Whether another board that the owner of this one sees among its like has this name.
async fn is_taken(
    begun: &Transaction<'_>,
    account_id: Id,
    owner: Option<Id>,
    name: &str,
    except: Id,
) -> std::result::Result<bool, Failure> {
    let sql = "SELECT EXISTS (SELECT 1 FROM boards
        WHERE account_id = $1 AND person_id IS NOT DISTINCT FROM $2 AND name = $3 AND id <> $4)";
    Ok(begun.query_one(sql, &[&account_id, &owner, &name, &except]).await?.try_get(0)?)
}

/// Locks the account of a board that a person sees, and returns the board's name and owner.
async fn seen(
    begun: &Transaction<'_>,
    account_id: Id,
    person_id: Id,
    board: Id,
) -> std::result::Result<Option<(String, Option<Id>)>, Failure> {
    if !lock(begun, account_id).await? {
        return Ok(None);
    }
    let sql = "SELECT name, person_id FROM boards
        WHERE id = $3 AND account_id = $1 AND (person_id IS NULL OR person_id = $2)";
    let Some(row) = begun.query_opt(sql, &[&account_id, &person_id, &board]).await? else { return Ok(None) };
    Ok(Some((row.try_get("name")?, row.try_get("person_id")?)))
}

/// Whether the owner of private boards, or the account, has as many boards as they may have.
async fn is_full(
    begun: &Transaction<'_>,
    account_id: Id,
    owner: Option<Id>,
    most: u32,
) -> std::result::Result<bool, Failure> {
    let sql = "SELECT count(*) FROM boards WHERE account_id = $1 AND person_id IS NOT DISTINCT FROM $2";
    let count: i64 = begun.query_one(sql, &[&account_id, &owner]).await?.try_get(0)?;
    Ok(count >= i64::from(most))
}
