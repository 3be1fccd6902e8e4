//! Rate limits of one kind for many callers, counted in this process by the generic cell rate algorithm (GCRA).

use std::convert::Infallible;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use quick_cache::sync::Cache;

use tintype_system::clock::Clock;

/// Most callers kept in memory. One that is evicted starts with a full allowance.
const MAX_CALLERS: usize = 100_000;

#[derive(Debug)]
pub(super) struct Limiters<K, N = ()> {
    clock: Clock,
    callers: Cache<K, Arc<Limiter<N>>>,
}

/// The limiter of one caller, and a note on it.
#[derive(Debug)]
pub(super) struct Limiter<N> {
    quota: Quota,
    rate: RateLimiter<NotKeyed, InMemoryState, Clock, StateInformationMiddleware>,
    pub(super) note: N,
}

impl<K: Eq + Hash + Clone, N: Default> Limiters<K, N> {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, callers: Cache::new(MAX_CALLERS) }
    }

    /// The limiter of a caller: a new one if it has none with this quota.
    pub(super) fn of(&self, caller: &K, quota: Quota) -> Arc<Limiter<N>> {
        let fresh = || {
            let rate = RateLimiter::direct_with_clock(quota, self.clock.clone()).with_middleware();
            Arc::new(Limiter { quota, rate, note: N::default() })
        };
        let known = self.callers.get_or_insert_with(caller, || Ok::<_, Infallible>(fresh()));
        let known = known.unwrap_or_else(|never| match never {});
        if known.quota == quota {
            return known;
        }
        let changed = fresh();
        self.callers.insert(caller.clone(), changed.clone());
        changed
    }

    pub(super) fn find(&self, caller: &K) -> Option<Arc<Limiter<N>>> {
        self.callers.get(caller)
    }

    pub(super) fn forget(&self, caller: &K) {
        self.callers.remove(caller);
    }
}

impl<N> Limiter<N> {
    /// Counts once. Returns how often more would be allowed right now.
    ///
    /// # Errors
    /// The wait until it is allowed.
    pub(super) fn count(&self) -> Result<u32, Duration> {
        let refused = |refusal: governor::NotUntil<_>| refusal.wait_time_from(self.rate.clock().elapsed());
        self.rate.check().map(|state| state.remaining_burst_capacity()).map_err(refused)
    }
}
