//! One attempt at one task: prepare, render, store the files, and end or release the task.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::reference_slots::ReferenceSlot;
use super::render::{RenderControl, RenderError, Sources};
use super::render_slots::{RenderSlot, RenderSlots};
use super::{CANCEL_GRACE, Worker};
use crate::files::FilesError;
use crate::service::endings::RETRY_DELAY;
use crate::service::engine_record::NextTry;
use tintype_config::TASK_TIME_LIMIT;
use tintype_domain::model::Surface;
use tintype_engine::Progress;
use tintype_store::{Claim, LeaseWrite, StoreError};

const COMPLETED: &str = "completed";
/// The outcome of an attempt that failed and refunded its task.
pub(super) const FAILED: &str = "failed";
/// The outcome of an attempt whose task the content policy rejected.
const REFUSED: &str = "refused";
/// Attempt failed: the task is queued again, or failed if it was the last.
pub(super) const LOST: &str = "lost";
/// The outcome of an attempt that gave its task back.
pub(super) const RELEASED: &str = "released";
/// The outcome of an attempt that no longer had the lease, or the time, to end its task.
const CANCELLED: &str = "cancelled";

/// The kind of slot that an attempt starts with.
pub(super) enum Start {
    /// The task has no references.
    Render(OwnedSemaphorePermit),
    /// The task has references to wait for.
    Fetch(ReferenceSlot),
}

enum Attempt {
    /// The images or an error. The render slot, if the attempt had one, is held until the task has ended.
    Ended(Result<Vec<Bytes>, RenderError>, Option<RenderSlot>),
    /// The worker received its stop before the task had a render slot.
    Stopped,
    /// The lease is lost, or the worker's drain time has passed.
    Cancelled,
}

/// Why the pictures of a task are not its images.
enum NotSaved {
    /// A file could not be written.
    Files(FilesError),
    /// The task could not be completed, or it is unknown whether it was.
    Task(StoreError),
}

struct Prepared {
    sources: Sources,
    slot: RenderSlot,
    /// When the task took the slot.
    slot_since: Duration,
    /// How long the preparation took, without the wait for the slot.
    took: Duration,
}

impl Worker {
    /// One attempt at one task. Returns its outcome for the trace.
    pub(super) async fn work(&self, claim: Claim, start: Start, slots: RenderSlots) -> &'static str {
        let lease = claim.lease;
        let cancel = CancellationToken::new();
        let held = self.held.hold(lease, cancel.clone());
        let started = self.shared.clock.elapsed();
        // Nothing after the render is cancelled: it is short, and no write takes place under a lost lease.
        let (rendered, _slot) = match self.attempt(&claim, start, &slots, &cancel).await {
            Attempt::Ended(rendered, slot) => (rendered, slot),
            Attempt::Stopped => {
                self.release(lease, Duration::ZERO).await;
                return RELEASED;
            }
            Attempt::Cancelled => return CANCELLED,
        };
        held.ends_task();
        let endings = &self.shared.endings;
        match rendered {
            Ok(pngs) => {
                self.record.note_rendered(lease.task_id);
                match self.save(&claim, pngs, started).await {
                    Ok(LeaseWrite::Done) => COMPLETED,
                    Ok(LeaseWrite::Lost) => CANCELLED,
                    // The task is not at fault. The worker claims nothing until files can be written again.
                    Err(NotSaved::Files(error)) => {
                        tracing::warn!(task = %lease.task_id, %error, "could not store the pictures of a task");
                        self.release(lease, Duration::ZERO).await;
                        RELEASED
                    }
                    Err(NotSaved::Task(error)) => {
                        endings.retry(&claim, RETRY_DELAY, &error.to_string()).await;
                        LOST
                    }
                }
            }
            Err(RenderError::Final(failure)) => {
                endings.fail(&claim, &failure).await;
                FAILED
            }
            Err(RenderError::Refused(violation)) => {
                endings.refuse(&claim, violation, self.policy.rules().strikes).await;
                REFUSED
            }
            Err(RenderError::Retry(cause)) => {
                self.record.note_failed(lease.task_id);
                endings.retry(&claim, RETRY_DELAY, &cause).await;
                LOST
            }
            Err(RenderError::NotAvailable(cause)) => {
                self.suspend(&cause);
                self.release(lease, Duration::ZERO).await;
                RELEASED
            }
            Err(RenderError::TurnedAway { cause, pause, is_busy }) => {
                let next = self.record.note_turned_away(lease.task_id, pause, is_busy);
                self.turned_away(&claim, &cause, next).await
            }
        }
    }

    /// Gives a task back that the engine turned away, for a while. It loses an attempt if it is at fault itself.
    async fn turned_away(&self, claim: &Claim, cause: &str, next: NextTry) -> &'static str {
        let (task, NextTry { delay, loses_attempt }) = (claim.lease.task_id, next);
        if loses_attempt {
            self.shared.endings.retry(claim, delay, cause).await;
            return LOST;
        }
        tracing::warn!(%task, cause, seconds = delay.as_secs(), "the engine rejected a task; retrying later");
        self.release(claim.lease, delay).await;
        RELEASED
    }

    async fn attempt(&self, claim: &Claim, start: Start, slots: &RenderSlots, cancel: &CancellationToken) -> Attempt {
        let has_slot = matches!(start, Start::Render(_));
        let prepared = tokio::select! {
            biased;
            () = slots.stop.cancelled(), if !has_slot => return Attempt::Stopped,
            prepared = self.prepare(claim, start, slots) => prepared,
            () = cancel.cancelled() => return Attempt::Cancelled,
        };
        let Prepared { sources, slot, slot_since, took } = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Attempt::Ended(Err(error), None),
        };
        let time_limit = self.time_limit(claim, took);
        match self.render(claim, sources, time_limit, cancel).instrument(tracing::debug_span!("render")).await {
            Some(rendered) => {
                // A lost attempt, such as one that was cut off, says nothing about the next one.
                if !matches!(
                    rendered,
                    Err(RenderError::Retry(_) | RenderError::NotAvailable(_) | RenderError::TurnedAway { .. })
                ) {
                    let took = self.shared.clock.elapsed().saturating_sub(slot_since);
                    self.throughput.observe(took, claim.request.n.into());
                }
                Attempt::Ended(rendered, Some(slot))
            }
            None => Attempt::Cancelled,
        }
    }

    /// Prepares a task, and takes a render slot afterwards unless it has one.
    async fn prepare(&self, claim: &Claim, start: Start, slots: &RenderSlots) -> Result<Prepared, RenderError> {
        let renders = &self.shared.metrics.renders;
        let (slot, reference_slot) = match start {
            Start::Render(permit) => (Some(RenderSlot::new(permit, renders)), None),
            Start::Fetch(reference_slot) => (None, Some(reference_slot)),
        };
        let begun = self.shared.clock.elapsed();
        let limit = self.time_limit(claim, Duration::ZERO);
        let span = tracing::debug_span!("references", count = claim.request.reference_images.len());
        let preparing = AssertUnwindSafe(self.renderer.prepare(claim)).catch_unwind().instrument(span);
        let sources = match tokio::time::timeout(limit, preparing).await {
            Ok(Ok(prepared)) => prepared?,
            Ok(Err(_)) => return Err(RenderError::Retry("the preparation of the render panicked".into())),
            Err(_) => return Err(RenderError::Retry(overran("the preparation of the render", limit))),
        };
        let prepared = self.shared.clock.elapsed();
        let (slot, slot_since) = match slot {
            Some(slot) => (slot, begun),
            None => (RenderSlot::new(slots.acquire().await, renders), self.shared.clock.elapsed()),
        };
        drop(reference_slot);
        Ok(Prepared { sources, slot, slot_since, took: prepared.saturating_sub(begun) })
    }

    /// Renders a task. A render that is cancelled, or that overruns its time limit, gets a moment to stop. `None` when it
    /// was cancelled.
    async fn render(
        &self,
        claim: &Claim,
        sources: Sources,
        time_limit: Duration,
        cancel: &CancellationToken,
    ) -> Option<Result<Vec<Bytes>, RenderError>> {
        let progress = if self.shows_previews(claim) { Progress::with_previews() } else { Progress::default() };
        let stop = cancel.child_token();
        self.held.renders(claim.lease, self.shared.clock.elapsed(), progress.clone());
        // Also where this future is dropped.
        let stopped = stop.clone().drop_guard();
        let control = RenderControl { time_limit, progress: progress.clone(), cancel: stop };
        let mut rendering = pin!(AssertUnwindSafe(self.renderer.render(claim, sources, control)).catch_unwind());
        let outcome = tokio::select! {
            biased;
            // Checked first: an engine that obeys the cancellation returns an error, which must not count as a lost attempt.
            () = cancel.cancelled() => None,
            rendered = &mut rendering => {
                return Some(rendered.unwrap_or_else(|_| Err(RenderError::Retry("the engine panicked".into()))));
            }
            () = tokio::time::sleep(time_limit) => {
                let stage = progress.latest().map_or_else(String::new, |stage| format!(" and was at {stage}"));
                Some(Err(RenderError::Retry(overran("the engine", time_limit) + &stage)))
            }
        };
        drop(stopped);
        // The render slot stays taken meanwhile.
        if tokio::time::timeout(CANCEL_GRACE, rendering).await.is_err() {
            tracing::warn!(task = %claim.lease.task_id, "the engine did not stop a cancelled render in time, so the worker abandons it");
        }
        outcome
    }

    /// Whether the caller asked for previews, and may see them. The policy judges finished pictures alone, so where it
    /// does, nothing is shown before.
    fn shows_previews(&self, claim: &Claim) -> bool {
        let requested = claim.surface == Surface::Web || claim.wants_previews;
        requested && !self.policy.rules().judges_results()
    }

    /// The time left for an attempt that has taken `spent`.
    fn time_limit(&self, claim: &Claim, spent: Duration) -> Duration {
        let age = self.shared.ages.of(claim.lease.task_id);
        let for_attempt = self.settings.attempt_limit(self.renderer.attempt_limit()).saturating_sub(spent);
        for_attempt.min(TASK_TIME_LIMIT.saturating_sub(age))
    }

    /// Stores the files, then completes the task. When the lease is lost, the files are removed again. When it is unknown
    /// whether the completion was saved, they stay; the sweep for orphans removes them if it was not. The error says why
    /// the attempt came to nothing.
    async fn save(&self, claim: &Claim, pngs: Vec<Bytes>, started: Duration) -> Result<LeaseWrite, NotSaved> {
        let files = &self.shared.files;
        let writes = pngs.into_iter().enumerate().map(|(index, png)| files.write(claim.lease.task_id, index, png));
        let written = futures::future::join_all(writes).instrument(tracing::debug_span!("files")).await;
        let names: Vec<String> = written.iter().filter_map(|write| write.as_ref().ok().cloned()).collect();
        let saved = match written.into_iter().find_map(Result::err) {
            Some(error) => Err(NotSaved::Files(error)),
            None => {
                let took = self.shared.clock.elapsed().saturating_sub(started);
                let completing = self.shared.endings.complete(claim, &names, took);
                let completed = completing.instrument(tracing::debug_span!("completion")).await;
                match completed.map_err(NotSaved::Task)? {
                    LeaseWrite::Done => return Ok(LeaseWrite::Done),
                    LeaseWrite::Lost => Ok(LeaseWrite::Lost),
                }
            }
        };
        for name in names {
            if let Err(error) = files.remove(&name).await {
                tracing::warn!(%error, "could not remove a discarded result file; the sweep for orphans will");
            }
        }
        saved
    }
}

fn overran(what: &str, limit: Duration) -> String {
    format!("{what} took longer than {} s", limit.as_secs())
}
