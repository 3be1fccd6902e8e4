//! The embedded default: one SQLite file, one writer thread, as many readers as ask at once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use self::writer::{Writer, Writing};
use super::{
    AccountCreation, Audit, Claim, CompletedTask, KeyChange, Lease, LeaseWrite, NewKey, QueueDepth, Rescue, Rescued,
    Result, Retry, Store, StoreError, Submission, TaskRecord,
};
use crate::clock::{Clock, Timestamp};
use crate::fault::{Effect, Faults, Point};
use crate::key::{ApiKey, KeyHash};
use crate::model::{Account, Id, IdSource, LedgerEntry, Surface, Task};
use crate::request::GenerateRequest;

mod accounts;
mod audit;
mod columns;
mod queue;
mod retention;
mod snapshot;
mod tasks;
mod writer;

pub use self::snapshot::Snapshot;

/// The steps that lead from an empty file to the present schema.
const MIGRATIONS: [&str; 2] = [
    include_str!("../../../migrations/sqlite/0001_initial.sql"),
    include_str!("../../../migrations/sqlite/0002_retention.sql"),
];
/// Marks a SQLite file as ours: "tint" in ASCII.
const APPLICATION_ID: i32 = 0x7469_6E74;
/// How long to wait for another process, such as the command line, to finish its write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// No SQLite file that holds anything is shorter: this is its smallest page.
const MIN_FILE_BYTES: u64 = 512;
/// Statements each connection keeps prepared.
const STATEMENT_CACHE: usize = 64;

/// Why a database could not be opened: a sentence for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be read, written or created.
    #[error("cannot open the database {path}: {error}")]
    Unusable {
        /// The file.
        path: String,
        /// SQLite's words.
        error: String,
    },
    /// A restore was to make this database and did not finish, so an empty one must not take its place.
    #[error("a restore of {path} did not finish: {advice}")]
    Unrestored {
        /// The file.
        path: String,
        /// What to do about it.
        advice: String,
    },
    /// No copy could be written.
    #[error("cannot write {path}: {error}")]
    Copy {
        /// The copy.
        path: String,
        /// SQLite's words.
        error: String,
    },
    /// The file holds something else.
    #[error("{0} is a SQLite file, but not one of Tintype's")]
    Foreign(String),
    /// An earlier release wrote it, and nothing may be written to it here.
    #[error("the database was written by an older Tintype (schema {found}; this one knows {known})")]
    Older {
        /// The schema found.
        found: i64,
        /// The schema this binary writes.
        known: usize,
    },
    /// A later release wrote it.
    #[error(
        "the database was written by a newer Tintype (schema {found}; this one knows {known}): upgrade this binary or restore a backup"
    )]
    Newer {
        /// The schema found.
        found: i64,
        /// The schema this binary writes.
        known: usize,
    },
}

/// A database in one SQLite file.
pub struct SqliteStore {
    writer: Writer,
    readers: Readers,
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
        let writing = Writing { connection, clock, ids, last_served: String::new(), faults: faults.clone() };
        let writer = Writer::start(writing).map_err(|error| unusable(&error))?;
        Ok(Self { writer, readers: Readers { path: path.to_owned(), idle: Mutex::default() }, faults })
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

/// Whether the file is too short for a database, which SQLite would take for an empty one. The file is
/// not opened: closing it would drop the locks that this process may hold on it.
fn is_a_fragment(path: &Path) -> std::io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok((1..MIN_FILE_BYTES).contains(&metadata.len())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    // Without it SQLite plans a query with LIMIT ? anew each time it runs, to see whether the number changes the plan.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL;
         PRAGMA foreign_keys = ON;
         PRAGMA cache_size = -8192;
         PRAGMA temp_store = MEMORY;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;",
    )?;
    Ok(connection)
}

fn migrate(connection: &mut Connection, path: &Path) -> std::result::Result<(), OpenError> {
    let unusable =
        |error: rusqlite::Error| OpenError::Unusable { path: path.display().to_string(), error: error.to_string() };
    let pending = match schema(connection).map_err(unusable)? {
        Schema::Ours => false,
        Schema::Empty | Schema::Older(_) => true,
        Schema::Foreign => return Err(OpenError::Foreign(path.display().to_string())),
        Schema::Newer(found) => return Err(OpenError::Newer { found, known: MIGRATIONS.len() }),
    };
    // A copy that `Snapshot::take` made does not have it.
    use_wal(connection).map_err(unusable)?;
    if !pending {
        return Ok(());
    }
    writer::alone(connection, |connection| {
        // Another process may have migrated while this one waited for the lock.
        let done = usize::try_from(pragma(connection, "PRAGMA user_version")?).unwrap_or(usize::MAX);
        for step in MIGRATIONS.iter().skip(done) {
            connection.execute_batch(step)?;
        }
        if done == 0 {
            let secret: [u8; 32] = rand::random();
            connection.execute("INSERT INTO secrets (name, value) VALUES ('cursor', ?1)", [&secret])?;
            connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        }
        connection.pragma_update(None, "user_version", MIGRATIONS.len() as i64)
    })
    .map_err(unusable)
}

/// Whose schema a file holds.
enum Schema {
    Empty,
    Ours,
    Older(i64),
    Newer(i64),
    Foreign,
}

fn schema(connection: &Connection) -> rusqlite::Result<Schema> {
    // One transaction: a database that another process is making is seen whole or not at all.
    let snapshot = connection.unchecked_transaction()?;
    let application = pragma(&snapshot, "PRAGMA application_id")?;
    let objects = pragma(&snapshot, "SELECT count(*) FROM sqlite_schema")?;
    let found = pragma(&snapshot, "PRAGMA user_version")?;
    if application != i64::from(APPLICATION_ID) {
        return Ok(if application == 0 && objects == 0 { Schema::Empty } else { Schema::Foreign });
    }
    Ok(match usize::try_from(found) {
        Ok(version) if version == MIGRATIONS.len() => Schema::Ours,
        Ok(version) if version < MIGRATIONS.len() => Schema::Older(found),
        _ => Schema::Newer(found),
    })
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.query_row(name, [], |row| row.get(0))
}

/// Switches to the write-ahead log. SQLite does not wait when another process does so too, so this does.
fn use_wal(connection: &Connection) -> rusqlite::Result<()> {
    const PAUSE: Duration = Duration::from_millis(20);
    let mut waited = Duration::ZERO;
    loop {
        match connection.execute_batch("PRAGMA journal_mode = WAL") {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && waited < BUSY_TIMEOUT => {
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            outcome => return outcome,
        }
    }
}

/// Connections that only read. Point reads take microseconds, less than a hop to another thread, so
/// they run where they are asked for; there are never more connections than threads asking.
struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let idle = || self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let taken = idle().pop();
        let connection = match taken {
            Some(connection) => connection,
            None => connect(&self.path, OpenFlags::SQLITE_OPEN_READ_WRITE)?,
        };
        let outcome = query(&connection);
        idle().push(connection);
        outcome
    }
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
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission> {
        self.write(Effect::Submit, move |writing| tasks::submit(writing, account_id, surface, &request, max_unfinished))
            .await
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

    async fn claim(&self, max: usize, lease: Duration) -> Result<Vec<Claim>> {
        self.write(Effect::Claim, move |writing| queue::claim(writing, max, lease)).await
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

    async fn queue_depth(&self) -> Result<QueueDepth> {
        self.read(queue::depth)
    }

    async fn cursor_secret(&self) -> Result<[u8; 32]> {
        self.read(|connection| {
            connection.query_row("SELECT value FROM secrets WHERE name = 'cursor'", [], |row| row.get(0))
        })
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
