//! Laws of credits that do not use the ledger: a wrong rule of the ledger fails here, although the model and the
//! drivers follow it alike. They are asserted on what the database shows.

use tintype_domain::model::{Account, EntryKind, ExpiringGrant, Id, LedgerEntry, Status, TaskId};
use tintype_store::TaskRecord;
use tintype_system::clock::Timestamp;

use super::model::Model;

/// What a store shows of credits.
#[derive(Debug, Default)]
pub struct Shown {
    pub tasks: Vec<TaskRecord>,
    pub books: Vec<Books>,
}

/// The credits of one account.
#[derive(Debug)]
pub struct Books {
    pub account: Account,
    /// Oldest first.
    pub entries: Vec<LedgerEntry>,
    pub grants: Vec<ExpiringGrant>,
}

impl Shown {
    pub fn assert_sound(&self) {
        for Books { account, entries, grants } in &self.books {
            let mut balance = 0;
            for entry in entries {
                balance += entry.amount;
                assert_eq!(entry.balance, balance, "the sum of the entries up to {entry:?}");
                assert!(balance >= 0, "overspent: {entry:?}");
            }
            assert_eq!(account.credits, balance, "the sum of the entries of {account:?}");
            for grant in grants {
                assert!(grant.remaining >= 0 && grant.amount > 0, "{grant:?}");
                assert!(grant.remaining + grant.lapsed.unwrap_or(0) <= grant.amount, "{grant:?}");
            }
            let left: i64 = grants.iter().map(|grant| grant.remaining).sum();
            assert!(left <= balance, "the balance of {account:?} does not hold the {left} credits of its grants");
            let lapsed: i64 = grants.iter().filter_map(|grant| grant.lapsed).sum();
            let expiries = entries.iter().filter(|entry| entry.kind == EntryKind::Expiry);
            assert_eq!(expiries.map(|entry| -entry.amount).sum::<i64>(), lapsed, "the expired credits of {account:?}");
        }
        for TaskRecord { task, request, .. } in &self.tasks {
            let cost = 2 * i64::from(request.n);
            let refunds = vec![(task.account_id, cost); usize::from(matches!(task.status, Status::Failed(_)))];
            assert_eq!(self.amounts(task.id, EntryKind::Charge), [(task.account_id, -cost)], "charged once: {task:?}");
            assert_eq!(self.amounts(task.id, EntryKind::Refund), refunds, "refunded once if it failed: {task:?}");
        }
    }

    /// The accounts and amounts of the entries of a task.
    fn amounts(&self, task: Id, kind: EntryKind) -> Vec<(Id, i64)> {
        let of_account = |books: &Books| {
            let of_task = |entry: &&LedgerEntry| entry.task_id == Some(TaskId(task)) && entry.kind == kind;
            books.entries.iter().filter(of_task).map(|entry| (books.account.id, entry.amount)).collect::<Vec<_>>()
        };
        self.books.iter().flat_map(of_account).collect()
    }

    /// Asserts what a step at the time `now` may not change.
    pub fn assert_follows(&self, before: &Self, now: Timestamp) {
        for (Books { entries, grants, .. }, before) in self.books.iter().zip(&before.books) {
            assert!(entries.starts_with(&before.entries), "the ledger only grows: {entries:?}");
            for old in &before.grants {
                let new = grants.iter().find(|grant| grant.entry_id == old.entry_id).expect("grants stay");
                if old.expires_at > now {
                    assert_eq!(new.lapsed, old.lapsed, "ended before its time, {now}: {new:?}");
                } else {
                    let left = |grant: &ExpiringGrant| grant.remaining + grant.lapsed.unwrap_or(0);
                    assert_eq!(left(new), left(old), "used after its expiry, at {now}: {new:?}");
                }
            }
        }
    }
}

impl Model {
    /// Asserts that a task which was just accepted is within the limit of its account and the budget of its key.
    pub fn assert_within_limits(&self, task: usize, max_unfinished: u32) {
        let task = &self.tasks[task];
        let unfinished = self.unfinished_of(task.account);
        assert!(max_unfinished == 0 || unfinished <= max_unfinished, "{unfinished} tasks, but {max_unfinished} may be");
        let allowance = task.key.and_then(|key| self.allowance(key, task.id.timestamp()));
        assert!(allowance.is_none_or(|allowance| allowance.spent <= allowance.budget.credits), "{allowance:?}");
    }
}
