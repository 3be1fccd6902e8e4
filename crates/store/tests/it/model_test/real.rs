//! The real store: one database, opened by two processes with clocks of their own.

use std::sync::Arc;

use futures::future::{join, try_join_all};
use tempfile::TempDir;
use tintype_domain::endpoint::{AddedBy, SigningSecret};
use tintype_domain::event::Subscription;
use tintype_domain::model::{Account, FailureCause, Id};
use tintype_store::{AccountChange, NewEndpoint, Store};
use tintype_system::clock::{Clock, Timestamp};

use super::act::{Act, Order, Step, file_names, message};
use super::credits::{LOW, TAKEN, grant_note};
use super::keys::{hash, hint, new_key};
use super::model::Model;
use super::outcome::Outcome;
use tintype_rigs::database::Backend;

pub struct Real {
    backend: Backend,
    directory: TempDir,
    clocks: [Clock; 2],
    /// None only while a process restarts.
    stores: [Option<Arc<Store>>; 2],
}

impl Real {
    pub fn new(backend: Backend, model: &Model) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let clocks = [0, 1].map(|process| Clock::manual(model.now_of(process)));
        let stores = [0, 1].map(|process| Some(backend.open(&directory, &clocks[process])));
        Self { backend, directory, clocks, stores }
    }

    /// The store of one process.
    pub fn store(&self, process: usize) -> &Arc<Store> {
        self.stores[process].as_ref().expect("the process runs")
    }

    /// Takes a step. The numbers in the step are indices into the model as it was before the step.
    pub async fn take(&mut self, model: &Model, step: &Step) -> Outcome {
        let by = step.by;
        match step.act.clone() {
            Act::SetClock { to } => self.clocks[by].set(to),
            Act::Restart => {
                self.stores[by] = None;
                self.stores[by] = Some(self.backend.open(&self.directory, &self.clocks[by]));
            }
            Act::Ping => self.store(by).ping().await.expect("no store error"),
            act => return work(self.store(by), model, act).await.sorted(),
        }
        Outcome::Quiet
    }
}

async fn work(store: &Store, model: &Model, act: Act) -> Outcome {
    match act {
        Act::Submit { account, surface, order, max_unfinished } => {
            let key = model.account(account).and_then(|account| key_id(model, account, order));
            let account = model.account_id(account);
            let submission = store.submit(account, key, surface, order.request(), max_unfinished).await;
            submission.map(|submission| vec![submission]).into()
        }
        Act::Crowd { account, surface, order, max_unfinished, times } => {
            let Some(index) = model.account(Some(account)) else { return Outcome::Refused };
            let (account, key) = (model.accounts[index].id, key_id(model, index, order));
            let submits = (0..times).map(|_| store.submit(account, key, surface, order.request(), max_unfinished));
            let (submissions, granted) = join(try_join_all(submits), store.grant(account, -1, None, None)).await;
            granted.expect_err("credits are not taken away");
            submissions.into()
        }
        Act::Claim { max, max_references, lease, excluded } => {
            let excluded: Vec<_> = excluded.iter().map(|account| model.account_id(Some(*account))).collect();
            store.claim_within(max, "", max_references, lease, &excluded).await.into()
        }
        Act::Renew { leases, lease } => {
            let leases = leases.iter().map(|held| model.lease(*held)).collect();
            store.renew(leases, lease).await.into()
        }
        Act::Release { lease, delay } => store.release(model.lease(lease), delay).await.into(),
        Act::Retry { lease, delay, error } => store.retry(model.lease(lease), delay, &message(error)).await.into(),
        Act::Complete { lease, images } => store.complete(model.lease(lease), file_names(images)).await.into(),
        Act::Fail { lease, error } => {
            store.fail(model.lease(lease), FailureCause::Engine, &message(error)).await.into()
        }
        Act::Refuse { lease, error, rule } => store.refuse(model.lease(lease), &message(error), rule).await.into(),
        Act::FailUnleased { task, error } => {
            store.fail_unleased(model.task_id(task), FailureCause::Operator, &message(error)).await.into()
        }
        Act::Reclaim { which, error } => store.reclaim(which, &message(error)).await.into(),
        Act::Expire { cutoff, error } => store.expire(cutoff, &message(error)).await.into(),
        Act::FailBeyond { max_references, error } => {
            store.fail_over_reference_limit(max_references, &message(error)).await.into()
        }
        act => administer(store, model, act).await,
    }
}

async fn administer(store: &Store, model: &Model, act: Act) -> Outcome {
    match act {
        Act::CreateAccount { name, credits } => match store.create_account(&model.name(name), credits).await {
            Ok(Some(account)) => Outcome::Creation(Some(listen(store, account).await)),
            other => other.into(),
        },
        Act::CreateFirstAccount { name, credits, key } => {
            let created = store.create_first_account(&model.name(name), credits, new_key(key)).await;
            let Some(account) = created.expect("no store error") else { return Outcome::First(None) };
            let key = store.find_key_by_hash(hash(key.secret)).await.expect("no store error");
            Outcome::First(Some((listen(store, account).await, key.expect("its key"))))
        }
        Act::CreateKey { account, key } => store.create_key(model.account_id(account), new_key(key)).await.into(),
        Act::ChangeKey { key, change } => store.change_key(model.key_id(key), change).await.into(),
        Act::RotateKey { key, secret, overlap } => {
            store.rotate_key(model.key_id(key), hash(secret), &hint(secret), overlap).await.into()
        }
        Act::TouchKeys { uses } => {
            let uses = uses.iter().map(|(key, at)| (model.key_id(*key), *at)).collect();
            store.touch_keys(uses).await.map_or(Outcome::Refused, |()| Outcome::Quiet)
        }
        Act::Grant { account, amount, note, life } => {
            let note = grant_note(note);
            let expires_at = life.map(|life| Timestamp::from_millis(store.now().as_millis() + life));
            store.grant(model.account_id(account), amount, note.as_deref(), expires_at).await.into()
        }
        Act::Take { account, amount } => store.take(model.account_id(account), amount, TAKEN).await.into(),
        Act::Lapse => store.expire_grants().await.into(),
        act => unreachable!("{act:?} is taken by the process"),
    }
}

/// Adds an endpoint for all events of a new account, and sets the threshold of its low credits.
async fn listen(store: &Store, account: Account) -> Account {
    let url = "https://hooks.example/".parse().expect("a URL");
    let (events, secret) = (Subscription::to_all(), SigningSecret::random());
    let endpoint = NewEndpoint { url, events, added_by: AddedBy::Operator, secret };
    store.add_endpoint(account.id, endpoint, 1).await.expect("no store error");
    let changed = store.change_account(account.id, AccountChange::LowBalance(Some(LOW))).await;
    changed.expect("no store error").expect("the new account")
}

/// The key that submits a task.
fn key_id(model: &Model, account: usize, order: Order) -> Option<Id> {
    model.key_of(account, order.key).map(|key| model.keys[key].key.id)
}
