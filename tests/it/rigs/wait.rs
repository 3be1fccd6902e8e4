//! Waiting for what other tasks and processes bring about.

use std::time::Duration;

/// Far longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until a condition holds. The caller sets a time limit.
pub async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a condition holds, and panics if it never does.
pub async fn eventually(what: &str, is_so: impl AsyncFnMut() -> bool) {
    tokio::time::timeout(PATIENCE, until(is_so)).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}
