//! Previews of pictures that are being made, for callers of the API who asked for them. One look at the database serves all
//! callers of a process, once a second and only while someone waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::service::ServiceContext;
use tintype_domain::model::{Id, Surface};
use tintype_store::{FoundPreview, SoughtPreview};
use tintype_system::locked::Locked as _;

/// How often previews are polled, which is also how often workers report them.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks for previews.
#[derive(Debug)]
pub struct Previews {
    shared: Arc<ServiceContext>,
    watched: Mutex<Watched>,
    /// Someone waits.
    news: Notify,
}

#[derive(Debug, Default)]
struct Watched {
    tasks: HashMap<u64, WatchedTask>,
    next: u64,
}

#[derive(Debug)]
struct WatchedTask {
    account_id: Id,
    task_id: Id,
    most: u8,
    shown: u8,
    number: i64,
    sender: mpsc::Sender<Bytes>,
}

/// A caller who waits for previews of a task. Dropping it ends the wait.
#[derive(Debug)]
pub struct PreviewSubscription {
    previews: Arc<Previews>,
    number: u64,
    receiver: mpsc::Receiver<Bytes>,
}

impl Previews {
    /// Looks in the store of this process.
    pub fn new(shared: Arc<ServiceContext>) -> Arc<Self> {
        Arc::new(Self { shared, watched: Mutex::default(), news: Notify::new() })
    }

    /// Waits for up to `most` previews of a task of the API, which its worker shows only if its submit asked for them.
    pub fn subscribe(self: &Arc<Self>, account_id: Id, task_id: Id, most: u8) -> PreviewSubscription {
        let (sender, receiver) = mpsc::channel(usize::from(most.max(1)));
        let mut watched = self.watched.locked();
        let number = watched.next;
        watched.next += 1;
        watched.tasks.insert(number, WatchedTask { account_id, task_id, most, shown: 0, number: 0, sender });
        self.news.notify_one();
        PreviewSubscription { previews: self.clone(), number, receiver }
    }

    /// Looks until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let pause = async {
                if self.watched.locked().tasks.is_empty() {
                    self.news.notified().await;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = pause => self.look().await,
            }
        }
    }

    /// Shows the previews that are new and due, to each caller.
    pub async fn look(&self) {
        let (numbers, sought): (Vec<u64>, Vec<SoughtPreview>) =
            self.watched.locked().tasks.iter().filter_map(|(number, task)| Some((*number, task.sought()?))).unzip();
        if sought.is_empty() {
            return;
        }
        let found = match self.shared.store.find_previews(Surface::Api, &sought).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "could not look for previews; retrying");
                return;
            }
        };
        let mut watched = self.watched.locked();
        for FoundPreview { place, number, png } in found {
            if let Some(task) = numbers.get(place).and_then(|watch| watched.tasks.get_mut(watch)) {
                task.number = number;
                task.shown += 1;
                // The channel has room for all of them, unless the caller has just gone.
                drop(task.sender.try_send(png));
            }
        }
    }
}

impl WatchedTask {
    /// The next preview to show; `None` after the last one. They are spread over the work: of two, one is due after a third
    /// of it and the other after two thirds.
    fn sought(&self) -> Option<SoughtPreview> {
        let Self { account_id, task_id, most, shown, number, .. } = *self;
        let from = (f64::from(shown) + 1.0) / (f64::from(most) + 1.0);
        (shown < most).then_some(SoughtPreview { account_id, task_id, shown: number, from })
    }
}

impl PreviewSubscription {
    /// The next preview, a small PNG. Waits for ever after the last one.
    pub async fn shown(&mut self) -> Bytes {
        match self.receiver.recv().await {
            Some(png) => png,
            None => std::future::pending().await,
        }
    }
}

impl Drop for PreviewSubscription {
    fn drop(&mut self) {
        self.previews.watched.locked().tasks.remove(&self.number);
    }
}
