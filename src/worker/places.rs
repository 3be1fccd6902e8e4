//! Places for tasks that wait for their references, which takes no render slot. There are so many, because of what
//! such tasks keep in memory, and no account has all of them, because its references may come as slowly as it likes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

use crate::domain::model::Id;

/// What one account may have of the places is this part of them.
const PARTS: usize = 4;
/// Tasks of one account that wait for references where there are few slots.
const MIN_PART: usize = 2;

/// The places of one worker.
#[derive(Debug)]
pub(super) struct Places {
    total: usize,
    /// Nothing is claimed of an account that has so many. At least as many as one claim brings, so no account ever
    /// has twice as many, which is half of all.
    part: usize,
    taken: Mutex<Taken>,
    /// An account that was passed over may no longer be.
    freed: Notify,
    gauge: Gauge,
}

#[derive(Debug, Default)]
struct Taken {
    by_account: HashMap<Id, usize>,
    /// Accounts whose tasks found no place, each once, the one that waits longest first.
    line: VecDeque<Id>,
}

/// The place of one task, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    account_id: Id,
    places: Arc<Places>,
}

impl Places {
    /// Beside so many render slots. The gauge shows how many are taken.
    pub(super) fn new(slots: usize, gauge: Gauge) -> Arc<Self> {
        let part = slots.max(MIN_PART);
        Arc::new(Self { total: PARTS * part, part, taken: Mutex::default(), freed: Notify::new(), gauge })
    }

    /// A place for a task of this account. If there is none, the task has to be given back, and its account is passed
    /// over until there is one.
    pub(super) fn take(self: &Arc<Self>, account_id: Id) -> Option<Place> {
        let mut taken = self.taken();
        if taken.count() >= self.total {
            if !taken.line.contains(&account_id) {
                taken.line.push_back(account_id);
            }
            return None;
        }
        taken.line.retain(|waiting| *waiting != account_id);
        *taken.by_account.entry(account_id).or_default() += 1;
        self.gauge.inc();
        Some(Place { account_id, places: self.clone() })
    }

    /// What to claim for `slots` free slots: at most so many tasks, and none of these accounts, which have their part or
    /// wait in line. Of the line, as many as there are free places wait no longer; then no more is claimed than these
    /// hold, as all of it may be theirs.
    pub(super) fn to_claim(&self, slots: usize) -> (usize, Vec<Id>) {
        let mut taken = self.taken();
        let free = self.total.saturating_sub(taken.count());
        let let_in = taken.line.len().min(free);
        taken.line.drain(..let_in);
        let most = if let_in > 0 { slots.min(free) } else { slots };
        let full = taken.by_account.iter().filter(|(_, count)| **count >= self.part);
        (most, full.map(|(account_id, _)| account_id).chain(&taken.line).copied().collect())
    }

    /// Waits until something can be claimed of an account that was passed over.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn count(&self) -> usize {
        self.by_account.values().sum()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Self { account_id, places } = self;
        places.gauge.dec();
        let mut taken = places.taken();
        let Some(count) = taken.by_account.get_mut(account_id) else { return };
        let was_full = *count == places.part;
        *count -= 1;
        if *count == 0 {
            taken.by_account.remove(account_id);
        }
        if was_full || !taken.line.is_empty() {
            places.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn account(number: i64) -> Id {
        Id::floor(Timestamp::from_millis(number))
    }

    fn places(slots: usize) -> Arc<Places> {
        Places::new(slots, Gauge::default())
    }

    fn take(places: &Arc<Places>, number: i64, count: usize) -> Vec<Place> {
        (0..count).map(|_| places.take(account(number)).expect("a free place")).collect()
    }

    #[test]
    fn an_account_that_has_its_part_is_passed_over_until_it_has_less() {
        let places = places(3);
        let mut held = take(&places, 1, 2);
        assert_eq!(places.to_claim(1).1, []);
        held.extend(take(&places, 1, 1));
        assert_eq!(places.to_claim(1).1, [account(1)]);
        // One claim may bring more than its part.
        held.extend(take(&places, 1, 2));
        assert_eq!(places.to_claim(1).1, [account(1)]);
        held.truncate(2);
        assert_eq!(places.to_claim(1).1, []);
    }

    #[test]
    fn who_finds_no_place_is_let_in_in_turn() {
        let places = places(1);
        let mut held: Vec<_> = (0..8).flat_map(|number| take(&places, number, 1)).collect();
        for number in [11, 10, 12, 10] {
            assert!(places.take(account(number)).is_none());
        }
        assert_eq!(places.to_claim(1).1, [11, 10, 12].map(account));
        held.pop();
        assert_eq!(places.to_claim(5), (1, [10, 12].map(account).to_vec()), "there is room for one task");
        held.extend(take(&places, 11, 1));
        assert_eq!(places.to_claim(1).1, [10, 12].map(account), "the place is taken");
        held.truncate(6);
        assert_eq!(places.to_claim(1).1, []);
    }

    #[tokio::test]
    async fn a_place_that_somebody_waits_for_is_announced() {
        let places = places(1);
        let one = take(&places, 1, 1);
        drop(one);
        assert!(futures::future::poll_immediate(std::pin::pin!(places.freed())).await.is_none(), "nobody waits for it");
        let mut two = take(&places, 1, 2);
        two.pop();
        places.freed().await;
        let mut all: Vec<_> = (1..8).flat_map(|number| take(&places, number, 1)).collect();
        assert!(places.take(account(9)).is_none());
        all.pop();
        places.freed().await;
    }

    #[test]
    fn the_gauge_shows_what_is_taken() {
        let gauge = Gauge::default();
        let places = Places::new(1, gauge.clone());
        let held = take(&places, 1, 3);
        assert_eq!(gauge.get(), 3);
        drop(held);
        assert_eq!(gauge.get(), 0);
    }
}
