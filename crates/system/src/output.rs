//! Standard output and standard error of a server. A reader may be slow, stopped or gone, and no request waits for it: lines
//! go into a bounded queue, and one thread for each stream writes them. Lines beyond the bound are dropped, counted, and
//! reported in their place.
//!
//! Until [`open`] was called, as in a command other than a server, every line is written at once.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::locked::Locked as _;

/// Bytes that wait in one queue.
const MAX_WAITING: usize = 1024 * 1024;
/// Approximate memory of a line in addition to its text.
const LINE_OVERHEAD: usize = 64;
/// Time that the last lines get at the end of the process.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

static OUTPUT: OnceLock<QueuedOutput> = OnceLock::new();
static LOG: OnceLock<QueuedOutput> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The report of dropped lines, which the thread of the log makes and writes itself.
    static REPORT: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Why lines of the log were dropped.
#[derive(Debug)]
pub enum Reason {
    /// Standard error was not read in time.
    Unread,
    /// It could not be written.
    Unwritable(io::Error),
}

/// Makes an event of the log of a number of dropped lines and the reason.
pub type Report = fn(u64, Reason);

#[derive(Debug)]
struct QueuedOutput {
    queue: Mutex<Queue>,
    /// There is something to write.
    filled: Condvar,
    /// Everything was written.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<QueuedLine>,
    bytes: usize,
    /// The thread is writing what it has taken out.
    writes: bool,
}

#[derive(Debug)]
enum QueuedLine {
    Line(Vec<u8>),
    /// This number of lines is missing here.
    Gap(u64),
}

impl QueuedOutput {
    fn open(file: File, name: &str, report: Option<Report>) -> io::Result<Self> {
        let outlet = Self { queue: Mutex::default(), filled: Condvar::new(), emptied: Condvar::new() };
        let log = report.is_some();
        let run = move || {
            let of_this_thread = if log { &LOG } else { &OUTPUT };
            of_this_thread.wait().write_all(file, report);
        };
        std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(outlet)
    }

    fn push(&self, line: Vec<u8>) {
        let mut queue = self.queue.locked();
        let size = line.len() + LINE_OVERHEAD;
        if queue.bytes + size <= MAX_WAITING {
            queue.bytes += size;
            queue.entries.push_back(QueuedLine::Line(line));
            self.filled.notify_one();
            return;
        }
        DROPPED.fetch_add(1, Ordering::Relaxed);
        match queue.entries.back_mut() {
            Some(QueuedLine::Gap(lines)) => *lines += 1,
            _ => queue.entries.push_back(QueuedLine::Gap(1)),
        }
    }

    fn pop(&self) -> QueuedLine {
        let mut queue = self.queue.locked();
        queue.writes = false;
        loop {
            if let Some(entry) = queue.entries.pop_front() {
                queue.writes = true;
                if let QueuedLine::Line(line) = &entry {
                    queue.bytes -= line.len() + LINE_OVERHEAD;
                }
                return entry;
            }
            self.emptied.notify_all();
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes all entries for as long as the process runs.
    fn write_all(&self, mut file: File, report: Option<Report>) {
        let mut unwritten = 0;
        let mut trouble = None;
        loop {
            let mut text = match trouble.take() {
                Some(error) => reported(report, unwritten, Reason::Unwritable(error)),
                None => Vec::new(),
            };
            let (lines, new) = match self.pop() {
                QueuedLine::Line(line) => {
                    text.extend(line);
                    (1, 1)
                }
                QueuedLine::Gap(lines) => {
                    text.extend(reported(report, lines, Reason::Unread));
                    (lines, 0)
                }
            };
            match write(&mut file, &text) {
                Ok(()) => unwritten = 0,
                Err(error) => {
                    unwritten += lines;
                    DROPPED.fetch_add(new, Ordering::Relaxed);
                    trouble = Some(error);
                }
            }
        }
    }

    fn flush(&self) {
        let unfinished = |queue: &mut Queue| queue.writes || !queue.entries.is_empty();
        // A reader that takes nothing must not keep the process alive.
        drop(self.emptied.wait_timeout_while(self.queue.locked(), FLUSH_LIMIT, unfinished));
    }
}

fn reported(report: Option<Report>, lines: u64, reason: Reason) -> Vec<u8> {
    let Some(report) = report else { return Vec::new() };
    REPORT.set(Some(Vec::new()));
    report(lines, reason);
    REPORT.take().unwrap_or_default()
}

/// Writes all of `text`, also to a pipe that another process has made non-blocking.
fn write(file: &mut File, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match file.write(text) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => text = &text[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&*file, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes this process a server: from now on no line is waited for. `report` makes an event of dropped lines of the log.
///
/// # Errors
/// A stream is closed, or no thread can be started.
pub fn open(report: Report) -> io::Result<()> {
    // Not the streams of the standard library: this thread would hold their locks while it waits.
    let own = |stream: &dyn AsFd| stream.as_fd().try_clone_to_owned().map(File::from);
    let log = QueuedOutput::open(own(&io::stderr())?, "log", Some(report))?;
    let output = QueuedOutput::open(own(&io::stdout())?, "output", None)?;
    drop(LOG.set(log));
    drop(OUTPUT.set(output));
    Ok(())
}

/// Prints a line on standard output.
///
/// # Errors
/// It could not be written. A server never reports that.
pub fn print(text: &str) -> io::Result<()> {
    match OUTPUT.get() {
        Some(outlet) => {
            outlet.push(format!("{text}\n").into_bytes());
            Ok(())
        }
        None => writeln!(io::stdout().lock(), "{text}"),
    }
}

/// Prints a line with a secret that cannot be shown again.
///
/// # Errors
/// It could not be written, or nobody could read it: standard output is `/dev/null`, which also stands in for one that was
/// closed at the start of the process.
pub fn print_secret(text: &str) -> io::Result<()> {
    let id = |file: rustix::fs::Stat| (file.st_mode, file.st_rdev);
    match (rustix::fs::fstat(io::stdout()).map(id), rustix::fs::stat("/dev/null").map(id)) {
        (Ok(output), Ok(null)) if output == null => Err(io::Error::other("standard output is closed or /dev/null")),
        _ => print(text),
    }
}

/// Prints a line on standard error.
pub fn complain(text: &str) {
    ask(&format!("{text}\n"));
}

/// Prints a question on standard error, without ending the line.
pub fn ask(text: &str) {
    // There is nowhere left to report a failure.
    drop(Log.write(text.as_bytes()));
}

/// Number of lines of this process that were dropped.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Waits until all lines are written, but at most 2 s for each stream. To be called before the process ends.
pub fn flush() {
    [&LOG, &OUTPUT].into_iter().filter_map(OnceLock::get).for_each(QueuedOutput::flush);
}

/// Calls [`flush`] when it is dropped, also by a panic.
#[derive(Debug)]
pub struct Flushing;

impl Drop for Flushing {
    fn drop(&mut self) {
        flush();
    }
}

/// Standard error as the log writes it: one event with each call.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let is_report = REPORT.with_borrow_mut(|report| match report {
            Some(report) => {
                report.extend(event);
                true
            }
            None => false,
        });
        match LOG.get() {
            _ if is_report => {}
            Some(outlet) => outlet.push(event.to_vec()),
            None => io::stderr().write_all(event)?,
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
