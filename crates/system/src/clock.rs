//! Wall-clock and monotonic time, which tests can move by hand. No other module reads a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tintype_domain::timestamp::millis;

pub use tintype_domain::timestamp::Timestamp;

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
            Source::Manual(millis) => Timestamp::from_millis(millis.load(Ordering::SeqCst)),
        }
    }

    /// The wall-clock time since 1970, as precise as the clock.
    #[expect(clippy::disallowed_methods, reason = "only this module reads the time")]
    pub fn since_epoch(&self) -> Duration {
        match &self.0 {
            Source::System { .. } => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
            Source::Manual(_) => self.elapsed(),
        }
    }

    /// Monotonic time since an arbitrary fixed moment. A manual clock may go backwards.
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Source::System { started } => started.elapsed(),
            Source::Manual(_) => self.now().since(Timestamp::from_millis(0)),
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

/// Microseconds of the kernel's clock that never steps, for programs on this machine.
pub fn monotonic_micros() -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u128::from(now.tv_sec.unsigned_abs());
    seconds * 1_000_000 + u128::from(now.tv_nsec.unsigned_abs()) / 1_000
}
