//! Batches: requests that arrive while a statement is under way share the next one.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use crate::store::{EXIT_FAULT, Result, StoreError};

/// Most new requests in one statement.
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

/// The inbox of a task that runs one batch at a time. Dropping it ends the task after the last batch.
#[derive(Debug)]
pub(super) struct Batcher<Q, A> {
    inbox: mpsc::UnboundedSender<Request<Q, A>>,
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// Starts the task. `run` answers the requests of a batch and returns those that belong into the next one.
    pub(super) fn start(
        run: impl Fn(Vec<Request<Q, A>>) -> BoxFuture<'static, Vec<Request<Q, A>>> + Send + 'static,
    ) -> Self {
        let (inbox, mut waiting) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            loop {
                if batch.is_empty() && waiting.recv_many(&mut batch, MAX_BATCH).await == 0 {
                    return;
                }
                // A full batch of returned requests leaves room for as many new ones.
                let full = batch.len() + MAX_BATCH;
                while batch.len() < full
                    && let Ok(request) = waiting.try_recv()
                {
                    batch.push(request);
                }
                batch = or_exit(run(batch)).await;
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
pub(super) async fn or_exit<T>(work: impl Future<Output = T>) -> T {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(output) => output,
        Err(_) => {
            tracing::error!("a batch of writes panicked: the process exits, and a restart recovers");
            crate::outlet::flush();
            std::process::exit(EXIT_FAULT);
        }
    }
}
