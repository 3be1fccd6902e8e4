//! Gathers what many ask for at once into one statement: whatever arrives while a batch is under way
//! makes up the next.

use std::fmt;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use crate::store::{EXIT_FAULT, Result, StoreError};

/// Most that share one statement, in which each is compared with each.
pub(super) const MAX_BATCH: usize = 256;

/// One that asks, and where its answer goes.
#[derive(Debug)]
pub(super) struct Asked<I, O> {
    pub(super) what: I,
    reply: oneshot::Sender<Result<O>>,
    answer: Option<Result<O>>,
}

impl<I, O> Asked<I, O> {
    /// Whether it has no answer yet.
    pub(super) fn is_open(&self) -> bool {
        self.answer.is_none()
    }

    /// Answers it, unless it has an answer.
    pub(super) fn answer(&mut self, answer: Result<O>) {
        self.answer.get_or_insert(answer);
    }

    /// Tells who asked, who may have gone; what was done stands all the same.
    pub(super) fn reply(self) {
        if let Some(answer) = self.answer {
            drop(self.reply.send(answer));
        }
    }
}

/// The way into a gathering place. Dropping it ends the place when all have been answered.
pub(super) struct Batcher<I, O> {
    inbox: mpsc::UnboundedSender<Asked<I, O>>,
}

impl<I, O> fmt::Debug for Batcher<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").finish_non_exhaustive()
    }
}

impl<I: Send + 'static, O: Send + 'static> Batcher<I, O> {
    /// Gathers for `run`, which answers each in its place.
    pub(super) fn start(run: impl Fn(Vec<I>) -> BoxFuture<'static, Vec<Result<O>>> + Send + 'static) -> Self {
        Self::start_answering(move |asked| {
            let (asked, replies): (Vec<I>, Vec<_>) = asked.into_iter().map(|one| (one.what, one.reply)).unzip();
            let running = run(asked);
            Box::pin(async move {
                for (reply, answer) in replies.into_iter().zip(running.await) {
                    // As in `Asked::reply`.
                    drop(reply.send(answer));
                }
            })
        })
    }

    /// Gathers for `run`, which sees to it that each is answered, by itself or by others.
    pub(super) fn start_answering(run: impl Fn(Vec<Asked<I, O>>) -> BoxFuture<'static, ()> + Send + 'static) -> Self {
        let (inbox, mut waiting) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut gathered = Vec::new();
            while waiting.recv_many(&mut gathered, MAX_BATCH).await > 0 {
                or_exit(run(std::mem::take(&mut gathered))).await;
            }
        });
        Self { inbox }
    }

    /// Takes part in the next batch.
    pub(super) async fn ask(&self, what: I) -> Result<O> {
        let (reply, answer) = oneshot::channel();
        let stopped = || StoreError::Other("the store has stopped".into());
        self.inbox.send(Asked { what, reply, answer: None }).map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// Does some work, and ends the process should it panic: nobody would answer those who asked for it.
pub(super) async fn or_exit(work: impl Future<Output = ()>) {
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        tracing::error!("writing to the database failed; stopping so that a restart can go on");
        std::process::exit(EXIT_FAULT);
    }
}
