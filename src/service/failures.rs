//! Delays responses to sources that fail to authenticate repeatedly.
//!
//! Every failure gets the same response. Beyond an allowance per source the response is delayed, and the more failures
//! of that source wait, the longer the delay. Requests with a valid key never wait: the key is checked first.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

use tintype_domain::source::Source;
use tintype_system::clock::Clock;

/// Failures per minute of one source without a delay, even all at once.
pub const ALLOWANCE: NonZeroU32 = NonZeroU32::new(300).expect("300 is not 0");
/// Most failures of one source that wait at the same time. Further failures close their connections.
pub const MAX_WAITING: u32 = 8;
/// Most failures of all sources that wait at the same time.
const MAX_WAITING_IN_ALL: usize = 1_024;
/// Most sources kept in memory. A source that is evicted starts with a full allowance.
const MAX_SOURCES: usize = 100_000;

type Limiter = RateLimiter<NotKeyed, InMemoryState, Clock, NoOpMiddleware<Duration>>;

/// Failed authentications per source, counted in this process.
pub struct Failures {
    clock: Clock,
    sources: Cache<Source, Arc<Record>>,
    waiting: Semaphore,
}

struct Record {
    limiter: Limiter,
    waiting: AtomicU32,
}

/// How to answer a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureDelay {
    /// The delay, if any, is over: answer.
    Waited,
    /// Too many failures are waiting: answer at once and close the connection.
    Exhausted,
}

impl std::fmt::Debug for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failures").field("sources", &self.sources.len()).finish_non_exhaustive()
    }
}

impl Failures {
    /// Creates a counter without failures.
    pub fn new(clock: Clock) -> Self {
        Self { clock, sources: Cache::new(MAX_SOURCES), waiting: Semaphore::new(MAX_WAITING_IN_ALL) }
    }

    /// Counts one failure and waits out its delay.
    pub async fn delay(&self, source: Source) -> FailureDelay {
        let quota = Quota::per_minute(ALLOWANCE);
        let fresh = || {
            let limiter = RateLimiter::direct_with_clock(quota, self.clock.clone());
            Ok::<_, Infallible>(Arc::new(Record { limiter, waiting: AtomicU32::new(0) }))
        };
        let record = self.sources.get_or_insert_with(&source, fresh).unwrap_or_else(|never| match never {});
        let Err(refusal) = record.limiter.check() else { return FailureDelay::Waited };
        let Ok(_permit) = self.waiting.try_acquire() else { return FailureDelay::Exhausted };
        let Some(waiter) = Waiter::enter(&record) else { return FailureDelay::Exhausted };
        // Waiting failures are answered one after the other, at the rate at which the allowance is replenished.
        let wait = refusal.wait_time_from(self.clock.elapsed()) + quota.replenish_interval() * waiter.ahead;
        tokio::time::sleep(wait).await;
        // The delayed response uses up the allowance that was replenished during the delay.
        drop(record.limiter.check());
        FailureDelay::Waited
    }
}

/// A waiting failure of one source; dropping it lets the next one in.
struct Waiter<'a> {
    record: &'a Record,
    ahead: u32,
}

impl<'a> Waiter<'a> {
    fn enter(record: &'a Record) -> Option<Self> {
        let more = |waiting| (waiting < MAX_WAITING).then_some(waiting + 1);
        let ahead = record.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self { record, ahead })
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.record.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
