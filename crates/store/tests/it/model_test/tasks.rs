//! Submits and endings of tasks in the model.

use tintype_domain::event::EventType;
use tintype_domain::model::{EntryKind, Status, Surface, Task};
use tintype_store::Submission;
use tintype_system::clock::Timestamp;

use super::act::Order;
use super::model::{Model, Ticket};
use super::outcome::Outcome;

impl Model {
    /// The task as the store returns it.
    pub fn shown_task(&self, index: usize) -> Task {
        let task = &self.tasks[index];
        Task {
            id: task.id,
            account_id: self.accounts[task.account].id,
            surface: task.surface,
            image_to_image: !task.request.reference_images.is_empty(),
            status: task.status.clone(),
            updated_at: task.updated_at,
        }
    }

    pub fn submit(&mut self, account: Option<usize>, submit: (Surface, Order, u32), times: usize) -> Outcome {
        self.processes[self.by].may_use_an_id();
        let Some(account) = self.account(account) else { return Outcome::Refused };
        Outcome::Submissions((0..times).map(|turn| self.submit_one(account, submit, turn)).collect())
    }

    fn submit_one(
        &mut self,
        account: usize,
        (surface, order, max_unfinished): (Surface, Order, u32),
        turn: usize,
    ) -> Submission {
        let said = match self.said.submissions().get(turn) {
            Some(Submission::Accepted(task)) => Some(task.id),
            _ => None,
        };
        let (request, key) = (order.request(), self.key_of(account, order.key));
        let (credits, now) = (self.credits_of(account), self.now());
        let decide = |at: Timestamp| {
            let budget = key.and_then(|key| self.allowance(key, at));
            credits.charge(request.cost(), max_unfinished, budget, now).map_err(Submission::NotCharged)
        };
        // The task would count to the period of its id, which may be ahead of the clock. A refusal shows no id.
        let times = said.map_or_else(|| self.processes[self.by].id_times(), |id| vec![id.timestamp()]);
        let mut decisions: Vec<_> = times.into_iter().map(decide).collect();
        let is_said = |refusal: &Submission| self.said.submissions().contains(refusal);
        let answered = decisions.iter().position(|decision| decision.as_ref().is_err_and(is_said));
        let debit = match decisions.swap_remove(answered.unwrap_or(0)) {
            Ok(debit) => debit,
            Err(refusal) => return refusal,
        };
        let is_followed = said.is_some() || self.said == Outcome::Quiet;
        assert!(is_followed, "accepted by the ledger, but not by the store: {:?}", self.said);
        let id = self.new_id(said);
        let index = self.tasks.len();
        self.tasks.push(Ticket {
            id,
            account,
            key,
            surface,
            request,
            status: Status::Processing,
            updated_at: id.timestamp(),
            epoch: None,
            lease_until: None,
            ready_at: None,
            delayed_until: None,
            lost_leases: 0,
            taken: debit.parts.clone(),
        });
        self.debit(account, EntryKind::Charge, &debit, id.timestamp()).task = Some(index);
        if said.is_some() {
            self.assert_within_limits(index, max_unfinished);
        }
        Submission::Accepted(self.shown_task(index))
    }

    /// Ends a task that is processing.
    pub fn end(&mut self, index: usize, status: Status) {
        let now = self.now();
        let task = &mut self.tasks[index];
        assert!(!task.status.is_terminal(), "{} ends twice", task.id);
        task.updated_at = now.max(task.id.timestamp());
        task.lease_until = None;
        task.status = status;
        let kind = match task.status {
            Status::Failed(_) => EventType::TaskFailed,
            _ => EventType::TaskCompleted,
        };
        let (account, surface, at) = (task.account, task.surface, task.updated_at);
        if kind == EventType::TaskFailed {
            self.refund(index, now);
        }
        if surface == Surface::Api {
            self.tell(account, kind, Some(index), at);
        }
    }
}
