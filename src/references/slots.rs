//! How many downloads go to one host at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Downloads from one host at a time: as many as one task may ask of it.
pub(super) const MAX_PER_HOST: usize = 4;

/// Slots for every host that is being downloaded from.
#[derive(Debug, Default)]
pub(super) struct HostSlots {
    hosts: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl HostSlots {
    /// Waits for a slot of `host`, which dropping gives back.
    pub(super) async fn take(&self, host: &str) -> OwnedSemaphorePermit {
        let slots = {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody holds or awaits a slot that only this map knows.
            hosts.retain(|_, slots| Arc::strong_count(slots) > 1);
            hosts.entry(host.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(MAX_PER_HOST))).clone()
        };
        slots.acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Hosts that are known at the moment.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
