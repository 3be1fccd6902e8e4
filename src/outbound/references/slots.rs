//! How many downloads go on at a time from one host, and for one account.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Downloads from one host at a time: as many as one task may ask of it.
pub(super) const MAX_PER_HOST: usize = 4;
/// Downloads for one account at a time: as many as one task has, and a part of all there may be.
pub(super) const MAX_PER_ACCOUNT: usize = 4;

/// So many slots for each host, or account, that something is downloaded from or for.
#[derive(Debug)]
pub(super) struct Slots<K> {
    each: usize,
    owners: Mutex<HashMap<K, Arc<Semaphore>>>,
}

impl<K: Eq + Hash> Slots<K> {
    /// With `each` slots for each owner.
    pub(super) fn new(each: usize) -> Self {
        Self { each, owners: Mutex::default() }
    }

    /// Waits for a slot of `owner`, which dropping gives back.
    pub(super) async fn take(&self, owner: impl Into<K>) -> OwnedSemaphorePermit {
        let slots = {
            let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody holds or awaits a slot that only this map knows.
            owners.retain(|_, slots| Arc::strong_count(slots) > 1);
            owners.entry(owner.into()).or_insert_with(|| Arc::new(Semaphore::new(self.each))).clone()
        };
        slots.acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Owners that are known at the moment.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
