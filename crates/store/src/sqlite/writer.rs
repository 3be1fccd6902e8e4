//! The writer thread, the only one that writes to the database. Writes that arrive during a commit share the next one
//! (group commit).

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, TransactionBehavior, ffi};
use tokio::sync::oneshot;

use super::connection::BUSY_TIMEOUT;
use crate::{Result, StoreError};
use tintype_domain::model::IdSource;
use tintype_system::clock::Clock;
use tintype_system::fault::{Effect, Faults, Point};

/// Most writes in one commit.
const MAX_BATCH: usize = 1_024;
/// The writer checkpoints the write-ahead log when it holds this many pages of 4 KiB.
const CHECKPOINT_PAGES: usize = 4_096;
/// The writer also checkpoints the log when it has not grown for this long.
const CHECKPOINT_IDLE: Duration = Duration::from_secs(1);

/// Everything that a write can use.
pub(crate) struct Writing {
    pub(crate) connection: Connection,
    pub(crate) clock: Clock,
    pub(crate) ids: IdSource,
    /// The account that was served last, by the limit of references of the claim; the next such claim starts after it.
    pub(super) last_served: HashMap<(String, u32), String>,
    pub(super) faults: Faults,
    /// Prompts were erased, which earlier pages of the log still hold: the next checkpoint empties it.
    pub(crate) empties_log: bool,
}

/// Exit code after an internal error of this program (`EX_SOFTWARE` of sysexits.h).
const EXIT_FAULT: i32 = 70;
/// Exit code when the state of the disk is unknown (`EX_IOERR` of sysexits.h).
const EXIT_IO_ERROR: i32 = 74;

/// What a write returns. It may be of any type, so that the queue is compiled only once.
pub(super) type Outcome = Box<dyn Any + Send>;
/// What a write does. It may run again, after another write of its batch has failed.
pub(super) type Work = Box<dyn FnMut(&mut Writing) -> Result<Outcome> + Send>;

/// A write in the queue of the writer thread.
struct Write {
    work: Work,
    outcome: Option<Result<Outcome>>,
    reply: oneshot::Sender<Result<Outcome>>,
}

impl Write {
    /// Runs inside the transaction and returns whether it succeeded. A failed write may have taken effect in part.
    fn run(&mut self, writing: &mut Writing) -> bool {
        let succeeded = self.outcome.insert((self.work)(writing)).is_ok();
        // On a full disk SQLite can roll back the whole transaction on its own, even during a write that tolerates
        // errors. Later writes of the batch would then be committed separately.
        succeeded && !writing.connection.is_autocommit()
    }

    /// Runs again in a savepoint, which undoes the write if it fails.
    fn run_in_savepoint(&mut self, writing: &mut Writing) {
        self.outcome = Some(in_savepoint(writing, &mut self.work));
    }

    /// Sends the outcome to the caller, after the commit.
    fn answer(self, committed: Result<()>) {
        let outcome = match (self.outcome, committed) {
            (Some(outcome), Ok(())) => outcome,
            (Some(Err(error)), Err(_)) | (_, Err(error)) => Err(error),
            (None, Ok(())) => unreachable!("every write runs before the commit"),
        };
        // The caller may have stopped waiting; the write is durable anyway.
        drop(self.reply.send(outcome));
    }
}

/// Handle of the writer thread. Dropping it ends the thread. The default has none, and refuses to write.
#[derive(Debug, Default)]
pub(super) struct Writer {
    writes: Option<Sender<Write>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(mut writing: Writing) -> std::io::Result<Self> {
        let (writes, inbox) = channel();
        let log_pages = Arc::new(AtomicUsize::new(0));
        let seen = log_pages.clone();
        let hooked = writing.connection.wal_hook(Some(move |_: &mut Wal, pages: c_int| {
            seen.store(usize::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }));
        hooked.map_err(std::io::Error::other)?;
        let work = move || {
            let running = catch_unwind(AssertUnwindSafe(|| run(writing, &inbox, &log_pages)));
            if running.is_err() {
                tracing::error!("the database writer panicked, so the process exits; a restart recovers every commit");
                tintype_system::output::flush();
                std::process::exit(EXIT_FAULT);
            }
        };
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(work)?;
        Ok(Self { writes: Some(writes), thread: Some(thread) })
    }

    /// Runs `write` and returns its result once it is durable. A failed write has no effect, neither on the database
    /// nor on other writes of its batch.
    pub(super) async fn write(&self, work: Work) -> Result<Outcome> {
        let (reply, answer) = oneshot::channel();
        let writes = self.writes.as_ref().ok_or_else(|| StoreError::other("the database is open only for reading"))?;
        let sent = writes.send(Write { work, outcome: None, reply });
        sent.map_err(|_| StoreError::other("the writer has stopped"))?;
        answer.await.unwrap_or_else(|_| Err(StoreError::other("the writer has stopped")))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.writes = None;
        if let Some(thread) = self.thread.take() {
            // The thread itself logs a panic.
            drop(thread.join());
        }
    }
}

fn run(mut writing: Writing, inbox: &Receiver<Write>, log_pages: &AtomicUsize) {
    let mut last_growth = writing.clock.elapsed();
    loop {
        let in_log = log_pages.load(Ordering::Relaxed);
        let wait = if in_log > 0 || writing.empties_log { CHECKPOINT_IDLE } else { Duration::MAX };
        let mut idle = match inbox.recv_timeout(wait) {
            Ok(first) => {
                commit_batch(&mut writing, first, inbox);
                false
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // A claim runs every second and usually changes nothing, so it must not count as growth of the log.
        let (now, pages) = (writing.clock.elapsed(), log_pages.load(Ordering::Relaxed));
        if pages != in_log {
            last_growth = now;
        }
        // A reader may have kept the last checkpoint from emptying the log.
        idle |= (pages > 0 || writing.empties_log) && now.saturating_sub(last_growth) >= CHECKPOINT_IDLE;
        if idle || pages >= CHECKPOINT_PAGES {
            checkpoint(&mut writing);
            log_pages.store(0, Ordering::Relaxed);
        }
    }
}

/// Runs `first` and all waiting writes in one transaction, then answers each of them.
fn commit_batch(writing: &mut Writing, first: Write, inbox: &Receiver<Write>) {
    let mut batch = vec![first];
    let committed = match begin(&writing.connection) {
        Ok(()) => run_batch(writing, &mut batch, inbox).and_then(|()| commit(writing)),
        Err(error) => {
            // Fail the waiting writes too: each of them would time out on the same lock, one after the other.
            batch.extend(inbox.try_iter().take(MAX_BATCH));
            Err(error.into())
        }
    };
    for write in batch {
        write.answer(committed.clone());
    }
}

/// Runs the batch and all waiting writes without savepoints, which would take a quarter of the time. Writes hardly ever
/// fail; when one does, the whole batch is rolled back and runs again with a savepoint for each write.
fn run_batch(writing: &mut Writing, batch: &mut Vec<Write>, inbox: &Receiver<Write>) -> Result<()> {
    let mut succeeded = batch.iter_mut().all(|write| write.run(writing));
    while succeeded && batch.len() < MAX_BATCH {
        let Ok(mut next) = inbox.try_recv() else { break };
        succeeded = next.run(writing);
        batch.push(next);
    }
    if succeeded {
        return Ok(());
    }
    roll_back(&writing.connection);
    begin(&writing.connection)?;
    for write in batch {
        write.run_in_savepoint(writing);
        if writing.connection.is_autocommit() {
            return Err(StoreError::other("the transaction was rolled back"));
        }
    }
    Ok(())
}

fn begin(connection: &Connection) -> rusqlite::Result<()> {
    execute(connection, "BEGIN IMMEDIATE")
}

fn commit(writing: &Writing) -> Result<()> {
    let connection = &writing.connection;
    let Err(error) = on_disk(writing, Effect::Commit, || execute(connection, "COMMIT")) else { return Ok(()) };
    stop_on_io_failure(connection, &error);
    roll_back(connection);
    Err(error.into())
}

/// Runs an operation that writes to the disk. An injected fault appears as an I/O error.
fn on_disk(writing: &Writing, effect: Effect, act: impl FnOnce() -> rusqlite::Result<()>) -> rusqlite::Result<()> {
    let pass = |point| {
        let passed = writing.faults.pass_blocking(point);
        passed.map_err(|error| {
            rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), Some(error.to_string()))
        })
    };
    pass(Point::before(effect))?;
    act()?;
    pass(Point::after(effect))
}

/// Exits after an I/O error. It is then unknown whether the write reached the disk, and a wrong guess would lose or
/// double a charge. The next start reads the write-ahead log, which settles it. A read-only file system is an
/// exception: nothing was written.
fn stop_on_io_failure(connection: &Connection, error: &rusqlite::Error) {
    if error.sqlite_error_code() != Some(ErrorCode::SystemIoFailure) {
        return;
    }
    let extended = error.sqlite_error().map(|error| error.extended_code);
    if extended == Some(ffi::SQLITE_IOERR_WRITE) && connection.path().is_some_and(is_read_only) {
        return;
    }
    tracing::error!(%error, "an I/O error left the outcome of a write unknown, \
        so the process exits; check the disk, then restart");
    tintype_system::output::flush();
    std::process::exit(EXIT_IO_ERROR);
}

/// Whether the file system of the database is read-only. SQLite has no error code for it, so this creates a file next
/// to the database.
fn is_read_only(database: &str) -> bool {
    let probe = format!("{database}.probe");
    let refused = File::create(&probe).is_err_and(|error| error.kind() == ErrorKind::ReadOnlyFilesystem);
    if !refused {
        // A leftover probe file does no harm.
        drop(std::fs::remove_file(&probe));
    }
    refused
}

/// Rolls back, unless SQLite has already done so.
fn roll_back(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "a transaction could not be rolled back; the next write reports the error");
    }
}

/// Runs `work` in a savepoint, which undoes it if it fails.
fn in_savepoint(writing: &mut Writing, work: &mut Work) -> Result<Outcome> {
    execute(&writing.connection, "SAVEPOINT one")?;
    let outcome = work(writing);
    if writing.connection.is_autocommit() {
        return outcome;
    }
    let undone = if outcome.is_err() { execute(&writing.connection, "ROLLBACK TO one") } else { Ok(()) };
    if let Err(error) = undone.and_then(|()| execute(&writing.connection, "RELEASE one")) {
        // Without the rollback, a part of the write would be committed with the batch.
        roll_back(&writing.connection);
        return Err(error.into());
    }
    outcome
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

fn checkpoint(writing: &mut Writing) {
    let connection = &writing.connection;
    let mut is_emptied = false;
    let fold = || {
        if !writing.empties_log {
            return connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
        // A reader of old pages, such as a backup, keeps the log as it is; writes do not wait for it.
        connection.busy_timeout(Duration::ZERO)?;
        let is_busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
        connection.busy_timeout(BUSY_TIMEOUT)?;
        is_emptied = !is_busy?;
        Ok(())
    };
    if let Err(error) = on_disk(writing, Effect::Checkpoint, fold) {
        stop_on_io_failure(connection, &error);
        tracing::warn!(%error, "the write-ahead log could not be checkpointed; the next checkpoint tries again");
    }
    writing.empties_log &= !is_emptied;
}

/// Runs `write` in a transaction of its own, for use where there is no writer thread.
pub(super) fn alone<T>(
    connection: &mut Connection,
    write: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let outcome = write(&transaction)?;
    transaction.commit()?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writing(connection: Connection) -> Writing {
        let (clock, ids, faults) = (Clock::system(), IdSource::default(), Faults::default());
        Writing { connection, clock, ids, last_served: HashMap::new(), faults, empties_log: false }
    }

    #[test]
    fn the_checkpoint_after_an_erasure_empties_the_log_once_nobody_reads_it() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let (path, log) = (directory.path().join("kept.db"), directory.path().join("kept.db-wal"));
        let length = || std::fs::metadata(&log).expect("a log").len();
        let open = || Connection::open(&path).expect("a database");
        let mut writing = writing(open());
        let prepare = "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE kept (name TEXT)";
        writing.connection.execute_batch(prepare).expect("a table");
        checkpoint(&mut writing);
        assert!(length() > 0, "no erasure");
        let reader = open();
        let count = "SELECT count(*) FROM kept";
        reader.execute_batch(&format!("BEGIN; {count}")).expect("a read transaction");
        writing.connection.execute_batch("INSERT INTO kept VALUES ('a')").expect("a row");
        writing.empties_log = true;
        checkpoint(&mut writing);
        assert!(length() > 0 && writing.empties_log, "somebody reads");
        reader.execute_batch("COMMIT").expect("its end");
        checkpoint(&mut writing);
        assert_eq!((length(), writing.empties_log), (0, false));
    }

    /// On a full disk SQLite may end the transaction in the middle of a batch.
    #[tokio::test]
    async fn a_write_after_a_spontaneous_rollback_is_kept_only_if_acknowledged() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("kept.db");
        let connection = Connection::open(&path).expect("a database");
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE kept (name TEXT)").expect("a table");
        let writing = writing(connection);
        let writer = Writer::start(writing).expect("a thread");
        let (open, gate) = channel::<()>();
        // Blocks the writer until all three writes are in its inbox and therefore in one batch.
        let held = writer.write(Box::new(move |_| {
            gate.recv().expect_err("nothing is sent");
            Ok(Box::new(()))
        }));
        let lost = writer.write(Box::new(|writing| {
            writing.connection.execute("INSERT INTO kept VALUES ('lost')", [])?;
            writing.connection.execute_batch("ROLLBACK")?;
            Ok(Box::new(()))
        }));
        let beside = writer.write(Box::new(|writing| {
            Ok(Box::new(writing.connection.execute("INSERT INTO kept VALUES ('beside')", [])?))
        }));
        let release = async { drop(open) };
        let (_, lost, beside, ()) = tokio::join!(held, lost, beside, release);
        assert!(lost.is_err());
        let reader = Connection::open(&path).expect("a database");
        let kept: i64 = reader.query_row("SELECT count(*) FROM kept", [], |row| row.get(0)).expect("a count");
        assert_eq!(kept, i64::from(beside.is_ok()));
    }
}
