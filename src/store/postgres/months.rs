//! The partitions of the table `tasks`: one for each month, made before its first task.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use jiff::ToSpan as _;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::connection::Database;
use super::schema::LOCK;
use crate::clock::Timestamp;
use crate::model::Id;
use crate::store::{Result, StoreError};

/// The months that are known to have their partition, by their first day.
#[derive(Debug, Default)]
pub(super) struct Months {
    known: Mutex<BTreeSet<Date>>,
}

impl Months {
    /// Makes sure that tasks made at `time` have a place.
    pub(super) async fn prepare(&self, database: &Database, time: Timestamp) -> Result<()> {
        let month = first_day(time)?;
        if self.known().contains(&month) {
            return Ok(());
        }
        create(database, month).await?;
        self.known().insert(month);
        Ok(())
    }

    /// Makes sure that tasks made at `time` or in the month after it have a place.
    pub(super) async fn prepare_ahead(&self, database: &Database, time: Timestamp) -> Result<()> {
        self.prepare(database, time).await?;
        self.prepare(database, start(next(first_day(time)?)?)?).await
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeSet<Date>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn odd(error: jiff::Error) -> StoreError {
    StoreError::Other(format!("no calendar has that time: {error}"))
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

/// Makes the partition of a month, unless it is there. Not as a child of its table from the start: that would
/// wait for whoever reads the table, and let everybody else wait behind.
async fn create(database: &Database, month: Date) -> Result<()> {
    let table = format!("tasks_{:04}_{:02}", month.year(), month.month());
    let (from, to) = (Id::floor(start(month)?), Id::floor(start(next(month)?)?));
    let mut client = database.client().await?;
    let begun = client.transaction().await?;
    begun.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    let exists: bool = begun.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]).await?.try_get(0)?;
    if !exists {
        begun
            .batch_execute(&format!(
                "CREATE TABLE {table} (LIKE tasks INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
                 ALTER TABLE tasks ATTACH PARTITION {table} FOR VALUES FROM ('{from}') TO ('{to}')"
            ))
            .await?;
    }
    Ok(begun.commit().await?)
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
}
