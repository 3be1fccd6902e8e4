//! Limits rejections that cost the service something: an account's uploads, each of which takes a place, a transfer and
//! a decoder but no credits, and exchanges with an OpenID Connect provider from one address.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::Quota;

use super::limiters::Limiters;
use tintype_system::clock::Clock;

/// Rejections per minute of one caller, even all at once. The next one makes it pause for a moment.
pub const ALLOWANCE: NonZeroU32 = NonZeroU32::new(20).expect("20 is not 0");

/// Rejections of one kind by caller, counted in this process.
#[derive(Debug)]
pub struct RejectionLimit<K> {
    clock: Clock,
    /// Beside each limiter is the end of the caller's pause, in milliseconds of the monotonic clock.
    callers: Limiters<K, AtomicU64>,
}

impl<K: Eq + Hash + Clone> RejectionLimit<K> {
    /// Creates a counter without rejections.
    pub fn new(clock: Clock) -> Self {
        Self { callers: Limiters::new(clock.clone()), clock }
    }

    /// Counts a rejection.
    pub fn count(&self, caller: K) {
        let limiter = self.callers.of(&caller, Quota::per_minute(ALLOWANCE));
        if let Err(wait) = limiter.count() {
            limiter.note.fetch_max(millis(self.clock.elapsed() + wait), Ordering::Relaxed);
        }
    }

    /// Whether the caller must pause now after its rejections.
    pub fn are_too_many(&self, caller: K) -> bool {
        let until = self.callers.find(&caller).map_or(0, |limiter| limiter.note.load(Ordering::Relaxed));
        millis(self.clock.elapsed()) < until
    }
}

/// Rounded up, so that a pause is never too short.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tintype_domain::timestamp::Timestamp;

    #[test]
    fn a_caller_with_many_rejections_pauses_and_others_do_not() {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000));
        let rejections = RejectionLimit::new(clock.clone());
        let (one, other) = (1, 2);
        for _ in 0..ALLOWANCE.get() {
            rejections.count(one);
            assert!(!rejections.are_too_many(one));
        }
        rejections.count(one);
        assert!(rejections.are_too_many(one) && !rejections.are_too_many(other));
        clock.advance(Duration::from_secs(4));
        assert!(!rejections.are_too_many(one));
    }
}
