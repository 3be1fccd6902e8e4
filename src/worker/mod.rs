//! Works on tasks: claim, wait for references, render, store the files, complete or fail.
//!
//! References are waited for outside of the render slots, since it is strangers who send them: a task holds its lease
//! and one of the places for that, and takes a slot when they are there.

mod places;
pub mod render;
mod slots;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::config::{POLL_EVERY, TASK_TIME_LIMIT, WORKER_REPORT_EVERY, WorkerSettings};
use crate::domain::model::Violation;
use crate::files::FilesError;
use crate::policy::Policy;
use crate::service::Shared;
use crate::service::tasks::{GAVE_UP, REFUSED};
use crate::store::{Claim, Lease, LeaseWrite, Refusal, Retry, StoreError};
use crate::worker::render::{RenderError, Renderer, within};
use tintype_engine::picture::Picture;

use self::places::{Place, Places};
use self::slots::{Shift, Slot};

/// Wait before what came to nothing is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How long a worker that ends waits for its report to be taken back.
const WITHDRAW_LIMIT: Duration = Duration::from_secs(5);
/// How often a write that ends a task is tried before the attempt is given up.
const END_TRIES: u32 = 10;

/// A worker: renders so many tasks at once, and keeps their leases alive.
pub struct Worker {
    shared: Arc<Shared>,
    settings: WorkerSettings,
    policy: Arc<Policy>,
    renderer: Arc<dyn Renderer>,
    slot_count: usize,
    places: Arc<Places>,
    /// Tasks under way, each with the switch that stops it when its lease is lost.
    held: Mutex<HashMap<Lease, CancellationToken>>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("slots", &self.slot_count).finish_non_exhaustive()
    }
}

/// What a claimed task begins with.
enum Start {
    Slot(OwnedSemaphorePermit),
    /// It has references to wait for.
    Place(Place),
}

/// What came of an attempt.
enum Attempt {
    /// Pictures or none. The slot, if it came to one, is held until they are stored.
    Ended(Result<Vec<Bytes>, RenderError>, Option<Slot>),
    /// The worker was told to stop before the task had a slot.
    Stopped,
}

/// What a task with references waited for.
struct Prepared {
    references: Vec<Picture>,
    permit: OwnedSemaphorePermit,
    /// How long the references took, without the wait for the slot.
    took: Duration,
}

/// Why the files of a finished render do not stand as the result of its task.
enum SaveError {
    Files(FilesError),
    Store(StoreError),
    LeaseLost,
}

impl Worker {
    /// A worker with as many slots as the settings say.
    pub fn new(
        settings: WorkerSettings,
        shared: Arc<Shared>,
        policy: Arc<Policy>,
        renderer: Arc<dyn Renderer>,
    ) -> Arc<Self> {
        let slot_count = settings.render_slots();
        let places = Places::new(slot_count, shared.metrics.fetches.clone());
        Arc::new(Self { shared, settings, policy, renderer, slot_count, places, held: Mutex::default() })
    }

    /// Works until `stop`, then gives back what has no slot, lets running renders finish for the drain time and
    /// releases the rest.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let shift = Shift::new(self.slot_count, stop.clone());
        let mut heart = tokio::spawn(self.clone().beat());
        let drawing = stop.child_token();
        let reporting = AbortOnDropHandle::new(tokio::spawn(self.clone().report_while(drawing.clone())));
        let mut running = JoinSet::new();
        loop {
            let permits = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                // It ends only by a panic: without it every lease would be lost, so the worker ends too.
                _ = &mut heart => break,
                permits = shift.free_slots() => permits,
            };
            // Not to be cut off: what is claimed is in nobody's hands until it is in ours.
            let queue = self.claim_into(permits, &mut running, &shift).await;
            if queue == Queue::Drained {
                tokio::select! {
                    () = self.shared.queued.notified() => {}
                    () = self.shared.store.tasks_elsewhere() => {}
                    () = self.places.freed() => {}
                    // Workers that were started together should not all look at once for ever.
                    () = tokio::time::sleep(POLL_EVERY.mul_f64(0.75 + rand::random::<f64>() / 2.0)) => {}
                    () = stop.cancelled() => {}
                }
            }
            while running.try_join_next().is_some() {}
        }
        drawing.cancel();
        self.drain(running).await;
        heart.abort();
        // What is not taken back is soon too old to count.
        drop(tokio::time::timeout(WITHDRAW_LIMIT, reporting).await);
    }

    /// Claims what there is, up to the free slots, and works on it to the end. Returns how many tasks
    /// that were. For tests, which decide when a worker moves.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be claimed.
    pub async fn step(self: &Arc<Self>) -> Result<usize, StoreError> {
        let Claimed { claims, .. } = self.claim(self.slot_count).await?;
        let count = claims.len();
        let shift = Shift::new(self.slot_count, CancellationToken::new());
        let mut running = JoinSet::new();
        for (claim, permit) in claims.into_iter().zip(shift.free_slots().await) {
            self.start(claim, permit, &mut running, &shift);
        }
        running.join_all().await;
        Ok(count)
    }

    /// Claims of the accounts whose tasks there is room for.
    async fn claim(&self, slots: usize) -> Result<Claimed, StoreError> {
        let (most, passed_over) = self.places.to_claim(slots);
        let claims = self.shared.store.claim_except(most, self.settings.lease, &passed_over).await?;
        let queue = if claims.len() < most { Queue::Drained } else { Queue::MayHoldMore };
        Ok(Claimed { claims, queue })
    }

    /// Fills the slots with what waits in the queue; once told to stop, gives it back instead.
    async fn claim_into(
        self: &Arc<Self>,
        permits: Vec<OwnedSemaphorePermit>,
        running: &mut JoinSet<()>,
        shift: &Shift,
    ) -> Queue {
        let Claimed { claims, queue } = match self.claim(permits.len()).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::error!(%error, "could not claim tasks");
                return Queue::Drained;
            }
        };
        if !claims.is_empty() {
            tracing::debug!(tasks = claims.len(), "claimed tasks");
        }
        for (claim, permit) in claims.into_iter().zip(permits) {
            if shift.stop.is_cancelled() {
                self.release(claim.lease).await;
            } else {
                self.start(claim, permit, running, shift);
            }
        }
        queue
    }

    /// Begins an attempt: at once in the slot, or, if the task has references, in a place to wait for them, which leaves
    /// the slot to others. A task that finds no place is given back.
    fn start(self: &Arc<Self>, claim: Claim, permit: OwnedSemaphorePermit, running: &mut JoinSet<()>, shift: &Shift) {
        let start = if claim.request.reference_images.is_empty() {
            Some(Start::Slot(permit))
        } else {
            self.places.take(claim.account_id).map(Start::Place)
        };
        let (worker, shift) = (self.clone(), shift.clone());
        // At the level of errors, so that no filter separates an event from its task.
        let request_id = claim.request.request_id.as_deref();
        let span = tracing::error_span!("task", task_id = %claim.lease.task_id, request_id);
        let attempt = async move {
            match start {
                Some(start) => worker.work(claim, start, shift).await,
                None => worker.release(claim.lease).await,
            }
        };
        running.spawn(attempt.instrument(span));
    }

    /// One attempt at one task.
    async fn work(&self, claim: Claim, start: Start, shift: Shift) {
        let lease = claim.lease;
        let lost = CancellationToken::new();
        let _holding = Holding::new(self, lease, lost.clone());
        let started = self.shared.clock.elapsed();
        // What follows a render is not cut off: it is short, no lost lease can write, and a heartbeat that crosses a
        // completion finds the lease gone because the task has ended.
        let attempt = tokio::select! {
            biased;
            attempt = self.attempt(&claim, start, &shift) => attempt,
            () = lost.cancelled() => return tracing::warn!(task = %lease.task_id, "lease lost; attempt abandoned"),
        };
        let Attempt::Ended(rendered, _slot) = attempt else { return self.release(lease).await };
        match rendered {
            Ok(pngs) => match self.save(lease, pngs).await {
                Ok(()) => {
                    let took = self.shared.clock.elapsed().saturating_sub(started);
                    self.shared.metrics.rendered(took);
                    self.shared.metrics.tasks_ended("completed", 1);
                    tracing::info!(task = %lease.task_id, millis = took.as_millis(), "task completed");
                }
                Err(SaveError::LeaseLost) => tracing::warn!(task = %lease.task_id, "lease lost; result discarded"),
                Err(SaveError::Files(error)) => self.retry(lease, &error.to_string()).await,
                Err(SaveError::Store(error)) => self.retry(lease, &error.to_string()).await,
            },
            Err(RenderError::Final(sentence)) => self.fail(lease, &sentence).await,
            Err(RenderError::Refused(violation)) => self.refuse(lease, violation).await,
            Err(RenderError::Again(cause)) => self.retry(lease, &cause).await,
        }
    }

    /// Renders in a slot, after waiting for references where there are some.
    async fn attempt(&self, claim: &Claim, start: Start, shift: &Shift) -> Attempt {
        let renders = &self.shared.metrics.renders;
        let (slot, begun, rendered) = match start {
            Start::Slot(permit) => {
                let (slot, begun) = (Slot::new(permit, renders), self.shared.clock.elapsed());
                let limit = self.time_limit(claim, Duration::ZERO);
                (slot, begun, within(limit, "the engine", self.renderer.render(claim, limit)).await)
            }
            Start::Place(place) => {
                let prepared = tokio::select! {
                    biased;
                    () = shift.stop.cancelled() => return Attempt::Stopped,
                    prepared = self.prepare(claim, shift) => prepared,
                };
                let Prepared { references, permit, took } = match prepared {
                    Ok(prepared) => prepared,
                    Err(error) => return Attempt::Ended(Err(error), None),
                };
                let (slot, begun) = (Slot::new(permit, renders), self.shared.clock.elapsed());
                drop(place);
                let limit = self.time_limit(claim, took);
                (slot, begun, within(limit, "the engine", self.renderer.draw(claim, references, limit)).await)
            }
        };
        self.shared.backlog.observe(self.shared.clock.elapsed().saturating_sub(begun));
        Attempt::Ended(rendered, Some(slot))
    }

    /// Waits for the references of a task, and then for a slot. However many tasks wait for slots, each gets its turn.
    async fn prepare(&self, claim: &Claim, shift: &Shift) -> Result<Prepared, RenderError> {
        let begun = self.shared.clock.elapsed();
        let limit = self.time_limit(claim, Duration::ZERO);
        let references = within(limit, "fetching the references", self.renderer.prepare(claim)).await?;
        let took = self.shared.clock.elapsed().saturating_sub(begun);
        Ok(Prepared { references, permit: shift.slot().await, took })
    }

    /// What is left for an attempt that has taken `spent`.
    fn time_limit(&self, claim: &Claim, spent: Duration) -> Duration {
        let age = self.shared.ages.of(claim.lease.task_id);
        let for_attempt = self.settings.render_timeout.saturating_sub(spent);
        for_attempt.min(TASK_TIME_LIMIT.saturating_sub(age))
    }

    /// Stores the files, then completes the task; without completion the files go again.
    async fn save(&self, lease: Lease, pngs: Vec<Bytes>) -> Result<(), SaveError> {
        let writes =
            pngs.into_iter().enumerate().map(|(index, png)| self.shared.files.write(lease.task_id, index, png));
        let written = futures::future::join_all(writes).await;
        let names: Vec<String> = written.iter().filter_map(|write| write.as_ref().ok().cloned()).collect();
        let outcome = match written.into_iter().find_map(Result::err) {
            Some(error) => Err(SaveError::Files(error)),
            None => match self.complete(lease, &names).await? {
                LeaseWrite::Done => return Ok(()),
                LeaseWrite::Lost => Err(SaveError::LeaseLost),
            },
        };
        for name in names {
            if let Err(error) = self.shared.files.remove(&name).await {
                tracing::warn!(%error, "a discarded result file was left for the sweep");
            }
        }
        outcome
    }

    /// Completes a task. When no try succeeds, it is unknown whether the completion was saved, so the files must stay;
    /// the sweep for orphans removes them if it was not.
    async fn complete(&self, lease: Lease, names: &[String]) -> Result<LeaseWrite, SaveError> {
        let complete = || self.shared.store.complete(lease, names.to_vec());
        self.patiently(lease, "complete", complete, |outcome| *outcome == LeaseWrite::Lost)
            .await
            .map_err(SaveError::Store)
    }

    /// Tries a write that ends a task again while the database cannot be reached: what was found out about the task is
    /// worth more than a moment of a busy database. A lease that is lost after a failed try may have ended with that
    /// try, so the error stands.
    async fn patiently<T, W: Future<Output = Result<T, StoreError>>>(
        &self,
        lease: Lease,
        what: &str,
        write: impl Fn() -> W,
        is_lost: impl Fn(&T) -> bool,
    ) -> Result<T, StoreError> {
        let mut outcome = write().await;
        for _ in 1..END_TRIES {
            let Err(error) = outcome else { break };
            tracing::warn!(task = %lease.task_id, %error, "could not {what} the task; trying again");
            tokio::time::sleep(RETRY_DELAY).await;
            outcome = match write().await {
                Ok(outcome) if is_lost(&outcome) => return Err(error),
                again => again,
            };
        }
        outcome
    }

    async fn fail(&self, lease: Lease, sentence: &str) {
        let fail = || self.shared.store.fail(lease, sentence);
        match self.patiently(lease, "fail", fail, |outcome| *outcome == LeaseWrite::Lost).await {
            Ok(LeaseWrite::Done) => {
                self.shared.metrics.tasks_ended("failed", 1);
                tracing::info!(task = %lease.task_id, reason = sentence, "task failed and refunded");
            }
            Ok(LeaseWrite::Lost) => tracing::warn!(task = %lease.task_id, "lease lost; failure discarded"),
            Err(error) => {
                tracing::error!(task = %lease.task_id, %error, "could not fail the task; if it has not failed, its lease will expire")
            }
        }
    }

    /// Fails a task that the content policy refuses, which counts against the key it came with.
    async fn refuse(&self, lease: Lease, violation: Violation) {
        let kind = violation.as_str();
        let strikes = self.policy.rules().strikes;
        let refuse = || self.shared.store.refuse(lease, REFUSED, strikes);
        match self.patiently(lease, "refuse", refuse, |outcome| *outcome == Refusal::Lost).await {
            Ok(Refusal::Done { suspended }) => {
                self.shared.metrics.tasks_ended("failed", 1);
                self.shared.metrics.task_refused(kind);
                tracing::info!(task = %lease.task_id, kind, "task refused by the content policy and refunded");
                if let Some(key) = suspended {
                    self.shared.metrics.suspended.inc();
                    tracing::warn!(%key, "key suspended over violations of the content policy");
                }
            }
            Ok(Refusal::Lost) => tracing::warn!(task = %lease.task_id, "lease lost; refusal discarded"),
            Err(error) => {
                tracing::error!(task = %lease.task_id, %error, "could not refuse the task; if it has not failed, its lease will expire")
            }
        }
    }

    async fn retry(&self, lease: Lease, cause: &str) {
        match self.shared.store.retry(lease, RETRY_DELAY, GAVE_UP).await {
            Ok(Retry::Queued) => {
                self.shared.metrics.attempts_lost.inc();
                tracing::warn!(task = %lease.task_id, cause, "attempt lost; queued again");
            }
            Ok(Retry::Failed) => {
                self.shared.metrics.attempts_lost.inc();
                self.shared.metrics.tasks_ended("failed", 1);
                tracing::warn!(task = %lease.task_id, cause, "last attempt lost; task failed and refunded");
            }
            Ok(Retry::Lost) => tracing::warn!(task = %lease.task_id, cause, "attempt and lease lost"),
            Err(error) => {
                tracing::error!(task = %lease.task_id, %error, cause, "could not give the task back; its lease will expire")
            }
        }
    }

    /// Keeps the leases of what is under way alive and stops what has lost its own.
    async fn beat(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.settings.heartbeat()).await;
            self.renew().await;
        }
    }

    /// One heartbeat.
    pub async fn renew(&self) {
        let leases: Vec<Lease> = self.held().keys().copied().collect();
        if leases.is_empty() {
            return;
        }
        match self.shared.store.renew(leases, self.settings.lease).await {
            Ok(lost) => {
                let held = self.held();
                lost.iter().filter_map(|lease| held.get(lease)).for_each(CancellationToken::cancel);
            }
            Err(error) => tracing::error!(%error, "could not renew leases"),
        }
    }

    /// Tells other processes again and again what this one can do, and at once when it has learnt how quick it is; takes
    /// that back when it draws no more.
    async fn report_while(self: Arc<Self>, drawing: CancellationToken) {
        loop {
            self.report().await;
            tokio::select! {
                () = drawing.cancelled() => break,
                () = self.shared.backlog.mean_known() => {}
                () = tokio::time::sleep(WORKER_REPORT_EVERY) => {}
            }
        }
        if let Err(error) = self.shared.store.withdraw_worker(self.shared.backlog.id()).await {
            tracing::warn!(%error, "could not tell other processes that this one draws no more");
        }
    }

    /// One report.
    pub async fn report(&self) {
        if let Err(error) = self.shared.store.report_worker(self.shared.backlog.report()).await {
            tracing::warn!(%error, "could not tell other processes what this one can do");
        }
    }

    async fn drain(&self, mut running: JoinSet<()>) {
        if !running.is_empty() {
            tracing::info!(renders = running.len(), "waiting for running renders");
        }
        let finished = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(self.settings.drain_timeout, finished).await.is_ok() {
            return;
        }
        let unfinished: Vec<Lease> = self.held().keys().copied().collect();
        running.shutdown().await;
        for lease in unfinished {
            self.release(lease).await;
        }
    }

    async fn release(&self, lease: Lease) {
        match self.shared.store.release(lease).await {
            Ok(_) => tracing::info!(task = %lease.task_id, "task given back"),
            Err(error) => tracing::error!(task = %lease.task_id, %error, "could not release the task"),
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<Lease, CancellationToken>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a task as under way until dropped, however its attempt ends.
struct Holding<'a> {
    worker: &'a Worker,
    lease: Lease,
}

impl<'a> Holding<'a> {
    fn new(worker: &'a Worker, lease: Lease, lost: CancellationToken) -> Self {
        worker.held().insert(lease, lost);
        Self { worker, lease }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.worker.held().remove(&self.lease);
    }
}

/// What a claim brought.
struct Claimed {
    claims: Vec<Claim>,
    queue: Queue,
}

/// What a claim says of the queue.
#[derive(PartialEq, Eq)]
enum Queue {
    Drained,
    MayHoldMore,
}
