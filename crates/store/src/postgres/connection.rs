//! The connection pool, and how statements reach the server.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use deadpool_postgres::{
    Client, ClientWrapper, Hook, HookError, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime,
};
use tokio::runtime::Handle;
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

use super::connect::{BY_INDEX, describe, session};
use super::hosts::{EncryptedConnection, Hosts};
use crate::driver::{self, Parameter, Row, references, rows, values};
use crate::failure::{DbError, DbResult};
use crate::rights::{Right, require};
use crate::{Actor, Result, StoreError};
use tintype_domain::model::{Id, IdSource};
use tintype_system::clock::{Clock, Timestamp};
use tintype_system::locked::Locked as _;

/// Most connections of each of the two pools of one process.
const MAX_CONNECTIONS: usize = 8;
/// Longest wait for a connection of the pool.
pub(super) const POOL_WAIT: Duration = Duration::from_secs(10);
/// How long a statement waits while the server is unreachable: about as long as a restart.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before the next attempt to reach the server.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a server counts as full after it has said so. Only a larger write shows whether it has room again.
const FULL_FOR: Duration = Duration::from_secs(10);
/// Longest wait for the response to a statement: longer than the limit of the server, so that its error arrives.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for a transaction of several statements.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Begins a transaction without changing anything, to find a connection that responds and whose server isn't read-only.
const BEGIN: &str = "BEGIN; UPDATE tintype SET version = version WHERE false";

/// The server of a store, with its clock and the source of ids.
pub(crate) struct Database {
    /// Connections for writing statements, which are planned by indexes ([`BY_INDEX`]).
    writers: Pool,
    /// Connections for reading statements, which the planner may plan as it likes.
    readers: Pool,
    config: Config,
    pub(crate) hosts: Hosts,
    pub(crate) clock: Clock,
    ids: IdSource,
    /// The runtime of the connections and their timers.
    runtime: Handle,
    /// Time of the server at the start of this process's monotonic clock, in milliseconds.
    pub(super) origin: AtomicI64,
    /// See [`Database::horizon`]; milliseconds.
    pub(super) horizon_ms: AtomicI64,
    /// Time at which the server last said that its disk is full, by the monotonic clock.
    full_at: Mutex<Option<Duration>>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Database {
    /// Creates the pool for the server that `config` names, without connecting.
    pub(super) fn new(config: Config, tls: MakeRustlsConnect, clock: Clock) -> Result<Self> {
        let runtime = Handle::current();
        let hosts = Hosts::new(&config, tls, runtime.clone());
        let pool = |planning: &str| {
            let session = format!("{}; {planning}", session(&config));
            let prepare = Hook::async_fn(move |client: &mut ClientWrapper, _| {
                let session = session.clone();
                Box::pin(async move { client.batch_execute(&session).await.map_err(HookError::Backend) })
            });
            let pool = Pool::builder(manager(&config, &hosts)).max_size(MAX_CONNECTIONS);
            let pool = pool.post_create(prepare).runtime(Runtime::Tokio1);
            pool.build().map_err(StoreError::other)
        };
        let (writers, readers) = (pool(BY_INDEX)?, pool("")?);
        // Until the clock of the server has been read.
        let origin = clock.now().saturating_sub(clock.elapsed()).as_millis();
        Ok(Self {
            writers,
            readers,
            config,
            hosts,
            clock,
            ids: IdSource::default(),
            runtime,
            origin: AtomicI64::new(origin),
            horizon_ms: AtomicI64::new(i64::MIN),
            full_at: Mutex::default(),
        })
    }

    /// Host and database, without credentials.
    pub(super) fn name(&self) -> String {
        describe(&self.config)
    }

    /// The time parameter of statements: `None` for the server's clock; a manual clock passes its time.
    pub(crate) fn given_time(&self) -> Option<Timestamp> {
        self.clock.is_manual().then(|| self.clock.now())
    }

    /// Creates an id with the server's time.
    pub(crate) fn new_id(&self) -> Id {
        self.ids.next(self.now())
    }

    /// Statements that prepare a connection outside of the pool.
    pub(super) fn session(&self) -> String {
        session(&self.config)
    }

    /// Opens a connection outside of the pool.
    pub(super) async fn connect_apart(&self) -> Result<(tokio_postgres::Client, EncryptedConnection)> {
        match self.within(POOL_WAIT, self.hosts.open()).await {
            Some(connected) => Ok(connected?),
            None => Err(self.silent()),
        }
    }

    /// The server accepts connections, and that is all. So does a pooler that has none left for the first statement.
    fn silent(&self) -> StoreError {
        let (name, seconds, needed) = (self.name(), POOL_WAIT.as_secs(), 2 * MAX_CONNECTIONS + 1);
        let pooler = format!("a pooler does so that allows each process fewer than its {needed} connections");
        StoreError::other(format!("{name} did not respond for {seconds} s; {pooler}"))
    }

    /// Two connections without settings, in a separate pool that ends with them. Waits while the server restarts.
    pub(super) async fn bare_pair(&self) -> Result<(Client, Client)> {
        let pool = Pool::builder(manager(&self.config, &self.hosts)).max_size(2).runtime(Runtime::Tokio1).build();
        let pool = pool.map_err(StoreError::other)?;
        Ok((self.client(&pool).await?, self.client(&pool).await?))
    }

    /// Takes a connection for reading statements; waits while the server restarts.
    pub(super) async fn reader(&self) -> Result<Client> {
        self.client(&self.readers).await
    }

    async fn client(&self, pool: &Pool) -> Result<Client> {
        let started = self.clock.elapsed();
        loop {
            let error = match self.within(POOL_WAIT, pool.get()).await {
                Some(Ok(client)) => return Ok(client),
                Some(Err(error)) => error,
                None if pool.status().size < pool.status().max_size => return Err(self.silent()),
                None => return Err(StoreError::other(too_few_connections())),
            };
            let waited = self.clock.elapsed().saturating_sub(started);
            // A manual clock stands still, so the wait would never end; tests with one do not restart the server.
            if is_final(&error) || self.clock.is_manual() || waited >= PATIENCE {
                return Err(unreachable(error));
            }
            self.sleep(PAUSE).await;
        }
    }

    /// Runs one writing statement in a separate transaction.
    pub(crate) async fn write(&self, sql: &str, parameters: &[&dyn Parameter]) -> DbResult<Vec<Row>> {
        Box::pin(self.query(&self.writers, sql, Some(parameters), |failure| failure)).await.map(|(_, rows)| rows)
    }

    pub(crate) async fn read(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>> {
        Ok(Box::pin(self.query(&self.readers, sql, Some(parameters), DbError::without_effect)).await?.1)
    }

    /// Runs one statement, or several without parameters; `of_statement` judges the failure. Repeats it on another
    /// connection while it fails without effect because the connection was broken or the server is read-only. Returns
    /// the connection, too.
    async fn query(
        &self,
        pool: &Pool,
        sql: &str,
        parameters: Option<&[&dyn Parameter]>,
        of_statement: fn(DbError) -> DbError,
    ) -> DbResult<(PooledConnection, Vec<Row>)> {
        let started = self.clock.elapsed();
        // All connections of the pool may be broken; the one after them is new.
        let mut others = MAX_CONNECTIONS + 1;
        loop {
            let client = self.client(pool).await.map_err(DbError::Broken)?;
            let mut connection = PooledConnection { client: Some(client), is_idle: true };
            let client = connection.start();
            let query = async {
                let Some(parameters) = parameters else {
                    let done = client.batch_execute(sql).await;
                    if done.is_err() {
                        // For the next one who takes the connection.
                        drop(client.batch_execute("ROLLBACK").await);
                    }
                    return Ok(done.map(|()| Vec::new())?);
                };
                let prepared = client.prepare_cached(sql).await;
                let statement = prepared.map_err(|error| DbError::from(error).without_effect())?;
                Ok(rows(client.query(&statement, &references(&values(parameters))).await?))
            };
            let outcome = self.answered(ANSWER_TIMEOUT, query).await.map_err(of_statement);
            let outcome = connection.end(outcome);
            let is_early = self.clock.elapsed().saturating_sub(started) < PATIENCE;
            if others == 0 || !is_early || !matches!(outcome, Err(DbError::Broken(_))) {
                return outcome.map(|rows| (connection, rows));
            }
            others -= 1;
        }
    }

    /// Runs `work` in one transaction, for an actor, if `right` still holds, and commits it. An error of `work` rolls it
    /// back.
    pub(crate) async fn transaction<T>(
        &self,
        right: Option<Right>,
        actor: Option<&Actor>,
        work: impl AsyncFnOnce(&driver::Transaction<'_>) -> DbResult<T>,
    ) -> DbResult<T> {
        let (mut connection, _) = Box::pin(self.query(&self.writers, BEGIN, None, DbError::without_effect)).await?;
        let tx = driver::Transaction::Postgres(self, Transaction(connection.start()), actor);
        let work = async {
            require(&tx, right).await?;
            work(&tx).await
        };
        let done = Box::pin(self.answered(TRANSACTION_TIMEOUT, work)).await;
        match done.map_err(DbError::without_effect) {
            Ok(done) => Box::pin(self.commit(connection)).await.map(|()| done),
            Err(failure) => Err(Box::pin(self.roll_back(connection, failure)).await),
        }
    }

    async fn commit(&self, mut connection: PooledConnection) -> DbResult {
        let client = connection.start();
        let outcome = self.answered(ANSWER_TIMEOUT, async { Ok(client.batch_execute("COMMIT").await?) }).await;
        connection.end(outcome)
    }

    /// Ends a transaction that failed. Returns why.
    async fn roll_back(&self, mut connection: PooledConnection, failure: DbError) -> DbError {
        if matches!(failure, DbError::Broken(_)) {
            return failure;
        }
        let client = connection.start();
        let outcome = self.answered(ANSWER_TIMEOUT, async { Ok(client.batch_execute("ROLLBACK").await?) }).await;
        // The server rolls back when it loses the connection.
        match connection.end(outcome.map_err(|error| DbError::Broken(error.into()))) {
            Ok(()) => failure,
            // The first error says what happened.
            Err(_) => DbError::Broken(failure.into()),
        }
    }

    /// Awaits the response to `work`, for at most `limit`.
    async fn answered<T>(&self, limit: Duration, work: impl Future<Output = DbResult<T>>) -> DbResult<T> {
        let silent = || StoreError::other(format!("the server did not respond for {} s", limit.as_secs()));
        let done = self.within(limit, work).await.unwrap_or_else(|| Err(DbError::Unknown(silent())));
        if let Err(DbError::Refused(StoreError::Full(_))) = done {
            *self.full_at.locked() = Some(self.clock.elapsed());
        }
        done
    }

    /// Whether a write has recently failed because the server's disk is full. Very small writes, such as a probe's, may
    /// still succeed there.
    pub(super) fn was_full(&self) -> bool {
        let since = |at| self.clock.elapsed().saturating_sub(at);
        self.full_at.locked().is_some_and(|at| since(at) < FULL_FOR)
    }

    /// Awaits `future`; `None` if it takes longer than `limit`.
    pub(super) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        within(&self.runtime, limit, future).await
    }

    pub(super) async fn sleep(&self, time: Duration) {
        sleep(&self.runtime, time).await;
    }
}

/// Awaits `future`; `None` if it takes longer than `limit` by the clock of `runtime`.
pub(super) async fn within<F: Future>(runtime: &Handle, limit: Duration, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = sleep(runtime, limit) => None,
    }
}

async fn sleep(runtime: &Handle, time: Duration) {
    // Created inside the task, because a timer belongs to the runtime in which it is created.
    let sleeping = AbortOnDropHandle::new(runtime.spawn(async move { tokio::time::sleep(time).await }));
    // The task cannot panic, and when its runtime ends so does this one.
    drop(sleeping.await);
}

/// An open transaction. Its statements are prepared once per connection. Statements awaited together reach the server
/// together. `try_join!` must poll them in order (`biased`): once one has failed, the server rejects the later ones
/// with an error that explains nothing.
pub(crate) struct Transaction<'a>(&'a Client);

impl Transaction<'_> {
    pub(crate) async fn query(
        &self,
        sql: &str,
        parameters: &[&dyn Parameter],
    ) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
        let statement = self.0.prepare_cached(sql).await?;
        Ok(rows(self.0.query(&statement, &references(&values(parameters))).await?))
    }

    /// Returns the number of rows that were changed.
    pub(crate) async fn execute(
        &self,
        sql: &str,
        parameters: &[&dyn Parameter],
    ) -> std::result::Result<u64, tokio_postgres::Error> {
        let statement = self.0.prepare_cached(sql).await?;
        self.0.execute(&statement, &references(&values(parameters))).await
    }
}

/// A connection of the pool with a statement in progress. If it is dropped meanwhile, because its caller hung up or the
/// server is silent, it leaves the pool: the next caller would have to wait for its statement.
struct PooledConnection {
    client: Option<Client>,
    is_idle: bool,
}

impl PooledConnection {
    /// The connection, which is busy until [`PooledConnection::end`] gets the outcome.
    fn start(&mut self) -> &mut Client {
        self.is_idle = false;
        self.client.as_mut().expect("it is there until the end")
    }

    fn end<T>(&mut self, outcome: DbResult<T>) -> DbResult<T> {
        self.is_idle = !matches!(outcome, Err(DbError::Broken(_) | DbError::Unknown(_)));
        outcome
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if !self.is_idle {
            drop(self.client.take().map(Client::take));
        }
    }
}

fn manager(config: &Config, hosts: &Hosts) -> Manager {
    let settings = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    Manager::from_connect(config.clone(), hosts.clone(), settings)
}

/// Whether a retry soon cannot help: a wrong password stays wrong, but a server that starts, stops (class 57) or has
/// too many connections (class 53) recovers.
fn is_final(error: &PoolError) -> bool {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            error.code().is_some_and(|code| !matches!(&code.code()[..2], "53" | "57"))
        }
        PoolError::Timeout(_) => false,
        _ => true,
    }
}

fn too_few_connections() -> String {
    format!(
        "no connection was free within {} s: each process needs {} connections to the database, and the server or the \
         pooler before it may allow fewer",
        POOL_WAIT.as_secs(),
        2 * MAX_CONNECTIONS + 1
    )
}

fn unreachable(error: PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => error.into(),
        error => StoreError::other(error),
    }
}
