//! The search in the gallery, and its index of words.

use super::PostgresStore;
use crate::driver::{List, Parameter, between_faults};
use crate::gallery::{FITS, GALLERY_BATCH, SCAN, paginate};
use crate::tasks::upper;
use crate::{GalleryFilter, Result};
use tintype_domain::model::Id;
use tintype_domain::search::{SearchTerm, terms};
use tintype_system::fault::Effect;

/// Reading on in task order is better than using the word index, which returns all hits at once, if at least one in
/// this many tasks contains the words.
const COMMON: i64 = 20;

/// The most tasks that the word index returns at once, per task that a page looks at.
const HITS: i64 = 5;

/// The $10 newest tasks before $3, the most that a page looks at, from the smallest table that has all that fit. No
/// other index has its order.
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
             coalesce(array_to_json((array_agg(id ORDER BY id DESC)
                 FILTER (WHERE fits AND has_words))[1:$11::bigint])::text, '[]') AS ids
         FROM seen",
        source(filter)
    )
}

/// Finds up to $11 tasks by their words $9, unless more than $10 tasks contain the words. It then finds none, and says
/// so: the word index isn't ordered, so it would have to return all of them.
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
         SELECT are_all, (SELECT coalesce(json_agg(id ORDER BY id DESC)::text, '[]') FROM found) AS ids FROM counted"
    )
}

/// All of these terms, as a `tsquery`. A term has letters and digits only.
fn matching(words: &[SearchTerm]) -> String {
    let term = |one: &SearchTerm| format!("'{}'{}", one.term, if one.is_beginning { ":*" } else { "" });
    words.iter().map(term).collect::<Vec<_>>().join(" & ")
}

impl PostgresStore {
    /// The ids of a page, and the id before which the next one begins.
    pub(crate) async fn search(
        &self,
        account_id: Id,
        filter: &GalleryFilter,
        words: &[SearchTerm],
        before: Option<Id>,
        limit: u32,
    ) -> Result<(Vec<Id>, Option<Id>)> {
        let upper = upper(before);
        let lower = filter.from.map_or_else(String::new, |from| Id::floor(from).to_string());
        let query = (!words.is_empty()).then(|| matching(words));
        let fits_all = words.is_empty()
            && filter.state.is_none()
            && filter.image_to_image.is_none()
            && filter.aspect_ratio.is_none();
        let wanted = i64::from(limit) + 1;
        let most =
            if fits_all && filter.starred_by.is_none() && filter.board.is_none() { wanted } else { i64::from(SCAN) };
        let parameters: [&dyn Parameter; 12] = [
            &account_id,
            &lower,
            &upper,
            &filter.state,
            &filter.image_to_image,
            &filter.aspect_ratio,
            &filter.starred_by,
            &filter.board,
            &query,
            &most,
            &wanted,
            &filter.person,
        ];
        let rows = self.database.read(&scan(filter), &parameters).await?;
        let (seen, with_words): (i64, i64) = (rows[0].get("seen")?, rows[0].get("with_words")?);
        let last: Option<Id> = rows[0].get("last")?;
        let mut found: Vec<Id> = rows[0].get("ids")?;
        let mut all = seen < most;
        if found.len() < limit as usize && !all && with_words * COMMON < seen {
            let hits = i64::from(SCAN) * HITS;
            let mut parameters = parameters;
            parameters[9] = &hits;
            let rows = self.database.read(&find(), &parameters).await?;
            if rows[0].get("are_all")? {
                (found, all) = (rows[0].get("ids")?, true);
            }
        }
        Ok(paginate(found, last.filter(|_| !all), limit))
    }

    pub(crate) async fn index_prompts(&self) -> Result<usize> {
        let due = "SELECT t.id, t.account_id, t.prompt FROM unindexed u JOIN tasks t ON t.id = u.task_id
            ORDER BY u.task_id LIMIT $1";
        let due = self.database.read(due, &[&GALLERY_BATCH]).await?;
        if due.is_empty() {
            return Ok(0);
        }
        let (mut tasks, mut words) = (Vec::<Id>::new(), Vec::new());
        for row in &due {
            tasks.push(row.get("id")?);
            words.push(terms(row.get("account_id")?, &row.get::<String>("prompt")?).join(" "));
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
        let (tasks, words) = (List(&tasks), List(&words));
        let index = async { Ok(self.database.write(sql, &[&tasks, &words]).await?.len()) };
        between_faults(&self.faults, Effect::IndexPrompts, index).await
    }
}
