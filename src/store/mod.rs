//! Where accounts, keys, credits and tasks are kept.
//!
//! A method of [`Store`] is a verb of the domain and exactly one transaction, durable when it
//! returns; only the sweeping ones, [`Upkeep::rescue`], [`Upkeep::expire`], [`Upkeep::remove_tasks`] and
//! [`Upkeep::forget_months`], take several. Look-ups answer with `Option`; what the rules refuse is an outcome, not an error. An error
//! means that nothing happened, unless it is [`StoreError::Unknown`].

use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::clock::Timestamp;
use crate::domain::key::{ApiKey, KeyHash};
use crate::domain::model::{Account, Id, LedgerEntry, Surface, Task, TaskId};
use crate::domain::request::GenerateRequest;

mod audit;
mod error;
pub mod postgres;
pub mod sqlite;

pub use self::error::{Cause, StoreError};

/// A task that has lost this many leases is failed instead of queued again.
pub const MAX_LOST_LEASES: u32 = 3;

/// A worker that has not reported itself for this long, by the database's time, is not counted on.
pub const WORKER_SILENCE: Duration = Duration::from_secs(60);

/// Longest that a sweep of files is put off. One that is due later was put off before the clock was set back.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What ended the process: a fault of this program (`EX_SOFTWARE` of sysexits.h).
pub(crate) const EXIT_FAULT: i32 = 70;

/// What a task is told whose submit was answered with an error, and which turned out to be there all the same.
pub const UNANSWERED: &str = "The submit of this task was answered with an error. Its credits were refunded.";

/// What a [`Store`] method returns.
pub type Result<T> = std::result::Result<T, StoreError>;

/// What comes of creating an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountCreation {
    /// It exists now.
    Created(Account),
    /// Another account has the name, or has it as its id.
    NameTaken,
}

/// A key about to be stored.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// SHA-256 of its text.
    pub hash: KeyHash,
    /// Its first characters.
    pub hint: String,
    /// The operator's label.
    pub name: String,
    /// Submits a minute; `None` takes the server's default.
    pub submit_rate: Option<u32>,
    /// Reads a minute; `None` takes the server's default.
    pub read_rate: Option<u32>,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
}

/// A change of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    /// Let a disabled or suspended key work again, and forget its strikes.
    Enable,
    /// Switch it off until it is enabled.
    Disable,
    /// Switch it off for ever.
    Revoke,
    /// Note that it was seen in a query string.
    FlagLeaked,
}

/// What comes of submitting a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submission {
    /// Charged and queued.
    Accepted(Task),
    /// Nothing happened: the balance is `available`.
    InsufficientCredits {
        /// Credits left in the account.
        available: i64,
    },
    /// Nothing happened: the account has as many unfinished tasks as it may.
    TooManyUnfinished,
    /// Nothing happened: the queue is so long that the task would not end in time, by `excess`. It is not
    /// the database that says so.
    Overloaded {
        /// After this much time it might.
        excess: Duration,
    },
}

/// The right to work on a task, until it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The task.
    pub task_id: Id,
    /// Raised by every claim; writes under an older epoch are refused.
    pub epoch: i64,
}

/// A task handed to a worker.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The right to work on it.
    pub lease: Lease,
    /// Whose it is.
    pub account_id: Id,
    /// What was asked for.
    pub request: GenerateRequest,
}

/// Whether a write under a lease took place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseWrite {
    /// It did.
    Done,
    /// The lease was lost before; nothing was changed.
    Lost,
}

/// How many strikes a key may have, and for how long each counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StrikeRule {
    /// The strike that suspends the key.
    pub limit: u32,
    /// How long a strike counts.
    pub window: Duration,
}

impl std::fmt::Display for StrikeRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let window = humantime::format_duration(self.window).to_string().replace(' ', "");
        write!(f, "{} violations of the content policy within {window}", self.limit)
    }
}

/// What came of refusing a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is failed and refunded.
    Done {
        /// The key that this was the last strike of.
        suspended: Option<Id>,
    },
    /// The lease was lost before; nothing was changed.
    Lost,
}

/// What became of a task whose attempt came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// It waits in the queue again.
    Queued,
    /// That was the last attempt: it is failed and refunded.
    Failed,
    /// The lease was lost before; nothing was changed.
    Lost,
}

/// Which leases to take away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rescue {
    /// Those that ran out.
    Expired,
    /// All: the caller knows that no worker is alive.
    All,
}

/// How many tasks a rescue touched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rescued {
    /// Back in the queue.
    pub queued: usize,
    /// Failed and refunded.
    pub failed: usize,
}

/// How many tasks are unfinished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct QueueDepth {
    /// Waiting for a worker.
    pub waiting: u64,
    /// Held by a worker.
    pub leased: u64,
    /// When the oldest of them was submitted.
    #[serde(skip)]
    pub oldest: Option<Timestamp>,
}

/// What a process that draws can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerReport {
    /// The process.
    pub id: Id,
    /// Tasks that it works on at once, at least one.
    pub slots: u32,
    /// How long an attempt holds a slot, to the millisecond; `None` until one ended.
    pub mean: Option<Duration>,
}

/// A task with everything the operator may see.
#[derive(Debug, Clone)]
pub struct TaskRecord {
    /// Its state.
    pub task: Task,
    /// What was asked for.
    pub request: GenerateRequest,
    /// How many leases on it were lost so far; `None` once it is terminal.
    pub lost_leases: Option<u32>,
    /// When it was removed: its owner no longer sees it, and what was asked for is forgotten.
    pub removed_at: Option<Timestamp>,
}

/// A completed task with the names of its result files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletedTask {
    /// The task.
    pub id: Id,
    /// Who paid for it.
    pub account_id: Id,
    /// Its result files, in order.
    pub images: Vec<String>,
}

/// What decides about the result files of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFiles {
    /// The task.
    pub id: Id,
    /// Whether it has not ended.
    pub is_processing: bool,
    /// Names of the result files that it has; none unless it is completed.
    pub images: Vec<String>,
    /// When it was last touched.
    pub updated_at: Timestamp,
    /// When it was removed.
    pub removed_at: Option<Timestamp>,
}

/// A place where the books do not balance, or a result that is not as they say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The account concerned.
    pub account_id: Id,
    /// The task concerned, if one is.
    pub task_id: Option<TaskId>,
    /// What is wrong.
    pub fault: String,
}

/// The result of recomputing every balance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Accounts examined.
    pub accounts: u64,
    /// Tasks examined.
    pub tasks: u64,
    /// Ledger entries examined.
    pub entries: u64,
    /// What is wrong; empty when all is well.
    pub drifts: Vec<Drift>,
}

/// Accounts and their credits.
#[async_trait]
pub trait Accounts: std::fmt::Debug + Send + Sync + 'static {
    /// Creates an account, granting it `credits` unless that is zero. More than [`MAX_BALANCE`](crate::domain::model::MAX_BALANCE) is an error.
    async fn create_account(&self, name: &str, credits: i64) -> Result<AccountCreation>;

    /// Creates the first account with its first key, or does nothing when any account exists.
    async fn create_first_account(&self, name: &str, credits: i64, key: NewKey) -> Result<Option<Account>>;

    /// The account of this name or id.
    async fn find_account(&self, name_or_id: &str) -> Result<Option<Account>>;

    /// All accounts, by name.
    async fn list_accounts(&self) -> Result<Vec<Account>>;

    /// Adds credits and returns the new balance; `None` when there is no such account. An amount that is
    /// not positive, or that would make the balance more than [`MAX_BALANCE`](crate::domain::model::MAX_BALANCE), is an error.
    async fn grant(&self, account_id: Id, amount: i64, note: Option<&str>) -> Result<Option<i64>>;

    /// Ledger entries of an account, newest first, from below the entry `before`.
    async fn history(&self, account_id: Id, before: Option<i64>, limit: u32) -> Result<Vec<LedgerEntry>>;
}

/// API keys.
#[async_trait]
pub trait Keys: std::fmt::Debug + Send + Sync + 'static {
    /// Adds a key to an account; `None` when there is no such account.
    async fn create_key(&self, account_id: Id, key: NewKey) -> Result<Option<ApiKey>>;

    /// The key with this id.
    async fn find_key(&self, id: Id) -> Result<Option<ApiKey>>;

    /// The key with this hash, whatever its state.
    async fn find_key_by_hash(&self, hash: KeyHash) -> Result<Option<ApiKey>>;

    /// The keys of one account, or of all, oldest first.
    async fn list_keys(&self, account_id: Option<Id>) -> Result<Vec<ApiKey>>;

    /// Changes a key and returns it as it is then; a revoked key stays revoked.
    async fn change_key(&self, id: Id, change: KeyChange) -> Result<Option<ApiKey>>;

    /// Adds a key that takes over name, rates and expiry of the key `id`, whether it is disabled, and its strikes and
    /// suspension under the content policy. The key `id` ends after `overlap` at the latest. `None` when there is no
    /// such key or it is revoked.
    async fn rotate_key(&self, id: Id, hash: KeyHash, hint: &str, overlap: Duration) -> Result<Option<ApiKey>>;

    /// Notes when keys were used last. An earlier time than the one noted changes nothing, and neither does a
    /// key that does not exist.
    async fn touch_keys(&self, uses: Vec<(Id, Timestamp)>) -> Result<()>;
}

/// Tasks as their owners and the operator see them.
#[async_trait]
pub trait Tasks: std::fmt::Debug + Send + Sync + 'static {
    /// Charges and queues a task, unless the account has `max_unfinished` unfinished ones (0: no
    /// limit) or too few credits. What is wrong with the task is held against the key, if it came with one.
    async fn submit(
        &self,
        account_id: Id,
        key_id: Option<Id>,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission>;

    /// The task, if this account created it on this surface.
    async fn find_task(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Task>>;

    /// An account's tasks on one surface, newest first, from below the task `before`.
    async fn list_tasks(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Task>>;

    /// The ids of the same page.
    async fn list_task_ids(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Id>>;

    /// For the operator: any task, also a removed one, unless it was forgotten with its month.
    async fn inspect_task(&self, id: Id) -> Result<Option<TaskRecord>>;

    /// For the operator: tasks of one account or of all, newest first.
    async fn recent_tasks(&self, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>>;

    /// For the operator: completed tasks of every account and surface that have their result files,
    /// oldest first, from above the task `after`.
    async fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>>;

    /// What decides about the files of those of `ids` that there are, in any order; removed tasks among them, unless they
    /// were forgotten with their month.
    async fn task_files(&self, ids: &[Id]) -> Result<Vec<TaskFiles>>;
}

/// Tasks that have not ended, and the leases on them.
#[async_trait]
pub trait Queue: std::fmt::Debug + Send + Sync + 'static {
    /// Leases up to `max` waiting tasks for `lease`: round robin over accounts, oldest first within one.
    async fn claim(&self, max: usize, lease: Duration) -> Result<Vec<Claim>> {
        self.claim_except(max, lease, &[]).await
    }

    /// The same, passing over some accounts. From when they are no longer passed over, none of them sees another served
    /// twice before it is served itself.
    async fn claim_except(&self, max: usize, lease: Duration, passed_over: &[Id]) -> Result<Vec<Claim>>;

    /// Extends leases to `lease` from now and returns those that were lost before.
    async fn renew(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>>;

    /// Puts a task back into the queue; the attempt does not count as lost.
    async fn release(&self, lease: Lease) -> Result<LeaseWrite>;

    /// Gives an attempt up: the task is queued again, claimable after `delay`, or failed with
    /// `last_error` when it has lost [`MAX_LOST_LEASES`] leases.
    async fn retry(&self, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry>;

    /// Completes a task with the names of its result files, at least one.
    async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite>;

    /// Fails and refunds a task, with a sentence for the caller.
    async fn fail(&self, lease: Lease, error: &str) -> Result<LeaseWrite>;

    /// Fails and refunds a task, with a sentence for the caller, because the content policy refuses it. Under
    /// a rule this is a strike against the key it came with, and the last one suspends the key.
    async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Refusal>;

    /// Fails and refunds a task whoever holds it; `false` when it is not processing.
    async fn fail_unleased(&self, id: Id, error: &str) -> Result<bool>;

    /// How many tasks are unfinished.
    async fn queue_depth(&self) -> Result<QueueDepth>;

    /// Waits until another process may have queued a task: a hint, which may come late, or for nothing, or never.
    async fn tasks_elsewhere(&self) {
        std::future::pending().await
    }
}

/// Ending what nobody else ends, removing what is old, and checking the books.
#[async_trait]
pub trait Upkeep: std::fmt::Debug + Send + Sync + 'static {
    /// Takes leases away: their tasks are queued again, or failed with `last_error` when they have
    /// lost [`MAX_LOST_LEASES`] leases.
    async fn rescue(&self, which: Rescue, last_error: &str) -> Result<Rescued>;

    /// Fails and refunds every unfinished task created at or before `cutoff` of [`Fleet::now`]; returns how many.
    async fn expire(&self, cutoff: Timestamp, error: &str) -> Result<usize>;

    /// Removes every task that ended before `cutoff` of [`Fleet::now`]: nobody but [`Tasks::inspect_task`] finds it any more,
    /// and what was asked for is forgotten. Its ledger entries and the names of its files stay. Returns
    /// how many.
    async fn remove_tasks(&self, cutoff: Timestamp) -> Result<usize>;

    /// Forgets whole months that ended before `before` and whose every task was removed before `removed_before`: not even
    /// [`Tasks::inspect_task`] finds those tasks any more. From the oldest month on, up to the first that has to stay, and
    /// up to one that is in use now. Their ledger entries stay. Returns how many months. Where tasks are not kept by month,
    /// none.
    async fn forget_months(&self, before: Timestamp, removed_before: Timestamp) -> Result<usize>;

    /// Takes the first of `sweeps` that is due, by the database's time, and puts it off by `hold`, so that no other
    /// process takes it meanwhile; `None` when none is due. One that was never taken is due.
    async fn take_sweep(&self, sweeps: &[String], hold: Duration) -> Result<Option<String>>;

    /// Puts a sweep off: it is due again after `pause`, [`LONGEST_PAUSE`] at most.
    async fn put_off_sweep(&self, sweep: &str, pause: Duration) -> Result<()>;

    /// Recomputes every balance and matches every task with its charge and refund.
    async fn audit(&self) -> Result<Audit>;
}

/// The database itself, and the processes that share it.
#[async_trait]
pub trait Fleet: std::fmt::Debug + Send + Sync + 'static {
    /// Tells the other processes of this database what one of them can do, until it is silent for
    /// [`WORKER_SILENCE`] or withdrawn. Where there are no others nothing is kept.
    async fn report_worker(&self, report: WorkerReport) -> Result<()>;

    /// Takes back what a process has reported: it draws no more.
    async fn withdraw_worker(&self, id: Id) -> Result<()>;

    /// What the processes beside `id` have reported.
    async fn other_workers(&self, id: Id) -> Result<Vec<WorkerReport>>;

    /// A random secret that all processes on this database share, for signing cursors.
    async fn cursor_secret(&self) -> Result<[u8; 32]>;

    /// The time that ids and leases go by: this process's clock, or, as well as this process knows it, that of a
    /// database which others share.
    fn now(&self) -> Timestamp;

    /// Whether other servers may use this database, and remove tasks from it, while this one does.
    fn is_shared(&self) -> bool;

    /// Succeeds when the database takes writes.
    async fn ping(&self) -> Result<()>;
}

/// The database behind a running service.
pub trait Store: Accounts + Keys + Tasks + Queue + Upkeep + Fleet {}

impl<T: Accounts + Keys + Tasks + Queue + Upkeep + Fleet> Store for T {}
