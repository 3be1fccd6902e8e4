//! The servers of one engine. Work goes to the least loaded one. One that is not available is set aside, and probed until
//! it is back; work that it did not begin goes to another.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use tintype_engine::EngineError;
use tokio::sync::Notify;

use super::endpoint::{Endpoint, Fault};

/// Wait before a server that was set aside is probed. It doubles each time that the server is set aside again before it
/// has done any work, because some servers answer probes and refuse work.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Longest wait that a server may ask for.
const MAX_ASKED_PAUSE: Duration = Duration::from_secs(600);
/// Interval between the following probes.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// Finds out whether a server takes work.
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Asks a server.
    ///
    /// # Errors
    /// The reason why it takes no work.
    async fn probe(&self, endpoint: &Endpoint) -> Result<(), Fault>;
}

/// The servers of one engine.
pub struct Servers {
    shared: Arc<Shared>,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("endpoints", &self.shared.endpoints).finish_non_exhaustive()
    }
}

struct Shared {
    endpoints: Vec<Arc<Endpoint>>,
    /// Calls that one server takes at the same time.
    calls_per_server: usize,
    probe: Box<dyn Probe>,
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
}

/// A place at a server, until it is dropped.
struct Seat<'a> {
    shared: &'a Arc<Shared>,
    index: usize,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.shared.states()[self.index].load -= 1;
        self.shared.changed.notify_waiters();
    }
}

impl Servers {
    /// Servers that take `calls_per_server` calls at the same time each.
    pub fn new(endpoints: Vec<Endpoint>, calls_per_server: usize, probe: impl Probe) -> Self {
        let states = Mutex::new(vec![State::default(); endpoints.len()]);
        let endpoints = endpoints.into_iter().map(Arc::new).collect();
        let (probe, changed) = (Box::new(probe), Notify::new());
        Self { shared: Arc::new(Shared { endpoints, calls_per_server, probe, states, changed }) }
    }

    /// The number of servers.
    pub fn count(&self) -> usize {
        self.shared.endpoints.len()
    }

    /// Runs `work` at the least loaded server. If that is not available, another one gets the work.
    ///
    /// # Errors
    /// The error of `work`; [`EngineError::NotAvailable`] when no server is left.
    pub async fn call<T, F>(&self, work: impl Fn(Arc<Endpoint>) -> F) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        loop {
            let seat = self.seat().await?;
            match work(self.shared.endpoints[seat.index].clone()).await {
                Ok(done) => {
                    self.shared.states()[seat.index].set_aside = 0;
                    return Ok(done);
                }
                Err(Fault { error: EngineError::NotAvailable(cause), pause }) => {
                    self.shared.set_aside(seat.index, cause, pause);
                }
                Err(fault) => return Err(fault.error),
            }
        }
    }

    /// Probes the servers that are not set aside.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] when none of all servers takes work.
    pub async fn probe(&self) -> Result<(), EngineError> {
        let outcomes = self.probe_each().await;
        let causes: Vec<_> = outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().err().cloned()).collect();
        match causes.len() == outcomes.len() {
            true => Err(EngineError::NotAvailable(causes.join("; "))),
            false => Ok(()),
        }
    }

    /// The name of each server, and whether it takes work or the reason why not.
    pub async fn probe_each(&self) -> Vec<(String, Result<(), String>)> {
        let probing = self.shared.endpoints.iter().enumerate().map(async |(index, endpoint)| {
            let aside = self.shared.states()[index].aside.clone();
            let outcome = match aside {
                Some(cause) => Err(cause),
                None => self.shared.probe.probe(endpoint).await.map_err(|fault| {
                    let cause = cause_of(fault.error);
                    self.shared.set_aside(index, cause.clone(), fault.pause);
                    cause
                }),
            };
            (endpoint.name().to_owned(), outcome)
        });
        join_all(probing).await
    }

    async fn seat(&self) -> Result<Seat<'_>, EngineError> {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if let Some(index) = self.shared.take()? {
                return Ok(Seat { shared: &self.shared, index });
            }
            changed.await;
        }
    }
}

impl Shared {
    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place at the least loaded server, if one has a place.
    fn take(&self) -> Result<Option<usize>, EngineError> {
        let mut states = self.states();
        if states.iter().all(|state| state.aside.is_some()) {
            let causes: Vec<_> = states.iter().filter_map(|state| state.aside.clone()).collect();
            return Err(EngineError::NotAvailable(causes.join("; ")));
        }
        let open = states.iter_mut().enumerate();
        let open = open.filter(|(_, state)| state.aside.is_none() && state.load < self.calls_per_server);
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
        let server = self.endpoints[index].name();
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
async fn bring_back(shared: Weak<Shared>, index: usize, pause: Duration) {
    tokio::time::sleep(pause).await;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        match shared.probe.probe(&shared.endpoints[index]).await {
            Ok(()) => {
                tracing::info!(server = shared.endpoints[index].name(), "a server of the engine takes work again");
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
