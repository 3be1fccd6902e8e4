//! Limits how often something is read from the database for an estimate.

use std::sync::Mutex;
use std::time::Duration;

use tintype_store::Result;
use tintype_system::clock::Clock;
use tintype_system::locked::Locked as _;

/// Shortest and longest interval between two refreshes.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Between these bounds the interval is this many times the duration of the last refresh: reading a queue with many dead
/// tuples is slow, and must not keep the database busy.
const INTERVAL_FACTOR: u32 = 10;

#[derive(Debug)]
pub(super) struct Refresh {
    clock: Clock,
    /// Time of the next refresh; `None` means at once.
    due_at: Mutex<Option<Duration>>,
    /// Held during a refresh.
    running: tokio::sync::Mutex<()>,
}

impl Refresh {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, due_at: Mutex::default(), running: tokio::sync::Mutex::default() }
    }

    /// Runs `query` and passes its result to `store`, if a refresh is due and no other one is running. A failed refresh is
    /// repeated after the interval.
    pub(super) async fn run<T>(&self, query: impl Future<Output = Result<T>>, store: impl FnOnce(T)) {
        let Ok(_running) = self.running.try_lock() else { return };
        let started = self.clock.elapsed();
        if self.due_at.locked().is_some_and(|at| started < at) {
            return;
        }
        let refreshed = query.await;
        let ended = self.clock.elapsed();
        let interval = ended.saturating_sub(started) * INTERVAL_FACTOR;
        *self.due_at.locked() = Some(ended + interval.clamp(MIN_INTERVAL, MAX_INTERVAL));
        match refreshed {
            Ok(refreshed) => store(refreshed),
            Err(error) => {
                tracing::warn!(%error, "could not query the queue; estimates use the last known state until the next refresh");
            }
        }
    }
}
