//! Cancellation, which is the same for all engines that use servers.

use std::fmt;

use async_trait::async_trait;
use tintype_engine::{Brief, CancellationToken, Device, Engine, EngineError, Picture, Progress};

#[async_trait]
pub(super) trait Driver: fmt::Debug + Send + Sync + 'static {
    /// Renders one picture for each seed, in the order of the seeds. Dropping the future cancels the render.
    async fn paint(&self, brief: Brief, progress: &Progress) -> Result<Vec<Picture>, EngineError>;

    /// Checks whether a server is accepting work.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if none is.
    async fn probe(&self) -> Result<(), EngineError>;

    /// Waits until servers run by this process have started.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if none started.
    async fn started(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The devices that the servers render on, if reported.
    async fn devices(&self) -> Vec<Device> {
        Vec::new()
    }

    /// Waits briefly until the servers have received cancellations.
    async fn settle(&self) {}
}

#[derive(Debug)]
pub(super) struct DriverEngine<D>(pub(super) D);

#[async_trait]
impl<D: Driver> Engine for DriverEngine<D> {
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError> {
        if let Some(pictures) = cancel.run_until_cancelled(self.0.paint(brief, &progress)).await {
            return pictures;
        }
        self.0.settle().await;
        Err(EngineError::Temporary("the render was cancelled".into()))
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.0.probe().await
    }

    async fn started(&self) -> Result<(), EngineError> {
        self.0.started().await
    }

    async fn devices(&self) -> Vec<Device> {
        self.0.devices().await
    }
}
