//! Limits what is rejected after it has cost something: uploads of an account, each of which has cost a place, a transfer and a
//! decoder and no credits, and exchanges of an address with an OpenID Connect provider.

use std::convert::Infallible;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use quick_cache::sync::Cache;

use tintype_system::clock::Clock;

/// Rejections per minute of one caller, even all at once. The next one makes it pause for a moment.
pub const ALLOWANCE: NonZeroU32 = NonZeroU32::new(20).expect("20 is not 0");
/// Most callers kept in memory. One that is evicted starts with a full allowance.
const MAX_CALLERS: usize = 100_000;

type Limiter = RateLimiter<NotKeyed, InMemoryState, Clock, NoOpMiddleware<Duration>>;

/// Rejections of one kind by caller, counted in this process.
pub struct Rejections<K> {
    clock: Clock,
    callers: Cache<K, Arc<Record>>,
}

struct Record {
    limiter: Limiter,
    /// The end of the pause, in milliseconds of the monotonic clock.
    paused_until: AtomicU64,
}

impl<K: Eq + Hash + Clone> std::fmt::Debug for Rejections<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rejections").field("callers", &self.callers.len()).finish_non_exhaustive()
    }
}

impl<K: Eq + Hash + Clone> Rejections<K> {
    /// Creates a counter without rejections.
    pub fn new(clock: Clock) -> Self {
        Self { clock, callers: Cache::new(MAX_CALLERS) }
    }

    /// Counts a rejection.
    pub fn count(&self, caller: K) {
        let fresh = || {
            let limiter = RateLimiter::direct_with_clock(Quota::per_minute(ALLOWANCE), self.clock.clone());
            Ok::<_, Infallible>(Arc::new(Record { limiter, paused_until: AtomicU64::new(0) }))
        };
        let record = self.callers.get_or_insert_with(&caller, fresh).unwrap_or_else(|never| match never {});
        if let Err(excess) = record.limiter.check() {
            let now = self.clock.elapsed();
            let until = millis(now + excess.wait_time_from(now));
            record.paused_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// Whether the caller must pause now after its rejections.
    pub fn are_too_many(&self, caller: K) -> bool {
        let until = self.callers.get(&caller).map_or(0, |record| record.paused_until.load(Ordering::Relaxed));
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
        let rejections = Rejections::new(clock.clone());
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
