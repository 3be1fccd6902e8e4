//! The ledger in the model.

use tintype_domain::model::EntryKind;
use tintype_system::clock::Timestamp;

use super::model::Model;

#[derive(Debug, Clone)]
pub struct Entry {
    /// The step that wrote it. Entries of one step have no guaranteed order.
    pub step: usize,
    pub account: usize,
    pub kind: EntryKind,
    pub amount: i64,
    pub task: Option<usize>,
    pub note: Option<String>,
    pub at: Timestamp,
}

impl Model {
    /// Writes an entry and updates the balance.
    pub fn record(&mut self, account: usize, kind: EntryKind, amount: i64, at: Timestamp) -> &mut Entry {
        self.accounts[account].balance += amount;
        self.entries.push(Entry { step: self.steps, account, kind, amount, task: None, note: None, at });
        self.entries.last_mut().expect("an entry was pushed")
    }

    /// Asserts the invariants that hold after every sequence of steps.
    pub fn assert_sound(&self) {
        for (index, account) in self.accounts.iter().enumerate() {
            let of_account = self.entries.iter().filter(|entry| entry.account == index);
            let balance = of_account.fold(0, |balance, entry| {
                assert!(balance + entry.amount >= 0, "overspent: {entry:?}");
                balance + entry.amount
            });
            assert_eq!(account.balance, balance);
            let unfinished = self.tasks.iter().filter(|task| task.account == index && !task.status.is_terminal());
            assert_eq!(account.unfinished, unfinished.count());
        }
        self.assert_grants_sound();
        for index in 0..self.tasks.len() {
            self.assert_task_sound(index);
        }
    }

    fn assert_task_sound(&self, index: usize) {
        let task = &self.tasks[index];
        let amounts = |kind| {
            let mut amounts = Vec::new();
            for entry in self.entries.iter().filter(|entry| entry.task == Some(index) && entry.kind == kind) {
                assert_eq!(entry.account, task.account);
                amounts.push(entry.amount);
            }
            amounts
        };
        let cost = 2 * i64::from(task.request.n);
        let refunds: &[i64] = if task.status.as_str() == "failed" { &[cost] } else { &[] };
        assert_eq!(amounts(EntryKind::Charge), [-cost]);
        assert_eq!(amounts(EntryKind::Refund), refunds);
        assert_eq!(task.ended.as_ref().map(|ended| &ended.0), Some(&task.status).filter(|status| status.is_terminal()));
        assert!(task.ended.as_ref().is_none_or(|ended| ended.1 == task.updated_at && task.lease_until.is_none()));
        assert!(task.lost_leases < 3 || task.status.is_terminal());
        let of_task = self.leases.iter().filter(|lease| lease.task_id == task.id);
        let epochs: Vec<_> = of_task.map(|lease| lease.epoch).collect();
        assert!(epochs.is_sorted_by(|earlier, later| earlier < later), "epochs only rise: {epochs:?}");
        assert_eq!(epochs.last().copied(), task.epoch);
    }
}
