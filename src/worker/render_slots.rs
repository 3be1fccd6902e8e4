//! Render slots: how many tasks the worker renders at the same time.

use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// The render slots of one run of a worker, and the token that stops the run.
#[derive(Debug, Clone)]
pub(super) struct RenderSlots {
    semaphore: Arc<Semaphore>,
    pub(super) stop: CancellationToken,
}

impl RenderSlots {
    pub(super) fn new(count: usize, stop: CancellationToken) -> Self {
        Self { semaphore: Arc::new(Semaphore::new(count)), stop }
    }

    /// Waits for a slot. Waiting tasks get slots in order of arrival.
    pub(super) async fn acquire(&self) -> OwnedSemaphorePermit {
        self.semaphore.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    pub(super) async fn acquire_all_free(&self) -> Vec<OwnedSemaphorePermit> {
        let mut permits = vec![self.acquire().await];
        while let Ok(permit) = self.semaphore.clone().try_acquire_owned() {
            permits.push(permit);
        }
        permits
    }
}

#[derive(Debug)]
pub(super) struct RenderSlot {
    _permit: OwnedSemaphorePermit,
    renders: IntGauge,
}

impl RenderSlot {
    pub(super) fn new(permit: OwnedSemaphorePermit, renders: &IntGauge) -> Self {
        renders.inc();
        Self { _permit: permit, renders: renders.clone() }
    }
}

impl Drop for RenderSlot {
    fn drop(&mut self) {
        self.renders.dec();
    }
}
