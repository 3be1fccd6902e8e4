//! How far the server's clock is ahead of this process's.

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
    /// Compares the clocks; returns how far the server's is ahead, in milliseconds.
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
        let ahead = look.ahead(self.ahead.load(Ordering::Relaxed));
        self.ahead.store(ahead, Ordering::Relaxed);
        Ok(ahead)
    }

    async fn look_at_clock(&self) -> Result<Look> {
        let asked = self.clock.elapsed();
        let rows = self.read("SELECT tintype_now(NULL)", &[]).await?;
        let (took, answered) = (self.clock.elapsed().saturating_sub(asked), self.clock.now());
        let theirs: Timestamp = rows[0].try_get(0)?;
        // By the clock that nobody sets, so that one that is set meanwhile spoils nothing.
        let middle = answered.saturating_sub(took / 2);
        Ok(Look { ahead: theirs.as_millis() - middle.as_millis(), took })
    }
}

/// One look at the server's clock.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// How far ahead it was, in milliseconds, if it was read half-way.
    ahead: i64,
    took: Duration,
}

impl Look {
    /// How far the clock is ahead that was taken to be ahead by `known`: an answer that came late and agrees with that says
    /// nothing better.
    fn ahead(self, known: i64) -> i64 {
        let off = Duration::from_millis(self.ahead.abs_diff(known));
        if self.took > QUICK && off <= self.took / 2 { known } else { self.ahead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_counts_only_where_it_contradicts() {
        let look = |ahead, took_ms| Look { ahead, took: Duration::from_millis(took_ms) };
        assert_eq!(look(7, 20).ahead(0), 7);
        assert_eq!(look(-3_000, 6_000).ahead(0), 0, "it may have been read at the end");
        assert_eq!(look(-3_000, 5_000).ahead(0), -3_000, "even so the clock was set");
        assert_eq!(look(3_000, 5_000).ahead(-40), 3_000);
    }
}
