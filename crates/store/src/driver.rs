//! What both databases do with the same statement.
//!
//! SQL is written once, for PostgreSQL, with parameters `$1`, `$2` and so on. A parameter whose type isn't clear from
//! its first use needs a `CAST`.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use rusqlite::ToSql as _;
use rusqlite::types::{FromSql as _, ToSqlOutput, Value, ValueRef};
use tokio::sync::Semaphore;

use super::postgres::{self, PostgresStore};
use super::sqlite::{self, SqliteStore};
use super::{Actor, Audit, AuditedChange, Cause, Result, Right, StoreError, audit_log};
use crate::failure::{DbResult, may_repeat};
use crate::rights::require;
pub(crate) use crate::values::{Column, List, Parameter, json, references, values};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::{Effect, Faults, Point};
use tintype_system::locked::Locked as _;

/// A row that a statement returned.
#[derive(Debug)]
pub(crate) enum Row {
    Sqlite(Arc<[String]>, Vec<Value>),
    Postgres(tokio_postgres::Row),
}

/// The error for a column with a value that this code never writes.
fn invalid(column: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::other(format!("the column {column} contains an invalid value: {error}"))
}

impl Row {
    pub(crate) fn get<T: Column>(&self, column: &str) -> Result<T> {
        let raw = match self {
            Self::Postgres(row) => row.try_get(column)?,
            Self::Sqlite(columns, values) => {
                let place = columns.iter().position(|name| name == column);
                let value = place.and_then(|place| values.get(place)).map(ValueRef::from);
                let value = value.ok_or_else(|| StoreError::other(format!("no column is called {column}")))?;
                T::Raw::column_result(value).map_err(|error| invalid(column, error))?
            }
        };
        T::read(raw).map_err(|error| invalid(column, error))
    }
}

/// Defines the function that reads a value from a row. A field without an expression has the column of its name.
macro_rules! from_row {
    ($vis:vis fn $name:ident($row:ident) -> $type:ident { $($field:ident $(: $value:expr)?),+ $(,)? }) => {
        $vis fn $name($row: &crate::driver::Row) -> crate::Result<$type> {
            Ok($type { $($field: $crate::driver::from_row!(@field $row $field $($value)?)),+ })
        }
    };
    (@field $row:ident $field:ident) => { $row.get(stringify!($field))? };
    (@field $row:ident $field:ident $value:expr) => { $value };
}
pub(crate) use from_row;

/// Prepares a statement for SQLite, which takes `$1` for the name of a parameter.
pub(crate) fn prepare<'a>(
    connection: &'a rusqlite::Connection,
    sql: &str,
    parameters: impl IntoIterator<Item = impl rusqlite::ToSql>,
) -> rusqlite::Result<rusqlite::CachedStatement<'a>> {
    let mut statement = connection.prepare_cached(sql)?;
    for (number, parameter) in (1..).zip(parameters) {
        let named = statement.parameter_index(&format!("${number}"))?;
        let index = named.ok_or_else(|| rusqlite::Error::InvalidParameterName(format!("${number}")))?;
        statement.raw_bind_parameter(index, parameter)?;
    }
    Ok(statement)
}

/// Runs a statement on a connection to SQLite and returns all its rows.
pub(crate) fn query(
    connection: &rusqlite::Connection,
    sql: &str,
    parameters: impl IntoIterator<Item = impl rusqlite::ToSql>,
) -> rusqlite::Result<Vec<Row>> {
    let mut statement = prepare(connection, sql, parameters)?;
    let columns: Arc<[String]> = statement.column_names().map(str::to_owned).collect();
    let row = |row: &rusqlite::Row<'_>| {
        let values = (0..columns.len()).map(|place| row.get(place)).collect::<rusqlite::Result<_>>()?;
        Ok(Row::Sqlite(columns.clone(), values))
    };
    statement.raw_query().mapped(row).collect()
}

/// The rows that PostgreSQL returned.
pub(crate) fn rows(found: Vec<tokio_postgres::Row>) -> Vec<Row> {
    found.into_iter().map(Row::Postgres).collect()
}

/// An open transaction, for the actor whose changes are recorded in the audit log.
pub(crate) enum Transaction<'a> {
    /// The lock never waits: a transaction runs one statement at a time.
    Sqlite(Mutex<&'a mut sqlite::Writing>, Option<&'a Actor>),
    Postgres(&'a postgres::Database, postgres::Transaction<'a>, Option<&'a Actor>),
}

impl Transaction<'_> {
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::Sqlite(writing, _) => writing.locked().clock.now(),
            Self::Postgres(database, ..) => database.now(),
        }
    }

    /// [`Driver::time`]; on SQLite the one after the wait for the writer.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Sqlite(..) => Some(self.now()),
            Self::Postgres(database, ..) => database.given_time(),
        }
    }

    /// The present time of the monotonic clock.
    pub(crate) fn elapsed(&self) -> Duration {
        match self {
            Self::Sqlite(writing, _) => writing.locked().clock.elapsed(),
            Self::Postgres(database, ..) => database.clock.elapsed(),
        }
    }

    pub(crate) fn new_id(&self) -> Id {
        match self {
            Self::Sqlite(writing, _) => {
                let writing = writing.locked();
                writing.ids.next(writing.clock.now())
            }
            Self::Postgres(database, ..) => database.new_id(),
        }
    }

    pub(crate) fn actor(&self) -> Option<&Actor> {
        match self {
            Self::Sqlite(_, actor) | Self::Postgres(.., actor) => *actor,
        }
    }

    /// Whether this author is a person other than the actor.
    pub(crate) fn is_of_another(&self, author: Option<Id>) -> bool {
        author.is_some() && author != self.actor().and_then(|actor| actor.person_id)
    }

    /// Records a change in the audit log, if someone acts.
    pub(crate) async fn audit(&self, change: AuditedChange) -> DbResult {
        match self.actor() {
            Some(actor) => audit_log::record(self, actor, &change).await,
            None => Ok(()),
        }
    }

    /// Runs a statement and returns its rows.
    pub(crate) async fn query(&self, sql: &str, parameters: &[&dyn Parameter]) -> DbResult<Vec<Row>> {
        match self {
            Self::Sqlite(writing, _) => Ok(query(&writing.locked().connection, sql, values(parameters))?),
            Self::Postgres(_, tx, _) => Ok(tx.query(sql, parameters).await?),
        }
    }

    /// The first row of [`Transaction::query`], if any.
    pub(crate) async fn query_opt(&self, sql: &str, parameters: &[&dyn Parameter]) -> DbResult<Option<Row>> {
        Ok(self.query(sql, parameters).await?.into_iter().next())
    }

    /// [`Transaction::query_opt`], as `of_row` reads the row.
    pub(crate) async fn find<T>(
        &self,
        sql: &str,
        parameters: &[&dyn Parameter],
        of_row: impl FnOnce(&Row) -> Result<T>,
    ) -> DbResult<Option<T>> {
        Ok(self.query_opt(sql, parameters).await?.as_ref().map(of_row).transpose()?)
    }

    /// [`Transaction::query`], as `of_row` reads each row.
    pub(crate) async fn list<T>(
        &self,
        sql: &str,
        parameters: &[&dyn Parameter],
        of_row: impl Fn(&Row) -> Result<T>,
    ) -> DbResult<Vec<T>> {
        Ok(self.query(sql, parameters).await?.iter().map(of_row).collect::<Result<_>>()?)
    }

    /// [`Transaction::query_opt`] of a `SELECT`, which also keeps other transactions from changing the rows until this
    /// one has ended. SQLite has one writer at a time anyway.
    pub(crate) async fn lock(&self, sql: &str, parameters: &[&dyn Parameter]) -> DbResult<Option<Row>> {
        self.query_opt(&format!("{sql} {}", self.locking("FOR NO KEY UPDATE")), parameters).await
    }

    /// Runs a statement and returns the number of rows that it changed.
    pub(crate) async fn execute(&self, sql: &str, parameters: &[&dyn Parameter]) -> DbResult<u64> {
        match self {
            Self::Sqlite(writing, _) => {
                Ok(prepare(&writing.locked().connection, sql, values(parameters))?.raw_execute()? as u64)
            }
            Self::Postgres(_, tx, _) => Ok(tx.execute(sql, parameters).await?),
        }
    }

    /// Keeps no prompt that this transaction erases in the write-ahead log.
    pub(crate) fn erases(&self) {
        if let Self::Sqlite(writing, _) = self {
            writing.locked().empties_log = true;
        }
    }
}

/// What runs statements on one of the databases, and where these differ.
pub(crate) trait Dialect {
    /// The variant for this database.
    fn either<T>(&self, sqlite: T, postgres: T) -> T;

    /// A locking clause for the end of a `SELECT`. SQLite has none, because it has one writer at a time.
    fn locking(&self, clause: &'static str) -> &'static str {
        self.either("", clause)
    }

    /// The condition that a column is in the list that is the parameter of this number.
    fn in_list(&self, number: u32) -> String {
        self.either(format!("IN (SELECT value FROM json_each(${number}))"), format!("= ANY (${number})"))
    }

    /// The condition that a column is among the rows of a `SELECT`. An index finds each row.
    fn in_subquery(&self, select: &str) -> String {
        self.either(format!("IN ({select})"), format!("= ANY (ARRAY ({select}))"))
    }

    /// The function that returns the position of a text in another, from 1.
    fn position(&self) -> &'static str {
        self.either("instr", "strpos")
    }

    /// The present time, if `time()` is the parameter of this number.
    fn time_in(&self, number: u32) -> String {
        self.either(format!("${number}"), format!("tintype_now(${number})"))
    }
}

impl Dialect for Transaction<'_> {
    fn either<T>(&self, sqlite: T, postgres: T) -> T {
        match self {
            Self::Sqlite(..) => sqlite,
            Self::Postgres(..) => postgres,
        }
    }
}

impl Dialect for Driver {
    fn either<T>(&self, sqlite: T, postgres: T) -> T {
        match self {
            Self::Sqlite(_) => sqlite,
            Self::Postgres(_) => postgres,
        }
    }
}

/// The values of parameters, for a statement that runs on another thread.
fn owned(parameters: &[&dyn Parameter]) -> rusqlite::Result<Vec<Value>> {
    let value = |value: &crate::values::Value<'_>| {
        Ok(match value.to_sql()? {
            ToSqlOutput::Owned(value) => value,
            ToSqlOutput::Borrowed(value) => value.try_into().map_err(rusqlite::types::FromSqlError::other)?,
            _ => unreachable!("parameters are plain values"),
        })
    };
    values(parameters).iter().map(value).collect()
}

/// The outcome of work on SQLite, which never waits.
pub(crate) fn poll_once<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().unwrap_or_else(|| unreachable!("nothing but a statement is awaited in a transaction"))
}

/// Does a part of a write to SQLite in its transaction.
pub(crate) fn on_sqlite<T>(
    writing: &mut sqlite::Writing,
    work: impl AsyncFnOnce(&Transaction<'_>) -> DbResult<T>,
) -> Result<T> {
    Ok(poll_once(work(&Transaction::Sqlite(Mutex::new(writing), None)))?)
}

/// Does `write` between the two fault points of `effect`, if there is one.
pub(crate) async fn between_faults<T>(
    faults: &Faults,
    effect: impl Into<Option<Effect>>,
    write: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(effect) = effect.into() else { return write.await };
    faults.pass(Point::before(effect)).await?;
    let outcome = write.await;
    let passed = faults.pass(Point::after(effect)).await;
    passed.map_err(|error| StoreError::Unknown(Cause::new(error)))?;
    outcome
}

/// A snapshot of a database, which all its statements see.
pub(crate) trait Snapshot {
    async fn query(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>>;
}

impl Snapshot for rusqlite::Transaction<'_> {
    async fn query(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>> {
        Ok(query(self, sql, values(parameters))?)
    }
}

impl Snapshot for tokio_postgres::Transaction<'_> {
    async fn query(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>> {
        Ok(rows(tokio_postgres::Transaction::query(self, sql, &references(&values(parameters))).await?))
    }
}

/// The condition that keeps the rows of the account $1, or of all. `$1 IS NULL OR account_id = $1` would read all rows.
pub(crate) fn of_account(account_id: Option<Id>) -> &'static str {
    if account_id.is_some() { "account_id = $1" } else { "CAST($1 AS text) IS NULL" }
}

#[derive(Debug, Clone)]
pub(crate) enum Driver {
    Sqlite(Arc<SqliteStore>),
    Postgres(Arc<PostgresStore>),
}

/// What either database does by the same expression.
macro_rules! with_store {
    ($driver:expr, $store:ident => $done:expr) => {
        match &$driver {
            $crate::driver::Driver::Sqlite($store) => $done,
            $crate::driver::Driver::Postgres($store) => $done,
        }
    };
}
pub(crate) use with_store;

/// A store in one of the databases, for one caller.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) driver: Driver,
    /// The actor whose changes are recorded in the audit log.
    pub(crate) actor: Option<Arc<Actor>>,
    /// The right that each write of the caller needs.
    pub(crate) right: Option<Right>,
    pub(crate) pings: Arc<Pings>,
}

/// The health checks of a database. They may come from anywhere, so all that arrive during one share the next.
#[derive(Debug)]
pub(crate) struct Pings {
    /// Checks that have started.
    started: AtomicU64,
    /// The number of the last check that ended, and its result. Locked during a check.
    last: tokio::sync::Mutex<(u64, Result<()>)>,
}

impl From<Driver> for Store {
    fn from(driver: Driver) -> Self {
        let pings = Pings { started: AtomicU64::new(0), last: tokio::sync::Mutex::new((0, Ok(()))) };
        Self { driver, actor: None, right: None, pings: Arc::new(pings) }
    }
}

impl Store {
    /// Succeeds if the database accepts writes. The check began after the call.
    pub async fn ping(&self) -> Result<()> {
        let before = self.pings.started.load(Ordering::SeqCst);
        let mut last = self.pings.last.lock().await;
        if last.0 <= before {
            let number = self.pings.started.fetch_add(1, Ordering::SeqCst) + 1;
            *last = (number, with_store!(self.driver, store => store.check_writes().await));
        }
        last.1.clone()
    }

    /// The turns of reports. A test that holds them all keeps reports waiting.
    pub fn report_turns(&self) -> Arc<Semaphore> {
        with_store!(self.driver, store => store.reports.clone())
    }

    /// From now on new connections to PostgreSQL have the password of the URL in this file, as far as it can be read.
    pub fn follow(&self, url_file: PathBuf) {
        if let Driver::Postgres(store) = &self.driver {
            store.database.hosts.follow(url_file);
        }
    }

    /// Checks a SQLite file for damage. The error names the first.
    pub fn check_integrity(&self) -> Result<()> {
        match &self.driver {
            Driver::Sqlite(store) => store.check_integrity(),
            Driver::Postgres(_) => Ok(()),
        }
    }

    /// Begins a new write-ahead log of SQLite. After a failed sync the kernel may report pages of the log as clean that
    /// never reached the disk, so no answer may depend on the old log.
    pub fn begin_new_log(&self) -> Result<()> {
        match &self.driver {
            Driver::Sqlite(store) => store.begin_new_log(),
            Driver::Postgres(_) => Ok(()),
        }
    }

    /// Checks that an acknowledged write survives a power cut; of SQLite that is known. An error is a message for the
    /// operator.
    pub async fn check_durability(&self) -> std::result::Result<(), String> {
        match &self.driver {
            Driver::Sqlite(_) => Ok(()),
            Driver::Postgres(store) => store.check_durability().await,
        }
    }

    /// Copies all rows of the SQLite database `source`, whose audit is `expected`, into this empty PostgreSQL database.
    /// Calls `progress` with the number of rows in each batch. Changes nothing if `interrupted` is ready before the
    /// commit is sent.
    pub async fn import(
        &self,
        source: &Self,
        expected: &Audit,
        progress: impl Fn(u64),
        interrupted: impl Future<Output = ()>,
    ) -> Result<postgres::Import> {
        match (&self.driver, &source.driver) {
            (Driver::Postgres(store), Driver::Sqlite(source)) => {
                store.import(source, expected, progress, interrupted).await
            }
            _ => Err(StoreError::other("only PostgreSQL takes the rows of another database, which must be SQLite")),
        }
    }

    /// Runs one writing statement, if the right of this store still holds, and returns its rows.
    pub(crate) async fn statement(
        &self,
        effect: impl Into<Option<Effect>>,
        sql: impl Into<Cow<'static, str>>,
        parameters: &[&dyn Parameter],
    ) -> Result<Vec<Row>> {
        let (effect, sql) = (effect.into(), sql.into());
        match &self.driver {
            Driver::Sqlite(store) => {
                let values = owned(parameters)?;
                let right = self.right;
                let statement = move |writing: &mut sqlite::Writing| {
                    on_sqlite(writing, async |tx: &Transaction<'_>| require(tx, right).await)?;
                    Ok(query(&writing.connection, &sql, &values)?)
                };
                store.write(effect, statement).await
            }
            Driver::Postgres(store) => {
                let statement = async {
                    let mut attempts = 1;
                    loop {
                        let outcome = match self.right {
                            None => store.database.write(&sql, parameters).await,
                            right => {
                                let query = async |tx: &Transaction<'_>| tx.query(&sql, parameters).await;
                                store.database.transaction(right, None, query).await
                            }
                        };
                        if !may_repeat(attempts, &outcome) {
                            return Ok(outcome?);
                        }
                        attempts += 1;
                    }
                };
                Box::pin(between_faults(&store.faults, effect, statement)).await
            }
        }
    }

    /// Does `work` in one transaction, if the right of this store still holds. It may be done again: on SQLite after
    /// another write of the same commit has failed, on PostgreSQL after a deadlock. The audit log keeps what `work`
    /// passes to [`Transaction::audit`].
    pub(crate) async fn write<T, W>(&self, effect: impl Into<Option<Effect>>, mut work: W) -> Result<T>
    where
        T: Send + 'static,
        W: AsyncFnMut(&Transaction<'_>) -> DbResult<T> + Send + 'static,
    {
        match &self.driver {
            Driver::Sqlite(store) => {
                let (right, actor) = (self.right, self.actor.clone());
                let write = move |writing: &mut sqlite::Writing| {
                    let tx = Transaction::Sqlite(Mutex::new(writing), actor.as_deref());
                    poll_once(require(&tx, right))?;
                    Ok(poll_once(work(&tx))?)
                };
                store.write(effect, write).await
            }
            Driver::Postgres(store) => {
                let write = async {
                    let mut attempts = 1;
                    loop {
                        let outcome = store.database.transaction(self.right, self.actor.as_deref(), &mut work).await;
                        if !may_repeat(attempts, &outcome) {
                            return Ok(outcome?);
                        }
                        attempts += 1;
                    }
                };
                Box::pin(between_faults(&store.faults, effect, write)).await
            }
        }
    }
}

impl Driver {
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::Sqlite(store) => store.clock.now(),
            Self::Postgres(store) => store.database.now(),
        }
    }

    /// The present time as the parameter of a statement, which PostgreSQL's `tintype_now` takes.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Sqlite(store) => Some(store.clock.now()),
            Self::Postgres(store) => store.database.given_time(),
        }
    }

    /// The lowest id from which a scan of the queue finds all tasks.
    pub(crate) fn horizon(&self) -> String {
        match self {
            Self::Sqlite(_) => String::new(),
            Self::Postgres(store) => store.database.horizon().to_string(),
        }
    }

    pub(crate) fn faults(&self) -> &Faults {
        with_store!(self, store => &store.faults)
    }

    pub(crate) async fn read(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>> {
        match self {
            Self::Sqlite(store) => store.read(|connection| query(connection, sql, values(parameters))),
            Self::Postgres(store) => store.database.read(sql, parameters).await,
        }
    }

    /// [`Driver::read`] on a connection of PostgreSQL for writing, whose plans use the indexes.
    pub(crate) async fn read_by_index(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Vec<Row>> {
        match self {
            Self::Sqlite(_) => self.read(sql, parameters).await,
            Self::Postgres(store) => Ok(store.database.write(sql, parameters).await?),
        }
    }

    /// The first row of [`Driver::read`], if any.
    pub(crate) async fn read_one(&self, sql: &str, parameters: &[&dyn Parameter]) -> Result<Option<Row>> {
        Ok(self.read(sql, parameters).await?.into_iter().next())
    }

    /// [`Driver::read_one`], as `of_row` reads the row.
    pub(crate) async fn find<T>(
        &self,
        sql: &str,
        parameters: &[&dyn Parameter],
        of_row: impl FnOnce(&Row) -> Result<T>,
    ) -> Result<Option<T>> {
        self.read_one(sql, parameters).await?.as_ref().map(of_row).transpose()
    }

    /// [`Driver::read`], as `of_row` reads each row.
    pub(crate) async fn list<T>(
        &self,
        sql: &str,
        parameters: &[&dyn Parameter],
        of_row: impl Fn(&Row) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.read(sql, parameters).await?.iter().map(of_row).collect()
    }

    /// [`Driver::read`] for many rows, on a separate thread with SQLite, one such read at a time. Submits wait for some of
    /// these reads, so each must read a limited number of rows; the rest are [`Driver::report`]s.
    pub(crate) async fn long_read(&self, sql: String, parameters: &[&dyn Parameter]) -> Result<Vec<Row>> {
        match self {
            Self::Sqlite(store) => self.read_in_turn(&store.long_reads, sql, parameters).await,
            Self::Postgres(_) => self.read(&sql, parameters).await,
        }
    }

    /// [`Driver::read`] that may read an account's whole ledger. Reports wait only for each other: on SQLite they leave the
    /// other half of two cores free, on PostgreSQL most connections.
    pub(crate) async fn report(&self, sql: String, parameters: &[&dyn Parameter]) -> Result<Vec<Row>> {
        self.read_in_turn(with_store!(self, store => &store.reports), sql, parameters).await
    }

    async fn read_in_turn(
        &self,
        turns: &Arc<Semaphore>,
        sql: String,
        parameters: &[&dyn Parameter],
    ) -> Result<Vec<Row>> {
        let turn = turns.clone().acquire_owned().await.map_err(StoreError::other)?;
        match self {
            Self::Sqlite(store) => {
                let values = owned(parameters)?;
                store.long_read(turn, move |connection| query(connection, &sql, &values)).await
            }
            Self::Postgres(_) => {
                let rows = self.read(&sql, parameters).await;
                drop(turn);
                rows
            }
        }
    }
}
