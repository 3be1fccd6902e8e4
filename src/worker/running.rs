//! A worker's attempts in progress: the leases that it renews, and their progress.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tintype_engine::{Picture, Progress, Stage};
use tokio_util::sync::CancellationToken;

use tintype_store::{AttemptProgress, Lease};
use tintype_system::locked::Locked as _;

#[derive(Debug, Default)]
pub(super) struct RunningAttempts(Mutex<HashMap<Lease, Attempt>>);

#[derive(Debug)]
struct Attempt {
    /// `None` once the attempt ends its task, which nothing cancels.
    cancel: Option<CancellationToken>,
    render: Option<Render>,
}

#[derive(Debug)]
struct Render {
    /// By the monotonic clock.
    since: Duration,
    progress: Progress,
    /// The stage that was reported last; the first report may be without one.
    reported: Option<Option<Stage>>,
    /// The preview that was reported last.
    shown: Option<Arc<Picture>>,
}

/// Holds a lease in the worker's heartbeats until dropped, however the attempt ends.
pub(super) struct HeldLease<'a> {
    leases: &'a RunningAttempts,
    lease: Lease,
}

impl HeldLease<'_> {
    /// Notes that the attempt ends its task now. That task soon has no lease, which is then no loss.
    pub(super) fn ends_task(&self) {
        if let Some(attempt) = self.leases.0.locked().get_mut(&self.lease) {
            attempt.cancel = None;
        }
    }
}

impl Drop for HeldLease<'_> {
    fn drop(&mut self) {
        self.leases.0.locked().remove(&self.lease);
    }
}

impl RunningAttempts {
    /// Holds the lease of an attempt that `cancel` ends.
    pub(super) fn hold(&self, lease: Lease, cancel: CancellationToken) -> HeldLease<'_> {
        self.0.locked().insert(lease, Attempt { cancel: Some(cancel), render: None });
        HeldLease { leases: self, lease }
    }

    /// Notes that an attempt renders since this time of the monotonic clock.
    pub(super) fn renders(&self, lease: Lease, since: Duration, progress: Progress) {
        if let Some(attempt) = self.0.locked().get_mut(&lease) {
            attempt.render = Some(Render { since, progress, reported: None, shown: None });
        }
    }

    pub(super) fn leases(&self) -> Vec<Lease> {
        self.0.locked().keys().copied().collect()
    }

    /// Cancels an attempt. Returns whether there was something to cancel.
    pub(super) fn cancel(&self, lease: Lease) -> bool {
        let held = self.0.locked();
        let cancel = held.get(&lease).and_then(|attempt| attempt.cancel.as_ref());
        cancel.filter(|cancel| !cancel.is_cancelled()).inspect(|cancel| cancel.cancel()).is_some()
    }

    /// Cancels all attempts that render, and returns the leases of all.
    pub(super) fn cancel_all(&self) -> Vec<Lease> {
        let held = self.0.locked();
        held.values().filter_map(|attempt| attempt.cancel.as_ref()).for_each(CancellationToken::cancel);
        held.keys().copied().collect()
    }

    /// The attempts whose stage has changed since the last report.
    pub(super) fn changed(&self, now: Duration) -> Vec<(Lease, AttemptProgress)> {
        let held = self.0.locked();
        let renders = held.iter().filter_map(|(lease, attempt)| Some((lease, attempt.render.as_ref()?)));
        let changed = renders.filter_map(|(lease, render)| {
            let stage = render.progress.latest();
            let progress = AttemptProgress { running: now.saturating_sub(render.since), stage };
            (render.reported != Some(stage)).then_some((*lease, progress))
        });
        changed.collect()
    }

    pub(super) fn reported(&self, reports: &[(Lease, AttemptProgress)]) {
        let mut held = self.0.locked();
        for (lease, progress) in reports {
            if let Some(render) = held.get_mut(lease).and_then(|attempt| attempt.render.as_mut()) {
                render.reported = Some(progress.stage);
            }
        }
    }

    /// The previews that have not been reported.
    pub(super) fn new_previews(&self) -> Vec<(Lease, Arc<Picture>)> {
        let held = self.0.locked();
        let renders = held.iter().filter_map(|(lease, attempt)| Some((lease, attempt.render.as_ref()?)));
        let new = renders.filter_map(|(lease, render)| {
            let preview = render.progress.preview()?;
            let known = render.shown.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, &preview));
            (!known).then_some((*lease, preview))
        });
        new.collect()
    }

    pub(super) fn shown(&self, previews: Vec<(Lease, Arc<Picture>)>) {
        let mut held = self.0.locked();
        for (lease, preview) in previews {
            if let Some(render) = held.get_mut(&lease).and_then(|attempt| attempt.render.as_mut()) {
                render.shown = Some(preview);
            }
        }
    }
}
