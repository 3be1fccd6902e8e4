//! The connection pool, and the ways in which statements reach the server.

use std::fmt;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use deadpool_postgres::{Client, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType};
use tokio::runtime::Handle;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, Row, SimpleQueryMessage, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

use super::connect::{Connector, Driven, describe};
use crate::clock::{Clock, Timestamp};
use crate::domain::model::{Id, IdSource};
use crate::store::{Cause, Result, StoreError};

/// Most connections of one process.
pub(super) const MAX_CONNECTIONS: usize = 16;
/// Longest wait for a connection of the pool.
pub(super) const POOL_WAIT: Duration = Duration::from_secs(10);
/// Time for which a statement waits while the server is unreachable: about the duration of a restart.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before the next attempt to reach the server.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for the response to a statement: longer than the limit of the server, so that its error arrives.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for a transaction of several statements.
pub(super) const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// A parameter of a statement.
pub(super) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// Why a statement has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was not started.
    Nothing(StoreError),
    /// The server rolled it back.
    Refused(StoreError),
    /// The server rolled it back: another transaction held a lock for longer than a statement waits.
    Locked(StoreError),
    /// The server is read-only: the connection reaches a standby, or a primary that was demoted.
    Broken(StoreError),
    /// The connection broke: the statement may have taken effect.
    Unknown(StoreError),
}

/// The cause of an error, without its outcome.
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
    /// Drops the details of a server error, which may contain a prompt.
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(server) = error.as_db_error() else { return Self::Other(Cause::new(error)) };
        let cause = Cause::from(format!("{} (SQLSTATE {})", server.message(), server.code().code()));
        if *server.code() == SqlState::DISK_FULL { Self::Full(cause) } else { Self::Other(cause) }
    }
}

/// Whether the server rejected the statement and rolled it back. Any other error leaves the outcome open.
fn failure(error: tokio_postgres::Error) -> Failure {
    let refused = error.as_db_error().is_some_and(|server| server.parsed_severity() == Some(Severity::Error));
    match error.code() {
        Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Failure::Broken(error.into()),
        Some(&SqlState::LOCK_NOT_AVAILABLE) if refused => Failure::Locked(error.into()),
        _ if refused => Failure::Refused(error.into()),
        _ => Failure::Unknown(error.into()),
    }
}

/// The server of a store, with its clock and the source of ids.
pub(super) struct Database {
    pool: Pool,
    connector: Connector,
    config: Config,
    name: String,
    pub(super) clock: Clock,
    ids: IdSource,
    /// The runtime of the connections and their timers.
    runtime: Handle,
    /// Time of the server at the start of this process's monotonic clock, in milliseconds.
    pub(super) origin: AtomicI64,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Database {
    /// Creates the pool for the server that `config` names, without connecting.
    pub(super) fn new(config: &Config, tls: Option<MakeRustlsConnect>, clock: Clock) -> Result<Self> {
        let connector = Connector::new(tls);
        let manager = Manager::from_connect(
            config.clone(),
            connector.clone(),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager).max_size(MAX_CONNECTIONS).runtime(Runtime::Tokio1);
        let pool = pool.build().map_err(|error| StoreError::Other(Cause::new(error)))?;
        // Until the clock of the server has been read.
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

    /// Host and database, without credentials.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The time parameter of statements: `None` stands for the clock of the server; a manual clock passes its time.
    pub(super) fn given_time(&self) -> Option<Timestamp> {
        self.clock.is_manual().then(|| self.clock.now())
    }

    /// Creates an id with the server's time.
    pub(super) fn new_id(&self) -> Id {
        self.ids.next(self.now())
    }

    /// Opens a connection outside of the pool.
    pub(super) async fn connect_apart(&self) -> Result<Driven> {
        Ok(self.connector.connect(&self.config).await?)
    }

    /// Takes a connection from the pool; waits while the server restarts.
    pub(super) async fn client(&self) -> Result<Client> {
        let begun = self.clock.elapsed();
        loop {
            let error = match self.within(POOL_WAIT, self.pool.get()).await {
                Some(Ok(client)) => return Ok(client),
                Some(Err(error)) => error,
                None => return Err(unreachable(PoolError::Timeout(TimeoutType::Wait))),
            };
            let waited = self.clock.elapsed().saturating_sub(begun);
            // A manual clock stands still, so the wait would never end; tests with one do not restart the server.
            if is_final(&error) || self.clock.is_manual() || waited >= PATIENCE {
                return Err(unreachable(error));
            }
            self.sleep(PAUSE).await;
        }
    }

    /// Takes a connection that has just responded, so that a transaction of several statements can start on it.
    pub(super) async fn answering_client(&self) -> Result<Client> {
        let mut tries = Tries::begin(&self.clock);
        loop {
            let client = Lent::new(self.client().await?);
            match self.ask(client, async |client| client.simple_query("SHOW transaction_read_only").await).await {
                Ok((client, answer)) if !says_on(&answer) => return Ok(client),
                Ok((client, _)) => {
                    drop(Client::take(client));
                    tries.again_after(Failure::Broken(StoreError::Other("the server is read-only".into())))?;
                }
                Err(failure) => tries.again_after(failure.unsent())?,
            }
        }
    }

    /// Runs one writing statement in a transaction of its own. Retries on another connection if the connection was
    /// broken before the statement was sent, or if the server is read-only.
    pub(super) async fn write(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> std::result::Result<Vec<Row>, Failure> {
        let mut tries = Tries::begin(&self.clock);
        loop {
            let client = Lent::new(self.client().await.map_err(Failure::Nothing)?);
            let failure = match self.ask(client, async |client| client.prepare_cached(sql).await).await {
                Err(failure) => failure.unsent(),
                Ok((client, statement)) => {
                    match self.ask(Lent::new(client), async |client| client.query(&statement, parameters).await).await {
                        Ok((_, rows)) => return Ok(rows),
                        Err(failure @ Failure::Broken(_)) => failure,
                        Err(failure) => return Err(failure),
                    }
                }
            };
            tries.again_after(failure).map_err(Failure::Nothing)?;
        }
    }

    /// Runs one reading statement. Retries on another connection if the connection breaks.
    pub(super) async fn read(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        let mut tries = Tries::begin(&self.clock);
        loop {
            let client = Lent::new(self.client().await?);
            let outcome = self
                .ask(client, async |client| {
                    let statement = client.prepare_cached(sql).await?;
                    client.query(&statement, parameters).await
                })
                .await;
            match outcome {
                Ok((_, rows)) => return Ok(rows),
                Err(failure) => tries.again_after(failure.unsent())?,
            }
        }
    }

    /// Runs a statement and returns the connection to the pool after the response. A connection that is silent for
    /// [`ANSWER_TIMEOUT`] or reaches a read-only server leaves the pool.
    async fn ask<T>(
        &self,
        client: Lent,
        question: impl AsyncFnOnce(&Client) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> std::result::Result<(Client, T), Failure> {
        match self.within(ANSWER_TIMEOUT, question(client.get())).await {
            Some(Ok(answer)) => Ok((client.give_back(), answer)),
            Some(Err(error)) => {
                let failure = failure(error);
                if !matches!(failure, Failure::Broken(_)) {
                    drop(client.give_back());
                }
                Err(failure)
            }
            None => Err(silent(ANSWER_TIMEOUT)),
        }
    }

    /// Runs `work` in one transaction and commits it. An error other than [`StoreError::Unknown`] rolls it back, as
    /// does exceeding `limit` for the whole transaction.
    pub(super) async fn transaction<T, E: From<tokio_postgres::Error> + From<StoreError>>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut client = Lent::new(self.answering_client().await?);
        let mut is_ending = false;
        let attempt = async {
            let begun = client.get_mut().transaction().await?;
            let done = work(&begun).await?;
            is_ending = true;
            begun.commit().await.map_err(|error| StoreError::from(Failure::Unknown(error.into())))?;
            Ok(done)
        };
        if let Some(outcome) = self.within(limit, attempt).await {
            drop(client.give_back());
            return outcome;
        }
        let silent = silent(limit);
        Err(if is_ending { StoreError::from(silent) } else { silent.into_error() }.into())
    }

    /// Awaits `future`; `None` if it takes longer than `limit`.
    pub(super) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep(limit) => None,
        }
    }

    pub(super) async fn sleep(&self, time: Duration) {
        // Created inside the task, because a timer belongs to the runtime in which it is created.
        let sleeping = AbortOnDropHandle::new(self.runtime.spawn(async move { tokio::time::sleep(time).await }));
        // The task cannot panic, and when its runtime ends so does this one.
        drop(sleeping.await);
    }

    /// The first row of [`Database::read`], if any.
    pub(super) async fn read_one(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Option<Row>> {
        Ok(self.read(sql, parameters).await?.into_iter().next())
    }
}

impl Failure {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Nothing(error)
            | Self::Refused(error)
            | Self::Locked(error)
            | Self::Broken(error)
            | Self::Unknown(error) => error,
        }
    }

    /// The same for a statement that wrote nothing, which can be retried on another connection.
    fn unsent(self) -> Self {
        match self {
            Self::Unknown(error) => Self::Broken(error),
            failure => failure,
        }
    }
}

fn silent(limit: Duration) -> Failure {
    Failure::Unknown(StoreError::Other(format!("the server did not respond for {} s", limit.as_secs()).into()))
}

/// Whether a `SHOW` says `on`.
fn says_on(answer: &[SimpleQueryMessage]) -> bool {
    answer.iter().any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("on")))
}

/// A connection with a statement in progress. If it is dropped before it is returned, because its caller hung up or the
/// server is silent, it leaves the pool: the next caller would have to wait for its statement.
struct Lent(Option<Client>);

impl Lent {
    fn new(client: Client) -> Self {
        Self(Some(client))
    }

    fn get(&self) -> &Client {
        self.0.as_ref().expect("it is there until it is given back")
    }

    fn get_mut(&mut self) -> &mut Client {
        self.0.as_mut().expect("it is there until it is given back")
    }

    fn give_back(mut self) -> Client {
        self.0.take().expect("it is given back once")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop(self.0.take().map(Client::take));
    }
}

/// Number and duration of the retries of an operation on other connections.
struct Tries<'a> {
    clock: &'a Clock,
    begun: Duration,
    left: usize,
}

impl<'a> Tries<'a> {
    fn begin(clock: &'a Clock) -> Self {
        // All connections of the pool may be broken; the one after them is new.
        Self { clock, begun: clock.elapsed(), left: MAX_CONNECTIONS + 1 }
    }

    /// Returns the error unless a retry on another connection may succeed.
    fn again_after(&mut self, failure: Failure) -> Result<()> {
        let waited = self.clock.elapsed().saturating_sub(self.begun);
        if !matches!(failure, Failure::Broken(_)) || waited >= PATIENCE || self.left == 0 {
            return Err(failure.into_error());
        }
        self.left -= 1;
        Ok(())
    }
}

/// Whether a retry soon cannot help.
fn is_final(error: &PoolError) -> bool {
    match error {
        PoolError::Backend(error) => error.code().is_some_and(|code| {
            // A server that starts, stops or has too many connections recovers soon; a wrong password stays wrong.
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
