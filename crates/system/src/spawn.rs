//! Starts work on tokio, which compiles its hundred functions that drive a task again for each type of future or closure.
//! In a box all have one type: the service has 4,000 functions less to compile.

use std::pin::Pin;

use tokio::task::JoinHandle;

/// [`tokio::spawn`].
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
    tokio::spawn(work)
}

/// [`tokio::task::spawn_blocking`].
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(work)
}
