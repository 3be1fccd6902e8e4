//! The clock of the server, estimated by this process: it reads the server's time and advances it with its own
//! monotonic clock. Setting the clock of this machine therefore has no effect.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::connection::Database;
use crate::clock::Timestamp;
use crate::store::Result;

/// A response within this time is precise enough: its error is at most half of it.
const PRECISE_WITHIN: Duration = Duration::from_millis(100);

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
        let sent = self.clock.elapsed();
        let rows = self.read("SELECT tintype_now(NULL)", &[]).await?;
        let took = self.clock.elapsed().saturating_sub(sent);
        let theirs: Timestamp = rows[0].try_get(0)?;
        // As if the server had read its clock half-way through the request.
        let reading = theirs.saturating_sub(sent + took / 2).as_millis();
        self.origin.store(better(self.origin.load(Ordering::Relaxed), reading, took), Ordering::Relaxed);
        Ok(self.now().as_millis() - self.clock.now().as_millis())
    }
}

/// The better of two origins. A slow reading that is consistent with the known origin does not improve it.
fn better(known: i64, reading: i64, took: Duration) -> i64 {
    let off = Duration::from_millis(reading.abs_diff(known));
    if took > PRECISE_WITHIN && off <= took / 2 { known } else { reading }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reading_counts_only_if_it_contradicts_the_known_origin() {
        let reading = |known, reading, took_ms| better(known, reading, Duration::from_millis(took_ms));
        assert_eq!(reading(0, 7, 20), 7);
        assert_eq!(reading(0, -3_000, 6_000), 0, "the clock may have been read at the end");
        assert_eq!(reading(0, -3_000, 5_000), -3_000, "the clock must have been set");
        assert_eq!(reading(-40, 3_000, 5_000), 3_000);
    }
}
