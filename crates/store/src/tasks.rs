//! Submitting and reading tasks.

use std::cmp::Reverse;

use bytes::Bytes;

use super::driver::{Dialect, Driver, List, Row, Store, Transaction, between_faults, from_row, on_sqlite};
use super::submit::PendingSubmit;
use super::{
    AttemptProgress, CompletedTask, Origin, Result, StartLimit, Submission, TaskFiles, TaskRecord, progress, sqlite,
};
use tintype_domain::model::{FailureCause, Id, Status, Surface, Task, TaskFailure};
use tintype_domain::request::{GenerateRequest, TaskSettings};
use tintype_system::fault::Effect;

pub(super) const TASK: &str = "id, account_id, surface, image_to_image, status, updated_at, images, cause, error";

pub(super) fn task(row: &Row) -> Result<Task> {
    let status = match row.get::<String>("status")?.as_str() {
        "completed" => Status::Completed(row.get("images")?),
        "failed" => Status::Failed(TaskFailure { cause: cause(row)?, message: row.get("error")? }),
        _ => Status::Processing,
    };
    Ok(Task {
        id: row.get("id")?,
        account_id: row.get("account_id")?,
        surface: row.get("surface")?,
        image_to_image: row.get("image_to_image")?,
        status,
        updated_at: row.get("updated_at")?,
    })
}

/// Tasks that failed under a release without causes have none; the migration names those that the policy refused.
pub(super) fn cause(row: &Row) -> Result<FailureCause> {
    Ok(FailureCause::named(&row.get::<Option<String>>("cause")?.unwrap_or_default()))
}

pub(super) const REQUEST: &str = "prompt, aspect_ratio, CAST(n AS bigint) AS n, reference_images, settings, request_id";

pub(super) fn request(row: &Row) -> Result<GenerateRequest> {
    // A task has no settings if its caller chose none.
    let has_settings = row.get::<Option<String>>("settings")?.is_some();
    Ok(GenerateRequest {
        prompt: row.get("prompt")?,
        aspect_ratio: row.get("aspect_ratio")?,
        n: row.get("n")?,
        reference_images: row.get("reference_images")?,
        settings: if has_settings { row.get("settings")? } else { TaskSettings::default() },
        request_id: row.get("request_id")?,
    })
}

pub(super) fn record_columns() -> String {
    format!(
        "{TASK}, {REQUEST}, person_id, removed_at,
         (SELECT CAST(lost_leases AS bigint) FROM queue WHERE task_id = id) AS lost_leases"
    )
}

from_row! { pub(super) fn record(row) -> TaskRecord {
    task: task(row)?, request: request(row)?, person_id, lost_leases, removed_at,
} }

/// The exclusive upper bound of a page. "~" sorts after every id.
pub(super) fn upper(before: Option<Id>) -> String {
    before.map_or_else(|| "~".to_owned(), |id| id.to_string())
}

/// One page of an account's tasks: a range of the index `tasks_of_account`, which excludes removed tasks. No other index
/// has the order of surfaces, so that PostgreSQL's planner cannot prefer to read the tasks of all accounts.
const PAGE: &str = "FROM tasks
    WHERE account_id = $1 AND (surface, id) < ($2, $3) AND surface >= $2 AND removed_at IS NULL
    ORDER BY surface DESC, id DESC LIMIT $4";

async fn page<T>(
    driver: &Driver,
    (account_id, surface): (Id, Surface),
    before: Option<Id>,
    limit: u32,
    columns: &str,
    of_row: impl Fn(&Row) -> Result<T>,
) -> Result<Vec<T>> {
    driver.list(&format!("SELECT {columns} {PAGE}"), &[&account_id, &surface, &upper(before), &limit], of_row).await
}

/// Completed tasks and uploads after $1, up to $2, whose files still exist. No name of a file needs escapes in JSON.
const COMPLETED_AFTER: &str = "
    SELECT id, account_id, images FROM (
        SELECT id, account_id, images FROM tasks
        WHERE id > $1 AND status = 'completed' AND images IS NOT NULL AND (removed_at IS NULL
            OR EXISTS (SELECT 1 FROM deletions WHERE task_id = id AND NOT erased)) ORDER BY id LIMIT $2) AS done
    UNION ALL SELECT id, account_id, '[\"' || name || '\"]' AS images FROM (
        SELECT id, account_id, name FROM uploads
        WHERE id > $1 AND name IS NOT NULL AND removed_at IS NULL ORDER BY id LIMIT $2) AS brought
    ORDER BY id LIMIT $2";

from_row! { pub(super) fn completed(row) -> CompletedTask { id, account_id, images } }

from_row! { fn task_files(row) -> TaskFiles { id, is_processing, images, updated_at, removed_at } }

impl Store {
    /// Charges and queues a task, and records the call in `origin`. Refuses if the account has `max_unfinished`
    /// unfinished tasks (0: no limit) or too few credits, if too little is left of the key's budget, or if the call
    /// repeats another. Nothing happens unless the transaction begins before `start` is over. After
    /// `StoreError::Unknown` the task may exist and be charged.
    pub async fn submit_before(
        &self,
        start: StartLimit,
        account_id: Id,
        origin: Origin,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission> {
        let pending = PendingSubmit { account_id, right: self.right, origin, surface, request, max_unfinished, start };
        match &self.driver {
            Driver::Sqlite(store) => {
                let submit = move |writing: &mut sqlite::Writing| {
                    if pending.start.is_over(writing.clock.elapsed()) {
                        return Ok(Submission::NotStarted);
                    }
                    on_sqlite(writing, async |tx: &Transaction<'_>| pending.submit(tx, tx.new_id()).await)
                };
                store.write(Effect::Submit, submit).await
            }
            Driver::Postgres(store) => {
                let submission = between_faults(&store.faults, Effect::Submit, store.submit(pending)).await?;
                if matches!(submission, Submission::Accepted(_)) {
                    store.notifier.shared.queued_here.notify_one();
                }
                Ok(submission)
            }
        }
    }

    /// [`Store::submit_before`] without a time limit for its start.
    pub async fn submit(
        &self,
        account_id: Id,
        key_id: Option<Id>,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission> {
        self.submit_before(StartLimit::none(), account_id, key_id.into(), surface, request, max_unfinished).await
    }

    /// The task if this account created it on this surface, and the progress of the current attempt, if reported.
    pub async fn poll_task(
        &self,
        account_id: Id,
        surface: Surface,
        id: Id,
    ) -> Result<Option<(Task, Option<AttemptProgress>)>> {
        // One look-up by key in each table.
        let sql = format!(
            "SELECT {TASK}, {} - p.started_at AS running_ms, p.step, p.steps, p.fraction
             FROM tasks LEFT JOIN progress p ON p.task_id = id AND status = 'processing' AND p.lease_epoch =
                 (SELECT q.lease_epoch FROM queue q WHERE q.task_id = p.task_id AND q.lease_until IS NOT NULL)
             WHERE id = $1 AND account_id = $2 AND surface = $3 AND removed_at IS NULL",
            self.driver.time_in(4)
        );
        let time = self.driver.time();
        let polled = |row: &Row| Ok((task(row)?, progress::of_attempt(row)?));
        self.driver.find(&sql, &[&id, &account_id, &surface, &time], polled).await
    }

    /// The task of [`Store::poll_task`] alone.
    pub async fn find_task(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Task>> {
        Ok(self.poll_task(account_id, surface, id).await?.map(|(task, _)| task))
    }

    /// Tasks of an account on one surface, newest first, older than the task `before`.
    pub async fn list_tasks(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<Task>> {
        page(&self.driver, (account_id, surface), before, limit, TASK, task).await
    }

    /// The ids of the page that [`Store::list_tasks`] returns.
    pub async fn list_task_ids(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<Id>> {
        // Reads only the index, which is much cheaper than the list.
        page(&self.driver, (account_id, surface), before, limit, "id", |row| row.get("id")).await
    }

    /// The tasks that [`Store::list_tasks`] returns, with their requests. A page with a row that cannot be read is an
    /// error.
    pub async fn list_records(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>> {
        page(&self.driver, (account_id, surface), before, limit, &record_columns(), record).await
    }

    /// The task of [`Store::poll_task`] with its request.
    pub async fn find_record(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<TaskRecord>> {
        let sql = format!(
            "SELECT {} FROM tasks WHERE id = $1 AND account_id = $2 AND surface = $3 AND removed_at IS NULL",
            record_columns()
        );
        self.driver.find(&sql, &[&id, &account_id, &surface], record).await
    }

    /// The number of an account's tasks on one surface that have not ended.
    pub async fn count_unfinished(&self, account_id: Id, surface: Surface) -> Result<u64> {
        let among = self.driver.in_subquery("SELECT task_id FROM queue WHERE account_id = $1");
        let sql = format!("SELECT count(*) AS unfinished FROM tasks WHERE id {among} AND surface = $2");
        let counted = self.driver.find(&sql, &[&account_id, &surface], |row| row.get("unfinished")).await?;
        Ok(counted.unwrap_or(0))
    }

    /// The latest preview of the present attempt at a task that this account created on this surface: a small PNG.
    pub async fn find_preview(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Bytes>> {
        let sql = "SELECT p.png FROM previews p
            JOIN queue q ON q.task_id = p.task_id AND q.lease_epoch = p.lease_epoch AND q.lease_until IS NOT NULL
            JOIN tasks t ON t.id = p.task_id
            WHERE p.task_id = $1 AND t.account_id = $2 AND t.surface = $3 AND t.removed_at IS NULL";
        let png = self.driver.find(sql, &[&id, &account_id, &surface], |row| row.get("png")).await?;
        Ok(png.map(|png: Vec<u8>| png.into()))
    }

    /// Any task, for the operator, including removed ones.
    pub async fn inspect_task(&self, id: Id) -> Result<Option<TaskRecord>> {
        let sql = format!("SELECT {} FROM tasks WHERE id = $1", record_columns());
        self.driver.find(&sql, &[&id], record).await
    }

    /// Tasks of one account or of all, newest first, for the operator.
    pub async fn recent_tasks(&self, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        let Some(account_id) = account_id else {
            let sql = format!("SELECT {TASK} FROM tasks WHERE removed_at IS NULL ORDER BY id DESC LIMIT $1");
            return self.driver.list(&sql, &[&limit], task).await;
        };
        let mut tasks = self.list_tasks(account_id, Surface::Api, None, limit).await?;
        tasks.extend(self.list_tasks(account_id, Surface::Web, None, limit).await?);
        tasks.sort_by_key(|task| Reverse(task.id));
        tasks.truncate(limit as usize);
        Ok(tasks)
    }

    /// Completed tasks and uploads of all accounts and surfaces that have their files, oldest first, newer than the
    /// task or upload `after`, for the operator.
    pub async fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
        let after = after.map_or_else(String::new, |id| id.to_string());
        self.driver.list(COMPLETED_AFTER, &[&after, &limit], completed).await
    }

    /// The state of the existing tasks and uploads among `ids`, in any order, including removed ones.
    pub async fn task_files(&self, tasks: &[Id]) -> Result<Vec<TaskFiles>> {
        let among = self.driver.in_list(1);
        let sql = format!(
            "SELECT id, status = 'processing' AS is_processing, coalesce(images, '[]') AS images, updated_at,
                 CASE WHEN EXISTS (SELECT 1 FROM deletions d WHERE d.task_id = tasks.id AND NOT d.erased)
                     THEN NULL ELSE removed_at END AS removed_at
             FROM tasks WHERE id {among}
             UNION ALL SELECT id, name IS NULL AND removed_at IS NULL,
                 coalesce('[\"' || name || '\"]', '[]'), updated_at, removed_at FROM uploads WHERE id {among}"
        );
        self.driver.list(&sql, &[&List(tasks)], task_files).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::plans;

    fn plan(sql: &str) -> Vec<String> {
        plans::steps(&plans::empty(), sql)
    }

    #[test]
    fn a_page_is_one_range_of_the_index_without_a_sort() {
        let range = "INDEX tasks_of_account (account_id=? AND surface>? AND (surface,id)<(?,?))";
        assert_eq!(plan(&format!("SELECT id {PAGE}")), [format!("SEARCH tasks USING COVERING {range}")]);
        assert_eq!(plan(&format!("SELECT {TASK} {PAGE}")), [format!("SEARCH tasks USING {range}")]);
    }
}
