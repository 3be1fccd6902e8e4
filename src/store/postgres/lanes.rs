//! Which submits share a statement.
//!
//! An account has its lane, and what gathers in a lane shares a statement. A statement that fails fails for all of
//! them, so each of its accounts is then set apart: it has statements of its own until it answers, and its lane goes
//! on without it. So a lock that somebody holds on an account is waited for by that account alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::batch::{self, Batcher, MAX_BATCH};
use super::connection::{Failure, MAX_CONNECTIONS, POOL_WAIT};
use super::lane;
use super::submit::{Order, Sent, Submitting};
use crate::model::Id;
use crate::store::{Result, StoreError, Submission};

/// Batches that can be under way at once: while one is made durable, the next is made ready. More would be smaller, and
/// dearer for each submit.
const LANES: usize = 2;
/// Accounts that are apart and can have a statement at once, each of which may wait for a lock: the others, and
/// whoever reads, need connections too.
const PLACES: usize = MAX_CONNECTIONS / 2;

type Asked = batch::Asked<Order, Submission>;

/// The ways of all accounts.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Batcher<Order, Submission>>,
}

impl Lanes {
    pub(super) fn open(submitting: &Submitting) -> Self {
        let apart = Arc::new(Apart {
            submitting: submitting.clone(),
            accounts: Mutex::default(),
            places: Semaphore::new(PLACES),
        });
        let lanes = (0..LANES).map(|_| {
            let apart = apart.clone();
            Batcher::start_answering(move |asked| Box::pin(apart.clone().together(asked)))
        });
        Self { lanes: lanes.collect() }
    }

    pub(super) async fn submit(&self, order: Order) -> Result<Submission> {
        lane(&self.lanes, order.account_id).ask(order).await
    }
}

/// The accounts that have statements of their own.
#[derive(Debug)]
struct Apart {
    submitting: Submitting,
    accounts: Mutex<HashMap<Id, Waiting>>,
    places: Semaphore,
}

/// What waits for the next statement of an account.
#[derive(Debug, Default)]
struct Waiting {
    asked: Vec<Asked>,
    /// Whether somebody sees to it.
    at_work: bool,
}

impl Apart {
    /// Submits what has gathered in a lane.
    async fn together(self: Arc<Self>, asked: Vec<Asked>) {
        let mut sent = self.submitting.send(self.take(asked));
        if let Err(failure) = self.submitting.submit(&mut sent).await {
            sent = self.part(sent, failure);
        }
        sent.into_iter().for_each(Sent::reply);
    }

    /// Finds another way for what a failed statement left open in a lane, and returns the others.
    fn part(self: &Arc<Self>, sent: Vec<Sent>, failure: Failure) -> Vec<Sent> {
        let (mut open, mut answered): (Vec<_>, Vec<_>) = sent.into_iter().partition(Sent::is_open);
        let is_locked = matches!(failure, Failure::Locked(_));
        // A database that cannot be reached is away for each account.
        let is_away = matches!(failure, Failure::Nothing(_));
        let error = failure.into_error();
        let account_id = open[0].account_id();
        let of_one = open.iter().all(|one| one.account_id() == account_id);
        // It is known already what would come of another try.
        if open.len() == 1 || is_away || of_one && is_locked {
            if is_locked {
                self.lock().entry(account_id).or_default();
            }
            open.iter_mut().for_each(|one| one.fail(&error));
            answered.extend(open);
            return answered;
        }
        tracing::warn!(submits = open.len(), %error, "submits that shared a statement go on by accounts");
        let mut accounts = self.lock();
        for one in open {
            let waiting = accounts.entry(one.account_id()).or_default();
            self.add(waiting, one.into_asked());
        }
        answered
    }

    /// Takes over what is of accounts that are apart, and returns the others.
    fn take(self: &Arc<Self>, asked: Vec<Asked>) -> Vec<Asked> {
        let mut accounts = self.lock();
        if accounts.is_empty() {
            return asked;
        }
        let mut others = Vec::with_capacity(asked.len());
        for one in asked {
            match accounts.get_mut(&one.what.account_id) {
                Some(waiting) => self.add(waiting, one),
                None => others.push(one),
            }
        }
        others
    }

    fn add(self: &Arc<Self>, waiting: &mut Waiting, one: Asked) {
        let account_id = one.what.account_id;
        waiting.asked.push(one);
        if !std::mem::replace(&mut waiting.at_work, true) {
            tokio::spawn(batch::or_exit(self.clone().work(account_id)));
        }
    }

    /// Submits what there is of an account, group after group.
    async fn work(self: Arc<Self>, account_id: Id) {
        let mut answers = false;
        while let Some(group) = self.next(account_id, answers) {
            let mut sent = self.submitting.send(group);
            let outcome = self.alone(&mut sent).await;
            answers = outcome.is_ok();
            if let Err(failure) = outcome {
                let error = failure.into_error();
                sent.iter_mut().for_each(|one| one.fail(&error));
            }
            sent.into_iter().for_each(Sent::reply);
        }
    }

    /// The next group of an account. When there is none and it answers, it goes back to its lane.
    fn next(&self, account_id: Id, answers: bool) -> Option<Vec<Asked>> {
        let mut accounts = self.lock();
        let waiting = accounts.get_mut(&account_id)?;
        if !waiting.asked.is_empty() {
            let most = waiting.asked.len().min(MAX_BATCH);
            return Some(waiting.asked.drain(..most).collect());
        }
        waiting.at_work = false;
        if answers {
            accounts.remove(&account_id);
        }
        None
    }

    /// Submits a group of one account; what has no answer then ends like this.
    async fn alone(&self, sent: &mut [Sent]) -> std::result::Result<(), Failure> {
        let place = self.submitting.database.within(POOL_WAIT, self.places.acquire()).await;
        let Some(Ok(_place)) = place else {
            let error = "too many accounts wait for locks that somebody holds".into();
            return Err(Failure::Nothing(StoreError::Other(error)));
        };
        match self.submitting.submit(sent).await {
            // One that cannot be written must not take the others with it.
            Err(Failure::Refused(_)) => {}
            outcome => return outcome,
        }
        for one in sent.iter_mut().filter(|one| one.is_open()) {
            match self.submitting.submit(std::slice::from_mut(one)).await {
                Err(Failure::Refused(error)) => one.fail(&error),
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Waiting>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
