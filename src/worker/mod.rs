//! Works on tasks with one engine: claim, wait for references, render, store the files, complete or fail.
//!
//! A task with references waits for them in a reference slot, because other servers determine how fast they arrive, and
//! takes a render slot once all of them have arrived. The worker renews its lease meanwhile.

mod attempt;
mod reference_slots;
pub mod render;
mod render_slots;
mod running;
mod stored_references;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::policy::Policy;
use crate::service::ServiceContext;
use crate::service::engine_record::EngineRecord;
use crate::service::wait_estimator::WorkerThroughput;
use crate::worker::render::Renderer;
use tintype_config::{POLL_EVERY, PROBE_EVERY, PROGRESS_EVERY, WORKER_REPORT_EVERY, WorkerSettings};
use tintype_store::{Claim, Lease, LeaseWrite, StoreError};

use self::attempt::Start;
use self::reference_slots::ReferenceSlots;
use self::render_slots::RenderSlots;
use self::running::RunningAttempts;

/// Time that an engine gets to stop after its render was cancelled, before the render is abandoned.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// Time limit for the last report of the worker.
const LAST_REPORT_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for one probe of the engine.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// A worker: renders a number of tasks at once with one engine, and renews their leases. It claims only tasks that its
/// engine can do.
pub struct Worker {
    shared: Arc<ServiceContext>,
    settings: WorkerSettings,
    policy: Arc<Policy>,
    renderer: Arc<dyn Renderer>,
    engine: String,
    slot_count: usize,
    throughput: Arc<WorkerThroughput>,
    reference_slots: Arc<ReferenceSlots>,
    held: RunningAttempts,
    record: EngineRecord,
    /// Whether the engine was not available when it was asked last.
    engine_is_down: AtomicBool,
    /// Whether the queue was paused when the worker looked last.
    is_paused: AtomicBool,
}

tintype_domain::opaque_debug!(Worker);

impl Worker {
    /// A worker that renders `slot_count` tasks at once with the engine that the operator calls `engine`.
    pub fn new(
        settings: WorkerSettings,
        engine: &str,
        slot_count: usize,
        shared: Arc<ServiceContext>,
        policy: Arc<Policy>,
        renderer: Arc<dyn Renderer>,
    ) -> Arc<Self> {
        let reference_slots = ReferenceSlots::new(slot_count, shared.metrics.fetches.clone());
        Arc::new(Self {
            settings,
            policy,
            engine: engine.to_owned(),
            slot_count,
            throughput: shared.wait_estimator.add_worker(
                engine,
                renderer.max_references(),
                renderer.masks(),
                slot_count,
            ),
            renderer,
            reference_slots,
            held: RunningAttempts::default(),
            record: EngineRecord::new(&shared.engine_records),
            engine_is_down: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            shared,
        })
    }

    /// How fast it renders.
    pub fn throughput(&self) -> &WorkerThroughput {
        &self.throughput
    }

    /// Works until `stop`. Then releases the tasks that have no render slot, lets running renders finish for the drain
    /// time, and cancels and releases the rest.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        self.run_until(stop.clone(), stop).await;
    }

    /// Works until `leave`, a child of `stop`. After `leave` alone, running renders take as long as they need.
    pub async fn run_until(self: Arc<Self>, leave: CancellationToken, stop: CancellationToken) {
        let slots = RenderSlots::new(self.slot_count, leave.clone());
        let mut heartbeat = tokio::spawn(self.clone().send_heartbeats());
        let working = leave.child_token();
        let reporting = AbortOnDropHandle::new(tokio::spawn(self.clone().report_while(working.clone())));
        let _progress = AbortOnDropHandle::new(tokio::spawn(self.clone().report_progress_forever()));
        let mut running = JoinSet::new();
        let mut queued = self.shared.queued.subscribe();
        leave.run_until_cancelled(self.probe_at_start()).await;
        loop {
            let permits = tokio::select! {
                biased;
                () = leave.cancelled() => break,
                // The heartbeat ends only by a panic. Without it every lease would expire, so the worker ends too.
                _ = &mut heartbeat => break,
                permits = self.ready_slots(&slots) => permits,
            };
            // Must not be cancelled: a claimed task belongs to no attempt until it is started.
            let queue = self.claim_into(permits, &mut running, &slots).await;
            if queue == QueueState::Drained {
                self.notice_pause().await;
                tokio::select! {
                    // Fails only when the sender is gone, which this worker holds.
                    _ = queued.changed() => {}
                    // Only one worker of this process receives it.
                    () = self.shared.store.tasks_elsewhere() => {
                        self.shared.queued.send_replace(());
                        queued.mark_unchanged();
                    }
                    () = self.reference_slots.freed() => {}
                    // The random part keeps workers that were started together from polling in step.
                    () = tokio::time::sleep(POLL_EVERY.mul_f64(0.75 + rand::random::<f64>() / 2.0)) => {}
                    () = leave.cancelled() => {}
                }
            }
            while running.try_join_next().is_some() {}
        }
        working.cancel();
        // A worker without heartbeats has no time to lose.
        let gives_way = !heartbeat.is_finished();
        self.drain(running, gives_way.then_some(&stop)).await;
        heartbeat.abort();
        // A report that is not withdrawn expires soon.
        drop(tokio::time::timeout(LAST_REPORT_LIMIT, reporting).await);
    }

    /// Claims tasks up to the number of slots and works on them to the end. Returns the number of tasks. For tests, which
    /// step the worker.
    ///
    /// # Errors
    /// [`StoreError`] when no task could be claimed.
    pub async fn step(self: &Arc<Self>) -> Result<usize, StoreError> {
        if !self.files_are_writable().await || !self.engine_is_available().await {
            return Ok(0);
        }
        let free = self.record.tasks_to_claim(self.slot_count);
        if free == 0 {
            return Ok(0);
        }
        let Claimed { claims, .. } = self.claim(free).await?;
        let count = claims.len();
        let slots = RenderSlots::new(self.slot_count, CancellationToken::new());
        let mut running = JoinSet::new();
        for (claim, permit) in claims.into_iter().zip(slots.acquire_all_free().await) {
            self.start(claim, permit, &mut running, &slots);
        }
        running.join_all().await;
        Ok(count)
    }

    /// Waits for free render slots that may get a task, while result files can be written and the engine is available.
    async fn ready_slots(&self, slots: &RenderSlots) -> Vec<OwnedSemaphorePermit> {
        loop {
            while !self.files_are_writable().await || self.engine_is_down.load(Ordering::SeqCst) {
                tokio::time::sleep(PROBE_EVERY).await;
                self.engine_is_available().await;
            }
            let mut free = slots.acquire_all_free().await;
            free.truncate(self.record.tasks_to_claim(free.len()));
            if !free.is_empty() {
                return free;
            }
            tokio::time::sleep(PROBE_EVERY).await;
        }
    }

    /// Whether the pictures of a task could be stored. Tries again a write that failed.
    async fn files_are_writable(&self) -> bool {
        self.shared.files.try_again(self.shared.store.now()).await;
        self.shared.files.are_writable()
    }

    /// Probes the engine if it was not available when it was asked last.
    async fn engine_is_available(&self) -> bool {
        if !self.engine_is_down.load(Ordering::SeqCst) {
            return true;
        }
        match self.probe_engine().await {
            Ok(()) => {
                self.engine_is_down.store(false, Ordering::SeqCst);
                self.throughput.report_soon();
                tracing::info!(engine = self.engine, "the engine is available again; claiming tasks");
                true
            }
            Err(cause) => {
                tracing::debug!(engine = self.engine, cause, "the engine is still not available");
                false
            }
        }
    }

    /// Probes the engine before the first claim, so that no task is claimed in vain. One that is just starting gets a
    /// moment.
    async fn probe_at_start(&self) {
        drop(tokio::time::timeout(PROBE_LIMIT, self.renderer.started()).await);
        if let Err(cause) = self.probe_engine().await {
            self.suspend(&cause);
        }
    }

    async fn probe_engine(&self) -> Result<(), String> {
        let probe = tokio::time::timeout(PROBE_LIMIT, self.renderer.probe()).await;
        probe.unwrap_or_else(|_| Err(format!("no answer to a probe within {} s", PROBE_LIMIT.as_secs())))
    }

    /// Notes that the engine is not available.
    fn suspend(&self, cause: &str) {
        if !self.engine_is_down.swap(true, Ordering::SeqCst) {
            self.throughput.report_soon();
            tracing::error!(
                engine = self.engine,
                cause,
                "the engine is not available; no task is claimed for it until a probe succeeds: start it, or run `tintype doctor`"
            );
        }
    }

    /// Logs the beginning and the end of a pause of the queue, during which nothing is claimed.
    async fn notice_pause(&self) {
        // The claim that follows meets the same error, and logs it.
        let Ok(since) = self.shared.store.queue_paused_at().await else { return };
        match (since, self.is_paused.swap(since.is_some(), Ordering::SeqCst)) {
            (Some(since), false) => {
                tracing::warn!(%since, "the queue is paused; no task is claimed until `tintype queue resume`");
            }
            (None, true) => tracing::info!("the queue is no longer paused; claiming tasks"),
            _ => {}
        }
    }

    /// Claims tasks for this many free render slots.
    async fn claim(&self, slots: usize) -> Result<Claimed, StoreError> {
        let (most, excluded) = self.reference_slots.to_claim(slots);
        let (engine, max_references, lease) = (&self.engine, self.renderer.max_references(), self.settings.lease);
        let began = self.shared.clock.elapsed();
        let claims = self.shared.store.claim_within(most, engine, max_references, lease, &excluded).await?;
        let lasted_micros = u64::try_from(self.shared.clock.elapsed().saturating_sub(began).as_micros()).ok();
        for claim in &claims {
            // One claim is for several tasks, and is in the trace of each.
            tracing::debug_span!("claim", request_id = claim.request.request_id.as_deref(), lasted_micros);
        }
        let queue = if claims.len() < most { QueueState::Drained } else { QueueState::MayHoldMore };
        Ok(Claimed { claims, queue })
    }

    /// Starts attempts at waiting tasks in these slots. After the stop it releases claimed tasks instead.
    async fn claim_into(
        self: &Arc<Self>,
        permits: Vec<OwnedSemaphorePermit>,
        running: &mut JoinSet<()>,
        slots: &RenderSlots,
    ) -> QueueState {
        let Claimed { claims, queue } = match self.claim(permits.len()).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::error!(%error, "could not claim tasks; retrying");
                return QueueState::Drained;
            }
        };
        if !claims.is_empty() {
            tracing::debug!(tasks = claims.len(), "claimed tasks");
        }
        for (claim, permit) in claims.into_iter().zip(permits) {
            if slots.stop.is_cancelled() {
                self.release(claim.lease, Duration::ZERO).await;
            } else {
                self.start(claim, permit, running, slots);
            }
        }
        queue
    }

    /// Starts an attempt: in the render slot at once, or, if the task has references, in a reference slot, which leaves
    /// the render slot to others. Without a free reference slot the task is released.
    fn start(
        self: &Arc<Self>,
        claim: Claim,
        permit: OwnedSemaphorePermit,
        running: &mut JoinSet<()>,
        slots: &RenderSlots,
    ) {
        let start = if claim.request.reference_images.is_empty() {
            Some(Start::Render(permit))
        } else {
            self.reference_slots.take(claim.account_id).map(Start::Fetch)
        };
        let (worker, slots) = (self.clone(), slots.clone());
        // At the level of errors, so that no filter separates an event from its task.
        let request_id = claim.request.request_id.as_deref();
        let span =
            tracing::error_span!("task", task_id = %claim.lease.task_id, request_id, outcome = Empty, error = Empty);
        let attempt = async move {
            let outcome = match start {
                Some(start) => worker.work(claim, start, slots).await,
                None => {
                    worker.release(claim.lease, Duration::ZERO).await;
                    attempt::RELEASED
                }
            };
            let failed = matches!(outcome, attempt::FAILED | attempt::LOST);
            Span::current().record("outcome", outcome).record("error", failed);
        };
        running.spawn(attempt.instrument(span));
    }

    async fn send_heartbeats(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.settings.heartbeat()).await;
            self.renew().await;
        }
    }

    /// One heartbeat: renews the leases of all attempts in progress and cancels attempts whose lease is lost.
    pub async fn renew(&self) {
        let leases = self.held.leases();
        if leases.is_empty() {
            return;
        }
        match self.shared.store.renew(leases, self.settings.lease).await {
            Ok(lost) => {
                self.cancel(lost);
            }
            Err(error) => tracing::error!(%error, "could not renew leases; retrying at the next heartbeat"),
        }
    }

    /// Cancels attempts whose lease is lost because their task was ended elsewhere, and returns their number. A
    /// heartbeat would find them later.
    pub async fn cancel_lost(&self) -> usize {
        let leases = self.held.leases();
        if leases.is_empty() {
            return 0;
        }
        match self.shared.store.lost(leases).await {
            Ok(lost) => self.cancel(lost),
            Err(error) => {
                tracing::debug!(%error, "could not look for lost leases; retrying soon");
                0
            }
        }
    }

    fn cancel(&self, lost: Vec<Lease>) -> usize {
        // An attempt that ends its task loses the lease by that, and is not cancelled.
        let cancelled = lost.into_iter().filter(|lease| self.held.cancel(*lease));
        // The sweeper warns of leases that it reclaims. Any other loss was requested (cancel or fail).
        let log = |lease: &Lease| tracing::info!(task = %lease.task_id, "lease lost (task cancelled or timed out); cancelling the attempt");
        cancelled.inspect(log).count()
    }

    async fn report_progress_forever(self: Arc<Self>) {
        loop {
            tokio::time::sleep(PROGRESS_EVERY).await;
            self.cancel_lost().await;
            self.report_progress().await;
        }
    }

    /// Saves the progress of attempts that have advanced since the last report, so that polls can show it, and returns
    /// their number. A failed report is repeated with the next one; attempts don't wait for it.
    pub async fn report_progress(&self) -> usize {
        self.report_previews().await;
        let changed = self.held.changed(self.shared.clock.elapsed());
        if changed.is_empty() {
            return 0;
        }
        match self.shared.store.report_progress(changed.clone()).await {
            Ok(()) => {
                self.held.reported(&changed);
                changed.len()
            }
            Err(error) => {
                tracing::debug!(%error, "could not report the progress of attempts; retrying soon");
                0
            }
        }
    }

    async fn report_previews(&self) {
        let previews = self.held.new_previews();
        if previews.is_empty() {
            return;
        }
        let pictures = previews.clone();
        let encode = move || pictures.iter().map(|(lease, picture)| (*lease, picture.to_png().into())).collect();
        // A preview that cannot be encoded is tried again with the next one.
        let Ok(pngs) = tokio::task::spawn_blocking(encode).await else { return };
        match self.shared.store.report_previews(pngs).await {
            Ok(()) => self.held.shown(previews),
            Err(error) => tracing::debug!(%error, "could not report the previews of attempts; retrying soon"),
        }
    }

    /// Reports the state of the worker at intervals, and at once when its pace is first known or its engine goes or
    /// returns. When `working` is cancelled, it reports that the worker no longer takes work.
    async fn report_while(self: Arc<Self>, working: CancellationToken) {
        loop {
            self.report().await;
            tokio::select! {
                () = working.cancelled() => break,
                () = self.throughput.news() => {}
                () = tokio::time::sleep(WORKER_REPORT_EVERY) => {}
            }
        }
        self.report_that_it_is(false).await;
    }

    /// Most reference images of a task that its engine takes.
    pub fn max_references(&self) -> u32 {
        self.renderer.max_references()
    }

    /// Makes the engine known to all processes, before the first task is claimed: none may fail a task that only this
    /// engine can do.
    pub async fn register(&self) -> Result<(), StoreError> {
        self.shared.store.report_worker(self.throughput.report(false)).await
    }

    /// Reports the state of the worker once.
    pub async fn report(&self) {
        self.report_that_it_is(!self.engine_is_down.load(Ordering::SeqCst)).await;
    }

    async fn report_that_it_is(&self, available: bool) {
        if let Err(error) = self.shared.store.report_worker(self.throughput.report(available)).await {
            tracing::warn!(engine = self.engine, %error, "could not report this worker's state to other processes");
        }
    }

    /// Waits for running renders: for the drain time after `stop`, or from now on.
    async fn drain(&self, mut running: JoinSet<()>, stop: Option<&CancellationToken>) {
        if !running.is_empty() {
            tracing::info!(renders = running.len(), "waiting for running renders");
        }
        let no_longer = async {
            if let Some(stop) = stop {
                stop.cancelled().await;
            }
            tokio::time::sleep(self.settings.drain_timeout).await;
        };
        tokio::select! {
            biased;
            () = join_all(&mut running) => return,
            () = no_longer => {}
        }
        let unfinished = self.held.cancel_all();
        // Engines get a moment to stop; attempts still in progress then are aborted.
        drop(tokio::time::timeout(CANCEL_GRACE, join_all(&mut running)).await);
        running.shutdown().await;
        for lease in unfinished {
            self.release(lease, Duration::ZERO).await;
        }
    }

    /// Gives a task back. Nobody claims it before `delay` has passed.
    async fn release(&self, lease: Lease, delay: Duration) {
        match self.shared.store.release(lease, delay).await {
            Ok(LeaseWrite::Done) => tracing::info!(task = %lease.task_id, "task returned to the queue"),
            Ok(LeaseWrite::Lost) => tracing::debug!(task = %lease.task_id, "lease was lost before its release"),
            Err(error) => {
                tracing::error!(task = %lease.task_id, %error, "could not release the task; its lease will expire")
            }
        }
    }
}

async fn join_all(running: &mut JoinSet<()>) {
    while running.join_next().await.is_some() {}
}

/// Claimed tasks, and what the claim says about the queue.
struct Claimed {
    claims: Vec<Claim>,
    queue: QueueState,
}

#[derive(PartialEq, Eq)]
enum QueueState {
    Drained,
    MayHoldMore,
}
