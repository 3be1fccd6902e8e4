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

/// The callers of this process that wait.
#[derive(Debug, Default)]
pub struct Waiters {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    count: usize,
    keys: HashMap<Id, usize>,
    tasks: HashMap<Id, Awaited>,
}

/// A task whose end somebody waits for.
#[derive(Debug, Default)]
struct Awaited {
    ended: Arc<Notify>,
    waiters: usize,
}

/// One caller that waits; dropping it ends the wait.
#[derive(Debug)]
pub struct Waiter<'a> {
    waiters: &'a Waiters,
    key_id: Id,
    task_id: Id,
    ended: Arc<Notify>,
}

impl Waiters {
    /// Lets a caller wait for the end of a task, unless too many wait already.
    pub fn enter(&self, key_id: Id, task_id: Id) -> Option<Waiter<'_>> {
        let mut waiting = self.waiting();
        let of_key = waiting.keys.get(&key_id).copied().unwrap_or_default();
        if waiting.count >= MAX_WAITERS || of_key >= MAX_WAITERS_OF_KEY {
            return None;
        }
        waiting.count += 1;
        waiting.keys.insert(key_id, of_key + 1);
        let awaited = waiting.tasks.entry(task_id).or_default();
        awaited.waiters += 1;
        Some(Waiter { waiters: self, key_id, task_id, ended: awaited.ended.clone() })
    }

    /// Number of callers that wait.
    pub fn count(&self) -> usize {
        self.waiting().count
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

impl Waiter<'_> {
    /// Completes when the task may have ended after this call.
    pub(super) fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiters.waiting();
        waiting.count -= 1;
        release(&mut waiting.keys, self.key_id, |count| count);
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
        let enter = |key: i64| waiters.enter(id(key), id(key % 3));
        let of_one_key: Vec<_> = std::iter::from_fn(|| enter(1)).collect();
        assert_eq!(of_one_key.len(), MAX_WAITERS_OF_KEY);
        let of_others: Vec<_> = (2..10_000).filter_map(enter).collect();
        assert_eq!((of_one_key.len() + of_others.len(), waiters.count()), (MAX_WAITERS, MAX_WAITERS));
        drop(of_one_key);
        assert!(enter(1).is_some());
        drop(of_others);
        let waiting = waiters.waiting();
        assert!(waiting.count == 0 && waiting.keys.is_empty() && waiting.tasks.is_empty());
    }
}
