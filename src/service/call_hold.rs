//! The hold of a call on its task: of several attempts at a call, one answers with the pictures.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::ServiceContext;
use tintype_domain::model::Id;
use tintype_store::{Call, CallEnd, Result};

/// Longest wait for the record of an end.
const LONGEST_END: Duration = Duration::from_secs(2);

/// The hold. Dropping it records that the caller hung up.
#[derive(Debug)]
pub struct CallHold {
    shared: Arc<ServiceContext>,
    task_id: Id,
    holder: i64,
    ended: bool,
}

impl CallHold {
    /// This attempt's hold; `None` with an idempotency key, because then the answer can be requested many times.
    pub fn of(call: &Call, task_id: Id, shared: &Arc<ServiceContext>) -> Option<Self> {
        let hold = || Self { shared: shared.clone(), task_id, holder: call.holder, ended: false };
        call.idempotency.is_none().then(hold)
    }

    /// Whether this attempt may answer: no later one has taken the task over.
    pub async fn is_held(&self) -> Result<bool> {
        self.shared.store.holds_call(self.task_id, self.holder).await
    }

    /// Ends the hold before an answer without pictures is sent: the caller may try again as soon as it has that. A database
    /// that does not answer delays it for two seconds at most; the end is recorded all the same.
    pub async fn end_before_answer(mut self, end: CallEnd) {
        if let Some(ending) = self.end(end) {
            drop(tokio::time::timeout(LONGEST_END, ending).await);
        }
    }

    /// Ends the hold because the connection has taken the last part of the answer.
    pub fn deliver_last(mut self) {
        drop(self.end(CallEnd::Delivered));
    }

    /// Drops this guard without ending the hold: the caller knows the task now, and makes a guard of its own.
    pub fn disarm(mut self) {
        self.ended = true;
    }

    /// Records the end, even if it is no longer being waited for.
    fn end(&mut self, end: CallEnd) -> Option<JoinHandle<()>> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        let (shared, task_id, holder) = (self.shared.clone(), self.task_id, self.holder);
        let ending = async move {
            if let Err(error) = shared.store.end_call(task_id, holder, end).await {
                tracing::warn!(
                    task = %task_id, %error,
                    "could not record the end of a call: a retry may make another task, or get the failed one"
                );
            }
        };
        // Without a runtime the process ends: a client that counts its attempts takes the task over all the same.
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        Some(runtime.spawn(ending.in_current_span()))
    }
}

impl Drop for CallHold {
    fn drop(&mut self) {
        drop(self.end(CallEnd::HungUp));
    }
}
