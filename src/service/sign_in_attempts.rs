//! Limits attempts to sign in with one name, from wherever they come.
//!
//! The limit per source in [`super::failures`] does not slow a guess that is spread over many addresses. Names that do
//! not exist are counted too, so that a refusal reveals nothing. A stranger who keeps guessing locks no one out: a
//! source from which the person has signed in has an allowance of its own, and a sign-in link needs none.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use quick_cache::sync::Cache;

use tintype_domain::source::Source;
use tintype_system::clock::Clock;

/// Attempts per minute with one name, even all at once.
pub const ALLOWANCE: NonZeroU32 = NonZeroU32::new(10).expect("10 is not 0");
/// Most names kept in memory, and most sources of people. One that is evicted starts with a full allowance.
const MAX_NAMES: usize = 100_000;
/// Codes that someone may type at once, for one person.
pub const CODE_ALLOWANCE: NonZeroU32 = NonZeroU32::new(10).expect("10 is not 0");
/// Interval at which another code is allowed then. A code has six digits, of which three are right at any time, so guesses
/// that go on for a day find one with a probability of 0.1 %.
const CODE_INTERVAL: Duration = Duration::from_secs(5 * 60);

type Limiter = Arc<RateLimiter<NotKeyed, InMemoryState, Clock, NoOpMiddleware<Duration>>>;

/// Attempts to sign in with a password, counted in this process.
pub struct SignInAttempts {
    clock: Clock,
    quota: Quota,
    names: Cache<String, Limiter>,
    /// Sources from which the person of that name has signed in.
    known: Cache<(String, Source), Limiter>,
}

impl std::fmt::Debug for SignInAttempts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignInAttempts").field("names", &self.names.len()).finish_non_exhaustive()
    }
}

impl SignInAttempts {
    /// Creates a counter without attempts.
    pub fn new(clock: Clock) -> Self {
        Self::with(clock, Quota::per_minute(ALLOWANCE))
    }

    /// Creates a counter for codes of second factors, by the ids of people, who have shown a password before.
    pub fn of_codes(clock: Clock) -> Self {
        let quota = Quota::with_period(CODE_INTERVAL).expect("an interval is not 0");
        Self::with(clock, quota.allow_burst(CODE_ALLOWANCE))
    }

    fn with(clock: Clock, quota: Quota) -> Self {
        Self { clock, quota, names: Cache::new(MAX_NAMES), known: Cache::new(MAX_NAMES) }
    }

    /// Forgets the attempts with a name, after one that was right.
    pub fn forget(&self, name: &str) {
        self.names.remove(name);
    }

    /// Counts one attempt, before the password is looked at, and says whether it may go on.
    pub fn allow(&self, name: &str, source: Option<Source>) -> bool {
        let known = source.and_then(|source| self.known.get(&(name.to_owned(), source)));
        let limiter = known.unwrap_or_else(|| {
            let fresh = || Ok::<_, Infallible>(self.limiter());
            self.names.get_or_insert_with(name, fresh).unwrap_or_else(|never| match never {})
        });
        limiter.check().is_ok()
    }

    /// Gives the source of a sign-in an allowance of its own for this name.
    pub fn signed_in(&self, name: &str, source: Option<Source>) {
        let Some(source) = source else { return };
        let fresh = || Ok::<_, Infallible>(self.limiter());
        drop(self.known.get_or_insert_with(&(name.to_owned(), source), fresh));
    }

    fn limiter(&self) -> Limiter {
        Arc::new(RateLimiter::direct_with_clock(self.quota, self.clock.clone()))
    }
}
