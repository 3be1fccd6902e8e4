//! The render slots: so many tasks are drawn at a time.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// A run of a worker, or a step: its slots, and what ends it.
#[derive(Debug, Clone)]
pub(super) struct Shift {
    slots: Arc<Semaphore>,
    pub(super) stop: CancellationToken,
}

impl Shift {
    pub(super) fn new(slot_count: usize, stop: CancellationToken) -> Self {
        Self { slots: Arc::new(Semaphore::new(slot_count)), stop }
    }

    /// Waits for a slot. Whoever waits gets one in turn.
    pub(super) async fn slot(&self) -> OwnedSemaphorePermit {
        self.slots.clone().acquire_owned().await.expect("the slots are never closed")
    }

    /// Waits for a free slot and takes all that are free.
    pub(super) async fn free_slots(&self) -> Vec<OwnedSemaphorePermit> {
        let mut permits = vec![self.slot().await];
        while let Ok(permit) = self.slots.clone().try_acquire_owned() {
            permits.push(permit);
        }
        permits
    }
}

/// A slot that a task is drawn in, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
    renders: Gauge,
}

impl Slot {
    pub(super) fn new(permit: OwnedSemaphorePermit, renders: &Gauge) -> Self {
        renders.inc();
        Self { _permit: permit, renders: renders.clone() }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.renders.dec();
    }
}
