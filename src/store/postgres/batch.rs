//! Gathers what many ask for at once into one statement: whatever arrives while a batch is under way
//! makes up the next.

use std::fmt;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use crate::store::{EXIT_FAULT, Result, StoreError};

/// Most that share one statement, in which each is compared with each.
const MAX_BATCH: usize = 256;

/// One that asks, and where its answer goes.
type Pending<I, O> = (I, oneshot::Sender<Result<O>>);

/// The way into a gathering place. Dropping it ends the place when all have been answered.
pub(super) struct Batcher<I, O> {
    inbox: mpsc::UnboundedSender<Pending<I, O>>,
}

impl<I, O> fmt::Debug for Batcher<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").finish_non_exhaustive()
    }
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Gathers for `run`, which answers each in its place.
    pub(super) fn start(run: impl Fn(Vec<I>) -> BoxFuture<'static, Vec<Result<O>>> + Send + 'static) -> Self {
        let (inbox, mut waiting) = mpsc::unbounded_channel::<Pending<I, O>>();
        tokio::spawn(async move {
            let mut gathered = Vec::new();
            while waiting.recv_many(&mut gathered, MAX_BATCH).await > 0 {
                let (asked, replies): (Vec<I>, Vec<_>) = gathered.drain(..).unzip();
                let Ok(answers) = AssertUnwindSafe(run(asked)).catch_unwind().await else {
                    tracing::error!("writing to the database failed; stopping so that a restart can go on");
                    std::process::exit(EXIT_FAULT);
                };
                for (reply, answer) in replies.into_iter().zip(answers) {
                    // Who asked may have gone; what was done stands all the same.
                    drop(reply.send(answer));
                }
            }
        });
        Self { inbox }
    }

    /// Takes part in the next batch.
    pub(super) async fn ask(&self, what: I) -> Result<O> {
        let (reply, answer) = oneshot::channel();
        let stopped = || StoreError::Other("the store has stopped".into());
        self.inbox.send((what, reply)).map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}
