//! Previews that a server sends during a render, for anyone watching: decoded in a confined process, at most one per
//! second.

use std::sync::Mutex;
use std::time::Duration;

use tintype_engine::Progress;
use tintype_system::locked::Locked as _;
use tokio_util::task::AbortOnDropHandle;

use crate::results::Results;

/// Interval between a brief's previews.
const EVERY: Duration = Duration::from_secs(1);

/// Shows a brief's previews. Any that arrive while one is being decoded, or soon after, are skipped.
pub(super) struct Previews<'a> {
    progress: &'a Progress,
    results: &'a Results,
    /// Ends a second after its preview, or with the render.
    showing: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl<'a> Previews<'a> {
    pub(super) fn new(progress: &'a Progress, results: &'a Results) -> Self {
        Self { progress, results, showing: Mutex::default() }
    }

    /// Shows a file's picture, if someone is watching. Doesn't wait.
    pub(super) fn show(&self, file: &[u8]) {
        let mut showing = self.showing.locked();
        if !self.progress.wants_previews() || showing.as_ref().is_some_and(|showing| !showing.is_finished()) {
            return;
        }
        let (progress, results, file) = (self.progress.clone(), self.results.clone(), file.to_vec());
        *showing = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            if let Some(picture) = results.preview(&file).await {
                progress.show(picture);
            }
            tokio::time::sleep(EVERY).await;
        })));
    }
}
