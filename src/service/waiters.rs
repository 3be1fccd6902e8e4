//! Callers that wait for the end of a task. An ending wakes them; nothing looks at the store meanwhile.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::service::shares;
use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;

/// Most slots of one account in one process.
pub const MAX_SLOTS_OF_ACCOUNT: usize = 100;
/// Most slots in one process.
pub const MAX_SLOTS: usize = 2_048;
/// Most callers of one task that share a slot. Each holds a connection.
const MAX_SHARING: usize = 8;

/// The callers of this process that wait. Clones are the same callers.
#[derive(Debug, Clone, Default)]
pub struct Waiters {
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    slots: usize,
    accounts: HashMap<Id, usize>,
    /// Callers that share slots, by account and task.
    sharing: HashMap<(Id, Id), usize>,
    tasks: HashMap<Id, PendingTask>,
}

#[derive(Debug, Default)]
struct PendingTask {
    ended: Arc<Notify>,
    waiters: usize,
}

/// Why there is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoWaitSlot {
    /// The account has this number of slots, which is its share at this moment.
    Account(usize),
    /// All slots of this process are taken.
    Process,
}

/// Room for one caller to wait, before it has a task, and until it has its answer; dropping it gives the room back.
#[derive(Debug)]
pub struct WaitSlot {
    waiters: Waiters,
    account_id: Id,
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
    /// Room for a caller of this account. An account has up to [`MAX_SLOTS_OF_ACCOUNT`] slots, and no more than half of what
    /// the others leave.
    pub fn slot(&self, account_id: Id) -> Result<WaitSlot, NoWaitSlot> {
        let mut waiting = self.waiting.locked();
        let held = waiting.accounts.get(&account_id).copied().unwrap_or_default();
        if waiting.slots >= MAX_SLOTS {
            return Err(NoWaitSlot::Process);
        }
        if held >= MAX_SLOTS_OF_ACCOUNT || !shares::fits(MAX_SLOTS, held, waiting.slots - held, 1) {
            return Err(NoWaitSlot::Account(held));
        }
        waiting.slots += 1;
        waiting.accounts.insert(account_id, held + 1);
        Ok(WaitSlot { waiters: self.clone(), account_id, task_id: OnceLock::new() })
    }

    /// Number of callers that wait for a task.
    pub fn count(&self) -> usize {
        self.waiting.locked().tasks.values().map(|awaited| awaited.waiters).sum()
    }

    /// Slots that are taken.
    pub fn slots(&self) -> usize {
        self.waiting.locked().slots
    }

    pub(super) fn wake(&self, task_id: Id) {
        if let Some(awaited) = self.waiting.locked().tasks.get(&task_id) {
            awaited.ended.notify_waiters();
        }
    }

    /// Wakes every caller, because the task of any may have ended.
    pub(super) fn wake_all(&self) {
        self.waiting.locked().tasks.values().for_each(|awaited| awaited.ended.notify_waiters());
    }
}

impl Waiting {
    fn leave(&mut self, account_id: Id) {
        self.slots -= 1;
        release(&mut self.accounts, account_id, |count| count);
    }
}

impl WaitSlot {
    /// Lets the caller wait for the end of a task. From then on, callers of the account that wait for the same task share the
    /// slot, also while they receive its answer.
    pub(super) fn wait_for(&self, task_id: Id) -> Waiter<'_> {
        let mut waiting = self.waiters.waiting.locked();
        if self.task_id.set(task_id).is_ok() {
            let sharing = waiting.sharing.entry((self.account_id, task_id)).or_default();
            *sharing += 1;
            // Another one has a slot for this caller.
            if *sharing % MAX_SHARING != 1 {
                waiting.leave(self.account_id);
            }
        }
        let awaited = waiting.tasks.entry(task_id).or_default();
        awaited.waiters += 1;
        Waiter { waiters: &self.waiters, task_id, ended: awaited.ended.clone() }
    }
}

impl Drop for WaitSlot {
    fn drop(&mut self) {
        let mut waiting = self.waiters.waiting.locked();
        let Some(task_id) = self.task_id.get() else { return waiting.leave(self.account_id) };
        let shared = (self.account_id, *task_id);
        let sharing = waiting.sharing.get(&shared).copied().unwrap_or_default();
        release(&mut waiting.sharing, shared, |count| count);
        if sharing % MAX_SHARING == 1 {
            waiting.leave(self.account_id);
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
        let full = NoWaitSlot::Account(MAX_SLOTS_OF_ACCOUNT);
        assert_eq!(waiters.slot(id(1)).err(), Some(full));
        let of_others: Vec<_> = (2..).map_while(&slot).take(MAX_SLOTS).collect();
        assert_eq!((of_one.len() + of_others.len(), waiters.count()), (MAX_SLOTS, 0));
        assert_eq!(waiters.slot(id(0)).err(), Some(NoWaitSlot::Process));
        let waiting: Vec<_> = (0..).zip(&of_others).map(|(task, slot)| slot.wait_for(id(task % 3))).collect();
        assert_eq!(waiters.count(), of_others.len());
        drop(waiting);
        drop(of_one);
        assert!(slot(1).is_some());
        drop(of_others);
        let waiting = waiters.waiting.locked();
        assert!(waiting.slots == 0 && waiting.accounts.is_empty() && waiting.tasks.is_empty());
        assert!(waiting.sharing.is_empty());
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
        assert!(waiters.waiting.locked().accounts.is_empty() && waiters.waiting.locked().sharing.is_empty());
    }
}
