//! Upkeep, which no request waits for: ends overdue tasks, removes old ones, erases prompts and audits the ledger.

use std::time::Duration;

use async_trait::async_trait;

use super::{Audit, Ended, Rescue, Rescued, Result};
#[cfg(doc)]
use super::{Fleet, LONGEST_PAUSE, MAX_LOST_LEASES, Tasks};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Ends overdue tasks, removes old tasks and audits the ledger.
#[async_trait]
pub trait Upkeep: std::fmt::Debug + Send + Sync + 'static {
    /// Reclaims leases. Their tasks are queued again, or failed with `last_error` after [`MAX_LOST_LEASES`] lost
    /// leases. Also deletes the progress of attempts that have ended.
    async fn rescue(&self, which: Rescue, last_error: &str) -> Result<Rescued>;

    /// Fails and refunds every unfinished task created at or before `cutoff` of [`Fleet::now`]; returns them in any
    /// order.
    async fn expire(&self, cutoff: Timestamp, error: &str) -> Result<Vec<Ended>>;

    /// Fails and refunds every waiting task with more than `max_references` reference images; returns them in any
    /// order.
    async fn fail_beyond(&self, max_references: u32, error: &str) -> Result<Vec<Ended>>;

    /// Ends the grants that have expired by [`Fleet::now`]: an entry of the kind `expiry` takes what is left of each
    /// from its account. Returns the number of grants.
    async fn lapse_grants(&self) -> Result<usize>;

    /// Fails and refunds every waiting task that names an engine which is not among these, or has more reference images
    /// than its engine takes; returns them in any order. Each of `engines` is a name and the most reference images that
    /// it takes.
    async fn fail_unmatched(&self, engines: &[(String, u32)], error: &str) -> Result<Vec<Ended>>;

    /// Removes every task that ended before `cutoff` of [`Fleet::now`]: erases its request and hides it from every
    /// lookup except [`Tasks::inspect_task`] and [`Tasks::task_files`]. Its ledger entries and the names of its files
    /// stay. Returns the number of tasks.
    async fn remove_tasks(&self, cutoff: Timestamp) -> Result<usize>;

    /// Removes the tasks of one account that ended before `cutoff` of [`Fleet::now`], as [`Upkeep::remove_tasks`] does.
    async fn remove_tasks_of(&self, account_id: Id, cutoff: Timestamp) -> Result<usize>;

    /// Claims the first of `sweeps` that is due, by the database's time, and postpones it by `hold`, so that no other
    /// process claims it meanwhile; `None` if none is due. A sweep that was never claimed is due.
    async fn take_sweep(&self, sweeps: &[String], hold: Duration) -> Result<Option<String>>;

    /// Postpones a sweep by `pause`, at most [`LONGEST_PAUSE`].
    async fn postpone_sweep(&self, sweep: &str, pause: Duration) -> Result<()>;

    /// Recomputes every balance and matches every task with its charge and refund.
    async fn audit(&self) -> Result<Audit>;

    /// Time of the `nth` most recent failure (1-based) of the account after `since` and up to `until`; `None` if fewer
    /// tasks failed. Cancelled tasks did not fail.
    async fn failed_at(
        &self,
        account_id: Id,
        since: Timestamp,
        until: Timestamp,
        nth: u32,
    ) -> Result<Option<Timestamp>>;

    /// Erases prompts and references of tasks that failed: of all that were submitted before `cutoff` of
    /// [`Fleet::now`], and of each account the oldest beyond `most` bytes. The tasks stay. Returns their number.
    async fn erase_failed_prompts(&self, cutoff: Timestamp, most: u64) -> Result<usize>;
}
