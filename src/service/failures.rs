//! Slows down who fails to authenticate again and again.
//!
//! Every failure gets the same answer; past an allowance for each source it only comes later, and ever
//! later while more of them wait. Good keys never wait: whether a key is good is known before.

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

use crate::clock::Clock;
use crate::domain::source::Source;

/// Failures a minute that a source may have without a wait, all at once if it likes.
pub const ALLOWANCE: NonZeroU32 = NonZeroU32::new(300).expect("300 is not 0");
/// Failures of one source that wait at once; more are not worth a connection.
pub const MAX_WAITING: u32 = 8;
/// Failures of all sources that wait at once.
const MAX_WAITING_IN_ALL: usize = 1_024;
/// Sources remembered at once; one forgotten starts with a full allowance.
const MAX_SOURCES: usize = 100_000;

type Limiter = RateLimiter<NotKeyed, InMemoryState, Clock, NoOpMiddleware<Duration>>;

/// The failures of all sources, counted in this process.
pub struct Failures {
    clock: Clock,
    sources: Cache<Source, Arc<Record>>,
    waiting: Semaphore,
}

struct Record {
    limiter: Limiter,
    waiting: AtomicU32,
}

/// How long one failure has to wait for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// It has waited as long as it should.
    Waited,
    /// Too many wait already: the connection is to end with the answer.
    Exhausted,
}

impl std::fmt::Debug for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failures").field("sources", &self.sources.len()).finish_non_exhaustive()
    }
}

impl Failures {
    /// Nobody has failed yet.
    pub fn new(clock: Clock) -> Self {
        Self { clock, sources: Cache::new(MAX_SOURCES), waiting: Semaphore::new(MAX_WAITING_IN_ALL) }
    }

    /// Counts one failure and waits until it may be answered.
    pub async fn hold(&self, source: Source) -> Patience {
        let quota = Quota::per_minute(ALLOWANCE);
        let fresh = || {
            let limiter = RateLimiter::direct_with_clock(quota, self.clock.clone());
            Ok::<_, Infallible>(Arc::new(Record { limiter, waiting: AtomicU32::new(0) }))
        };
        let record = self.sources.get_or_insert_with(&source, fresh).unwrap_or_else(|never| match never {});
        let Err(refusal) = record.limiter.check() else { return Patience::Waited };
        let Ok(_permit) = self.waiting.try_acquire() else { return Patience::Exhausted };
        let Some(turn) = Turn::take(&record) else { return Patience::Exhausted };
        // One after the other, as fast as the allowance comes back.
        let wait = refusal.wait_time_from(self.clock.elapsed()) + quota.replenish_interval() * turn.ahead;
        tokio::time::sleep(wait).await;
        // This wait has used up what came back meanwhile.
        drop(record.limiter.check());
        Patience::Waited
    }
}

/// A place among the failures of one source that wait.
struct Turn<'a> {
    record: &'a Record,
    ahead: u32,
}

impl<'a> Turn<'a> {
    fn take(record: &'a Record) -> Option<Self> {
        let more = |waiting| (waiting < MAX_WAITING).then_some(waiting + 1);
        let ahead = record.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self { record, ahead })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.record.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
