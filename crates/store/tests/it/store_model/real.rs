//! The real store: one database, opened by two processes with clocks of their own.

use std::sync::Arc;

use futures::future::{join, join_all};
use tempfile::TempDir;
use tintype_domain::model::{FailureCause, Id};
use tintype_store::{LeaseWrite, Result, Store, Submission};
use tintype_system::clock::{Clock, Timestamp};

use super::accounts::{TAKEN, grant_note};
use super::act::{Act, Order, Step, file_names, sentence};
use super::keys::{hash, hint, new_key};
use super::model::Model;
use super::outcome::Outcome;
use tintype_rigs::database::Backend;

pub struct Real {
    backend: Backend,
    directory: TempDir,
    clocks: [Clock; 2],
    /// None only while a process restarts.
    stores: [Option<Arc<dyn Store>>; 2],
}

impl Real {
    pub fn new(backend: Backend, model: &Model) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let clocks = [0, 1].map(|process| Clock::manual(model.now(process)));
        let stores = [0, 1].map(|process| Some(backend.open(&directory, &clocks[process])));
        Self { backend, directory, clocks, stores }
    }

    /// The store of one process.
    pub fn store(&self, process: usize) -> &Arc<dyn Store> {
        self.stores[process].as_ref().expect("the process runs")
    }

    /// Takes a step. The numbers in the step are indices into the model as it was before the step.
    pub async fn take(&mut self, model: &Model, step: &Step) -> Outcome {
        let by = step.by;
        match &step.act {
            Act::SetClock { to } => self.clocks[by].set(*to),
            Act::Restart => {
                self.stores[by] = None;
                self.stores[by] = Some(self.backend.open(&self.directory, &self.clocks[by]));
            }
            Act::Ping => self.store(by).ping().await.expect("no store error"),
            act @ (Act::CreateAccount { .. }
            | Act::CreateFirstAccount { .. }
            | Act::CreateKey { .. }
            | Act::ChangeKey { .. }
            | Act::RotateKey { .. }
            | Act::TouchKeys { .. }
            | Act::Grant { .. }
            | Act::Take { .. }
            | Act::Lapse) => return administer(self.store(by), model, act).await,
            act => return work(self.store(by), model, act).await,
        }
        Outcome::Quiet
    }
}

async fn administer(store: &Arc<dyn Store>, model: &Model, act: &Act) -> Outcome {
    match act {
        Act::CreateAccount { name, credits } => {
            Outcome::of(store.create_account(&model.name(*name), *credits).await, Outcome::Creation)
        }
        Act::CreateFirstAccount { name, credits, key } => {
            let created = store.create_first_account(&model.name(*name), *credits, new_key(*key)).await;
            let found = store.find_key_by_hash(hash(key.secret)).await.expect("no store error");
            Outcome::of(created, |account| Outcome::First(account.map(|account| (account, found.expect("its key")))))
        }
        Act::CreateKey { account, key } => {
            Outcome::of(store.create_key(model.account_id(*account), new_key(*key)).await, Outcome::Key)
        }
        Act::ChangeKey { key, change } => {
            Outcome::of(store.change_key(model.key_id(*key), *change).await, Outcome::Key)
        }
        Act::RotateKey { key, secret, overlap } => {
            let (id, hint) = (model.key_id(*key), hint(*secret));
            Outcome::of(store.rotate_key(id, hash(*secret), &hint, *overlap).await, Outcome::Key)
        }
        Act::TouchKeys { uses } => {
            let uses = uses.iter().map(|(key, at)| (model.key_id(*key), *at)).collect();
            Outcome::of(store.touch_keys(uses).await, |()| Outcome::Quiet)
        }
        Act::Grant { account, amount, note, life } => {
            let note = grant_note(*note);
            let expires_at = life.map(|life| Timestamp::from_millis(store.now().as_millis() + life));
            let granted = store.grant_until(model.account_id(*account), *amount, note.as_deref(), expires_at).await;
            Outcome::of(granted, Outcome::Balance)
        }
        Act::Take { account, amount } => {
            Outcome::of(store.take(model.account_id(*account), *amount, TAKEN).await, Outcome::Taking)
        }
        Act::Lapse => Outcome::of(store.lapse_grants().await, Outcome::Lapsed),
        _ => unreachable!("{act:?} is work"),
    }
}

async fn work(store: &Arc<dyn Store>, model: &Model, act: &Act) -> Outcome {
    match act {
        Act::Submit { account, surface, order, max_unfinished } => {
            let key = model.account(*account).and_then(|account| key_id(model, account, order));
            let account = model.account_id(*account);
            let submission = store.submit(account, key, *surface, order.request(), *max_unfinished).await;
            Outcome::of(submission, Outcome::Submission)
        }
        Act::Crowd { .. } => crowd(store, model, act).await.map_or(Outcome::Refused, Outcome::Crowd),
        Act::Claim { max, max_references, lease, passed_over } => {
            let passed_over: Vec<_> = passed_over.iter().map(|account| model.account_id(Some(*account))).collect();
            Outcome::of(store.claim_within(*max, "", *max_references, *lease, &passed_over).await, Outcome::Claims)
        }
        Act::Renew { leases, lease } => {
            let leases = leases.iter().map(|held| model.lease(*held)).collect();
            Outcome::of(store.renew(leases, *lease).await, Outcome::Lost)
        }
        Act::Release { lease, delay } => write(store.release(model.lease(*lease), *delay).await),
        Act::Retry { lease, delay, error } => {
            Outcome::of(store.retry(model.lease(*lease), *delay, &sentence(*error)).await, Outcome::Retry)
        }
        Act::Complete { lease, images } => write(store.complete(model.lease(*lease), file_names(*images)).await),
        Act::Fail { lease, error } => {
            write(store.fail(model.lease(*lease), FailureCause::Engine, &sentence(*error)).await)
        }
        Act::Refuse { lease, error, rule } => {
            Outcome::of(store.refuse(model.lease(*lease), &sentence(*error), *rule).await, Outcome::Refusal)
        }
        Act::FailUnleased { task, error } => Outcome::of(
            store.fail_unleased(model.task_id(*task), FailureCause::Operator, &sentence(*error)).await,
            Outcome::Failed,
        ),
        Act::Rescue { which, error } => {
            Outcome::of(store.rescue(*which, &sentence(*error)).await, Outcome::Rescued).sorted()
        }
        Act::Expire { cutoff, error } => {
            Outcome::of(store.expire(*cutoff, &sentence(*error)).await, Outcome::Expired).sorted()
        }
        Act::FailBeyond { max_references, error } => {
            Outcome::of(store.fail_beyond(*max_references, &sentence(*error)).await, Outcome::Expired).sorted()
        }
        _ => unreachable!("{act:?} is no work"),
    }
}

/// The key that submits a task.
fn key_id(model: &Model, account: usize, order: &Order) -> Option<Id> {
    model.key_of(account, order.key).map(|key| model.keys[key].key.id)
}

fn write(answer: Result<LeaseWrite>) -> Outcome {
    Outcome::of(answer, Outcome::Write)
}

/// Submits concurrently with a grant that overflows the balance and must fail, and sorts the answers as the model does.
async fn crowd(store: &Arc<dyn Store>, model: &Model, act: &Act) -> Result<Vec<Submission>> {
    let Act::Crowd { account, surface, order, max_unfinished, times } = act else { unreachable!("{act:?}") };
    let Some(index) = model.account(Some(*account)) else { return Ok(Vec::new()) };
    let (account, key) = (model.accounts[index].id, key_id(model, index, order));
    let submits = (0..*times).map(|_| store.submit(account, key, *surface, order.request(), *max_unfinished));
    let (submissions, granted) = join(join_all(submits), store.grant(account, -1, None)).await;
    granted.expect_err("credits are not taken away");
    let mut submissions = submissions.into_iter().collect::<Result<Vec<_>>>()?;
    submissions.sort_by_key(|submission| match submission {
        Submission::Accepted(task) => (false, Some(task.id)),
        _ => (true, None),
    });
    Ok(submissions)
}
