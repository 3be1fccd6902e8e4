//! A moment in time. The clock of `tintype-system` reads it.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// Milliseconds since the Unix epoch, in UTC. Displayed as `YYYY-MM-DDTHH:MM:SS.mmmZ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest timestamp.
    pub const MIN: Self = Self(i64::MIN);
    /// The latest timestamp.
    pub const MAX: Self = Self(i64::MAX);

    /// Converts milliseconds since the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Midnight UTC at the start of a day such as `2026-11-21`; `None` if the text is not a date.
    pub fn of_day(day: &str) -> Option<Self> {
        let midnight = day.parse::<jiff::civil::Date>().ok()?.to_zoned_datetime(jiff::tz::TimeZone::UTC).ok()?;
        Some(Self(midnight.timestamp().as_millisecond()))
    }

    /// Its day in UTC, such as `2026-11-21`.
    pub fn day(self) -> String {
        self.to_string().chars().take("2026-11-21".len()).collect()
    }

    /// This time plus `duration`, at most [`Timestamp::MAX`].
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// This time minus `duration`, at least [`Timestamp::MIN`].
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }

    /// Time passed since `earlier`; zero if `earlier` is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self(millis(time.duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

/// Whole milliseconds of a duration, at most `i64::MAX`.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instant = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::MAX);
        write!(f, "{instant:.3}")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
