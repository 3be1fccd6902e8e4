//! Rate limits counted in Redis for all processes together.
//!
//! The service works without Redis. A request waits for it for a short time at most. After a failure no request uses
//! Redis until a background task has connected and counted successfully again.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use governor::Quota;
use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo as _, RedisConnectionInfo, RedisError,
    RedisResult, Script, ServerErrorKind, Value,
};
use tokio::net::TcpStream;
use tokio::sync::{SetOnce, watch};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::task::AbortOnDropHandle;

use super::{RateLimit, WINDOW};
use tintype_config::RedisServer;
use tintype_domain::model::Id;
use tintype_outbound::trust;
use tintype_system::clock::Clock;

const SCRIPT: &str = include_str!("gcra.lua");
/// Prefix of all Redis keys.
const PREFIX: &str = "tintype:rate:";
/// Suffixes of the keys for testing a connection. Their slots in a Redis Cluster (CRC16 of the key) are 6, 585, 3326,
/// 4712, 7391, 8715, 11452, 12842, 15517 and 16371 of 16384, so that no node of several has them all.
const PROBES: [u32; 10] = [477, 13, 0, 12, 1, 11, 2, 10, 3, 427];
/// Connecting and testing a connection may take this many times as long as a request waits.
const CONNECT_TIMEOUT_FACTOR: u32 = 10;
/// Pause between attempts to connect; random jitter of up to as much again keeps processes from reconnecting in step.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// State of a key's limit after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// Requests that would be allowed right now.
    pub(super) remaining: u32,
    /// Time to wait before the request can be repeated; zero if it was allowed.
    pub(super) wait: Duration,
}

pub(super) struct SharedLimits {
    server: Arc<Server>,
    state: watch::Receiver<RedisState>,
    _reconnecting: AbortOnDropHandle<()>,
}

enum RedisState {
    Starting,
    Connected(Arc<Connected>),
    Unavailable,
}

struct Connected {
    connection: MultiplexedConnection,
    /// The first error; once set, no request uses the connection.
    failure: SetOnce<String>,
}

tintype_domain::opaque_debug!(SharedLimits);

impl SharedLimits {
    /// Tries to connect once, then starts a background task that keeps the connection open.
    ///
    /// # Errors
    /// A message for the operator: the settings are invalid. An unreachable server is not an error.
    pub(super) async fn open(server: &RedisServer, clock: Clock) -> Result<Self, String> {
        let server = Arc::new(Server::new(server, clock)?);
        let (sender, mut state) = watch::channel(RedisState::Starting);
        let reconnecting = AbortOnDropHandle::new(tokio::spawn(keep_connected(server.clone(), sender)));
        // The sender lives as long as the task, so the wait cannot fail.
        drop(state.wait_for(|state| !matches!(state, RedisState::Starting)).await);
        Ok(Self { server, state, _reconnecting: reconnecting })
    }

    /// Host and port of the server.
    pub(super) fn name(&self) -> &str {
        &self.server.name
    }

    /// Whether Redis counts requests now.
    pub(super) fn is_up(&self) -> bool {
        self.connected().is_some()
    }

    fn connected(&self) -> Option<Arc<Connected>> {
        match &*self.state.borrow() {
            RedisState::Connected(connected) if connected.failure.get().is_none() => Some(connected.clone()),
            _ => None,
        }
    }

    /// Counts one request; `None` if Redis is unavailable.
    pub(super) async fn count(&self, key: Id, usage: RateLimit, quota: Quota) -> Option<Count> {
        let connected = self.connected()?;
        // A changed limit starts with a full allowance, as it does in a process that counts on its own.
        let name = format!("{PREFIX}{key}:{}:{}", usage.as_str(), quota.burst_size());
        let mut connection = connected.connection.clone();
        let counting = self.server.count(&mut connection, &name, quota);
        match within(self.server.timeout, counting).await {
            Ok(count) => Some(count),
            Err(error) => {
                // The first error is enough for the log.
                drop(connected.failure.set(error));
                None
            }
        }
    }
}

/// Keeps a connection open until the task is aborted, and logs when Redis becomes unavailable and when it is back.
async fn keep_connected(server: Arc<Server>, state: watch::Sender<RedisState>) {
    let pause = || tokio::time::sleep(RECONNECT_PAUSE.mul_f64(1.0 + rand::random::<f64>()));
    let mut unavailable = false;
    loop {
        let mut retry = pause();
        match server.connect().await {
            Ok((connection, driver)) => {
                if std::mem::take(&mut unavailable) {
                    tracing::info!(
                        redis = server.name,
                        "Redis is available again and counts rate limits for all processes"
                    );
                }
                let connected = Arc::new(Connected { connection, failure: SetOnce::new() });
                state.send_replace(RedisState::Connected(connected.clone()));
                tokio::select! {
                    biased;
                    error = connected.failure.wait() => {
                        tracing::warn!(redis = server.name, error, "{UNAVAILABLE}");
                        (unavailable, retry) = (true, pause());
                    }
                    // Redis closes idle connections, which is normal as long as it accepts new ones.
                    _ = driver => {}
                }
            }
            Err(error) if unavailable => tracing::debug!(redis = server.name, error, "Redis is still unavailable"),
            Err(error) => {
                tracing::warn!(redis = server.name, error, "{UNAVAILABLE}");
                unavailable = true;
            }
        }
        state.send_replace(RedisState::Unavailable);
        retry.await;
    }
}

const UNAVAILABLE: &str = "Redis is unavailable: this process counts rate limits on its own until Redis is available; check the server at --redis";

struct Server {
    name: String,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    login: RedisConnectionInfo,
    script: Script,
    timeout: Duration,
    clock: Clock,
}

const NO_ANSWER: &str = "no answer within";
/// Advice if the server isn't what `--redis` says.
const ODD: &str = "if this stays, check that it is Redis, and write rediss:// only if it uses TLS";

/// Awaits a future with a time limit and turns its error into text.
async fn within<T>(limit: Duration, future: impl Future<Output = RedisResult<T>>) -> Result<T, String> {
    match tokio::time::timeout(limit, future).await {
        Ok(outcome) => outcome.map_err(|error| describe(&error)),
        Err(_) => Err(format!("{NO_ANSWER} {limit:?}")),
    }
}

/// Describes an error, with advice where the cause is known.
fn describe(error: &RedisError) -> String {
    use ServerErrorKind::{Ask, ClusterDown, CrossSlot, Moved};
    let text = error.to_string();
    let of_cluster = matches!(error.kind(), ErrorKind::Server(Moved | Ask | ClusterDown | CrossSlot));
    // A cluster has one database, and refuses to choose another.
    if of_cluster || text.contains("cluster mode") {
        return format!("{text}: Redis Cluster is not supported; give --redis one Redis or Valkey server");
    }
    if text.contains("unknown command 'SCRIPT'") {
        return format!("{text}: give --redis a server that runs scripts, and not its Sentinel");
    }
    // Another server, TLS on one side alone, or a Redis that has just stopped.
    let is_odd = error.is_connection_dropped() || error.kind() == ErrorKind::Parse;
    if is_odd && !error.is_connection_refusal() {
        return format!("{text}: {ODD}");
    }
    trust::explain(text, "--redis-ca")
}

impl Server {
    fn new(given: &RedisServer, clock: Clock) -> Result<Self, String> {
        // The message does not quote the URL, which may contain a password.
        let invalid = || {
            "--redis must be redis://USER:PASSWORD@HOST:PORT/DATABASE, or the same with rediss:// for TLS".to_owned()
        };
        let (scheme, rest) = given.url.split_once("://").ok_or_else(invalid)?;
        let info = format!("redis://{rest}").into_connection_info().map_err(|_| invalid())?;
        let ConnectionAddr::Tcp(host, port) = info.addr().clone() else { return Err(invalid()) };
        let tls = match scheme {
            "redis" | "valkey" => None,
            "rediss" | "valkeys" => {
                let trusted = trust::public_and(given.authorities.as_deref());
                let trusted = trusted.map_err(|error| format!("--redis-ca: {error}"))?;
                let config = trust::tls(trusted).map_err(|error| error.to_string())?;
                let host = ServerName::try_from(host.clone()).map_err(|_| invalid())?;
                Some((TlsConnector::from(Arc::new(config)), host))
            }
            _ => return Err(invalid()),
        };
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let login = info.redis_settings().clone().set_skip_set_lib_name();
        // The library signs in only with a password. Without one it is the user `default`.
        if login.username().is_some_and(|user| user != "default") && login.password().is_none() {
            return Err("--redis names a user without a password: a password alone is redis://:PASSWORD@HOST, with a \
                        colon before it"
                .into());
        }
        let script = Script::new(SCRIPT);
        Ok(Self { name, host, port, tls, login, script, timeout: given.timeout, clock })
    }

    /// Opens a connection and tests it by counting once; also returns the handle of the task that drives it.
    async fn connect(&self) -> Result<(MultiplexedConnection, AbortOnDropHandle<()>), String> {
        let connecting = async {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let connection = MultiplexedConnection::new_with_config(&self.login, self.dial().await?, config).await;
            let (mut connection, driver) = connection?;
            let driver = AbortOnDropHandle::new(tokio::spawn(driver));
            self.probe(&mut connection).await?;
            RedisResult::Ok((connection, driver))
        };
        let connected = within(self.timeout * CONNECT_TIMEOUT_FACTOR, connecting).await;
        // Redis without TLS takes a handshake for the beginning of a line, and waits for its end.
        let is_odd = |error: &str| self.tls.is_some() && error.starts_with(NO_ANSWER);
        connected.map_err(|error| if is_odd(&error) { format!("{error}: {ODD}") } else { error })
    }

    async fn dial(&self) -> std::io::Result<Pin<Box<dyn AsyncStream + Send>>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Box::pin(stream),
            Some((tls, host)) => Box::pin(tls.connect(host.clone(), stream).await?),
        })
    }

    /// Counts one request under separate keys, in one round trip, which exercises everything that counting needs.
    async fn probe(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let mut commands = redis::pipe();
        commands.cmd("SCRIPT").arg("LOAD").arg(SCRIPT);
        for probe in PROBES {
            let evaluate = commands.cmd("EVALSHA").arg(self.script.get_hash()).arg(1);
            evaluate.arg(format!("{PREFIX}probe:{probe}")).arg(self.arguments(Quota::per_minute(NonZeroU32::MAX)));
        }
        // The first error says more than all of them.
        let answers: Vec<RedisResult<Value>> = commands.ignore_errors().query_async(connection).await?;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Counts one request under a Redis key, in one round trip; the first after a start of Redis also loads the script.
    async fn count(&self, connection: &mut MultiplexedConnection, name: &str, quota: Quota) -> RedisResult<Count> {
        let mut script = self.script.key(name);
        script.arg(self.arguments(quota));
        let (remaining, wait) = script.invoke_async(connection).await?;
        Ok(Count { remaining, wait: Duration::from_nanos(wait) })
    }

    fn arguments(&self, quota: Quota) -> Vec<u64> {
        let interval = u64::try_from(quota.replenish_interval().as_nanos()).unwrap_or(u64::MAX);
        let mut arguments = vec![interval, quota.burst_size().get().into(), WINDOW.as_secs()];
        if self.clock.is_manual() {
            let now = self.clock.elapsed();
            arguments.extend([now.as_secs(), now.subsec_nanos().into()]);
        }
        arguments
    }
}

/// Tests a server; returns its address and response time as text.
pub(super) async fn probe(server: &RedisServer) -> Result<String, String> {
    let clock = Clock::system();
    let server = Server::new(server, clock.clone())?;
    let failed = |error| format!("Redis at {}: {error}", server.name);
    let (mut connection, _driver) = server.connect().await.map_err(failed)?;
    let started = clock.elapsed();
    within(server.timeout, server.probe(&mut connection)).await.map_err(failed)?;
    let took = clock.elapsed() - started;
    Ok(format!("Redis at {} counts rate limits (answered in {:.1} ms)", server.name, took.as_secs_f64() * 1e3))
}
