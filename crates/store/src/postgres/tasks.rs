//! Submitting tasks and reading them, and removing old ones.

use std::cmp::Reverse;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_postgres::Row;

use super::columns::{REQUEST, TASK, json, number, request, task};
use super::connection::Database;
use super::gallery::FORGOTTEN;
use super::{PostgresStore, progress};
use crate::submit::Order;
use crate::{
    AttemptProgress, CompletedTask, FoundPreview, Origin, Result, SoughtPreview, StartLimit, Submission, TaskFiles,
    TaskRecord, Tasks, Unfinished,
};
use tintype_domain::model::{Id, Surface, Task};
use tintype_domain::request::GenerateRequest;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Tasks that are removed in one transaction.
pub(super) const REMOVAL_BATCH: usize = 1000;

/// Removes up to [`REMOVAL_BATCH`] tasks of an account; returns their number. No task ends before it is created, so $2
/// is the lowest id of the cutoff. Only the index `tasks_of_account`, which holds no removed task, is in the order of
/// surfaces.
pub(super) async fn remove(database: &Database, account_id: Id, cutoff: Timestamp) -> Result<usize> {
    let sql =
        "UPDATE tasks SET removed_at = $4, prompt = '', reference_images = '[]', settings = NULL, request_id = NULL
        WHERE id = ANY (ARRAY (
            SELECT id FROM tasks WHERE account_id = $3 AND id < $2 AND removed_at IS NULL AND status <> 'processing'
                AND updated_at < $1
            ORDER BY surface, id LIMIT $5 FOR NO KEY UPDATE SKIP LOCKED))
        RETURNING id";
    let sql = format!("WITH removed AS ({sql}), {FORGOTTEN} SELECT id FROM removed");
    let (floor, now, limit) = (Id::floor(cutoff), database.now(), REMOVAL_BATCH as i64);
    Ok(database.write(&sql, &[&cutoff, &floor, &account_id, &now, &limit]).await?.len())
}

fn task_files(row: &Row) -> Result<TaskFiles> {
    Ok(TaskFiles {
        id: row.try_get("id")?,
        is_processing: row.try_get("is_processing")?,
        images: json(row, "images")?,
        updated_at: row.try_get("updated_at")?,
        removed_at: row.try_get("removed_at")?,
    })
}

impl PostgresStore {
    /// One page of an account's tasks: a range of the index `tasks_of_account`. No other index has the order of
    /// surfaces, so that the planner cannot prefer to read the tasks of all accounts.
    async fn page(
        &self,
        columns: &str,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<Row>> {
        let sql = format!(
            "SELECT {columns} FROM tasks
             WHERE account_id = $1 AND (surface, id) < ($2, $3) AND surface >= $2 AND removed_at IS NULL
             ORDER BY surface DESC, id DESC LIMIT $4"
        );
        // "~" sorts after every id.
        let upper = before.map_or_else(|| "~".to_owned(), |id| id.to_string());
        self.database.read(&sql, &[&account_id, &surface.as_str(), &upper, &i64::from(limit)]).await
    }
}

/// The columns of a [`TaskRecord`].
pub(super) fn record_columns() -> String {
    format!(
        "{TASK}, {REQUEST}, person_id, removed_at, (SELECT lost_leases::bigint FROM queue WHERE task_id = id) AS lost_leases"
    )
}

pub(super) fn record(row: &Row) -> Result<TaskRecord> {
    let lost_leases: Option<i64> = row.try_get("lost_leases")?;
    Ok(TaskRecord {
        task: task(row)?,
        request: request(row)?,
        person_id: row.try_get("person_id")?,
        lost_leases: lost_leases.map(|_| number(row, "lost_leases")).transpose()?,
        removed_at: row.try_get("removed_at")?,
    })
}

#[async_trait]
impl Tasks for PostgresStore {
    async fn submit_before(
        &self,
        start: StartLimit,
        account_id: Id,
        origin: Origin,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission> {
        let origin = Origin { right: origin.right.or(self.right), ..origin };
        let order = Order { account_id, origin, surface, request, max_unfinished, start };
        let submission = self.write(Effect::Submit, self.submitter.submit(order)).await?;
        if matches!(submission, Submission::Accepted(_)) {
            self.announcer.announce();
        }
        Ok(submission)
    }

    async fn poll_task(
        &self,
        account_id: Id,
        surface: Surface,
        id: Id,
    ) -> Result<Option<(Task, Option<AttemptProgress>)>> {
        progress::poll(&self.database, account_id, surface, id).await
    }

    async fn list_tasks(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        self.page(TASK, account_id, surface, before, limit).await?.iter().map(task).collect()
    }

    async fn list_task_ids(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Id>> {
        let rows = self.page("id", account_id, surface, before, limit).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn list_records(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>> {
        self.page(&record_columns(), account_id, surface, before, limit).await?.iter().map(record).collect()
    }

    async fn find_record(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<TaskRecord>> {
        let sql = format!(
            "SELECT {} FROM tasks WHERE id = $1 AND account_id = $2 AND surface = $3 AND removed_at IS NULL",
            record_columns()
        );
        self.database.read_one(&sql, &[&id, &account_id, &surface.as_str()]).await?.as_ref().map(record).transpose()
    }

    async fn count_unfinished(&self, account_id: Id, surface: Surface) -> Result<u64> {
        let sql = "SELECT count(*) AS unfinished FROM tasks
            WHERE id = ANY (ARRAY (SELECT task_id FROM queue WHERE account_id = $1)) AND surface = $2";
        let counted = self.database.read_one(sql, &[&account_id, &surface.as_str()]).await?;
        counted.map_or(Ok(0), |row| number(&row, "unfinished"))
    }

    async fn unfinished(&self, accounts: &[Id], surface: Surface) -> Result<Vec<Unfinished>> {
        progress::unfinished(&self.database, accounts, surface).await
    }

    async fn find_preview(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Bytes>> {
        progress::preview(&self.database, account_id, surface, id).await
    }

    async fn find_previews(&self, surface: Surface, sought: &[SoughtPreview]) -> Result<Vec<FoundPreview>> {
        progress::previews(&self.database, surface, sought).await
    }

    async fn inspect_task(&self, id: Id) -> Result<Option<TaskRecord>> {
        let sql = format!("SELECT {} FROM tasks WHERE id = $1", record_columns());
        self.database.read_one(&sql, &[&id]).await?.as_ref().map(record).transpose()
    }

    async fn recent_tasks(&self, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        let Some(account_id) = account_id else {
            let sql = format!("SELECT {TASK} FROM tasks WHERE removed_at IS NULL ORDER BY id DESC LIMIT $1");
            return self.database.read(&sql, &[&i64::from(limit)]).await?.iter().map(task).collect();
        };
        let mut tasks = self.list_tasks(account_id, Surface::Api, None, limit).await?;
        tasks.extend(self.list_tasks(account_id, Surface::Web, None, limit).await?);
        tasks.sort_by_key(|task| Reverse(task.id));
        tasks.truncate(limit as usize);
        Ok(tasks)
    }

    async fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
        let after = after.map_or_else(String::new, |id| id.to_string());
        let sql = "(SELECT id, account_id, images FROM tasks
            WHERE id > $1 AND status = 'completed' AND (removed_at IS NULL
                OR EXISTS (SELECT 1 FROM deletions WHERE task_id = id AND NOT erased)) ORDER BY id LIMIT $2)
            UNION ALL (SELECT id, account_id, json_build_array(name)::text FROM uploads
            WHERE id > $1 AND name IS NOT NULL AND removed_at IS NULL ORDER BY id LIMIT $2) ORDER BY id LIMIT $2";
        let rows = self.database.read(sql, &[&after, &i64::from(limit)]).await?;
        let completed = |row: &Row| {
            Ok(CompletedTask {
                id: row.try_get("id")?,
                account_id: row.try_get("account_id")?,
                images: json(row, "images")?,
            })
        };
        rows.iter().map(completed).collect()
    }

    async fn task_files(&self, ids: &[Id]) -> Result<Vec<TaskFiles>> {
        let sql = "SELECT id, status = 'processing' AS is_processing, coalesce(images, '[]') AS images, updated_at,
                CASE WHEN EXISTS (SELECT 1 FROM deletions d WHERE d.task_id = tasks.id AND NOT d.erased)
                    THEN NULL ELSE removed_at END AS removed_at
            FROM tasks
            WHERE id = ANY ($1)
            UNION ALL SELECT id, name IS NULL AND removed_at IS NULL,
                CASE WHEN name IS NULL THEN '[]' ELSE json_build_array(name)::text END, updated_at, removed_at
            FROM uploads WHERE id = ANY ($1)";
        self.database.read(sql, &[&ids]).await?.iter().map(task_files).collect()
    }
}
