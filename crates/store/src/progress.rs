//! The progress of attempts and their previews. A row counts while the queue has the lease of its epoch.
//!
//! Nothing here waits for a row that ends a task, and no statement that ends a task touches these tables.

use std::time::Duration;

use bytes::Bytes;
use tintype_engine::Stage;

use super::driver::{Dialect, List, Row, Store, Transaction, from_row, json};
use super::{AttemptProgress, FoundPreview, Lease, Result, SoughtPreview, Unfinished};
use crate::failure::DbResult;
use tintype_domain::model::{Id, Surface};
use tintype_system::fault::Effect;

/// The condition that the queue has the lease of the task $1 and the epoch $2. Reports that are late, of an attempt
/// that has since lost its lease, are left out.
const HELD: &str = "$2 = (SELECT q.lease_epoch FROM queue q WHERE q.task_id = $1 AND q.lease_until IS NOT NULL)";

/// Deletes the progress and the previews of attempts that have ended, except rows that a worker is writing.
pub(super) async fn forget_ended(tx: &Transaction<'_>) -> DbResult {
    for table in ["progress", "previews"] {
        let ended = format!(
            "SELECT p.task_id FROM {table} p WHERE p.lease_epoch IS DISTINCT FROM (
                 SELECT q.lease_epoch FROM queue q WHERE q.task_id = p.task_id AND q.lease_until IS NOT NULL) {}",
            tx.locking("FOR UPDATE SKIP LOCKED")
        );
        tx.execute(&format!("DELETE FROM {table} WHERE task_id {}", tx.in_subquery(&ended)), &[]).await?;
    }
    Ok(())
}

/// How far an attempt is.
pub(super) fn of_attempt(row: &Row) -> Result<Option<AttemptProgress>> {
    let Some(running_ms) = row.get::<Option<i64>>("running_ms")? else { return Ok(None) };
    let fraction: Option<f32> = row.get("fraction")?;
    let stage = match (row.get("step")?, row.get("steps")?) {
        (Some(done), Some(of)) => Some(Stage::Step { done, of }),
        _ => fraction.map(Stage::Fraction),
    };
    let running = Duration::from_millis(u64::try_from(running_ms).unwrap_or(0));
    Ok(Some(AttemptProgress { running, stage }))
}

from_row! { fn found_preview(row) -> FoundPreview { place, number, png: row.get::<Vec<u8>>("png")?.into() } }

from_row! { fn unfinished(row) -> Unfinished {
    task_id, account_id, image_to_image, is_leased, attempt: of_attempt(row)?, preview,
} }

/// The latest previews of tasks listed in the JSON `elements`, on the surface $1, that are due and not yet seen.
fn previews_of(elements: &str) -> String {
    format!(
        "SELECT sought.place, p.number, p.png FROM (
             SELECT key AS place, value ->> 0 AS task_id, value ->> 1 AS account_id,
                 CAST(value ->> 2 AS bigint) AS shown, CAST(value ->> 3 AS double precision) AS due
             FROM {elements}) AS sought
         JOIN previews p ON p.task_id = sought.task_id AND p.number <> sought.shown
         JOIN queue q ON q.task_id = p.task_id AND q.lease_epoch = p.lease_epoch AND q.lease_until IS NOT NULL
         JOIN tasks t ON t.id = p.task_id AND t.account_id = sought.account_id AND t.surface = $1
             AND t.removed_at IS NULL
         LEFT JOIN progress r ON r.task_id = p.task_id AND r.lease_epoch = p.lease_epoch
         WHERE coalesce(r.fraction, CAST(r.step AS double precision) / nullif(r.steps, 0), 1) >= sought.due"
    )
}

impl Store {
    /// Saves attempts' progress, separately from the tasks. A report has no effect if its attempt has lost the lease.
    /// [`Store::poll_task`] shows a report until the lease ends, and [`Store::reclaim`] deletes it afterwards. A report
    /// can get lost: backups and other databases don't include it, and a database crash can erase it.
    pub async fn report_progress(&self, mut attempts: Vec<(Lease, AttemptProgress)>) -> Result<()> {
        attempts.sort_unstable_by_key(|(lease, _)| lease.task_id);
        self.write(Effect::ReportProgress, async move |tx| {
            let sql = format!(
                "INSERT INTO progress AS p (task_id, lease_epoch, started_at, step, steps, fraction)
                 SELECT $1, $2, $3, $4, $5, $6 WHERE {HELD}
                 ON CONFLICT (task_id) DO UPDATE SET lease_epoch = excluded.lease_epoch,
                     started_at = excluded.started_at, step = excluded.step, steps = excluded.steps,
                     fraction = excluded.fraction
                 WHERE p.lease_epoch <= excluded.lease_epoch"
            );
            for (Lease { task_id, epoch }, AttemptProgress { running, stage }) in &attempts {
                let (step, steps, fraction) = match *stage {
                    Some(Stage::Step { done, of }) => (Some(done), Some(of), None),
                    Some(Stage::Fraction(fraction)) => (None, None, Some(fraction)),
                    None => (None, None, None),
                };
                let started_at = tx.now().saturating_sub(*running);
                tx.execute(&sql, &[task_id, epoch, &started_at, &step, &steps, &fraction]).await?;
            }
            Ok(())
        })
        .await
    }

    /// Keeps the latest preview of attempts, a small PNG each. It lasts as long as a report of
    /// [`Store::report_progress`].
    pub async fn report_previews(&self, mut previews: Vec<(Lease, Bytes)>) -> Result<()> {
        previews.sort_unstable_by_key(|(lease, _)| lease.task_id);
        self.write(Effect::ReportProgress, async move |tx| {
            let sql = format!(
                "INSERT INTO previews AS p (task_id, lease_epoch, number, png) SELECT $1, $2, 1, $3 WHERE {HELD}
                 ON CONFLICT (task_id) DO UPDATE SET lease_epoch = excluded.lease_epoch, number = p.number + 1,
                     png = excluded.png
                 WHERE p.lease_epoch <= excluded.lease_epoch"
            );
            for (lease, png) in &previews {
                tx.execute(&sql, &[&lease.task_id, &lease.epoch, &png.as_ref()]).await?;
            }
            Ok(())
        })
        .await
    }

    /// The unfinished tasks of some accounts on one surface, in any order.
    pub async fn unfinished(&self, accounts: &[Id], surface: Surface) -> Result<Vec<Unfinished>> {
        let sql = format!(
            "SELECT q.task_id, q.account_id, t.image_to_image, q.lease_until IS NOT NULL AS is_leased,
                 {} - p.started_at AS running_ms, p.step, p.steps, p.fraction, v.number AS preview
             FROM queue q JOIN tasks t ON t.id = q.task_id AND t.surface = $2
             LEFT JOIN progress p
                 ON p.task_id = q.task_id AND p.lease_epoch = q.lease_epoch AND q.lease_until IS NOT NULL
             LEFT JOIN previews v
                 ON v.task_id = q.task_id AND v.lease_epoch = q.lease_epoch AND q.lease_until IS NOT NULL
             WHERE q.account_id {}",
            self.driver.time_in(3),
            self.driver.in_list(1)
        );
        self.driver.list(&sql, &[&List(accounts), &surface, &self.driver.time()], unfinished).await
    }

    /// The latest previews of running attempts at these tasks on a surface, if they are due and not yet seen. An
    /// attempt that reports no progress counts as far enough.
    pub async fn find_previews(&self, surface: Surface, sought: &[SoughtPreview]) -> Result<Vec<FoundPreview>> {
        let sql = previews_of(self.driver.either(
            "json_each($2)",
            "(SELECT value, place - 1 AS key FROM json_array_elements(CAST(CAST($2 AS text) AS json))
                 WITH ORDINALITY AS each (value, place)) AS each",
        ));
        let each = |SoughtPreview { task_id, account_id, shown, from }: &_| (*task_id, *account_id, *shown, *from);
        let sought = json(&sought.iter().map(each).collect::<Vec<_>>());
        self.driver.list(&sql, &[&surface, &sought], found_preview).await
    }
}
