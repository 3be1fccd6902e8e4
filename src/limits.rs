//! How often a key may be used: GCRA, with submits and reads counted apart.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use quick_cache::sync::Cache;

use crate::clock::Clock;
use crate::config::LimitSettings;
use crate::key::ApiKey;
use crate::model::Id;

/// The window that rates are given for.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Keys whose use is remembered at once; a key forgotten starts with a full allowance.
const MAX_KEYS: usize = 100_000;

type Limiter = RateLimiter<NotKeyed, InMemoryState, Clock, StateInformationMiddleware>;

/// What a request counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Creating a task.
    Submit,
    /// Everything else.
    Read,
}

impl Usage {
    /// The name of the limit, as the `RateLimit` headers give it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
        }
    }
}

/// Where a key stands after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Requests a minute.
    pub limit: u32,
    /// Requests left right now.
    pub remaining: u32,
    /// Whole seconds until the request is worth repeating, at least 1; `None` when it was allowed.
    pub retry_after: Option<u64>,
}

impl Allowance {
    /// Whole seconds until all of the limit is available again, if nothing else is asked.
    pub fn seconds_to_full(self) -> u64 {
        let used = u64::from(self.limit - self.remaining.min(self.limit));
        (used * WINDOW.as_secs()).div_ceil(u64::from(self.limit))
    }
}

/// The rate limits of all keys, counted in this process.
pub struct RateLimits {
    clock: Clock,
    submit_rate: u32,
    read_rate: u32,
    limiters: Cache<(Id, Usage), Arc<(u32, Limiter)>>,
}

impl std::fmt::Debug for RateLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimits").field("keys", &self.limiters.len()).finish_non_exhaustive()
    }
}

impl RateLimits {
    /// Limits with the server's defaults.
    pub fn new(settings: &LimitSettings, clock: Clock) -> Self {
        let (submit_rate, read_rate) = (settings.submit_rate, settings.read_rate);
        Self { clock, submit_rate, read_rate, limiters: Cache::new(MAX_KEYS) }
    }

    /// Counts one request; `None` when the key is not limited.
    pub fn count(&self, key: &ApiKey, usage: Usage) -> Option<Allowance> {
        let limit = match usage {
            Usage::Submit => key.submit_rate.unwrap_or(self.submit_rate),
            Usage::Read => key.read_rate.unwrap_or(self.read_rate),
        };
        let quota = Quota::per_minute(NonZeroU32::new(limit)?);
        let entry = (key.id, usage);
        let fresh = || {
            let limiter = RateLimiter::direct_with_clock(quota, self.clock.clone()).with_middleware();
            Arc::new((limit, limiter))
        };
        let mut limiter = self
            .limiters
            .get_or_insert_with(&entry, || Ok::<_, Infallible>(fresh()))
            .unwrap_or_else(|never| match never {});
        if limiter.0 != limit {
            limiter = fresh();
            self.limiters.insert(entry, limiter.clone());
        }
        Some(match limiter.1.check() {
            Ok(state) => Allowance { limit, remaining: state.remaining_burst_capacity(), retry_after: None },
            Err(refusal) => {
                let wait = refusal.wait_time_from(self.clock.elapsed());
                let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
                Allowance { limit, remaining: 0, retry_after: Some(seconds.max(1)) }
            }
        })
    }
}
