//! Delays responses to sources that fail to authenticate repeatedly.
//!
//! Every failure gets the same response. Beyond an allowance per source the response is delayed, and the more failures
//! of that source wait, the longer the delay. Requests with a valid key never wait: the key is checked first.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use governor::Quota;
use tokio::sync::Semaphore;

use super::limiters::Limiters;
use tintype_domain::source::Source;
use tintype_system::clock::Clock;

/// Failures per minute of one source without a delay, even all at once.
pub const ALLOWANCE: NonZeroU32 = NonZeroU32::new(300).expect("300 is not 0");
/// Most failures of one source that wait at the same time. Further failures close their connections.
pub const MAX_WAITING: u32 = 8;
/// Most failures of all sources that wait at the same time.
const MAX_WAITING_IN_ALL: usize = 1_024;

/// Failed authentications per source, counted in this process.
#[derive(Debug)]
pub struct AuthThrottle {
    /// Beside each limiter is the number of failures that wait.
    sources: Limiters<Source, AtomicU32>,
    waiting: Semaphore,
}

/// How to answer a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureDelay {
    /// The delay, if any, is over: answer.
    Waited,
    /// Too many failures are waiting: answer at once and close the connection.
    Exhausted,
}

impl AuthThrottle {
    /// Creates a counter without failures.
    pub fn new(clock: Clock) -> Self {
        Self { sources: Limiters::new(clock), waiting: Semaphore::new(MAX_WAITING_IN_ALL) }
    }

    /// Counts one failure and waits out its delay.
    pub async fn delay(&self, source: Source) -> FailureDelay {
        let quota = Quota::per_minute(ALLOWANCE);
        let limiter = self.sources.of(&source, quota);
        let Err(wait) = limiter.count() else { return FailureDelay::Waited };
        let Ok(_permit) = self.waiting.try_acquire() else { return FailureDelay::Exhausted };
        let Some(waiter) = Waiter::enter(&limiter.note) else { return FailureDelay::Exhausted };
        // Waiting failures are answered one after the other, at the rate at which the allowance is replenished.
        tokio::time::sleep(wait + quota.replenish_interval() * waiter.ahead).await;
        // The delayed response uses up the allowance that was replenished during the delay.
        let _ = limiter.count();
        FailureDelay::Waited
    }
}

/// A waiting failure of one source; dropping it lets the next one in.
struct Waiter<'a> {
    waiting: &'a AtomicU32,
    ahead: u32,
}

impl<'a> Waiter<'a> {
    fn enter(waiting: &'a AtomicU32) -> Option<Self> {
        let more = |waiters| (waiters < MAX_WAITING).then_some(waiters + 1);
        let ahead = waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self { waiting, ahead })
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
