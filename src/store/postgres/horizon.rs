//! The horizon: a lower bound of the ids of unfinished tasks, so that statements pass over few dead tuples of the queue.
//!
//! Vacuum removes no dead tuple while a reader keeps an old snapshot, such as a backup. Each task leaves some in the
//! queue, and a scan from the beginning would read all of them. The horizon is only an estimate: a task below it that
//! comes late, after its process was frozen, waits until the next reading includes it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::connection::Database;
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::store::Result;

/// Time between two readings.
pub(super) const EVERY: Duration = Duration::from_secs(10);
/// Age up to which new tasks may still appear: longer than a submit may wait for its statement.
const MARGIN: Duration = Duration::from_secs(10);

impl Database {
    /// The lowest id that statements look at.
    pub(super) fn horizon(&self) -> Id {
        Id::floor(Timestamp::from_millis(self.horizon_ms.load(Ordering::Relaxed)))
    }

    /// Reads the oldest unfinished task, among any number of dead tuples, and moves the horizon before it. Tests that
    /// move the clock have no horizon.
    pub(super) async fn read_horizon(&self) -> Result<()> {
        if self.clock.is_manual() {
            return Ok(());
        }
        let now = self.now();
        let row = self.read_one("SELECT min(task_id) FROM queue", &[]).await?;
        let oldest: Option<Id> = row.map(|row| row.try_get(0)).transpose()?.flatten();
        let oldest = oldest.map_or(now, |id| id.timestamp().min(now));
        self.horizon_ms.store(oldest.saturating_sub(MARGIN).as_millis(), Ordering::Relaxed);
        Ok(())
    }
}
