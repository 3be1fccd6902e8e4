//! An engine's servers. Work goes to the least loaded one. An unavailable server is taken out of rotation and probed
//! until it is back; work that it didn't begin goes to another.
//!
//! A server that rejects work, or fails to do it, but answers a probe stays in rotation: the work itself may be the
//! cause, and must not block others' work. It goes to another server, or waits. A server that failed several pieces of
//! work in a row is tried now and then, while another does the rest.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use tintype_engine::{Brief, EngineError, Failures};
use tintype_system::locked::Locked as _;
use tokio::sync::Notify;

use super::endpoint::{Fault, Reached};

/// Wait before the first probe of a server that was taken out of rotation.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait that a server can ask for.
const MAX_ASKED_PAUSE: Duration = Duration::from_secs(600);
/// Time limit for a probe; less than the worker waits for one.
const PROBE_LIMIT: Duration = Duration::from_secs(4);
/// Interval between further probes.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// Interval between tries of a server that is to blame, while another one works.
const TRY_EVERY: Duration = Duration::from_secs(5);

/// An engine's server.
#[async_trait]
pub trait Server: fmt::Debug + Send + Sync + 'static {
    /// The server's name for the operator, such as its URL.
    fn name(&self) -> &str;

    /// Whether it can take work, as far as this process knows without asking. A server whose answer changes by itself
    /// stays in rotation: it gets work as soon as it can take some.
    ///
    /// # Errors
    /// The reason why it takes no work.
    fn readiness(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Asks the server whether it is accepting work.
    ///
    /// # Errors
    /// The reason why it takes no work.
    async fn probe(&self) -> Result<(), Fault>;
}

/// An engine's servers.
#[derive(Debug)]
pub struct Servers<S> {
    shared: Arc<Shared<S>>,
}

#[derive(Debug)]
struct Shared<S> {
    servers: Vec<Arc<S>>,
    /// Calls per server at a time.
    calls_per_server: usize,
    states: Mutex<Vec<ServerLoad>>,
    /// A place became free, or a server left or rejoined rotation.
    changed: Notify,
}

#[derive(Debug, Clone, Default)]
struct ServerLoad {
    load: usize,
    calls: u64,
    /// Why it is out of rotation, for the operator.
    outage: Option<String>,
    failures: Failures<BriefHash>,
}

/// Identifies a brief. A later attempt at the same task has the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BriefHash(u64);

impl From<&Brief> for BriefHash {
    fn from(brief: &Brief) -> Self {
        Self(BuildHasherDefault::<DefaultHasher>::default().hash_one((&brief.prompt, &brief.seeds)))
    }
}

#[derive(Debug)]
struct Rejection {
    cause: String,
    pause: Option<Duration>,
    is_busy: bool,
}

/// A place at a server, held until dropped.
struct ServerPermit<'a, S> {
    shared: &'a Arc<Shared<S>>,
    index: usize,
}

impl<S> Drop for ServerPermit<'_, S> {
    fn drop(&mut self) {
        self.shared.states.locked()[self.index].load -= 1;
        self.shared.changed.notify_waiters();
    }
}

impl<S: Server> Servers<S> {
    /// Servers that take up to `calls_per_server` calls at a time each.
    pub fn new(servers: impl IntoIterator<Item = S>, calls_per_server: usize) -> Self {
        let servers: Vec<_> = servers.into_iter().map(Arc::new).collect();
        let (states, changed) = (Mutex::new(vec![ServerLoad::default(); servers.len()]), Notify::new());
        Self { shared: Arc::new(Shared { servers, calls_per_server, states, changed }) }
    }

    /// All servers, in the order of the settings.
    pub fn all(&self) -> &[Arc<S>] {
        &self.shared.servers
    }

    /// The number of servers.
    pub fn count(&self) -> usize {
        self.shared.servers.len()
    }

    /// Does `work` at the least loaded server. If that one rejects it, another one gets it. `by` includes decoding, so
    /// that a server that returns nothing usable is noticed.
    ///
    /// # Errors
    /// The error of `by`; [`EngineError::TurnedAway`] if a server that seems sound rejected it, and no other took it;
    /// [`EngineError::NotAvailable`] if all servers are out of rotation.
    pub async fn call<T, F>(&self, work: BriefHash, by: impl Fn(Arc<S>) -> F) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut tried = HashMap::new();
        loop {
            let permit = match self.permit(work, &tried).await {
                Ok(permit) => permit,
                Err(cause) if tried.is_empty() => return Err(EngineError::NotAvailable(cause)),
                Err(cause) => {
                    let pause = tried.values().filter_map(|rejection: &Rejection| rejection.pause).min();
                    let is_busy = tried.values().any(|rejection| rejection.is_busy);
                    return Err(EngineError::TurnedAway { cause, pause, is_busy });
                }
            };
            match by(self.shared.servers[permit.index].clone()).await {
                Ok(done) => {
                    let mut states = self.shared.states.locked();
                    states[permit.index].failures.clear();
                    states.iter_mut().for_each(|state| state.failures.note_done_elsewhere(work));
                    drop(states);
                    return Ok(done);
                }
                Err(Fault { error: EngineError::NotAvailable(cause), pause, is_busy, .. }) => {
                    let rejection = Rejection { cause, pause, is_busy };
                    if let Some(rejection) = self.handle_rejection(permit.index, work, rejection).await {
                        tried.insert(permit.index, rejection);
                    }
                }
                Err(fault) => {
                    if matches!(fault.error, EngineError::Temporary(_)) {
                        self.handle_failure(permit.index, work, fault.reached).await;
                    }
                    return Err(fault.error);
                }
            }
        }
    }

    /// Notes that a server failed to do work that it had begun. If the connection ended, what answers for the server
    /// may be a relay in front of it, so it is probed, and taken out of rotation if the probe fails.
    async fn handle_failure(&self, index: usize, work: BriefHash, reached: Reached) {
        self.shared.states.locked()[index].failures.note(work, false);
        if reached == Reached::Cut
            && let Err(fault) = probe_in_time(&*self.shared.servers[index]).await
        {
            self.shared.take_out(index, fault.error.into_cause(), fault.pause);
        }
    }

    /// Takes a server that rejected work out of rotation, if it fails a probe, or asks for a pause and has also
    /// rejected other work. If it stays, returns the rejection.
    async fn handle_rejection(&self, index: usize, work: BriefHash, rejection: Rejection) -> Option<Rejection> {
        let asks_for_pauses = {
            let failures = &mut self.shared.states.locked()[index].failures;
            failures.note(work, rejection.pause.is_some());
            failures.asks_for_pauses()
        };
        // A server that asks for a pause isn't probed.
        let (is_out, pause) = match rejection.pause {
            Some(pause) => (asks_for_pauses, Some(pause)),
            None => match probe_in_time(&*self.shared.servers[index]).await {
                Ok(()) => (false, None),
                Err(fault) => (true, fault.pause),
            },
        };
        if is_out {
            self.shared.take_out(index, rejection.cause, pause);
            return None;
        }
        let (server, cause) = (self.shared.servers[index].name(), &rejection.cause);
        tracing::warn!(server, cause, "an engine server rejected a task; trying another server, or waiting");
        Some(rejection)
    }

    /// Probes the servers in rotation.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if none of the servers is accepting work.
    pub async fn probe(&self) -> Result<(), EngineError> {
        let probing = self.shared.servers.iter().enumerate().map(async |(index, server)| {
            let outage = self.shared.states.locked()[index].outage.clone();
            match outage {
                Some(cause) => Err(cause),
                None => {
                    server.readiness().map_err(EngineError::into_cause)?;
                    probe_in_time(&**server).await.map_err(|fault| {
                        let cause = fault.error.into_cause();
                        self.shared.take_out(index, cause.clone(), fault.pause);
                        cause
                    })
                }
            }
        });
        one_is_ready(join_all(probing).await)
    }

    /// Probes the servers, of which at least one must answer that it is accepting work.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if none does.
    pub async fn check(&self) -> Result<(), EngineError> {
        let checks = self.shared.servers.iter().map(async |server| {
            server.readiness().map_err(EngineError::into_cause)?;
            let (name, seconds) = (server.name(), PROBE_LIMIT.as_secs());
            match probe_once(&**server).await {
                Some(probed) => probed.map_err(|fault| fault.error.into_cause()),
                None => Err(format!(
                    "{name} gave no answer within {seconds} s: it may be loading a model, or not be the engine"
                )),
            }
        });
        one_is_ready(join_all(checks).await)
    }

    /// A place at an untried server, or why none is left.
    async fn permit(&self, work: BriefHash, tried: &HashMap<usize, Rejection>) -> Result<ServerPermit<'_, S>, String> {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if let Some(index) = self.shared.take(work, tried)? {
                return Ok(ServerPermit { shared: &self.shared, index });
            }
            // The time for a try may come while nothing changes.
            drop(tokio::time::timeout(TRY_EVERY, changed).await);
        }
    }
}

impl<S: Server> Shared<S> {
    /// Takes a place at an untried server, if one is free: the least loaded of those that haven't failed at this work
    /// before, or of all, if all have.
    ///
    /// # Errors
    /// The reasons if no server is left.
    fn take(&self, work: BriefHash, tried: &HashMap<usize, Rejection>) -> Result<Option<usize>, String> {
        let mut states = self.states.locked();
        let reason =
            |(index, (server, state)): (usize, (&Arc<S>, &ServerLoad))| match (&state.outage, tried.get(&index)) {
                (Some(cause), _) | (None, Some(Rejection { cause, .. })) => Some(cause.clone()),
                (None, None) => server.readiness().err().map(EngineError::into_cause),
            };
        let both = self.servers.iter().zip(states.iter());
        let reasons: Vec<Option<String>> = both.enumerate().map(reason).collect();
        if reasons.iter().all(Option::is_some) {
            let causes: Vec<_> = reasons.into_iter().flatten().collect();
            return Err(causes.join("; "));
        }
        let left = || states.iter().zip(&reasons).filter(|(_, reason)| reason.is_none());
        let another_works = left().any(|(state, _)| !state.failures.is_to_blame());
        let another_may_do_it =
            left().any(|(ServerLoad { failures, .. }, _)| !failures.is_to_blame() && !failures.contains(work));
        let has_place =
            |ServerLoad { load, failures, .. }: &ServerLoad| match (failures.is_to_blame(), failures.contains(work)) {
                (true, has_failed) if another_works => *load == 0 && !has_failed && failures.is_due(TRY_EVERY),
                (_, true) if another_may_do_it => false,
                _ => *load < self.calls_per_server,
            };
        let open = states.iter_mut().enumerate();
        let open = open.filter(|(index, state)| reasons[*index].is_none() && has_place(state));
        let order = |state: &ServerLoad| (state.failures.contains(work), state.load, state.calls);
        let chosen = open.min_by_key(|(_, state)| order(state));
        Ok(chosen.map(|(index, state)| {
            state.load += 1;
            state.calls += 1;
            state.failures.note_try();
            index
        }))
    }

    /// Takes a server out of rotation until a probe succeeds. The first probe comes after `pause`.
    fn take_out(self: &Arc<Self>, index: usize, cause: String, pause: Option<Duration>) {
        let pause = {
            let mut states = self.states.locked();
            let state = &mut states[index];
            if state.outage.is_some() {
                return;
            }
            state.outage = Some(cause.clone());
            state.failures.clear();
            pause.map_or(FIRST_PAUSE, |asked| asked.clamp(FIRST_PAUSE, MAX_ASKED_PAUSE))
        };
        let server = self.servers[index].name();
        tracing::warn!(
            server,
            cause,
            seconds = pause.as_secs(),
            "an engine server is not available; skipping it until a probe succeeds"
        );
        self.changed.notify_waiters();
        tokio::spawn(probe_until_back(Arc::downgrade(self), index, pause));
    }
}

/// Whether one of several servers is accepting work, or else why none is.
fn one_is_ready(outcomes: Vec<Result<(), String>>) -> Result<(), EngineError> {
    if outcomes.iter().any(Result::is_ok) {
        return Ok(());
    }
    let causes: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    Err(EngineError::NotAvailable(causes.join("; ")))
}

/// Probes a server. Silence means slow rather than dead: it may be loading a model, or listing many files.
async fn probe_in_time<S: Server>(server: &S) -> Result<(), Fault> {
    probe_once(server).await.unwrap_or_else(|| {
        let (server, seconds) = (server.name(), PROBE_LIMIT.as_secs());
        tracing::warn!(server, seconds, "an engine server answers probes slowly; it still gets tasks");
        Ok(())
    })
}

/// The outcome of a probe; `None` if the server is silent.
async fn probe_once<S: Server>(server: &S) -> Option<Result<(), Fault>> {
    match tokio::time::timeout(PROBE_LIMIT, server.probe()).await {
        Ok(Err(Fault { reached: Reached::Silent, .. })) | Err(_) => None,
        Ok(probed) => Some(probed),
    }
}

/// Probes a server that was taken out of rotation until it is accepting work again, or its engine is dropped.
async fn probe_until_back<S: Server>(shared: Weak<Shared<S>>, index: usize, pause: Duration) {
    tokio::time::sleep(pause).await;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        match probe_in_time(&*shared.servers[index]).await {
            Ok(()) => {
                tracing::info!(server = shared.servers[index].name(), "an engine server is available again");
                shared.states.locked()[index].outage = None;
                shared.changed.notify_waiters();
                return;
            }
            Err(fault) => shared.states.locked()[index].outage = Some(fault.error.into_cause()),
        }
        drop(shared);
        tokio::time::sleep(PROBE_EVERY).await;
    }
}
