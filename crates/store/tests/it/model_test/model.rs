//! The model: the content of a store in plain collections, and a method for each act.

use tintype_domain::key::{ApiKey, KeyHash};
use tintype_domain::ledger::Part;
use tintype_domain::model::{Account, Id, Status, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::Lease;
use tintype_system::clock::Timestamp;

use super::act::{Act, Held, Step};
use super::choice::Taste;
use super::credits::{Entry, Event, Grant};
use super::outcome::Outcome;
use super::process::Process;
use tintype_rigs::database::NOON;

#[derive(Debug, Clone)]
pub struct Model {
    pub taste: Taste,
    pub processes: [Process; 2],
    pub accounts: Vec<Account>,
    pub keys: Vec<Key>,
    pub tasks: Vec<Ticket>,
    /// Every lease that a claim returned.
    pub leases: Vec<Lease>,
    pub entries: Vec<Entry>,
    /// In the order in which they were added.
    pub grants: Vec<Grant>,
    pub events: Vec<Event>,
    /// Number of steps taken.
    pub steps: usize,
    /// The process that takes the present step.
    pub by: usize,
    /// The store's answer to the present step. Choices that the rules leave open, such as new ids and the order of
    /// accounts, follow it if the rules allow it. `Quiet` without a store: then the model chooses.
    pub said: Outcome,
}

#[derive(Debug, Clone)]
pub struct Key {
    pub hash: KeyHash,
    pub key: ApiKey,
    /// The first of the keys with which it shares a budget.
    pub line: usize,
    /// The times of its strikes that have not expired.
    pub strikes: Vec<Timestamp>,
}

/// A task and its place in the queue.
#[derive(Debug, Clone)]
pub struct Ticket {
    pub id: Id,
    pub account: usize,
    /// The key that submitted it.
    pub key: Option<usize>,
    pub surface: Surface,
    pub request: GenerateRequest,
    pub status: Status,
    pub updated_at: Timestamp,
    /// The epoch of its last lease.
    pub epoch: Option<i64>,
    /// The end of its lease, while it is leased.
    pub lease_until: Option<Timestamp>,
    /// The end of its delay; without a delay it can be claimed at once.
    pub ready_at: Option<Timestamp>,
    /// The end of its last delay, which must have no effect after the next claim.
    pub delayed_until: Option<Timestamp>,
    pub lost_leases: u32,
    /// The credits that it took from grants.
    pub taken: Vec<Part>,
}

impl Model {
    pub fn new(taste: Taste) -> Self {
        Self {
            taste,
            processes: [NOON, taste.other_clock].map(Process::start),
            accounts: Vec::new(),
            keys: Vec::new(),
            tasks: Vec::new(),
            leases: Vec::new(),
            entries: Vec::new(),
            grants: Vec::new(),
            events: Vec::new(),
            steps: 0,
            by: 0,
            said: Outcome::Quiet,
        }
    }

    /// Takes a step, to which the store has answered `said`, and returns the expected outcome.
    pub fn take(&mut self, step: &Step, said: Outcome) -> Outcome {
        (self.by, self.said) = (step.by, said);
        self.steps += 1;
        self.act(step.act.clone()).sorted()
    }

    fn act(&mut self, act: Act) -> Outcome {
        match act {
            Act::CreateAccount { name, credits } => self.create_account(name, credits),
            Act::CreateFirstAccount { name, credits, key } => self.create_first_account(name, credits, key),
            Act::CreateKey { account, key } => self.create_key(account, key),
            Act::ChangeKey { key, change } => self.change_key(key, change),
            Act::RotateKey { key, secret, overlap } => self.rotate_key(key, secret, overlap),
            Act::TouchKeys { uses } => self.touch_keys(&uses),
            Act::Grant { account, amount, note, life } => self.grant(account, amount, note, life),
            Act::Take { account, amount } => self.take_credits(account, amount),
            Act::Lapse => self.lapse(),
            Act::Submit { account, surface, order, max_unfinished } => {
                self.submit(account, (surface, order, max_unfinished), 1)
            }
            Act::Crowd { account, surface, order, max_unfinished, times } => {
                self.submit(Some(account), (surface, order, max_unfinished), times)
            }
            Act::Claim { max, max_references, lease, excluded } => self.claim(max, max_references, lease, &excluded),
            Act::Renew { leases, lease } => self.renew(&leases, lease),
            Act::Release { lease, delay } => self.release(lease, delay),
            Act::Retry { lease, delay, error } => self.retry(lease, delay, error),
            Act::Complete { lease, images } => self.complete(lease, images),
            Act::Fail { lease, error } => self.fail(lease, error),
            Act::Refuse { lease, error, rule } => self.refuse(lease, error, rule),
            Act::FailUnleased { task, error } => self.fail_unleased(task, error),
            Act::Reclaim { which, error } => self.reclaim(which, error),
            Act::Expire { cutoff, error } => self.expire(cutoff, error),
            Act::FailBeyond { max_references, error } => self.fail_over_reference_limit(max_references, error),
            Act::SetClock { to } => {
                self.processes[self.by].set_clock(to);
                Outcome::Quiet
            }
            Act::Restart => {
                self.processes[self.by] = Process::start(self.now());
                Outcome::Quiet
            }
            Act::Ping => Outcome::Quiet,
        }
    }

    /// The time of the process that takes the present step.
    pub fn now(&self) -> Timestamp {
        self.now_of(self.by)
    }

    pub fn now_of(&self, process: usize) -> Timestamp {
        self.processes[process].now()
    }

    /// The id of a row that the process creates now: the one that the store returned, or one that it could return.
    pub fn new_id(&mut self, said: Option<Id>) -> Id {
        let made = self.accounts.len() + self.keys.len() + self.tasks.len();
        let id = self.processes[self.by].new_id(said, made);
        let others = self.accounts.iter().map(|account| account.id).chain(self.tasks.iter().map(|task| task.id));
        assert!(others.chain(self.keys.iter().map(|key| key.key.id)).all(|other| other != id), "{id} is taken");
        id
    }

    /// The account of a step, if it names one.
    pub fn account(&self, index: Option<usize>) -> Option<usize> {
        chosen(index, &self.accounts)
    }

    /// The id of an account of a step, or one that no account has.
    pub fn account_id(&self, index: Option<usize>) -> Id {
        self.account(index).map_or(Id::floor(NOON), |index| self.accounts[index].id)
    }

    pub fn key(&self, index: Option<usize>) -> Option<usize> {
        chosen(index, &self.keys)
    }

    pub fn key_id(&self, index: Option<usize>) -> Id {
        self.key(index).map_or(Id::floor(NOON), |index| self.keys[index].key.id)
    }

    /// A key of an account, if it has any.
    pub fn key_of(&self, account: usize, index: Option<usize>) -> Option<usize> {
        let owner = self.accounts[account].id;
        let keys: Vec<_> = (0..self.keys.len()).filter(|key| self.keys[*key].key.account_id == owner).collect();
        chosen(index, &keys).map(|index| keys[index])
    }

    pub fn task(&self, index: Option<usize>) -> Option<usize> {
        chosen(index, &self.tasks)
    }

    pub fn task_id(&self, index: Option<usize>) -> Id {
        self.task(index).map_or(Id::floor(NOON), |index| self.tasks[index].id)
    }

    /// The lease of a step, or one of no task.
    pub fn lease(&self, held: Held) -> Lease {
        match chosen(Some(held.index), &self.leases).map(|index| self.leases[index]) {
            Some(lease) => Lease { epoch: lease.epoch + held.forged, ..lease },
            None => Lease { task_id: Id::floor(NOON), epoch: held.forged },
        }
    }

    /// The task that a lease is held on; `None` when it is lost.
    pub fn held(&self, held: Held) -> Option<usize> {
        let lease = self.lease(held);
        self.tasks
            .iter()
            .position(|task| task.id == lease.task_id && task.lease_until.is_some() && task.epoch == Some(lease.epoch))
    }
}

/// The index that a step means, which counts modulo the number of items.
fn chosen<T>(index: Option<usize>, items: &[T]) -> Option<usize> {
    index?.checked_rem(items.len())
}
