//! LISTEN/NOTIFY: wakes the workers of other processes when a task is queued, and callers that wait at other processes
//! when a task has ended, and carries updates of open pages.
//!
//! A notification is only a hint: workers poll every second anyway, and a caller looks once more when its time is over.
//! Therefore no write waits for it, a burst sends one, and after a lost connection workers and callers all look. A page
//! shows a lost update when it is loaded again.
//!
//! The payload is the name of the sending process and, for ended tasks, their ids or [`ANY`], or an update in JSON.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::{Notify, broadcast};
use tokio_postgres::AsyncMessage;
use tokio_util::task::AbortOnDropHandle;

use super::connection::Database;
use crate::driver::Transaction;
use crate::failure::DbResult;
use crate::{EndingsElsewhere, Result, StoreError};
use tintype_domain::model::Id;

/// Stands for the ids of tasks that a process did not name in time.
const ANY: &str = "*";
/// Most ids in one notification, whose payload is limited to 8,000 bytes.
const IDS_PER_NOTIFICATION: usize = 300;
/// Most ids, or updates, that wait to be sent or read; then the oldest are lost. Ids become [`ANY`].
const MOST_UNREAD: usize = 1_024;
/// The name of the channel in SQL, as short as `LISTEN` makes it.
const CHANNEL: &str = "('tintype_' || current_schema())::name::text";
/// Submits, or endings, within this time share one notification.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Pause before reconnecting; random jitter of up to as much again keeps processes from reconnecting in step.
const RECONNECT: Duration = Duration::from_millis(500);
/// Pause between two checks that the server is still there: shorter than the idle timeouts of most balancers.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Longest wait for the answer to such a check.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// Listens and notifies for one process until it is dropped.
#[derive(Debug)]
pub(crate) struct Notifier {
    pub(crate) shared: Arc<Shared>,
    _keeping: AbortOnDropHandle<()>,
}

/// What to send to other processes, and what they have sent.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Another process has queued a task, or may have.
    pub(crate) queued_elsewhere: Notify,
    /// This process has queued a task.
    pub(crate) queued_here: Notify,
    /// Tasks that other processes have ended; `None` if some may be missing.
    pub(crate) ended_elsewhere: Channel<Option<Id>>,
    /// Tasks that this process has ended.
    pub(crate) ended_here: Channel<Option<Id>>,
    /// Updates of open pages that other processes have sent.
    pub(crate) updates_elsewhere: Channel<String>,
    /// Updates to send to other processes.
    pub(crate) updates_here: Channel<String>,
}

/// A channel to one reader, who loses the oldest of too many.
#[derive(Debug)]
pub(crate) struct Channel<T> {
    sender: broadcast::Sender<T>,
    reader: tokio::sync::Mutex<broadcast::Receiver<T>>,
}

impl<T: Clone> Default for Channel<T> {
    fn default() -> Self {
        let (sender, reader) = broadcast::channel(MOST_UNREAD);
        Self { sender, reader: reader.into() }
    }
}

impl<T: Clone> Channel<T> {
    pub(crate) fn send(&self, message: T) {
        // An error would mean that there is no reader.
        drop(self.sender.send(message));
    }
}

impl Channel<String> {
    /// Waits for the next one.
    pub(crate) async fn next(&self) -> String {
        let mut reader = self.reader.lock().await;
        loop {
            // An error means that some were lost.
            if let Ok(update) = reader.recv().await {
                return update;
            }
        }
    }
}

impl Channel<Option<Id>> {
    /// Waits for the first, and for others that follow within `delay`.
    pub(crate) async fn take(&self, delay: Duration) -> EndingsElsewhere {
        let mut reader = self.reader.lock().await;
        let mut ended = vec![reader.recv().await.ok().flatten()];
        tokio::time::sleep(delay).await;
        loop {
            match reader.try_recv() {
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                next => ended.push(next.ok().flatten()),
            }
        }
        ended.into_iter().collect::<Option<_>>().map_or(EndingsElsewhere::Missed, EndingsElsewhere::Of)
    }
}

impl Notifier {
    /// Listens on a connection outside of the pool.
    pub(super) fn start(database: Arc<Database>) -> Self {
        let shared = Arc::<Shared>::default();
        let keeping = tokio::spawn(keep(database, shared.clone()));
        Self { shared, _keeping: AbortOnDropHandle::new(keeping) }
    }
}

async fn keep(database: Arc<Database>, shared: Arc<Shared>) {
    let mut failures = 0_u32;
    loop {
        if let Err(error) = listen(&database, &shared, &mut failures).await {
            failures = failures.saturating_add(1);
            // A connection that breaks once is replaced at once.
            if failures == 2 {
                tracing::warn!(%error, "could not listen for notifications of other processes; \
                    workers poll for tasks every second");
            }
        }
        // Notifications of this process may have been lost with the connection.
        shared.ended_here.send(None);
        tokio::time::sleep(RECONNECT.mul_f64(1.0 + rand::random::<f64>())).await;
    }
}

/// Listens and notifies until the connection breaks. Sets `failures` to 0 once it listens.
async fn listen(database: &Database, shared: &Shared, failures: &mut u32) -> Result<()> {
    let (client, mut connection) = database.connect_apart().await?;
    let me = format!("{:016x}", rand::random::<u64>());
    let reading = async {
        let mut messages = futures::stream::poll_fn(|cx| connection.poll_message(cx));
        while let Some(message) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message? {
                receive(shared, &me, notification.payload());
            }
        }
        Err(StoreError::other("the connection was closed"))
    };
    let notifying = async {
        let channel = in_time(database, set_up(database, &client)).await?;
        *failures = 0;
        // Notifications sent before this moment were missed.
        shared.queued_elsewhere.notify_one();
        shared.ended_elsewhere.send(None);
        let notify = async |payload: &str| client.batch_execute(&format!("NOTIFY \"{channel}\", '{payload}'")).await;
        let queued = async {
            loop {
                shared.queued_here.notified().await;
                tokio::time::sleep(DEBOUNCE).await;
                notify(&me).await?;
            }
        };
        let ended = async {
            loop {
                match shared.ended_here.take(DEBOUNCE).await {
                    EndingsElsewhere::Missed => notify(&format!("{me} {ANY}")).await?,
                    EndingsElsewhere::Of(ids) => {
                        for ids in ids.chunks(IDS_PER_NOTIFICATION) {
                            let ids: Vec<_> = ids.iter().map(Id::as_str).collect();
                            notify(&format!("{me} {}", ids.join(" "))).await?;
                        }
                    }
                }
            }
        };
        let updated = async {
            loop {
                let payload = format!("{me} {}", shared.updates_here.next().await);
                match client.execute("SELECT pg_notify($1, $2)", &[&channel, &payload]).await {
                    // Workers and callers need the connection more than open pages do.
                    Err(error) if error.as_db_error().is_some() => {
                        tracing::warn!(%error, "could not send an update to other processes; \
                            their pages show it after a reload");
                    }
                    sent => drop(sent?),
                }
            }
        };
        tokio::select! {
            failed = watch_server(database, &client) => failed,
            failed = queued => failed,
            failed = ended => failed,
            failed = updated => failed,
        }
    };
    tokio::select! {
        ended = reading => ended,
        ended = notifying => ended,
    }
}

/// Begins to listen, and returns the name of the channel.
async fn set_up(database: &Database, client: &tokio_postgres::Client) -> Result<String> {
    client.batch_execute(&database.session()).await?;
    // The channel belongs to the schema, as the tables do.
    let channel: String = client.query_one(&format!("SELECT {CHANNEL}"), &[]).await?.try_get(0)?;
    client.batch_execute(&format!("LISTEN \"{channel}\"")).await?;
    Ok(channel)
}

/// Checks periodically that the server is still there, because nothing else notices if it is frozen. Returns if it
/// isn't.
async fn watch_server(database: &Database, client: &tokio_postgres::Client) -> Result<()> {
    loop {
        database.sleep(HEARTBEAT).await;
        in_time(database, async { Ok(client.batch_execute("").await?) }).await?;
    }
}

async fn in_time<T>(database: &Database, work: impl Future<Output = Result<T>>) -> Result<T> {
    let silent = || Err(StoreError::other("the server does not respond"));
    database.within(HEARTBEAT_TIMEOUT, work).await.unwrap_or_else(silent)
}

/// Notifies all processes with the commit that a task has ended: the process of an operator's command ends too soon to
/// do so later.
pub(crate) async fn notify_ending(tx: &Transaction<'_>, task_id: Id) -> DbResult {
    tx.execute(&format!("SELECT pg_notify({CHANNEL}, $1)"), &[&format!("- {task_id}")]).await?;
    Ok(())
}

/// Passes a notification on, unless this process sent it.
fn receive(shared: &Shared, me: &str, payload: &str) {
    match payload.split_once(' ') {
        _ if payload.starts_with(me) => {}
        None => shared.queued_elsewhere.notify_one(),
        Some((_, update)) if update.starts_with('{') => shared.updates_elsewhere.send(update.to_owned()),
        Some((_, ANY)) => shared.ended_elsewhere.send(None),
        Some((_, ids)) => {
            ids.split(' ').filter_map(|id| id.parse().ok()).for_each(|id| shared.ended_elsewhere.send(Some(id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tintype_system::clock::Timestamp;

    #[tokio::test]
    async fn a_slow_reader_loses_the_oldest_and_knows() {
        let (updates, ended) = (Channel::<String>::default(), Channel::<Option<Id>>::default());
        let id = Id::floor(Timestamp::from_millis(7));
        for number in 0..=MOST_UNREAD {
            updates.send(number.to_string());
            ended.send(Some(id));
        }
        assert_eq!(updates.next().await, "1");
        assert_eq!(ended.take(Duration::ZERO).await, EndingsElsewhere::Missed);
        ended.send(Some(id));
        assert_eq!(ended.take(Duration::ZERO).await, EndingsElsewhere::Of(vec![id]));
    }
}
