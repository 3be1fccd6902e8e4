//! Submits: one transaction charges and queues a task.

use tokio::try_join;

use super::driver::{Parameter, Transaction, json};
use super::ledger::{self, NewEntry};
use super::{Origin, Right, StartLimit, StoreError, Submission, budgets, calls};
use crate::failure::DbResult;
use tintype_domain::budget::Allowance;
use tintype_domain::ledger::{Debit, Part};
use tintype_domain::model::{EntryKind, Id, Status, Surface, Task};
use tintype_domain::request::GenerateRequest;

#[derive(Debug, Clone)]
pub(crate) struct PendingSubmit {
    pub(crate) account_id: Id,
    pub(crate) right: Option<Right>,
    pub(crate) origin: Origin,
    pub(crate) surface: Surface,
    pub(crate) request: GenerateRequest,
    /// 0: no limit.
    pub(crate) max_unfinished: u32,
    pub(crate) start: StartLimit,
}

impl PendingSubmit {
    /// The task that it makes.
    pub(crate) fn task(&self, id: Id) -> Task {
        Task {
            id,
            account_id: self.account_id,
            surface: self.surface,
            image_to_image: !self.request.reference_images.is_empty(),
            status: Status::Processing,
            updated_at: id.timestamp(),
        }
    }

    /// Charges and queues the task, unless a rule refuses that.
    pub(crate) async fn submit(&self, tx: &Transaction<'_>, id: Id) -> DbResult<Submission> {
        if !ledger::lock(tx, self.account_id).await? {
            // One that was deleted takes the rights of its keys and people with it.
            return Err(match self.right {
                Some(_) => StoreError::Revoked.into(),
                None => StoreError::other("there is no such account").into(),
            });
        }
        let (account, budget, repeats, is_allowed) = try_join!(
            biased;
            ledger::load_credits(tx, self.account_id, self.max_unfinished),
            self.budget(tx, id),
            self.repeats(tx),
            self.is_allowed(tx),
        )?;
        if !is_allowed {
            return Err(StoreError::Revoked.into());
        } else if repeats {
            return Ok(Submission::Repeated);
        } else if self.start.is_over(tx.elapsed()) {
            return Ok(Submission::NotStarted);
        }
        match account.charge(self.request.cost(), self.max_unfinished, budget, tx.now()) {
            Ok(debit) => self.write(tx, id, &debit).await,
            Err(refusal) => Ok(Submission::NotCharged(refusal)),
        }
    }

    /// The key's budget use in the period that the task will count towards.
    async fn budget(&self, tx: &Transaction<'_>, id: Id) -> DbResult<Option<Allowance>> {
        match self.origin.key_id {
            Some(key_id) => budgets::allowance_within(tx, key_id, id.timestamp()).await,
            None => Ok(None),
        }
    }

    /// Whether its call repeats one that has made a task.
    async fn repeats(&self, tx: &Transaction<'_>) -> DbResult<bool> {
        match self.origin.sent().filter(|(_, call)| call.may_repeat()) {
            Some((sender, call)) => calls::exists(tx, sender, &call).await,
            None => Ok(false),
        }
    }

    async fn is_allowed(&self, tx: &Transaction<'_>) -> DbResult<bool> {
        match &self.right {
            Some(right) => right.holds(tx, false).await,
            None => Ok(true),
        }
    }

    async fn write(&self, tx: &Transaction<'_>, id: Id, debit: &Debit) -> DbResult<Submission> {
        let (origin, cost, task) = (&self.origin, self.request.cost(), self.task(id));
        let charge = NewEntry { task_id: Some(id), key_id: origin.key_id, ..NewEntry::new(EntryKind::Charge, -cost) };
        let call = async {
            match origin.sent() {
                Some((sender, call)) => calls::record(tx, id, sender, &call).await,
                None => Ok(()),
            }
        };
        let unindexed = async {
            match self.surface {
                Surface::Web => tx.execute("INSERT INTO unindexed (task_id) VALUES ($1)", &[&id]).await,
                Surface::Api => Ok(0),
            }
        };
        let queue = self.queue(tx, id, &debit.parts);
        let debit = ledger::debit(tx, self.account_id, debit, &charge, task.updated_at);
        try_join!(biased; self.insert(tx, &task), queue, call, unindexed, debit)?;
        Ok(Submission::Accepted(task))
    }

    async fn insert(&self, tx: &Transaction<'_>, task: &Task) -> DbResult<u64> {
        let sql = "INSERT INTO tasks (id, account_id, surface, image_to_image, updated_at, n, aspect_ratio,
            reference_images, prompt, request_id, settings, person_id)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let request = &self.request;
        let (references, settings) = (json(&request.reference_images), request.settings.to_json());
        let parameters: [&dyn Parameter; 12] = [
            &task.id,
            &task.account_id,
            &task.surface,
            &task.image_to_image,
            &task.updated_at,
            &request.n,
            &request.aspect_ratio,
            &references,
            &request.prompt,
            &request.request_id,
            &settings,
            &self.origin.person_id,
        ];
        tx.execute(sql, &parameters).await
    }

    /// Queues the task with the parts of grants that it took, as JSON pairs of grant and credits; NULL if it took none.
    async fn queue(&self, tx: &Transaction<'_>, id: Id, parts: &[Part]) -> DbResult<u64> {
        let sql = "INSERT INTO queue (task_id, account_id, key_id, person_id, reference_count, taken, wants_previews,
            engine) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        let Origin { key_id, person_id, call, engine, .. } = &self.origin;
        let references = self.request.reference_images.len();
        let taken: Vec<(i64, i64)> = parts.iter().map(|part| (part.grant, part.credits)).collect();
        let taken = (!taken.is_empty()).then(|| json(&taken));
        let wants_previews = call.is_some_and(|call| call.wants_previews);
        let engine = engine.as_deref().unwrap_or_default();
        let parameters: [&dyn Parameter; 8] =
            [&id, &self.account_id, key_id, person_id, &references, &taken, &wants_previews, &engine];
        tx.execute(sql, &parameters).await
    }
}
