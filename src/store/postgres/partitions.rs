//! The partitions of the table `tasks`: one for each month, created before its first task and dropped when it holds
//! only removed tasks. Both happen under one advisory lock, and no month below the line in `history` is created again.

use std::time::Duration;

use jiff::ToSpan as _;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use tokio_postgres::Transaction;

use super::connection::{Database, TRANSACTION_TIMEOUT};
use super::failure::Failure;
use super::schema::LOCK;
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::store::{Result, StoreError};

/// Longest wait for reading an old month: longer than the limit of its statements together.
const READ_TIMEOUT: Duration = Duration::from_secs(11 * 60);

/// Creates the partitions for tasks made between two times, unless they exist.
pub(super) async fn prepare(database: &Database, first: Timestamp, last: Timestamp) -> Result<()> {
    let (mut month, last) = (first_day(first)?, first_day(last)?);
    while month <= last {
        if create(database, month).await? == PartitionState::Dropped {
            let dropped = format!("the partition of {month} was dropped: check the clock of the database");
            return Err(StoreError::Other(dropped.into()));
        }
        month = next(month)?;
    }
    Ok(())
}

/// Creates the partitions for tasks made at `time` and in the month after it, unless they exist.
pub(super) async fn prepare_ahead(database: &Database, time: Timestamp) -> Result<()> {
    let month = first_day(time)?;
    for month in [month, next(month)?] {
        if create(database, month).await? == PartitionState::Dropped {
            tracing::warn!(%month, "no task can be created: this month was dropped; check the clock of the database");
        }
    }
    Ok(())
}

/// Drops the oldest month if it ended before `before` and each of its tasks was removed before `removed_before`; returns
/// whether it did.
pub(super) async fn drop_oldest(database: &Database, before: Timestamp, removed_before: Timestamp) -> Result<bool> {
    // An unfinished month will get further tasks.
    let before = before.min(database.now());
    let look = async |looked: &Transaction<'_>| old_month(looked, before, removed_before).await;
    let month = match database.transaction(READ_TIMEOUT, look).await {
        Ok(Some(month)) => month,
        // Another process has just dropped it.
        Ok(None) | Err(Failure::Busy(_)) => return Ok(false),
        Err(failure) => return Err(failure.into()),
    };
    let drop = async |begun: &Transaction<'_>| drop_month(begun, month).await;
    match database.transaction(TRANSACTION_TIMEOUT, drop).await {
        Err(Failure::Busy(_)) => {
            tracing::info!(%month, "an old month is in use; its partition is dropped at a later sweep");
            Ok(false)
        }
        outcome => Ok(outcome?),
    }
}

/// Whether a month has its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartitionState {
    Exists,
    /// It was dropped and is never created again.
    Dropped,
}

fn odd(error: jiff::Error) -> StoreError {
    StoreError::Other(format!("the time is outside of the calendar: {error}").into())
}

fn first_day(time: Timestamp) -> Result<Date> {
    let instant = jiff::Timestamp::from_millisecond(time.as_millis()).map_err(odd)?;
    Ok(instant.to_zoned(TimeZone::UTC).date().first_of_month())
}

fn next(month: Date) -> Result<Date> {
    month.checked_add(1.month()).map_err(odd)
}

/// When a day begins.
fn start(day: Date) -> Result<Timestamp> {
    let midnight = day.to_zoned(TimeZone::UTC).map_err(odd)?;
    Ok(Timestamp::from_millis(midnight.timestamp().as_millisecond()))
}

/// When a month is over.
fn end(month: Date) -> Result<Timestamp> {
    start(next(month)?)
}

/// Creates the partition of a month, unless it exists. It is attached afterwards: `CREATE TABLE ... PARTITION OF` locks
/// the parent against all readers.
async fn create(database: &Database, month: Date) -> Result<PartitionState> {
    let table = table(month);
    let (from, to) = (Id::floor(start(month)?), Id::floor(end(month)?));
    let make = async |begun: &Transaction<'_>| {
        begun.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
        let exists: bool = begun.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]).await?.try_get(0)?;
        if exists {
            return Ok(PartitionState::Exists);
        }
        let gone: bool = begun.query_one("SELECT first_id >= $1 FROM history", &[&to]).await?.try_get(0)?;
        if gone {
            return Ok(PartitionState::Dropped);
        }
        begun
            .batch_execute(&format!(
                "CREATE TABLE {table} (LIKE tasks INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
                 ALTER TABLE tasks ATTACH PARTITION {table} FOR VALUES FROM ('{from}') TO ('{to}')"
            ))
            .await?;
        Ok(PartitionState::Exists)
    };
    // The next attempt sees whether it was created.
    database.transaction(TRANSACTION_TIMEOUT, make).await.map_err(Failure::into_error)
}

/// The name of the partition of a month.
fn table(month: Date) -> String {
    format!("tasks_{:04}_{:02}", month.year(), month.month())
}

/// The month whose partition has this name.
fn month_of(table: &str) -> Option<Date> {
    let (year, month) = table.strip_prefix("tasks_")?.split_once('_')?;
    Date::new(year.parse().ok()?, month.parse().ok()?, 1).ok()
}

/// The first month that has a partition; none in a database without accounts, which an import may still fill with older
/// tasks.
async fn oldest(begun: &Transaction<'_>) -> std::result::Result<Option<Date>, tokio_postgres::Error> {
    let partitions = "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'tasks'::regclass AND EXISTS (SELECT 1 FROM accounts)";
    let rows = begun.query(partitions, &[]).await?;
    let names = rows.iter().map(|row| row.try_get::<_, &str>(0)).collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(names.into_iter().filter_map(month_of).min())
}

/// Whether the month holds a task that is not removed. The order is that of their partial index, so that it is used.
async fn has_unremoved(begun: &Transaction<'_>, month: Date) -> std::result::Result<bool, tokio_postgres::Error> {
    let sql =
        format!("SELECT id FROM {} WHERE removed_at IS NULL ORDER BY account_id, surface, id LIMIT 1", table(month));
    Ok(begun.query_opt(&sql, &[]).await?.is_some())
}

/// The oldest month, if it ended before `before` and all its tasks were removed before `removed_before`. Reads the
/// whole month.
async fn old_month(
    looked: &Transaction<'_>,
    before: Timestamp,
    removed_before: Timestamp,
) -> std::result::Result<Option<Date>, Failure> {
    let Some(month) = oldest(looked).await? else { return Ok(None) };
    looked.batch_execute("SET LOCAL statement_timeout = '5min'").await?;
    if end(month)? > before || has_unremoved(looked, month).await? {
        return Ok(None);
    }
    looked.batch_execute("SET LOCAL enable_seqscan = on").await?;
    let young = format!("SELECT EXISTS (SELECT 1 FROM {} WHERE removed_at >= $1)", table(month));
    let young: bool = looked.query_one(&young, &[&removed_before]).await?.try_get(0)?;
    Ok((!young).then_some(month))
}

/// Drops the partition of a month and moves the beginning of history behind it; `false` when it is no longer the first
/// or holds a task again. All other statements on `tasks` queue behind a waiting table lock, so it waits for half a
/// second: less than `deadlock_timeout`, so that no other transaction is chosen as the victim.
async fn drop_month(begun: &Transaction<'_>, month: Date) -> std::result::Result<bool, Failure> {
    begun.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    begun.batch_execute("SET LOCAL lock_timeout = '500ms'; SET LOCAL statement_timeout = '2s'").await?;
    if oldest(begun).await? != Some(month) {
        return Ok(false);
    }
    let table = table(month);
    begun.batch_execute("LOCK TABLE ONLY tasks IN ACCESS EXCLUSIVE MODE").await?;
    begun.batch_execute(&format!("LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE")).await?;
    // All other statements on tasks wait from here on.
    begun.batch_execute("SET LOCAL statement_timeout = '500ms'").await?;
    if has_unremoved(begun, month).await? {
        return Ok(false);
    }
    begun.execute("UPDATE history SET first_id = greatest(first_id, $1)", &[&Id::floor(end(month)?)]).await?;
    begun.batch_execute(&format!("DROP TABLE {table}")).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_on_its_first_day_and_ends_where_the_next_begins() {
        let time = Timestamp::from_millis(1_795_262_400_000);
        let month = first_day(time).expect("a month");
        assert_eq!(start(month).expect("a time").to_string(), "2026-11-01T00:00:00.000Z");
        let december = next(month).expect("a month");
        assert_eq!(start(december).expect("a time").to_string(), "2026-12-01T00:00:00.000Z");
        assert_eq!(start(next(december).expect("a month")).expect("a time").to_string(), "2027-01-01T00:00:00.000Z");
    }

    #[test]
    fn a_month_is_known_by_the_name_of_its_partition() {
        let months = ["0001-01-01", "2026-11-01", "9999-12-01"].map(|day| day.parse::<Date>().expect("a day"));
        for month in months {
            assert_eq!(month_of(&table(month)), Some(month));
        }
        for other in ["tasks", "tasks_2026", "tasks_2026_13", "tasks_2026_11_old", "invoices_2026_11"] {
            assert_eq!(month_of(other), None, "{other}");
        }
    }
}
