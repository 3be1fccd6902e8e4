//! Credits that expire, in the model.

use std::time::Duration;

use tintype_domain::model::EntryKind;
use tintype_system::clock::Timestamp;

use super::entries::Entry;
use super::model::Model;
use super::outcome::Outcome;

/// Time for which a refund can be spent after its grant has expired.
const REFUND_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone)]
pub struct Grant {
    pub account: usize,
    /// The entry that brought the credits, among those of the model.
    pub entry: usize,
    pub amount: i64,
    pub remaining: i64,
    /// The rest, when it lapsed.
    pub lapsed: Option<i64>,
    pub expires_at: Timestamp,
    pub note: Option<String>,
}

impl Model {
    /// Adds the grant of an entry.
    pub fn add_grant(&mut self, entry: usize, amount: i64, expires_at: Timestamp) {
        let (account, note) = (self.entries[entry].account, self.entries[entry].note.clone());
        self.grants.push(Grant { account, entry, amount, remaining: amount, lapsed: None, expires_at, note });
    }

    /// The credits that a task may spend.
    pub fn spendable(&self, account: usize, now: Timestamp) -> i64 {
        let is_expired = |grant: &&Grant| grant.account == account && grant.lapsed.is_none() && grant.expires_at <= now;
        let expired: i64 = self.grants.iter().filter(is_expired).map(|grant| grant.remaining).sum();
        self.accounts[account].balance - expired
    }

    /// The grants that can be spent, the soonest expiry first.
    fn live(&self, account: usize, now: Timestamp) -> Vec<usize> {
        let is_live = |index: &usize| {
            let grant = &self.grants[*index];
            grant.account == account && grant.lapsed.is_none() && grant.expires_at > now && grant.remaining > 0
        };
        let mut live: Vec<usize> = (0..self.grants.len()).filter(is_live).collect();
        live.sort_by_key(|index| (self.grants[*index].expires_at, self.grants[*index].entry));
        live
    }

    fn draw(&mut self, grants: Vec<usize>, mut missing: i64) -> Vec<(usize, i64)> {
        let mut parts = Vec::new();
        for index in grants {
            let part = self.grants[index].remaining.min(missing);
            if part > 0 {
                self.grants[index].remaining -= part;
                missing -= part;
                parts.push((index, part));
            }
        }
        parts
    }

    /// Takes the cost of a task of the grants that expire soonest.
    pub fn spend(&mut self, account: usize, cost: i64, now: Timestamp) -> Vec<(usize, i64)> {
        self.draw(self.live(account, now), cost)
    }

    /// Takes what goes beyond the credits that never expire, of the grants that expire last.
    pub fn take_of_grants(&mut self, account: usize, amount: i64, now: Timestamp) {
        let mut live = self.live(account, now);
        let expiring: i64 = live.iter().map(|index| self.grants[*index].remaining).sum();
        let lasting = self.spendable(account, now) - expiring;
        live.reverse();
        self.draw(live, (amount - lasting).max(0));
    }

    /// Gives back what a task took. The refund must be the newest entry.
    pub fn give_back(&mut self, task: usize, now: Timestamp) {
        let (mut late, mut late_again) = (0, 0);
        for (index, part) in std::mem::take(&mut self.tasks[task].taken) {
            let grant = &mut self.grants[index];
            if grant.lapsed.is_none() && grant.expires_at > now {
                grant.remaining += part;
            } else if self.entries[grant.entry].kind == EntryKind::Grant {
                late += part;
            } else {
                late_again += part;
            }
        }
        if late > 0 {
            self.add_grant(self.entries.len() - 1, late, now.saturating_add(REFUND_LIFE));
        }
        if late_again > 0 {
            let is_charge = |entry: &Entry| entry.task == Some(task) && entry.kind == EntryKind::Charge;
            let charge = self.entries.iter().position(is_charge).expect("every task was charged");
            self.add_grant(charge, late_again, now);
        }
    }

    pub fn lapse(&mut self, by: usize) -> Outcome {
        let now = self.now(by);
        let is_due = |index: &usize| self.grants[*index].lapsed.is_none() && self.grants[*index].expires_at <= now;
        let mut due: Vec<usize> = (0..self.grants.len()).filter(is_due).collect();
        due.sort_by_key(|index| (self.grants[*index].expires_at, self.grants[*index].entry));
        for index in &due {
            let grant = &mut self.grants[*index];
            let (account, left) = (grant.account, std::mem::take(&mut grant.remaining));
            grant.lapsed = Some(left);
            if left > 0 {
                self.record(account, EntryKind::Expiry, -left, now);
            }
        }
        Outcome::Lapsed(due.len())
    }

    /// No credit of a grant is there twice, and the balance holds what is left of all.
    pub fn assert_grants_sound(&self) {
        for (index, grant) in self.grants.iter().enumerate() {
            let held = self.tasks.iter().flat_map(|task| &task.taken).filter(|part| part.0 == index);
            let held: i64 = held.map(|part| part.1).sum();
            let all = grant.remaining + grant.lapsed.unwrap_or(0) + held;
            assert!(grant.remaining >= 0 && all <= grant.amount, "{grant:?} of which tasks hold {held}");
        }
        for (index, account) in self.accounts.iter().enumerate() {
            let of_account = self.grants.iter().filter(|grant| grant.account == index);
            assert!(of_account.map(|grant| grant.remaining).sum::<i64>() <= account.balance);
        }
    }
}
