//! The clock of the server, estimated by this process: it reads the server's time and advances it with its own
//! monotonic clock. Setting the clock of this machine therefore has no effect.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::connection::Database;
use crate::clock::Timestamp;
use crate::store::Result;

/// A response within this time is precise enough: its error is at most half of it.
const PRECISE_WITHIN: Duration = Duration::from_millis(100);
/// Readings of the server's clock per comparison; the fastest one counts.
const READINGS: u32 = 3;

impl Database {
    /// Estimate of the server's time.
    pub(super) fn now(&self) -> Timestamp {
        if self.clock.is_manual() {
            return self.clock.now();
        }
        Timestamp::from_millis(self.origin.load(Ordering::Relaxed)).saturating_add(self.clock.elapsed())
    }

    /// Reads the server's clock; returns by how many milliseconds it is ahead of the clock of this machine.
    pub(super) async fn compare_clocks(&self) -> Result<i64> {
        if self.clock.is_manual() {
            return Ok(0);
        }
        let mut reading = self.read_clock().await?;
        for _ in 1..READINGS {
            if reading.took <= PRECISE_WITHIN {
                break;
            }
            let another = self.read_clock().await?;
            if another.took < reading.took {
                reading = another;
            }
        }
        let origin = reading.origin(self.origin.load(Ordering::Relaxed));
        self.origin.store(origin, Ordering::Relaxed);
        Ok(self.now().as_millis() - self.clock.now().as_millis())
    }

    async fn read_clock(&self) -> Result<Reading> {
        let sent = self.clock.elapsed();
        let rows = self.read("SELECT tintype_now(NULL)", &[]).await?;
        let took = self.clock.elapsed().saturating_sub(sent);
        let theirs: Timestamp = rows[0].try_get(0)?;
        Ok(Reading { origin: theirs.saturating_sub(sent + took / 2).as_millis(), took })
    }
}

/// One reading of the server's clock.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// The server's time in milliseconds at the start of this process's monotonic clock, if the server read its clock
    /// half-way through the request.
    origin: i64,
    took: Duration,
}

impl Reading {
    /// The new origin. A slow reading that is consistent with the `known` origin does not improve it.
    fn origin(self, known: i64) -> i64 {
        let off = Duration::from_millis(self.origin.abs_diff(known));
        if self.took > PRECISE_WITHIN && off <= self.took / 2 { known } else { self.origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reading_counts_only_if_it_contradicts_the_known_origin() {
        let reading = |origin, took_ms| Reading { origin, took: Duration::from_millis(took_ms) };
        assert_eq!(reading(7, 20).origin(0), 7);
        assert_eq!(reading(-3_000, 6_000).origin(0), 0, "the clock may have been read at the end");
        assert_eq!(reading(-3_000, 5_000).origin(0), -3_000, "the clock must have been set");
        assert_eq!(reading(3_000, 5_000).origin(-40), 3_000);
    }
}
