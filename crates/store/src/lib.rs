//! The store: accounts, keys, credits and tasks in a database.
//!
//! Each method is a verb of the domain and exactly one transaction, durable when the method returns; only the sweeper's
//! methods, such as [`Store::reclaim`], use several. Lookups return `Option`; a refusal by a rule is an outcome, not an
//! error. An error means that nothing was changed, unless it is [`StoreError::Unknown`].

// A unit test includes a file of the black-box tests.
#[cfg(test)]
extern crate self as tintype_store;

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use tintype_domain::ledger::NotCharged;
use tintype_domain::model::{Id, Task};
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
mod retention;
mod rights;
mod schema;
mod second_factor;
mod shared_links;
mod sign_up;
pub mod sqlite;
mod strikes;
mod submit;
mod sweep;
mod tasks;
mod uploads;
mod values;
mod workers;

pub use self::accounts::{AccountChange, CreditChange};
pub use self::audit::{Audit, Drift};
pub use self::audit_log::{Action, Actor, AuditEntry, AuditedChange, Via};
pub use self::calls::{Attachment, CALL_LIFE, Call, CallEnd, FOUND_UNCOUNTED_WITHIN, Origin};
pub use self::deliveries::{
    AttemptEnd, AttemptFailure, AttemptWrite, DeliveryClaim, DueEndpoint, EndpointEffect, LONGEST_WAIT,
};
pub use self::driver::Store;
pub use self::endpoints::{EndpointChange, NewEndpoint};
pub use self::error::{Cause, OpenError, StoreError};
pub use self::gallery::{Board, BoardWrite, GalleryFilter, GalleryPage, MOST_COUNTED, TaskState};
pub use self::invitations::{Invitation, InvitationAcceptance, NewInvitation};
pub use self::keys::{KeyChange, NewKey};
pub use self::leases::{
    AttemptProgress, Cancellation, Claim, LONGEST_DELAY, LONGEST_LEASE, Lease, LeaseWrite, MAX_LOST_LEASES, Reclaim,
    Reclaimed, Refused, Retry, StrikeRule,
};
pub use self::people::{
    Candidate, Credential, DeleteSessions, NewSession, Newcomer, PersonAdded, PersonChange, Proof, SignUp,
};
pub use self::reports::{
    AccountSummary, DayUsage, EntryFilter, FoundPerson, Hour, Struck, UsageBy, UsageFilter, UsageRow,
};
pub use self::rights::{Right, SessionRight};
pub use self::schema::{FIRST_VERSION, Schema};
pub use self::shared_links::{NewSharedLink, SharedLink, Target};
pub use self::uploads::{NewUpload, Upload, UploadedPicture};
pub use self::workers::{
    ANY_REFERENCES, ENGINE_SILENCE, EndingsElsewhere, EngineState, ReferenceLimits, WORKER_SILENCE, WaitingForEngine,
    WaitingTask, WorkerReport,
};

/// The longest that a sweep can be postponed. A sweep due later than that was postponed before the clock was set back,
/// and counts as due.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A submit whose transaction hasn't begun this long after the last byte of its request never begins.
pub const START_WITHIN: Duration = Duration::from_secs(5);

/// Result of a store method.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Outcome of adding something that an account can have only a limited number of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addition<T> {
    /// It was added.
    Created(T),
    /// The account has reached its limit.
    TooMany,
    /// The account, or whatever else it is added to, doesn't exist, is deleted, or is a revoked key.
    NotPossible,
}

impl<T> Addition<T> {
    /// What was added, if it was.
    pub fn created(self) -> Option<T> {
        if let Self::Created(added) = self { Some(added) } else { None }
    }
}

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
    /// Refused before it was charged, for this reason.
    NotCharged(NotCharged),
    /// Nothing happened: too many tasks of the account have failed lately. The service decides this, never the store.
    TooManyFailed {
        /// How long until fewer of them count.
        wait: Duration,
    },
    /// Nothing happened: the account has no such picture as this reference names, counted from 0. The service decides
    /// it.
    NoReference {
        /// The place of the reference.
        index: usize,
    },
    /// Nothing happened: [`Store::attach_call`] finds an earlier task.
    Repeated,
    /// Nothing happened: the [`StartLimit`] was over before the transaction began.
    NotStarted,
    /// Nothing happened: the queue is so long that the task would not end in time. The service decides this, never the
    /// store.
    Overloaded {
        /// By how much the task would exceed its time limit.
        excess: Duration,
    },
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
    /// When the oldest of them was submitted.
    #[serde(skip)]
    pub oldest: Option<Timestamp>,
    /// Time since which the queue is paused.
    #[serde(skip)]
    pub paused_at: Option<Timestamp>,
}

impl QueueDepth {
    /// Waiting tasks with more than `max_references` references; `None` means all of them.
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
    /// The person who created it in the studio, even if this person has left; `None` for others, and for tasks that
    /// ended under a release before schema 104.
    pub person_id: Option<Id>,
    /// Number of leases lost so far; `None` for a terminal task.
    pub lost_leases: Option<u32>,
    /// Time of its removal, which erases its request and hides the task from its owner.
    pub removed_at: Option<Timestamp>,
}

/// A completed task with its result files' names, or an upload with its file's name.
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
    /// When it was removed; `None` for a task in the bin, which can be restored.
    pub removed_at: Option<Timestamp>,
}

/// Most bytes of [`Store::send_update`]; PostgreSQL carries up to 8,000 with the name of the process.
pub const MAX_UPDATE_BYTES: usize = 7_900;
