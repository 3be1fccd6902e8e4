//! Budgets of keys in the model.

use tintype_domain::budget::{Allowance, Budget};
use tintype_system::clock::Timestamp;

use super::model::{Key, Model};

impl Model {
    /// Sets the budget of a key and of those with which it shares one.
    pub fn set_budget(&mut self, key: usize, budget: Option<Budget>) {
        let line = self.keys[key].line;
        for Key { key, .. } in self.keys.iter_mut().filter(|key| key.line == line) {
            (key.budget, key.operator_budget) = (budget, budget.is_some());
        }
    }

    /// The use of the budget of a key in the period that contains `at`: what its tasks of that period cost, without those
    /// that were refunded.
    pub fn allowance(&self, key: usize, at: Timestamp) -> Option<Allowance> {
        let budget = self.keys[key].key.budget?;
        let (begin, resets_at) = budget.period.around(at);
        let line = self.keys[key].line;
        let counts = self.tasks.iter().filter(|task| {
            let made = task.id.timestamp();
            let is_of_line = task.key.is_some_and(|key| self.keys[key].line == line);
            is_of_line && task.status.as_str() != "failed" && made >= begin && made < resets_at
        });
        let spent = counts.map(|task| 2 * i64::from(task.request.n)).sum();
        Some(Allowance { budget, spent, resets_at })
    }
}
