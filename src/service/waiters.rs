//! Callers that wait for the end of a task. An ending wakes them; nothing looks at the store meanwhile.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::service::shares;
use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;

/// Most seats of one account in one process.
pub const MAX_SEATS_OF_ACCOUNT: usize = 100;
/// Most seats in one process.
pub const MAX_SEATS: usize = 2_048;
/// Most callers of one task that share a seat. Each holds a connection.
const MAX_SHARING: usize = 8;

/// The callers of this process that wait. Clones are the same callers.
#[derive(Debug, Clone, Default)]
pub struct Waiters {
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    seats: usize,
    accounts: HashMap<Id, usize>,
    /// Callers that share seats, by account and task.
    sharing: HashMap<(Id, Id), usize>,
    tasks: HashMap<Id, PendingTask>,
}

/// A task whose end someone waits for.
#[derive(Debug, Default)]
struct PendingTask {
    ended: Arc<Notify>,
    waiters: usize,
}

/// Why there is no seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoWaitSlot {
    /// The account has so many seats, which is its share at this moment.
    Account(usize),
    /// All seats of this process are taken.
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
    /// Room for a caller of this account. An account has up to [`MAX_SEATS_OF_ACCOUNT`] seats, and no more than half of what
    /// the others leave.
    ///
    /// # Errors
    /// [`NoWaitSlot`].
    pub fn seat(&self, account_id: Id) -> Result<WaitSlot, NoWaitSlot> {
        let mut waiting = self.waiting.locked();
        let held = waiting.accounts.get(&account_id).copied().unwrap_or_default();
        if waiting.seats >= MAX_SEATS {
            return Err(NoWaitSlot::Process);
        }
        if held >= MAX_SEATS_OF_ACCOUNT || !shares::fits(MAX_SEATS, held, waiting.seats - held, 1) {
            return Err(NoWaitSlot::Account(held));
        }
        waiting.seats += 1;
        waiting.accounts.insert(account_id, held + 1);
        Ok(WaitSlot { waiters: self.clone(), account_id, task_id: OnceLock::new() })
    }

    /// Number of callers that wait for a task.
    pub fn count(&self) -> usize {
        self.waiting.locked().tasks.values().map(|awaited| awaited.waiters).sum()
    }

    /// Seats that are taken.
    pub fn seats(&self) -> usize {
        self.waiting.locked().seats
    }

    /// Wakes the callers that wait for a task.
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
    /// Gives a seat of an account back.
    fn leave(&mut self, account_id: Id) {
        self.seats -= 1;
        release(&mut self.accounts, account_id, |count| count);
    }
}

impl WaitSlot {
    /// Lets the caller wait for the end of a task. From then on, callers of the account that wait for the same task share the
    /// seat, also while they receive its answer.
    pub(super) fn wait_for(&self, task_id: Id) -> Waiter<'_> {
        let mut waiting = self.waiters.waiting.locked();
        if self.task_id.set(task_id).is_ok() {
            let sharing = waiting.sharing.entry((self.account_id, task_id)).or_default();
            *sharing += 1;
            // Another one has a seat for this caller.
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
    fn seats_are_bounded_for_each_account_and_for_the_process_and_forgotten() {
        let waiters = Waiters::default();
        let seat = |account: i64| waiters.seat(id(account)).ok();
        let of_one: Vec<_> = std::iter::from_fn(|| seat(1)).collect();
        assert_eq!(of_one.len(), MAX_SEATS_OF_ACCOUNT);
        let full = NoWaitSlot::Account(MAX_SEATS_OF_ACCOUNT);
        assert_eq!(waiters.seat(id(1)).err(), Some(full));
        let of_others: Vec<_> = (2..).map_while(&seat).take(MAX_SEATS).collect();
        assert_eq!((of_one.len() + of_others.len(), waiters.count()), (MAX_SEATS, 0));
        assert_eq!(waiters.seat(id(0)).err(), Some(NoWaitSlot::Process));
        let waiting: Vec<_> = (0..).zip(&of_others).map(|(task, seat)| seat.wait_for(id(task % 3))).collect();
        assert_eq!(waiters.count(), of_others.len());
        drop(waiting);
        drop(of_one);
        assert!(seat(1).is_some());
        drop(of_others);
        let waiting = waiters.waiting.locked();
        assert!(waiting.seats == 0 && waiting.accounts.is_empty() && waiting.tasks.is_empty());
        assert!(waiting.sharing.is_empty());
    }

    #[test]
    fn accounts_that_take_all_they_can_leave_seats_for_others() {
        let waiters = Waiters::default();
        let greedy = |account| std::iter::from_fn(|| waiters.seat(id(account)).ok()).collect::<Vec<_>>();
        let held: Vec<_> = (0..20).map(greedy).collect();
        assert!(held[..18].iter().all(|seats| seats.len() == MAX_SEATS_OF_ACCOUNT));
        assert!(held[19].len() < MAX_SEATS_OF_ACCOUNT && waiters.seat(id(20)).is_ok());
    }

    #[test]
    fn callers_of_one_task_share_seats() {
        let waiters = Waiters::default();
        let mut held = Vec::new();
        for callers in 1..=3 * MAX_SHARING {
            let seat = waiters.seat(id(1)).expect("room");
            drop((seat.wait_for(id(7)), seat.wait_for(id(7))));
            held.push(seat);
            assert_eq!(waiters.seats(), callers.div_ceil(MAX_SHARING));
        }
        let others = waiters.seat(id(2)).expect("room");
        drop(others.wait_for(id(7)));
        assert_eq!(waiters.seats(), 4, "another account has a seat of its own");
        while held.pop().is_some() {
            assert_eq!(waiters.seats(), 1 + held.len().div_ceil(MAX_SHARING));
        }
        drop(others);
        assert!(waiters.waiting.locked().accounts.is_empty() && waiters.waiting.locked().sharing.is_empty());
    }
}
