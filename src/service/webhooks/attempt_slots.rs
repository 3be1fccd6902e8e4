//! The share of each endpoint in the attempts that this process makes at a time.
//!
//! An attempt may take as long as its time limit, so endpoints that answer slowly or never would take all slots. A
//! failing endpoint gets one, all failing ones together a part, and no account gets more than it leaves for the others.
//! So however many slots some accounts want, another still finds one, as long as those accounts are fewer than the
//! slots.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use tintype_domain::endpoint::{Endpoint, EndpointState};
use tintype_domain::model::Id;
use tintype_outbound::receivers::MAX_REQUESTS;
use tintype_store::DueEndpoint;
use tintype_system::locked::Locked as _;

const MAX: u32 = MAX_REQUESTS as u32;
/// Those at one endpoint.
pub const MAX_OF_ENDPOINT: u32 = 8;
/// Those at all endpoints of one account, if as many are free.
const MAX_OF_ACCOUNT: u32 = 16;
/// Those at failing endpoints together.
const MAX_FAILING: u32 = 32;

#[derive(Debug, Default)]
pub(super) struct AttemptSlots(Mutex<Counts>);

#[derive(Debug, Default, Clone)]
struct Counts {
    endpoints: HashMap<Id, u32>,
    accounts: HashMap<Id, u32>,
    failing: u32,
    all: u32,
}

/// An attempt, until it is dropped.
#[derive(Debug)]
pub(super) struct AttemptSlot {
    slots: Arc<AttemptSlots>,
    endpoint: DueEndpoint,
}

impl Counts {
    fn has_room(&self, endpoint: &DueEndpoint) -> bool {
        let count = |counts: &HashMap<Id, u32>, id| counts.get(&id).copied().unwrap_or_default();
        let of_endpoint = if endpoint.is_failing { 1 } else { MAX_OF_ENDPOINT };
        let of_account = MAX_OF_ACCOUNT.min(MAX.saturating_sub(self.all));
        (!endpoint.is_failing || self.failing < MAX_FAILING)
            && count(&self.endpoints, endpoint.id) < of_endpoint
            && count(&self.accounts, endpoint.account_id) < of_account
    }

    fn add(&mut self, endpoint: &DueEndpoint) {
        *self.endpoints.entry(endpoint.id).or_default() += 1;
        *self.accounts.entry(endpoint.account_id).or_default() += 1;
        self.failing += u32::from(endpoint.is_failing);
        self.all += 1;
    }

    fn remove(&mut self, endpoint: &DueEndpoint) {
        remove_one(&mut self.endpoints, endpoint.id);
        remove_one(&mut self.accounts, endpoint.account_id);
        self.failing -= u32::from(endpoint.is_failing);
        self.all -= 1;
    }
}

/// Counts one less, and forgets what is counted no more.
fn remove_one<K: Hash + Eq>(counts: &mut HashMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl AttemptSlots {
    /// Gives out the free slots, one by one in turns. Returns the endpoints that got some, in the order of `due`.
    pub(super) fn share(&self, due: &[DueEndpoint]) -> Vec<(Id, u32)> {
        let mut counts = self.0.locked().clone();
        let mut shares = vec![0; due.len()];
        for _ in 0..MAX_OF_ENDPOINT {
            for (endpoint, share) in due.iter().zip(&mut shares) {
                if counts.has_room(endpoint) {
                    counts.add(endpoint);
                    *share += 1;
                }
            }
        }
        due.iter().zip(shares).filter(|(_, share)| *share > 0).map(|(endpoint, share)| (endpoint.id, share)).collect()
    }

    /// Whether these attempts take all slots that are free.
    pub(super) fn is_filled_by(&self, shares: &[(Id, u32)]) -> bool {
        self.0.locked().all + shares.iter().map(|(_, share)| share).sum::<u32>() >= MAX
    }

    pub(super) fn take(self: &Arc<Self>, endpoint: &Endpoint) -> AttemptSlot {
        let is_failing = endpoint.state() == EndpointState::Failing;
        let endpoint = DueEndpoint { id: endpoint.id, account_id: endpoint.account_id, is_failing };
        self.0.locked().add(&endpoint);
        AttemptSlot { slots: self.clone(), endpoint }
    }
}

impl Drop for AttemptSlot {
    fn drop(&mut self) {
        self.slots.0.locked().remove(&self.endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tintype_domain::timestamp::Timestamp;

    fn id(number: i64) -> Id {
        Id::floor(Timestamp::from_millis(number))
    }

    fn due(number: i64, account: i64, is_failing: bool) -> DueEndpoint {
        DueEndpoint { id: id(number), account_id: id(account), is_failing }
    }

    #[test]
    fn slow_and_dead_endpoints_leave_slots_to_others() {
        let slots = AttemptSlots::default();
        let dead: Vec<_> = (0..1_000).map(|number| due(number, number, true)).collect();
        let shares = slots.share(&dead);
        assert_eq!(shares.len(), MAX_FAILING as usize);
        assert!(shares.iter().all(|(_, share)| *share == 1));
        dead.iter().take(MAX_FAILING as usize).for_each(|endpoint| slots.0.locked().add(endpoint));
        assert_eq!(slots.share(&dead), []);
        assert!(!slots.is_filled_by(&[]));
        assert!(slots.is_filled_by(&[(id(5_000), MAX - MAX_FAILING)]));
        assert_eq!(slots.share(&[due(5_000, 1, false)]), [(id(5_000), MAX_OF_ENDPOINT)]);
        let of_one_account: Vec<_> = (0..20).map(|number| due(6_000 + number, 2, false)).collect();
        let shares = slots.share(&of_one_account);
        assert!(shares.len() == MAX_OF_ACCOUNT as usize - 1 && shares.iter().all(|(_, share)| *share == 1), "in turns");
    }

    #[test]
    fn many_slow_accounts_leave_slots_to_another() {
        let slots = AttemptSlots::default();
        let slow: Vec<_> = (0..80).map(|number| due(number, number / 2, false)).collect();
        loop {
            let shares = slots.share(&slow);
            for endpoint in &slow {
                let share = shares.iter().find(|(id, _)| *id == endpoint.id).map_or(0, |(_, share)| *share);
                (0..share).for_each(|_| slots.0.locked().add(endpoint));
            }
            if shares.is_empty() {
                break;
            }
        }
        assert!(slots.0.locked().all > MAX - MAX_OF_ENDPOINT, "they take most of them");
        let another = due(5_000, 5_000, false);
        assert_eq!(slots.share(&[another]).len(), 1);
    }

    #[test]
    fn slots_come_back_and_are_forgotten() {
        let slots = AttemptSlots::default();
        let endpoint = due(1, 2, true);
        for _ in 0..3 {
            assert_eq!(slots.share(&[endpoint]), [(id(1), 1)]);
            slots.0.locked().add(&endpoint);
            assert_eq!(slots.share(&[endpoint]), []);
            slots.0.locked().remove(&endpoint);
        }
        let counts = slots.0.locked();
        assert!(counts.all == 0 && counts.failing == 0 && counts.endpoints.is_empty() && counts.accounts.is_empty());
    }
}
