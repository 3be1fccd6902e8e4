//! A child's output: render progress, and lines for the log.
//!
//! In verbose mode, programs print prompts to standard output. Its lines are therefore only logged until the child is
//! ready, while standard error's are always logged.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::Steps;
use tintype_system::locked::Locked as _;

/// The rest of a longer line is ignored.
const MAX_LINE: usize = 400;
/// Most lines of a child's standard error in the log.
const MAX_LINES: u32 = 500;
/// Lines that explain a child's end.
const LAST_LINES: usize = 3;

#[derive(Debug, Default, Clone)]
pub(super) struct Output {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    ready: AtomicBool,
    healthy: AtomicBool,
    lines: AtomicU32,
    last: Mutex<VecDeque<String>>,
    steps: watch::Sender<Option<(u32, u32)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pipe {
    Output,
    Error,
}

impl Output {
    /// Reads both of a child's pipes until they close.
    pub(super) fn read(&self, engine: &str, child: &mut Child) -> AbortOnDropHandle<()> {
        let (output, error) = (child.stdout.take(), child.stderr.take());
        let (this, engine) = (self.clone(), engine.to_owned());
        AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::join!(this.lines(&engine, Pipe::Output, output), this.lines(&engine, Pipe::Error, error));
        }))
    }

    async fn lines(&self, engine: &str, pipe: Pipe, input: Option<impl AsyncRead + Unpin>) {
        let Some(mut input) = input else { return };
        let (mut line, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = input.read(&mut chunk).await {
            for byte in chunk.iter().take(count) {
                // Progress is overprinted: lines end with a carriage return, or clear the rest of the line.
                match byte {
                    b'\n' | b'\r' => self.line(engine, pipe, &std::mem::take(&mut line)),
                    _ if line.len() < MAX_LINE => line.push(*byte),
                    _ => {}
                }
                if line.ends_with(b"\x1b[K") {
                    self.line(engine, pipe, &std::mem::take(&mut line));
                }
            }
        }
        self.line(engine, pipe, &line);
    }

    fn line(&self, engine: &str, pipe: Pipe, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        if let Some(steps) = steps(&line) {
            self.inner.steps.send_replace(Some(steps));
            return;
        }
        let line: String = line.chars().filter(|letter| !letter.is_control()).collect();
        let line = line.trim();
        let ready = self.inner.ready.load(Ordering::Relaxed);
        if line.is_empty() || (pipe == Pipe::Output && ready) {
            return;
        }
        if pipe == Pipe::Output {
            tracing::debug!(engine, "{line}");
            return;
        }
        let mut last = self.inner.last.locked();
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line.to_owned());
        drop(last);
        match self.inner.lines.fetch_add(1, Ordering::Relaxed) {
            ..MAX_LINES => tracing::warn!(engine, "{line}"),
            MAX_LINES => tracing::warn!(engine, "the engine process prints too much; further output is not logged"),
            _ => {}
        }
    }

    /// Notes that the child is ready: its standard output can contain prompts from now on.
    pub(super) fn set_ready(&self) {
        self.inner.ready.store(true, Ordering::Relaxed);
    }

    /// Notes that the child has been answering for a while.
    pub(super) fn set_healthy(&self) {
        self.inner.healthy.store(true, Ordering::Relaxed);
    }

    /// Whether the child had been answering for a while.
    pub(super) fn is_healthy(&self) -> bool {
        self.inner.healthy.load(Ordering::Relaxed)
    }

    /// The child's last output, as the end of a sentence.
    pub(super) fn last_words(&self) -> String {
        let last = self.inner.last.locked();
        if last.is_empty() {
            String::new()
        } else {
            format!(": {}", last.iter().cloned().collect::<Vec<_>>().join(" / "))
        }
    }

    /// Steps done and total steps of the picture that the child is rendering.
    pub(super) fn steps(&self) -> Steps {
        self.inner.steps.subscribe()
    }
}

/// The steps in a progress line such as `  |====>   | 3/20 - 1.78it/s`. File loading shows bytes per second instead.
fn steps(line: &str) -> Option<(u32, u32)> {
    let (steps, speed) = line.trim().strip_prefix('|')?.rsplit_once('|')?.1.split_once(" - ")?;
    if !speed.contains("it/s") && !speed.contains("s/it") {
        return None;
    }
    let (done, of) = steps.split_once('/')?;
    let (done, of) = (done.trim().parse().ok()?, of.trim().parse().ok()?);
    (1..=of).contains(&done).then_some((done, of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_progress_tells_the_steps() {
        for (line, expected) in [
            ("  |========>                    | 1/6 - 3.39it/s", Some((1, 6))),
            ("  |==================================================| 20/20 - 2.10s/it", Some((20, 20))),
            ("  |=====>                       | 40/370 - 12.71MB/s", None),
            ("  |=====>                       | 0/0 - 1.00it/s", None),
            ("  |=====>                       | 9/6 - 1.00it/s", None),
            ("[INFO ] generating image: 1/1 - seed 7", None),
            ("", None),
        ] {
            assert_eq!(steps(line), expected, "{line}");
        }
    }
}
