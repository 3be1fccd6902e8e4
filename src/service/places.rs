//! The places of waiting tasks in the queue, for their owners.
//!
//! They come from a copy of the queue that is read at most once a second, whatever the number of polls. A place is the
//! task's rank by age among the waiting tasks of all accounts. It says how long the queue is and nothing else about other
//! accounts; workers take turns between accounts, so a task of an account with few tasks comes earlier.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::refresh::Refresh;
use crate::clock::{Clock, Timestamp};
use crate::domain::model::Id;
use crate::store::Store;

/// Most waiting tasks to copy, the oldest ones.
pub const MAX_KNOWN: u32 = 10_000;

/// The shortest and the longest time that a caller is told to wait before a poll. The interface recommends up to 10 s.
const SHORTEST_POLL: Duration = Duration::from_millis(50);
const LONGEST_POLL: Duration = Duration::from_secs(10);

/// The place of an unfinished task in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its rank by age among all waiting tasks, from 1; 0 while a worker has it.
    pub position: u64,
    /// Estimated time until it ends; `None` if that is unknown.
    pub wait: Option<Duration>,
}

impl Place {
    /// Time after which the next poll of the task is worth it: when it has probably ended, within the limits of the
    /// interface, and not before another tenth of its age, so that a task that never ends is asked for less and less
    /// often. `typical` is the time that its engine says to take, for as long as nothing was measured.
    pub fn poll_after(self, age: Duration, typical: Duration) -> Duration {
        let left = self.wait.unwrap_or_else(|| typical.saturating_sub(age));
        left.max(age / 10).clamp(SHORTEST_POLL, LONGEST_POLL)
    }
}

/// A copy of the queue.
#[derive(Debug)]
pub(super) struct Places {
    refresh: Refresh,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The oldest waiting tasks, in order.
    waiting: Vec<Id>,
    /// Time of the database just before they were read.
    read_at: Option<Timestamp>,
}

impl Places {
    pub(super) fn new(clock: Clock) -> Self {
        Self { refresh: Refresh::new(clock), known: Mutex::default() }
    }

    /// The place of an unfinished task: 1 for the oldest that waits, 0 for one that a worker has. The tasks behind the
    /// first [`MAX_KNOWN`] all have the place behind these.
    pub(super) async fn of(&self, store: &dyn Store, id: Id) -> u64 {
        let read_at = store.now();
        let query = store.waiting_tasks(MAX_KNOWN);
        self.refresh.run(query, |waiting| *self.known() = Known { waiting, read_at: Some(read_at) }).await;
        self.known().place(id)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn place(&self, id: Id) -> u64 {
        let behind = self.waiting.len() as u64 + 1;
        match self.waiting.binary_search(&id) {
            Ok(index) => index as u64 + 1,
            Err(index) if index < self.waiting.len() => 0,
            Err(_) if self.waiting.len() >= MAX_KNOWN as usize => behind,
            // Submitted after the queue was read, or claimed before.
            Err(_) if self.read_at.is_none_or(|read_at| id.timestamp() >= read_at) => behind,
            Err(_) => 0,
        }
    }
}
