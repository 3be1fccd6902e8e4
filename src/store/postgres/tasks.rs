//! Reading tasks, and removing old ones.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::columns::{REQUEST, TASK, images, number, request, task};
use super::connection::{Database, Parameter};
use super::submit::Order;
use super::{PostgresStore, files};
use crate::clock::Timestamp;
use crate::domain::model::{Id, Surface, Task};
use crate::domain::request::GenerateRequest;
use crate::fault::Effect;
use crate::store::{CompletedTask, Result, StartLimit, Submission, TaskFiles, TaskRecord, Tasks};

/// One page of an account's tasks: a range of the index `tasks_of_account`, which holds none that is removed.
const PAGE: &str = "FROM tasks WHERE account_id = $1 AND surface = $2 AND id < $3 AND removed_at IS NULL
    ORDER BY id DESC LIMIT $4";

/// The exclusive upper end of a page. "~" sorts after every id.
fn upper(before: Option<Id>) -> String {
    before.map_or_else(|| "~".to_owned(), |id| id.to_string())
}

/// The first page of both surfaces together. Each is asked for as a range of surfaces, whose order no index has but
/// `tasks_of_account`: in the order of their ids alone all tasks of others might be read.
fn recent_of_account() -> String {
    let page = |surface: Surface| {
        format!(
            "SELECT {TASK} FROM (SELECT {TASK} FROM tasks
                 WHERE account_id = $1 AND surface BETWEEN '{surface}' AND '{surface}' AND removed_at IS NULL
                 ORDER BY surface DESC, id DESC LIMIT $2) AS {surface}",
            surface = surface.as_str()
        )
    };
    format!("{} UNION ALL {} ORDER BY id DESC LIMIT $2", page(Surface::Api), page(Surface::Web))
}

/// Tasks that are removed in one transaction.
const REMOVAL_BATCH: usize = 256;
/// A position in the index `tasks_of_account` of an account: a surface and an id.
pub(super) type IndexPosition = (String, String);

/// The result of a removal.
pub(super) struct Removal {
    pub(super) removed: usize,
    /// How far it came, if there may be more.
    pub(super) reached: Option<IndexPosition>,
}

/// The condition for the removal of a task `t`: $1 is the cutoff and $2 the lowest id of that time, because no task
/// ends before it is created. Only the index `tasks_of_account` has them in the order of their surfaces; any other
/// contains all removed tasks.
const REMOVABLE: &str = "t.id < $2 AND t.removed_at IS NULL AND t.status <> 'processing' AND t.updated_at < $1";

/// Removes up to [`REMOVAL_BATCH`] tasks of an account, from behind `after`: up to there the index may be full of dead
/// entries.
pub(super) async fn remove(
    database: &Database,
    account_id: Id,
    after: &IndexPosition,
    cutoff: Timestamp,
) -> Result<Removal> {
    let sql = format!(
        "UPDATE tasks t SET removed_at = $4, prompt = '', reference_images = '[]', request_id = NULL
         FROM (SELECT t.id FROM tasks t WHERE t.account_id = $3 AND (t.surface, t.id) > ($6, $7) AND {REMOVABLE}
               ORDER BY t.surface, t.id LIMIT $5 FOR NO KEY UPDATE SKIP LOCKED) old
         WHERE t.id = old.id RETURNING t.surface, t.id"
    );
    let limit = i64::try_from(REMOVAL_BATCH).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 7] =
        [&cutoff, &Id::floor(cutoff), &account_id, &database.now(), &limit, &after.0, &after.1];
    let rows = database.write(&sql, &parameters).await?;
    let place = |row: &Row| Ok((row.try_get("surface")?, row.try_get("id")?));
    let places: Vec<IndexPosition> = rows.iter().map(place).collect::<Result<_>>()?;
    let removed = places.len();
    Ok(Removal { removed, reached: places.into_iter().max().filter(|_| removed == REMOVAL_BATCH) })
}

#[async_trait]
impl Tasks for PostgresStore {
    async fn submit_before(
        &self,
        start: StartLimit,
        account_id: Id,
        key_id: Option<Id>,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission> {
        let order = Order { account_id, key_id, surface, request, max_unfinished, start };
        let submission = self.write(Effect::Submit, self.submits.ask(order)).await?;
        if matches!(submission, Submission::Accepted(_)) {
            self.announcer.announce();
        }
        Ok(submission)
    }

    async fn find_task(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Task>> {
        let sql = format!(
            "SELECT {TASK} FROM tasks WHERE id = $1 AND account_id = $2 AND surface = $3 AND removed_at IS NULL"
        );
        let found = self.database.read_one(&sql, &[&id, &account_id, &surface.as_str()]).await?;
        found.as_ref().map(task).transpose()
    }

    async fn list_tasks(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        let sql = format!("SELECT {TASK} {PAGE}");
        let parameters: [Parameter<'_>; 4] = [&account_id, &surface.as_str(), &upper(before), &i64::from(limit)];
        self.database.read(&sql, &parameters).await?.iter().map(task).collect()
    }

    async fn list_task_ids(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Id>> {
        let sql = format!("SELECT id {PAGE}");
        let parameters: [Parameter<'_>; 4] = [&account_id, &surface.as_str(), &upper(before), &i64::from(limit)];
        self.database.read(&sql, &parameters).await?.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn count_unfinished(&self, account_id: Id, surface: Surface) -> Result<u64> {
        let sql = "SELECT count(*) AS unfinished FROM tasks
            WHERE id = ANY (ARRAY (SELECT task_id FROM queue WHERE account_id = $1)) AND surface = $2";
        let counted = self.database.read_one(sql, &[&account_id, &surface.as_str()]).await?;
        counted.map_or(Ok(0), |row| number(&row, "unfinished"))
    }

    async fn inspect_task(&self, id: Id) -> Result<Option<TaskRecord>> {
        let sql = format!(
            "SELECT {TASK}, {REQUEST}, removed_at,
                (SELECT lost_leases::bigint FROM queue WHERE task_id = id) AS lost_leases
             FROM tasks WHERE id = $1"
        );
        let Some(row) = self.database.read_one(&sql, &[&id]).await? else { return Ok(None) };
        let lost_leases: Option<i64> = row.try_get("lost_leases")?;
        Ok(Some(TaskRecord {
            task: task(&row)?,
            request: request(&row)?,
            lost_leases: lost_leases.map(|_| number(&row, "lost_leases")).transpose()?,
            removed_at: row.try_get("removed_at")?,
        }))
    }

    async fn recent_tasks(&self, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        let limit = i64::from(limit);
        let rows = match account_id {
            Some(account_id) => self.database.read(&recent_of_account(), &[&account_id, &limit]).await?,
            None => {
                let sql = format!("SELECT {TASK} FROM tasks WHERE removed_at IS NULL ORDER BY id DESC LIMIT $1");
                self.database.read(&sql, &[&limit]).await?
            }
        };
        rows.iter().map(task).collect()
    }

    async fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
        let after = after.map_or_else(String::new, |id| id.to_string());
        let sql = "SELECT id, account_id, images FROM tasks
            WHERE id > $1 AND status = 'completed' AND removed_at IS NULL ORDER BY id LIMIT $2";
        let rows = self.database.read(sql, &[&after, &i64::from(limit)]).await?;
        let completed = |row: &Row| {
            Ok(CompletedTask { id: row.try_get("id")?, account_id: row.try_get("account_id")?, images: images(row)? })
        };
        rows.iter().map(completed).collect()
    }

    async fn task_files(&self, ids: &[Id]) -> Result<Vec<TaskFiles>> {
        files::of_tasks(&self.database, ids).await
    }
}
