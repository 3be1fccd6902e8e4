//! Callers that wait for the end of a task. An ending wakes them; nothing looks at the store meanwhile.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::domain::model::Id;

/// Most callers that wait with one key, and in one process. Each holds a connection.
pub const MAX_WAITERS_OF_KEY: usize = 100;
/// Most callers that wait in one process.
pub const MAX_WAITERS: usize = 2_048;

/// The callers of this process that wait. Clones are the same callers.
#[derive(Debug, Clone, Default)]
pub struct Waiters {
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    seats: usize,
    keys: HashMap<Id, usize>,
    tasks: HashMap<Id, Awaited>,
}

/// A task whose end somebody waits for.
#[derive(Debug, Default)]
struct Awaited {
    ended: Arc<Notify>,
    waiters: usize,
}

/// Room for one caller to wait, before it has a task; dropping it gives the room back.
#[derive(Debug)]
pub struct Seat {
    waiters: Waiters,
    key_id: Id,
}

/// One caller that waits for a task; dropping it ends the wait.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    waiters: &'a Waiters,
    task_id: Id,
    ended: Arc<Notify>,
}

impl Waiters {
    /// Room for a caller with this key, unless too many have it already.
    pub fn seat(&self, key_id: Id) -> Option<Seat> {
        let mut waiting = self.waiting();
        let of_key = waiting.keys.get(&key_id).copied().unwrap_or_default();
        if waiting.seats >= MAX_WAITERS || of_key >= MAX_WAITERS_OF_KEY {
            return None;
        }
        waiting.seats += 1;
        waiting.keys.insert(key_id, of_key + 1);
        Some(Seat { waiters: self.clone(), key_id })
    }

    /// Number of callers that wait for a task.
    pub fn count(&self) -> usize {
        self.waiting().tasks.values().map(|awaited| awaited.waiters).sum()
    }

    /// Wakes the callers that wait for a task.
    pub(super) fn wake(&self, task_id: Id) {
        if let Some(awaited) = self.waiting().tasks.get(&task_id) {
            awaited.ended.notify_waiters();
        }
    }

    /// Wakes every caller, because the task of any may have ended.
    pub(super) fn wake_all(&self) {
        self.waiting().tasks.values().for_each(|awaited| awaited.ended.notify_waiters());
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Lets the caller wait for the end of a task.
    pub(super) fn wait_for(&self, task_id: Id) -> Waiter<'_> {
        let mut waiting = self.waiters.waiting();
        let awaited = waiting.tasks.entry(task_id).or_default();
        awaited.waiters += 1;
        Waiter { waiters: &self.waiters, task_id, ended: awaited.ended.clone() }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut waiting = self.waiters.waiting();
        waiting.seats -= 1;
        release(&mut waiting.keys, self.key_id, |count| count);
    }
}

impl Waiter<'_> {
    /// Completes when the task may have ended after this call.
    pub(super) fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.waiting();
        release(&mut waiting.tasks, self.task_id, |awaited| &mut awaited.waiters);
    }
}

/// Counts one waiter less, and forgets what nobody waits for.
fn release<K: Hash + Eq, V>(counts: &mut HashMap<K, V>, key: K, count: impl FnOnce(&mut V) -> &mut usize) {
    if let Some(value) = counts.get_mut(&key) {
        let count = count(value);
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::timestamp::Timestamp;

    fn id(number: i64) -> Id {
        Id::floor(Timestamp::from_millis(number))
    }

    #[test]
    fn waiters_are_bounded_for_each_key_and_for_the_process_and_forgotten() {
        let waiters = Waiters::default();
        let seat = |key: i64| waiters.seat(id(key));
        let of_one_key: Vec<_> = std::iter::from_fn(|| seat(1)).collect();
        assert_eq!(of_one_key.len(), MAX_WAITERS_OF_KEY);
        let of_others: Vec<_> = (2..10_000).filter_map(seat).collect();
        assert_eq!((of_one_key.len() + of_others.len(), waiters.count()), (MAX_WAITERS, 0));
        let waiting: Vec<_> = (0..).zip(&of_others).map(|(task, seat)| seat.wait_for(id(task % 3))).collect();
        assert_eq!(waiters.count(), of_others.len());
        drop(waiting);
        drop(of_one_key);
        assert!(seat(1).is_some());
        drop(of_others);
        let waiting = waiters.waiting();
        assert!(waiting.seats == 0 && waiting.keys.is_empty() && waiting.tasks.is_empty());
    }
}
