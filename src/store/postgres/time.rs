//! The server's time as a process keeps it: it was told it once, and goes on from there by a clock that nobody sets. So
//! setting the clock of this machine changes nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::connection::Database;
use crate::clock::Timestamp;
use crate::store::Result;

/// An answer that took no longer tells the time well enough: it is wrong by half of that at most.
const QUICK: Duration = Duration::from_millis(100);
/// Looks at the server's clock for one comparison, of which the quickest counts.
const LOOKS: u32 = 3;

impl Database {
    /// The server's time as well as this process knows it.
    pub(super) fn now(&self) -> Timestamp {
        if self.clock.is_manual() {
            return self.clock.now();
        }
        Timestamp::from_millis(self.origin.load(Ordering::Relaxed)).saturating_add(self.clock.elapsed())
    }

    /// Asks the server for its time; returns how far it is ahead of what the clock of this machine shows, in milliseconds.
    pub(super) async fn compare_clocks(&self) -> Result<i64> {
        if self.clock.is_manual() {
            return Ok(0);
        }
        let mut look = self.look_at_clock().await?;
        for _ in 1..LOOKS {
            if look.took <= QUICK {
                break;
            }
            let another = self.look_at_clock().await?;
            if another.took < look.took {
                look = another;
            }
        }
        let origin = look.origin(self.origin.load(Ordering::Relaxed));
        self.origin.store(origin, Ordering::Relaxed);
        Ok(self.now().as_millis() - self.clock.now().as_millis())
    }

    async fn look_at_clock(&self) -> Result<Look> {
        let asked = self.clock.elapsed();
        let rows = self.read("SELECT tintype_now(NULL)", &[]).await?;
        let took = self.clock.elapsed().saturating_sub(asked);
        let theirs: Timestamp = rows[0].try_get(0)?;
        Ok(Look { origin: theirs.saturating_sub(asked + took / 2).as_millis(), took })
    }
}

/// One look at the server's clock.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// What it showed when this process's clock began, if it was read half-way, in milliseconds.
    origin: i64,
    took: Duration,
}

impl Look {
    /// What it showed then, having been known as `known`: an answer that came late and agrees with that says nothing
    /// better.
    fn origin(self, known: i64) -> i64 {
        let off = Duration::from_millis(self.origin.abs_diff(known));
        if self.took > QUICK && off <= self.took / 2 { known } else { self.origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_counts_only_where_it_contradicts() {
        let look = |origin, took_ms| Look { origin, took: Duration::from_millis(took_ms) };
        assert_eq!(look(7, 20).origin(0), 7);
        assert_eq!(look(-3_000, 6_000).origin(0), 0, "it may have been read at the end");
        assert_eq!(look(-3_000, 5_000).origin(0), -3_000, "even so the clock was set");
        assert_eq!(look(3_000, 5_000).origin(-40), 3_000);
    }
}
