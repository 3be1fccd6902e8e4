//! Sends changes to open pages. A single task in the process polls the database for all of them, once a second and only
//! while pages are watching; it gets this process's endings at once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tintype_engine::Stage;
use tokio::sync::{Notify, broadcast};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::session::Visitor;
use crate::service::ServiceContext;
use crate::service::endings::Ending;
use crate::service::shares::is_within_share;
use crate::service::tasks::Tasks;
use crate::service::wait_estimator::is_predictive;
use tintype_domain::model::{Id, Surface, TaskRef};
use tintype_domain::person::{Person, TokenHash};
use tintype_store::Unfinished;
use tintype_system::locked::Locked as _;

/// Interval at which the unfinished tasks of watched accounts are read, and whether the sessions of open pages last.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most changes that wait for a slow page; a page that falls behind reloads its tasks.
const MAX_WAITING: usize = 256;
/// Most tasks in one message to other processes.
const TASKS_OF_AN_UPDATE: usize = 250;
/// Most pages that watch in one process. Each holds a connection.
pub(super) const MAX_WATCHERS: usize = 2_048;
const MAX_WATCHERS_OF_SESSION: usize = 8;
/// Most of them per person.
pub const MAX_WATCHERS_OF_PERSON: usize = 64;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// The task is new, was claimed, waits again, or has ended.
    State(Id),
    /// It is in progress, and has got this far.
    Progress(Id, TaskProgress),
    /// A person of the account has done something with its pictures or boards.
    Marks(Arc<Marks>),
    /// The queue was paused, or resumed.
    Queue { paused: bool },
}

/// What someone did with pictures or boards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Marks {
    pub(super) what: Mark,
    /// Who did it.
    pub(super) person: Id,
    /// The tasks, unless it was done with boards.
    pub(super) tasks: Vec<Id>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mark {
    Starred,
    Unstarred,
    /// Moved to the bin.
    Deleted,
    Restored,
    /// Boards were made, changed or removed, or have other pictures.
    Boards,
}

#[derive(Debug, Serialize, Deserialize)]
struct ClusterMessage {
    account: Id,
    marks: Marks,
}

/// The tasks of an update, in parts that each fit into one message; one part without any if it is about boards.
fn parts(tasks: &[Id]) -> impl Iterator<Item = &[Id]> {
    let all = if tasks.is_empty() { Some(tasks) } else { None };
    all.into_iter().chain(tasks.chunks(TASKS_OF_AN_UPDATE))
}

/// How far an unfinished task is, as pages show it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TaskProgress {
    /// Whether no worker holds it.
    pub(super) waits: bool,
    /// Its rank by age among the waiting tasks of the account in the studio, from 1; 0 if that is unknown.
    pub(super) position: u64,
    /// Seconds until it ends, once they can be told; rounded, because they are an estimate.
    pub(super) left: Option<u64>,
    /// The stage that its present attempt has reported.
    pub(super) stage: Option<Stage>,
    pub(super) preview: Option<i64>,
}

impl TaskProgress {
    /// Reads it. The database is asked at most once a second, whatever the number of tasks.
    pub(super) async fn of(tasks: &Tasks, task: &Unfinished) -> Self {
        let queued = TaskRef { id: task.task_id, account_id: task.account_id, surface: Surface::Web };
        let queue = tasks.queue_position_of(queued, task.image_to_image, task.attempt).await;
        // A first guess from the time of other tasks would soon give way to a very different one.
        let is_known = !task.is_leased || task.attempt.is_some_and(is_predictive);
        Self {
            waits: !task.is_leased,
            position: if task.is_leased { 0 } else { queue.position },
            left: queue.wait.filter(|wait| is_known && !wait.is_zero()).map(|wait| rounded(wait.as_secs())),
            stage: task.attempt.and_then(|attempt| attempt.stage),
            preview: task.preview,
        }
    }
}

/// An estimate in seconds, rounded up: the longer, the coarser.
fn rounded(seconds: u64) -> u64 {
    let step = match seconds {
        0..=10 => 1,
        11..=60 => 5,
        _ => 10,
    };
    seconds.next_multiple_of(step).max(1)
}

/// Sends changes to open pages.
#[derive(Debug)]
pub(super) struct Live {
    shared: Arc<ServiceContext>,
    tasks: Arc<Tasks>,
    watched: Mutex<Watched>,
    /// Someone watches, or a task was created.
    news: Notify,
    /// Ends all streams.
    closing: CancellationToken,
}

#[derive(Debug, Default)]
struct Watched {
    accounts: HashMap<Id, broadcast::Sender<Change>>,
    sessions: HashMap<TokenHash, WatchedSession>,
    watchers: usize,
    /// Whether the queue was paused at the last look.
    is_paused: bool,
    /// The unfinished tasks at the last look.
    known: HashMap<Id, (Unfinished, TaskProgress)>,
}

#[derive(Debug)]
struct WatchedSession {
    person: Id,
    watchers: usize,
    /// Cancelled when the session has ended.
    ended: CancellationToken,
}

impl WatchedSession {
    fn new(person: Id) -> Self {
        Self { person, watchers: 0, ended: CancellationToken::new() }
    }
}

/// An open page. Dropping it ends the watch.
#[derive(Debug)]
pub(super) struct Watcher {
    studio: Arc<super::Studio>,
    session: TokenHash,
    account: Id,
    person: Id,
    /// Cancelled when the session has ended.
    pub(super) ended: CancellationToken,
    pub(super) changes: broadcast::Receiver<Change>,
}

impl Live {
    pub(super) fn new(shared: Arc<ServiceContext>, tasks: Arc<Tasks>) -> Self {
        Self { shared, tasks, watched: Mutex::default(), news: Notify::new(), closing: CancellationToken::new() }
    }

    /// Completes when the process stops.
    pub(super) async fn closed(&self) {
        self.closing.cancelled().await;
    }

    /// Watches the tasks of an account; `None` if too many pages do.
    pub(super) fn watch(studio: &Arc<super::Studio>, session: TokenHash, by: &Person) -> Option<Watcher> {
        let (account, person) = (by.account_id, by.id);
        let live = &studio.live;
        let mut watched = live.watched.locked();
        if !watched.has_room(session, by) {
            return None;
        }
        watched.watchers += 1;
        let of_session = watched.sessions.entry(session).or_insert_with(|| WatchedSession::new(person));
        of_session.watchers += 1;
        let ended = of_session.ended.clone();
        let sender = watched.accounts.entry(account).or_insert_with(|| broadcast::Sender::new(MAX_WAITING));
        let changes = sender.subscribe();
        drop(watched);
        live.news.notify_one();
        Some(Watcher { studio: studio.clone(), session, account, person, ended, changes })
    }

    /// A task of an account was created, cancelled or claimed by this process: look at once.
    pub(super) fn changed(&self, account: Id) {
        if self.watched.locked().accounts.contains_key(&account) {
            self.news.notify_one();
        }
    }

    /// Sends the open pages of an account what a person did, at this process and at others.
    pub(super) fn announce(&self, account: Id, marks: Marks) {
        for tasks in parts(&marks.tasks) {
            let part = Marks { tasks: tasks.to_vec(), ..marks };
            match serde_json::to_string(&ClusterMessage { account, marks: part }) {
                Ok(update) => self.shared.store.send_update(update),
                Err(error) => tracing::error!(%error, "could not write an update for the pages of other processes"),
            }
        }
        self.watched.locked().send(account, Change::Marks(Arc::new(marks)));
    }

    /// Passes on what a person did at another process.
    fn receive(&self, update: &str) {
        match serde_json::from_str(update) {
            Ok(ClusterMessage { account, marks }) => {
                self.watched.locked().send(account, Change::Marks(Arc::new(marks)))
            }
            Err(error) => tracing::debug!(%error, "an update of another release is not for this one"),
        }
    }

    /// Whether the queue was paused at the last look. A watcher receives each change since.
    pub(super) fn is_paused(&self) -> bool {
        self.watched.locked().is_paused
    }

    pub(super) async fn run(&self, stop: CancellationToken) {
        let mut endings = self.shared.endings.subscribe();
        // An interval, because a new sleep for each turn would never end beside frequent updates.
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let watched = !self.watched.locked().accounts.is_empty();
            tokio::select! {
                () = stop.cancelled() => break,
                ended = endings.recv() => match ended {
                    Ok(Ending { task, .. }) if task.surface == Surface::Web => self.ended(task.account_id, task.id),
                    Ok(_) => {}
                    // The next look finds what was missed.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => break,
                },
                () = self.news.notified() => self.look().await,
                update = self.shared.store.update_elsewhere() => self.receive(&update),
                _ = looks.tick(), if watched => {
                    self.check_sessions().await;
                    self.look().await;
                }
            }
        }
        self.closing.cancel();
    }

    /// Ends the streams of sessions that have ended: one query for all of them.
    async fn check_sessions(&self) {
        let hashes: Vec<TokenHash> = self.watched.locked().sessions.keys().copied().collect();
        if hashes.is_empty() {
            return;
        }
        let live: HashSet<TokenHash> = match self.shared.store.live_sessions(&hashes).await {
            Ok(live) => live.into_iter().collect(),
            Err(error) => {
                tracing::warn!(%error, "could not check the sessions of open pages; retrying");
                return;
            }
        };
        let watched = self.watched.locked();
        for gone in hashes.iter().filter(|hash| !live.contains(*hash)) {
            if let Some(session) = watched.sessions.get(gone) {
                session.ended.cancel();
            }
        }
    }

    fn ended(&self, account: Id, task: Id) {
        let mut watched = self.watched.locked();
        watched.known.remove(&task);
        watched.send(account, Change::State(task));
    }

    /// Compares watched accounts' unfinished tasks with the previous look.
    pub(super) async fn look(&self) {
        let accounts: Vec<Id> = self.watched.locked().accounts.keys().copied().collect();
        if accounts.is_empty() {
            self.watched.locked().known.clear();
            return;
        }
        let found = match self.shared.store.unfinished(&accounts, Surface::Web).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "could not poll for changes of studio tasks; retrying");
                return;
            }
        };
        let mut tasks = Vec::with_capacity(found.len());
        for task in found {
            let progress = TaskProgress::of(&self.tasks, &task).await;
            tasks.push((task, progress));
        }
        let paused_at = self.shared.store.queue_paused_at().await;
        let mut watched = self.watched.locked();
        // A page that cannot know keeps its banner as it is.
        if let Ok(paused) = paused_at.map(|since| since.is_some())
            && watched.is_paused != paused
        {
            watched.is_paused = paused;
            watched.accounts.keys().for_each(|account| watched.send(*account, Change::Queue { paused }));
        }
        let known = std::mem::take(&mut watched.known);
        for (task, now) in &tasks {
            match known.get(&task.task_id) {
                Some((_, before)) if before == now => {}
                Some((_, before)) if before.waits == now.waits => {
                    watched.send(task.account_id, Change::Progress(task.task_id, *now));
                }
                _ => watched.send(task.account_id, Change::State(task.task_id)),
            }
        }
        watched.known = tasks.into_iter().map(|found| (found.0.task_id, found)).collect();
        for (gone, _) in known.values().filter(|(task, _)| !watched.known.contains_key(&task.task_id)) {
            watched.send(gone.account_id, Change::State(gone.task_id));
        }
    }
}

impl Visitor {
    /// Sends the open pages of the account what this person did, at this process and at others.
    pub(super) fn announce(&self, what: Mark, tasks: Vec<Id>) {
        self.studio.live.announce(self.account_id(), Marks { what, person: self.person_id(), tasks });
    }
}

impl Watched {
    /// Whether another page of a session can watch. An account gets no more than half of what the others leave.
    fn has_room(&self, session: TokenHash, by: &Person) -> bool {
        let of_session = self.sessions.get(&session).map_or(0, |session| session.watchers);
        let of_person = self.sessions.values().filter(|session| session.person == by.id);
        let of_person: usize = of_person.map(|session| session.watchers).sum();
        let of_account = self.accounts.get(&by.account_id).map_or(0, broadcast::Sender::receiver_count);
        of_session < MAX_WATCHERS_OF_SESSION
            && of_person < MAX_WATCHERS_OF_PERSON
            && is_within_share(MAX_WATCHERS, of_account, self.watchers - of_account, 1)
    }

    fn send(&self, account: Id, change: Change) {
        if let Some(sender) = self.accounts.get(&account) {
            // An error means that the last page of the account has just gone.
            drop(sender.send(change));
        }
    }
}

impl Watcher {
    /// Whether this page receives a change. Stars are each person's own.
    pub(super) fn receives(&self, change: &Change) -> bool {
        match change {
            Change::Marks(marks) => {
                !matches!(marks.what, Mark::Starred | Mark::Unstarred) || marks.person == self.person
            }
            Change::State(_) | Change::Progress(..) | Change::Queue { .. } => true,
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut watched = self.studio.live.watched.locked();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_about_any_number_of_tasks_fit_into_messages() {
        let id = Id::floor(tintype_domain::timestamp::Timestamp::from_millis(1));
        assert_eq!(parts(&[]).count(), 1);
        let many = vec![id; 10_000];
        assert_eq!(parts(&many).map(<[Id]>::len).sum::<usize>(), 10_000);
        let tasks = parts(&many).next().expect("a part").to_vec();
        let marks = Marks { what: Mark::Unstarred, person: id, tasks };
        let update = serde_json::to_string(&ClusterMessage { account: id, marks }).expect("JSON");
        assert!(update.len() <= tintype_store::MAX_UPDATE_BYTES && update.starts_with('{'), "{}", update.len());
    }

    #[test]
    fn estimates_are_coarser_the_longer_they_are() {
        assert_eq!([0, 1, 10, 11, 58, 61, 124].map(rounded), [1, 1, 10, 15, 60, 70, 130]);
    }
}
