//! The embedded default: one SQLite file, one writer thread, as many readers as ask at once.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use self::writer::{Writer, Writing};
use super::{
    AccountCreation, Audit, Claim, CompletedTask, KeyChange, Lease, LeaseWrite, NewKey, QueueDepth, Refusal, Rescue,
    Rescued, Result, Retry, Store, StoreError, StrikeRule, Submission, TaskFiles, TaskRecord, WorkerReport,
};
use crate::clock::{Clock, Timestamp};
use crate::domain::key::{ApiKey, KeyHash};
use crate::domain::model::{Account, Id, IdSource, LedgerEntry, Surface, Task};
use crate::domain::request::GenerateRequest;
use crate::fault::{Effect, Faults, Point};

mod accounts;
mod audit;
mod columns;
mod connection;
mod files;
mod queue;
mod retention;
mod schema;
mod snapshot;
mod strikes;
mod tasks;
mod writer;

use self::connection::{Readers, connect};
pub use self::schema::OpenError;
use self::schema::{is_a_fragment, migrate};
pub use self::snapshot::Snapshot;

/// A database in one SQLite file.
pub struct SqliteStore {
    writer: Writer,
    readers: Readers,
    clock: Clock,
    faults: Faults,
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.readers.path).finish_non_exhaustive()
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full(error.to_string()),
            _ => Self::Other(error.to_string()),
        }
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl SqliteStore {
    /// Opens the file, creating it or bringing its schema up to date as needed.
    ///
    /// # Errors
    /// [`OpenError`], with the file left as it was.
    pub fn open(path: &Path, clock: Clock) -> std::result::Result<Self, OpenError> {
        Self::open_with_faults(path, clock, Faults::default())
    }

    /// Opens the file like [`SqliteStore::open`], with what is to go wrong.
    ///
    /// # Errors
    /// [`OpenError`], with the file left as it was.
    pub fn open_with_faults(path: &Path, clock: Clock, faults: Faults) -> std::result::Result<Self, OpenError> {
        let unusable = |error: &dyn fmt::Display| OpenError::Unusable {
            path: path.display().to_string(),
            error: error.to_string(),
        };
        if is_a_fragment(path).map_err(|error| unusable(&error))? {
            return Err(unusable(&"the file is not a database"));
        }
        let unfinished = restoring(path);
        if unfinished.exists() && !path.exists() {
            let advice = format!("remove {} and the result files beside it, and restore again", unfinished.display());
            return Err(OpenError::Unrestored { path: path.display().to_string(), advice });
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut connection = connect(path, flags).map_err(|error| unusable(&error))?;
        migrate(&mut connection, path)?;
        let ids = IdSource::default();
        let writing =
            Writing { connection, clock: clock.clone(), ids, last_served: String::new(), faults: faults.clone() };
        let writer = Writer::start(writing).map_err(|error| unusable(&error))?;
        Ok(Self { writer, readers: Readers { path: path.to_owned(), idle: Mutex::default() }, clock, faults })
    }

    /// Looks for damage in the file.
    ///
    /// # Errors
    /// [`StoreError`] with the first damage found.
    pub fn check_integrity(&self) -> Result<()> {
        integrity(self.read(|connection| connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)))?)
    }

    async fn write<T, F>(&self, effect: Effect, write: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Writing) -> rusqlite::Result<T> + Send + 'static,
    {
        self.faults.pass(Point::before(effect)).await?;
        let outcome = self.writer.write(write).await;
        self.faults.pass(Point::after(effect)).await?;
        outcome
    }

    /// Folds the log into the database and begins a new one. After a sync that failed, the system takes pages
    /// of the log for written that are not; what is told next must not rest on them.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn begin_new_log(&self) -> Result<()> {
        let busy: bool =
            self.read(|connection| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)))?;
        if busy {
            tracing::warn!("another program reads the database; the log of the last run is kept");
        }
        Ok(())
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        Ok(self.readers.read(query)?)
    }
}

/// What SQLite found when it looked for damage.
fn integrity(found: String) -> Result<()> {
    if found == "ok" { Ok(()) } else { Err(StoreError::Other(found)) }
}

/// Where a restore keeps the database until everything is there; while it exists and the database does
/// not, the database is not opened.
pub fn restoring(database: &Path) -> PathBuf {
    with_suffix(database, ".restoring")
}

/// The files that SQLite may keep beside a database.
pub fn companions(database: &Path) -> [PathBuf; 3] {
    ["-wal", "-shm", "-journal"].map(|suffix| with_suffix(database, suffix))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[async_trait]
impl Store for SqliteStore {
    async fn create_account(&self, name: &str, credits: i64) -> Result<AccountCreation> {
        let name = name.to_owned();
        self.write(Effect::CreateAccount, move |writing| accounts::create(writing, &name, credits)).await
    }

    async fn create_first_account(&self, name: &str, credits: i64, key: NewKey) -> Result<Option<Account>> {
        let name = name.to_owned();
        self.write(Effect::CreateFirstAccount, move |writing| accounts::create_first(writing, &name, credits, &key))
            .await
    }

    async fn find_account(&self, name_or_id: &str) -> Result<Option<Account>> {
        self.read(|connection| accounts::find(connection, name_or_id))
    }

    async fn list_accounts(&self) -> Result<Vec<Account>> {
        self.read(accounts::list)
    }

    async fn create_key(&self, account_id: Id, key: NewKey) -> Result<Option<ApiKey>> {
        self.write(Effect::CreateKey, move |writing| accounts::create_key(writing, account_id, &key)).await
    }

    async fn find_key(&self, id: Id) -> Result<Option<ApiKey>> {
        self.read(|connection| accounts::find_key(connection, id))
    }

    async fn find_key_by_hash(&self, hash: KeyHash) -> Result<Option<ApiKey>> {
        self.read(|connection| accounts::find_key_by_hash(connection, &hash))
    }

    async fn list_keys(&self, account_id: Option<Id>) -> Result<Vec<ApiKey>> {
        self.read(|connection| accounts::list_keys(connection, account_id))
    }

    async fn change_key(&self, id: Id, change: KeyChange) -> Result<Option<ApiKey>> {
        self.write(Effect::ChangeKey, move |writing| accounts::change_key(writing, id, change)).await
    }

    async fn rotate_key(&self, id: Id, hash: KeyHash, hint: &str, overlap: Duration) -> Result<Option<ApiKey>> {
        let hint = hint.to_owned();
        self.write(Effect::RotateKey, move |writing| accounts::rotate_key(writing, id, hash, &hint, overlap)).await
    }

    async fn touch_keys(&self, uses: Vec<(Id, Timestamp)>) -> Result<()> {
        self.write(Effect::TouchKeys, move |writing| accounts::touch_keys(writing, &uses)).await
    }

    async fn grant(&self, account_id: Id, amount: i64, note: Option<&str>) -> Result<Option<i64>> {
        let note = note.map(str::to_owned);
        self.write(Effect::Grant, move |writing| accounts::grant(writing, account_id, amount, note.as_deref())).await
    }

    async fn history(&self, account_id: Id, before: Option<i64>, limit: u32) -> Result<Vec<LedgerEntry>> {
        self.read(|connection| accounts::history(connection, account_id, before, limit))
    }

    async fn audit(&self) -> Result<Audit> {
        self.read(audit::audit)
    }

    async fn submit(
        &self,
        account_id: Id,
        key_id: Option<Id>,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission> {
        let submit =
            move |writing: &mut Writing| tasks::submit(writing, account_id, key_id, surface, &request, max_unfinished);
        self.write(Effect::Submit, submit).await
    }

    async fn find_task(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Task>> {
        self.read(|connection| tasks::find(connection, account_id, surface, id))
    }

    async fn list_tasks(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        self.read(|connection| tasks::list(connection, account_id, surface, before, limit))
    }

    async fn list_task_ids(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Id>> {
        self.read(|connection| tasks::list_ids(connection, account_id, surface, before, limit))
    }

    async fn inspect_task(&self, id: Id) -> Result<Option<TaskRecord>> {
        self.read(|connection| tasks::inspect(connection, id))
    }

    async fn recent_tasks(&self, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        self.read(|connection| tasks::recent(connection, account_id, limit))
    }

    async fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
        self.read(|connection| tasks::completed(connection, after, limit))
    }

    async fn task_files(&self, ids: &[Id]) -> Result<Vec<TaskFiles>> {
        self.read(|connection| files::of_tasks(connection, ids))
    }

    async fn claim_except(&self, max: usize, lease: Duration, passed_over: &[Id]) -> Result<Vec<Claim>> {
        let passed_over: HashSet<Id> = passed_over.iter().copied().collect();
        self.write(Effect::Claim, move |writing| queue::claim(writing, max, lease, &passed_over)).await
    }

    async fn renew(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>> {
        self.write(Effect::Renew, move |writing| queue::renew(writing, &leases, lease)).await
    }

    async fn release(&self, lease: Lease) -> Result<LeaseWrite> {
        self.write(Effect::Release, move |writing| queue::release(writing, lease)).await
    }

    async fn retry(&self, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry> {
        let last_error = last_error.to_owned();
        self.write(Effect::Retry, move |writing| queue::retry(writing, lease, delay, &last_error)).await
    }

    async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite> {
        self.write(Effect::Complete, move |writing| queue::complete(writing, lease, &images)).await
    }

    async fn fail(&self, lease: Lease, error: &str) -> Result<LeaseWrite> {
        let error = error.to_owned();
        self.write(Effect::Fail, move |writing| queue::fail(writing, lease, &error)).await
    }

    async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Refusal> {
        let error = error.to_owned();
        self.write(Effect::Refuse, move |writing| strikes::refuse(writing, lease, &error, rule)).await
    }

    async fn fail_unleased(&self, id: Id, error: &str) -> Result<bool> {
        let error = error.to_owned();
        self.write(Effect::FailUnleased, move |writing| queue::fail_unleased(writing, id, &error)).await
    }

    async fn rescue(&self, which: Rescue, last_error: &str) -> Result<Rescued> {
        let mut all = Rescued::default();
        loop {
            let last_error = last_error.to_owned();
            let some = self.write(Effect::Rescue, move |writing| queue::rescue(writing, which, &last_error)).await?;
            all = Rescued { queued: all.queued + some.queued, failed: all.failed + some.failed };
            if some.queued + some.failed < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    async fn expire(&self, cutoff: Timestamp, error: &str) -> Result<usize> {
        let mut all = 0;
        loop {
            let error = error.to_owned();
            let some = self.write(Effect::Expire, move |writing| queue::expire(writing, cutoff, &error)).await?;
            all += some;
            if some < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    async fn remove_tasks(&self, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        for account_id in self.read(|connection| retention::accounts(connection, cutoff))? {
            loop {
                let remove = move |writing: &mut Writing| retention::remove(writing, account_id, cutoff);
                let some = self.write(Effect::RemoveTasks, remove).await?;
                all += some;
                if some < retention::BATCH {
                    break;
                }
            }
        }
        Ok(all)
    }

    async fn forget_months(&self, _: Timestamp, _: Timestamp) -> Result<usize> {
        Ok(0)
    }

    async fn take_sweep(&self, sweeps: &[String], hold: Duration) -> Result<Option<String>> {
        let sweeps = sweeps.to_owned();
        self.writer.write(move |writing| files::take_sweep(writing, &sweeps, hold)).await
    }

    async fn put_off_sweep(&self, sweep: &str, pause: Duration) -> Result<()> {
        let sweep = sweep.to_owned();
        self.writer.write(move |writing| files::put_off_sweep(writing, &sweep, pause)).await
    }

    async fn queue_depth(&self) -> Result<QueueDepth> {
        self.read(queue::depth)
    }

    // One server uses the file, and knows by itself what it can do.
    async fn report_worker(&self, _: WorkerReport) -> Result<()> {
        Ok(())
    }

    async fn withdraw_worker(&self, _: Id) -> Result<()> {
        Ok(())
    }

    async fn other_workers(&self, _: Id) -> Result<Vec<WorkerReport>> {
        Ok(Vec::new())
    }

    async fn cursor_secret(&self) -> Result<[u8; 32]> {
        self.read(|connection| {
            connection.query_row("SELECT value FROM secrets WHERE name = 'cursor'", [], |row| row.get(0))
        })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn is_shared(&self) -> bool {
        false
    }

    async fn ping(&self) -> Result<()> {
        // Rewrites a page with what it holds: nothing changes, but a disk without room refuses it. What it holds
        // is read first: a command of a later release may have migrated the database under this one.
        let write = |writing: &mut Writing| {
            let version: i64 = writing.connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            writing.connection.pragma_update(None, "user_version", version)
        };
        self.writer.write(write).await
    }
}
