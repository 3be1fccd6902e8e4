//! The share of each endpoint in the attempts that this process makes at a time.
//!
//! An attempt may take as long as its time limit, so endpoints that answer slowly or never would take all slots. A
//! failing endpoint gets one, all failing ones together a part, and no account gets more than it leaves for the others.
//! So however many slots some accounts want, another still finds one, as long as those accounts are fewer than the
//! slots.

use std::sync::{Arc, Mutex};

use crate::service::shares::Counts;
use tintype_domain::endpoint::{Endpoint, EndpointState};
use tintype_domain::model::Id;
use tintype_outbound::receivers::MAX_REQUESTS;
use tintype_store::DueEndpoint;
use tintype_system::locked::Locked as _;

/// Those at one endpoint.
pub const MAX_OF_ENDPOINT: u32 = 8;
/// Those at all endpoints of one account, if as many are free.
const MAX_OF_ACCOUNT: usize = 16;
/// Those at failing endpoints together.
const MAX_FAILING: usize = 32;

#[derive(Debug, Default)]
pub(super) struct AttemptSlots(Mutex<Taken>);

#[derive(Debug, Default, Clone)]
struct Taken {
    endpoints: Counts<Id>,
    accounts: Counts<Id>,
    failing: usize,
}

/// An attempt, until it is dropped.
#[derive(Debug)]
pub(super) struct AttemptSlot {
    slots: Arc<AttemptSlots>,
    endpoint: DueEndpoint,
}

impl Taken {
    fn has_room(&self, endpoint: &DueEndpoint) -> bool {
        let of_endpoint = if endpoint.is_failing { 1 } else { MAX_OF_ENDPOINT as usize };
        let of_account = MAX_OF_ACCOUNT.min(MAX_REQUESTS.saturating_sub(self.accounts.total()));
        (!endpoint.is_failing || self.failing < MAX_FAILING)
            && self.endpoints.of(&endpoint.id) < of_endpoint
            && self.accounts.of(&endpoint.account_id) < of_account
    }

    fn add(&mut self, endpoint: &DueEndpoint) {
        self.endpoints.add(endpoint.id);
        self.accounts.add(endpoint.account_id);
        self.failing += usize::from(endpoint.is_failing);
    }

    fn remove(&mut self, endpoint: &DueEndpoint) {
        self.endpoints.remove(&endpoint.id);
        self.accounts.remove(&endpoint.account_id);
        self.failing -= usize::from(endpoint.is_failing);
    }
}

impl AttemptSlots {
    /// Gives out the free slots, one by one in turns. Returns the endpoints that got some, in the order of `due`.
    pub(super) fn share(&self, due: &[DueEndpoint]) -> Vec<(Id, u32)> {
        let mut taken = self.0.locked().clone();
        let mut shares = vec![0; due.len()];
        for _ in 0..MAX_OF_ENDPOINT {
            for (endpoint, share) in due.iter().zip(&mut shares) {
                if taken.has_room(endpoint) {
                    taken.add(endpoint);
                    *share += 1;
                }
            }
        }
        due.iter().zip(shares).filter(|(_, share)| *share > 0).map(|(endpoint, share)| (endpoint.id, share)).collect()
    }

    /// Whether these attempts take all slots that are free.
    pub(super) fn is_filled_by(&self, shares: &[(Id, u32)]) -> bool {
        self.0.locked().accounts.total() + shares.iter().map(|(_, share)| *share as usize).sum::<usize>()
            >= MAX_REQUESTS
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
        assert_eq!(shares.len(), MAX_FAILING);
        assert!(shares.iter().all(|(_, share)| *share == 1));
        dead.iter().take(MAX_FAILING).for_each(|endpoint| slots.0.locked().add(endpoint));
        assert_eq!(slots.share(&dead), []);
        assert!(!slots.is_filled_by(&[]));
        assert!(slots.is_filled_by(&[(id(5_000), (MAX_REQUESTS - MAX_FAILING) as u32)]));
        assert_eq!(slots.share(&[due(5_000, 1, false)]), [(id(5_000), MAX_OF_ENDPOINT)]);
        let of_one_account: Vec<_> = (0..20).map(|number| due(6_000 + number, 2, false)).collect();
        let shares = slots.share(&of_one_account);
        assert!(shares.len() == MAX_OF_ACCOUNT - 1 && shares.iter().all(|(_, share)| *share == 1), "in turns");
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
        assert!(slots.0.locked().accounts.total() > MAX_REQUESTS - MAX_OF_ENDPOINT as usize, "they take most of them");
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
        let taken = slots.0.locked();
        assert_eq!((taken.failing, taken.endpoints.total(), taken.accounts.iter().count()), (0, 0, 0));
    }
}
