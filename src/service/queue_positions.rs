//! The positions of waiting tasks, for their owners.
//!
//! They come from a copy of the queue that is read at most once a second, whatever the number of polls. A position only
//! counts the same account's waiting tasks on the same surface, because it must reveal nothing about others. The wait
//! counts the tasks that workers, which take turns between accounts, claim before. Tasks submitted by this process are
//! added to the copy until the next read, so that a burst of tasks doesn't share one position; whether they name an
//! engine is unknown until then.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;

use super::refresh::Refresh;
use tintype_domain::model::{Id, Surface, TaskRef};
use tintype_store::{Store, WaitingTask};
use tintype_system::clock::{Clock, Timestamp};
use tintype_system::locked::Locked as _;

/// Most waiting tasks to copy, the oldest ones.
pub const MAX_KNOWN: u32 = 10_000;

/// Most tasks to add to the copy until the next read. Further ones have the position behind these.
const MAX_ADDED: usize = 1_000;

/// The shortest and the longest suggested wait before a poll. The interface recommends up to 10 s.
const SHORTEST_POLL: Duration = Duration::from_millis(50);
const LONGEST_POLL: Duration = Duration::from_secs(10);

/// The position of an unfinished task in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    /// Its rank by age among the waiting tasks of its account on its surface, from 1; 0 while a worker has it.
    pub position: u64,
    /// Estimated time until it ends; `None` if that is unknown.
    pub wait: Option<Duration>,
}

/// Time after which the next poll of a task is worth it: when it has probably ended, within the limits of the
/// interface, and not before another tenth of its age, so that a task that never ends is asked for less and less often.
/// `typical` is the time that its engine says to take, for as long as nothing was measured.
pub fn poll_after(wait: Option<Duration>, age: Duration, typical: Duration) -> Duration {
    let left = wait.unwrap_or_else(|| typical.saturating_sub(age));
    left.max(age / 10).clamp(SHORTEST_POLL, LONGEST_POLL)
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rank {
    /// Among the waiting tasks of its account on its surface, 1 for the oldest; 0 for a task that a worker has.
    pub(super) position: u64,
    /// The number of waiting tasks that workers claim before.
    pub(super) before: u64,
    /// The engine that it names, and its rank among the waiting tasks that name the same one, from 1.
    pub(super) of_engine: Option<(String, u64)>,
}

#[derive(Debug)]
pub(super) struct QueuePositions {
    refresh: Refresh,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The oldest waiting tasks, in order.
    waiting: Vec<Waiting>,
    /// Tasks that this process has submitted since, in that order.
    added: Vec<(TaskRef, Waiting)>,
    /// The number of waiting tasks of each account, with the added ones.
    of_accounts: HashMap<Id, u64>,
    /// The number of accounts with at least one waiting task, at least two, and so on.
    accounts_with: Vec<u64>,
    /// The number of waiting tasks of each account on each surface.
    of_surfaces: HashMap<(Id, Surface), u64>,
    /// Time of the database just before they were read.
    read_at: Option<Timestamp>,
}

#[derive(Debug)]
struct Waiting {
    id: Id,
    /// Its rank within its account, from 1.
    of_account: u64,
    /// Its rank within its account and surface, from 1.
    of_surface: u64,
    /// The engine that it names, and its rank among those that name the same.
    of_engine: Option<(String, u64)>,
}

impl QueuePositions {
    pub(super) fn new(clock: Clock) -> Self {
        Self { refresh: Refresh::new(clock), known: Mutex::default() }
    }

    /// The rank of an unfinished task. The tasks behind the first [`MAX_KNOWN`] all have the position behind these.
    pub(super) async fn of(&self, store: &Store, task: TaskRef) -> Rank {
        self.read(store).await;
        self.known.locked().rank(task)
    }

    /// The number of waiting tasks that workers, which take turns between accounts, take before this account's next
    /// task: its own, and from each other account as many plus one.
    pub(super) async fn before_next(&self, store: &Store, account: Id) -> u64 {
        self.read(store).await;
        self.known.locked().before_next(account)
    }

    /// Waiting tasks that workers take before the last task of this account, as far as the copy knows.
    pub(super) fn before_last(&self, account: Id) -> u64 {
        let known = self.known.locked();
        known.before(account, known.of_accounts.get(&account).copied().unwrap_or(1))
    }

    pub(super) fn count(&self, account: Id) {
        self.known.locked().count(account);
    }

    pub(super) fn add(&self, task: TaskRef) {
        self.known.locked().add(task);
    }

    async fn read(&self, store: &Store) {
        let read_at = store.now();
        let added_before = self.known.locked().added.len();
        let query = store.waiting_tasks(MAX_KNOWN);
        self.refresh.run(query, |waiting| self.known.locked().replace(waiting, read_at, added_before)).await;
    }
}

impl Known {
    fn of(waiting: Vec<WaitingTask>, read_at: Timestamp) -> Self {
        let mut known = Self { read_at: Some(read_at), ..Self::default() };
        let mut of_engines = HashMap::new();
        for WaitingTask { task, engine } in waiting {
            let ranked = Waiting {
                id: task.id,
                of_account: known.count(task.account_id),
                of_surface: count(&mut known.of_surfaces, (task.account_id, task.surface)),
                of_engine: engine.map(|engine| (engine.clone(), count(&mut of_engines, engine))),
            };
            known.waiting.push(ranked);
        }
        known
    }

    /// Takes the queue as it was read. It may lack the tasks added during that, which are those after the first
    /// `added_before`.
    fn replace(&mut self, waiting: Vec<WaitingTask>, read_at: Timestamp, added_before: usize) {
        let added = std::mem::replace(self, Self::of(waiting, read_at)).added;
        added.into_iter().skip(added_before).for_each(|(task, _)| self.add(task));
    }

    fn add(&mut self, task: TaskRef) {
        let is_known = self.waiting.binary_search_by_key(&task.id, |waiting| waiting.id).is_ok();
        if is_known || self.added.len() >= MAX_ADDED {
            return;
        }
        let waiting = Waiting {
            id: task.id,
            of_account: self.count(task.account_id),
            of_surface: count(&mut self.of_surfaces, (task.account_id, task.surface)),
            of_engine: None,
        };
        self.added.push((task, waiting));
    }

    /// Counts one more waiting task of an account, and returns how many it has now.
    fn count(&mut self, account: Id) -> u64 {
        let own = count(&mut self.of_accounts, account);
        let accounts_with = &mut self.accounts_with;
        accounts_with.resize(accounts_with.len().max(own as usize), 0);
        accounts_with[own as usize - 1] += 1;
        own
    }

    fn before_next(&self, account: Id) -> u64 {
        self.before(account, self.of_accounts.get(&account).copied().unwrap_or(0) + 1)
    }

    /// The tasks that workers claim before the one with this rank in its account: from each other account as many as
    /// its rank.
    fn before(&self, account: Id, rank: u64) -> u64 {
        let of_all: u64 = self.accounts_with.iter().take(rank as usize).sum();
        let own = self.of_accounts.get(&account).copied().unwrap_or(0);
        rank - 1 + of_all - rank.min(own)
    }

    fn rank(&self, task: TaskRef) -> Rank {
        let TaskRef { id, account_id, surface } = task;
        let found = self.waiting.binary_search_by_key(&id, |waiting| waiting.id);
        let counted = match found {
            Ok(index) => Some(&self.waiting[index]),
            Err(_) => self.added.iter().map(|(_, waiting)| waiting).rfind(|waiting| waiting.id == id),
        };
        if let Some(Waiting { of_account, of_surface, of_engine, .. }) = counted {
            let before = self.before(account_id, *of_account);
            return Rank { position: *of_surface, before, of_engine: of_engine.clone() };
        }
        let is_known = found.is_err_and(|index| index < self.waiting.len());
        // Claimed, unless it is behind the tasks of the copy or was submitted after it was read.
        let is_behind = self.waiting.len() >= MAX_KNOWN as usize;
        if is_known || !(is_behind || self.read_at.is_none_or(|read_at| id.timestamp() >= read_at)) {
            return Rank::default();
        }
        let position = self.of_surfaces.get(&(account_id, surface)).copied().unwrap_or(0) + 1;
        Rank { position, before: self.before_next(account_id), of_engine: None }
    }
}

/// Counts one more of a kind, and returns how many there are now.
fn count<K: Hash + Eq>(counts: &mut HashMap<K, u64>, of: K) -> u64 {
    let count = counts.entry(of).or_default();
    *count += 1;
    *count
}

#[cfg(test)]
mod tests {
    use super::*;
    use tintype_domain::model::IdSource;

    #[test]
    fn tasks_added_while_the_queue_is_read_keep_their_order_and_are_counted_once() {
        let (ids, now) = (IdSource::default(), Timestamp::from_millis(1_795_262_400_000));
        let account_id = ids.next(now);
        let task = || TaskRef { id: ids.next(now), account_id, surface: Surface::Api };
        let (ended, read, missed, last) = (task(), task(), task(), task());
        let mut known = Known::default();
        known.add(ended);
        let added_before = known.added.len();
        known.add(read);
        known.add(missed);
        let row = WaitingTask { task: read, engine: None };
        // A millisecond later, so that a task that is not in the copy counts as claimed.
        known.replace(vec![row], now.saturating_add(Duration::from_millis(1)), added_before);
        known.add(read);
        known.add(last);
        let ranks = [ended, read, missed, last].map(|task| known.rank(task));
        assert_eq!(ranks.clone().map(|rank| rank.position), [0, 1, 2, 3]);
        assert_eq!(ranks.map(|rank| rank.before), [0, 0, 1, 2]);
    }
}
