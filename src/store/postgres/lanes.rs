//! Which of those that ask share a statement.
//!
//! An account has its lane, and what gathers in a lane shares a statement. A statement that fails fails for all of
//! them, so each of its accounts is then set apart: it has statements of its own until it answers, and its lane goes
//! on without it. So a lock that somebody holds on an account is waited for by that account alone.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::batch::{self, Batcher, MAX_BATCH};
use super::connection::{Database, Failure, POOL_WAIT};
use super::lane;
use crate::domain::model::Id;
use crate::store::{Result, StoreError};

/// Something that can be done for many accounts in one statement.
pub(super) trait Shared: Send + Sync + 'static {
    /// What is asked for.
    type What: Send + Sync + 'static;
    type Answer: Send + Sync + 'static;

    /// Finds an answer for all of `asked` that have none, or says why those that are left have none: nothing of them was
    /// done, on account of any of them.
    fn run(&self, asked: &mut [Asked<Self>]) -> impl Future<Output = std::result::Result<(), Failure>> + Send;

    /// Whose each of `asked` is. What is nobody's is kept together like an account.
    fn accounts(&self, asked: &[Asked<Self>]) -> impl Future<Output = Result<Vec<Option<Id>>>> + Send;

    fn database(&self) -> &Database;
}

type Asked<S> = batch::Asked<<S as Shared>::What, <S as Shared>::Answer>;

/// The ways of all accounts.
pub(super) struct Lanes<S: Shared> {
    lanes: Vec<Batcher<S::What, S::Answer>>,
}

impl<S: Shared> fmt::Debug for Lanes<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").finish_non_exhaustive()
    }
}

impl<S: Shared> Lanes<S> {
    /// So many `lanes`, each with one statement at a time, and `places` for the statements of accounts that are apart,
    /// each of which may wait for a lock: the others, and whoever reads, need connections too.
    pub(super) fn open(shared: S, lanes: usize, places: usize) -> Self {
        let apart = Arc::new(Apart { shared, accounts: Mutex::default(), places: Semaphore::new(places) });
        let lanes = (0..lanes).map(|_| {
            let apart = apart.clone();
            Batcher::start_answering(move |asked| Box::pin(apart.clone().together(asked)))
        });
        Self { lanes: lanes.collect() }
    }

    /// Takes part in the next statement of the lane that `id` belongs to.
    pub(super) async fn ask(&self, id: Id, what: S::What) -> Result<S::Answer> {
        lane(&self.lanes, id).ask(what).await
    }
}

/// The accounts that have statements of their own.
struct Apart<S: Shared> {
    shared: S,
    accounts: Mutex<HashMap<Option<Id>, Waiting<S>>>,
    places: Semaphore,
}

/// What waits for the next statement of an account.
struct Waiting<S: Shared> {
    asked: Vec<Asked<S>>,
    /// Whether somebody sees to it.
    at_work: bool,
}

impl<S: Shared> Default for Waiting<S> {
    fn default() -> Self {
        Self { asked: Vec::new(), at_work: false }
    }
}

impl<S: Shared> Apart<S> {
    /// Does what has gathered in a lane.
    async fn together(self: Arc<Self>, asked: Vec<Asked<S>>) {
        let mut asked = self.take(asked).await;
        if let Err(failure) = self.shared.run(&mut asked).await {
            asked = self.part(asked, failure).await;
        }
        asked.into_iter().for_each(Asked::<S>::reply);
    }

    /// Finds another way for what a failed statement left open in a lane, and returns the others.
    async fn part(self: &Arc<Self>, asked: Vec<Asked<S>>, failure: Failure) -> Vec<Asked<S>> {
        let (mut open, mut answered): (Vec<_>, Vec<_>) = asked.into_iter().partition(batch::Asked::is_open);
        let is_locked = matches!(failure, Failure::Locked(_));
        // A database that cannot be reached is away for each account.
        let is_away = matches!(failure, Failure::Nothing(_));
        let error = failure.into_error();
        let accounts = if is_away { Err(error.clone()) } else { self.shared.accounts(&open).await };
        let accounts = accounts.unwrap_or_default();
        let of_one = accounts.iter().all(|account| *account == accounts[0]);
        // It is known already what would come of another try.
        if accounts.is_empty() || open.len() == 1 || of_one && is_locked {
            if let Some(account) = accounts.first().filter(|_| is_locked) {
                self.lock().entry(*account).or_default();
            }
            open.iter_mut().for_each(|one| one.answer(Err(error.clone())));
            answered.extend(open);
            return answered;
        }
        tracing::warn!(together = open.len(), %error, "what shared a statement goes on by accounts");
        let mut apart = self.lock();
        for (one, account) in open.into_iter().zip(accounts) {
            self.add(apart.entry(account).or_default(), account, one);
        }
        answered
    }

    /// Takes over what is of accounts that are apart, and returns the others.
    async fn take(self: &Arc<Self>, mut asked: Vec<Asked<S>>) -> Vec<Asked<S>> {
        if self.lock().is_empty() {
            return asked;
        }
        let accounts = match self.shared.accounts(&asked).await {
            Ok(accounts) => accounts,
            Err(error) => {
                asked.iter_mut().for_each(|one| one.answer(Err(error.clone())));
                return asked;
            }
        };
        let mut others = Vec::with_capacity(asked.len());
        let mut apart = self.lock();
        for (one, account) in asked.into_iter().zip(accounts) {
            match apart.get_mut(&account) {
                Some(waiting) => self.add(waiting, account, one),
                None => others.push(one),
            }
        }
        others
    }

    fn add(self: &Arc<Self>, waiting: &mut Waiting<S>, account: Option<Id>, one: Asked<S>) {
        waiting.asked.push(one);
        if !std::mem::replace(&mut waiting.at_work, true) {
            tokio::spawn(batch::or_exit(self.clone().work(account)));
        }
    }

    /// Does what there is of an account, group after group.
    async fn work(self: Arc<Self>, account: Option<Id>) {
        let mut answers = false;
        while let Some(mut group) = self.next(account, answers) {
            let outcome = self.alone(&mut group).await;
            answers = outcome.is_ok();
            if let Err(failure) = outcome {
                let error = failure.into_error();
                group.iter_mut().for_each(|one| one.answer(Err(error.clone())));
            }
            group.into_iter().for_each(Asked::<S>::reply);
        }
    }

    /// The next group of an account. When there is none and it answers, it goes back to its lane.
    fn next(&self, account: Option<Id>, answers: bool) -> Option<Vec<Asked<S>>> {
        let mut accounts = self.lock();
        let waiting = accounts.get_mut(&account)?;
        if !waiting.asked.is_empty() {
            let most = waiting.asked.len().min(MAX_BATCH);
            return Some(waiting.asked.drain(..most).collect());
        }
        waiting.at_work = false;
        if answers {
            accounts.remove(&account);
        }
        None
    }

    /// Does a group of one account; what has no answer then ends like this.
    async fn alone(&self, group: &mut [Asked<S>]) -> std::result::Result<(), Failure> {
        let place = self.shared.database().within(POOL_WAIT, self.places.acquire()).await;
        let Some(Ok(_place)) = place else {
            let error = "too many accounts wait for locks that somebody holds".into();
            return Err(Failure::Nothing(StoreError::Other(error)));
        };
        match self.shared.run(group).await {
            // One that cannot be written must not take the others with it.
            Err(Failure::Refused(_)) => {}
            outcome => return outcome,
        }
        for one in group.iter_mut().filter(|one| one.is_open()) {
            match self.shared.run(std::slice::from_mut(one)).await {
                Err(Failure::Refused(error)) => one.answer(Err(error)),
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<Id>, Waiting<S>>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
