//! Fair shares of a finite resource: no account takes what the others need. Callers wait for their share, or are
//! rejected at once: those who want password hashes, sign-ups, exchanges with an OpenID Connect provider, uploads or
//! downloads.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;

/// Whether an account that holds `held` of `total` units can take `more` while others hold `of_others`: it can have one
/// portion, and up to half of what the others leave.
pub fn is_within_share(total: usize, held: usize, of_others: usize, more: usize) -> bool {
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

/// Units of something finite that accounts, or other callers, share. Clones share the same units.
#[derive(Debug, Clone)]
pub struct FairShares<K: Eq + Hash + Copy = Id> {
    of_one: usize,
    total: usize,
    state: Arc<Mutex<ShareState<K>>>,
}

#[derive(Debug)]
struct ShareState<K: Eq + Hash + Copy> {
    used: usize,
    callers: HashMap<K, Held>,
    waiting: Vec<Waiting<K>>,
    /// Counts the grants.
    turn: u64,
}

#[derive(Debug, Default)]
struct Held {
    units: usize,
    waiting: usize,
    /// The turn in which the caller was last served.
    served: u64,
}

#[derive(Debug)]
struct Waiting<K: Eq + Hash + Copy> {
    caller: K,
    units: usize,
    granted: oneshot::Sender<Share<K>>,
}

/// Units held by a caller; dropping them returns them.
#[derive(Debug)]
pub struct Share<K: Eq + Hash + Copy = Id> {
    shares: FairShares<K>,
    caller: Option<K>,
    units: usize,
}

impl<K: Eq + Hash + Copy> FairShares<K> {
    /// Shares `total` units.
    pub fn new(total: usize) -> Self {
        Self::limited(usize::MAX, total)
    }

    /// Shares `total` units, for [`FairShares::try_take`], at most `of_one` to one caller.
    pub fn limited(of_one: usize, total: usize) -> Self {
        let state = ShareState { used: 0, callers: HashMap::new(), waiting: Vec::new(), turn: 0 };
        Self { of_one, total, state: Arc::new(Mutex::new(state)) }
    }

    /// Units that are held by all callers.
    pub fn used(&self) -> usize {
        self.state.locked().used
    }

    /// Whether a caller could take `units` at this moment.
    pub fn is_free(&self, caller: K, units: usize) -> bool {
        let state = self.state.locked();
        let held = state.held(caller);
        is_within_share(self.total, held, state.used - held, units)
    }

    /// Whether someone waits for units.
    pub fn is_awaited(&self) -> bool {
        self.state.locked().waiting.iter().any(|waiting| !waiting.granted.is_closed())
    }

    /// Takes one unit at once. Callers that cannot be distinguished, such as those without an address, are `None`: they
    /// share what is left.
    ///
    /// # Errors
    /// The units that the caller has, which is its share now. With none, all are taken.
    pub fn try_take(&self, caller: Option<K>) -> Result<Share<K>, usize> {
        let mut state = self.state.locked();
        let held = caller.map_or(0, |caller| state.held(caller));
        if held >= self.of_one || !is_within_share(self.total, held, state.used - held, 1) {
            return Err(held);
        }
        state.used += 1;
        if let Some(caller) = caller {
            state.callers.entry(caller).or_default().units += 1;
        }
        Ok(Share { shares: self.clone(), caller, units: 1 })
    }

    /// Takes units for a caller, or waits for them. Of the waiting callers, the one served longest ago comes first.
    pub async fn take(&self, caller: K, units: usize) -> Share<K> {
        let units = units.min(self.total);
        let (granted, grant) = oneshot::channel();
        {
            let mut state = self.state.locked();
            state.callers.entry(caller).or_default().waiting += 1;
            state.waiting.push(Waiting { caller, units, granted });
        }
        self.serve();
        let wait = Wait { shares: self, caller };
        let share = grant.await;
        drop(wait);
        // The sender is never dropped before it has sent.
        share.unwrap_or_else(|_| Share { shares: self.clone(), caller: Some(caller), units: 0 })
    }

    /// Serves those who wait, as long as something is left for them.
    fn serve(&self) {
        let mut unwanted = Vec::new();
        {
            let mut state = self.state.locked();
            while let Some(waiting) = state.next(self.total) {
                let Waiting { caller, units, granted } = waiting;
                state.turn += 1;
                let turn = state.turn;
                state.used += units;
                let held = state.callers.entry(caller).or_default();
                held.units += units;
                held.served = turn;
                let share = Share { shares: self.clone(), caller: Some(caller), units };
                // If the receiver is gone, the share is dropped below, because dropping it takes the lock.
                unwanted.extend(granted.send(share).err());
            }
        }
        drop(unwanted);
    }
}

impl<K: Eq + Hash + Copy> ShareState<K> {
    fn held(&self, caller: K) -> usize {
        self.callers.get(&caller).map_or(0, |held| held.units)
    }

    fn next(&mut self, total: usize) -> Option<Waiting<K>> {
        self.waiting.retain(|waiting| !waiting.granted.is_closed());
        let ready = self.waiting.iter().enumerate().filter_map(|(index, waiting)| {
            let held = self.callers.get(&waiting.caller)?;
            is_within_share(total, held.units, self.used - held.units, waiting.units).then_some((held.served, index))
        });
        let (_, index) = ready.min()?;
        Some(self.waiting.remove(index))
    }

    fn forget_idle(&mut self, caller: K) {
        if self.callers.get(&caller).is_some_and(|held| held.units == 0 && held.waiting == 0) {
            self.callers.remove(&caller);
        }
    }
}

/// One who waits; dropping it ends the wait.
struct Wait<'a, K: Eq + Hash + Copy> {
    shares: &'a FairShares<K>,
    caller: K,
}

impl<K: Eq + Hash + Copy> Drop for Wait<'_, K> {
    fn drop(&mut self) {
        let mut state = self.shares.state.locked();
        if let Some(held) = state.callers.get_mut(&self.caller) {
            held.waiting -= 1;
        }
        state.forget_idle(self.caller);
    }
}

impl<K: Eq + Hash + Copy> Share<K> {
    /// Corrects an estimate of the units.
    pub fn correct(&mut self, units: usize) {
        {
            let mut state = self.shares.state.locked();
            state.used = state.used - self.units + units;
            if let Some(caller) = self.caller {
                let held = state.callers.entry(caller).or_default();
                held.units = held.units - self.units + units;
            }
            self.units = units;
        }
        self.shares.serve();
    }
}

impl<K: Eq + Hash + Copy> Drop for Share<K> {
    fn drop(&mut self) {
        {
            let mut state = self.shares.state.locked();
            state.used -= self.units;
            if let Some(caller) = self.caller {
                if let Some(held) = state.callers.get_mut(&caller) {
                    held.units -= self.units;
                }
                state.forget_idle(caller);
            }
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
        let shares = FairShares::new(16);
        let take = |account: i64| shares.take(id(account), 1).now_or_never();
        let all = |account: i64| std::iter::from_fn(|| take(account)).collect::<Vec<_>>();
        let held: Vec<_> = (0..9).map(all).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [8, 4, 2, 1, 1, 0, 0, 0, 0]);
        assert_eq!(shares.used(), 16);
        drop(held);
        let state = shares.state.locked();
        assert!(state.used == 0 && state.callers.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn a_caller_takes_two_slots_and_leaves_the_others_to_others() {
        let slots = FairShares::limited(2, 64);
        let held = [slots.try_take(Some(1)), slots.try_take(Some(1))];
        assert!(held.iter().all(Result::is_ok) && slots.try_take(Some(1)).is_err());
        assert!(slots.try_take(Some(2)).is_ok());
        drop(held);
        assert!(slots.state.locked().callers.is_empty());
        let held: Vec<_> = (0..=u8::MAX).flat_map(|one| [slots.try_take(Some(one)), slots.try_take(None)]).collect();
        assert_eq!(held.iter().flatten().count(), 64);
        assert!(slots.try_take(Some(1)).is_err() && slots.try_take(None).is_err());
    }

    #[test]
    fn no_caller_takes_more_slots_than_half_of_what_the_others_leave() {
        let slots = FairShares::limited(4, 16);
        let all = |one: u8| std::iter::from_fn(|| slots.try_take(Some(one)).ok()).collect::<Vec<_>>();
        let held: Vec<_> = (0..6).map(all).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4, 2, 1, 1]);
    }

    #[test]
    fn accounts_that_wait_take_turns_and_one_who_has_gone_is_passed_over() {
        let shares = FairShares::new(1);
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
        let shares = FairShares::new(100);
        let mut large = shares.take(id(1), 100).now_or_never().expect("all is free");
        let mut wait = Box::pin(shares.take(id(2), 60));
        assert!((&mut wait).now_or_never().is_none());
        large.correct(40);
        let other = (&mut wait).now_or_never();
        assert!(other.is_some() && shares.used() == 100);
    }
}
