//! LISTEN/NOTIFY: wakes the workers of other processes when a task is queued, and callers that wait at other processes
//! when a task has ended, and carries news for open pages.
//!
//! A notification is only a hint: workers poll every second anyway, and a caller looks once more when its time is over.
//! Therefore no write waits for it, a burst sends one, and after a lost connection everyone looks. News that were lost
//! with it show when a page is loaded again.
//!
//! The payload is the name of the sending process and, for ended tasks, their ids or [`ANY`], or news in JSON.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Database, Transaction};
use crate::failure::Done;
use crate::{EndingsElsewhere, Result, StoreError};
use tintype_domain::model::Id;

/// Stands for the ids of tasks that a process did not name in time.
const ANY: &str = "*";
/// Most ids in one notification, whose payload is limited to 8,000 bytes.
const IDS_PER_NOTIFICATION: usize = 300;
/// Most ids that wait to be sent or read; more become [`ANY`].
const MAX_IDS: usize = 10_000;
/// Most news that wait to be sent or read; then the oldest are lost.
const MAX_WAITING_NEWS: usize = 1_000;
/// The name of the channel in SQL, as short as `LISTEN` makes it.
const CHANNEL: &str = "('tintype_' || current_schema())::name::text";
/// Submits, or endings, within this time share one notification.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Pause before reconnecting; random jitter of up to as much again keeps processes from reconnecting in step.
const RECONNECT: Duration = Duration::from_millis(500);
/// Pause between two questions whether the server is still there: shorter than the idle timeouts of most balancers.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Longest wait for the answer.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// Listens and notifies for one process until it is dropped.
#[derive(Debug)]
pub(crate) struct Announcer {
    shared: Arc<Shared>,
    _keeping: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Another process has queued a task.
    heard: Notify,
    /// This process has queued a task.
    announce: Notify,
    /// Other processes have ended tasks.
    heard_endings: Endings,
    /// This process has ended tasks.
    announce_endings: Endings,
    /// What other processes tell.
    heard_news: Notifications,
    /// What this process tells.
    announce_news: Notifications,
}

/// News on their way to a reader, the oldest first.
#[derive(Debug, Default)]
struct Notifications {
    unread: Mutex<VecDeque<String>>,
    some: Notify,
}

impl Notifications {
    fn push(&self, news: String) {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        if unread.len() >= MAX_WAITING_NEWS {
            unread.pop_front();
        }
        unread.push_back(news);
        self.some.notify_one();
    }

    async fn next(&self) -> String {
        loop {
            let next = self.unread.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match next {
                Some(news) => return news,
                None => self.some.notified().await,
            }
        }
    }
}

/// Ended tasks on their way to a reader.
#[derive(Debug)]
struct Endings {
    unread: Mutex<EndingsElsewhere>,
    some: Notify,
}

impl Default for Endings {
    fn default() -> Self {
        Self { unread: Mutex::new(EndingsElsewhere::Of(Vec::new())), some: Notify::new() }
    }
}

impl Endings {
    /// Adds ended tasks.
    fn push(&self, task_ids: impl IntoIterator<Item = Id>) {
        self.change(|unread| {
            let EndingsElsewhere::Of(ids) = unread else { return };
            ids.extend(task_ids);
            if ids.len() > MAX_IDS {
                *unread = EndingsElsewhere::Missed;
            }
        });
    }

    /// Notes that some are missing.
    fn miss(&self) {
        self.change(|unread| *unread = EndingsElsewhere::Missed);
    }

    fn change(&self, change: impl FnOnce(&mut EndingsElsewhere)) {
        change(&mut self.unread.lock().unwrap_or_else(PoisonError::into_inner));
        self.some.notify_one();
    }

    /// Waits for the first, and for others that follow within `delay`.
    async fn take(&self, delay: Duration) -> EndingsElsewhere {
        self.some.notified().await;
        tokio::time::sleep(delay).await;
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut unread, EndingsElsewhere::Of(Vec::new()))
    }
}

impl Announcer {
    /// Listens on a connection outside of the pool.
    pub(super) fn start(database: Arc<Database>) -> Self {
        let shared = Arc::<Shared>::default();
        let keeping = tokio::spawn(keep(database, shared.clone()));
        Self { shared, _keeping: AbortOnDropHandle::new(keeping) }
    }

    /// Notifies other processes soon.
    pub(crate) fn announce(&self) {
        self.shared.announce.notify_one();
    }

    /// Tells other processes soon that this one has ended a task.
    pub(crate) fn announce_ending(&self, task_id: Id) {
        self.shared.announce_endings.push([task_id]);
    }

    /// Waits until other processes have ended tasks.
    pub(crate) async fn heard_endings(&self) -> EndingsElsewhere {
        self.shared.heard_endings.take(Duration::ZERO).await
    }

    /// Tells other processes what open pages show.
    pub(crate) fn announce_news(&self, news: String) {
        self.shared.announce_news.push(news);
    }

    /// Waits for what another process tells.
    pub(crate) async fn heard_news(&self) -> String {
        self.shared.heard_news.next().await
    }

    /// Waits until another process has queued a task, or may have.
    pub(crate) async fn heard(&self) {
        self.shared.heard.notified().await;
    }
}

async fn keep(database: Arc<Database>, shared: Arc<Shared>) {
    let mut failures = 0_u32;
    loop {
        if let Err(error) = listen(&database, &shared, &mut failures).await {
            failures = failures.saturating_add(1);
            // A connection that breaks is replaced at once, and nobody need know.
            if failures == 2 {
                tracing::warn!(%error, "could not listen for notifications of other processes; \
                    workers poll for tasks every second");
            }
        }
        // Notifications of this process may have been lost with the connection.
        shared.announce_endings.miss();
        tokio::time::sleep(RECONNECT.mul_f64(1.0 + rand::random::<f64>())).await;
    }
}

/// Listens and announces until the connection breaks. There are no `failures` any more once it listens.
async fn listen(database: &Database, shared: &Shared, failures: &mut u32) -> Result<()> {
    let (client, mut connection) = database.connect_apart().await?;
    let me = format!("{:016x}", rand::random::<u64>());
    let reading = async {
        let mut messages = futures::stream::poll_fn(|cx| connection.poll_message(cx));
        while let Some(message) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message? {
                hear(shared, &me, notification.payload());
            }
        }
        Err(StoreError::other("the connection was closed"))
    };
    let announcing = async {
        let channel = in_time(database, set_up(database, &client)).await?;
        *failures = 0;
        // Notifications sent before this moment were missed.
        shared.heard.notify_one();
        shared.heard_endings.miss();
        let notify = async |payload: &str| client.batch_execute(&format!("NOTIFY \"{channel}\", '{payload}'")).await;
        let queued = async {
            loop {
                shared.announce.notified().await;
                tokio::time::sleep(DEBOUNCE).await;
                notify(&me).await?;
            }
        };
        let ended = async {
            loop {
                match shared.announce_endings.take(DEBOUNCE).await {
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
        let told = async {
            loop {
                let payload = format!("{me} {}", shared.announce_news.next().await);
                match client.execute("SELECT pg_notify($1, $2)", &[&channel, &payload]).await {
                    // Workers and callers need the connection more than open pages do.
                    Err(error) if error.as_db_error().is_some() => {
                        tracing::warn!(%error, "could not send news to other processes; their pages show them after a reload");
                    }
                    sent => drop(sent?),
                }
            }
        };
        tokio::select! {
            failed = stay_in_touch(database, &client) => failed,
            failed = queued => failed,
            failed = ended => failed,
            failed = told => failed,
        }
    };
    tokio::select! {
        ended = reading => ended,
        ended = announcing => ended,
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

/// Asks the server now and then whether it is still there: nothing else notices that it is frozen. Returns when it is not.
async fn stay_in_touch(database: &Database, client: &tokio_postgres::Client) -> Result<()> {
    loop {
        database.sleep(HEARTBEAT).await;
        in_time(database, async { Ok(client.batch_execute("").await?) }).await?;
    }
}

async fn in_time<T>(database: &Database, work: impl Future<Output = Result<T>>) -> Result<T> {
    let silent = || Err(StoreError::other("the server does not respond"));
    database.within(HEARTBEAT_TIMEOUT, work).await.unwrap_or_else(silent)
}

/// Tells all processes with the commit that a task has ended: the process of an operator's command ends too soon to tell it
/// later.
pub(crate) async fn notify_ending(begun: &Transaction<'_>, task_id: Id) -> Done {
    begun.execute(&format!("SELECT pg_notify({CHANNEL}, $1)"), &[&format!("- {task_id}")]).await?;
    Ok(())
}

/// Passes a notification on, unless this process sent it.
fn hear(shared: &Shared, me: &str, payload: &str) {
    match payload.split_once(' ') {
        _ if payload.starts_with(me) => {}
        None => shared.heard.notify_one(),
        Some((_, news)) if news.starts_with('{') => shared.heard_news.push(news.to_owned()),
        Some((_, ANY)) => shared.heard_endings.miss(),
        Some((_, ids)) => shared.heard_endings.push(ids.split(' ').filter_map(|id| id.parse().ok())),
    }
}
