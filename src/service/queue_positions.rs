//! The places of waiting tasks in the queue, for their owners.
//!
//! They come from a copy of the queue that is read at most once a second, whatever the number of polls. A place is the
//! task's rank by age among the waiting tasks of all accounts. It says how long the queue is and nothing else about
//! other accounts; workers take turns between accounts, so a task of an account with few tasks comes earlier. For a
//! task submitted since the last read, the copy does not know yet whether it names an engine.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use super::refresh::Refresh;
use tintype_domain::model::Id;
use tintype_store::{Store, WaitingTask};
use tintype_system::clock::{Clock, Timestamp};
use tintype_system::locked::Locked as _;

/// Most waiting tasks to copy, the oldest ones.
pub const MAX_KNOWN: u32 = 10_000;

/// The shortest and the longest time that a caller is told to wait before a poll. The interface recommends up to 10 s.
const SHORTEST_POLL: Duration = Duration::from_millis(50);
const LONGEST_POLL: Duration = Duration::from_secs(10);

/// The place of an unfinished task in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    /// Its rank by age among all waiting tasks, from 1; 0 while a worker has it.
    pub position: u64,
    /// Estimated time until it ends; `None` if that is unknown.
    pub wait: Option<Duration>,
}

impl QueuePosition {
    /// Time after which the next poll of the task is worth it: when it has probably ended, within the limits of the
    /// interface, and not before another tenth of its age, so that a task that never ends is asked for less and less
    /// often. `typical` is the time that its engine says to take, for as long as nothing was measured.
    pub fn poll_after(self, age: Duration, typical: Duration) -> Duration {
        let left = self.wait.unwrap_or_else(|| typical.saturating_sub(age));
        left.max(age / 10).clamp(SHORTEST_POLL, LONGEST_POLL)
    }
}

/// The rank of an unfinished task in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rank {
    /// Among all waiting tasks, 1 for the oldest; 0 for a task that a worker has.
    pub(super) position: u64,
    /// The engine that it names, and its rank among the waiting tasks that name the same one, from 1.
    pub(super) of_engine: Option<(String, u64)>,
}

/// A copy of the queue.
#[derive(Debug)]
pub(super) struct QueuePositions {
    refresh: Refresh,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The oldest waiting tasks, in order, with the engine that each names and its rank among those that name the same.
    waiting: Vec<(Id, Option<(String, u64)>)>,
    /// The number of waiting tasks of each account.
    of_accounts: HashMap<Id, u64>,
    /// Time of the database just before they were read.
    read_at: Option<Timestamp>,
}

impl QueuePositions {
    pub(super) fn new(clock: Clock) -> Self {
        Self { refresh: Refresh::new(clock), known: Mutex::default() }
    }

    /// The rank of an unfinished task. The tasks behind the first [`MAX_KNOWN`] all have the place behind these.
    pub(super) async fn of(&self, store: &dyn Store, id: Id) -> Rank {
        self.read(store).await;
        self.known.locked().rank(id)
    }

    /// The number of waiting tasks that workers, which take turns between accounts, take before the next task of this
    /// account: its own, and of each other account as many and one more.
    pub(super) async fn before_next(&self, store: &dyn Store, account: Id) -> u64 {
        self.read(store).await;
        self.known.locked().before_next(account)
    }

    /// Counts one more waiting task of an account.
    pub(super) fn grow(&self, account: Id) {
        *self.known.locked().of_accounts.entry(account).or_default() += 1;
    }

    async fn read(&self, store: &dyn Store) {
        let read_at = store.now();
        let query = store.waiting_tasks(MAX_KNOWN);
        self.refresh.run(query, |waiting| *self.known.locked() = Known::of(waiting, read_at)).await;
    }
}

impl Known {
    fn of(waiting: Vec<WaitingTask>, read_at: Timestamp) -> Self {
        let mut counts = HashMap::<String, u64>::new();
        let mut of_accounts = HashMap::<Id, u64>::new();
        let ranked = |task: WaitingTask| {
            *of_accounts.entry(task.account_id).or_default() += 1;
            let of_engine = task.engine.map(|engine| {
                let count = counts.entry(engine.clone()).or_default();
                *count += 1;
                (engine, *count)
            });
            (task.id, of_engine)
        };
        let waiting = waiting.into_iter().map(ranked).collect();
        Self { waiting, of_accounts, read_at: Some(read_at) }
    }

    fn before_next(&self, account: Id) -> u64 {
        let own = self.of_accounts.get(&account).copied().unwrap_or(0);
        let others = self.of_accounts.iter().filter(|(other, _)| **other != account);
        own + others.map(|(_, waiting)| (own + 1).min(*waiting)).sum::<u64>()
    }

    fn rank(&self, id: Id) -> Rank {
        let behind = self.waiting.len() as u64 + 1;
        let (position, of_engine) = match self.waiting.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(index) => (index as u64 + 1, self.waiting[index].1.clone()),
            Err(index) if index < self.waiting.len() => (0, None),
            Err(_) if self.waiting.len() >= MAX_KNOWN as usize => (behind, None),
            // Submitted after the queue was read, or claimed before.
            Err(_) if self.read_at.is_none_or(|read_at| id.timestamp() >= read_at) => (behind, None),
            Err(_) => (0, None),
        };
        Rank { position, of_engine }
    }
}
