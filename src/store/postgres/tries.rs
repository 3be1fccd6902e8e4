//! When another connection is worth a try.

use std::time::Duration;

use super::connection::{Failure, MAX_CONNECTIONS, PATIENCE};
use crate::clock::Clock;

/// How long, and how often, what a broken connection failed is tried on others.
pub(super) struct Tries<'a> {
    clock: &'a Clock,
    begun: Duration,
    left: usize,
}

impl<'a> Tries<'a> {
    pub(super) fn begin(clock: &'a Clock) -> Self {
        // All of a pool may be broken, and the next connection is a new one.
        Self { clock, begun: clock.elapsed(), left: MAX_CONNECTIONS + 1 }
    }

    /// Whether another try is worth it.
    pub(super) fn again_after(&mut self, failure: &Failure) -> bool {
        let is_broken = matches!(failure, Failure::Unknown(_));
        let waited = self.clock.elapsed().saturating_sub(self.begun);
        let again = is_broken && waited < PATIENCE && self.left > 0;
        self.left = self.left.saturating_sub(1);
        again
    }
}
