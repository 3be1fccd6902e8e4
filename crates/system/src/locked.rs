//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex whose holders leave its value valid even when they panic: one thread's panic must not stop all others.
pub trait Locked<T> {
    /// Waits for the value, and holds it.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
