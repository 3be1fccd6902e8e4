//! The store: accounts, keys, credits and tasks in a database.
//!
//! Each method is a verb of the domain and exactly one transaction, durable when the method returns; only the sweeper's
//! methods, such as [`Upkeep::rescue`], use several. Lookups return `Option`; a refusal by a rule is an outcome, not an
//! error. An error means that nothing was changed, unless it is [`StoreError::Unknown`].

// A unit test includes a file of the black-box tests.
#[cfg(test)]
extern crate self as tintype_store;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use tintype_domain::ledger::NotCharged;
use tintype_domain::model::{FailureCause, Id, Surface, Task};
use tintype_domain::request::{GenerateRequest, MAX_REFERENCES};
use tintype_system::clock::Timestamp;

mod accounts;
mod audit;
mod audit_log;
mod budgets;
mod calls;
mod deliveries;
mod driver;
mod endings;
mod endpoints;
mod error;
mod failure;
mod fleet;
mod gallery;
mod identities;
mod invitations;
mod keys;
mod leases;
mod ledger;
mod people;
pub mod postgres;
mod progress;
mod queue;
mod reports;
mod rights;
mod schema;
mod second_factor;
mod shared_links;
mod sign_up;
pub mod sqlite;
mod strikes;
mod submit;
mod tasks;
mod upkeep;
mod uploads;

pub use self::accounts::{AccountChange, AccountCreation, Accounts, GrantOutcome, Rank, TakeOutcome};
pub use self::audit::{Audit, Drift};
pub use self::audit_log::{Action, Actor, AuditEntry, AuditLog, AuditedChange, Via};
pub use self::calls::{Attachment, CALL_LIFE, Call, CallEnd, Calls, FOUND_UNCOUNTED_WITHIN, Origin};
pub use self::deliveries::{
    AttemptEnd, AttemptFailure, AttemptWrite, Deliveries, DeliveryClaim, DueEndpoint, LONGEST_WAIT, Verdict,
};
pub use self::driver::SqlStore;
pub use self::endpoints::{EndpointChange, EndpointCreation, Endpoints, NewEndpoint};
pub use self::error::{Cause, OpenError, StoreError};
pub use self::fleet::{
    ANY_REFERENCES, Abilities, ENGINE_SILENCE, EndingsElsewhere, EngineState, Fleet, WORKER_SILENCE, WaitingForEngine,
    WaitingTask, WorkerReport,
};
pub use self::gallery::{Board, BoardWrite, Gallery, GalleryFilter, GalleryPage, MOST_COUNTED, TaskState};
pub use self::identities::{Identities, Linking};
pub use self::invitations::{Acceptance, Accepting, Invitation, Invitations, NewInvitation};
pub use self::keys::{KeyChange, KeyCreation, Keys, NewKey};
pub use self::leases::{
    AttemptProgress, Cancellation, Claim, Ended, LONGEST_DELAY, LONGEST_LEASE, Lease, LeaseWrite, MAX_LOST_LEASES,
    Refusal, Rescue, Rescued, Retry, StrikeRule,
};
pub use self::people::{
    Candidate, Credential, DeleteSessions, EndSessions, FactorRemoval, Joining, NewSession, Newcomer, People,
    PersonChange, PersonCreation, Proof, SignUp, SigningUp,
};
pub use self::reports::{
    AccountSummary, DayUsage, EntryFilter, FoundPerson, Hour, Reports, StruckKey, StruckPerson, UsageBy, UsageFilter,
    UsageRow,
};
pub use self::rights::{Right, SessionRight};
pub use self::schema::{FIRST_VERSION, Schema};
pub use self::shared_links::{NewSharedLink, SharedLink, SharedLinkCreation, SharedLinks, Target};
pub use self::upkeep::Upkeep;
pub use self::uploads::{NewUpload, Upload, UploadedPicture, Uploads};

/// Longest time by which a sweep is postponed. A sweep that is due later than that was postponed before the clock was
/// set back, and counts as due.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A submit whose transaction has not begun this long after the last byte of its request never begins.
pub const START_WITHIN: Duration = Duration::from_secs(5);

/// Result of a store method.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Deadline for starting a submit's transaction. A transaction that has begun always runs to its end.
#[derive(Debug, Clone)]
pub struct StartLimit {
    /// Latest begin, by the monotonic clock [`Clock::elapsed`](tintype_system::clock::Clock::elapsed).
    pub deadline: Duration,
    /// Cancelled when the caller has hung up.
    pub hung_up: CancellationToken,
}

impl StartLimit {
    /// No limit.
    pub fn none() -> Self {
        Self { deadline: Duration::MAX, hung_up: CancellationToken::new() }
    }

    /// Whether the transaction may no longer begin; `now` is by the monotonic clock.
    pub fn is_over(&self, now: Duration) -> bool {
        now > self.deadline || self.hung_up.is_cancelled()
    }
}

/// Outcome of submitting a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submission {
    /// The task was charged and queued.
    Accepted(Task),
    /// Refused: the balance is only `available`.
    InsufficientCredits {
        /// Credits in the account.
        available: i64,
    },
    /// Refused: the budget of the key has only `left`.
    OverBudget {
        /// The smaller of `left` and the credits in the account.
        available: i64,
        /// Credits left of the budget.
        left: i64,
        /// When the budget starts again.
        resets_at: Timestamp,
    },
    /// Refused: the account has reached its limit of unfinished tasks.
    TooManyUnfinished,
    /// Nothing happened: too many tasks of the account have failed lately. The service decides this, never the store.
    TooManyFailed {
        /// Time until fewer of them count.
        wait: Duration,
    },
    /// Nothing happened: the account has no such picture as this reference names, counted from 0. The service decides
    /// it.
    NoReference {
        /// The place of the reference.
        index: usize,
    },
    /// Nothing happened: [`Calls::attach_call`] finds an earlier task.
    Repeated,
    /// Nothing happened: the [`StartLimit`] was over before the transaction began.
    NotStarted,
    /// Nothing happened: the queue is so long that the task would not end in time. The service decides this, never the
    /// store.
    Overloaded {
        /// Time by which the task would exceed its time limit.
        excess: Duration,
    },
}

impl From<NotCharged> for Submission {
    fn from(refusal: NotCharged) -> Self {
        match refusal {
            NotCharged::TooManyUnfinished => Self::TooManyUnfinished,
            NotCharged::OverBudget { available, left, resets_at } => Self::OverBudget { available, left, resets_at },
            NotCharged::InsufficientCredits { available } => Self::InsufficientCredits { available },
        }
    }
}

/// Number of unfinished tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct QueueDepth {
    /// Waiting for a worker.
    pub waiting: u64,
    /// Waiting tasks with at least one reference image, at least two, and so on.
    #[serde(skip)]
    pub needing: [u64; MAX_REFERENCES],
    /// Leased to a worker.
    pub leased: u64,
    /// Time at which the oldest of them was submitted.
    #[serde(skip)]
    pub oldest: Option<Timestamp>,
    /// Time since which the queue is paused.
    #[serde(skip)]
    pub paused_at: Option<Timestamp>,
}

impl QueueDepth {
    /// Waiting tasks with more than `max_references` references; `None`: all of them.
    pub fn beyond(&self, max_references: Option<u32>) -> u64 {
        max_references.map_or(self.waiting, |most| self.needing.get(most as usize).copied().unwrap_or(0))
    }
}

/// A task that has not ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unfinished {
    /// The task.
    pub task_id: Id,
    /// The account that pays for it.
    pub account_id: Id,
    /// Whether it has reference images.
    pub image_to_image: bool,
    /// Whether a worker holds it.
    pub is_leased: bool,
    /// How far the present attempt is, if its worker has reported that.
    pub attempt: Option<AttemptProgress>,
    /// The number of its latest preview, which rises with each.
    pub preview: Option<i64>,
}

/// A preview that a caller would see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoughtPreview {
    /// The account that owns the task.
    pub account_id: Id,
    /// The task.
    pub task_id: Id,
    /// The number of the preview that the caller has seen; 0 before the first.
    pub shown: i64,
    /// Minimum progress (0 to 1) for the next preview.
    pub from: f64,
}

/// The result of a preview lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPreview {
    /// Its place among those that were sought.
    pub place: usize,
    /// Its number.
    pub number: i64,
    /// A small PNG.
    pub png: Bytes,
}

/// A task with its request and all details.
#[derive(Debug, Clone)]
pub struct TaskRecord {
    /// The task.
    pub task: Task,
    /// The request.
    pub request: GenerateRequest,
    /// The person who created it in the studio, even if this person has left; `None` for others, and for tasks that ended
    /// under a release before schema 104.
    pub person_id: Option<Id>,
    /// Number of leases lost so far; `None` for a terminal task.
    pub lost_leases: Option<u32>,
    /// Time of its removal, which erases its request and hides the task from its owner.
    pub removed_at: Option<Timestamp>,
}

/// A completed task with the names of its result files, or an upload with that of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletedTask {
    /// The task or the upload.
    pub id: Id,
    /// The account that owns it.
    pub account_id: Id,
    /// Its files, in order.
    pub images: Vec<String>,
}

/// The state of a task or an upload that decides whether the sweeper removes its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFiles {
    /// The task or the upload.
    pub id: Id,
    /// Whether it is unfinished.
    pub is_processing: bool,
    /// Names of its files; empty unless it is completed.
    pub images: Vec<String>,
    /// Time of its last change.
    pub updated_at: Timestamp,
    /// Time of its removal; `None` for a task in the bin, which may come back.
    pub removed_at: Option<Timestamp>,
}

/// Tasks as their owners and the operator see them.
#[async_trait]
pub trait Tasks: std::fmt::Debug + Send + Sync + 'static {
    /// Charges and queues a task, unless the account has `max_unfinished` unfinished tasks (0: no limit) or too few
    /// credits, too little is left of the key's budget, or the call in `origin`, which is recorded with it, repeats
    /// one. Nothing happens unless the transaction begins before `start` is over. After [`StoreError::Unknown`] the
    /// task may exist and be charged.
    async fn submit_before(
        &self,
        start: StartLimit,
        account_id: Id,
        origin: Origin,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission>;

    /// [`Tasks::submit_before`] without a time limit for the begin.
    async fn submit(
        &self,
        account_id: Id,
        key_id: Option<Id>,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission> {
        self.submit_before(StartLimit::none(), account_id, key_id.into(), surface, request, max_unfinished).await
    }

    /// The task if this account created it on this surface, and how far the present attempt at it is, if its worker has
    /// reported that.
    async fn poll_task(
        &self,
        account_id: Id,
        surface: Surface,
        id: Id,
    ) -> Result<Option<(Task, Option<AttemptProgress>)>>;

    /// The task of [`Tasks::poll_task`] alone.
    async fn find_task(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Task>> {
        Ok(self.poll_task(account_id, surface, id).await?.map(|(task, _)| task))
    }

    /// Tasks of an account on one surface, newest first, older than the task `before`.
    async fn list_tasks(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Task>>;

    /// The ids of the page that [`Tasks::list_tasks`] returns.
    async fn list_task_ids(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Id>>;

    /// The tasks that [`Tasks::list_tasks`] returns, with their requests. A page with a row that cannot be read is an
    /// error.
    async fn list_records(
        &self,
        account_id: Id,
        surface: Surface,
        before: Option<Id>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>>;

    /// The task of [`Tasks::poll_task`] with its request.
    async fn find_record(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<TaskRecord>>;

    /// The number of an account's tasks on one surface that have not ended.
    async fn count_unfinished(&self, account_id: Id, surface: Surface) -> Result<u64>;

    /// The unfinished tasks of some accounts on one surface, in any order.
    async fn unfinished(&self, accounts: &[Id], surface: Surface) -> Result<Vec<Unfinished>>;

    /// The latest preview of the present attempt at a task that this account created on this surface: a small PNG.
    async fn find_preview(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Bytes>>;

    /// The latest previews of the present attempts at such tasks on a surface, of those that are due and not yet seen.
    /// An attempt that does not report how far it is counts as far enough.
    async fn find_previews(&self, surface: Surface, sought: &[SoughtPreview]) -> Result<Vec<FoundPreview>>;

    /// Any task, for the operator, including removed ones.
    async fn inspect_task(&self, id: Id) -> Result<Option<TaskRecord>>;

    /// Tasks of one account or of all, newest first, for the operator.
    async fn recent_tasks(&self, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>>;

    /// Completed tasks and uploads of all accounts and surfaces that have their files, oldest first, newer than the
    /// task or upload `after`, for the operator.
    async fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>>;

    /// The state of the existing tasks and uploads among `ids`, in any order, including removed ones.
    async fn task_files(&self, ids: &[Id]) -> Result<Vec<TaskFiles>>;
}

/// Tasks that have not ended, and the leases on them.
#[async_trait]
pub trait Queue: std::fmt::Debug + Send + Sync + 'static {
    /// Leases up to `max` waiting tasks for `lease` that name no engine: round robin over accounts, oldest first within
    /// one. None while the queue is paused.
    async fn claim(&self, max: usize, lease: Duration) -> Result<Vec<Claim>> {
        self.claim_within(max, "", ANY_REFERENCES, lease, &[]).await
    }

    /// [`Queue::claim`] of tasks that name no engine or this one, with up to `max_references` reference images, without
    /// the accounts `passed_over`. Once an account is no longer excluded, it is served before any other account is
    /// served twice. Claims with different engines or `max_references` take turns of their own, so that none keeps an
    /// account from the others.
    async fn claim_within(
        &self,
        max: usize,
        engine: &str,
        max_references: u32,
        lease: Duration,
        passed_over: &[Id],
    ) -> Result<Vec<Claim>>;

    /// Extends leases to `lease` from now; returns the leases that had been lost.
    async fn renew(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>>;

    /// Writes down how far attempts are, apart from the tasks. The report of an attempt whose lease is lost has no
    /// effect. [`Tasks::poll_task`] shows a report until the lease ends, and [`Upkeep::rescue`] deletes it afterwards.
    /// A report may get lost: no backup keeps it, no other database gets it, and a crash of the database may erase it.
    async fn report_progress(&self, attempts: Vec<(Lease, AttemptProgress)>) -> Result<()>;

    /// Keeps the latest preview of attempts, a small PNG each. It lasts as long as a report of
    /// [`Queue::report_progress`].
    async fn report_previews(&self, previews: Vec<(Lease, Bytes)>) -> Result<()>;

    /// Returns a task to the queue, claimable after `delay`. The attempt does not count as lost.
    async fn release(&self, lease: Lease, delay: Duration) -> Result<LeaseWrite>;

    /// Ends a failed attempt. The task is queued again, claimable after `delay`; or, after [`MAX_LOST_LEASES`] lost
    /// leases, it fails with `last_error` and is refunded.
    async fn retry(&self, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry>;

    /// Completes a task with the names of its result files, at least one.
    async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite>;

    /// Fails and refunds a task, with a message for the caller.
    async fn fail(&self, lease: Lease, cause: FailureCause, error: &str) -> Result<LeaseWrite>;

    /// Fails and refunds a task, with a message for the caller, because the content policy refuses it. If there is a
    /// `rule`, its key or person gets a strike, which suspends either at the limit; the audit log tells of a person.
    async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Refusal>;

    /// Fails and refunds a task regardless of its lease; `None` if it is not processing.
    async fn fail_unleased(&self, id: Id, cause: FailureCause, error: &str) -> Result<Option<Ended>>;

    /// Fails and refunds an unfinished task of an account and a surface, and of `author` if there is one. If a worker holds
    /// it, the worker loses its lease, and the rule of [`Stops`](tintype_domain::ledger::Stops) may refuse it.
    async fn cancel(
        &self,
        account_id: Id,
        surface: Surface,
        id: Id,
        author: Option<Id>,
        error: &str,
    ) -> Result<Cancellation>;

    /// Number of unfinished tasks.
    async fn queue_depth(&self) -> Result<QueueDepth>;

    /// The waiting tasks that name an engine, by engine.
    async fn waiting_for_engines(&self) -> Result<Vec<WaitingForEngine>>;

    /// The oldest waiting tasks, in order, at most `limit`.
    async fn waiting_tasks(&self, limit: u32) -> Result<Vec<WaitingTask>>;

    /// Pauses the queue: no claim by any process returns a task until [`Queue::resume_queue`]. Returns the time since
    /// which it is paused.
    async fn pause_queue(&self) -> Result<Timestamp>;

    /// Ends the pause of the queue. Returns the time since which it was paused, if it was.
    async fn resume_queue(&self) -> Result<Option<Timestamp>>;

    /// Time since which the queue is paused.
    async fn queue_paused_at(&self) -> Result<Option<Timestamp>>;

    /// Waits until another process may have queued a task. This is only a hint: the method may return late, without
    /// reason, or never.
    async fn tasks_elsewhere(&self);

    /// Tells other processes soon that this one has ended a task. This is only a hint, which may be lost.
    fn announce_ending(&self, task_id: Id);

    /// Waits until other processes have ended tasks.
    async fn endings_elsewhere(&self) -> EndingsElsewhere;

    /// Tells other processes what someone did that open pages show, in at most [`MAX_NEWS`] bytes that begin with `{`.
    /// This is only a hint, which may be lost.
    fn announce_news(&self, news: String);

    /// Waits for what another process tells.
    async fn news_elsewhere(&self) -> String;
}

/// Most bytes of [`Queue::announce_news`]; PostgreSQL carries up to 8,000 with the name of the process.
pub const MAX_NEWS: usize = 7_900;

/// The database behind a running service.
pub trait Store:
    Accounts
    + AuditLog
    + Calls
    + Deliveries
    + Endpoints
    + Fleet
    + Gallery
    + Identities
    + Invitations
    + Keys
    + People
    + Queue
    + Reports
    + SharedLinks
    + Tasks
    + Upkeep
    + Uploads
{
}

impl Store for SqlStore {}
