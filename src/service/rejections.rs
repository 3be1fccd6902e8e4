//! Limits the uploads of an account that are rejected: each has cost a place, a transfer and a decoder, and no credits.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use quick_cache::sync::Cache;

use crate::clock::Clock;
use crate::domain::model::Id;

/// Rejected uploads per minute of one account, even all at once. The next one ends its uploads for a moment.
pub const ALLOWANCE: NonZeroU32 = NonZeroU32::new(20).expect("20 is not 0");
/// Most accounts kept in memory. An account that is evicted starts with a full allowance.
const MAX_ACCOUNTS: usize = 100_000;

type Limiter = RateLimiter<NotKeyed, InMemoryState, Clock, NoOpMiddleware<Duration>>;

/// Rejected uploads, counted in this process.
pub struct Rejections {
    clock: Clock,
    accounts: Cache<Id, Arc<Record>>,
}

struct Record {
    limiter: Limiter,
    /// The end of the pause, in milliseconds of the monotonic clock.
    paused_until: AtomicU64,
}

impl std::fmt::Debug for Rejections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rejections").field("accounts", &self.accounts.len()).finish_non_exhaustive()
    }
}

impl Rejections {
    /// Creates a counter without rejections.
    pub fn new(clock: Clock) -> Self {
        Self { clock, accounts: Cache::new(MAX_ACCOUNTS) }
    }

    /// Counts a rejected upload.
    pub fn count(&self, account_id: Id) {
        let fresh = || {
            let limiter = RateLimiter::direct_with_clock(Quota::per_minute(ALLOWANCE), self.clock.clone());
            Ok::<_, Infallible>(Arc::new(Record { limiter, paused_until: AtomicU64::new(0) }))
        };
        let record = self.accounts.get_or_insert_with(&account_id, fresh).unwrap_or_else(|never| match never {});
        if let Err(excess) = record.limiter.check() {
            let now = self.clock.elapsed();
            let until = millis(now + excess.wait_time_from(now));
            record.paused_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// Whether the account has had so many rejected uploads that it may not send one now.
    pub fn are_too_many(&self, account_id: Id) -> bool {
        let until = self.accounts.get(&account_id).map_or(0, |record| record.paused_until.load(Ordering::Relaxed));
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
    use crate::domain::timestamp::Timestamp;

    #[test]
    fn an_account_whose_uploads_are_rejected_pauses_and_others_do_not() {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000));
        let rejections = Rejections::new(clock.clone());
        let (one, other) = (Id::floor(Timestamp::from_millis(1)), Id::floor(Timestamp::from_millis(2)));
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
