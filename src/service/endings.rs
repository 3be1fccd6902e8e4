//! The endings of tasks. All code of this process ends tasks through [`Endings`], which writes, counts and logs each
//! ending, and notifies subscribers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, broadcast};

use crate::metrics::Metrics;
use crate::service::waiters::Waiters;
use tintype_domain::model::{FailureCause, Id, Surface, TaskFailure, TaskRef, Violation};
use tintype_domain::string_enum;
use tintype_store::{
    Cancellation, Claim, EndingsElsewhere, Lease, LeaseWrite, Reclaim, Reclaimed, Refused, Result, Retry, Right, Store,
    StrikeRule,
};
use tintype_system::clock::Timestamp;

// Errors of failed tasks: messages for the owner, without internals.

/// The content policy refuses the task.
pub const REFUSED: &str = "The request was refused by the content policy. Its credits were refunded.";
/// Every attempt at the task was lost.
pub const GAVE_UP: &str = "The images could not be generated after several attempts. The credits were refunded.";
/// The engine failed permanently.
pub const CANNOT_RENDER: &str = "The images could not be generated. The credits were refunded.";
/// The task was not finished in time.
pub const OVERDUE: &str = "The task was not finished within 9 minutes. Its credits were refunded.";

/// No engine of this installation makes such images for the model that the caller named.
pub const NO_ENGINE: &str =
    "This service has no engine that makes such images with the model. The credits were refunded.";

/// Someone of its account cancelled the task.
pub const CANCELLED: &str = "Cancelled.";

/// An operator stopped the task, and gave no reason.
pub const STOPPED: &str = "The task was stopped by the operator. Its credits were refunded.";

/// The task has more references than the `most` that any engine takes.
pub fn too_many_references(most: u32) -> String {
    match most {
        0 => "This service takes no reference images. The credits were refunded.".into(),
        1 => "This service takes one reference image. The credits were refunded.".into(),
        _ => format!("This service takes up to {most} reference images. The credits were refunded."),
    }
}

/// Wait before a failed attempt or a failed write is repeated.
pub const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How often a write that ends a task is tried.
const TRIES: u32 = 10;

/// Most endings that wait for a slow subscriber. A thousand workers finish about twenty tasks a second, so it may fall
/// behind by most of a minute.
pub const MAX_WAITING: usize = 1_024;

/// An ending that this process has committed: the store already shows the task as it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// The task.
    pub task: TaskRef,
    /// How it ended.
    pub kind: EndingKind,
}

string_enum! {
    /// How a task ended.
    pub enum EndingKind: "ending" {
        /// With images.
        Completed = "completed",
        /// With a message for its owner, and refunded.
        Failed = "failed",
        /// By its account, and refunded. To the interface it has failed.
        Cancelled = "cancelled",
    }
}

/// Ends tasks, and notifies subscribers.
#[derive(Debug)]
pub struct Endings {
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    sender: broadcast::Sender<Ending>,
    /// Callers that wait for the end of a task.
    pub waiters: Waiters,
    /// Another process has ended tasks, or may have.
    pub elsewhere: Notify,
}

impl Endings {
    /// Ends tasks of this store.
    pub fn new(store: Arc<Store>, metrics: Arc<Metrics>) -> Self {
        let (sender, waiters) = (broadcast::Sender::new(MAX_WAITING), Waiters::default());
        Self { store, metrics, sender, waiters, elsewhere: Notify::new() }
    }

    /// The endings that this process commits from now on, each once. A subscriber that falls behind loses the oldest of
    /// more than [`MAX_WAITING`] and receives [`Lagged`](broadcast::error::RecvError::Lagged) with their number.
    ///
    /// Nothing here is durable. A subscriber misses endings committed by another process (such as `tintype task fail`),
    /// endings whose outcome the store doesn't know, and endings in a sweep that failed in a later batch, so it must
    /// check its tasks now and then. Webhook events survive this process: they are written in the ending's transaction.
    pub fn subscribe(&self) -> broadcast::Receiver<Ending> {
        self.sender.subscribe()
    }

    /// Completes a task with its files; `took` is the time since its claim.
    ///
    /// # Errors
    /// [`tintype_store::StoreError`] of the last of several tries. If it is unknown, the task may be completed.
    pub async fn complete(&self, claim: &Claim, images: &[String], took: Duration) -> Result<LeaseWrite> {
        let lease = claim.lease;
        let complete = || self.store.complete(lease, images.to_vec());
        let outcome = self.retried(lease, "complete", complete, |outcome| *outcome == LeaseWrite::Lost).await?;
        match outcome {
            LeaseWrite::Done => {
                self.metrics.rendered(took);
                self.ended(claim.task(), EndingKind::Completed);
                tracing::info!(task = %lease.task_id, millis = took.as_millis(), "task completed");
            }
            LeaseWrite::Lost => tracing::warn!(task = %lease.task_id, "lease lost; result discarded"),
        }
        Ok(outcome)
    }

    /// Fails and refunds a task. If every try fails, the lease expires and the task is queued again.
    pub async fn fail(&self, claim: &Claim, failure: &TaskFailure) {
        let (lease, task, TaskFailure { cause, message }) = (claim.lease, claim.lease.task_id, failure);
        let fail = || self.store.fail(lease, *cause, message);
        match self.retried(lease, "fail", fail, |outcome| *outcome == LeaseWrite::Lost).await {
            Ok(LeaseWrite::Done) => self.failed(claim.task(), message),
            Ok(LeaseWrite::Lost) => tracing::warn!(%task, "lease lost; failure discarded"),
            Err(error) => {
                tracing::error!(%task, %error, "could not fail the task; if it has not failed, its lease will expire")
            }
        }
    }

    /// Fails and refunds a task that the content policy refuses, and counts a strike against its key or its person. If every
    /// try fails, the lease expires and the task is queued again.
    pub async fn refuse(&self, claim: &Claim, violation: Violation, strikes: Option<StrikeRule>) {
        let (lease, task, kind) = (claim.lease, claim.lease.task_id, violation.as_str());
        let refuse = || self.store.refuse(lease, REFUSED, strikes);
        match self.retried(lease, "refuse", refuse, Option::is_none).await {
            Ok(Some(Refused { suspended_key, suspended_person })) => {
                self.refused(claim, kind);
                if let Some(key) = suspended_key {
                    self.metrics.suspended.inc();
                    tracing::warn!(%key, "key suspended for violations of the content policy; `tintype key enable` enables it again");
                }
                if let Some(person) = suspended_person {
                    self.metrics.suspended_people.inc();
                    tracing::warn!(%person, "person suspended for policy violations; run `tintype person lift` to reinstate them");
                }
            }
            Ok(None) => tracing::warn!(%task, "lease lost; refusal discarded"),
            Err(error) => {
                tracing::error!(%task, %error, "could not refuse the task; if it has not failed, its lease will expire")
            }
        }
    }

    /// Ends a failed attempt: the task is queued again, or failed and refunded after its last attempt. If the write
    /// fails, the lease expires.
    pub async fn retry(&self, claim: &Claim, delay: Duration, cause: &str) {
        let task = claim.lease.task_id;
        match self.store.retry(claim.lease, delay, GAVE_UP).await {
            Ok(Retry::Queued) => {
                self.metrics.attempts_lost.inc();
                tracing::warn!(%task, cause, "attempt failed; task queued again");
            }
            Ok(Retry::Failed) => {
                self.metrics.attempts_lost.inc();
                tracing::warn!(%task, cause, "last attempt failed; task failed");
                self.failed(claim.task(), GAVE_UP);
            }
            Ok(Retry::Lost) => {
                tracing::warn!(%task, cause, "attempt failed, but its lease was already lost; result ignored")
            }
            Err(error) => {
                tracing::error!(%task, %error, cause, "could not queue the task again; its lease will expire");
            }
        }
    }

    /// Fails and refunds a task whether or not a worker holds it. Returns whether it was processing.
    pub async fn fail_unleased(&self, id: Id, cause: FailureCause, message: &str) -> Result<bool> {
        let ended = self.store.fail_unleased(id, cause, message).await?;
        if let Some(ended) = ended {
            self.failed(ended, message);
        }
        Ok(ended.is_some())
    }

    /// Fails and refunds an unfinished task of an account and a surface, and of `author` if there is one.
    pub async fn cancel(
        &self,
        right: Right,
        account_id: Id,
        surface: Surface,
        id: Id,
        author: Option<Id>,
    ) -> Result<Cancellation> {
        let outcome = self.store.with_right(right).cancel(account_id, surface, id, author, CANCELLED).await?;
        if let Cancellation::Done(ended) = outcome {
            self.ended(ended, EndingKind::Cancelled);
            tracing::info!(task = %id, "task cancelled by its account and refunded");
        }
        Ok(outcome)
    }

    /// Fails and refunds every unfinished task created at or before `cutoff`.
    pub async fn expire(&self, cutoff: Timestamp) -> Result<()> {
        let overdue = self.store.expire(cutoff, OVERDUE).await?;
        if !overdue.is_empty() {
            overdue.iter().for_each(|ended| self.ended(*ended, EndingKind::Failed));
            tracing::warn!(tasks = overdue.len(), "overdue tasks failed and refunded");
        }
        Ok(())
    }

    /// Fails and refunds every waiting task with more than `most` references, which is all that any engine takes.
    pub async fn fail_over_reference_limit(&self, most: u32) -> Result<()> {
        let reason = too_many_references(most);
        for ended in self.store.fail_over_reference_limit(most, &reason).await? {
            self.failed(ended, &reason);
        }
        Ok(())
    }

    /// Fails and refunds every waiting task that names an engine which is not among these, or has more references than it
    /// takes.
    pub async fn fail_without_engine(&self, engines: &[(String, u32)]) -> Result<()> {
        for ended in self.store.fail_without_engine(engines, NO_ENGINE).await? {
            self.failed(ended, NO_ENGINE);
        }
        Ok(())
    }

    /// Reclaims leases: their tasks are queued again, or failed and refunded after their last attempt. Returns the
    /// number of leases.
    pub async fn reclaim(&self, which: Reclaim) -> Result<usize> {
        let Reclaimed { queued, failed } = self.store.reclaim(which, GAVE_UP).await?;
        let lost = queued + failed.len();
        if lost > 0 {
            self.metrics.attempts_lost.inc_by(lost as u64);
            failed.iter().for_each(|ended| self.ended(*ended, EndingKind::Failed));
            tracing::warn!(queued, failed = failed.len(), "reclaimed expired leases");
        }
        Ok(lost)
    }

    fn refused(&self, claim: &Claim, kind: &'static str) {
        self.ended(claim.task(), EndingKind::Failed);
        self.metrics.task_refused(kind);
        tracing::info!(task = %claim.lease.task_id, kind, "task refused by the content policy and refunded");
    }

    fn failed(&self, task: TaskRef, reason: &str) {
        self.ended(task, EndingKind::Failed);
        tracing::info!(task = %task.id, reason, "task failed and refunded");
    }

    /// Wakes the callers of this process that wait for tasks which other processes end, forever.
    pub async fn receive(&self) {
        loop {
            match self.store.endings_elsewhere().await {
                EndingsElsewhere::Of(tasks) => tasks.into_iter().for_each(|task| self.waiters.wake(task)),
                EndingsElsewhere::Missed => self.waiters.wake_all(),
            }
            self.elsewhere.notify_one();
        }
    }

    /// Counts a committed ending, and notifies subscribers, waiting callers and other processes.
    fn ended(&self, task: TaskRef, kind: EndingKind) {
        self.metrics.task_ended(kind.as_str());
        // An error means that there is no subscriber.
        drop(self.sender.send(Ending { task, kind }));
        self.wake(task.id);
    }

    /// Makes everyone who waits for a task look at it, here and in other processes.
    fn wake(&self, task_id: Id) {
        self.waiters.wake(task_id);
        self.store.announce_ending(task_id);
    }

    /// Tries a write that ends a task several times, because repeating it costs less than repeating the attempt. If a try
    /// fails and the next one finds the lease lost, the failed try may have ended the task: whoever waits for it looks, and
    /// the error is returned.
    async fn retried<T, W: Future<Output = Result<T>>>(
        &self,
        lease: Lease,
        verb: &str,
        write: impl Fn() -> W,
        is_lost: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let mut outcome = write().await;
        for _ in 1..TRIES {
            let Err(error) = outcome else { break };
            tracing::warn!(task = %lease.task_id, %error, "could not {verb} the task; retrying");
            tokio::time::sleep(RETRY_DELAY).await;
            outcome = match write().await {
                Ok(outcome) if is_lost(&outcome) => {
                    self.wake(lease.task_id);
                    return Err(error);
                }
                again => again,
            };
        }
        outcome
    }
}
