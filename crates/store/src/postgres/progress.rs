//! Statements for the progress of attempts and their previews. A row counts while the queue has the lease of its epoch.
//! Nothing here waits for a row that ends a task, and no statement that ends a task touches these tables.

use std::time::Duration;

use bytes::Bytes;
use tintype_engine::Stage;
use tokio_postgres::Row;

use super::columns::{TASK, number, task};
use super::connection::{Database, Parameter};
use super::queue::millis;
use crate::{AttemptProgress, FoundPreview, Lease, Result, SoughtPreview, Unfinished};
use tintype_domain::model::{Id, Surface, Task};

/// Reports that are late, of an attempt that has since lost its lease, are left out.
const REPORT: &str = "
    INSERT INTO progress AS p (task_id, lease_epoch, started_at, step, steps, fraction)
    SELECT told.task_id, told.lease_epoch, tintype_now($7) - told.running_ms, told.step, told.steps, told.fraction
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::real[])
        AS told (task_id, lease_epoch, running_ms, step, steps, fraction)
    WHERE told.lease_epoch = (
        SELECT q.lease_epoch FROM queue q WHERE q.task_id = told.task_id AND q.lease_until IS NOT NULL)
    ORDER BY told.task_id
    ON CONFLICT (task_id) DO UPDATE SET lease_epoch = excluded.lease_epoch, started_at = excluded.started_at,
        step = excluded.step, steps = excluded.steps, fraction = excluded.fraction
    WHERE p.lease_epoch <= excluded.lease_epoch";

/// Late previews are left out, too.
const SHOW: &str = "
    INSERT INTO previews AS p (task_id, lease_epoch, number, png)
    SELECT shown.task_id, shown.lease_epoch, 1, shown.png
    FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS shown (task_id, lease_epoch, png)
    WHERE shown.lease_epoch = (
        SELECT q.lease_epoch FROM queue q WHERE q.task_id = shown.task_id AND q.lease_until IS NOT NULL)
    ORDER BY shown.task_id
    ON CONFLICT (task_id) DO UPDATE SET lease_epoch = excluded.lease_epoch, number = p.number + 1, png = excluded.png
    WHERE p.lease_epoch <= excluded.lease_epoch";

const PREVIEW: &str = "
    SELECT p.png FROM previews p
    JOIN queue q ON q.task_id = p.task_id AND q.lease_epoch = p.lease_epoch AND q.lease_until IS NOT NULL
    JOIN tasks t ON t.id = p.task_id
    WHERE p.task_id = $1 AND t.account_id = $2 AND t.surface = $3 AND t.removed_at IS NULL";

pub(super) async fn report(database: &Database, attempts: &[(Lease, AttemptProgress)]) -> Result<()> {
    let of = |lease: &Lease, progress: &AttemptProgress| {
        let (step, steps, fraction) = match progress.stage {
            Some(Stage::Step { done, of }) => (Some(i64::from(done)), Some(i64::from(of)), None),
            Some(Stage::Fraction(fraction)) => (None, None, Some(fraction)),
            None => (None, None, None),
        };
        (lease.task_id, lease.epoch, millis(progress.running), step, steps, fraction)
    };
    let columns: (Vec<_>, Vec<_>, Vec<_>, Vec<_>, Vec<_>, Vec<_>) =
        attempts.iter().map(|(lease, progress)| of(lease, progress)).collect();
    let (ids, epochs, running, step, steps, fraction) = columns;
    let given = database.given_time();
    let parameters: [Parameter<'_>; 7] = [&ids, &epochs, &running, &step, &steps, &fraction, &given];
    database.write(REPORT, &parameters).await?;
    Ok(())
}

pub(super) async fn show(database: &Database, previews: &[(Lease, Bytes)]) -> Result<()> {
    let columns = previews.iter().map(|(lease, png)| (lease.task_id, lease.epoch, png.as_ref()));
    let (ids, epochs, pngs): (Vec<_>, Vec<_>, Vec<_>) = columns.collect();
    let parameters: [Parameter<'_>; 3] = [&ids, &epochs, &pngs];
    database.write(SHOW, &parameters).await?;
    Ok(())
}

/// Those of these leases that the queue no longer has.
pub(super) async fn lost(database: &Database, leases: Vec<Lease>) -> Result<Vec<Lease>> {
    let sql = "SELECT task_id, lease_epoch FROM queue WHERE task_id = ANY ($1) AND lease_until IS NOT NULL";
    let ids: Vec<Id> = leases.iter().map(|lease| lease.task_id).collect();
    let rows = database.read(sql, &[&ids]).await?;
    let lease = |row: &Row| Ok(Lease { task_id: row.try_get("task_id")?, epoch: row.try_get("lease_epoch")? });
    let held = rows.iter().map(lease).collect::<Result<Vec<Lease>>>()?;
    Ok(leases.into_iter().filter(|lease| !held.contains(lease)).collect())
}

/// Deletes the progress and the previews of attempts that have ended, except rows that a worker is writing.
pub(super) async fn forget_ended(database: &Database) -> Result<()> {
    for table in ["progress", "previews"] {
        let sql = format!(
            "DELETE FROM {table} WHERE task_id = ANY (ARRAY (
                SELECT p.task_id FROM {table} p
                WHERE p.lease_epoch IS DISTINCT FROM (
                    SELECT q.lease_epoch FROM queue q WHERE q.task_id = p.task_id AND q.lease_until IS NOT NULL)
                FOR UPDATE SKIP LOCKED))"
        );
        database.write(&sql, &[]).await?;
    }
    Ok(())
}

/// The latest preview of the present attempt at a task.
pub(super) async fn preview(database: &Database, account_id: Id, surface: Surface, id: Id) -> Result<Option<Bytes>> {
    let found = database.read_one(PREVIEW, &[&id, &account_id, &surface.as_str()]).await?;
    found.map(|row| Ok(row.try_get::<_, Vec<u8>>("png")?.into())).transpose()
}

/// The latest previews of tasks, of those that are due and not yet seen.
const PREVIEWS: &str = "
    SELECT sought.place, p.number, p.png
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::float8[])
        WITH ORDINALITY AS sought (task_id, account_id, shown, due, place)
    JOIN previews p ON p.task_id = sought.task_id AND p.number <> sought.shown
    JOIN queue q ON q.task_id = p.task_id AND q.lease_epoch = p.lease_epoch AND q.lease_until IS NOT NULL
    JOIN tasks t ON t.id = p.task_id AND t.account_id = sought.account_id AND t.surface = $5 AND t.removed_at IS NULL
    LEFT JOIN progress r ON r.task_id = p.task_id AND r.lease_epoch = p.lease_epoch
    WHERE coalesce(r.fraction, r.step::float8 / nullif(r.steps, 0), 1) >= sought.due";

pub(super) async fn previews(
    database: &Database,
    surface: Surface,
    sought: &[SoughtPreview],
) -> Result<Vec<FoundPreview>> {
    let columns = sought.iter().map(|sought| (sought.task_id, sought.account_id, sought.shown, sought.from));
    let (tasks, accounts, shown, due): (Vec<Id>, Vec<Id>, Vec<i64>, Vec<f64>) = columns.collect();
    let parameters: [Parameter<'_>; 5] = [&tasks, &accounts, &shown, &due, &surface.as_str()];
    let found = |row: &Row| {
        let place = row.try_get::<_, i64>("place")?;
        let (number, png) = (row.try_get("number")?, row.try_get::<_, Vec<u8>>("png")?.into());
        // The database counts from 1.
        Ok(FoundPreview { place: usize::try_from(place - 1).unwrap_or(usize::MAX), number, png })
    };
    database.read(PREVIEWS, &parameters).await?.iter().map(found).collect()
}

/// A task with the progress of the present attempt at it. One look-up by key in each table.
pub(super) async fn poll(
    database: &Database,
    account_id: Id,
    surface: Surface,
    id: Id,
) -> Result<Option<(Task, Option<AttemptProgress>)>> {
    let sql = format!(
        "SELECT {TASK}, tintype_now($4) - p.started_at AS running_ms, p.step, p.steps, p.fraction
         FROM tasks LEFT JOIN progress p ON p.task_id = id AND status = 'processing' AND p.lease_epoch =
             (SELECT q.lease_epoch FROM queue q WHERE q.task_id = p.task_id AND q.lease_until IS NOT NULL)
         WHERE id = $1 AND account_id = $2 AND surface = $3 AND removed_at IS NULL"
    );
    let found = database.read_one(&sql, &[&id, &account_id, &surface.as_str(), &database.given_time()]).await?;
    found.map(|row| Ok((task(&row)?, progress(&row)?))).transpose()
}

pub(super) async fn unfinished(database: &Database, accounts: &[Id], surface: Surface) -> Result<Vec<Unfinished>> {
    let sql = "SELECT q.task_id, q.account_id, t.image_to_image, q.lease_until IS NOT NULL AS is_leased,
            tintype_now($3) - p.started_at AS running_ms, p.step, p.steps, p.fraction, v.number AS preview
        FROM queue q JOIN tasks t ON t.id = q.task_id AND t.surface = $2
        LEFT JOIN progress p ON p.task_id = q.task_id AND p.lease_epoch = q.lease_epoch AND q.lease_until IS NOT NULL
        LEFT JOIN previews v ON v.task_id = q.task_id AND v.lease_epoch = q.lease_epoch AND q.lease_until IS NOT NULL
        WHERE q.account_id = ANY ($1)";
    let unfinished = |row: &Row| {
        Ok(Unfinished {
            task_id: row.try_get("task_id")?,
            account_id: row.try_get("account_id")?,
            image_to_image: row.try_get("image_to_image")?,
            is_leased: row.try_get("is_leased")?,
            attempt: progress(row)?,
            preview: row.try_get("preview")?,
        })
    };
    let parameters: [Parameter<'_>; 3] = [&accounts, &surface.as_str(), &database.given_time()];
    database.read(sql, &parameters).await?.iter().map(unfinished).collect()
}

fn progress(row: &Row) -> Result<Option<AttemptProgress>> {
    let Some(running_ms) = row.try_get::<_, Option<i64>>("running_ms")? else { return Ok(None) };
    let fraction: Option<f32> = row.try_get("fraction")?;
    let stage = match row.try_get::<_, Option<i64>>("step")? {
        Some(_) => Some(Stage::Step { done: number(row, "step")?, of: number(row, "steps")? }),
        None => fraction.map(Stage::Fraction),
    };
    let running = Duration::from_millis(u64::try_from(running_ms).unwrap_or(0));
    Ok(Some(AttemptProgress { running, stage }))
}
