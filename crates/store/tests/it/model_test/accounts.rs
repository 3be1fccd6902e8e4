//! Accounts in the model.

use tintype_domain::ledger::check_opening;
use tintype_domain::model::{Account, EntryKind};

use super::act::{KeyOrder, Name};
use super::credits::LOW;
use super::model::Model;
use super::outcome::Outcome;

impl Model {
    /// The text of a name.
    pub fn name(&self, name: Name) -> String {
        match name {
            Name::Word(number) => format!("account {number}"),
            Name::IdOf(index) => self.account_id(Some(index)).to_string(),
        }
    }

    pub fn create_account(&mut self, name: Name, credits: i64) -> Outcome {
        if check_opening(credits).is_err() {
            return Outcome::Refused;
        }
        self.processes[self.by].may_use_an_id();
        let name = self.name(name);
        if self.accounts.iter().any(|account| account.name == name || account.id.as_str() == name) {
            return Outcome::Creation(None);
        }
        let index = self.add_account(name, credits);
        Outcome::Creation(Some(self.accounts[index].clone()))
    }

    fn add_account(&mut self, name: String, credits: i64) -> usize {
        let id = self.new_id(self.said.account_id());
        let index = self.accounts.len();
        self.accounts.push(Account { low_balance: Some(LOW), ..Account::new(id, name, 0, index == 0) });
        if credits != 0 {
            self.record(index, EntryKind::Grant, credits, self.now()).note = Some("opening balance".into());
        }
        index
    }

    pub fn create_first_account(&mut self, name: Name, credits: i64, key: KeyOrder) -> Outcome {
        self.processes[self.by].may_use_an_id();
        if !self.accounts.is_empty() {
            return Outcome::First(None);
        }
        let index = self.add_account(self.name(name), credits);
        let key = self.add_key(index, key);
        Outcome::First(Some((self.accounts[index].clone(), key)))
    }
}
