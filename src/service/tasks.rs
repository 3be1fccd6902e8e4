//! Submits, finds and lists tasks for their owners. All surfaces use this module.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use tracing::Instrument as _;

use crate::service::ServiceContext;
use crate::service::call_hold::CallHold;
use crate::service::failed_tasks::FailedTasks;
use crate::service::finished::Finished;
use crate::service::queue_positions::QueuePosition;
use crate::service::waiters::WaitSlot;
use tintype_config::TASK_TIME_LIMIT;
use tintype_domain::cursor::CursorSigner;
use tintype_domain::model::{Id, Status, Surface, Task, TaskId, TaskRef};
use tintype_domain::request::GenerateRequest;
use tintype_domain::stored_reference::StoredReference;
use tintype_store::{
    Attachment, AttemptProgress, Call, Cause, Origin, Result, Right, START_WITHIN, StartLimit, StoreError, Submission,
};

/// Default page size.
pub const DEFAULT_PAGE: u32 = 20;
/// Largest page size that a caller can request.
pub const MAX_PAGE: u32 = 100;

/// One page of an account's tasks.
#[derive(Debug)]
pub struct Page {
    /// Newest first.
    pub tasks: Vec<Arc<Task>>,
    /// Cursor of the next page, if there is one.
    pub next_cursor: Option<String>,
}

/// A task as its owner polls it.
#[derive(Debug, PartialEq)]
pub struct PolledTask {
    /// The task.
    pub task: Arc<Task>,
    /// The progress of the present attempt at it, if there is a report of it.
    pub attempt: Option<AttemptProgress>,
}

/// The cursor is unreadable or was issued to another account.
#[derive(Debug)]
pub struct InvalidCursor;

/// Submits, finds and lists tasks.
#[derive(Debug)]
pub struct Tasks {
    shared: Arc<ServiceContext>,
    /// Makes the cursors of lists.
    pub cursors: CursorSigner,
    max_unfinished: u32,
    failed: FailedTasks,
    /// The cache of finished tasks.
    pub finished: Finished,
}

impl Tasks {
    /// Creates the rules for a store. Each account may have `max_unfinished` unfinished tasks, and fewer than
    /// `max_failed_tasks` that failed lately; 0 means no limit.
    ///
    /// # Errors
    /// [`StoreError`] when the secret of list cursors cannot be read.
    pub async fn open(shared: Arc<ServiceContext>, max_unfinished: u32, max_failed_tasks: u32) -> Result<Self> {
        let cursors = CursorSigner::new(&shared.store.cursor_secret().await?);
        let failed = FailedTasks::new(shared.clock.clone(), max_failed_tasks);
        Ok(Self { finished: Finished::new(shared.clone()), shared, cursors, max_unfinished, failed })
    }

    /// The first reference to a picture that this account does not have on this surface.
    async fn missing_reference(
        &self,
        account: Id,
        surface: Surface,
        request: &GenerateRequest,
    ) -> Result<Option<usize>> {
        let store = &self.shared.store;
        for (index, reference) in request.own_references() {
            let found = match reference {
                StoredReference::Upload(id) => store.find_upload(account, surface, id).await?.is_some(),
                StoredReference::Result { task, number } => {
                    let images = store.find_task(account, surface, task).await?.map(|task| task.status);
                    matches!(images, Some(Status::Completed(names)) if names.len() >= usize::from(number))
                }
            };
            if !found {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Charges and queues a task and wakes the worker. `arrived` is the time at which the last byte of the
    /// request arrived, by the monotonic clock. If the caller drops this future, a transaction that has begun runs to its
    /// end, and a transaction that has not begun never does.
    ///
    /// # Errors
    /// [`StoreError::Unknown`]: the task may exist and be charged. After any other error nothing was charged.
    pub async fn submit(
        &self,
        right: Right,
        account_id: Id,
        origin: Origin,
        surface: Surface,
        request: GenerateRequest,
        arrived: Duration,
    ) -> Result<Submission> {
        let hung_up = CancellationToken::new();
        let start = StartLimit { deadline: arrived + START_WITHIN, hung_up: hung_up.clone() };
        let _cancel_when_dropped = hung_up.drop_guard();
        if self.shared.disk.is_low() {
            return Err(StoreError::Full(Cause::new("less is free than --min-free-space")));
        }
        if let Some(index) = self.missing_reference(account_id, surface, &request).await? {
            return Ok(Submission::NoReference { index });
        }
        let (origin, request) = self.shared.presets.with_default(origin, request);
        let references = request.reference_images.len();
        let (store, engine) = (&*self.shared.store, origin.engine.as_deref());
        if let Some(wait) = self.failed.wait(store, account_id).await? {
            return Ok(Submission::TooManyFailed { wait });
        }
        if let Some(excess) = self.shared.wait_estimator.excess(store, account_id, references, engine).await {
            return Ok(Submission::Overloaded { excess });
        }
        let (shared, max_unfinished, call) = (self.shared.clone(), self.max_unfinished, origin.call);
        let submitting = async move {
            let cost = request.cost();
            let mut hold = None;
            let store = shared.store.with_right(right);
            let submission = store.submit_before(start, account_id, origin, surface, request, max_unfinished).await?;
            if let Submission::Accepted(task) = &submission {
                hold = call.and_then(|call| CallHold::of(&call, task.id, &shared));
                shared.queued.send_replace(());
                shared.wait_estimator.add_waiting(TaskRef { id: task.id, account_id, surface }, references);
                shared.metrics.submitted.inc();
                shared.metrics.credits_charged.inc_by(cost.unsigned_abs());
                let surface = surface.as_str();
                tracing::info!(task = %task.id, account = %account_id, surface, cost, "task accepted");
            }
            Ok((submission, hold))
        };
        to_its_end(submitting).await
    }

    /// Looks for the task of an earlier attempt at a call, by its key or person. Dropping this future releases that task
    /// for the next attempt.
    ///
    /// # Errors
    /// [`StoreError`]: no task is known.
    pub async fn attach(&self, right: Right, sender: Id, call: Call) -> Result<Attachment> {
        let shared = self.shared.clone();
        to_its_end(async move {
            let attachment = shared.store.with_right(right).attach_call(sender, call).await?;
            let hold = match attachment {
                Attachment::Task(task_id) => CallHold::of(&call, task_id, &shared),
                Attachment::None | Attachment::OtherChoices => None,
            };
            Ok((attachment, hold))
        })
        .await
    }

    /// The task, if this account created it on this surface.
    pub async fn find(&self, account_id: Id, surface: Surface, task_id: TaskId) -> Result<Option<PolledTask>> {
        let TaskId(id) = task_id;
        // Only the owner gets an answer from the cache: for other accounts, a cached task must take as long as a task that
        // does not exist.
        let cached = self.finished.get(id).filter(|task| task.account_id == account_id && task.surface == surface);
        if let Some(task) = cached {
            return Ok(Some(PolledTask { task, attempt: None }));
        }
        let read_at = self.shared.clock.elapsed();
        let polled = self.shared.store.poll_task(account_id, surface, id).await?;
        let Some((task, attempt)) = polled.map(|(task, attempt)| (Arc::new(task), attempt)) else { return Ok(None) };
        if task.status.is_terminal() {
            self.finished.insert(&task, read_at);
        }
        Ok(Some(PolledTask { task, attempt }))
    }

    /// The position of an unfinished task in the queue. Its wait ends with the time limit of the task at the latest.
    pub async fn queue_position(&self, found: &PolledTask) -> QueuePosition {
        let Task { id, account_id, surface, image_to_image, .. } = *found.task;
        self.queue_position_of(TaskRef { id, account_id, surface }, image_to_image, found.attempt).await
    }

    /// The position of a task that is known by its id, with reference images or without.
    pub async fn queue_position_of(
        &self,
        task: TaskRef,
        image_to_image: bool,
        attempt: Option<AttemptProgress>,
    ) -> QueuePosition {
        let position =
            self.shared.wait_estimator.queue_position(&self.shared.store, task, image_to_image, attempt).await;
        let left = TASK_TIME_LIMIT.saturating_sub(self.shared.ages.of(task.id));
        QueuePosition { wait: position.wait.map(|wait| wait.min(left)), ..position }
    }

    /// Waits until the task has ended, but not longer than `limit` and not after `released` completes, and returns the
    /// task's current state; returns at once if there is no such task. The store is only asked at the beginning and the
    /// end.
    pub async fn wait(
        &self,
        slot: &WaitSlot,
        account_id: Id,
        surface: Surface,
        task_id: TaskId,
        limit: Duration,
        released: impl Future<Output = ()>,
    ) -> Result<Option<PolledTask>> {
        let TaskId(id) = task_id;
        let waiter = slot.wait_for(id);
        let over = async {
            tokio::select! {
                () = tokio::time::sleep(limit) => {}
                () = released => {}
            }
        };
        tokio::pin!(over);
        let mut last = false;
        loop {
            // Begins before the look, so that no ending after the look is missed.
            let ended = waiter.ended();
            let found = self.find(account_id, surface, task_id).await?;
            if last || found.as_ref().is_none_or(|found| found.task.status.is_terminal()) {
                return Ok(found);
            }
            last = tokio::select! {
                () = ended => false,
                () = &mut over => true,
            };
        }
    }

    /// A page of at most `limit` of an account's tasks on one surface. No cursor, or an empty one, means the first page.
    pub async fn list(
        &self,
        account_id: Id,
        surface: Surface,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<std::result::Result<Page, InvalidCursor>> {
        let before = match cursor {
            None | Some("") => None,
            Some(cursor) => match self.cursors.verify(account_id, cursor) {
                Some(last) => Some(last),
                None => return Ok(Err(InvalidCursor)),
            },
        };
        // One task more than the limit shows whether another page follows.
        let mut tasks = self.page(account_id, surface, before, limit + 1).await?;
        let more = tasks.len() > limit as usize;
        tasks.truncate(limit as usize);
        let next_cursor = tasks.last().filter(|_| more).map(|last| self.cursors.sign(account_id, last.id));
        Ok(Ok(Page { tasks, next_cursor }))
    }

    /// An account's tasks, from the cache when it holds all of them.
    async fn page(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Arc<Task>>> {
        let read_at = self.shared.clock.elapsed();
        let ids = self.shared.store.list_task_ids(account_id, surface, before, limit).await?;
        if let Some(cached) = ids.iter().map(|id| self.finished.get_listed(*id)).collect() {
            return Ok(cached);
        }
        let tasks = self.shared.store.list_tasks(account_id, surface, before, limit).await?;
        let tasks: Vec<_> = tasks.into_iter().map(Arc::new).collect();
        for task in tasks.iter().filter(|task| task.status.is_terminal()) {
            self.finished.insert(task, read_at);
        }
        Ok(tasks)
    }
}

/// Runs a write to its end, even if the caller hangs up. Then the hold that comes with its outcome ends, too.
async fn to_its_end<T: Send + 'static>(
    write: impl Future<Output = Result<(T, Option<CallHold>)>> + Send + 'static,
) -> Result<T> {
    let written = tokio::spawn(write.in_current_span()).await;
    let (outcome, hold) = written.unwrap_or_else(|error| Err(StoreError::Unknown(Cause::new(error))))?;
    if let Some(hold) = hold {
        hold.disarm();
    }
    Ok(outcome)
}
