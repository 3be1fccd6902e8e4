//! Callers that wait for the end of a task. An ending wakes them; nothing looks at the store meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::service::shares::{FairShares, Share};
use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;

/// Most slots of one account in one process.
pub const MAX_SLOTS_OF_ACCOUNT: usize = 100;
/// Most slots in one process.
pub const MAX_SLOTS: usize = 2_048;
/// Most callers of one task that share a slot. Each holds a connection.
const MAX_SHARING: usize = 8;

/// The callers of this process that wait. Clones are the same callers.
#[derive(Debug, Clone)]
pub struct Waiters {
    slots: FairShares,
    waiting: Arc<Mutex<Waiting>>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { slots: FairShares::limited(MAX_SLOTS_OF_ACCOUNT, MAX_SLOTS), waiting: Arc::default() }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    /// By account and task.
    sharing: HashMap<(Id, Id), SharedSlots>,
    /// The ends of tasks; each waiter has a clone.
    tasks: HashMap<Id, Arc<Notify>>,
}

#[derive(Debug, Default)]
struct SharedSlots {
    callers: usize,
    slots: Vec<Share>,
}

/// A caller's slot for waiting, held from its submit to its answer; dropping it frees the slot.
#[derive(Debug)]
pub struct WaitSlot {
    waiters: Waiters,
    account_id: Id,
    /// `None` once the caller waits for a task.
    own: Mutex<Option<Share>>,
    task_id: OnceLock<Id>,
}

/// One caller that waits for a task; dropping it ends the wait.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    waiters: &'a Waiters,
    task_id: Id,
    ended: Arc<Notify>,
}

impl Waiters {
    /// A slot for a caller of this account. An account has up to [`MAX_SLOTS_OF_ACCOUNT`] slots, and no more than half of
    /// what the others leave.
    ///
    /// # Errors
    /// The slots of the account, which is its share now. With none, all slots of this process are taken.
    pub fn slot(&self, account_id: Id) -> Result<WaitSlot, usize> {
        let own = Mutex::new(Some(self.slots.try_take(Some(account_id))?));
        Ok(WaitSlot { waiters: self.clone(), account_id, own, task_id: OnceLock::new() })
    }

    /// Number of callers that wait for a task.
    pub fn count(&self) -> usize {
        self.waiting.locked().tasks.values().map(|ended| Arc::strong_count(ended) - 1).sum()
    }

    /// Slots that are taken.
    pub fn slots(&self) -> usize {
        self.slots.used()
    }

    pub(super) fn wake(&self, task_id: Id) {
        if let Some(ended) = self.waiting.locked().tasks.get(&task_id) {
            ended.notify_waiters();
        }
    }

    /// Wakes every caller, because the task of any may have ended.
    pub(super) fn wake_all(&self) {
        self.waiting.locked().tasks.values().for_each(|ended| ended.notify_waiters());
    }
}

impl WaitSlot {
    /// Lets the caller wait for the end of a task. From then on, callers of the account that wait for the same task share the
    /// slot, also while they receive its answer.
    pub(super) fn wait_for(&self, task_id: Id) -> Waiter<'_> {
        let mut waiting = self.waiters.waiting.locked();
        if self.task_id.set(task_id).is_ok() {
            let SharedSlots { callers, slots } = waiting.sharing.entry((self.account_id, task_id)).or_default();
            *callers += 1;
            slots.extend(self.own.locked().take());
            slots.truncate(callers.div_ceil(MAX_SHARING));
        }
        let ended = waiting.tasks.entry(task_id).or_default().clone();
        Waiter { waiters: &self.waiters, task_id, ended }
    }
}

impl Drop for WaitSlot {
    fn drop(&mut self) {
        let Some(task_id) = self.task_id.get() else { return };
        let shared = (self.account_id, *task_id);
        let mut waiting = self.waiters.waiting.locked();
        let Some(SharedSlots { callers, slots }) = waiting.sharing.get_mut(&shared) else { return };
        *callers -= 1;
        slots.truncate(callers.div_ceil(MAX_SHARING));
        if *callers == 0 {
            waiting.sharing.remove(&shared);
        }
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
        let mut waiting = self.waiters.waiting.locked();
        // Dropped under the lock, so that the last waiter sees that it is the last.
        drop(std::mem::take(&mut self.ended));
        if waiting.tasks.get(&self.task_id).is_some_and(|ended| Arc::strong_count(ended) == 1) {
            waiting.tasks.remove(&self.task_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tintype_domain::timestamp::Timestamp;

    fn id(number: i64) -> Id {
        Id::floor(Timestamp::from_millis(number))
    }

    #[test]
    fn slots_are_bounded_for_each_account_and_for_the_process_and_forgotten() {
        let waiters = Waiters::default();
        let slot = |account: i64| waiters.slot(id(account)).ok();
        let of_one: Vec<_> = std::iter::from_fn(|| slot(1)).collect();
        assert_eq!(of_one.len(), MAX_SLOTS_OF_ACCOUNT);
        assert_eq!(waiters.slot(id(1)).err(), Some(MAX_SLOTS_OF_ACCOUNT));
        let of_others: Vec<_> = (2..).map_while(&slot).take(MAX_SLOTS).collect();
        assert_eq!((of_one.len() + of_others.len(), waiters.count()), (MAX_SLOTS, 0));
        assert_eq!(waiters.slot(id(0)).err(), Some(0));
        let waiting: Vec<_> = (0..).zip(&of_others).map(|(task, slot)| slot.wait_for(id(task % 3))).collect();
        assert_eq!(waiters.count(), of_others.len());
        drop(waiting);
        drop(of_one);
        assert!(slot(1).is_some());
        drop(of_others);
        let waiting = waiters.waiting.locked();
        assert!(waiters.slots() == 0 && waiting.tasks.is_empty() && waiting.sharing.is_empty());
    }

    #[test]
    fn accounts_that_take_all_they_can_leave_slots_for_others() {
        let waiters = Waiters::default();
        let greedy = |account| std::iter::from_fn(|| waiters.slot(id(account)).ok()).collect::<Vec<_>>();
        let held: Vec<_> = (0..20).map(greedy).collect();
        assert!(held[..18].iter().all(|slots| slots.len() == MAX_SLOTS_OF_ACCOUNT));
        assert!(held[19].len() < MAX_SLOTS_OF_ACCOUNT && waiters.slot(id(20)).is_ok());
    }

    #[test]
    fn callers_of_one_task_share_slots() {
        let waiters = Waiters::default();
        let mut held = Vec::new();
        for callers in 1..=3 * MAX_SHARING {
            let slot = waiters.slot(id(1)).expect("room");
            drop((slot.wait_for(id(7)), slot.wait_for(id(7))));
            held.push(slot);
            assert_eq!(waiters.slots(), callers.div_ceil(MAX_SHARING));
        }
        let others = waiters.slot(id(2)).expect("room");
        drop(others.wait_for(id(7)));
        assert_eq!(waiters.slots(), 4, "another account has a slot of its own");
        while held.pop().is_some() {
            assert_eq!(waiters.slots(), 1 + held.len().div_ceil(MAX_SHARING));
        }
        drop(others);
        assert!(waiters.slots() == 0 && waiters.waiting.locked().sharing.is_empty());
    }
}
