//! Reading tasks, and removing old ones.

use std::collections::HashMap;

use async_trait::async_trait;

use super::batch::{Request, fail_all, lane};
use super::columns::{REQUEST, TASK, images, number, request, task, word};
use super::connection::{Database, Parameter};
use super::submit::Order;
use super::{PostgresStore, files};
use crate::clock::Timestamp;
use crate::domain::model::{Id, Surface, Task};
use crate::domain::request::GenerateRequest;
use crate::fault::Effect;
use crate::store::{CompletedTask, Result, StartLimit, Submission, TaskFiles, TaskRecord, Tasks};

/// An account, a surface and a task.
pub(super) type TaskKey = (Id, Surface, Id);

/// Finds a batch of tasks.
pub(super) async fn find(database: &Database, requests: Vec<Request<TaskKey, Option<Task>>>) {
    let keys: Vec<TaskKey> = requests.iter().map(|request| request.query).collect();
    match find_all(database, &keys).await {
        Ok(found) => {
            for (request, key) in requests.into_iter().zip(keys) {
                request.answer(found.get(&key).cloned().transpose());
            }
        }
        Err(error) => fail_all(requests, &error),
    }
}

/// The tasks that exist. A damaged row is an error of its own.
async fn find_all(database: &Database, wanted: &[TaskKey]) -> Result<HashMap<TaskKey, Result<Task>>> {
    let ids: Vec<Id> = wanted.iter().map(|(_, _, id)| *id).collect();
    let accounts: Vec<Id> = wanted.iter().map(|(account_id, _, _)| *account_id).collect();
    let surfaces: Vec<&str> = wanted.iter().map(|(_, surface, _)| surface.as_str()).collect();
    let sql = format!(
        "SELECT {TASK} FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::text[], $3::text[])) AS w (i, a, s)
         JOIN tasks ON id = i AND account_id = a AND surface = s AND removed_at IS NULL"
    );
    let rows = database.read(&sql, &[&ids, &accounts, &surfaces]).await?;
    let one = |row| {
        let id = row_id(row)?;
        let task = task(row).inspect_err(|error| tracing::error!(task = %id, %error, "cannot read a task"));
        Ok(((row_account(row)?, word(row, "surface")?, id), task))
    };
    rows.iter().map(one).collect()
}

/// One page of an account's tasks: a range of the index `tasks_of_account`, which holds none that is removed.
const PAGE: &str = "FROM tasks WHERE account_id = $1 AND surface = $2 AND id < $3 AND removed_at IS NULL
    ORDER BY id DESC LIMIT $4";

/// The exclusive upper end of a page. "~" sorts after every id.
fn upper(before: Option<Id>) -> String {
    before.map_or_else(|| "~".to_owned(), |id| id.to_string())
}

pub(super) async fn list(
    database: &Database,
    account_id: Id,
    surface: Surface,
    before: Option<Id>,
    limit: u32,
) -> Result<Vec<Task>> {
    let sql = format!("SELECT {TASK} {PAGE}");
    let rows = database.read(&sql, &[&account_id, &surface.as_str(), &upper(before), &i64::from(limit)]).await?;
    rows.iter().map(task).collect()
}

pub(super) async fn list_ids(
    database: &Database,
    account_id: Id,
    surface: Surface,
    before: Option<Id>,
    limit: u32,
) -> Result<Vec<Id>> {
    let sql = format!("SELECT id {PAGE}");
    let rows = database.read(&sql, &[&account_id, &surface.as_str(), &upper(before), &i64::from(limit)]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(super) async fn inspect(database: &Database, id: Id) -> Result<Option<TaskRecord>> {
    let sql = format!(
        "SELECT {TASK}, {REQUEST}, removed_at,
            (SELECT lost_leases::bigint FROM queue WHERE task_id = id) AS lost_leases
         FROM tasks WHERE id = $1"
    );
    let Some(row) = database.read_one(&sql, &[&id]).await? else { return Ok(None) };
    let lost_leases: Option<i64> = row.try_get("lost_leases")?;
    Ok(Some(TaskRecord {
        task: task(&row)?,
        request: request(&row)?,
        lost_leases: match lost_leases {
            Some(_) => Some(number(&row, "lost_leases")?),
            None => None,
        },
        removed_at: row.try_get("removed_at")?,
    }))
}

pub(super) async fn recent(database: &Database, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>> {
    let limit = i64::from(limit);
    let rows = match account_id {
        Some(account_id) => database.read(&recent_of_account(), &[&account_id, &limit]).await?,
        None => {
            let sql = format!("SELECT {TASK} FROM tasks WHERE removed_at IS NULL ORDER BY id DESC LIMIT $1");
            database.read(&sql, &[&limit]).await?
        }
    };
    rows.iter().map(task).collect()
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

pub(super) async fn completed(database: &Database, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
    let after = after.map_or_else(String::new, |id| id.to_string());
    let sql = "SELECT id, account_id, images FROM tasks
        WHERE id > $1 AND status = 'completed' AND removed_at IS NULL ORDER BY id LIMIT $2";
    let rows = database.read(sql, &[&after, &i64::from(limit)]).await?;
    let completed = |row| Ok(CompletedTask { id: row_id(row)?, account_id: row_account(row)?, images: images(row)? });
    rows.iter().map(completed).collect()
}

fn row_id(row: &tokio_postgres::Row) -> Result<Id> {
    Ok(row.try_get("id")?)
}

fn row_account(row: &tokio_postgres::Row) -> Result<Id> {
    Ok(row.try_get("account_id")?)
}

/// Tasks that are removed in one transaction.
const REMOVAL_BATCH: usize = 256;
/// Accounts that are looked up in one statement.
const ACCOUNT_PAGE: i64 = 1_000;

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

/// A page of accounts.
pub(super) struct AccountPage {
    /// Those that have removable tasks.
    pub(super) removable: Vec<Id>,
    /// Where the next page begins, if there is one.
    pub(super) last: Option<Id>,
}

/// The next page of accounts after the id `after`: one look-up each, so that a statement stays far below its time limit.
pub(super) async fn removable_accounts(database: &Database, after: &str, cutoff: Timestamp) -> Result<AccountPage> {
    let sql = format!(
        "SELECT a.account_id, one.account_id IS NOT NULL AS removable
         FROM (SELECT account_id FROM account_names WHERE account_id > $3 ORDER BY account_id LIMIT $4) a
         LEFT JOIN LATERAL (
             SELECT t.account_id FROM tasks t WHERE t.account_id = a.account_id AND {REMOVABLE}
             ORDER BY t.surface, t.id LIMIT 1) one ON true
         ORDER BY a.account_id"
    );
    let rows = database.read(&sql, &[&cutoff, &Id::floor(cutoff), &after, &ACCOUNT_PAGE]).await?;
    let mut removable = Vec::new();
    for row in &rows {
        if row.try_get("removable")? {
            removable.push(row_account(row)?);
        }
    }
    let is_full = rows.len() as i64 == ACCOUNT_PAGE;
    Ok(AccountPage { removable, last: rows.last().filter(|_| is_full).map(row_account).transpose()? })
}

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
    let place = |row: &tokio_postgres::Row| Ok((row.try_get("surface")?, row.try_get("id")?));
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
        let submission = self.write(Effect::Submit, self.submits.ask(account_id, order)).await?;
        if matches!(submission, Submission::Accepted(_)) {
            self.announcer.announce();
        }
        Ok(submission)
    }

    async fn find_task(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Task>> {
        lane(&self.finds, id).ask((account_id, surface, id)).await
    }

    async fn list_tasks(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        list(&self.database, account_id, surface, before, limit).await
    }

    async fn list_task_ids(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Id>> {
        list_ids(&self.database, account_id, surface, before, limit).await
    }

    async fn inspect_task(&self, id: Id) -> Result<Option<TaskRecord>> {
        inspect(&self.database, id).await
    }

    async fn recent_tasks(&self, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        recent(&self.database, account_id, limit).await
    }

    async fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
        completed(&self.database, after, limit).await
    }

    async fn task_files(&self, ids: &[Id]) -> Result<Vec<TaskFiles>> {
        files::of_tasks(&self.database, ids).await
    }
}
