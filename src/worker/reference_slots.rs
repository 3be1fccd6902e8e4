//! Reference slots limit the tasks that wait for their references at the same time.
//!
//! A task in a reference slot holds memory but no render slot. No account can take all reference slots, because an
//! account can choose servers that send its references as slowly as they like.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use prometheus::IntGauge;
use tokio::sync::Notify;

use crate::service::shares::Counts;
use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;

/// The worker has this many times as many reference slots as one account can fill before it is passed over.
const SHARES: usize = 4;
/// Smallest share of one account, where there are few render slots.
const MIN_SHARE: usize = 2;

#[derive(Debug)]
pub(super) struct ReferenceSlots {
    total: usize,
    /// The worker claims no task of an account that holds this many slots. A claim brings at most this many tasks, so
    /// no account ever holds twice as many, which is half of all.
    share: usize,
    taken: Mutex<Taken>,
    /// Notified when an account that was passed over may have tasks claimed again.
    freed: Notify,
    gauge: IntGauge,
}

#[derive(Debug, Default)]
struct Taken {
    by_account: Counts<Id>,
    /// Accounts whose tasks found no free slot, each once, the longest waiting first.
    queue: VecDeque<Id>,
}

/// The slot of one task; dropping it releases the slot.
#[derive(Debug)]
pub(super) struct ReferenceSlot {
    account_id: Id,
    slots: Arc<ReferenceSlots>,
}

impl ReferenceSlots {
    /// The reference slots of a worker with `render_slots` render slots. The gauge shows how many are taken.
    pub(super) fn new(render_slots: usize, gauge: IntGauge) -> Arc<Self> {
        let share = render_slots.max(MIN_SHARE);
        Arc::new(Self { total: SHARES * share, share, taken: Mutex::default(), freed: Notify::new(), gauge })
    }

    /// Takes a slot for a task of this account. Without a free slot the task must be released, and its account is passed
    /// over until a slot is free.
    pub(super) fn take(self: &Arc<Self>, account_id: Id) -> Option<ReferenceSlot> {
        let mut taken = self.taken.locked();
        if taken.by_account.total() >= self.total {
            if !taken.queue.contains(&account_id) {
                taken.queue.push_back(account_id);
            }
            return None;
        }
        taken.queue.retain(|waiting| *waiting != account_id);
        taken.by_account.add(account_id);
        self.gauge.inc();
        Some(ReferenceSlot { account_id, slots: self.clone() })
    }

    /// How many tasks to claim for `render_slots` free render slots, and which accounts to pass over: those that hold
    /// their share or wait in the queue. For each free reference slot one account leaves the queue; the claim is then
    /// limited to the free reference slots, since all claimed tasks may be theirs.
    pub(super) fn to_claim(&self, render_slots: usize) -> (usize, Vec<Id>) {
        let mut taken = self.taken.locked();
        let free = self.total.saturating_sub(taken.by_account.total());
        let admitted = taken.queue.len().min(free);
        taken.queue.drain(..admitted);
        let most = if admitted > 0 { render_slots.min(free) } else { render_slots };
        let full = taken.by_account.iter().filter(|(_, count)| *count >= self.share);
        (most, full.map(|(account_id, _)| account_id).chain(&taken.queue).copied().collect())
    }

    /// Waits until tasks of an account that was passed over may be claimed.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl Drop for ReferenceSlot {
    fn drop(&mut self) {
        let Self { account_id, slots } = self;
        slots.gauge.dec();
        let mut taken = slots.taken.locked();
        let had_share = taken.by_account.of(account_id) == slots.share;
        taken.by_account.remove(account_id);
        if had_share || !taken.queue.is_empty() {
            slots.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tintype_system::clock::Timestamp;

    fn account(number: i64) -> Id {
        Id::floor(Timestamp::from_millis(number))
    }

    fn unregistered() -> IntGauge {
        IntGauge::new("slots", "Taken slots").expect("a valid name")
    }

    fn slots(render_slots: usize) -> Arc<ReferenceSlots> {
        ReferenceSlots::new(render_slots, unregistered())
    }

    fn take(slots: &Arc<ReferenceSlots>, number: i64, count: usize) -> Vec<ReferenceSlot> {
        (0..count).map(|_| slots.take(account(number)).expect("a free slot")).collect()
    }

    #[test]
    fn an_account_with_its_share_is_passed_over_until_it_has_less() {
        let slots = slots(3);
        let mut held = take(&slots, 1, 2);
        assert_eq!(slots.to_claim(1).1, []);
        held.extend(take(&slots, 1, 1));
        assert_eq!(slots.to_claim(1).1, [account(1)]);
        // One claim may bring more than its share.
        held.extend(take(&slots, 1, 2));
        assert_eq!(slots.to_claim(1).1, [account(1)]);
        held.truncate(2);
        assert_eq!(slots.to_claim(1).1, []);
    }

    #[test]
    fn accounts_that_found_no_slot_are_admitted_in_turn() {
        let slots = slots(1);
        let mut held: Vec<_> = (0..8).flat_map(|number| take(&slots, number, 1)).collect();
        for number in [11, 10, 12, 10] {
            assert!(slots.take(account(number)).is_none());
        }
        assert_eq!(slots.to_claim(1).1, [11, 10, 12].map(account));
        held.pop();
        assert_eq!(slots.to_claim(5), (1, [10, 12].map(account).to_vec()), "there is room for one task");
        held.extend(take(&slots, 11, 1));
        assert_eq!(slots.to_claim(1).1, [10, 12].map(account), "the slot is taken");
        held.truncate(6);
        assert_eq!(slots.to_claim(1).1, []);
    }

    #[tokio::test]
    async fn a_free_slot_wakes_the_worker_if_an_account_was_passed_over() {
        let slots = slots(1);
        let one = take(&slots, 1, 1);
        drop(one);
        let freed = futures::future::poll_immediate(std::pin::pin!(slots.freed())).await;
        assert!(freed.is_none(), "no account waits for it");
        let mut two = take(&slots, 1, 2);
        two.pop();
        slots.freed().await;
        let mut all: Vec<_> = (1..8).flat_map(|number| take(&slots, number, 1)).collect();
        assert!(slots.take(account(9)).is_none());
        all.pop();
        slots.freed().await;
    }

    #[test]
    fn the_gauge_shows_the_taken_slots() {
        let gauge = unregistered();
        let slots = ReferenceSlots::new(1, gauge.clone());
        let held = take(&slots, 1, 3);
        assert_eq!(gauge.get(), 3);
        drop(held);
        assert_eq!(gauge.get(), 0);
    }
}
