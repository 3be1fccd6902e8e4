//! Submits: one transaction charges and queues a task.
//!
//! An account's submits wait for each other in this process before they take a connection, so that a busy account
//! leaves connections to others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::PostgresStore;
use crate::driver::Transaction;
use crate::failure::{DbError, DbResult, cause_of};
use crate::submit::PendingSubmit;
use crate::{Cause, Result, StoreError, Submission, ledger};
use tintype_domain::model::Id;
use tintype_system::fault::{Effect, Point};
use tintype_system::locked::Locked as _;

/// Time limit for finding out whether a submit without an answer took effect, and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(200);

/// A lock for each account with a submit in progress.
pub(super) type Turns = Mutex<HashMap<Id, Arc<Turn<()>>>>;

impl PostgresStore {
    /// Submits a task. Once it has its turn, it runs to its end although its caller may hang up.
    pub(crate) async fn submit(self: &Arc<Self>, pending: PendingSubmit) -> Result<Submission> {
        let Some(turn) = self.acquire_turn(&pending).await else { return Ok(Submission::NotStarted) };
        let store = self.clone();
        let submitted = tokio::spawn(async move { store.run(&pending, turn).await }).await;
        submitted.unwrap_or_else(|panic| Err(StoreError::Unknown(Cause::new(format!("a submit panicked: {panic}")))))
    }

    async fn run(&self, pending: &PendingSubmit, turn: SubmitTurn) -> Result<Submission> {
        let id = self.database.new_id();
        let failure = loop {
            if pending.start.is_over(self.database.clock.elapsed()) {
                return Ok(Submission::NotStarted);
            }
            match self.send(pending, id).await {
                Ok(submission) => return Ok(submission),
                // Another process charges or refunds the account.
                Err(DbError::Busy(error) | DbError::Deadlock(error)) => {
                    tracing::debug!(%error, "an account is locked; retrying its submit")
                }
                Err(failure) => break failure,
            }
        };
        drop(turn);
        match failure {
            DbError::Unknown(error) => self.resolve_unknown(pending, id, error).await,
            failure => Err(failure.into()),
        }
    }

    /// Waits for the submits of the account that came before; `None` if this one must not start any more.
    async fn acquire_turn(self: &Arc<Self>, pending: &PendingSubmit) -> Option<SubmitTurn> {
        let lock = self.turns.locked().entry(pending.account_id).or_default().clone();
        let mut turn = SubmitTurn { store: self.clone(), account_id: pending.account_id, guard: None };
        let limit = pending.start.deadline.saturating_sub(self.database.clock.elapsed());
        let guard = tokio::select! {
            guard = self.database.within(limit, lock.lock_owned()) => guard?,
            () = pending.start.hung_up.cancelled() => return None,
        };
        turn.guard = Some(guard);
        Some(turn)
    }

    async fn send(&self, pending: &PendingSubmit, id: Id) -> DbResult<Submission> {
        let passed = self.faults.pass(Point::before(Effect::Commit)).await;
        passed.map_err(|error| DbError::Refused(error.into()))?;
        let submit = async |tx: &Transaction<'_>| pending.submit(tx, id).await;
        let submission = self.database.transaction(None, None, submit).await?;
        let passed = self.faults.pass(Point::after(Effect::Commit)).await;
        passed.map_err(|error| DbError::Unknown(error.into()))?;
        Ok(submission)
    }

    /// Finds out whether a submit took effect if its answer was lost. It locked the account before it wrote anything,
    /// so a transaction that locks the account later either sees its task, or the task will never exist.
    async fn resolve_unknown(&self, pending: &PendingSubmit, id: Id, error: StoreError) -> Result<Submission> {
        tracing::warn!(task = %id, %error, "the response to a submit was lost; checking whether its task exists");
        let look = async |tx: &Transaction<'_>| {
            ledger::lock_any(tx, pending.account_id).await?;
            Ok(tx.query_opt("SELECT 1 FROM tasks WHERE id = $1", &[&id]).await?.is_some())
        };
        let found = async {
            loop {
                match self.database.transaction(None, None, look).await.map_err(StoreError::from) {
                    Ok(exists) => return exists,
                    Err(error) => {
                        tracing::warn!(task = %id, %error, "cannot check whether a submit was stored; retrying")
                    }
                }
                self.database.sleep(PAUSE).await;
            }
        };
        match self.database.within(PATIENCE, found).await {
            Some(true) => Ok(Submission::Accepted(pending.task(id))),
            Some(false) => Err(error),
            None => Err(StoreError::Unknown(cause_of(error))),
        }
    }
}

/// The only submit of an account that may take a connection.
#[derive(Debug)]
struct SubmitTurn {
    store: Arc<PostgresStore>,
    account_id: Id,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for SubmitTurn {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut turns = self.store.turns.locked();
        // No other submit has the turn or waits for it.
        if turns.get(&self.account_id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            turns.remove(&self.account_id);
        }
    }
}
