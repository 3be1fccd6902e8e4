//! Waiting for what other tasks and processes bring about.

use std::fmt::Display;
use std::net::SocketAddr;
use std::panic::Location;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Far longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Keeps the real time: the paused clock of a test passes all patience at once.
static CLOCK: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime"));

/// The outcome of `work`. Panics with `failure` if it never ends.
pub async fn in_time<T>(failure: impl Display, work: impl Future<Output = T>) -> T {
    // Within the task, because a timer belongs to the clock of the runtime that makes it.
    let mut expiry = CLOCK.spawn(async { tokio::time::sleep(PATIENCE).await });
    tokio::select! {
        biased;
        outcome = work => {
            expiry.abort();
            outcome
        }
        _ = &mut expiry => panic!("{failure} within {PATIENCE:?}"),
    }
}

/// The first value that `attempt` returns. Panics with the caller's line if it never returns one.
#[track_caller]
pub fn until_some<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    in_time(format!("{}: the condition did not hold", Location::caller()), async move {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}

/// Waits until a condition holds, and panics with the caller's line if it never does or never says.
#[track_caller]
pub fn until(mut is_so: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    until_some(async move || is_so().await.then_some(()))
}

/// Work that runs until it is told to stop.
pub struct Background {
    pub stop: CancellationToken,
    run: JoinHandle<()>,
}

impl Background {
    pub fn of<F: Future<Output = ()> + Send + 'static>(run: impl FnOnce(CancellationToken) -> F) -> Self {
        let stop = CancellationToken::new();
        Self { run: tokio::spawn(run(stop.clone())), stop }
    }

    pub async fn end(self) {
        self.stop.cancel();
        in_time("it did not end", self.run).await.expect("no panic");
    }
}

/// Listens at an address where this process may have listened before. A child that another test forks has that listener
/// too, until it becomes another program.
#[track_caller]
pub fn listen_again(address: SocketAddr) -> impl Future<Output = TcpListener> {
    until_some(async move || TcpListener::bind(address).await.ok())
}
