//! Credits in the model. `domain::ledger` decides, as it does for the drivers; what it returns is applied here.

use tintype_domain::event::EventType;
use tintype_domain::ledger::{self, AccountCredits, Debit, Lapse, Part, REFUND_LIFE, Refund, Returned, check_positive};
use tintype_domain::model::{Account, EntryKind};
use tintype_store::CreditChange;
use tintype_system::clock::Timestamp;

use super::model::Model;
use super::outcome::Outcome;

/// A balance below this one is low, in every account.
pub const LOW: i64 = 12;
/// The note of credits that were taken.
pub const TAKEN: &str = "a mistake";

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

/// Credits that expire.
#[derive(Debug, Clone)]
pub struct Grant {
    pub account: usize,
    /// The entry that brought the credits, among those of the model: the id by which the ledger knows the grant.
    pub entry: usize,
    pub amount: i64,
    pub remaining: i64,
    /// The rest, when it lapsed.
    pub lapsed: Option<i64>,
    pub expires_at: Timestamp,
    pub note: Option<String>,
}

/// An event of an account, which is delivered to its endpoint.
#[derive(Debug, Clone)]
pub struct Event {
    pub account: usize,
    pub kind: EventType,
    /// The task that ended.
    pub task: Option<usize>,
    pub at: Timestamp,
}

/// The note on a grant.
pub fn grant_note(note: bool) -> Option<String> {
    note.then(|| "thanks for all the boats".to_owned())
}

impl Model {
    /// What the ledger needs for a decision.
    pub fn credits_of(&self, account: usize) -> AccountCredits {
        let unlapsed = self.grants.iter().filter(|grant| grant.account == account && grant.lapsed.is_none());
        let mut grants: Vec<_> = unlapsed
            .map(|&Grant { entry, remaining, expires_at, .. }| ledger::Grant {
                id: entry as i64,
                remaining,
                expires_at,
            })
            .collect();
        grants.sort_by_key(|grant| (grant.expires_at, grant.id));
        let Account { credits: balance, low_balance, .. } = self.accounts[account];
        AccountCredits { balance, unfinished: self.unfinished_of(account), grants, low_balance }
    }

    /// Writes an entry that leaves this balance.
    pub fn record(&mut self, account: usize, kind: EntryKind, balance: i64, at: Timestamp) -> &mut Entry {
        let amount = balance - std::mem::replace(&mut self.accounts[account].credits, balance);
        self.entries.push(Entry { step: self.steps, account, kind, amount, task: None, note: None, at });
        self.entries.last_mut().expect("an entry was pushed")
    }

    /// Writes what the ledger takes from an account.
    pub fn debit(&mut self, account: usize, kind: EntryKind, debit: &Debit, at: Timestamp) -> &mut Entry {
        for part in &debit.parts {
            self.grant_of(*part).remaining -= part.credits;
        }
        if debit.low.is_some() {
            self.tell(account, EventType::CreditsLow, None, at);
        }
        self.record(account, kind, debit.balance, at)
    }

    fn grant_of(&mut self, part: Part) -> &mut Grant {
        self.grants.iter_mut().find(|grant| grant.entry as i64 == part.grant).expect("a grant of the model")
    }

    /// Adds the grant of an entry.
    fn add_grant(&mut self, entry: usize, amount: i64, expires_at: Timestamp) {
        let (account, note) = (self.entries[entry].account, self.entries[entry].note.clone());
        self.grants.push(Grant { account, entry, amount, remaining: amount, lapsed: None, expires_at, note });
    }

    /// Writes an event and its delivery, which have new ids.
    pub fn tell(&mut self, account: usize, kind: EventType, task: Option<usize>, at: Timestamp) {
        self.processes[self.by].may_use_an_id();
        self.events.push(Event { account, kind, task, at });
    }

    pub fn grant(&mut self, account: Option<usize>, amount: i64, note: bool, life: Option<i64>) -> Outcome {
        if check_positive(amount).is_err() {
            return Outcome::Refused;
        }
        let Some(index) = self.account(account) else { return Outcome::Balance(None) };
        let Ok(balance) = self.credits_of(index).grant(amount) else { return Outcome::Refused };
        let at = self.now();
        self.record(index, EntryKind::Grant, balance, at).note = grant_note(note);
        if let Some(life) = life {
            self.add_grant(self.entries.len() - 1, amount, Timestamp::from_millis(at.as_millis() + life));
        }
        Outcome::Balance(Some(balance))
    }

    pub fn take_credits(&mut self, account: Option<usize>, amount: i64) -> Outcome {
        if check_positive(amount).is_err() {
            return Outcome::Refused;
        }
        let Some(index) = self.account(account) else { return Outcome::Taking(CreditChange::NoAccount) };
        let now = self.now();
        Outcome::Taking(match self.credits_of(index).take(amount, now) {
            Err(available) => CreditChange::TooFew(available),
            Ok(debit) => {
                self.debit(index, EntryKind::Grant, &debit, now).note = Some(TAKEN.into());
                CreditChange::Done(debit.balance)
            }
        })
    }

    pub fn lapse(&mut self) -> Outcome {
        let (now, mut lapsed) = (self.now(), 0);
        for account in 0..self.accounts.len() {
            for Lapse { part, balance, low } in self.credits_of(account).lapse(now) {
                lapsed += 1;
                self.grant_of(part).lapsed = Some(part.credits);
                if part.credits > 0 {
                    self.debit(account, EntryKind::Expiry, &Debit { balance, parts: vec![part], low }, now);
                }
            }
        }
        Outcome::Lapsed(lapsed)
    }

    /// Refunds a task that has failed.
    pub fn refund(&mut self, task: usize, now: Timestamp) {
        let (account, cost) = (self.tasks[task].account, self.tasks[task].request.cost());
        let balance = self.credits_of(account).refund(cost).expect("a balance leaves room for every refund");
        self.record(account, EntryKind::Refund, balance, now).task = Some(task);
        let refund = self.entries.len() - 1;
        let taken = self.tasks[task].taken.clone().into_iter().map(|part| {
            let Grant { lapsed, expires_at, entry, .. } = *self.grant_of(part);
            let is_extension = self.entries[entry].kind != EntryKind::Grant;
            Returned { part, is_live: lapsed.is_none() && expires_at > now, is_extension }
        });
        let Refund { returned, extended, expired } = ledger::return_to_grants(&taken.collect::<Vec<_>>());
        for part in returned {
            self.grant_of(part).remaining += part.credits;
        }
        if extended > 0 {
            self.add_grant(refund, extended, now.saturating_add(REFUND_LIFE));
        }
        if expired > 0 {
            // The entry of the refund may have a grant already.
            let is_charge = |entry: &Entry| entry.task == Some(task) && entry.kind == EntryKind::Charge;
            let charge = self.entries.iter().position(is_charge).expect("every task was charged");
            self.add_grant(charge, expired, now);
        }
    }
}
