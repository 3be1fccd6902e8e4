//! Statements for submitting and reading tasks.

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::columns::{json, word};
use super::writer::Writing;
use super::{SqliteStore, files, progress};
use crate::driver::{Transaction, on_sqlite};
use crate::submit::Order;
use crate::{
    AttemptProgress, CompletedTask, FoundPreview, Origin, Result, SoughtPreview, StartLimit, Submission, TaskFiles,
    TaskRecord, Tasks, Unfinished,
};
use tintype_domain::model::{FailureCause, Id, Status, Surface, Task, TaskFailure};
use tintype_domain::request::{GenerateRequest, TaskSettings};
use tintype_system::fault::Effect;

/// Counts the unfinished tasks of the account ?1 on the surface ?2. Each part reads an index of the queue; leased tasks
/// are few.
const UNFINISHED: &str = "
    SELECT count(*) FROM tasks WHERE surface = ?2 AND id IN (
        SELECT task_id FROM queue WHERE account_id = ?1 AND engine = '' AND lease_until IS NULL
        UNION ALL
        SELECT task_id FROM queue WHERE account_id = ?1 AND engine > '' AND lease_until IS NULL
        UNION ALL
        SELECT task_id FROM queue WHERE account_id = ?1 AND lease_until IS NOT NULL)";

fn count_unfinished(connection: &Connection, account_id: Id, surface: Surface) -> rusqlite::Result<u64> {
    connection.prepare_cached(UNFINISHED)?.query_row(params![account_id, surface.as_str()], |row| row.get(0))
}

/// The columns of a [`Task`], in the order in which it reads them.
pub(super) const TASK: &str = "id, account_id, surface, image_to_image, status, updated_at, images, cause, error";

pub(super) fn task(row: &Row<'_>) -> rusqlite::Result<Task> {
    let status = match row.get_ref(4)?.as_str()? {
        "completed" => Status::Completed(json(row, 6)?),
        "failed" => Status::Failed(TaskFailure { cause: cause(row, 7)?, sentence: row.get(8)? }),
        _ => Status::Processing,
    };
    Ok(Task {
        id: row.get(0)?,
        account_id: row.get(1)?,
        surface: word(row, 2)?,
        image_to_image: row.get(3)?,
        status,
        updated_at: row.get(5)?,
    })
}

/// Tasks that failed under a release without causes have none; the migration names those that the policy refused.
pub(super) fn cause(row: &Row<'_>, column: usize) -> rusqlite::Result<FailureCause> {
    let cause: Option<String> = row.get(column)?;
    Ok(FailureCause::named(&cause.unwrap_or_default()))
}

/// The columns of a [`GenerateRequest`].
pub(super) const REQUEST: &str = "prompt, aspect_ratio, n, reference_images, settings, request_id";

/// Tasks of which nothing was chosen have none.
fn settings(row: &Row<'_>) -> rusqlite::Result<TaskSettings> {
    match row.get_ref("settings")? {
        ValueRef::Null => Ok(TaskSettings::default()),
        _ => json(row, "settings"),
    }
}

pub(super) fn request(row: &Row<'_>) -> rusqlite::Result<GenerateRequest> {
    Ok(GenerateRequest {
        prompt: row.get("prompt")?,
        aspect_ratio: word(row, "aspect_ratio")?,
        n: row.get("n")?,
        reference_images: json(row, "reference_images")?,
        settings: settings(row)?,
        request_id: row.get("request_id")?,
    })
}

/// One page of an account's tasks: a range of the index `tasks_of_account`, which excludes removed tasks.
const PAGE: &str = "FROM tasks WHERE account_id = ?1 AND surface = ?2 AND id < ?3 AND removed_at IS NULL
    ORDER BY id DESC LIMIT ?4";

pub(super) fn list(
    connection: &Connection,
    account_id: Id,
    surface: Surface,
    before: Option<Id>,
    limit: u32,
) -> rusqlite::Result<Vec<Task>> {
    connection
        .prepare_cached(&format!("SELECT {TASK} {PAGE}"))?
        .query_map(params![account_id, surface.as_str(), upper(before), limit], task)?
        .collect()
}

/// Like [`list`], with the requests.
fn list_records(
    connection: &Connection,
    account_id: Id,
    surface: Surface,
    before: Option<Id>,
    limit: u32,
) -> rusqlite::Result<Vec<TaskRecord>> {
    connection
        .prepare_cached(&format!("{} {PAGE}", select_records()))?
        .query_map(params![account_id, surface.as_str(), upper(before), limit], record)?
        .collect()
}

/// Reads only the index, which is much cheaper than [`list`].
pub(super) fn list_ids(
    connection: &Connection,
    account_id: Id,
    surface: Surface,
    before: Option<Id>,
    limit: u32,
) -> rusqlite::Result<Vec<Id>> {
    connection
        .prepare_cached(&format!("SELECT id {PAGE}"))?
        .query_map(params![account_id, surface.as_str(), upper(before), limit], |row| row.get(0))?
        .collect()
}

/// Selects [`TaskRecord`]s; the table and the conditions follow.
fn select_records() -> String {
    format!(
        "SELECT {TASK}, {REQUEST}, person_id, removed_at, (SELECT lost_leases FROM queue WHERE task_id = id) AS lost_leases"
    )
}

fn record(row: &Row<'_>) -> rusqlite::Result<TaskRecord> {
    Ok(TaskRecord {
        task: task(row)?,
        request: request(row)?,
        person_id: row.get("person_id")?,
        lost_leases: row.get("lost_leases")?,
        removed_at: row.get("removed_at")?,
    })
}

pub(super) fn inspect(connection: &Connection, id: Id) -> rusqlite::Result<Option<TaskRecord>> {
    connection
        .prepare_cached(&format!("{} FROM tasks WHERE id = ?1", select_records()))?
        .query_row([id], record)
        .optional()
}

fn find_record(
    connection: &Connection,
    account_id: Id,
    surface: Surface,
    id: Id,
) -> rusqlite::Result<Option<TaskRecord>> {
    let own = "FROM tasks WHERE id = ?1 AND account_id = ?2 AND surface = ?3 AND removed_at IS NULL";
    connection
        .prepare_cached(&format!("{} {own}", select_records()))?
        .query_row(params![id, account_id, surface.as_str()], record)
        .optional()
}

pub(super) fn recent(connection: &Connection, account_id: Option<Id>, limit: u32) -> rusqlite::Result<Vec<Task>> {
    match account_id {
        Some(account_id) => {
            connection.prepare_cached(&recent_of_account())?.query_map(params![account_id, limit], task)?.collect()
        }
        None => connection
            .prepare_cached(&format!("SELECT {TASK} FROM tasks WHERE removed_at IS NULL ORDER BY id DESC LIMIT ?1"))?
            .query_map([limit], task)?
            .collect(),
    }
}

/// The first page over both surfaces, each of which is a range of the index.
fn recent_of_account() -> String {
    let page = |surface: Surface| {
        format!(
            "SELECT {TASK} FROM (SELECT {TASK} FROM tasks
                 WHERE account_id = ?1 AND surface = '{surface}' AND removed_at IS NULL
                 ORDER BY id DESC LIMIT ?2) AS {surface}",
            surface = surface.as_str()
        )
    };
    format!("{} UNION ALL {} ORDER BY id DESC LIMIT ?2", page(Surface::Api), page(Surface::Web))
}

pub(super) fn completed(
    connection: &Connection,
    after: Option<Id>,
    limit: u32,
) -> rusqlite::Result<Vec<CompletedTask>> {
    let after = after.map_or_else(String::new, |id| id.to_string());
    connection
        .prepare_cached(
            "SELECT id, account_id, images FROM tasks
             WHERE id > ?1 AND status = 'completed' AND images IS NOT NULL AND (removed_at IS NULL
                 OR EXISTS (SELECT 1 FROM deletions WHERE task_id = id AND NOT erased))
             UNION ALL SELECT id, account_id, json_array(name) FROM uploads
             WHERE id > ?1 AND name IS NOT NULL AND removed_at IS NULL ORDER BY id LIMIT ?2",
        )?
        .query_map(params![after, limit], |row| {
            Ok(CompletedTask { id: row.get(0)?, account_id: row.get(1)?, images: json(row, 2)? })
        })?
        .collect()
}

/// The exclusive upper bound of a page. "~" sorts after every id.
pub(super) fn upper(before: Option<Id>) -> String {
    before.map_or_else(|| "~".to_owned(), |id| id.to_string())
}

#[async_trait]
impl Tasks for SqliteStore {
    async fn submit_before(
        &self,
        start: StartLimit,
        account_id: Id,
        origin: Origin,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission> {
        // The right is checked like that of every write.
        let right = origin.right.or(self.right);
        let origin = Origin { right: None, ..origin };
        let order = Order { account_id, origin, surface, request, max_unfinished, start };
        let submit = move |writing: &mut Writing| {
            if order.is_over(writing.clock.elapsed()) {
                return Ok(Submission::NotStarted);
            }
            on_sqlite(writing, async |begun: &Transaction<'_>| order.submit(begun, begun.new_id()).await)
        };
        self.write_with(Effect::Submit, right, submit).await
    }

    async fn poll_task(
        &self,
        account_id: Id,
        surface: Surface,
        id: Id,
    ) -> Result<Option<(Task, Option<AttemptProgress>)>> {
        let now = self.clock.now();
        self.read(|connection| progress::poll(connection, account_id, surface, id, now))
    }

    async fn list_tasks(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        self.read(|connection| list(connection, account_id, surface, before, limit))
    }

    async fn list_task_ids(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Id>> {
        self.read(|connection| list_ids(connection, account_id, surface, before, limit))
    }

    async fn list_records(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>> {
        self.read(|connection| list_records(connection, account_id, surface, before, limit))
    }

    async fn find_record(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<TaskRecord>> {
        self.read(|connection| find_record(connection, account_id, surface, id))
    }

    async fn count_unfinished(&self, account_id: Id, surface: Surface) -> Result<u64> {
        self.read(|connection| count_unfinished(connection, account_id, surface))
    }

    async fn unfinished(&self, accounts: &[Id], surface: Surface) -> Result<Vec<Unfinished>> {
        let now = self.clock.now();
        self.read(|connection| progress::unfinished(connection, accounts, surface, now))
    }

    async fn find_preview(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Bytes>> {
        self.read(|connection| progress::preview(connection, account_id, surface, id))
    }

    async fn find_previews(&self, surface: Surface, sought: &[SoughtPreview]) -> Result<Vec<FoundPreview>> {
        self.read(|connection| progress::previews(connection, surface, sought))
    }

    async fn inspect_task(&self, id: Id) -> Result<Option<TaskRecord>> {
        self.read(|connection| inspect(connection, id))
    }

    async fn recent_tasks(&self, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        self.read(|connection| recent(connection, account_id, limit))
    }

    async fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
        self.read(|connection| completed(connection, after, limit))
    }

    async fn task_files(&self, ids: &[Id]) -> Result<Vec<TaskFiles>> {
        self.read(|connection| files::of_tasks(connection, ids))
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::params_from_iter;

    use super::super::schema::SCHEMA;
    use super::*;

    /// The query plan of SQLite.
    fn plan(sql: &str) -> Vec<String> {
        let connection = Connection::open_in_memory().expect("a database");
        connection.execute_batch(SCHEMA.in_force).expect("valid SQL");
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("valid SQL");
        let parameters = ["ada", "api", "~", "20"].into_iter().take(statement.parameter_count());
        let steps = statement.query_map(params_from_iter(parameters), |row| row.get(3)).expect("a plan");
        steps.map(|step| step.expect("a step")).collect()
    }

    #[test]
    fn a_page_is_one_range_of_the_index_without_a_sort() {
        let range = "INDEX tasks_of_account (account_id=? AND surface=? AND id<?)";
        assert_eq!(plan(&format!("SELECT id {PAGE}")), [format!("SEARCH tasks USING COVERING {range}")]);
        assert_eq!(plan(&format!("SELECT {TASK} {PAGE}")), [format!("SEARCH tasks USING {range}")]);
    }

    #[test]
    fn unfinished_tasks_are_counted_by_indexes() {
        let plan = plan(UNFINISHED);
        let searches: Vec<_> =
            plan.iter().filter(|step| step.contains(" queue ") || step.contains(" tasks ")).collect();
        assert_eq!(
            searches,
            [
                "SEARCH tasks USING PRIMARY KEY (id=?)",
                "SEARCH queue USING INDEX queue_waiting (engine=? AND account_id=?)",
                "SEARCH queue USING INDEX queue_named (account_id=? AND engine>?)",
                "SEARCH queue USING INDEX queue_leased (lease_until>?)",
            ]
        );
    }

    #[test]
    fn the_newest_tasks_of_an_account_are_two_ranges_of_the_index() {
        let mut plan = plan(&recent_of_account());
        plan.retain(|step| step.contains(" tasks "));
        assert_eq!(plan, ["SEARCH tasks USING INDEX tasks_of_account (account_id=? AND surface=?)"; 2]);
    }
}
