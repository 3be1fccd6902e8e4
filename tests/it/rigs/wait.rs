//! Waiting for what other tasks and processes bring about.

use std::panic::Location;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use tokio::sync::oneshot;

/// Far longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until a condition holds, and panics with the caller's line if it never does or never says.
#[track_caller]
pub fn until(mut is_so: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    // By the real clock, because a paused one passes all patience at once.
    let (waits, ends) = channel::<()>();
    let (expire, expired) = oneshot::channel();
    std::thread::spawn(move || {
        if ends.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            _ = expire.send(());
        }
    });
    async move {
        let _waits = waits;
        let holds = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            biased;
            () = holds => {}
            Ok(()) = expired => panic!("{caller}: the condition did not hold within {PATIENCE:?}"),
        }
    }
}
