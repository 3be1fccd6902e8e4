//! Shared links: each shows one task or one board of the studio to everyone who has the link, without a sign-in.

use super::driver::{Dialect, Row, Store, from_row};
use super::tasks::upper;
use super::{Action, Addition, AuditedChange, Result, StoreError, TaskRecord, ledger};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// What a shared link shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The images of a task.
    Task(Id),
    /// The images on a board, as it is when someone looks.
    Board(Id),
}

/// A shared link to make.
#[derive(Debug, Clone, Copy)]
pub struct NewSharedLink {
    /// The account of its maker and its target.
    pub account_id: Id,
    /// Who makes it.
    pub person_id: Id,
    /// What it shows.
    pub target: Target,
    /// Whether its page shows the prompts.
    pub with_prompts: bool,
    /// When it stops working; `None` for one that works until it is revoked.
    pub expires_at: Option<Timestamp>,
}

/// A shared link that works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLink {
    /// The link.
    pub id: Id,
    /// The account that shares.
    pub account_id: Id,
    /// Who made it.
    pub person_id: Id,
    /// What it shows.
    pub target: Target,
    /// The name of the board, or the prompt of the task.
    pub title: String,
    /// Whether it shows a private board, which belongs to the link's maker.
    pub is_private: bool,
    /// Whether its page shows the prompts.
    pub with_prompts: bool,
    /// When it stops working; `None` for one that works until it is revoked.
    pub expires_at: Option<Timestamp>,
    /// How often its page was shown.
    pub views: i64,
}

/// The links that work at the time $1.
const WORKING: &str = "SELECT l.id, l.account_id, l.person_id, l.task_id, l.board_id, l.with_prompts, l.expires_at,
        l.views, coalesce(b.name, t.prompt) AS title, b.person_id IS NOT NULL AS is_private FROM shared_links l
    JOIN accounts a ON a.id = l.account_id AND a.disabled_at IS NULL
    JOIN people m ON m.id = l.person_id AND m.role <> 'viewer'
    LEFT JOIN boards b ON b.id = l.board_id LEFT JOIN tasks t ON t.id = l.task_id
    WHERE (l.expires_at IS NULL OR l.expires_at > $1)
    AND (b.id IS NOT NULL OR (t.id IS NOT NULL AND t.removed_at IS NULL))";

fn target(row: &Row) -> Result<Target> {
    Ok(match (row.get("task_id")?, row.get("board_id")?) {
        (Some(task), _) => Target::Task(task),
        (None, Some(board)) => Target::Board(board),
        (None, None) => return Err(StoreError::other("a shared link shows nothing")),
    })
}

from_row! { fn link(row) -> SharedLink {
    id, account_id, person_id, target: target(row)?, title, is_private, with_prompts, expires_at, views,
} }

/// Shared links. A link works until it expires or is revoked, its maker is removed or becomes a viewer, its account is
/// disabled, or its target is deleted. While its task is in the bin, it shows nothing.
impl Store {
    /// Makes a link, unless the account has `most`. The audit log records it.
    pub async fn create_shared_link(&self, new: NewSharedLink, most: u32) -> Result<Addition<Id>> {
        self.write(Effect::ChangeSharedLink, async move |tx| {
            let NewSharedLink { account_id, person_id, target, with_prompts, expires_at } = new;
            if !ledger::lock(tx, account_id).await? {
                return Ok(Addition::NotPossible);
            }
            let full = "SELECT count(*) FROM shared_links
                WHERE account_id = $1 AND (expires_at IS NULL OR expires_at > $2) HAVING count(*) >= $3";
            if tx.query_opt(full, &[&account_id, &tx.now(), &most]).await?.is_some() {
                return Ok(Addition::TooMany);
            }
            // Locks what it shows, so that it cannot be removed meanwhile.
            let sql = format!(
                "WITH board AS MATERIALIZED (
                     SELECT id FROM boards
                     WHERE id = $5 AND account_id = $2 AND (person_id IS NULL OR person_id = $3) {}
                 ),
                 task AS MATERIALIZED (
                     SELECT id FROM tasks
                     WHERE id = $4 AND account_id = $2 AND surface = 'web' AND removed_at IS NULL {}
                 )
                 INSERT INTO shared_links (id, account_id, person_id, task_id, board_id, with_prompts, expires_at)
                 SELECT $1, $2, id, $4, $5, $6, $7 FROM people WHERE id = $3 AND account_id = $2
                 AND (EXISTS (SELECT 1 FROM board) OR EXISTS (SELECT 1 FROM task))",
                tx.locking("FOR KEY SHARE"),
                tx.locking("FOR SHARE"),
            );
            let (task, board, shown) = match target {
                Target::Task(id) => (Some(id), None, id),
                Target::Board(id) => (None, Some(id), id),
            };
            let id = tx.new_id();
            let made =
                tx.execute(&sql, &[&id, &account_id, &person_id, &task, &board, &with_prompts, &expires_at]).await?;
            if made == 0 {
                return Ok(Addition::NotPossible);
            }
            let end = expires_at.map(|end| end.to_string()).unwrap_or_default();
            tx.audit(AuditedChange::of(Action::Share, account_id).about(shown).with(end)).await?;
            Ok(Addition::Created(id))
        })
        .await
    }

    /// A link, if it works.
    pub async fn find_shared_link(&self, id: Id) -> Result<Option<SharedLink>> {
        let sql = format!("{WORKING} AND l.id = $2");
        self.driver.find(&sql, &[&self.driver.now(), &id], link).await
    }

    /// A task that a link shows.
    pub async fn find_shared_task(&self, link: Id, task: Id) -> Result<Option<TaskRecord>> {
        let sql = format!(
            "{WORKING} AND l.id = $2 AND (l.task_id = $3 OR EXISTS (
                 SELECT 1 FROM board_tasks o WHERE o.board_id = l.board_id AND o.task_id = $3))"
        );
        let shows = self.driver.read_one(&sql, &[&self.driver.now(), &link, &task]).await?;
        let record = if shows.is_some() { self.inspect_task(task).await? } else { None };
        Ok(record.filter(|record| record.removed_at.is_none()))
    }

    /// Up to `limit` links of an account that work, newest first, older than the link `before`; with a `maker`, only
    /// this person's.
    pub async fn list_shared_links(
        &self,
        account_id: Id,
        maker: Option<Id>,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<SharedLink>> {
        let sql = format!(
            "{WORKING} AND l.account_id = $2 AND (CAST($3 AS text) IS NULL OR l.person_id = $3) AND l.id < $4
             ORDER BY l.id DESC LIMIT $5"
        );
        let now = self.driver.now();
        self.driver.list(&sql, &[&now, &account_id, &maker, &upper(before), &limit], link).await
    }

    /// Counts a view of a link.
    pub async fn count_view(&self, link: Id) -> Result<()> {
        let sql = "UPDATE shared_links SET views = views + 1 WHERE id = $1";
        self.statement(Effect::ChangeSharedLink, sql, &[&link]).await.map(drop)
    }

    /// Revokes a link of an account; with a `maker`, only if it is this person's. The audit log records it. Returns
    /// whether there was one.
    pub async fn revoke_shared_link(&self, account_id: Id, link: Id, maker: Option<Id>) -> Result<bool> {
        self.write(Effect::ChangeSharedLink, async move |tx| {
            let sql = "DELETE FROM shared_links WHERE id = $2 AND account_id = $1
                AND (CAST($3 AS text) IS NULL OR person_id = $3) RETURNING coalesce(task_id, board_id) AS shown";
            let shown = tx.find(sql, &[&account_id, &link, &maker], |row| row.get::<Id>("shown")).await?;
            if let Some(shown) = shown {
                tx.audit(AuditedChange::of(Action::Unshare, account_id).about(shown)).await?;
            }
            Ok(shown.is_some())
        })
        .await
    }

    /// Deletes the links that have expired. Returns their number.
    pub async fn delete_expired_links(&self) -> Result<usize> {
        let now = self.driver.now();
        // Read first: a write that changes nothing would be a commit, too.
        let due = "SELECT 1 FROM shared_links WHERE expires_at <= $1 LIMIT 1";
        if self.driver.read_one(due, &[&now]).await?.is_none() {
            return Ok(0);
        }
        let sql = "DELETE FROM shared_links WHERE expires_at <= $1 RETURNING id";
        Ok(self.statement(Effect::ChangeSharedLink, sql, &[&now]).await?.len())
    }
}
