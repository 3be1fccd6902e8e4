//! Wall-clock and monotonic time, which tests can move by hand. No other module reads a clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
        let midnight = day.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
        Some(Self(midnight.timestamp().as_millisecond()))
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

fn millis(duration: Duration) -> i64 {
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

/// A source of time. Clones are cheap, and moving one manual clock moves all its clones.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System { started: Instant },
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// The operating system's clock.
    #[expect(clippy::disallowed_methods, reason = "only this module reads the time")]
    pub fn system() -> Self {
        Self(Source::System { started: Instant::now() })
    }

    /// A clock that stands still at `now` until [`Clock::advance`] or [`Clock::set`] moves it.
    pub fn manual(now: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicI64::new(now.as_millis()))))
    }

    /// Whether this clock is moved by hand.
    pub fn is_manual(&self) -> bool {
        matches!(self.0, Source::Manual(_))
    }

    /// The wall-clock time.
    #[expect(clippy::disallowed_methods, reason = "only this module reads the time")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System { .. } => SystemTime::now().into(),
            Source::Manual(millis) => Timestamp(millis.load(Ordering::SeqCst)),
        }
    }

    /// Monotonic time since an arbitrary fixed moment. A manual clock may go backwards.
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Source::System { started } => started.elapsed(),
            Source::Manual(_) => self.now().since(Timestamp(0)),
        }
    }

    /// Moves a manual clock forward.
    ///
    /// # Panics
    /// On the system clock.
    pub fn advance(&self, by: Duration) {
        self.manual_millis().fetch_add(millis(by), Ordering::SeqCst);
    }

    /// Sets a manual clock, forwards or backwards.
    ///
    /// # Panics
    /// On the system clock.
    pub fn set(&self, now: Timestamp) {
        self.manual_millis().store(now.as_millis(), Ordering::SeqCst);
    }

    fn manual_millis(&self) -> &AtomicI64 {
        match &self.0 {
            Source::System { .. } => panic!("the system clock cannot be moved"),
            Source::Manual(millis) => millis,
        }
    }
}

/// Rate limits use the monotonic [`Clock::elapsed`], so that a step of the wall clock never blocks a key.
impl governor::clock::Clock for Clock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.elapsed()
    }
}
