//! Statements for shared links.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::tasks::upper;
use super::writer::Writing;
use super::{SqliteStore, tasks};
use crate::{Deed, NewSharedLink, Result, SharedLink, SharedLinkCreation, SharedLinks, Target, TaskRecord};
use tintype_domain::model::Id;
use tintype_system::fault::Effect;

/// The links that work at the time ?1.
const WORKING: &str = "SELECT l.*, coalesce(b.name, t.prompt) AS title, b.person_id IS NOT NULL AS is_private FROM shared_links l
    JOIN accounts a ON a.id = l.account_id AND a.disabled_at IS NULL
    JOIN people m ON m.id = l.person_id AND m.role <> 'viewer'
    LEFT JOIN boards b ON b.id = l.board_id LEFT JOIN tasks t ON t.id = l.task_id
    WHERE (l.expires_at IS NULL OR l.expires_at > ?1) AND (b.id IS NOT NULL OR (t.id IS NOT NULL AND t.removed_at IS NULL))";

fn link(row: &Row<'_>) -> rusqlite::Result<SharedLink> {
    let target = Target::of(row.get("task_id")?, row.get("board_id")?);
    Ok(SharedLink {
        id: row.get("id")?,
        account_id: row.get("account_id")?,
        person_id: row.get("person_id")?,
        target: target.ok_or(rusqlite::Error::InvalidQuery)?,
        title: row.get("title")?,
        is_private: row.get("is_private")?,
        with_prompts: row.get("with_prompts")?,
        expires_at: row.get("expires_at")?,
        views: row.get("views")?,
    })
}

fn create(writing: &mut Writing, new: &NewSharedLink, most: u32) -> rusqlite::Result<SharedLinkCreation> {
    let NewSharedLink { account_id, person_id, target, with_prompts, expires_at } = *new;
    let id = writing.ids.next(writing.clock.now());
    let connection = &writing.connection;
    let count = "SELECT count(*) FROM shared_links
        WHERE account_id = ?1 AND (expires_at IS NULL OR expires_at > ?2)";
    let values = params![account_id, writing.clock.now()];
    let count: u32 = connection.prepare_cached(count)?.query_row(values, |row| row.get(0))?;
    if count >= most {
        return Ok(SharedLinkCreation::TooMany);
    }
    let (task, board) = target.ids();
    let sql = "INSERT INTO shared_links (id, account_id, person_id, task_id, board_id, with_prompts, expires_at)
        SELECT ?1, ?2, id, ?4, ?5, ?6, ?7 FROM people WHERE id = ?3 AND account_id = ?2
        AND (EXISTS (
            SELECT 1 FROM boards WHERE id = ?5 AND account_id = ?2 AND (person_id IS NULL OR person_id = ?3)) OR EXISTS (
            SELECT 1 FROM tasks WHERE id = ?4 AND account_id = ?2 AND surface = 'web' AND removed_at IS NULL))";
    let values = params![id, account_id, person_id, task, board, with_prompts, expires_at];
    let made = connection.prepare_cached(sql)?.execute(values)?;
    Ok(if made > 0 { SharedLinkCreation::Created(id) } else { SharedLinkCreation::NoTarget })
}

/// Deletes the links to a task.
pub(super) fn forget(connection: &Connection, task: Id) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM shared_links WHERE task_id = ?1")?.execute([task]).map(drop)
}

#[async_trait]
impl SharedLinks for SqliteStore {
    async fn create_shared_link(&self, new: NewSharedLink, most: u32) -> Result<SharedLinkCreation> {
        let deed = move |made: &SharedLinkCreation| Deed::of_new_shared_link(&new, *made);
        let create = self.recorded(move |writing| create(writing, &new, most), deed);
        self.write(Effect::ChangeSharedLink, create).await
    }

    async fn find_shared_link(&self, id: Id) -> Result<Option<SharedLink>> {
        let sql = format!("{WORKING} AND l.id = ?2");
        self.read(|connection| {
            connection.prepare_cached(&sql)?.query_row(params![self.clock.now(), id], link).optional()
        })
    }

    async fn find_shared_task(&self, link: Id, task: Id) -> Result<Option<TaskRecord>> {
        let sql = format!(
            "SELECT EXISTS ({WORKING} AND l.id = ?2 AND (l.task_id = ?3 OR EXISTS (
                 SELECT 1 FROM board_tasks o WHERE o.board_id = l.board_id AND o.task_id = ?3)))"
        );
        self.read(|connection| {
            let is_shown: bool =
                connection.prepare_cached(&sql)?.query_row(params![self.clock.now(), link, task], |row| row.get(0))?;
            let record = if is_shown { tasks::inspect(connection, task)? } else { None };
            Ok(record.filter(|record| record.removed_at.is_none()))
        })
    }

    async fn list_shared_links(
        &self,
        account_id: Id,
        maker: Option<Id>,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<SharedLink>> {
        let sql = format!(
            "{WORKING} AND l.account_id = ?2 AND (?3 IS NULL OR l.person_id = ?3) AND l.id < ?4
             ORDER BY l.id DESC LIMIT ?5"
        );
        self.read(|connection| {
            let values = params![self.clock.now(), account_id, maker, upper(before), limit];
            connection.prepare_cached(&sql)?.query_map(values, link)?.collect()
        })
    }

    async fn count_view(&self, link: Id) -> Result<()> {
        let sql = "UPDATE shared_links SET views = views + 1 WHERE id = ?1";
        let count = move |writing: &mut Writing| writing.connection.prepare_cached(sql)?.execute([link]).map(drop);
        self.write(Effect::ChangeSharedLink, count).await
    }

    async fn revoke_shared_link(&self, account_id: Id, link: Id, maker: Option<Id>) -> Result<bool> {
        let revoke = move |writing: &mut Writing| {
            let sql = "DELETE FROM shared_links WHERE id = ?2 AND account_id = ?1 AND (?3 IS NULL OR person_id = ?3)
                RETURNING task_id, board_id";
            let target = |row: &Row<'_>| Ok(Target::of(row.get(0)?, row.get(1)?));
            let revoked = writing
                .connection
                .prepare_cached(sql)?
                .query_row(params![account_id, link, maker], target)
                .optional()?;
            Ok(revoked.flatten())
        };
        let deed = move |target: &Option<Target>| target.map(|target| Deed::of_revoked_link(account_id, target));
        Ok(self.write(Effect::ChangeSharedLink, self.recorded(revoke, deed)).await?.is_some())
    }

    async fn delete_expired_links(&self) -> Result<usize> {
        let due = "SELECT EXISTS (SELECT 1 FROM shared_links WHERE expires_at <= ?1)";
        // Read first: a write that changes nothing would be a commit, too.
        if !self.read(|connection| connection.prepare_cached(due)?.query_row([self.clock.now()], |row| row.get(0)))? {
            return Ok(0);
        }
        let delete = |writing: &mut Writing| {
            let sql = "DELETE FROM shared_links WHERE expires_at <= ?1";
            writing.connection.prepare_cached(sql)?.execute([writing.clock.now()])
        };
        self.write(Effect::ChangeSharedLink, delete).await
    }
}
