//! Intervals and time limits that no flag changes.

use std::time::Duration;

/// The sweeper fails and refunds tasks that haven't ended this long after their creation.
pub const TASK_TIME_LIMIT: Duration = Duration::from_secs(9 * 60);
/// Lease duration without a heartbeat, unless `--lease` is set.
pub const LEASE: Duration = Duration::from_secs(30);
/// How often the sweeper looks for expired leases and overdue tasks.
pub const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often a worker probes an unavailable engine, and retries writing result files.
pub const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How often a worker reports its capabilities to other processes.
pub const WORKER_REPORT_EVERY: Duration = Duration::from_secs(5);
/// The shortest interval between a worker's progress reports.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How often the last uses of keys are written to the database.
pub const RECORD_KEY_USES_EVERY: Duration = Duration::from_secs(60);
/// How often the sweeper looks for orphaned result files of recent days.
pub const ORPHAN_SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);
/// The longest interval between sweeps for orphaned files of any one day.
pub const FULL_ORPHAN_SWEEP_EVERY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A sweep of files is taken over from a process that claimed it and made no progress for this long.
pub const FILE_SWEEP_LEASE: Duration = Duration::from_secs(10 * 60);
/// File sweeps are due this much before their interval ends. Otherwise a process that checks once an hour would find
/// them due only every second time.
pub const SWEEP_SLACK: Duration = Duration::from_secs(5 * 60);
/// An orphaned file is removed if neither it nor its task has changed for this long.
pub const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// How often tasks past their retention are removed.
pub const REMOVE_EVERY: Duration = Duration::from_secs(60 * 60);
/// Delay between a process's start and its first removal, so that the operator can notice a wrong `--retention`.
pub const FIRST_REMOVAL: Duration = Duration::from_secs(10 * 60);
/// How long a removed task's files are still served, for callers who read the task just before.
pub const REMOVED_FILES_GRACE: Duration = Duration::from_secs(60 * 60);
/// How long an upload is kept, unless `--retention` is shorter.
pub const UPLOAD_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Time limit for an upload's bytes to arrive.
pub const UPLOAD_TIME_LIMIT: Duration = Duration::from_secs(5 * 60);
/// An upload that hasn't finished this long after its start never will.
pub const UPLOAD_ABANDONED: Duration = Duration::from_secs(60 * 60);
/// How long a removed upload is remembered: sweeps look for orphaned files of recent days every hour, once they are
/// [`ORPHAN_AGE`] old.
pub const REMOVED_UPLOAD_LIFE: Duration = Duration::from_secs(3 * 24 * 60 * 60);
/// Shortest `--retention`.
pub const MIN_RETENTION: Duration = Duration::from_secs(60 * 60);
/// Shortest `--audit-retention`.
pub const MIN_AUDIT_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a starting server waits for the lock on its data: after a SIGKILL the operating system needs a moment to
/// release it.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// How often an idle worker looks for tasks without a notification.
pub const POLL_EVERY: Duration = Duration::from_secs(1);
/// How long a key is cached: the longest that another process's change can go unnoticed.
pub const KEY_CACHE_TTL: Duration = Duration::from_millis(500);
/// How long a finished task is cached if another process could remove it.
pub const FINISHED_TASK_TTL: Duration = Duration::from_secs(60);
/// The period over which an account's failed tasks are counted.
pub const FAILURES_WITHIN: Duration = Duration::from_secs(10 * 60);
/// How long an account's number of failed tasks is cached.
pub const FAILURES_CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a deleted task's files are kept at least, for submits that have just found them as references.
pub const DELETED_FILES_GRACE: Duration = Duration::from_secs(10 * 60);
/// Interval between sweeps of deleted tasks.
pub const ERASE_EVERY: Duration = Duration::from_secs(60);
/// How long a webhook delivery is kept.
pub const DELIVERY_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
