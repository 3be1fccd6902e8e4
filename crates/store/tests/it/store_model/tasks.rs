//! Submits and endings of tasks in the model.

use tintype_domain::model::{EntryKind, Id, Status, Surface, Task};
use tintype_store::Submission;
use tintype_system::clock::Timestamp;

use super::act::Order;
use super::model::{Model, Ticket};
use super::outcome::Outcome;

impl Model {
    /// The id of a row that a process creates now.
    pub fn new_id(&mut self, by: usize, said: Option<Id>) -> Id {
        let made = self.accounts.len() + self.keys.len() + self.tasks.len();
        let id = self.processes[by].new_id(said, made);
        let others = self.accounts.iter().map(|account| account.id).chain(self.tasks.iter().map(|task| task.id));
        assert!(others.chain(self.keys.iter().map(|key| key.key.id)).all(|other| other != id), "{id} is taken");
        id
    }

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

    pub fn submit(
        &mut self,
        by: usize,
        account: Option<usize>,
        surface: Surface,
        order: Order,
        max_unfinished: u32,
        said: Option<&Outcome>,
    ) -> Outcome {
        self.processes[by].may_use_an_id();
        let Some(account) = self.account(account) else { return Outcome::Refused };
        let answers = said;
        let said = said.and_then(|said| said.task_ids().first().copied());
        let answers = answers.map_or(&[][..], Outcome::submissions);
        Outcome::Submission(self.submit_one(by, account, (surface, order, max_unfinished), said, answers))
    }

    /// The answers to a crowd are sorted: accepted tasks by id, then refusals.
    pub fn crowd(
        &mut self,
        by: usize,
        account: usize,
        submit: (Surface, Order, u32),
        times: usize,
        said: Option<&Outcome>,
    ) -> Outcome {
        self.processes[by].may_use_an_id();
        let Some(account) = self.account(Some(account)) else { return Outcome::Crowd(Vec::new()) };
        let answers = said.map_or(&[][..], Outcome::submissions);
        let said = said.map(Outcome::task_ids).unwrap_or_default();
        let one = |turn: usize| self.submit_one(by, account, submit, said.get(turn).copied(), answers);
        Outcome::Crowd((0..times).map(one).collect())
    }

    fn submit_one(
        &mut self,
        by: usize,
        account: usize,
        (surface, order, max_unfinished): (Surface, Order, u32),
        said: Option<Id>,
        answers: &[Submission],
    ) -> Submission {
        let holder = &self.accounts[account];
        let cost = 2 * i64::from(order.n);
        if max_unfinished != 0 && holder.unfinished >= max_unfinished as usize {
            return Submission::TooManyUnfinished;
        }
        let (now, key) = (self.now(by), self.key_of(account, order.key));
        let spendable = self.spendable(account, now);
        // The task would count to the period of its id, which may be ahead of the clock.
        let over = |at: Timestamp| {
            let over = key.and_then(|key| self.allowance(key, at)).filter(|allowance| allowance.left() < cost)?;
            let (left, resets_at) = (over.left(), over.resets_at);
            Some(Submission::OverBudget { available: spendable.min(left), left, resets_at })
        };
        let refused = match said {
            Some(id) => over(id.timestamp()),
            None => {
                let possible: Vec<_> = self.processes[by].id_times().into_iter().map(over).collect();
                let poor = Submission::InsufficientCredits { available: spendable };
                let answered = possible.iter().find(|over| answers.contains(over.as_ref().unwrap_or(&poor)));
                answered.or(possible.first()).cloned().flatten()
            }
        };
        if let Some(refused) = refused {
            return refused;
        }
        if spendable < cost {
            return Submission::InsufficientCredits { available: spendable };
        }
        let id = self.new_id(by, said);
        let index = self.tasks.len();
        let taken = self.spend(account, cost, now);
        self.tasks.push(Ticket {
            id,
            account,
            key,
            surface,
            request: order.request(),
            status: Status::Processing,
            updated_at: id.timestamp(),
            ended: None,
            epoch: None,
            lease_until: None,
            ready_at: None,
            delayed_until: None,
            lost_leases: 0,
            taken,
        });
        self.record(account, EntryKind::Charge, -cost, id.timestamp()).task = Some(index);
        self.accounts[account].unfinished += 1;
        Submission::Accepted(self.shown_task(index))
    }

    /// Ends a task that is processing.
    pub fn end(&mut self, index: usize, status: Status, now: Timestamp) {
        let task = &mut self.tasks[index];
        task.updated_at = now.max(task.id.timestamp());
        assert!(task.ended.replace((status.clone(), task.updated_at)).is_none(), "{} ended twice", task.id);
        task.status = status;
        task.lease_until = None;
        let (account, cost) = (task.account, 2 * i64::from(task.request.n));
        if matches!(task.status, Status::Failed(_)) {
            self.record(account, EntryKind::Refund, cost, now).task = Some(index);
            self.give_back(index, now);
        }
        self.tasks[index].taken.clear();
        self.accounts[account].unfinished -= 1;
    }
}
