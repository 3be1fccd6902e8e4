//! Claims and writes under a lease in the model.

use std::collections::BTreeMap;
use std::time::Duration;

use tintype_domain::event::EventType;
use tintype_domain::model::{FailureCause, Id, Status, TaskFailure, TaskRef};
use tintype_store::{
    Claim, LONGEST_DELAY, LONGEST_LEASE, Lease, LeaseWrite, MAX_LOST_LEASES, Reclaim, Reclaimed, Refused, Retry,
    StrikeRule,
};
use tintype_system::clock::Timestamp;

use super::act::{Held, file_names, message};
use super::model::{Model, Ticket};
use super::outcome::Outcome;

fn failed(cause: FailureCause, error: u8) -> Status {
    Status::Failed(TaskFailure { cause, message: message(error) })
}

impl Model {
    /// The oldest claimable task of each account with up to `max_references` references.
    fn claimable(&self, now: Timestamp, max_references: u32) -> BTreeMap<Id, usize> {
        let mut oldest = BTreeMap::new();
        for (index, task) in self.tasks.iter().enumerate() {
            let waits = task.status == Status::Processing && task.lease_until.is_none();
            let fits = task.request.reference_images.len() <= max_references as usize;
            // One that is postponed for longer than any task is was postponed before the clock was set back.
            let latest = now.saturating_add(LONGEST_DELAY);
            if waits && fits && task.ready_at.is_none_or(|ready_at| ready_at <= now || ready_at > latest) {
                let first = oldest.entry(self.accounts[task.account].id).or_insert(index);
                if task.id < self.tasks[*first].id {
                    *first = index;
                }
            }
        }
        oldest
    }

    pub fn claim(&mut self, max: usize, max_references: u32, lease: Duration, excluded: &[usize]) -> Outcome {
        let now = self.now();
        let excluded: Vec<Id> = excluded.iter().map(|account| self.account_id(Some(*account))).collect();
        let said: Vec<Lease> = self.said.claimed().iter().map(|claim| claim.lease).collect();
        let mut claims = Vec::new();
        for turn in 0..max {
            let mut claimable = self.claimable(now, max_references);
            claimable.retain(|account, _| !excluded.contains(account));
            let Some(foreseen) = self.processes[self.by].next_in_turn(max_references, &claimable) else { break };
            let said = said.get(turn);
            let index = match said {
                Some(said) => self.tasks.iter().position(|task| task.id == said.task_id).expect("a task that exists"),
                None => claimable[&foreseen],
            };
            let task = &self.tasks[index];
            let (id, account, before) = (task.id, self.accounts[task.account].id, task.epoch.unwrap_or(0));
            assert_eq!(claimable.get(&account), Some(&index), "{id} is not the oldest that waits of its account");
            let epoch = said.map_or(before + 1, |said| said.epoch);
            assert!(epoch > before, "the epoch of {id} did not rise above {before}: {epoch}");
            self.processes[self.by].serve(max_references, account, &claimable);
            self.processes[1 - self.by].served_elsewhere(account);
            let task = &mut self.tasks[index];
            task.epoch = Some(epoch);
            task.lease_until = Some(now.saturating_add(lease));
            task.ready_at = None;
            let lease = Lease { task_id: id, epoch };
            self.leases.push(lease);
            let TaskRef { account_id, surface, .. } = self.ended(index);
            let request = self.tasks[index].request.clone();
            claims.push(Claim { lease, account_id, surface, request, wants_previews: false });
        }
        Outcome::Claims(claims)
    }

    pub fn renew(&mut self, leases: &[Held], lease: Duration) -> Outcome {
        let until = self.now().saturating_add(lease);
        let mut lost = Vec::new();
        for held in leases {
            match self.held(*held) {
                Some(index) => self.tasks[index].lease_until = Some(until),
                None => lost.push(self.lease(*held)),
            }
        }
        Outcome::Lost(lost)
    }

    pub fn release(&mut self, lease: Held, delay: Duration) -> Outcome {
        let Some(index) = self.held(lease) else { return Outcome::Write(LeaseWrite::Lost) };
        self.requeue(index, delay);
        Outcome::Write(LeaseWrite::Done)
    }

    pub fn retry(&mut self, lease: Held, delay: Duration, error: u8) -> Outcome {
        Outcome::Retry(match self.held(lease) {
            Some(index) => self.lose(index, delay, error),
            None => Retry::Lost,
        })
    }

    /// Takes the lease of a task away.
    fn requeue(&mut self, index: usize, delay: Duration) {
        let ready_at = Some(self.now().saturating_add(delay.min(LONGEST_DELAY))).filter(|_| !delay.is_zero());
        let task = &mut self.tasks[index];
        task.lease_until = None;
        task.ready_at = ready_at;
        task.delayed_until = ready_at.or(task.delayed_until);
    }

    fn lose(&mut self, index: usize, delay: Duration, error: u8) -> Retry {
        self.requeue(index, delay);
        self.tasks[index].lost_leases += 1;
        if self.tasks[index].lost_leases < MAX_LOST_LEASES {
            return Retry::Queued;
        }
        self.end(index, failed(FailureCause::Lost, error));
        Retry::Failed
    }

    pub fn complete(&mut self, lease: Held, images: u8) -> Outcome {
        let Some(index) = self.held(lease) else { return Outcome::Write(LeaseWrite::Lost) };
        if images == 0 {
            return Outcome::Refused;
        }
        self.end(index, Status::Completed(file_names(images)));
        Outcome::Write(LeaseWrite::Done)
    }

    pub fn fail(&mut self, lease: Held, error: u8) -> Outcome {
        let Some(index) = self.held(lease) else { return Outcome::Write(LeaseWrite::Lost) };
        self.end(index, failed(FailureCause::Engine, error));
        Outcome::Write(LeaseWrite::Done)
    }

    pub fn refuse(&mut self, lease: Held, error: u8, rule: Option<StrikeRule>) -> Outcome {
        let Some(index) = self.held(lease) else { return Outcome::Refusal(None) };
        self.end(index, failed(FailureCause::Policy, error));
        let struck = self.tasks[index].key.zip(rule).filter(|(key, rule)| self.strike(*key, *rule));
        if struck.is_some() {
            self.tell(self.tasks[index].account, EventType::KeySuspended, None, self.now());
        }
        let suspended_key = struck.map(|(key, _)| self.keys[key].key.id);
        Outcome::Refusal(Some(Refused { suspended_key, suspended_person: None }))
    }

    pub fn fail_unleased(&mut self, task: Option<usize>, error: u8) -> Outcome {
        let processing = self.task(task).filter(|index| !self.tasks[*index].status.is_terminal());
        if let Some(index) = processing {
            self.end(index, failed(FailureCause::Operator, error));
        }
        Outcome::Failed(processing.map(|index| self.ended(index)))
    }

    /// The number of tasks of an account that have not ended.
    pub fn unfinished_of(&self, account: usize) -> u32 {
        self.unfinished(|task| task.account == account).len() as u32
    }

    /// The tasks that have not ended and meet a condition, in the order of their ids, in which sweeps refund them.
    fn unfinished(&self, condition: impl Fn(&Ticket) -> bool) -> Vec<usize> {
        let meets = |index: &usize| !self.tasks[*index].status.is_terminal() && condition(&self.tasks[*index]);
        let mut all: Vec<usize> = (0..self.tasks.len()).filter(meets).collect();
        all.sort_by_key(|index| self.tasks[*index].id);
        all
    }

    pub fn reclaim(&mut self, which: Reclaim, error: u8) -> Outcome {
        let now = self.now();
        let is_lost = |until| which == Reclaim::All || until <= now || until > now.saturating_add(LONGEST_LEASE);
        let mut reclaimed = Reclaimed::default();
        for index in self.unfinished(|task| task.lease_until.is_some_and(is_lost)) {
            match self.lose(index, Duration::ZERO, error) {
                Retry::Failed => reclaimed.failed.push(self.ended(index)),
                _ => reclaimed.queued += 1,
            }
        }
        Outcome::Reclaimed(reclaimed)
    }

    pub fn expire(&mut self, cutoff: Timestamp, error: u8) -> Outcome {
        self.fail_all(self.unfinished(|task| task.id.timestamp() <= cutoff), FailureCause::Expired, error)
    }

    pub fn fail_over_reference_limit(&mut self, max_references: u32, error: u8) -> Outcome {
        let is_beyond = |task: &Ticket| task.request.reference_images.len() > max_references as usize;
        let beyond = self.unfinished(|task| task.lease_until.is_none() && is_beyond(task));
        self.fail_all(beyond, FailureCause::TooManyReferences(max_references), error)
    }

    fn fail_all(&mut self, tasks: Vec<usize>, cause: FailureCause, error: u8) -> Outcome {
        for index in &tasks {
            self.end(*index, failed(cause, error));
        }
        Outcome::Expired(tasks.into_iter().map(|index| self.ended(index)).collect())
    }

    /// The record that a write returns for a task that it ends.
    fn ended(&self, index: usize) -> TaskRef {
        let task = &self.tasks[index];
        TaskRef { id: task.id, account_id: self.accounts[task.account].id, surface: task.surface }
    }
}
