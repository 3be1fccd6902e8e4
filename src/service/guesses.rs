//! Limits how often passwords are tried with one name, also if each try comes from another address.
//!
//! A source from which the person signed in before has an allowance of its own, so that a stranger who uses up that of
//! everybody else keeps nobody out. Names that nobody has are counted alike: a refusal does not tell which names exist.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;

use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use quick_cache::sync::Cache;

use crate::clock::Clock;
use crate::domain::source::Source;

/// Tries per hour with one name, even all at once.
pub const ALLOWANCE: NonZeroU32 = NonZeroU32::new(30).expect("30 is not 0");
/// Most allowances, and most sources of people, that are kept in memory. One that is evicted starts anew.
const MAX_KEPT: usize = 100_000;

type Limiter = RateLimiter<NotKeyed, InMemoryState, Clock, NoOpMiddleware<std::time::Duration>>;

/// The tries of passwords in this process.
pub struct Guesses {
    clock: Clock,
    /// By name, and by the source if the person is known there.
    allowances: Cache<(String, Option<Source>), Arc<Limiter>>,
    known: Cache<(String, Source), ()>,
}

impl std::fmt::Debug for Guesses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guesses").field("names", &self.allowances.len()).finish_non_exhaustive()
    }
}

impl Guesses {
    /// Creates a counter without tries.
    pub fn new(clock: Clock) -> Self {
        Self { clock, allowances: Cache::new(MAX_KEPT), known: Cache::new(MAX_KEPT) }
    }

    /// Counts a try and tells whether the password may be looked at.
    pub fn admit(&self, name: &str, source: Option<Source>) -> bool {
        let known = source.filter(|source| self.known.get(&(name.to_owned(), *source)).is_some());
        let fresh = || {
            let limiter = RateLimiter::direct_with_clock(Quota::per_hour(ALLOWANCE), self.clock.clone());
            Ok::<_, Infallible>(Arc::new(limiter))
        };
        let limiter = self.allowances.get_or_insert_with(&(name.to_owned(), known), fresh);
        limiter.unwrap_or_else(|never| match never {}).check().is_ok()
    }

    /// Remembers that the person of a name signed in from a source.
    pub fn succeeded(&self, name: &str, source: Option<Source>) {
        if let Some(source) = source {
            self.known.insert((name.to_owned(), source), ());
        }
    }
}
