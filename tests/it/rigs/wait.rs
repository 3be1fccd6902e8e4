//! Waiting for what other tasks and processes bring about.

use std::panic::Location;
use std::time::{Duration, Instant};

/// Far longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until a condition holds, and panics with the caller's line if it never does.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "a paused clock passes all patience at once")]
pub fn until(mut is_so: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    let start = Instant::now();
    async move {
        while !is_so().await {
            assert!(start.elapsed() < PATIENCE, "{caller}: the condition did not hold within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
