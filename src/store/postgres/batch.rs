//! Batches: requests that arrive while a statement is under way share the next one.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::connection::Failure;
use crate::domain::model::Id;
use crate::store::{EXIT_FAULT, Result, StoreError};

/// Most requests in one statement.
const MAX_BATCH: usize = 256;

/// One request, and the channel for its answer.
#[derive(Debug)]
pub(super) struct Request<Q, A> {
    pub(super) query: Q,
    reply: oneshot::Sender<Result<A>>,
}

impl<Q, A> Request<Q, A> {
    /// Sends the answer. The caller may be gone; the write is durable all the same.
    pub(super) fn answer(self, answer: Result<A>) {
        drop(self.reply.send(answer));
    }
}

/// Sends the same error to all of `requests`.
pub(super) fn fail_all<Q, A>(requests: Vec<Request<Q, A>>, error: &StoreError) {
    requests.into_iter().for_each(|request| request.answer(Err(error.clone())));
}

/// The inbox of a task that runs one batch at a time. Dropping it ends the task after the last batch.
pub(super) struct Batcher<Q, A> {
    inbox: mpsc::UnboundedSender<Request<Q, A>>,
}

impl<Q, A> fmt::Debug for Batcher<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").finish_non_exhaustive()
    }
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// Starts the task; `run` answers every request of a batch or hands it on.
    pub(super) fn start(run: impl Fn(Vec<Request<Q, A>>) -> BoxFuture<'static, ()> + Send + 'static) -> Self {
        let (inbox, mut waiting) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while waiting.recv_many(&mut batch, MAX_BATCH).await > 0 {
                or_exit(run(std::mem::take(&mut batch))).await;
            }
        });
        Self { inbox }
    }

    /// Joins the next batch and waits for its answer.
    pub(super) async fn ask(&self, query: Q) -> Result<A> {
        let (reply, answer) = oneshot::channel();
        let stopped = || StoreError::Other("the store has stopped".into());
        self.inbox.send(Request { query, reply }).map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// Runs `work` and ends the process if it panics, because its callers would wait forever.
pub(super) async fn or_exit(work: impl Future<Output = ()>) {
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        tracing::error!("a batch of writes panicked: the process exits, and a restart recovers");
        std::process::exit(EXIT_FAULT);
    }
}

/// Behaviour of a statement for an account that another transaction has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Locked {
    /// It skips the requests of the account.
    Skip,
    /// It waits, for `lock_timeout` at most.
    Wait,
}

impl Locked {
    /// To follow `FOR UPDATE` or the like.
    pub(super) fn clause(self) -> &'static str {
        match self {
            Self::Skip => "SKIP LOCKED",
            Self::Wait => "",
        }
    }
}

/// A statement that locks the accounts of its requests.
pub(super) trait AccountStatement: Send + Sync + 'static {
    type Query: Send + 'static;
    type Answer: Send + 'static;

    /// Runs the statement and answers the requests that it settled.
    fn run(
        &self,
        requests: Vec<RequestOf<Self>>,
        locked: Locked,
    ) -> impl Future<Output = Leftover<RequestOf<Self>>> + Send;
}

pub(super) type RequestOf<S> = Request<<S as AccountStatement>::Query, <S as AccountStatement>::Answer>;

/// The requests that a statement has not answered.
pub(super) enum Leftover<R> {
    /// The accounts of these were locked.
    Skipped(Vec<(Id, R)>),
    /// The statement did not run.
    Failed(Failure, Vec<R>),
}

/// Batches that no lock on an account holds up: a batch skips locked accounts, and the requests that it skipped go on
/// in statements that may wait, one at a time for each account.
pub(super) struct AccountBatches<S: AccountStatement> {
    lanes: Vec<Batcher<S::Query, S::Answer>>,
}

impl<S: AccountStatement> fmt::Debug for AccountBatches<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountBatches").finish_non_exhaustive()
    }
}

impl<S: AccountStatement> AccountBatches<S> {
    /// At most `lanes` batches and `waiters` statements that wait are under way at once.
    pub(super) fn start(statement: S, lanes: usize, waiters: usize) -> Self {
        let runner = Arc::new(Runner { statement, waiting: Mutex::default(), waiters: Semaphore::new(waiters) });
        let lanes = (0..lanes).map(|_| {
            let runner = runner.clone();
            Batcher::start(move |requests| Box::pin(runner.clone().batch(requests)))
        });
        Self { lanes: lanes.collect() }
    }

    /// Joins the next batch of the lane of `id`. One account is always in one lane, so that batches of this process do
    /// not skip each other's accounts.
    pub(super) async fn ask(&self, id: Id, query: S::Query) -> Result<S::Answer> {
        lane(&self.lanes, id).ask(query).await
    }
}

/// The lane of an id.
pub(super) fn lane<T>(lanes: &[T], id: Id) -> &T {
    let sum: usize = id.as_str().bytes().map(usize::from).sum();
    &lanes[sum % lanes.len()]
}

struct Runner<S: AccountStatement> {
    statement: S,
    /// Requests of accounts for which a statement is waiting.
    waiting: Mutex<HashMap<Id, Vec<RequestOf<S>>>>,
    waiters: Semaphore,
}

impl<S: AccountStatement> Runner<S> {
    async fn batch(self: Arc<Self>, requests: Vec<RequestOf<S>>) {
        match self.statement.run(requests, Locked::Skip).await {
            Leftover::Skipped(skipped) => {
                for (account, request) in skipped {
                    self.clone().wait(account, request);
                }
            }
            Leftover::Failed(failure, requests) => {
                tokio::spawn(or_exit(async move { self.separately(failure, requests).await }));
            }
        }
    }

    /// Hands a request to the statements that wait for the account.
    fn wait(self: Arc<Self>, account: Id, request: RequestOf<S>) {
        let mut waiting = self.waiting();
        if let Some(requests) = waiting.get_mut(&account) {
            requests.push(request);
            return;
        }
        waiting.insert(account, vec![request]);
        drop(waiting);
        tokio::spawn(or_exit(async move {
            let _permit = self.waiters.acquire().await;
            while let Some(requests) = self.next(account) {
                if let Leftover::Failed(failure, requests) = self.statement.run(requests, Locked::Wait).await {
                    self.separately(failure, requests).await;
                }
            }
        }));
    }

    /// The next requests for a statement that waits for the account; `None` ends the waiting.
    fn next(&self, account: Id) -> Option<Vec<RequestOf<S>>> {
        let mut waiting = self.waiting();
        let requests = waiting.get_mut(&account).filter(|requests| !requests.is_empty());
        match requests {
            Some(requests) => Some(requests.drain(..requests.len().min(MAX_BATCH)).collect()),
            None => {
                waiting.remove(&account);
                None
            }
        }
    }

    /// Gives each request of a refused statement one of its own, so that a damaged account or task fails no other.
    async fn separately(&self, failure: Failure, requests: Vec<RequestOf<S>>) {
        if !matches!(failure, Failure::Refused(_)) || requests.len() < 2 {
            return fail_all(requests, &failure.into());
        }
        let error = failure.into_error();
        tracing::warn!(requests = requests.len(), %error, "a batch failed; sending each of its requests separately");
        for request in requests {
            if let Leftover::Failed(failure, alone) = self.statement.run(vec![request], Locked::Wait).await {
                fail_all(alone, &failure.into());
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Id, Vec<RequestOf<S>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
