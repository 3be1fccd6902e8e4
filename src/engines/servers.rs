//! The servers of one engine. Work goes to the least loaded one. One that is not available is set aside, and probed until
//! it is back; work that it did not begin goes to another.
//!
//! A server that turns one piece of work away, and answers a probe, stays: the cause may be the work, and must not stop
//! the work of others. It is set aside when it turns several pieces of work away and does none in between.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use tintype_engine::EngineError;
use tokio::sync::Notify;

use super::endpoint::Fault;

/// Wait before a server that was set aside is probed. It doubles each time that the server is set aside again before it
/// has done any work, because some servers answer probes and refuse work.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Longest wait that a server may ask for.
const MAX_ASKED_PAUSE: Duration = Duration::from_secs(600);
/// Interval between the following probes.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// A server that turns away so many pieces of work in a row is set aside although it answers probes.
const TURNED_AWAY: usize = 3;
/// Most pieces of work to remember of a server that turned them away and did other work since.
const MAX_SUSPECTS: usize = 64;

/// One server of an engine.
#[async_trait]
pub trait Server: fmt::Debug + Send + Sync + 'static {
    /// The server for the operator, such as its URL.
    fn name(&self) -> &str;

    /// Whether it could take work, as far as this process knows without asking. A server for which this changes by itself
    /// is not set aside: it gets work again as soon as it could take some.
    ///
    /// # Errors
    /// The reason why it takes none.
    fn known(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Finds out whether it takes work.
    ///
    /// # Errors
    /// The reason why it takes none.
    async fn probe(&self) -> Result<(), Fault>;
}

/// The servers of one engine.
#[derive(Debug)]
pub struct Servers<S> {
    shared: Arc<Shared<S>>,
}

#[derive(Debug)]
struct Shared<S> {
    servers: Vec<Arc<S>>,
    /// Calls that one server takes at the same time.
    calls_per_server: usize,
    states: Mutex<Vec<State>>,
    /// A place became free, or a server was set aside or came back.
    changed: Notify,
}

/// The state of one server.
#[derive(Debug, Clone, Default)]
struct State {
    /// Calls under way.
    load: usize,
    /// All calls so far.
    calls: u64,
    /// The reason why it is set aside, for the operator.
    aside: Option<String>,
    /// How often it was set aside since it did its last work.
    set_aside: u32,
    /// The work that it turned away since it did its last.
    turned_away: Vec<u64>,
    /// Work that it turned away before it did other work, so that the cause is probably the work.
    suspects: VecDeque<u64>,
}

impl State {
    /// Notes that it did this work.
    fn did(&mut self, work: u64) {
        self.set_aside = 0;
        self.suspects.retain(|suspect| *suspect != work);
        self.suspects.extend(self.turned_away.drain(..).filter(|turned_away| *turned_away != work));
        let surplus = self.suspects.len().saturating_sub(MAX_SUSPECTS);
        self.suspects.drain(..surplus);
    }

    /// Notes that it turned this work away. Returns whether that shows, without a probe, that it takes no other work
    /// either: because it asks to be left alone, or turned several pieces of work away.
    fn turned_away(&mut self, work: u64, asks_for_pause: bool) -> bool {
        if self.suspects.contains(&work) {
            return false;
        }
        if !self.turned_away.contains(&work) && self.turned_away.len() < TURNED_AWAY {
            self.turned_away.push(work);
        }
        asks_for_pause || self.turned_away.len() >= TURNED_AWAY
    }
}

/// A place at a server, until it is dropped.
struct Seat<'a, S> {
    shared: &'a Arc<Shared<S>>,
    index: usize,
}

impl<S> Drop for Seat<'_, S> {
    fn drop(&mut self) {
        self.shared.states()[self.index].load -= 1;
        self.shared.changed.notify_waiters();
    }
}

impl<S: Server> Servers<S> {
    /// Servers that take `calls_per_server` calls at the same time each.
    pub fn new(servers: impl IntoIterator<Item = S>, calls_per_server: usize) -> Self {
        let servers: Vec<_> = servers.into_iter().map(Arc::new).collect();
        let (states, changed) = (Mutex::new(vec![State::default(); servers.len()]), Notify::new());
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

    /// Runs `work` at the least loaded server. If that is not available, another one gets the work. `seeds` tell this
    /// work from other work; an attempt that repeats it has the same ones.
    ///
    /// # Errors
    /// The error of `work`; [`EngineError::NotAvailable`] when no server is left.
    pub async fn call<T, F>(&self, seeds: &[u64], work: impl Fn(Arc<S>) -> F) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let id = BuildHasherDefault::<DefaultHasher>::default().hash_one(seeds);
        let mut tried = HashMap::new();
        loop {
            let seat = self.seat(&tried).await?;
            match work(self.shared.servers[seat.index].clone()).await {
                Ok(done) => {
                    self.shared.states()[seat.index].did(id);
                    return Ok(done);
                }
                Err(Fault { error: EngineError::NotAvailable(cause), pause }) => {
                    tried.insert(seat.index, cause.clone());
                    self.judge(seat.index, id, cause, pause).await;
                }
                Err(fault) => return Err(fault.error),
            }
        }
    }

    /// Sets a server that turned work away aside, unless the cause seems to be this work.
    async fn judge(&self, index: usize, work: u64, cause: String, pause: Option<Duration>) {
        if self.shared.states()[index].turned_away(work, pause.is_some()) {
            self.shared.set_aside(index, cause, pause);
        } else if let Err(fault) = self.shared.servers[index].probe().await {
            self.shared.set_aside(index, cause, fault.pause);
        } else {
            let server = self.shared.servers[index].name();
            tracing::warn!(server, cause, "a server of the engine turned a task away, and answers a probe");
        }
    }

    /// Probes the servers that are not set aside.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] when none of all servers takes work.
    pub async fn probe(&self) -> Result<(), EngineError> {
        let probing = self.shared.servers.iter().enumerate().map(async |(index, server)| {
            let aside = self.shared.states()[index].aside.clone();
            match aside {
                Some(cause) => Err(cause),
                None => {
                    server.known().map_err(cause_of)?;
                    server.probe().await.map_err(|fault| {
                        let cause = cause_of(fault.error);
                        self.shared.set_aside(index, cause.clone(), fault.pause);
                        cause
                    })
                }
            }
        });
        let outcomes = join_all(probing).await;
        if outcomes.iter().any(Result::is_ok) {
            return Ok(());
        }
        let causes: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
        Err(EngineError::NotAvailable(causes.join("; ")))
    }

    /// A place at a server that was not tried.
    async fn seat(&self, tried: &HashMap<usize, String>) -> Result<Seat<'_, S>, EngineError> {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if let Some(index) = self.shared.take(tried)? {
                return Ok(Seat { shared: &self.shared, index });
            }
            changed.await;
        }
    }
}

impl<S> Shared<S> {
    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Server> Shared<S> {
    /// Takes a place at the least loaded server, if one that was not tried has a place.
    fn take(&self, tried: &HashMap<usize, String>) -> Result<Option<usize>, EngineError> {
        let mut states = self.states();
        let reason = |(index, (server, state)): (usize, (&Arc<S>, &State))| match state.aside.as_ref() {
            Some(cause) => Some(cause.clone()),
            None => tried.get(&index).cloned().or_else(|| server.known().err().map(cause_of)),
        };
        let both = self.servers.iter().zip(states.iter());
        let reasons: Vec<Option<String>> = both.enumerate().map(reason).collect();
        if reasons.iter().all(Option::is_some) {
            let causes: Vec<_> = reasons.into_iter().flatten().collect();
            return Err(EngineError::NotAvailable(causes.join("; ")));
        }
        let open = states.iter_mut().enumerate();
        let open = open.filter(|(index, state)| reasons[*index].is_none() && state.load < self.calls_per_server);
        let chosen = open.min_by_key(|(_, state)| (state.load, state.calls));
        Ok(chosen.map(|(index, state)| {
            state.load += 1;
            state.calls += 1;
            index
        }))
    }

    /// Sets a server aside until a probe succeeds; the first one comes after `pause`.
    fn set_aside(self: &Arc<Self>, index: usize, cause: String, pause: Option<Duration>) {
        let pause = {
            let mut states = self.states();
            let state = &mut states[index];
            if state.aside.is_some() {
                return;
            }
            let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(state.set_aside)).min(MAX_PAUSE);
            state.set_aside = state.set_aside.saturating_add(1);
            state.aside = Some(cause.clone());
            pause.map_or(doubled, |asked| asked.clamp(FIRST_PAUSE, MAX_ASKED_PAUSE))
        };
        let server = self.servers[index].name();
        tracing::warn!(
            server,
            cause,
            seconds = pause.as_secs(),
            "a server of the engine gets no work until it answers a probe"
        );
        self.changed.notify_waiters();
        tokio::spawn(bring_back(Arc::downgrade(self), index, pause));
    }
}

/// Probes a server that was set aside until it takes work again, or its engine is gone.
async fn bring_back<S: Server>(shared: Weak<Shared<S>>, index: usize, pause: Duration) {
    tokio::time::sleep(pause).await;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        match shared.servers[index].probe().await {
            Ok(()) => {
                tracing::info!(server = shared.servers[index].name(), "a server of the engine takes work again");
                shared.states()[index].aside = None;
                shared.changed.notify_waiters();
                return;
            }
            Err(fault) => shared.states()[index].aside = Some(cause_of(fault.error)),
        }
        drop(shared);
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

/// The cause alone, without the words that say what it means.
fn cause_of(error: EngineError) -> String {
    match error {
        EngineError::Refused(cause)
        | EngineError::Permanent(cause)
        | EngineError::Temporary(cause)
        | EngineError::NotAvailable(cause) => cause,
    }
}
