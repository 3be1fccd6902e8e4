//! Whether an engine, or one of its servers, is to blame for what goes wrong with it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Different pieces of work that go wrong in a row, and that another could do, before the engine is to blame.
const SEVERAL: usize = 2;
/// Most failures to remember.
const MAX_FAILURES: usize = 256;

/// What has gone wrong with an engine since its last success. Only work that another one then did counts against it: else
/// a caller whose briefs fail everywhere could keep engines from work.
#[derive(Debug, Clone)]
pub struct Failures<W> {
    latest: VecDeque<Failure<W>>,
    last_try: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Failure<W> {
    work: W,
    asked_pause: bool,
    done_elsewhere: bool,
}

impl<W> Default for Failures<W> {
    fn default() -> Self {
        Self { latest: VecDeque::new(), last_try: None }
    }
}

impl<W: Copy + PartialEq> Failures<W> {
    /// Notes that work went wrong, and whether the engine asked for a pause.
    pub fn note(&mut self, work: W, asked_pause: bool) {
        self.note_try();
        let done_elsewhere = self.latest.iter().any(|failure| failure.work == work && failure.done_elsewhere);
        self.latest.retain(|failure| failure.work != work);
        if self.latest.len() == MAX_FAILURES {
            self.latest.pop_front();
        }
        self.latest.push_back(Failure { work, asked_pause, done_elsewhere });
    }

    /// Notes that another engine did work that may have gone wrong here.
    pub fn note_done_elsewhere(&mut self, work: W) {
        for failure in self.latest.iter_mut().filter(|failure| failure.work == work) {
            failure.done_elsewhere = true;
        }
    }

    /// Forgets what went wrong before a success.
    pub fn clear(&mut self) {
        self.latest.clear();
    }

    /// Whether this work went wrong.
    pub fn contains(&self, work: W) -> bool {
        self.latest.iter().any(|failure| failure.work == work)
    }

    /// Whether several pieces of work went wrong that another engine could do.
    pub fn is_to_blame(&self) -> bool {
        self.latest.iter().filter(|failure| failure.done_elsewhere).count() >= SEVERAL
    }

    /// Whether the engine asked for a pause for several pieces of work.
    pub fn asks_for_pauses(&self) -> bool {
        self.latest.iter().filter(|failure| failure.asked_pause).count() >= SEVERAL
    }

    /// Notes that work has been given to the engine.
    pub fn note_try(&mut self) {
        self.last_try = Some(Instant::now());
    }

    /// Whether the last try is at least this long ago.
    pub fn is_due(&self, interval: Duration) -> bool {
        self.last_try.is_none_or(|at| at.elapsed() >= interval)
    }
}
