//! Statements for the progress of attempts and their previews. A row counts while the queue has the lease of its epoch.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use tintype_engine::Stage;

use super::tasks::{TASK, task};
use super::writer::Writing;
use crate::{AttemptProgress, FoundPreview, Lease, SoughtPreview, Unfinished};
use tintype_domain::model::{Id, Surface, Task};
use tintype_system::clock::Timestamp;

pub(super) fn report(writing: &mut Writing, attempts: &[(Lease, AttemptProgress)]) -> rusqlite::Result<()> {
    let now = writing.clock.now();
    let mut report = writing.connection.prepare_cached(
        "INSERT INTO progress (task_id, lease_epoch, started_at, step, steps, fraction)
         SELECT task_id, lease_epoch, ?3, ?4, ?5, ?6 FROM queue
         WHERE task_id = ?1 AND lease_epoch = ?2 AND lease_until IS NOT NULL
         ON CONFLICT (task_id) DO UPDATE SET lease_epoch = excluded.lease_epoch, started_at = excluded.started_at,
             step = excluded.step, steps = excluded.steps, fraction = excluded.fraction",
    )?;
    for (lease, progress) in attempts {
        let started_at = now.saturating_sub(progress.running);
        let (step, steps, fraction) = match progress.stage {
            Some(Stage::Step { done, of }) => (Some(done), Some(of), None),
            Some(Stage::Fraction(fraction)) => (None, None, Some(fraction)),
            None => (None, None, None),
        };
        report.execute(params![lease.task_id, lease.epoch, started_at, step, steps, fraction])?;
    }
    Ok(())
}

pub(super) fn show(connection: &Connection, previews: &[(Lease, Bytes)]) -> rusqlite::Result<()> {
    let mut show = connection.prepare_cached(
        "INSERT INTO previews (task_id, lease_epoch, number, png)
         SELECT task_id, lease_epoch, 1, ?3 FROM queue
         WHERE task_id = ?1 AND lease_epoch = ?2 AND lease_until IS NOT NULL
         ON CONFLICT (task_id) DO UPDATE SET lease_epoch = excluded.lease_epoch, number = previews.number + 1,
             png = excluded.png",
    )?;
    for (lease, png) in previews {
        show.execute(params![lease.task_id, lease.epoch, png.as_ref()])?;
    }
    Ok(())
}

/// Those of these leases that the queue no longer has.
pub(super) fn lost(connection: &Connection, leases: Vec<Lease>) -> rusqlite::Result<Vec<Lease>> {
    let mut held = connection
        .prepare_cached("SELECT 1 FROM queue WHERE task_id = ?1 AND lease_epoch = ?2 AND lease_until IS NOT NULL")?;
    let mut lost = Vec::new();
    for lease in leases {
        if !held.exists(params![lease.task_id, lease.epoch])? {
            lost.push(lease);
        }
    }
    Ok(lost)
}

/// Deletes the progress and the previews of attempts that have ended.
pub(super) fn forget_ended(connection: &Connection) -> rusqlite::Result<()> {
    for table in ["progress", "previews"] {
        let ended = format!(
            "DELETE FROM {table} AS p WHERE NOT EXISTS (
                SELECT 1 FROM queue q
                WHERE q.task_id = p.task_id AND q.lease_epoch = p.lease_epoch AND q.lease_until IS NOT NULL)"
        );
        connection.prepare_cached(&ended)?.execute([])?;
    }
    Ok(())
}

/// The latest preview of the present attempt at a task.
pub(super) fn preview(
    connection: &Connection,
    account_id: Id,
    surface: Surface,
    id: Id,
) -> rusqlite::Result<Option<Bytes>> {
    connection
        .prepare_cached(
            "SELECT p.png FROM previews p
             JOIN queue q ON q.task_id = p.task_id AND q.lease_epoch = p.lease_epoch AND q.lease_until IS NOT NULL
             JOIN tasks t ON t.id = p.task_id
             WHERE p.task_id = ?1 AND t.account_id = ?2 AND t.surface = ?3 AND t.removed_at IS NULL",
        )?
        .query_row(params![id, account_id, surface.as_str()], |row| row.get::<_, Vec<u8>>(0).map(Bytes::from))
        .optional()
}

/// The latest previews of tasks, of those that are due and not yet seen.
pub(super) fn previews(
    connection: &Connection,
    surface: Surface,
    sought: &[SoughtPreview],
) -> rusqlite::Result<Vec<FoundPreview>> {
    let mut look = connection.prepare_cached(
        "SELECT p.number, p.png FROM previews p
         JOIN queue q ON q.task_id = p.task_id AND q.lease_epoch = p.lease_epoch AND q.lease_until IS NOT NULL
         JOIN tasks t ON t.id = p.task_id
         LEFT JOIN progress r ON r.task_id = p.task_id AND r.lease_epoch = p.lease_epoch
         WHERE p.task_id = ?1 AND p.number <> ?2 AND coalesce(r.fraction, r.step * 1.0 / r.steps, 1.0) >= ?3
             AND t.account_id = ?4 AND t.surface = ?5 AND t.removed_at IS NULL",
    )?;
    let mut found = Vec::new();
    for (place, SoughtPreview { account_id, task_id, shown, from }) in sought.iter().enumerate() {
        let preview = look
            .query_row(params![task_id, shown, from, account_id, surface.as_str()], |row| {
                Ok(FoundPreview { place, number: row.get(0)?, png: row.get::<_, Vec<u8>>(1)?.into() })
            })
            .optional()?;
        found.extend(preview);
    }
    Ok(found)
}

/// A task with the progress of the present attempt at it. One look-up by key in each table.
pub(super) fn poll(
    connection: &Connection,
    account_id: Id,
    surface: Surface,
    id: Id,
    now: Timestamp,
) -> rusqlite::Result<Option<(Task, Option<AttemptProgress>)>> {
    connection
        .prepare_cached(&format!(
            "SELECT {TASK}, p.started_at, p.step, p.steps, p.fraction
             FROM tasks LEFT JOIN progress p ON p.task_id = id AND status = 'processing' AND p.lease_epoch =
                 (SELECT lease_epoch FROM queue q WHERE q.task_id = p.task_id AND q.lease_until IS NOT NULL)
             WHERE id = ?1 AND account_id = ?2 AND surface = ?3 AND removed_at IS NULL"
        ))?
        .query_row(params![id, account_id, surface.as_str()], |row| Ok((task(row)?, progress(row, now)?)))
        .optional()
}

/// Waiting tasks are a range of an index; leased ones are as few as the workers have slots.
pub(super) fn unfinished(
    connection: &Connection,
    accounts: &[Id],
    surface: Surface,
    now: Timestamp,
) -> rusqlite::Result<Vec<Unfinished>> {
    let part = |condition| {
        format!(
            "SELECT q.task_id, t.image_to_image, q.lease_until IS NOT NULL AS is_leased, p.started_at, p.step, p.steps,
                 p.fraction, v.number AS preview
             FROM queue q JOIN tasks t ON t.id = q.task_id AND t.surface = ?2
             LEFT JOIN progress p ON p.task_id = q.task_id AND p.lease_epoch = q.lease_epoch
                 AND q.lease_until IS NOT NULL
             LEFT JOIN previews v ON v.task_id = q.task_id AND v.lease_epoch = q.lease_epoch
                 AND q.lease_until IS NOT NULL
             WHERE q.account_id = ?1 AND q.lease_until {condition}"
        )
    };
    let parts = ["IS NULL AND q.engine = ''", "IS NULL AND q.engine > ''", "IS NOT NULL"];
    let sql = parts.map(part).join(" UNION ALL ");
    let mut of_account = connection.prepare_cached(&sql)?;
    let mut found = Vec::new();
    for &account_id in accounts {
        let tasks = of_account.query_map(params![account_id, surface.as_str()], |row| {
            Ok(Unfinished {
                task_id: row.get("task_id")?,
                account_id,
                image_to_image: row.get("image_to_image")?,
                is_leased: row.get("is_leased")?,
                attempt: progress(row, now)?,
                preview: row.get("preview")?,
            })
        })?;
        found.extend(tasks.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(found)
}

fn progress(row: &Row<'_>, now: Timestamp) -> rusqlite::Result<Option<AttemptProgress>> {
    let Some(started_at) = row.get::<_, Option<Timestamp>>("started_at")? else { return Ok(None) };
    let fraction: Option<f32> = row.get("fraction")?;
    let stage = match (row.get("step")?, row.get("steps")?) {
        (Some(done), Some(of)) => Some(Stage::Step { done, of }),
        _ => fraction.map(Stage::Fraction),
    };
    Ok(Some(AttemptProgress { running: now.since(started_at), stage }))
}
