//! Rate limits counted in Redis, for all processes together.
//!
//! Redis is asked for nothing that must last or that must be there. A request waits for it for a moment at most;
//! once it fails, nobody asks it until a connection made beside the requests has shown that it counts again.

use std::fmt::{self, Display};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use governor::Quota;
use redis::aio::{AsyncStream, MultiplexedConnection};
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo, RedisResult, Script};
use tokio::net::TcpStream;
use tokio::sync::{SetOnce, watch};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::task::AbortOnDropHandle;

use super::{Usage, WINDOW};
use crate::clock::Clock;
use crate::config::RedisServer;
use crate::domain::model::Id;
use crate::outbound::trust;

/// What all keys begin with.
const PREFIX: &str = "tintype:rate:";
/// Times that a request waits, within which a connection must be made and tried.
const CONNECT_TIMES: u32 = 10;
/// Wait before Redis is tried again; up to twice as long, so that not all processes come at once.
const PAUSE: Duration = Duration::from_millis(500);

/// Where a key stands after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    /// Requests left right now.
    pub(super) remaining: u32,
    /// How long to wait before the request can be repeated; zero when it was allowed.
    pub(super) wait: Duration,
}

/// The rate limits in Redis.
pub(super) struct SharedLimits {
    server: Arc<Server>,
    link: watch::Receiver<Link>,
    _keeping: AbortOnDropHandle<()>,
}

/// The one connection, over which all requests go at once.
enum Link {
    Untried,
    Up(Arc<Up>),
    Away,
}

struct Up {
    connection: MultiplexedConnection,
    /// Why nobody may use it any more.
    broken: SetOnce<String>,
}

impl fmt::Debug for SharedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimits").field("server", &self.server.name).finish_non_exhaustive()
    }
}

impl SharedLimits {
    /// Tries the server once, and from then on keeps a connection to it whenever there can be one.
    ///
    /// # Errors
    /// A sentence for the operator: the settings are of no use. A server that is not there is no error.
    pub(super) async fn open(server: &RedisServer, clock: Clock) -> Result<Self, String> {
        let server = Arc::new(Server::new(server, clock)?);
        let (sender, mut link) = watch::channel(Link::Untried);
        let keeping = AbortOnDropHandle::new(tokio::spawn(keep(server.clone(), sender)));
        // The keeper is there for as long as its handle.
        drop(link.wait_for(|link| !matches!(link, Link::Untried)).await);
        Ok(Self { server, link, _keeping: keeping })
    }

    /// Host and port.
    pub(super) fn name(&self) -> &str {
        &self.server.name
    }

    /// Whether Redis is asked at the moment.
    pub(super) fn is_up(&self) -> bool {
        self.up().is_some()
    }

    fn up(&self) -> Option<Arc<Up>> {
        match &*self.link.borrow() {
            Link::Up(up) if up.broken.get().is_none() => Some(up.clone()),
            _ => None,
        }
    }

    /// Counts one request; `None` when Redis is away.
    pub(super) async fn count(&self, key: Id, usage: Usage, quota: Quota) -> Option<Count> {
        let up = self.up()?;
        // A changed limit begins anew, as it does in a process that counts alone.
        let name = format!("{PREFIX}{key}:{}:{}", usage.as_str(), quota.burst_size());
        let mut connection = up.connection.clone();
        let counting = self.server.count(&mut connection, &name, quota);
        match within(self.server.timeout, counting).await {
            Ok(count) => Some(count),
            Err(trouble) => {
                // Whoever notices first speaks for all.
                drop(up.broken.set(trouble));
                None
            }
        }
    }
}

/// Keeps a connection for as long as somebody holds the other end of `link`. Tells the log when Redis goes and
/// when it is back.
async fn keep(server: Arc<Server>, link: watch::Sender<Link>) {
    let pause = || tokio::time::sleep(PAUSE.mul_f64(1.0 + rand::random::<f64>()));
    let mut away = false;
    loop {
        let mut rest = pause();
        match server.connect().await {
            Ok((connection, driver)) => {
                if std::mem::take(&mut away) {
                    tracing::info!(redis = server.name, "rate limits are counted in Redis again");
                }
                let up = Arc::new(Up { connection, broken: SetOnce::new() });
                link.send_replace(Link::Up(up.clone()));
                tokio::select! {
                    biased;
                    trouble = up.broken.wait() => {
                        tracing::warn!(redis = server.name, trouble, "{AWAY}");
                        (away, rest) = (true, pause());
                    }
                    // Redis closes connections that are idle, which is no trouble while it takes others.
                    _ = driver => {}
                }
            }
            Err(trouble) if away => tracing::debug!(redis = server.name, trouble, "Redis is still away"),
            Err(trouble) => {
                tracing::warn!(redis = server.name, trouble, "{AWAY}");
                away = true;
            }
        }
        link.send_replace(Link::Away);
        rest.await;
    }
}

const AWAY: &str = "rate limits cannot be counted in Redis; until they can, this process counts alone";

/// A server and how to count there.
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

/// What comes of something that may take so long.
async fn within<T, E: Display>(limit: Duration, doing: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match tokio::time::timeout(limit, doing).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

impl Server {
    fn new(given: &RedisServer, clock: Clock) -> Result<Self, String> {
        // What is wrong with the URL is not told: the URL may hold a password.
        let invalid =
            || "--redis must be redis://USER:PASSWORD@HOST:PORT/DATABASE, or rediss:// and the same for TLS".to_owned();
        let (scheme, rest) = given.url.split_once("://").ok_or_else(invalid)?;
        let info = format!("redis://{rest}").into_connection_info().map_err(|_| invalid())?;
        let ConnectionAddr::Tcp(host, port) = info.addr().clone() else { return Err(invalid()) };
        let tls = match scheme {
            "redis" => None,
            "rediss" => {
                let roots =
                    trust::roots(given.authorities.as_deref()).map_err(|error| format!("--redis-ca: {error}"))?;
                let config = trust::tls(roots).map_err(|error| error.to_string())?;
                let host = ServerName::try_from(host.clone()).map_err(|_| invalid())?;
                Some((TlsConnector::from(Arc::new(config)), host))
            }
            _ => return Err(invalid()),
        };
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let login = info.redis_settings().clone().set_skip_set_lib_name();
        let script = Script::new(include_str!("gcra.lua"));
        Ok(Self { name, host, port, tls, login, script, timeout: given.timeout, clock })
    }

    /// A connection that has shown that it counts, and what drives it.
    async fn connect(&self) -> Result<(MultiplexedConnection, AbortOnDropHandle<()>), String> {
        let connecting = async {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let connection = MultiplexedConnection::new_with_config(&self.login, self.dial().await?, config).await;
            let (mut connection, driver) = connection?;
            let driver = AbortOnDropHandle::new(tokio::spawn(driver));
            self.probe(&mut connection).await?;
            RedisResult::Ok((connection, driver))
        };
        within(self.timeout * CONNECT_TIMES, connecting).await
    }

    async fn dial(&self) -> std::io::Result<Pin<Box<dyn AsyncStream + Send>>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Box::pin(stream),
            Some((tls, host)) => Box::pin(tls.connect(host.clone(), stream).await?),
        })
    }

    /// Counts something that nobody asked for, which takes all that counting takes.
    async fn probe(&self, connection: &mut MultiplexedConnection) -> RedisResult<Count> {
        self.count(connection, &format!("{PREFIX}probe"), Quota::per_minute(NonZeroU32::MAX)).await
    }

    /// Counts one request under a name: one round trip, but for the first after Redis was started.
    async fn count(&self, connection: &mut MultiplexedConnection, name: &str, quota: Quota) -> RedisResult<Count> {
        let interval = u64::try_from(quota.replenish_interval().as_nanos()).unwrap_or(u64::MAX);
        let mut script = self.script.key(name);
        script.arg(interval).arg(quota.burst_size().get()).arg(WINDOW.as_secs());
        if self.clock.is_manual() {
            let now = self.clock.elapsed();
            script.arg(now.as_secs()).arg(now.subsec_nanos());
        }
        let (remaining, wait) = script.invoke_async(connection).await?;
        Ok(Count { remaining, wait: Duration::from_nanos(wait) })
    }
}

/// Tries a server; returns where it is and how fast.
///
/// # Errors
/// A sentence for the operator.
pub(super) async fn probe(server: &RedisServer) -> Result<String, String> {
    let clock = Clock::system();
    let server = Server::new(server, clock.clone())?;
    let trouble = |trouble| format!("Redis at {}: {trouble}", server.name);
    let (mut connection, _driver) = server.connect().await.map_err(trouble)?;
    let begun = clock.elapsed();
    within(server.timeout, server.probe(&mut connection)).await.map_err(trouble)?;
    let took = clock.elapsed() - begun;
    Ok(format!("counted in Redis at {} (in {:.1} ms)", server.name, took.as_secs_f64() * 1e3))
}
