//! Accounts and grants in the model.

use tintype_domain::model::{Account, EntryKind, MAX_BALANCE};
use tintype_store::{AccountCreation, Taking};
use tintype_system::clock::Timestamp;

use super::act::{KeyOrder, Name};
use super::model::{Holder, Model};
use super::outcome::Outcome;

impl Model {
    /// The text of a name.
    pub fn name(&self, name: Name) -> String {
        match name {
            Name::Word(number) => format!("account {number}"),
            Name::IdOf(index) => self.account_id(Some(index)).to_string(),
        }
    }

    /// The account as the store returns it.
    pub fn shown_account(&self, index: usize) -> Account {
        let Holder { id, name, balance, .. } = self.accounts[index].clone();
        Account::new(id, name, balance, index == 0)
    }

    pub fn create_account(&mut self, by: usize, name: Name, credits: i64, said: Option<&Outcome>) -> Outcome {
        self.processes[by].may_use_an_id();
        let name = self.name(name);
        if self.accounts.iter().any(|account| account.name == name || account.id.as_str() == name) {
            return Outcome::Creation(AccountCreation::NameTaken);
        }
        if !(0..=MAX_BALANCE).contains(&credits) {
            return Outcome::Refused;
        }
        let index = self.add_account(by, name, credits, said);
        Outcome::Creation(AccountCreation::Created(self.shown_account(index)))
    }

    fn add_account(&mut self, by: usize, name: String, credits: i64, said: Option<&Outcome>) -> usize {
        let id = self.new_id(by, said.and_then(Outcome::account_id));
        let index = self.accounts.len();
        self.accounts.push(Holder { id, name, balance: 0, unfinished: 0 });
        if credits != 0 {
            let at = self.now(by);
            self.record(index, EntryKind::Grant, credits, at).note = Some("opening balance".into());
        }
        index
    }

    pub fn create_first_account(
        &mut self,
        by: usize,
        name: Name,
        credits: i64,
        key: KeyOrder,
        said: Option<&Outcome>,
    ) -> Outcome {
        self.processes[by].may_use_an_id();
        if !self.accounts.is_empty() {
            return Outcome::First(None);
        }
        let index = self.add_account(by, self.name(name), credits, said);
        let key = self.add_key(by, index, key, said);
        Outcome::First(Some((self.shown_account(index), key)))
    }

    pub fn grant(&mut self, by: usize, account: Option<usize>, amount: i64, note: bool, life: Option<i64>) -> Outcome {
        if amount <= 0 {
            return Outcome::Refused;
        }
        let Some(index) = self.account(account) else { return Outcome::Balance(None) };
        if amount > MAX_BALANCE - self.accounts[index].balance {
            return Outcome::Refused;
        }
        let at = self.now(by);
        self.record(index, EntryKind::Grant, amount, at).note = grant_note(note);
        if let Some(life) = life {
            self.add_grant(self.entries.len() - 1, amount, Timestamp::from_millis(at.as_millis() + life));
        }
        Outcome::Balance(Some(self.accounts[index].balance))
    }

    pub fn take_credits(&mut self, by: usize, account: Option<usize>, amount: i64) -> Outcome {
        if amount <= 0 {
            return Outcome::Refused;
        }
        let Some(index) = self.account(account) else { return Outcome::Taking(None) };
        let at = self.now(by);
        let spendable = self.spendable(index, at);
        if spendable < amount {
            return Outcome::Taking(Some(Taking::TooFew(spendable)));
        }
        self.take_of_grants(index, amount, at);
        self.record(index, EntryKind::Grant, -amount, at).note = Some(TAKEN.into());
        Outcome::Taking(Some(Taking::Taken(self.accounts[index].balance)))
    }
}

/// The note of credits that were taken.
pub const TAKEN: &str = "a mistake";

/// The note on a grant.
pub fn grant_note(note: bool) -> Option<String> {
    note.then(|| "thanks for all the boats".to_owned())
}
