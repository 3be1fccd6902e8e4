//! Fair shares of a finite resource: no account takes what the others need.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;

/// Whether an account that holds `held` of `total` units can take `more` while others hold `of_others`: it can have one
/// portion, and up to half of what the others leave.
pub fn fits(total: usize, held: usize, of_others: usize, more: usize) -> bool {
    let free = total.saturating_sub(of_others).saturating_sub(held);
    more <= free && (held == 0 || held + more <= total.saturating_sub(of_others) / 2)
}

/// Counts per key, without keys that are at 0.
#[derive(Debug, Clone)]
pub struct Counts<K> {
    counts: HashMap<K, usize>,
    total: usize,
}

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self { counts: HashMap::new(), total: 0 }
    }
}

impl<K: Eq + Hash> Counts<K> {
    /// The count of one key.
    pub fn of(&self, key: &K) -> usize {
        self.counts.get(key).copied().unwrap_or_default()
    }

    /// The sum of all counts.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The keys with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&K, usize)> {
        self.counts.iter().map(|(key, count)| (key, *count))
    }

    /// Counts one more.
    pub fn add(&mut self, key: K) {
        *self.counts.entry(key).or_default() += 1;
        self.total += 1;
    }

    /// Counts one less.
    pub fn remove(&mut self, key: &K) {
        let Some(count) = self.counts.get_mut(key) else { return };
        *count -= 1;
        self.total -= 1;
        if *count == 0 {
            self.counts.remove(key);
        }
    }
}

/// Units of something finite that accounts share. Clones share the same units.
#[derive(Debug, Clone)]
pub struct Shares {
    total: usize,
    state: Arc<Mutex<ShareState>>,
}

#[derive(Debug, Default)]
struct ShareState {
    used: usize,
    accounts: HashMap<Id, Held>,
    waiting: Vec<Waiting>,
    /// Counts the grants.
    turn: u64,
}

#[derive(Debug, Default)]
struct Held {
    units: usize,
    waiting: usize,
    /// The turn in which the account was last served.
    served: u64,
}

#[derive(Debug)]
struct Waiting {
    account_id: Id,
    units: usize,
    granted: oneshot::Sender<Share>,
}

/// Units held by an account; dropping them returns them.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    account_id: Id,
    units: usize,
}

impl Shares {
    /// Shares `total` units.
    pub fn new(total: usize) -> Self {
        Self { total, state: Arc::default() }
    }

    /// Units that are held by all accounts.
    pub fn used(&self) -> usize {
        self.state.locked().used
    }

    /// Whether an account could take `units` at this moment.
    pub fn is_free(&self, account_id: Id, units: usize) -> bool {
        let state = self.state.locked();
        let held = state.accounts.get(&account_id).map_or(0, |held| held.units);
        fits(self.total, held, state.used - held, units)
    }

    /// Whether someone waits for units.
    pub fn is_awaited(&self) -> bool {
        self.state.locked().waiting.iter().any(|waiting| !waiting.granted.is_closed())
    }

    /// Takes units for an account, or waits for them. Of the waiting accounts, the one served longest ago comes first.
    pub async fn take(&self, account_id: Id, units: usize) -> Share {
        let units = units.min(self.total);
        let (granted, grant) = oneshot::channel();
        {
            let mut state = self.state.locked();
            state.accounts.entry(account_id).or_default().waiting += 1;
            state.waiting.push(Waiting { account_id, units, granted });
        }
        self.serve();
        let wait = Wait { shares: self, account_id };
        let share = grant.await;
        drop(wait);
        // The sender is never dropped before it has sent.
        share.unwrap_or_else(|_| Share { shares: self.clone(), account_id, units: 0 })
    }

    /// Serves those who wait, as long as something is left for them.
    fn serve(&self) {
        let mut unwanted = Vec::new();
        {
            let mut state = self.state.locked();
            while let Some(waiting) = state.next(self.total) {
                let Waiting { account_id, units, granted } = waiting;
                state.turn += 1;
                let turn = state.turn;
                state.used += units;
                let held = state.accounts.entry(account_id).or_default();
                held.units += units;
                held.served = turn;
                let share = Share { shares: self.clone(), account_id, units };
                // If the receiver is gone, the share is dropped below, because dropping it takes the lock.
                unwanted.extend(granted.send(share).err());
            }
        }
        drop(unwanted);
    }
}

impl ShareState {
    fn next(&mut self, total: usize) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.granted.is_closed());
        let ready = self.waiting.iter().enumerate().filter_map(|(index, waiting)| {
            let held = self.accounts.get(&waiting.account_id)?;
            fits(total, held.units, self.used - held.units, waiting.units).then_some((held.served, index))
        });
        let (_, index) = ready.min()?;
        Some(self.waiting.remove(index))
    }

    fn forget_idle(&mut self, account_id: Id) {
        if self.accounts.get(&account_id).is_some_and(|held| held.units == 0 && held.waiting == 0) {
            self.accounts.remove(&account_id);
        }
    }
}

/// One who waits; dropping it ends the wait.
struct Wait<'a> {
    shares: &'a Shares,
    account_id: Id,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut state = self.shares.state.locked();
        if let Some(held) = state.accounts.get_mut(&self.account_id) {
            held.waiting -= 1;
        }
        state.forget_idle(self.account_id);
    }
}

impl Share {
    /// Corrects an estimate of the units.
    pub fn correct(&mut self, units: usize) {
        {
            let mut state = self.shares.state.locked();
            state.used = state.used - self.units + units;
            let held = state.accounts.entry(self.account_id).or_default();
            held.units = held.units - self.units + units;
            self.units = units;
        }
        self.shares.serve();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        {
            let mut state = self.shares.state.locked();
            state.used -= self.units;
            if let Some(held) = state.accounts.get_mut(&self.account_id) {
                held.units -= self.units;
            }
            state.forget_idle(self.account_id);
        }
        self.shares.serve();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use tintype_domain::timestamp::Timestamp;

    fn id(number: i64) -> Id {
        Id::floor(Timestamp::from_millis(number))
    }

    #[test]
    fn an_account_has_up_to_half_of_what_the_others_leave_and_always_one_portion() {
        let shares = Shares::new(16);
        let take = |account: i64| shares.take(id(account), 1).now_or_never();
        let all = |account: i64| std::iter::from_fn(|| take(account)).collect::<Vec<_>>();
        let held: Vec<_> = (0..9).map(all).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [8, 4, 2, 1, 1, 0, 0, 0, 0]);
        assert_eq!(shares.used(), 16);
        drop(held);
        let state = shares.state.locked();
        assert!(state.used == 0 && state.accounts.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn accounts_that_wait_take_turns_and_one_who_has_gone_is_passed_over() {
        let shares = Shares::new(1);
        let first = shares.take(id(1), 1).now_or_never().expect("all is free");
        let mut of_one: Vec<_> = (0..3).map(|_| Box::pin(shares.take(id(1), 1))).collect();
        assert!(of_one.iter_mut().all(|wait| wait.now_or_never().is_none()));
        let mut of_other = Box::pin(shares.take(id(2), 1));
        assert!((&mut of_other).now_or_never().is_none());
        drop(of_one.remove(0));
        drop(first);
        let second = (&mut of_other).now_or_never().expect("the turn of the other account");
        assert!(of_one.iter_mut().all(|wait| wait.now_or_never().is_none()));
        drop((second, of_other));
        let granted: Vec<_> = of_one.iter_mut().filter_map(|wait| wait.now_or_never()).collect();
        assert_eq!(granted.len(), 1);
        drop((granted, of_one));
        assert_eq!(shares.used(), 0);
    }

    #[test]
    fn a_corrected_estimate_lets_others_in() {
        let shares = Shares::new(100);
        let mut large = shares.take(id(1), 100).now_or_never().expect("all is free");
        let mut wait = Box::pin(shares.take(id(2), 60));
        assert!((&mut wait).now_or_never().is_none());
        large.correct(40);
        let other = (&mut wait).now_or_never();
        assert!(other.is_some() && shares.used() == 100);
    }
}
