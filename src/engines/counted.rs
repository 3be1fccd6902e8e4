//! The number of renders that a server has.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a render while it lasts.
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    pub(super) fn new(renders: &'a AtomicUsize) -> Self {
        renders.fetch_add(1, Ordering::SeqCst);
        Self(renders)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
