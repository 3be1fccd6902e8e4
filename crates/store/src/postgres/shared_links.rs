//! Statements for shared links.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::PostgresStore;
use super::connection::{Parameter, Transaction};
use super::gallery::lock;
use super::tasks::{record, record_columns};
use crate::{Deed, NewSharedLink, Result, SharedLink, SharedLinkCreation, SharedLinks, StoreError, Target, TaskRecord};
use tintype_domain::model::Id;
use tintype_system::fault::Effect;

/// The links that work at the time $1.
const WORKING: &str = "SELECT l.*, coalesce(b.name, t.prompt) AS title, b.person_id IS NOT NULL AS is_private FROM shared_links l
    JOIN accounts a ON a.id = l.account_id AND a.disabled_at IS NULL
    JOIN people m ON m.id = l.person_id AND m.role <> 'viewer'
    LEFT JOIN boards b ON b.id = l.board_id LEFT JOIN tasks t ON t.id = l.task_id
    WHERE (l.expires_at IS NULL OR l.expires_at > $1) AND (b.id IS NOT NULL OR (t.id IS NOT NULL AND t.removed_at IS NULL))";

/// Locks what it shows, so that neither is removed meanwhile.
const CREATE: &str = "WITH board AS MATERIALIZED (
        SELECT id FROM boards
        WHERE id = $5 AND account_id = $2 AND (person_id IS NULL OR person_id = $3) FOR KEY SHARE
    ),
    task AS MATERIALIZED (
        SELECT id FROM tasks WHERE id = $4 AND account_id = $2 AND surface = 'web' AND removed_at IS NULL FOR SHARE
    )
    INSERT INTO shared_links (id, account_id, person_id, task_id, board_id, with_prompts, expires_at)
    SELECT $1, $2, id, $4, $5, $6, $7 FROM people WHERE id = $3 AND account_id = $2
    AND (EXISTS (SELECT 1 FROM board) OR EXISTS (SELECT 1 FROM task)) RETURNING id";

fn link(row: &Row) -> Result<SharedLink> {
    let target = Target::of(row.try_get("task_id")?, row.try_get("board_id")?);
    Ok(SharedLink {
        id: row.try_get("id")?,
        account_id: row.try_get("account_id")?,
        person_id: row.try_get("person_id")?,
        target: target.ok_or_else(|| StoreError::Other("a shared link shows nothing".into()))?,
        title: row.try_get("title")?,
        is_private: row.try_get("is_private")?,
        with_prompts: row.try_get("with_prompts")?,
        expires_at: row.try_get("expires_at")?,
        views: row.try_get("views")?,
    })
}

#[async_trait]
impl SharedLinks for PostgresStore {
    async fn create_shared_link(&self, new: NewSharedLink, most: u32) -> Result<SharedLinkCreation> {
        let id = self.database.new_id();
        let NewSharedLink { account_id, person_id, target, with_prompts, expires_at } = new;
        let create = async |begun: &Transaction<'_>| {
            if !lock(begun, account_id).await? {
                return Ok(SharedLinkCreation::NoTarget);
            }
            let count = "SELECT count(*) FROM shared_links
                WHERE account_id = $1 AND (expires_at IS NULL OR expires_at > $2)";
            let count: i64 = begun.query_one(count, &[&account_id, &self.database.now()]).await?.try_get(0)?;
            if count >= i64::from(most) {
                return Ok(SharedLinkCreation::TooMany);
            }
            let (task, board) = target.ids();
            let values: [Parameter<'_>; 7] = [&id, &account_id, &person_id, &task, &board, &with_prompts, &expires_at];
            let made = begun.query_opt(CREATE, &values).await?;
            Ok(if made.is_some() { SharedLinkCreation::Created(id) } else { SharedLinkCreation::NoTarget })
        };
        let deed = |made: &SharedLinkCreation| Deed::of_new_shared_link(&new, *made);
        self.write(Effect::ChangeSharedLink, self.recorded(create, deed)).await
    }

    async fn find_shared_link(&self, id: Id) -> Result<Option<SharedLink>> {
        let sql = format!("{WORKING} AND l.id = $2");
        self.database.read_one(&sql, &[&self.database.now(), &id]).await?.as_ref().map(link).transpose()
    }

    async fn find_shared_task(&self, link: Id, task: Id) -> Result<Option<TaskRecord>> {
        let sql = format!(
            "SELECT {} FROM tasks WHERE id = $3 AND removed_at IS NULL
             AND EXISTS ({WORKING} AND l.id = $2 AND (l.task_id = $3 OR EXISTS (
                 SELECT 1 FROM board_tasks o WHERE o.board_id = l.board_id AND o.task_id = $3)))",
            record_columns()
        );
        let found = self.database.read_one(&sql, &[&self.database.now(), &link, &task]).await?;
        found.as_ref().map(record).transpose()
    }

    async fn list_shared_links(
        &self,
        account_id: Id,
        maker: Option<Id>,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<SharedLink>> {
        let sql = format!(
            "{WORKING} AND l.account_id = $2 AND ($3::text IS NULL OR l.person_id = $3) AND l.id < $4
             ORDER BY l.id DESC LIMIT $5"
        );
        // "~" sorts after every id.
        let upper = before.map_or_else(|| "~".to_owned(), |id| id.to_string());
        let values: [Parameter<'_>; 5] = [&self.database.now(), &account_id, &maker, &upper, &i64::from(limit)];
        self.database.read(&sql, &values).await?.iter().map(link).collect()
    }

    async fn count_view(&self, link: Id) -> Result<()> {
        let sql = "UPDATE shared_links SET views = views + 1 WHERE id = $1";
        let count = async {
            self.statement(sql, &[&link]).await?;
            Ok(())
        };
        self.write(Effect::ChangeSharedLink, count).await
    }

    async fn revoke_shared_link(&self, account_id: Id, link: Id, maker: Option<Id>) -> Result<bool> {
        let sql = "DELETE FROM shared_links WHERE id = $2 AND account_id = $1
            AND ($3::text IS NULL OR person_id = $3) RETURNING task_id, board_id";
        let revoke = async |begun: &Transaction<'_>| {
            let Some(row) = begun.query_opt(sql, &[&account_id, &link, &maker]).await? else { return Ok(None) };
            Ok(Target::of(row.try_get("task_id")?, row.try_get("board_id")?))
        };
        let deed = |target: &Option<Target>| target.map(|target| Deed::of_revoked_link(account_id, target));
        Ok(self.write(Effect::ChangeSharedLink, self.recorded(revoke, deed)).await?.is_some())
    }

    async fn delete_expired_links(&self) -> Result<usize> {
        let sql = "WITH expired AS (DELETE FROM shared_links WHERE expires_at <= $1 RETURNING 1)
            SELECT count(*) FROM expired";
        let delete = async {
            let rows = self.database.write(sql, &[&self.database.now()]).await?;
            let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
            Ok(usize::try_from(count).unwrap_or(0))
        };
        self.write(Effect::ChangeSharedLink, delete).await
    }
}
