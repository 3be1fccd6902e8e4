//! Submits: one transaction charges and queues a task.
//!
//! Submits of an account wait for each other in this process before they take a connection, so that an account with
//! many of them leaves the others to its neighbours.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as Gate, OwnedMutexGuard};
use tokio::try_join;

use super::connection::{Database, Parameter, Transaction};
use super::{budgets, calls, columns, ledger};
use crate::failure::{Failure, words};
use crate::ledger::{NewEntry, to_json};
use crate::{Origin, Result, StartLimit, StoreError, Submission, driver};
use tintype_domain::budget::Allowance;
use tintype_domain::ledger::Debit;
use tintype_domain::model::{EntryKind, Id, Status, Surface, Task};
use tintype_domain::request::GenerateRequest;
use tintype_system::fault::{Effect, Faults, Point};

/// How long the database is asked what became of a submit without an answer, and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(200);

/// A task to submit.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) account_id: Id,
    pub(super) origin: Origin,
    pub(super) surface: Surface,
    pub(super) request: GenerateRequest,
    /// 0: no limit.
    pub(super) max_unfinished: u32,
    pub(super) start: StartLimit,
}

/// The submits of this process.
#[derive(Debug, Clone)]
pub(super) struct Submitter {
    pub(super) database: Arc<Database>,
    pub(super) faults: Faults,
    /// The accounts with a submit under way.
    gates: Arc<Mutex<HashMap<Id, Arc<Gate<()>>>>>,
}

impl Submitter {
    pub(super) fn new(database: Arc<Database>, faults: Faults) -> Self {
        Self { database, faults, gates: Arc::default() }
    }

    /// Submits a task. Once it has a place, it runs to its end although its caller may hang up.
    pub(super) async fn submit(&self, order: Order) -> Result<Submission> {
        let Some(place) = self.place(&order).await else { return Ok(Submission::NotStarted) };
        let submitter = self.clone();
        let submitted = tokio::spawn(async move { submitter.run(&order, place).await }).await;
        submitted.unwrap_or_else(|panic| Err(StoreError::Unknown(format!("a submit panicked: {panic}").into())))
    }

    async fn run(&self, order: &Order, place: SubmitTurn) -> Result<Submission> {
        let id = self.database.new_id();
        let failure = loop {
            if order.is_over(&self.database) {
                return Ok(Submission::NotStarted);
            }
            match self.send(order, id).await {
                Ok(submission) => return Ok(submission),
                // Another process charges or refunds the account.
                Err(Failure::Busy(error)) => tracing::debug!(%error, "an account is locked; retrying its submit"),
                Err(failure) => break failure,
            }
        };
        drop(place);
        match failure {
            Failure::Unknown(error) => self.find_out(order, id, error).await,
            failure => Err(failure.into()),
        }
    }

    /// Waits for the submits of the account that came before; `None` if this one must not start any more.
    async fn place(&self, order: &Order) -> Option<SubmitTurn> {
        let gate =
            self.gates.lock().unwrap_or_else(PoisonError::into_inner).entry(order.account_id).or_default().clone();
        let mut place = SubmitTurn { submitter: self.clone(), account_id: order.account_id, guard: None };
        let limit = order.start.deadline.saturating_sub(self.database.clock.elapsed());
        let guard = tokio::select! {
            guard = self.database.within(limit, gate.lock_owned()) => guard?,
            () = order.start.hung_up.cancelled() => return None,
        };
        place.guard = Some(guard);
        Some(place)
    }

    async fn send(&self, order: &Order, id: Id) -> std::result::Result<Submission, Failure> {
        let passed = self.faults.pass(Point::before(Effect::Commit)).await;
        passed.map_err(|error| Failure::Refused(error.into()))?;
        let submission = self.database.transaction(async |begun| order.submit(&self.database, begun, id).await).await?;
        let passed = self.faults.pass(Point::after(Effect::Commit)).await;
        passed.map_err(|error| Failure::Unknown(error.into()))?;
        Ok(submission)
    }

    /// Finds out what became of a submit whose answer was lost. It locked the account before it sent anything that
    /// lasts, so a transaction that locks the account later sees its task, or that never exists.
    async fn find_out(&self, order: &Order, id: Id, error: StoreError) -> Result<Submission> {
        tracing::warn!(task = %id, %error, "the response to a submit was lost; checking whether its task exists");
        let look = async |begun: &Transaction<'_>| {
            ledger::lock_any(begun, order.account_id).await?;
            Ok(begun.query_opt("SELECT 1 FROM tasks WHERE id = $1", &[&id]).await?.is_some())
        };
        let found = async {
            loop {
                match self.database.transaction(look).await.map_err(StoreError::from) {
                    Ok(exists) => return exists,
                    Err(error) => {
                        tracing::warn!(task = %id, %error, "cannot check whether a submit was stored; retrying")
                    }
                }
                self.database.sleep(PAUSE).await;
            }
        };
        match self.database.within(PATIENCE, found).await {
            Some(true) => Ok(Submission::Accepted(order.task(id))),
            Some(false) => Err(error),
            None => Err(StoreError::Unknown(words(error))),
        }
    }
}

/// The only submit of an account that may take a connection.
#[derive(Debug)]
struct SubmitTurn {
    submitter: Submitter,
    account_id: Id,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for SubmitTurn {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut gates = self.submitter.gates.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else holds the gate or waits for it.
        if gates.get(&self.account_id).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            gates.remove(&self.account_id);
        }
    }
}

impl Order {
    fn is_over(&self, database: &Database) -> bool {
        self.start.is_over(database.clock.elapsed())
    }

    fn task(&self, id: Id) -> Task {
        Task {
            id,
            account_id: self.account_id,
            surface: self.surface,
            image_to_image: !self.request.reference_images.is_empty(),
            status: Status::Processing,
            updated_at: id.timestamp(),
        }
    }

    async fn submit(
        &self,
        database: &Database,
        begun: &Transaction<'_>,
        id: Id,
    ) -> std::result::Result<Submission, Failure> {
        if !ledger::lock(begun, self.account_id).await? {
            // One that was deleted takes the rights of its keys and people with it.
            return Err(match self.origin.right {
                Some(_) => StoreError::Revoked.into(),
                None => StoreError::Other("there is no such account".into()).into(),
            });
        }
        let (account, budget, repeats, is_allowed) = try_join!(
            biased;
            ledger::holding(database, begun, self.account_id, self.max_unfinished),
            self.budget(begun, id),
            self.repeats(database, begun),
            self.is_allowed(database, begun),
        )?;
        if !is_allowed {
            return Err(StoreError::Revoked.into());
        } else if repeats {
            return Ok(Submission::Repeated);
        } else if self.is_over(database) {
            return Ok(Submission::NotStarted);
        }
        match account.charge(self.request.cost(), self.max_unfinished, budget, database.now()) {
            Ok(debit) => self.write(database, begun, id, &debit).await,
            Err(refusal) => Ok(refusal.into()),
        }
    }

    /// The use of the budget of the key in the period to which the task will count.
    async fn budget(&self, begun: &Transaction<'_>, id: Id) -> std::result::Result<Option<Allowance>, Failure> {
        match self.origin.key_id {
            Some(key_id) => budgets::allowance_within(begun, key_id, id.timestamp()).await,
            None => Ok(None),
        }
    }

    /// Whether its call repeats one that has made a task.
    async fn repeats(&self, database: &Database, begun: &Transaction<'_>) -> std::result::Result<bool, Failure> {
        match self.origin.key_id.zip(self.origin.call).filter(|(_, call)| call.may_repeat()) {
            Some((key_id, call)) => calls::exists(begun, key_id, &call, database.now()).await,
            None => Ok(false),
        }
    }

    async fn is_allowed(&self, database: &Database, begun: &Transaction<'_>) -> std::result::Result<bool, Failure> {
        match &self.origin.right {
            Some(right) => right.holds(&driver::Transaction::Postgres(database, begun), false).await,
            None => Ok(true),
        }
    }

    async fn write(
        &self,
        database: &Database,
        begun: &Transaction<'_>,
        id: Id,
        debit: &Debit,
    ) -> std::result::Result<Submission, Failure> {
        let (origin, request, task) = (&self.origin, &self.request, self.task(id));
        let charge =
            NewEntry { task_id: Some(id), key_id: origin.key_id, ..NewEntry::new(EntryKind::Charge, -request.cost()) };
        let insert = async {
            let sql = "INSERT INTO tasks (id, account_id, surface, image_to_image, updated_at, n, aspect_ratio,
                reference_images, prompt, request_id, settings, person_id)
                VALUES ($1, $2, $3, $4, $5, $6::bigint, $7, $8, $9, $10, $11, $12)";
            let settings = request.settings.to_json();
            let (n, references) = (i64::from(request.n), columns::to_json(&request.reference_images));
            let (surface, ratio) = (self.surface.as_str(), request.aspect_ratio.as_str());
            let parameters: [Parameter<'_>; 12] = [
                &id,
                &self.account_id,
                &surface,
                &task.image_to_image,
                &task.updated_at,
                &n,
                &ratio,
                &references,
                &request.prompt,
                &request.request_id,
                &settings,
                &origin.person_id,
            ];
            Ok::<_, Failure>(begun.execute(sql, &parameters).await?)
        };
        let queue = async {
            let sql = "INSERT INTO queue (task_id, account_id, key_id, person_id, reference_count, taken,
                wants_previews, engine) VALUES ($1, $2, $3, $4, $5::bigint, $6, $7, $8)";
            let references = request.reference_images.len() as i64;
            let (taken, engine) = (to_json(&debit.parts), origin.engine.as_deref().unwrap_or_default());
            let parameters: [Parameter<'_>; 8] = [
                &id,
                &self.account_id,
                &origin.key_id,
                &origin.person_id,
                &references,
                &taken,
                &origin.wants_previews(),
                &engine,
            ];
            Ok(begun.execute(sql, &parameters).await?)
        };
        let call = async {
            match origin.key_id.zip(origin.call) {
                Some((key_id, call)) => calls::record(begun, id, key_id, &call).await,
                None => Ok(()),
            }
        };
        let unindexed = async {
            match self.surface {
                Surface::Web => Ok(begun.execute("INSERT INTO unindexed (task_id) VALUES ($1)", &[&id]).await?),
                Surface::Api => Ok(0),
            }
        };
        let debit = ledger::debit(database, begun, self.account_id, debit, &charge, task.updated_at);
        try_join!(biased; insert, queue, call, unindexed, debit)?;
        Ok(Submission::Accepted(task))
    }
}
