//! The embedded default: one SQLite file, one writer thread, and a read connection for each concurrent read.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use rustix::fs::Access;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) use self::writer::Writing;
use self::writer::{Work, Writer};
use super::driver::{Driver, Store, between_faults};
use super::{Audit, Cause, OpenError, Result, Schema, StoreError, WorkerReport, audit};
use tintype_domain::model::{Id, IdSource};
use tintype_system::clock::{Clock, Timestamp};
use tintype_system::fault::{Effect, Faults};
use tintype_system::locked::Locked as _;

mod connection;
mod gallery;
mod moved;
#[cfg(test)]
pub(crate) mod plans;
mod queue;
mod schema;
mod snapshot;
mod workers;
mod writer;

use self::connection::connect;
pub(crate) use self::gallery::{index_prompts, overwrite_words};
pub use self::moved::{begin_move, end_move, take_back};
pub use self::schema::SCHEMA;
use self::schema::{check_file, migrate, unusable};
pub use self::snapshot::{copy, copy_moved, open_for_reading, open_in_place};

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

pub(crate) struct SqliteStore {
    writer: Writer,
    path: PathBuf,
    /// How connections for reading are opened.
    flags: OpenFlags,
    /// The connections for reading that are free. A point read takes microseconds, less than a hop to another thread,
    /// so it runs on the calling thread; there are never more connections than calling threads.
    idle: Mutex<Vec<Connection>>,
    /// Held while a long read runs.
    pub(crate) long_reads: Arc<Semaphore>,
    /// Held while a report is read.
    pub(crate) reports: Arc<Semaphore>,
    pub(crate) clock: Clock,
    pub(crate) faults: Faults,
    /// The last report of each worker of this process, and its time.
    workers: Mutex<BTreeMap<Id, (WorkerReport, Timestamp)>>,
    /// What SQLite counts up when another process has written, at the last look.
    data_version: AtomicI64,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full(Cause::new(error)),
            _ => Self::Other(Cause::new(error)),
        }
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Other(Cause::new(error))
    }
}

/// Opens the file, creating it or bringing its schema up to date as needed. After an error, it is unchanged.
pub fn open(path: &Path, clock: Clock) -> std::result::Result<Store, OpenError> {
    open_with_faults(path, clock, Faults::default())
}

/// [`open`] that injects `faults`.
pub fn open_with_faults(path: &Path, clock: Clock, faults: Faults) -> std::result::Result<Store, OpenError> {
    open_with(path, clock, faults, &SCHEMA)
}

/// [`open_with_faults`]. Only tests have another schema than [`SCHEMA`].
pub fn open_with(path: &Path, clock: Clock, faults: Faults, schema: &Schema) -> std::result::Result<Store, OpenError> {
    check_file(path, Access::READ_OK | Access::WRITE_OK)?;
    check_restored(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let mut connection = connect(path, flags).map_err(|error| unusable(path, error))?;
    migrate(&mut connection, path, schema)?;
    let ids = IdSource::default();
    let (last_served, empties_log) = (HashMap::new(), false);
    let writing = Writing { connection, clock: clock.clone(), ids, last_served, faults: faults.clone(), empties_log };
    let writer = Writer::start(writing).map_err(|error| unusable(path, error))?;
    let store = SqliteStore { writer, faults, ..SqliteStore::new(path, OpenFlags::SQLITE_OPEN_READ_WRITE, clock) };
    Ok(Driver::Sqlite(Arc::new(store)).into())
}

impl SqliteStore {
    /// A store without a writer.
    fn new(path: &Path, flags: OpenFlags, clock: Clock) -> Self {
        Self {
            writer: Writer::default(),
            path: path.to_owned(),
            flags,
            idle: Mutex::default(),
            long_reads: Arc::new(Semaphore::new(1)),
            reports: Arc::new(Semaphore::new(1)),
            clock,
            faults: Faults::default(),
            workers: Mutex::default(),
            data_version: AtomicI64::new(0),
        }
    }

    pub(crate) fn check_integrity(&self) -> Result<()> {
        // A start has less time than a backup.
        let is_start = self.flags.contains(OpenFlags::SQLITE_OPEN_READ_WRITE);
        let check = if is_start { "PRAGMA quick_check(1)" } else { "PRAGMA integrity_check(1)" };
        let found: String = self.read(|connection| connection.query_row(check, [], |row| row.get(0)))?;
        if found == "ok" { Ok(()) } else { Err(StoreError::other(found)) }
    }

    /// Writes between the two fault points of `effect`, if there is one.
    pub(crate) async fn write<T, F>(&self, effect: impl Into<Option<Effect>>, mut write: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Writing) -> Result<T> + Send + 'static,
    {
        let work: Work = Box::new(move |writing| Ok(Box::new(write(writing)?)));
        let outcome = between_faults(&self.faults, effect, self.writer.write(work)).await?;
        Ok(*outcome.downcast().expect("what this write returns"))
    }

    pub(crate) async fn audit_credits(&self) -> Result<Audit> {
        self.read(|connection| Ok(audit::on_sqlite(connection)))?
    }

    /// Checkpoints the write-ahead log and truncates it.
    pub(crate) fn begin_new_log(&self) -> Result<()> {
        let busy: bool =
            self.read(|connection| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)))?;
        if busy {
            tracing::warn!(
                "another program is reading the database, so the write-ahead log of the last run is kept until the \
                    next checkpoint"
            );
        }
        Ok(())
    }

    /// Runs a slow read on a separate thread: the threads that answer stay free.
    pub(crate) async fn long_read<T: Send + 'static>(
        self: &Arc<Self>,
        turn: OwnedSemaphorePermit,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            // Until the read has ended, even if its caller has gone.
            let _turn = turn;
            store.read(query)
        });
        read.await.map_err(StoreError::other)?
    }

    pub(crate) fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let free = self.idle.locked().pop();
        let connection = match free {
            Some(connection) => connection,
            None => connect(&self.path, self.flags)?,
        };
        let outcome = query(&connection);
        self.idle.locked().push(connection);
        Ok(outcome?)
    }
}

/// The path at which a restore keeps the database until all result files are restored. While this file exists and the
/// database does not, nothing opens the database.
pub fn restoring(database: &Path) -> PathBuf {
    with_suffix(database, ".restoring")
}

/// Rejects a database whose restore did not finish.
fn check_restored(path: &Path) -> std::result::Result<(), OpenError> {
    let unfinished = restoring(path);
    if path.exists() || !unfinished.exists() {
        return Ok(());
    }
    // An empty database must not take its place.
    Err(OpenError::Unusable(format!(
        "a restore of {} did not finish: remove {} and the result files beside it, and restore again",
        path.display(),
        unfinished.display()
    )))
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
