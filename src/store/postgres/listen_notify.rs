//! LISTEN/NOTIFY: wakes the workers of other processes when a task is queued.
//!
//! A notification is only a hint, because workers poll every second anyway. Therefore no submit waits for it, a burst
//! of submits sends one, and workers poll after a lost connection.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;
use tokio_util::task::AbortOnDropHandle;

use super::connection::Database;
use crate::store::{Result, StoreError};

/// Submits within this time share one notification.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Pause before reconnecting; random jitter of up to as much again keeps processes from reconnecting in step.
const RECONNECT: Duration = Duration::from_millis(500);

/// Listens and notifies for one process until it is dropped.
#[derive(Debug)]
pub(super) struct Announcer {
    shared: Arc<Shared>,
    _keeping: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Another process has queued a task.
    heard: Notify,
    /// This process has queued a task.
    announce: Notify,
}

impl Announcer {
    /// Listens on a connection outside of the pool.
    pub(super) fn start(database: Arc<Database>) -> Self {
        let shared = Arc::<Shared>::default();
        let keeping = tokio::spawn(keep(database, shared.clone()));
        Self { shared, _keeping: AbortOnDropHandle::new(keeping) }
    }

    /// Notifies other processes soon.
    pub(super) fn announce(&self) {
        self.shared.announce.notify_one();
    }

    /// Waits until another process has queued a task, or may have.
    pub(super) async fn heard(&self) {
        self.shared.heard.notified().await;
    }
}

async fn keep(database: Arc<Database>, shared: Arc<Shared>) {
    let mut told = false;
    loop {
        if let Err(error) = listen(&database, &shared, &mut told).await
            && !std::mem::replace(&mut told, true)
        {
            tracing::warn!(%error, "could not listen for notifications of other processes; workers poll for tasks every second");
        }
        tokio::time::sleep(RECONNECT.mul_f64(1.0 + rand::random::<f64>())).await;
    }
}

/// Listens and announces until the connection breaks.
async fn listen(database: &Database, shared: &Shared, told: &mut bool) -> Result<()> {
    let (client, mut connection) = database.connect_apart().await?;
    let me = format!("{:016x}", rand::random::<u64>());
    let reading = async {
        let mut messages = futures::stream::poll_fn(|cx| connection.poll_message(cx));
        while let Some(message) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message?
                && notification.payload() != me
            {
                shared.heard.notify_one();
            }
        }
        Err(StoreError::Other("the connection was closed".into()))
    };
    let announcing = async {
        // The channel belongs to the schema, as the tables do.
        let channel: String = client.query_one("SELECT 'tintype_' || current_schema()", &[]).await?.try_get(0)?;
        client.batch_execute(&format!("LISTEN \"{channel}\"")).await?;
        *told = false;
        // Notifications sent before this moment were missed.
        shared.heard.notify_one();
        loop {
            shared.announce.notified().await;
            tokio::time::sleep(DEBOUNCE).await;
            client.batch_execute(&format!("NOTIFY \"{channel}\", '{me}'")).await?;
        }
    };
    tokio::select! {
        ended = reading => ended,
        ended = announcing => ended,
    }
}
