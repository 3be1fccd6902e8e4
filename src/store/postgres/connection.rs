//! Connections to the server, and the one way in which statements reach it.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::AtomicI64;
use std::task::{Context, Poll};
use std::time::Duration;

use deadpool_postgres::{
    Client, Connect, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType,
};
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Config, Connection, NoTls, Row, Statement, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

use super::tries::Tries;
use crate::clock::{Clock, Timestamp};
use crate::domain::model::{Id, IdSource};
use crate::store::{Cause, Result, StoreError};

/// Most connections of one process.
pub(super) const MAX_CONNECTIONS: usize = 16;
/// Longest wait for the server to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for a connection of the pool.
pub(super) const POOL_WAIT: Duration = Duration::from_secs(10);
/// How long a statement is kept back while the server cannot be reached: about what a restart takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Wait before the server is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// The server gives a statement up after this long...
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);
/// ...and this process stops waiting for it after this long, when not even that is heard of.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// ...or for this long, when it is one of several that are one transaction.
pub(super) const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence after which the network is taken for broken.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(15);

/// What holds for each session. An acknowledged write is on the disk, whatever the server's default; what
/// waits is given up; and rows are looked up one by one by the indexes that were made for them, however quickly a
/// table changes: statistics of the queue are always old, and the plans made by them read whole indexes of dead rows.
fn session() -> String {
    let statement_ms = STATEMENT_TIMEOUT.as_millis();
    format!(
        "SET statement_timeout = {statement_ms};
         SET lock_timeout = 5000;
         SET idle_in_transaction_session_timeout = 15000;
         SET default_transaction_isolation = 'read committed';
         SET plan_cache_mode = force_generic_plan;
         SET enable_seqscan = off;
         SET enable_bitmapscan = off;
         SET enable_hashjoin = off;
         SET enable_mergejoin = off;
         SET jit = off;
         SET client_min_messages = warning;
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
}

/// A parameter of a statement.
pub(super) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// Why a statement has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was not begun.
    Nothing(StoreError),
    /// The server undid it.
    Refused(StoreError),
    /// The server undid it: somebody held what it had to lock for longer than a statement waits.
    Locked(StoreError),
    /// Nobody knows whether it was done.
    Unknown(StoreError),
}

/// The cause of an error, whatever the error says of the outcome.
pub(super) fn words(error: StoreError) -> Cause {
    match error {
        StoreError::Full(cause) | StoreError::Other(cause) | StoreError::Unknown(cause) => cause,
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unknown(error) => Self::Unknown(words(error)),
            failure => failure.into_error(),
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    /// Drops the details of an error of the server, which may hold a prompt.
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(server) = error.as_db_error() else { return Self::Other(Cause::new(error)) };
        let cause = Cause::from(format!("{} (SQLSTATE {})", server.message(), server.code().code()));
        if *server.code() == SqlState::DISK_FULL { Self::Full(cause) } else { Self::Other(cause) }
    }
}

/// The server said no and went on: what was to be done is undone. All else leaves it open.
fn failure(error: tokio_postgres::Error) -> Failure {
    let refused = error.as_db_error().is_some_and(|server| server.parsed_severity() == Some(Severity::Error));
    match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) if refused => Failure::Locked(error.into()),
        _ if refused => Failure::Refused(error.into()),
        _ => Failure::Unknown(error.into()),
    }
}

/// The server behind a store, with the time and ids that go with it.
pub(super) struct Database {
    pool: Pool,
    connector: Connector,
    config: Config,
    name: String,
    pub(super) clock: Clock,
    ids: IdSource,
    /// Where the connections live. Its time is theirs, whoever asks.
    runtime: Handle,
    /// What the server's clock showed when this process's began, in milliseconds.
    pub(super) origin: AtomicI64,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Database {
    /// For the server that `config` names; nothing is connected yet.
    pub(super) fn new(config: &Config, tls: Option<MakeRustlsConnect>, clock: Clock) -> Result<Self> {
        let connector = Connector { tls };
        let manager = Manager::from_connect(
            config.clone(),
            connector.clone(),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager).max_size(MAX_CONNECTIONS).runtime(Runtime::Tokio1);
        let pool = pool.build().map_err(|error| StoreError::Other(Cause::new(error)))?;
        // Until the server is asked.
        let origin = clock.now().saturating_sub(clock.elapsed()).as_millis();
        Ok(Self {
            pool,
            connector,
            name: describe(config),
            config: config.clone(),
            clock,
            ids: IdSource::default(),
            runtime: Handle::current(),
            origin: AtomicI64::new(origin),
        })
    }

    /// Host and database, without what opens them.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What statements take for the time: `None` for the server's own, unless the clock is moved by hand.
    pub(super) fn given_time(&self) -> Option<Timestamp> {
        self.clock.is_manual().then(|| self.clock.now())
    }

    /// A new id, made now by the server's time.
    pub(super) fn new_id(&self) -> Id {
        self.ids.next(self.now())
    }

    /// A connection that is not of the pool.
    pub(super) async fn connect_apart(&self) -> Result<Driven> {
        Ok(self.connector.connect(&self.config).await?)
    }

    /// A connection, waited for while the server comes back.
    pub(super) async fn client(&self) -> Result<Client> {
        let begun = self.clock.elapsed();
        loop {
            let error = match self.within(POOL_WAIT, self.pool.get()).await {
                Some(Ok(client)) => return Ok(client),
                Some(Err(error)) => error,
                None => return Err(unreachable(PoolError::Timeout(TimeoutType::Wait))),
            };
            let waited = self.clock.elapsed().saturating_sub(begun);
            // A clock moved by hand stands still, and a test has no server that comes back.
            if is_final(&error) || self.clock.is_manual() || waited >= PATIENCE {
                return Err(unreachable(error));
            }
            self.sleep(PAUSE).await;
        }
    }

    /// A connection that has just answered: what comes next is begun once.
    pub(super) async fn answering_client(&self) -> Result<Client> {
        let mut tries = Tries::begin(&self.clock);
        loop {
            let client = self.client().await?;
            let failure = match self.within(ANSWER_TIMEOUT, client.check_connection()).await {
                Some(Ok(())) => return Ok(client),
                Some(Err(error)) => failure(error),
                None => abandon(client, ANSWER_TIMEOUT),
            };
            if !tries.again_after(&failure) {
                return Err(failure.into_error());
            }
        }
    }

    /// Runs one statement that changes something, in a transaction of its own. On a connection that turns out to be
    /// broken before it was sent it goes to another.
    pub(super) async fn write(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> std::result::Result<Vec<Row>, Failure> {
        let mut tries = Tries::begin(&self.clock);
        loop {
            let client = self.client().await.map_err(Failure::Nothing)?;
            let failure = match self.prepare(client, sql).await {
                Ok((client, statement)) => return self.run(client, &statement, parameters).await,
                Err(failure) => failure,
            };
            if !tries.again_after(&failure) {
                return Err(Failure::Nothing(failure.into_error()));
            }
        }
    }

    /// Runs one statement that changes nothing. On a connection that turns out to be broken it is tried anew.
    pub(super) async fn read(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        let mut tries = Tries::begin(&self.clock);
        loop {
            let outcome = match self.prepare(self.client().await?, sql).await {
                Ok((client, statement)) => self.run(client, &statement, parameters).await,
                Err(failure) => Err(failure),
            };
            match outcome {
                Ok(rows) => return Ok(rows),
                Err(failure) if tries.again_after(&failure) => {}
                Err(failure) => return Err(failure.into_error()),
            }
        }
    }

    async fn prepare(&self, client: Client, sql: &str) -> std::result::Result<(Client, Statement), Failure> {
        match self.within(ANSWER_TIMEOUT, client.prepare_cached(sql)).await {
            Some(prepared) => Ok((client, prepared.map_err(failure)?)),
            None => Err(abandon(client, ANSWER_TIMEOUT)),
        }
    }

    async fn run(
        &self,
        client: Client,
        statement: &Statement,
        parameters: &[Parameter<'_>],
    ) -> std::result::Result<Vec<Row>, Failure> {
        match self.within(ANSWER_TIMEOUT, client.query(statement, parameters)).await {
            Some(answer) => answer.map_err(failure),
            None => Err(abandon(client, ANSWER_TIMEOUT)),
        }
    }

    /// Does some `work` in one transaction, and commits it. An error undoes it, unless it is [`StoreError::Unknown`];
    /// so does a server that takes longer than `limit` for all of it.
    pub(super) async fn transaction<T, E: From<tokio_postgres::Error> + From<StoreError>>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut client = self.answering_client().await?;
        let mut is_ending = false;
        let attempt = async {
            let begun = client.transaction().await?;
            let done = work(&begun).await?;
            is_ending = true;
            begun.commit().await.map_err(|error| StoreError::from(Failure::Unknown(error.into())))?;
            Ok(done)
        };
        if let Some(outcome) = self.within(limit, attempt).await {
            return outcome;
        }
        let silent = abandon(client, limit);
        Err(if is_ending { StoreError::from(silent) } else { silent.into_error() }.into())
    }

    /// What comes of `future`; `None` when it takes longer than `limit`.
    pub(super) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep(limit) => None,
        }
    }

    pub(super) async fn sleep(&self, time: Duration) {
        // Made where it runs: a timer belongs to the runtime that it is made in.
        let sleeping = AbortOnDropHandle::new(self.runtime.spawn(async move { tokio::time::sleep(time).await }));
        // It cannot panic, and when its runtime ends so does everything here.
        drop(sleeping.await);
    }

    /// The one row of [`Database::read`], if there is one.
    pub(super) async fn read_one(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Option<Row>> {
        Ok(self.read(sql, parameters).await?.into_iter().next())
    }
}

impl Failure {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Nothing(error) | Self::Refused(error) | Self::Locked(error) | Self::Unknown(error) => error,
        }
    }
}

/// Takes a connection that has been silent for so long out of the pool: nobody else should wait behind its statement.
fn abandon(client: Client, silent: Duration) -> Failure {
    drop(Client::take(client));
    Failure::Unknown(StoreError::Other(format!("the server gave no answer for {} s", silent.as_secs()).into()))
}

/// Whether trying again soon is of no use.
fn is_final(error: &PoolError) -> bool {
    match error {
        PoolError::Backend(error) => error.code().is_some_and(|code| {
            // Starting up, shutting down and having no room pass; a wrong password does not.
            ![
                SqlState::CANNOT_CONNECT_NOW,
                SqlState::ADMIN_SHUTDOWN,
                SqlState::CRASH_SHUTDOWN,
                SqlState::TOO_MANY_CONNECTIONS,
            ]
            .contains(code)
        }),
        PoolError::Timeout(_) => false,
        _ => true,
    }
}

fn unreachable(error: PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) => error.into(),
        error => StoreError::Other(Cause::new(error)),
    }
}

/// Host and database of a configuration, for people.
pub(super) fn describe(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts: Vec<String> = hosts.collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("PostgreSQL database {database:?} at {}", hosts.join(", "))
}

/// Reads a `postgres://` URL, and sets what it leaves open.
///
/// # Errors
/// A sentence for the operator, without the password.
pub(super) fn configuration(url: &str) -> std::result::Result<Config, String> {
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("--database is no valid postgres:// URL{cause}")
    })?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("--database names no host: write postgres://USER:PASSWORD@HOST/DATABASE".into());
    }
    if config.get_application_name().is_none() {
        config.application_name("tintype");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    config.tcp_user_timeout(NETWORK_TIMEOUT).keepalives_idle(NETWORK_TIMEOUT);
    config.keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
    // What libpq calls "prefer" checks no certificate, so anybody in between could read along.
    if config.get_ssl_mode() == SslMode::Prefer {
        config.ssl_mode(if is_local(&config) { SslMode::Disable } else { SslMode::Require });
    }
    Ok(config)
}

fn is_local(config: &Config) -> bool {
    let loopback = |name: &str| name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    let of_host = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => loopback(name),
    };
    config.get_hosts().iter().all(of_host) && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
}

/// A connection apart from the pool, whose messages somebody must read for it to go on.
pub(super) struct Driven {
    pub(super) client: tokio_postgres::Client,
    pub(super) connection: Box<dyn Messages>,
}

/// The end of a connection at which the server's messages come in, encrypted or not.
pub(super) trait Messages: Send {
    /// See [`tokio_postgres::Connection::poll_message`].
    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<AsyncMessage, tokio_postgres::Error>>>;
}

impl<S, T> Messages for Connection<S, T>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<AsyncMessage, tokio_postgres::Error>>> {
        Self::poll_message(self, cx)
    }
}

/// Connects with the session set up.
#[derive(Clone)]
struct Connector {
    tls: Option<MakeRustlsConnect>,
}

impl Connector {
    async fn connect(&self, config: &Config) -> std::result::Result<Driven, tokio_postgres::Error> {
        match self.tls.clone() {
            Some(tls) => {
                let (client, connection) = config.connect(tls).await?;
                Ok(Driven { client, connection: Box::new(connection) })
            }
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                Ok(Driven { client, connection: Box::new(connection) })
            }
        }
    }
}

impl Connect for Connector {
    fn connect(
        &self,
        config: &Config,
    ) -> BoxFuture<'_, std::result::Result<(tokio_postgres::Client, JoinHandle<()>), tokio_postgres::Error>> {
        let (config, connector) = (config.clone(), self.clone());
        Box::pin(async move {
            let Driven { client, connection } = connector.connect(&config).await?;
            let driving = tokio::spawn(drive(connection));
            client.batch_execute(&session()).await?;
            Ok((client, driving))
        })
    }
}

/// Reads what the server sends until the connection ends.
async fn drive(mut connection: Box<dyn Messages>) {
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let Err(error) = message {
            tracing::debug!(error = %StoreError::from(error), "a connection to the database ended");
            return;
        }
    }
}
