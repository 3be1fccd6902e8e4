//! The one thread that writes. Everything that arrives while a commit is under way shares the next.

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

use crate::clock::Clock;
use crate::domain::model::IdSource;
use crate::fault::{Effect, Faults, Point};
use crate::store::{EXIT_FAULT, Result, StoreError};

/// Most writes that share one commit.
const MAX_BATCH: usize = 1_024;
/// The write-ahead log is folded into the database when it holds this many pages of 4 KiB...
const CHECKPOINT_PAGES: usize = 4_096;
/// ...or when no write added to it for this long.
const CHECKPOINT_IDLE: Duration = Duration::from_secs(1);

/// What a write sees: the open transaction, the time, new ids, and whose turn it is.
pub(super) struct Writing {
    pub(super) connection: Connection,
    pub(super) clock: Clock,
    pub(super) ids: IdSource,
    /// The account served last; the next claim begins after it.
    pub(super) last_served: String,
    pub(super) faults: Faults,
}

/// What ended the process: the state of the disk is unknown (`EX_IOERR` of sysexits.h).
const EXIT_IO_ERROR: i32 = 74;

/// A write on its way through the writer thread.
trait Write: Send {
    /// Runs inside the transaction and returns whether it succeeded; when not, half of it may be written.
    fn run(&mut self, writing: &mut Writing) -> bool;

    /// Runs again, leaving no trace if it fails.
    fn run_in_savepoint(&mut self, writing: &mut Writing);

    /// Tells the caller, after the commit.
    fn answer(self: Box<Self>, committed: Result<()>);
}

struct Pending<T, F> {
    write: F,
    outcome: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Write for Pending<T, F>
where
    T: Send,
    F: FnMut(&mut Writing) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, writing: &mut Writing) -> bool {
        let succeeded = self.outcome.insert((self.write)(writing).map_err(StoreError::from)).is_ok();
        // A full disk can make SQLite roll the whole transaction back by itself, also under a write that
        // puts up with failures; whatever ran after that would commit alone.
        succeeded && !writing.connection.is_autocommit()
    }

    fn run_in_savepoint(&mut self, writing: &mut Writing) {
        self.outcome = Some(in_savepoint(writing, &mut self.write).map_err(StoreError::from));
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let outcome = match (self.outcome, committed) {
            (Some(outcome), Ok(())) => outcome,
            (Some(Err(error)), Err(_)) | (_, Err(error)) => Err(error),
            (None, Ok(())) => unreachable!("what is committed has run"),
        };
        // The caller may have gone; what was written stands all the same.
        drop(self.reply.send(outcome));
    }
}

/// Handle of the writer thread. Dropping the last one ends it.
#[derive(Debug)]
pub(super) struct Writer {
    writes: Option<Sender<Box<dyn Write>>>,
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
                tracing::error!("the database writer failed; stopping so that a restart can go on");
                std::process::exit(EXIT_FAULT);
            }
        };
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(work)?;
        Ok(Self { writes: Some(writes), thread: Some(thread) })
    }

    /// Runs `write` and returns its result once it is durable. When `write` fails it leaves no trace,
    /// and the writes beside it are untouched.
    pub(super) async fn write<T, F>(&self, write: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Writing) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Pending { write, outcome: None, reply });
        let writes = self.writes.as_ref().expect("only drop takes the sender");
        writes.send(job).map_err(|_| StoreError::Other("the writer has stopped".into()))?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Other("the writer has stopped".into())))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.writes = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            drop(thread.join());
        }
    }
}

fn run(mut writing: Writing, inbox: &Receiver<Box<dyn Write>>, log_pages: &AtomicUsize) {
    let mut grown = writing.clock.elapsed();
    loop {
        let in_log = log_pages.load(Ordering::Relaxed);
        let wait = if in_log > 0 { CHECKPOINT_IDLE } else { Duration::MAX };
        let mut idle = match inbox.recv_timeout(wait) {
            Ok(first) => {
                commit_batch(&mut writing, first, inbox);
                false
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Looking for work is a write that mostly changes nothing, every second; it must not put this off.
        let (now, pages) = (writing.clock.elapsed(), log_pages.load(Ordering::Relaxed));
        if pages != in_log {
            grown = now;
        }
        idle |= pages > 0 && now.saturating_sub(grown) >= CHECKPOINT_IDLE;
        if idle || pages >= CHECKPOINT_PAGES {
            checkpoint(&writing);
            log_pages.store(0, Ordering::Relaxed);
        }
    }
}

/// One transaction for `first` and all that is waiting, then an answer for each of them.
fn commit_batch(writing: &mut Writing, first: Box<dyn Write>, inbox: &Receiver<Box<dyn Write>>) {
    let mut batch = vec![first];
    let committed = match begin(&writing.connection) {
        Ok(()) => run_batch(writing, &mut batch, inbox).and_then(|()| commit(writing)),
        Err(error) => {
            // What waits behind it would wait for the same lock, one after the other.
            batch.extend(inbox.try_iter().take(MAX_BATCH));
            Err(error.into())
        }
    };
    for write in batch {
        write.answer(committed.clone());
    }
}

/// Runs what is in the batch and all that is waiting. A savepoint for each would cost a quarter of its
/// time, and writes hardly ever fail: only when one does are they all run again, each in its own.
fn run_batch(writing: &mut Writing, batch: &mut Vec<Box<dyn Write>>, inbox: &Receiver<Box<dyn Write>>) -> Result<()> {
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
            return Err(StoreError::Other("the transaction was rolled back".into()));
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

/// Does what leaves its trace on the disk; a planned error there is the disk's.
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

/// Whether what was written reached the disk is unknown then. Guessing would lose or double a charge; a
/// restart reads the log and knows. Only where nothing can be written at all, nothing was.
fn stop_on_io_failure(connection: &Connection, error: &rusqlite::Error) {
    if error.sqlite_error_code() != Some(ErrorCode::SystemIoFailure) {
        return;
    }
    let extended = error.sqlite_error().map(|error| error.extended_code);
    if extended == Some(ffi::SQLITE_IOERR_WRITE) && connection.path().is_some_and(is_read_only) {
        return;
    }
    tracing::error!(%error, "the database could not be written; stopping so that a restart can tell what was saved");
    std::process::exit(EXIT_IO_ERROR);
}

/// Whether the file system of the database refuses every change, found out by making a file beside it: the
/// error that SQLite gives does not say.
fn is_read_only(database: &str) -> bool {
    let probe = format!("{database}.probe");
    let refused = File::create(&probe).is_err_and(|error| error.kind() == ErrorKind::ReadOnlyFilesystem);
    if !refused {
        // A probe left behind is in nobody's way.
        drop(std::fs::remove_file(&probe));
    }
    refused
}

/// Ends the transaction, if SQLite has not done so by itself.
fn roll_back(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "rollback failed");
    }
}

/// Runs `write` so that it leaves no trace when it fails.
pub(super) fn in_savepoint<T>(
    writing: &mut Writing,
    write: impl FnOnce(&mut Writing) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    writing.connection.prepare_cached("SAVEPOINT one")?.execute([])?;
    let outcome = write(writing);
    if writing.connection.is_autocommit() {
        return outcome;
    }
    let undone = if outcome.is_err() { execute(&writing.connection, "ROLLBACK TO one") } else { Ok(()) };
    if let Err(error) = undone.and_then(|()| execute(&writing.connection, "RELEASE one")) {
        // Half of the write would be committed with the rest of the batch.
        roll_back(&writing.connection);
        return Err(error);
    }
    outcome
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

fn checkpoint(writing: &Writing) {
    let connection = &writing.connection;
    let fold = || connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    if let Err(error) = on_disk(writing, Effect::Checkpoint, fold) {
        stop_on_io_failure(connection, &error);
        tracing::warn!(%error, "checkpoint failed");
    }
}

/// Runs `write` alone, in a transaction, for set-up before the writer thread exists.
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

    /// A full disk can make SQLite end the transaction by itself in the middle of a batch.
    #[tokio::test]
    async fn what_runs_after_a_transaction_that_was_given_up_is_kept_only_if_acknowledged() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let path = directory.path().join("kept.db");
        let connection = Connection::open(&path).expect("a database");
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE kept (name TEXT)").expect("a table");
        let (clock, ids) = (Clock::system(), IdSource::default());
        let writing = Writing { connection, clock, ids, last_served: String::new(), faults: Faults::default() };
        let writer = Writer::start(writing).expect("a thread");
        let (open, gate) = channel::<()>();
        // Holds the writer until all three are in its inbox, and so in one batch.
        let held = writer.write(move |_| {
            gate.recv().expect_err("nothing is sent");
            Ok(())
        });
        let lost = writer.write(|writing| {
            writing.connection.execute("INSERT INTO kept VALUES ('lost')", [])?;
            writing.connection.execute_batch("ROLLBACK")
        });
        let beside = writer.write(|writing| writing.connection.execute("INSERT INTO kept VALUES ('beside')", []));
        let release = async { drop(open) };
        let (_, lost, beside, ()) = tokio::join!(held, lost, beside, release);
        assert!(lost.is_err());
        let reader = Connection::open(&path).expect("a database");
        let kept: i64 = reader.query_row("SELECT count(*) FROM kept", [], |row| row.get(0)).expect("a count");
        assert_eq!(kept, i64::from(beside.is_ok()));
    }
}
