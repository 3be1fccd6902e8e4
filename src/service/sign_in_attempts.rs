//! Limits attempts to sign in with one name, from wherever they come.
//!
//! The limit per source in [`super::auth_throttle`] doesn't slow down guesses from many addresses. Unknown names are counted
//! too, so that a rejection reveals nothing. An attacker who keeps guessing locks no one out: a source that the person
//! has signed in from has a separate allowance, and a sign-in link needs none.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::Quota;

use super::limiters::Limiters;
use tintype_domain::source::Source;
use tintype_system::clock::Clock;

/// Attempts per minute with one name, even all at once.
pub const ALLOWANCE: NonZeroU32 = NonZeroU32::new(10).expect("10 is not 0");
/// Codes that someone may type at once, for one person.
pub const CODE_ALLOWANCE: NonZeroU32 = NonZeroU32::new(10).expect("10 is not 0");
/// Interval at which another code is allowed then. A code has six digits, and three codes are right at any time, so a
/// day of guessing finds one with a probability of 0.1 %.
const CODE_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Attempts to sign in with a password, counted in this process.
#[derive(Debug)]
pub struct SignInAttempts {
    quota: Quota,
    names: Limiters<String>,
    /// Sources from which the person of that name has signed in.
    known: Limiters<(String, Source)>,
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
        Self { quota, names: Limiters::new(clock.clone()), known: Limiters::new(clock) }
    }

    /// Forgets the attempts with a name, after one that was right.
    pub fn forget(&self, name: &str) {
        self.names.forget(&name.to_owned());
    }

    /// Counts an attempt before its password is checked, and returns whether it can proceed.
    pub fn allow(&self, name: &str, source: Option<Source>) -> bool {
        let name = name.to_owned();
        let known = source.and_then(|source| self.known.find(&(name.clone(), source)));
        known.unwrap_or_else(|| self.names.of(&name, self.quota)).count().is_ok()
    }

    /// Gives the source of a sign-in a separate allowance for this name.
    pub fn signed_in(&self, name: &str, source: Option<Source>) {
        let Some(source) = source else { return };
        drop(self.known.of(&(name.to_owned(), source), self.quota));
    }
}
