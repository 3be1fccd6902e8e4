//! An engine that ends when a test says so, and whose stages and previews the test reports.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tintype::worker::Worker;
use tintype_engine::{Brief, CancellationToken, Engine, EngineError, EngineInfo, Picture, Progress, Stage};
use tokio::sync::Notify;

use super::service::Service;

#[derive(Debug, Default)]
pub struct Staged {
    progress: Mutex<Progress>,
    begun: Notify,
    ends: Notify,
}

pub fn grey(width: u32, height: u32, level: u8) -> Picture {
    Picture::from_rgb(width, height, vec![level; (width * height * 3) as usize]).expect("a picture")
}

#[async_trait]
impl Engine for Staged {
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError> {
        *self.progress.lock().expect("no panic") = progress;
        self.begun.notify_one();
        let cancelled = || EngineError::Temporary("cancelled".into());
        cancel.run_until_cancelled(self.ends.notified()).await.ok_or_else(cancelled)?;
        Ok(vec![grey(brief.width, brief.height, 7); brief.seeds.len()])
    }
}

impl Staged {
    pub fn worker(self: &Arc<Self>, service: &Service) -> Arc<Worker> {
        let info = EngineInfo::new("staged", "an engine whose stages a test reports", Duration::from_secs(1));
        let info = EngineInfo { slots: 2, ..info };
        service.worker_with(Arc::new(service.renderer_with(info, self.clone())))
    }

    /// Completes when a render has begun.
    pub async fn begun(&self) {
        self.begun.notified().await;
    }

    pub fn end(&self) {
        self.ends.notify_one();
    }

    pub fn report(&self, stage: Stage) {
        self.progress.lock().expect("no panic").report(stage);
    }

    pub fn show(&self, preview: Picture) {
        self.progress.lock().expect("no panic").show(preview);
    }

    pub fn wants_previews(&self) -> bool {
        self.progress.lock().expect("no panic").wants_previews()
    }
}
