//! Tells open pages what changes. One task of the process looks at the database for all of them, once a second and only
//! while somebody watches; the endings of this process it hears at once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tintype_engine::Stage;
use tokio::sync::{Notify, broadcast};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::domain::model::{Id, Surface};
use crate::domain::person::TokenHash;
use crate::service::Shared;
use crate::store::Unfinished;

/// Interval at which the unfinished tasks of watched accounts are read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval at which it is checked whether the sessions of open pages have ended.
const CHECK_EVERY: Duration = Duration::from_secs(15);
/// Most changes that wait for a slow page; a page that falls behind reloads its tasks.
const MAX_WAITING: usize = 256;
/// Most pages that watch in one process, and with one session. Each holds a connection.
pub(super) const MAX_WATCHERS: usize = 2_048;
const MAX_WATCHERS_OF_SESSION: usize = 8;

/// A change to a task of an account.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    /// The task is new, was claimed, waits again, or has ended.
    State(Id),
    /// The present attempt at it has come so far, and has shown so many previews.
    Progress(Id, Stage, Option<i64>),
}

/// Tells open pages what changes.
#[derive(Debug)]
pub(super) struct Live {
    shared: Arc<Shared>,
    watched: Mutex<Watched>,
    /// Somebody watches, or a task was created.
    news: Notify,
    /// Ends all streams.
    closing: CancellationToken,
}

#[derive(Debug, Default)]
struct Watched {
    accounts: HashMap<Id, broadcast::Sender<Change>>,
    sessions: HashMap<TokenHash, WatchedSession>,
    watchers: usize,
    /// The unfinished tasks at the last look.
    known: HashMap<Id, Unfinished>,
}

/// A session with open pages.
#[derive(Debug, Default)]
struct WatchedSession {
    watchers: usize,
    /// Cancelled when the session has ended.
    ended: CancellationToken,
}

/// An open page. Dropping it ends the watch.
#[derive(Debug)]
pub(super) struct Watcher {
    studio: Arc<super::Studio>,
    session: TokenHash,
    account: Id,
    /// Cancelled when the session has ended.
    pub(super) ended: CancellationToken,
    pub(super) changes: broadcast::Receiver<Change>,
}

impl Live {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, watched: Mutex::default(), news: Notify::new(), closing: CancellationToken::new() }
    }

    /// Completes when the process stops.
    pub(super) async fn closed(&self) {
        self.closing.cancelled().await;
    }

    /// Watches the tasks of an account; `None` if too many pages do.
    pub(super) fn watch(studio: &Arc<super::Studio>, session: TokenHash, account: Id) -> Option<Watcher> {
        let live = &studio.live;
        let mut watched = live.watched();
        let of_session = watched.sessions.get(&session).map_or(0, |session| session.watchers);
        if watched.watchers >= MAX_WATCHERS || of_session >= MAX_WATCHERS_OF_SESSION {
            return None;
        }
        watched.watchers += 1;
        let of_session = watched.sessions.entry(session).or_default();
        of_session.watchers += 1;
        let ended = of_session.ended.clone();
        let sender = watched.accounts.entry(account).or_insert_with(|| broadcast::Sender::new(MAX_WAITING));
        let changes = sender.subscribe();
        drop(watched);
        live.news.notify_one();
        Some(Watcher { studio: studio.clone(), session, account, ended, changes })
    }

    /// A task of an account was created, cancelled or claimed by this process: look at once.
    pub(super) fn changed(&self, account: Id) {
        if self.watched().accounts.contains_key(&account) {
            self.news.notify_one();
        }
    }

    /// Watches until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        let mut endings = self.shared.endings.subscribe();
        let mut checks = tokio::time::interval(CHECK_EVERY);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let watched = !self.watched().accounts.is_empty();
            tokio::select! {
                () = stop.cancelled() => break,
                ended = endings.recv() => match ended {
                    Ok(ending) if ending.surface == Surface::Web => self.ended(ending.account_id, ending.task_id),
                    Ok(_) => {}
                    // The next look finds what was missed.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => break,
                },
                () = self.news.notified() => self.look().await,
                () = tokio::time::sleep(LOOK_EVERY), if watched => self.look().await,
                _ = checks.tick(), if watched => self.check_sessions().await,
            }
        }
        self.closing.cancel();
    }

    /// Ends the streams of sessions that have ended: one query for all of them.
    async fn check_sessions(&self) {
        let hashes: Vec<TokenHash> = self.watched().sessions.keys().copied().collect();
        if hashes.is_empty() {
            return;
        }
        let live: HashSet<TokenHash> = match self.shared.store.live_sessions(&hashes).await {
            Ok(live) => live.into_iter().collect(),
            Err(error) => {
                tracing::warn!(%error, "could not check the sessions of open pages; trying again");
                return;
            }
        };
        let watched = self.watched();
        for gone in hashes.iter().filter(|hash| !live.contains(*hash)) {
            if let Some(session) = watched.sessions.get(gone) {
                session.ended.cancel();
            }
        }
    }

    fn ended(&self, account: Id, task: Id) {
        let mut watched = self.watched();
        watched.known.remove(&task);
        watched.tell(account, Change::State(task));
    }

    /// Compares the unfinished tasks of watched accounts with those of the last look.
    pub(super) async fn look(&self) {
        let accounts: Vec<Id> = self.watched().accounts.keys().copied().collect();
        if accounts.is_empty() {
            self.watched().known.clear();
            return;
        }
        let found = match self.shared.store.unfinished(&accounts, Surface::Web).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "could not look for changes of the studio's tasks; trying again");
                return;
            }
        };
        let mut watched = self.watched();
        let known = std::mem::take(&mut watched.known);
        for now in &found {
            match known.get(&now.task_id) {
                Some(before) if before.is_leased == now.is_leased => {
                    let stage = |task: &Unfinished| task.attempt.and_then(|attempt| attempt.stage);
                    let same = (stage(before), before.preview) == (stage(now), now.preview);
                    if let (Some(stage), false) = (stage(now), same) {
                        watched.tell(now.account_id, Change::Progress(now.task_id, stage, now.preview));
                    }
                }
                _ => watched.tell(now.account_id, Change::State(now.task_id)),
            }
        }
        watched.known = found.into_iter().map(|task| (task.task_id, task)).collect();
        for gone in known.values().filter(|task| !watched.known.contains_key(&task.task_id)) {
            watched.tell(gone.account_id, Change::State(gone.task_id));
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn tell(&self, account: Id, change: Change) {
        if let Some(sender) = self.accounts.get(&account) {
            // An error means that the last page of the account has just gone.
            drop(sender.send(change));
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut watched = self.studio.live.watched();
        watched.watchers -= 1;
        if let Some(session) = watched.sessions.get_mut(&self.session) {
            session.watchers -= 1;
            if session.watchers == 0 {
                watched.sessions.remove(&self.session);
            }
        }
        // This receiver still counts.
        if watched.accounts.get(&self.account).is_some_and(|sender| sender.receiver_count() <= 1) {
            watched.accounts.remove(&self.account);
        }
    }
}
