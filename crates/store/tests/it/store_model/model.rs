//! The model: the content of a store in plain collections.

use tintype_domain::key::{ApiKey, KeyHash};
use tintype_domain::model::{Id, Status, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::Lease;
use tintype_system::clock::Timestamp;

use super::act::{Act, Held, Step};
use super::choice::Taste;
use super::entries::Entry;
use super::grants::Grant;
use super::outcome::Outcome;
use super::process::Process;
use tintype_rigs::database::NOON;

#[derive(Debug, Clone)]
pub struct Model {
    pub taste: Taste,
    pub processes: [Process; 2],
    pub accounts: Vec<Holder>,
    pub keys: Vec<Key>,
    pub tasks: Vec<Ticket>,
    /// Every lease that a claim returned.
    pub leases: Vec<Lease>,
    pub entries: Vec<Entry>,
    /// In the order of the entries that brought their credits.
    pub grants: Vec<Grant>,
    /// Number of steps taken.
    pub steps: usize,
}

#[derive(Debug, Clone)]
pub struct Holder {
    pub id: Id,
    pub name: String,
    pub balance: i64,
    pub unfinished: usize,
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
    /// Its end and the time of it, written once.
    pub ended: Option<(Status, Timestamp)>,
    /// The epoch of its last lease.
    pub epoch: Option<i64>,
    /// The end of its lease, while it is leased.
    pub lease_until: Option<Timestamp>,
    /// The end of its delay; without a delay it can be claimed at once.
    pub ready_at: Option<Timestamp>,
    /// The end of its last delay, which must have no effect after the next claim.
    pub delayed_until: Option<Timestamp>,
    pub lost_leases: u32,
    /// The grants from which it took credits, and their number.
    pub taken: Vec<(usize, i64)>,
}

impl Model {
    pub fn new(taste: Taste) -> Self {
        let processes = [Process::start(NOON), Process::start(taste.other_clock)];
        Self {
            taste,
            processes,
            accounts: Vec::new(),
            keys: Vec::new(),
            tasks: Vec::new(),
            leases: Vec::new(),
            entries: Vec::new(),
            grants: Vec::new(),
            steps: 0,
        }
    }

    /// Takes a step and returns the expected outcome. Choices that the rules leave open, such as new ids and the order
    /// of accounts, follow the store's answer `said` if the rules allow it; without a store the model chooses.
    pub fn take(&mut self, step: &Step, said: Option<&Outcome>) -> Outcome {
        self.steps += 1;
        let outcome = match &step.act {
            Act::CreateAccount { .. }
            | Act::CreateFirstAccount { .. }
            | Act::CreateKey { .. }
            | Act::ChangeKey { .. }
            | Act::RotateKey { .. }
            | Act::TouchKeys { .. }
            | Act::Grant { .. }
            | Act::Take { .. }
            | Act::Lapse => self.administer(step.by, &step.act, said),
            Act::SetClock { to } => {
                self.processes[step.by].set_clock(*to);
                Outcome::Quiet
            }
            Act::Restart => {
                self.processes[step.by] = Process::start(self.now(step.by));
                Outcome::Quiet
            }
            Act::Ping => Outcome::Quiet,
            _ => self.work(step.by, &step.act, said),
        };
        self.assert_sound();
        outcome
    }

    fn administer(&mut self, by: usize, act: &Act, said: Option<&Outcome>) -> Outcome {
        match act {
            Act::CreateAccount { name, credits } => self.create_account(by, *name, *credits, said),
            Act::CreateFirstAccount { name, credits, key } => {
                self.create_first_account(by, *name, *credits, *key, said)
            }
            Act::CreateKey { account, key } => self.create_key(by, *account, *key, said),
            Act::ChangeKey { key, change } => self.change_key(by, *key, *change),
            Act::RotateKey { key, secret, overlap } => self.rotate_key(by, *key, *secret, *overlap, said),
            Act::TouchKeys { uses } => self.touch_keys(uses),
            Act::Grant { account, amount, note, life } => self.grant(by, *account, *amount, *note, *life),
            Act::Take { account, amount } => self.take_credits(by, *account, *amount),
            Act::Lapse => self.lapse(by),
            _ => unreachable!("{act:?} is work"),
        }
    }

    fn work(&mut self, by: usize, act: &Act, said: Option<&Outcome>) -> Outcome {
        match act {
            Act::Submit { account, surface, order, max_unfinished } => {
                self.submit(by, *account, *surface, *order, *max_unfinished, said)
            }
            Act::Crowd { account, surface, order, max_unfinished, times } => {
                self.crowd(by, *account, (*surface, *order, *max_unfinished), *times, said)
            }
            Act::Claim { max, max_references, lease, passed_over } => {
                self.claim(by, *max, *max_references, *lease, passed_over, said)
            }
            Act::Renew { leases, lease } => self.renew(by, leases, *lease),
            Act::Release { lease, delay } => self.release(by, *lease, *delay),
            Act::Retry { lease, delay, error } => self.retry(by, *lease, *delay, *error),
            Act::Complete { lease, images } => self.complete(by, *lease, *images),
            Act::Fail { lease, error } => self.fail(by, *lease, *error),
            Act::Refuse { lease, error, rule } => self.refuse(by, *lease, *error, *rule),
            Act::FailUnleased { task, error } => self.fail_unleased(by, *task, *error),
            Act::Rescue { which, error } => self.rescue(by, *which, *error),
            Act::Expire { cutoff, error } => self.expire(by, *cutoff, *error),
            Act::FailBeyond { max_references, error } => self.fail_beyond(by, *max_references, *error),
            _ => unreachable!("{act:?} is no work"),
        }
    }

    pub fn now(&self, by: usize) -> Timestamp {
        self.processes[by].now()
    }

    /// The account of a step, if it names one.
    pub fn account(&self, index: Option<usize>) -> Option<usize> {
        Some(index? % self.accounts.len().max(1)).filter(|index| *index < self.accounts.len())
    }

    /// The id of an account of a step, or one that no account has.
    pub fn account_id(&self, index: Option<usize>) -> Id {
        self.account(index).map_or(Id::floor(NOON), |index| self.accounts[index].id)
    }

    pub fn key(&self, index: Option<usize>) -> Option<usize> {
        Some(index? % self.keys.len().max(1)).filter(|index| *index < self.keys.len())
    }

    pub fn key_id(&self, index: Option<usize>) -> Id {
        self.key(index).map_or(Id::floor(NOON), |index| self.keys[index].key.id)
    }

    /// A key of an account, if it has any.
    pub fn key_of(&self, account: usize, index: Option<usize>) -> Option<usize> {
        let owner = self.accounts[account].id;
        let keys: Vec<_> = (0..self.keys.len()).filter(|key| self.keys[*key].key.account_id == owner).collect();
        keys.get(index? % keys.len().max(1)).copied()
    }

    pub fn task(&self, index: Option<usize>) -> Option<usize> {
        Some(index? % self.tasks.len().max(1)).filter(|index| *index < self.tasks.len())
    }

    pub fn task_id(&self, index: Option<usize>) -> Id {
        self.task(index).map_or(Id::floor(NOON), |index| self.tasks[index].id)
    }

    /// The lease of a step, or one of no task.
    pub fn lease(&self, held: Held) -> Lease {
        match self.leases.get(held.index % self.leases.len().max(1)) {
            Some(lease) => Lease { epoch: lease.epoch + held.forged, ..*lease },
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
