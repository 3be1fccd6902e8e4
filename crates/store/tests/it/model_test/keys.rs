//! Keys and their budgets in the model.

use std::time::Duration;

use tintype_domain::budget::{Allowance, Budget};
use tintype_domain::key::{ApiKey, KeyHash, Suspension};
use tintype_store::{KeyChange, NewKey, StrikeRule};
use tintype_system::clock::Timestamp;

use super::act::KeyOrder;
use super::model::{Key, Model};
use super::outcome::Outcome;

/// The hash of a secret.
pub fn hash(secret: u8) -> KeyHash {
    [secret; 32]
}

pub fn hint(secret: u8) -> String {
    format!("tt_{secret}…")
}

/// A key to be stored.
pub fn new_key(order: KeyOrder) -> NewKey {
    NewKey {
        hash: hash(order.secret),
        hint: hint(order.secret),
        name: format!("key {}", order.secret),
        submit_rate: order.submit_rate,
        read_rate: order.read_rate,
        budget: order.budget,
        expires_at: order.expires_at,
    }
}

impl Model {
    fn is_used(&self, secret: u8) -> bool {
        self.keys.iter().any(|key| key.hash == hash(secret))
    }

    pub fn create_key(&mut self, account: Option<usize>, order: KeyOrder) -> Outcome {
        self.processes[self.by].may_use_an_id();
        let Some(account) = self.account(account) else { return Outcome::Key(None) };
        if self.is_used(order.secret) {
            return Outcome::Refused;
        }
        Outcome::Key(Some(self.add_key(account, order)))
    }

    pub fn add_key(&mut self, account: usize, order: KeyOrder) -> ApiKey {
        let NewKey { hash, hint, name, submit_rate, read_rate, budget, expires_at } = new_key(order);
        let id = self.new_id(self.said.key_id());
        let key = ApiKey {
            id,
            first_id: id,
            account_id: self.accounts[account].id,
            made_by: None,
            name,
            hint,
            submit_rate,
            read_rate,
            budget,
            operator_budget: budget.is_some(),
            created_at: id.timestamp(),
            expires_at,
            disabled: false,
            account_disabled: false,
            revoked_at: None,
            leaked_at: None,
            last_used_at: None,
            suspension: None,
        };
        self.keys.push(Key { hash, key: key.clone(), line: self.keys.len(), strikes: Vec::new() });
        key
    }

    pub fn change_key(&mut self, key: Option<usize>, change: KeyChange) -> Outcome {
        let now = self.now();
        let Some(index) = self.key(key) else { return Outcome::Key(None) };
        if let KeyChange::Budget(budget) = change {
            self.set_budget(index, budget);
        }
        if matches!(change, KeyChange::Enable | KeyChange::Lift) {
            let line = self.keys[index].line;
            self.keys.iter_mut().filter(|key| key.line == line).for_each(|key| key.strikes.clear());
        }
        let Key { key, .. } = &mut self.keys[index];
        match change {
            KeyChange::Enable => (key.disabled, key.suspension) = (false, None),
            KeyChange::Lift => key.suspension = None,
            KeyChange::Disable => key.disabled = true,
            KeyChange::EnableByOwner => key.disabled = false,
            KeyChange::Revoke => key.revoked_at = key.revoked_at.or(Some(now)),
            KeyChange::FlagLeaked => key.leaked_at = key.leaked_at.or(Some(now)),
            KeyChange::Budget(_) => {}
        }
        Outcome::Key(Some(key.clone()))
    }

    /// Counts one strike, with those of the keys that the key was rotated from and to, and returns whether it suspends the
    /// key.
    pub fn strike(&mut self, key: usize, rule: StrikeRule) -> bool {
        let (now, line) = (self.now(), self.keys[key].line);
        // Without the new one, which counts even if the window is zero.
        let mut count = 1;
        for Key { strikes, .. } in self.keys.iter_mut().filter(|key| key.line == line) {
            strikes.retain(|at| *at > now.saturating_sub(rule.window));
            count += strikes.len();
        }
        let Key { key, strikes, .. } = &mut self.keys[key];
        strikes.push(now);
        let last = count >= rule.limit as usize && key.suspension.is_none();
        if last {
            key.suspension = Some(Suspension { at: now, reason: rule.to_string() });
        }
        last
    }

    pub fn touch_keys(&mut self, uses: &[(Option<usize>, Timestamp)]) -> Outcome {
        for (key, at) in uses {
            if let Some(index) = self.key(*key) {
                let last = &mut self.keys[index].key.last_used_at;
                *last = Some(last.map_or(*at, |last| last.max(*at)));
            }
        }
        Outcome::Quiet
    }

    pub fn rotate_key(&mut self, key: Option<usize>, secret: u8, overlap: Duration) -> Outcome {
        self.processes[self.by].may_use_an_id();
        let Some(index) = self.key(key).filter(|index| self.keys[*index].key.revoked_at.is_none()) else {
            return Outcome::Key(None);
        };
        if self.is_used(secret) {
            return Outcome::Refused;
        }
        let old = self.keys[index].key.clone();
        let end = self.now().saturating_add(overlap);
        self.keys[index].key.expires_at = Some(old.expires_at.map_or(end, |earlier| earlier.min(end)));
        let id = self.new_id(self.said.key_id());
        let line = self.keys[index].line;
        let ends = self.keys.iter().filter(|key| key.line == line).map(|key| key.key.expires_at);
        // Without the end that this rotation gives the old key.
        let expires_at =
            ends.chain([old.expires_at]).max_by_key(|end| end.map_or((true, None), |end| (false, Some(end))));
        let new = ApiKey {
            id,
            hint: hint(secret),
            created_at: id.timestamp(),
            leaked_at: None,
            last_used_at: None,
            expires_at: expires_at.flatten(),
            ..old
        };
        let strikes = std::mem::take(&mut self.keys[index].strikes);
        self.keys.push(Key { hash: hash(secret), key: new.clone(), line, strikes });
        Outcome::Key(Some(new))
    }

    /// Sets the budget of a key and of those with which it shares one.
    fn set_budget(&mut self, key: usize, budget: Option<Budget>) {
        let line = self.keys[key].line;
        for Key { key, .. } in self.keys.iter_mut().filter(|key| key.line == line) {
            (key.budget, key.operator_budget) = (budget, budget.is_some());
        }
    }

    /// The use of the budget of a key in the period that contains `at`: what its tasks of that period cost, without
    /// those that were refunded.
    pub fn allowance(&self, key: usize, at: Timestamp) -> Option<Allowance> {
        let budget = self.keys[key].key.budget?;
        let (begin, resets_at) = budget.period.around(at);
        let line = self.keys[key].line;
        let counts = self.tasks.iter().filter(|task| {
            let made = task.id.timestamp();
            let is_of_line = task.key.is_some_and(|key| self.keys[key].line == line);
            is_of_line && task.status.as_str() != "failed" && made >= begin && made < resets_at
        });
        let spent = counts.map(|task| task.request.cost()).sum();
        Some(Allowance { budget, spent, resets_at })
    }
}
