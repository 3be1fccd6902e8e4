//! Tells the workers of other processes that there is something to do, and hears them.
//!
//! A hint and nothing more: workers look for tasks by themselves every second. So it never waits in a submit, a
//! burst of submits makes one notification, and after a connection was lost the worker is woken to look anew.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_postgres::AsyncMessage;

use super::connection::{Database, Driven};
use crate::store::{Result, StoreError};

/// What is announced within this time is announced once.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Longest that a notification takes from this process to itself.
const SELF_TEST: Duration = Duration::from_secs(5);
/// Wait before a lost connection is made anew; up to twice as long, so that not all processes come at once.
const RECONNECT: Duration = Duration::from_millis(500);

/// The bell of one process; stops listening when dropped.
#[derive(Debug)]
pub(super) struct Bell {
    shared: Arc<Shared>,
    keeping: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Rung by another process.
    heard: Notify,
    /// Something is to be announced.
    announce: Notify,
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

impl Bell {
    /// Listens on a connection of its own, for as long as the bell exists.
    pub(super) fn hang(database: Arc<Database>) -> Self {
        let shared = Arc::<Shared>::default();
        let keeping = tokio::spawn(keep(database, shared.clone()));
        Self { shared, keeping }
    }

    /// Tells other processes, soon.
    pub(super) fn ring(&self) {
        self.shared.announce.notify_one();
    }

    /// Waits until another process rings, or may have done so unheard.
    pub(super) async fn heard(&self) {
        self.shared.heard.notified().await;
    }
}

async fn keep(database: Arc<Database>, shared: Arc<Shared>) {
    let mut told = false;
    loop {
        match listen(&database, &shared, &mut told).await {
            Ok(()) => {}
            Err(error) if !told => {
                tracing::warn!(%error, "cannot listen for other processes; workers look every second");
                told = true;
            }
            Err(error) => tracing::debug!(%error, "cannot listen for other processes"),
        }
        tokio::time::sleep(RECONNECT.mul_f64(1.0 + rand::random::<f64>())).await;
    }
}

/// Listens and announces until the connection breaks.
async fn listen(database: &Database, shared: &Shared, told: &mut bool) -> Result<()> {
    let Driven { client, mut connection } = database.connect_apart().await?;
    let (heard, mut notifications) = mpsc::unbounded_channel();
    let driving = async move {
        let mut messages = futures::stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(message) = messages.next().await {
            match message {
                Ok(AsyncMessage::Notification(notification)) => drop(heard.send(notification.payload().to_owned())),
                Ok(_) => {}
                Err(error) => return StoreError::from(error),
            }
        }
        StoreError::Other("the connection was closed".into())
    };
    let me = format!("{:016x}", rand::random::<u64>());
    let talking = async {
        // The channel belongs to the schema, as the tables do.
        let channel: String = client.query_one("SELECT 'tintype_' || current_schema()", &[]).await?.try_get(0)?;
        client.batch_execute(&format!("LISTEN \"{channel}\"")).await?;
        let announce = format!("NOTIFY \"{channel}\", '{me}'");
        client.batch_execute(&announce).await?;
        let echo = tokio::time::timeout(SELF_TEST, notifications.recv()).await;
        if !matches!(echo, Ok(Some(_))) {
            return Err(StoreError::Other("notifications do not arrive: is there a pooler in between?".into()));
        }
        *told = false;
        // Whatever was announced before this moment was not heard.
        shared.heard.notify_one();
        loop {
            tokio::select! {
                payload = notifications.recv() => match payload {
                    Some(payload) if payload == me => {}
                    Some(_) => shared.heard.notify_one(),
                    None => return Ok(()),
                },
                () = shared.announce.notified() => {
                    tokio::time::sleep(DEBOUNCE).await;
                    client.batch_execute(&announce).await?;
                }
            }
        }
    };
    tokio::select! {
        error = driving => Err(error),
        outcome = talking => outcome,
    }
}
