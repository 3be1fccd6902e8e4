//! Intervals and time limits that no flag changes.

use std::time::Duration;

/// The sweeper fails and refunds a task that is not terminal this long after its creation.
pub const TASK_TIME_LIMIT: Duration = Duration::from_secs(9 * 60);
/// Duration of a lease without a heartbeat, unless `--lease` sets another.
pub const LEASE: Duration = Duration::from_secs(30);
/// Interval at which the sweeper looks for expired leases and overdue tasks.
pub const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the files of the content policy are checked for changes.
pub const POLICY_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a worker probes an engine that was not available, and tries to write result files after it could not.
pub const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a worker reports its capabilities to the other processes.
pub const WORKER_REPORT_EVERY: Duration = Duration::from_secs(5);
/// Shortest interval at which a worker reports how far its attempts are.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the last uses of keys are written to the database.
pub const RECORD_KEY_USES_EVERY: Duration = Duration::from_secs(60);
/// Interval at which the sweeper looks for orphaned result files of the latest days.
pub const ORPHAN_SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);
/// Longest interval between two sweeps for orphaned files of any one day.
pub const FULL_ORPHAN_SWEEP_EVERY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Time after which a sweep of files is taken from a process that claimed it and then stopped making progress.
pub const FILE_SWEEP_LEASE: Duration = Duration::from_secs(10 * 60);
/// A sweep of files is due this much before its interval ends; otherwise a process that checks once an hour would find
/// it due only every second time.
pub const SWEEP_SLACK: Duration = Duration::from_secs(5 * 60);
/// An orphaned file is removed when neither it nor its task has changed for this long.
pub const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Interval at which tasks past the retention are removed.
pub const REMOVE_EVERY: Duration = Duration::from_secs(60 * 60);
/// Delay from the start of a process to its first removal: time for the operator to notice a wrong `--retention`.
pub const FIRST_REMOVAL: Duration = Duration::from_secs(10 * 60);
/// Time for which the files of a removed task are still served to callers who read the task just before.
pub const REMOVED_FILES_GRACE: Duration = Duration::from_secs(60 * 60);
/// Time for which an upload is kept, unless `--retention` is shorter.
pub const UPLOAD_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Longest time for the bytes of an upload to arrive.
pub const UPLOAD_TIME_LIMIT: Duration = Duration::from_secs(5 * 60);
/// An upload that is not finished this long after its begin never will be.
pub const UPLOAD_ABANDONED: Duration = Duration::from_secs(60 * 60);
/// Shortest `--retention`.
pub const MIN_RETENTION: Duration = Duration::from_secs(60 * 60);
/// Shortest `--audit-retention`.
pub const MIN_AUDIT_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Time for which a starting server waits for the lock on its data: after a SIGKILL the operating system needs a moment
/// to release it.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// Interval at which an idle worker looks for tasks when no notification wakes it.
pub const POLL_EVERY: Duration = Duration::from_secs(1);
/// Time for which a key is cached: the longest that a change made by another process goes unnoticed.
pub const KEY_CACHE_TTL: Duration = Duration::from_millis(500);
/// Time for which a finished task is cached when another process may remove it.
pub const FINISHED_TASK_TTL: Duration = Duration::from_secs(60);
/// Interval at which the files of the certificate are checked for changes.
pub const CERTIFICATE_CHECK_EVERY: Duration = Duration::from_secs(1);
/// The time within which failed tasks of an account count together.
pub const FAILURES_WITHIN: Duration = Duration::from_secs(10 * 60);
/// Time for which the number of an account's failed tasks is not read again.
pub const FAILURES_CHECK_EVERY: Duration = Duration::from_secs(1);
/// The files of a deleted task are kept at least this long, for submits that have just seen them as references.
pub const DELETED_FILES_GRACE: Duration = Duration::from_secs(10 * 60);
/// Time between two sweeps of deleted tasks.
pub const ERASE_EVERY: Duration = Duration::from_secs(60);
/// Time for which a delivery of a webhook is kept.
pub const DELIVERY_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
