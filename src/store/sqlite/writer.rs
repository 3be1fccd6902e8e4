//! The one thread that writes. Everything that arrives while a commit is under way shares the next.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::model::IdSource;
use crate::store::{Result, StoreError};

/// Most writes that share one commit.
const MAX_BATCH: usize = 1_024;
/// The write-ahead log is folded into the database after this many writes...
const CHECKPOINT_WRITES: usize = 4_096;
/// ...or when no write came for this long.
const CHECKPOINT_IDLE: Duration = Duration::from_secs(1);

/// What a write sees: the open transaction, the time, new ids, and whose turn it is.
pub(super) struct Writing {
    pub(super) connection: Connection,
    pub(super) clock: Clock,
    pub(super) ids: IdSource,
    /// The account served last; the next claim begins after it.
    pub(super) last_served: String,
}

/// What ended the process: the state of the disk is unknown (`EX_IOERR` of sysexits.h).
const EXIT_IO_ERROR: i32 = 74;

/// Runs inside the transaction, or learns that there is none; what it returns runs after the commit
/// and answers the caller.
type Write = Box<dyn FnOnce(Result<&mut Writing>) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<()>) + Send>;

/// Handle of the writer thread. Dropping the last one ends it.
#[derive(Debug)]
pub(super) struct Writer {
    writes: Option<Sender<Write>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(writing: Writing) -> std::io::Result<Self> {
        let (writes, inbox) = channel();
        let thread = std::thread::Builder::new().name("store-writer".into()).spawn(move || run(writing, &inbox))?;
        Ok(Self { writes: Some(writes), thread: Some(thread) })
    }

    /// Runs `write` in a savepoint of its own and returns its result once it is durable. When
    /// `write` fails it leaves no trace, and the writes beside it are untouched.
    pub(super) async fn write<T, F>(&self, write: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Writing) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: Write = Box::new(move |writing| {
            let outcome = writing.and_then(|writing| in_savepoint(writing, write).map_err(StoreError::from));
            // The caller may have gone; what was written stands all the same.
            Box::new(move |committed| drop(reply.send(outcome.and_then(|value| committed.map(|()| value)))))
        });
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

fn run(mut writing: Writing, inbox: &Receiver<Write>) {
    let mut since_checkpoint = 0;
    loop {
        let wait = if since_checkpoint > 0 { CHECKPOINT_IDLE } else { Duration::MAX };
        match inbox.recv_timeout(wait) {
            Ok(first) => since_checkpoint += commit_batch(&mut writing, first, inbox),
            Err(RecvTimeoutError::Timeout) => since_checkpoint = CHECKPOINT_WRITES,
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if since_checkpoint >= CHECKPOINT_WRITES {
            checkpoint(&writing.connection);
            since_checkpoint = 0;
        }
    }
}

/// One transaction for `first` and all that is waiting, then an answer for each of them. Returns
/// how many there were.
fn commit_batch(writing: &mut Writing, first: Write, inbox: &Receiver<Write>) -> usize {
    if let Err(error) = begin(&writing.connection) {
        first(Err(error.into()))(Ok(()));
        return 1;
    }
    let mut answers = vec![first(Ok(writing))];
    // A full disk can make SQLite roll the whole transaction back by itself; whatever ran after
    // that would commit alone.
    while answers.len() < MAX_BATCH && !writing.connection.is_autocommit() {
        let Ok(next) = inbox.try_recv() else { break };
        answers.push(next(Ok(writing)));
    }
    let committed = if writing.connection.is_autocommit() {
        Err(StoreError::Other("the transaction was rolled back".into()))
    } else {
        commit(&writing.connection)
    };
    let count = answers.len();
    for answer in answers {
        answer(committed.clone());
    }
    count
}

fn begin(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    Ok(())
}

fn commit(connection: &Connection) -> Result<()> {
    let outcome = connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
    let Err(error) = outcome else { return Ok(()) };
    if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) {
        // Whether the commit reached the disk is unknown. Guessing would lose or double a charge;
        // a restart reads the log and knows.
        tracing::error!(%error, "the database could not be written; stopping so that a restart can tell what was saved");
        std::process::exit(EXIT_IO_ERROR);
    }
    if !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "rollback failed");
    }
    Err(error.into())
}

fn in_savepoint<T>(
    writing: &mut Writing,
    write: impl FnOnce(&mut Writing) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    writing.connection.prepare_cached("SAVEPOINT one")?.execute([])?;
    let outcome = write(writing);
    if outcome.is_err() && !writing.connection.is_autocommit() {
        writing.connection.prepare_cached("ROLLBACK TO one")?.execute([])?;
    }
    if !writing.connection.is_autocommit() {
        writing.connection.prepare_cached("RELEASE one")?.execute([])?;
    }
    outcome
}

fn checkpoint(connection: &Connection) {
    if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
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
