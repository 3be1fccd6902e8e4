//! Limits of concurrent downloads, per host and per account.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use tintype_system::locked::Locked as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Concurrent downloads from one host: the number of references of one task.
pub(super) const MAX_PER_HOST: usize = 4;
/// Concurrent downloads for one account: the number of references of one task, a quarter of all downloads.
pub const MAX_PER_ACCOUNT: usize = 4;

/// A number of slots for each owner, which is a host or an account.
#[derive(Debug)]
pub(super) struct Slots<K> {
    each: usize,
    owners: Mutex<HashMap<K, Arc<Semaphore>>>,
}

impl<K: Eq + Hash> Slots<K> {
    pub(super) fn new(each: usize) -> Self {
        Self { each, owners: Mutex::default() }
    }

    pub(super) async fn take(&self, owner: impl Into<K>) -> OwnedSemaphorePermit {
        let slots = {
            let mut owners = self.owners.locked();
            // An owner that only this map references has no holder and no waiter.
            owners.retain(|_, slots| Arc::strong_count(slots) > 1);
            owners.entry(owner.into()).or_insert_with(|| Arc::new(Semaphore::new(self.each))).clone()
        };
        slots.acquire_owned().await.expect("the semaphore is never closed")
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.owners.locked().len()
    }
}
