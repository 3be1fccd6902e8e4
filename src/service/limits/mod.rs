//! Rate limits per key and, for tasks of the studio, per person, by the generic cell rate algorithm (GCRA), with separate limits for submits and reads. Redis
//! counts for all processes together; without Redis each process counts on its own.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use quick_cache::sync::Cache;

use crate::clock::Clock;
use crate::config::{LimitSettings, RedisServer};
use crate::domain::key::ApiKey;
use crate::domain::model::Id;

mod shared;

use self::shared::SharedLimits;

/// The period that rates refer to.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Webhooks that the owners of an account may send by hand in that time. Each is kept for a week, and costs nothing.
const WEBHOOKS: u32 = 30;
/// Reports that a person may ask for in that time. Each reads the ledger of the account.
const REPORTS: u32 = 30;
/// Most limiters kept in memory. A key or a person whose limiter is evicted starts with a full allowance.
const MAX_KEYS: usize = 100_000;

type Limiter = RateLimiter<NotKeyed, InMemoryState, Clock, StateInformationMiddleware>;

/// The limit that a request counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Creating a task.
    Submit,
    /// Everything else.
    Read,
}

impl Usage {
    /// The name of the limit in the `RateLimit` headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
        }
    }
}

/// State of a key's limit after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Requests per minute.
    pub limit: u32,
    /// Requests that would be allowed right now.
    pub remaining: u32,
    /// Whole seconds to wait before the request can be repeated, at least 1; `None` if it was allowed.
    pub retry_after: Option<u64>,
    /// Whether this process counted on its own because Redis was unavailable.
    pub fallback: bool,
}

impl Allowance {
    fn allowed(limit: u32, remaining: u32) -> Self {
        Self { limit, remaining, retry_after: None, fallback: false }
    }

    fn refused(limit: u32, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Self { limit, remaining: 0, retry_after: Some(seconds.max(1)), fallback: false }
    }

    /// Whole seconds until the full limit is available again if no further request arrives.
    pub fn seconds_to_full(self) -> u64 {
        let used = u64::from(self.limit - self.remaining.min(self.limit));
        (used * WINDOW.as_secs()).div_ceil(u64::from(self.limit))
    }
}

/// The rate limits of all keys and people.
pub struct RateLimits {
    clock: Clock,
    submit_rate: u32,
    read_rate: u32,
    shared: Option<SharedLimits>,
    limiters: Cache<(Id, Usage), Arc<(u32, Limiter)>>,
}

impl std::fmt::Debug for RateLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("RateLimits");
        debug.field("shared", &self.shared).field("keys", &self.limiters.len()).finish_non_exhaustive()
    }
}

impl RateLimits {
    /// Creates the limits with the server's defaults. `redis` counts them whenever it is reachable.
    ///
    /// # Errors
    /// A sentence for the operator: the settings are invalid. An unreachable Redis is not an error.
    pub async fn open(settings: &LimitSettings, redis: Option<&RedisServer>, clock: Clock) -> Result<Self, String> {
        let shared = match redis {
            Some(redis) => Some(SharedLimits::open(redis, clock.clone()).await?),
            None => None,
        };
        let (submit_rate, read_rate) = (settings.submit_rate, settings.read_rate);
        Ok(Self { clock, submit_rate, read_rate, shared, limiters: Cache::new(MAX_KEYS) })
    }

    /// Host and port of the Redis server, if one is configured.
    pub fn redis(&self) -> Option<&str> {
        self.shared.as_ref().map(SharedLimits::name)
    }

    /// Whether Redis counts now.
    pub fn are_shared(&self) -> bool {
        self.shared.as_ref().is_some_and(SharedLimits::is_up)
    }

    /// Requests per minute that a key may send; `None` if it is not limited.
    pub fn of(&self, key: &ApiKey, usage: Usage) -> Option<u32> {
        let limit = match usage {
            Usage::Submit => key.submit_rate.unwrap_or(self.submit_rate),
            Usage::Read => key.read_rate.unwrap_or(self.read_rate),
        };
        (limit > 0).then_some(limit)
    }

    /// Counts one request; `None` if the key is not limited.
    pub async fn count(&self, key: &ApiKey, usage: Usage) -> Option<Allowance> {
        self.count_under(key.id, usage, self.of(key, usage)?).await
    }

    /// Counts one task that a person creates in the studio, against the default limit of submits; `None` if there is none.
    pub async fn count_person(&self, person_id: Id) -> Option<Allowance> {
        self.count_under(person_id, Usage::Submit, self.submit_rate).await
    }

    /// Counts one test of an endpoint, or one delivery that is sent again, by an owner of the account in the studio.
    pub async fn count_webhook(&self, account_id: Id) -> Option<Allowance> {
        self.count_under(account_id, Usage::Submit, WEBHOOKS).await
    }

    /// Counts one report that a person asks for in the studio.
    pub async fn count_report(&self, person_id: Id) -> Option<Allowance> {
        self.count_under(person_id, Usage::Read, REPORTS).await
    }

    async fn count_under(&self, id: Id, usage: Usage, limit: u32) -> Option<Allowance> {
        let quota = Quota::per_minute(NonZeroU32::new(limit)?);
        let Some(shared) = &self.shared else { return Some(self.count_locally(id, usage, quota)) };
        Some(match shared.count(id, usage, quota).await {
            Some(count) if count.wait.is_zero() => Allowance::allowed(limit, count.remaining),
            Some(count) => Allowance::refused(limit, count.wait),
            None => Allowance { fallback: true, ..self.count_locally(id, usage, quota) },
        })
    }

    fn count_locally(&self, id: Id, usage: Usage, quota: Quota) -> Allowance {
        let limit = quota.burst_size().get();
        let entry = (id, usage);
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
        match limiter.1.check() {
            Ok(state) => Allowance::allowed(limit, state.remaining_burst_capacity()),
            Err(refusal) => Allowance::refused(limit, refusal.wait_time_from(self.clock.elapsed())),
        }
    }
}

/// Tests a Redis server; returns its address and response time as text.
///
/// # Errors
/// A sentence for the operator.
pub async fn probe(redis: &RedisServer) -> Result<String, String> {
    shared::probe(redis).await
}
