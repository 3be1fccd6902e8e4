//! A relay between a process and PostgreSQL that can cut connections, delay statements, and drop answers.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::node::HANG;

/// The name of the socket of a PostgreSQL server on the default port.
const SOCKET: &str = ".s.PGSQL.5432";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// Everything.
    Open,
    /// Nothing until the passage changes; then held traffic goes on.
    Held,
    /// Statements, but no answers. A connection whose answer was held back is closed when the passage changes.
    Deaf,
    /// An existing connection is closed as soon as a commit, or a statement outside of a transaction, is sent over it. That
    /// arrives when the passage changes. New connections pass everything.
    Late,
    /// Nothing: all connections are closed, and new ones are refused.
    Closed,
}

/// The way in which a connection is cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cut {
    /// The commit is executed and its answer is lost.
    #[default]
    Answer,
    /// The answer is cut off, and nothing passes from then on.
    AnswerAndAll,
    /// The commit is lost, and nothing passes from then on.
    CommitAndAll,
}

/// Cuts this number of connections when they commit a transaction whose statements contain these words.
#[derive(Debug, Default)]
struct Doom {
    words: Vec<u8>,
    times: u32,
    cut: Cut,
}

/// State that all connections of a relay share.
#[derive(Clone)]
struct Line {
    passage: watch::Receiver<Passage>,
    close: watch::Sender<Passage>,
    doom: Arc<Mutex<Doom>>,
    /// Statements that arrived late and were executed.
    late: watch::Sender<Vec<u8>>,
}

/// A Unix socket with the name that PostgreSQL uses, in a directory of its own.
pub struct Relay {
    pub directory: TempDir,
    passage: watch::Sender<Passage>,
    line: Line,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// Connects to the server whose socket is in a directory.
    pub fn to(server: &Path) -> Self {
        let directory = TempDir::new().expect("a directory");
        let listener = UnixListener::bind(directory.path().join(SOCKET)).expect("a socket");
        let (passage, seen) = watch::channel(Passage::Open);
        let line = Line { passage: seen, close: passage.clone(), doom: Arc::default(), late: watch::Sender::default() };
        let (of_connections, server) = (line.clone(), server.join(SOCKET));
        let accepting = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.expect("a connection");
                let (line, server) = (of_connections.clone(), server.clone());
                tokio::spawn(async move {
                    if *line.passage.borrow() != Passage::Closed
                        && let Ok(far) = UnixStream::connect(server).await
                    {
                        connect(near, far, line).await;
                    }
                });
            }
        });
        Self { directory, passage, line, accepting }
    }

    pub fn set(&self, passage: Passage) {
        self.passage.send_replace(passage);
    }

    /// Cuts the next connections that commit what contains these words.
    pub fn cut_answers(&self, words: &str, times: u32) {
        *self.line.doom.lock().expect("no panic") = Doom { words: words.into(), times, cut: Cut::Answer };
    }

    /// Cuts the next connection that commits what contains these words.
    pub fn cut(&self, words: &str, cut: Cut) {
        *self.line.doom.lock().expect("no panic") = Doom { words: words.into(), times: 1, cut };
    }

    /// Number of connections still to be cut.
    pub fn cuts_left(&self) -> u32 {
        self.line.doom.lock().expect("no panic").times
    }

    /// Waits until a statement with these words has arrived late and was executed.
    pub async fn done_late(&self, words: &str) {
        let mut late = self.line.late.subscribe();
        let done = late.wait_for(|late| holds(late, words.as_bytes()));
        drop(tokio::time::timeout(HANG, done).await.expect("it arrives").expect("the sender is ours"));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn holds(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|found| found == words)
}

impl Doom {
    fn names(&self, bytes: &[u8]) -> bool {
        self.times > 0 && holds(bytes, &self.words)
    }

    fn strike(&mut self) -> Option<Cut> {
        self.times = self.times.checked_sub(1)?;
        Some(self.cut)
    }
}

async fn connect(mut near: UnixStream, mut far: UnixStream, mut line: Line) {
    let is_new = *line.passage.borrow() == Passage::Late;
    let (mut from_far, mut to_far) = far.split();
    let late = {
        let (from_near, to_near) = near.split();
        let mut closed = line.passage.clone();
        let doomed = AtomicBool::new(false);
        tokio::select! {
            late = line.ask(from_near, &mut to_far, &doomed, is_new) => late,
            () = line.answer(&mut from_far, to_near, &doomed) => None,
            _ = closed.wait_for(|passage| *passage == Passage::Closed) => None,
        }
    };
    drop(near);
    if let Some(bytes) = late
        && line.passage.wait_for(|passage| *passage != Passage::Late).await.is_ok()
        && to_far.write_all(&bytes).await.is_ok()
        && to_far.shutdown().await.is_ok()
    {
        // The server closes the connection when it has executed the statement.
        drop(from_far.read_to_end(&mut Vec::new()).await);
        line.late.send_modify(|late| late.extend(bytes));
    }
}

impl Line {
    /// Carries statements. Returns the bytes that are to arrive late, if that is why the connection ended.
    async fn ask(
        &self,
        mut from_near: ReadHalf<'_>,
        to_far: &mut WriteHalf<'_>,
        doomed: &AtomicBool,
        is_new: bool,
    ) -> Option<Vec<u8>> {
        let mut passage = self.passage.clone();
        let mut bytes = vec![0; 64 * 1024];
        let (mut is_named, mut has_begun) = (false, false);
        loop {
            let length = from_near.read(&mut bytes).await.ok().filter(|length| *length > 0)?;
            let now = *passage.wait_for(|passage| *passage != Passage::Held).await.ok()?;
            let sent = &bytes[..length];
            is_named |= self.doom.lock().expect("no panic").names(sent);
            has_begun |= holds(sent, b"START TRANSACTION") || holds(sent, b"BEGIN");
            let ends = holds(sent, b"COMMIT");
            if now == Passage::Late && !is_new && (ends || !has_begun) {
                bytes.truncate(length);
                return Some(bytes);
            }
            has_begun &= !ends && !holds(sent, b"ROLLBACK");
            let struck = if is_named && ends { self.doom.lock().expect("no panic").strike() } else { None };
            match struck {
                Some(Cut::CommitAndAll) => {
                    self.close.send_replace(Passage::Closed);
                    return None;
                }
                Some(_) => doomed.store(true, Ordering::SeqCst),
                None => {}
            }
            to_far.write_all(&bytes[..length]).await.ok()?;
        }
    }

    /// Carries answers until the connection is cut.
    async fn answer(&self, from_far: &mut ReadHalf<'_>, mut to_near: WriteHalf<'_>, doomed: &AtomicBool) {
        let mut passage = self.passage.clone();
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let Ok(length @ 1..) = from_far.read(&mut bytes).await else { return };
            if doomed.load(Ordering::SeqCst) {
                if self.doom.lock().expect("no panic").cut == Cut::AnswerAndAll {
                    self.close.send_replace(Passage::Closed);
                }
                return;
            }
            let now = passage.wait_for(|passage| *passage != Passage::Held).await.map(|passage| *passage);
            match now {
                Ok(Passage::Deaf) => return drop(passage.wait_for(|passage| *passage != Passage::Deaf).await),
                Ok(_) if to_near.write_all(&bytes[..length]).await.is_ok() => {}
                _ => return,
            }
        }
    }
}
