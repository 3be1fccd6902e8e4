//! The hold of a call on its task: of several attempts at a call, one answers with the pictures.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::answer_memory::AnswerMemory;
use crate::http::state::ApiState;
use tintype_domain::model::Id;
use tintype_store::{Call, CallEnd, Result};

/// Longest wait for the record of an end.
const LONGEST_END: Duration = Duration::from_secs(2);

/// The hold. Dropping it records that the caller hung up.
#[derive(Debug)]
pub(super) struct Hold {
    api: Arc<ApiState>,
    task_id: Id,
    holder: i64,
    ended: bool,
}

impl Hold {
    /// This attempt's hold; `None` with an idempotency key, because then the answer can be requested many times.
    pub(super) fn of(call: &Call, task_id: Id, api: &Arc<ApiState>) -> Option<Self> {
        let hold = || Self { api: api.clone(), task_id, holder: call.holder, ended: false };
        call.idempotency.is_none().then(hold)
    }

    /// Whether this attempt may answer: no later one has taken the task over.
    pub(super) async fn is_held(&self) -> Result<bool> {
        self.api.shared.store.holds_call(self.task_id, self.holder).await
    }

    /// Ends the hold before an answer without pictures is sent: the caller may try again as soon as it has that. A database
    /// that does not answer delays it for two seconds at most; the end is recorded all the same.
    pub(super) async fn end_before_answer(mut self, end: CallEnd) {
        if let Some(ending) = self.end(end) {
            drop(tokio::time::timeout(LONGEST_END, ending).await);
        }
    }

    /// Ends the hold because the connection has taken the last part of the answer.
    pub(super) fn deliver_last(mut self) {
        drop(self.end(CallEnd::Delivered));
    }

    /// `response`, which ends the hold when the connection takes its last part.
    pub(super) fn deliver(self, response: Response) -> Response {
        let memory = AnswerMemory::default();
        memory.end_with(self);
        response.map(|body| Body::new(memory.with(body)))
    }

    /// Records the end, even if it is no longer being waited for.
    fn end(&mut self, end: CallEnd) -> Option<JoinHandle<()>> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        let (api, task_id, holder) = (self.api.clone(), self.task_id, self.holder);
        let ending = async move {
            if let Err(error) = api.shared.store.end_call(task_id, holder, end).await {
                tracing::warn!(
                    task = %task_id, %error,
                    "could not record the end of a call: a retry may make another task, or get the failed one"
                );
            }
        };
        // Without a runtime the process ends, and a later attempt takes the task over.
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        Some(runtime.spawn(ending.in_current_span()))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        drop(self.end(CallEnd::HungUp));
    }
}
