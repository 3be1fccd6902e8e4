//! The schema of a database: its owner, its version and the migrations to the current one.

use std::time::Duration;

use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;

use super::connection::Database;
use super::failure::words;
use crate::store::StoreError;

/// The migrations from an empty database to the current schema.
const MIGRATIONS: [&str; 13] = [
    include_str!("../../../migrations/postgres/0001_initial.sql"),
    include_str!("../../../migrations/postgres/0002_retention.sql"),
    include_str!("../../../migrations/postgres/0003_policy.sql"),
    include_str!("../../../migrations/postgres/0004_last_used.sql"),
    include_str!("../../../migrations/postgres/0005_workers.sql"),
    include_str!("../../../migrations/postgres/0006_dropped_months.sql"),
    include_str!("../../../migrations/postgres/0007_turns.sql"),
    include_str!("../../../migrations/postgres/0008_sweeps.sql"),
    include_str!("../../../migrations/postgres/0009_request_ids.sql"),
    include_str!("../../../migrations/postgres/0010_ledger_balances.sql"),
    include_str!("../../../migrations/postgres/0011_queue_pause.sql"),
    include_str!("../../../migrations/postgres/0012_taken_credits.sql"),
    include_str!("../../../migrations/postgres/0013_disabled_accounts.sql"),
];
/// Key of the advisory lock for changes to the schema and the partitions and for the first account: "tint" in ASCII.
pub(super) const LOCK: i64 = 0x7469_6E74;
/// Another transaction held a lock on a table to be changed.
const BUSY: [SqlState; 2] = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];
/// Time limit and interval of the attempts to lock a busy table.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_secs(1);

/// Why a database could not be opened: a sentence for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The database cannot be reached, read or written.
    #[error("cannot open the {name}: {error}")]
    Unusable {
        /// Name and host of the database.
        name: String,
        /// Message of the server or of the network.
        error: String,
    },
    /// The database contains tables of another program.
    #[error("the {0} has tables, but not Tintype's: give Tintype a database or a schema of its own")]
    Foreign(String),
    /// A later release wrote the database.
    #[error(
        "the database was written by a newer Tintype (schema {found}; this one knows {known}): upgrade this binary or restore a backup"
    )]
    Newer {
        /// The schema found.
        found: i64,
        /// The schema this binary writes.
        known: usize,
    },
}

/// Migrates the schema, or fails and leaves it unchanged. Of several processes that start at the same time the first
/// migrates and the others wait.
pub(super) async fn migrate(database: &Database) -> Result<(), OpenError> {
    let begun = database.clock.elapsed();
    loop {
        let error = match attempt(database).await? {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let waited = database.clock.elapsed().saturating_sub(begun);
        let is_busy = error.code().is_some_and(|code| BUSY.contains(code));
        if !is_busy || waited > PATIENCE || database.clock.is_manual() {
            return Err(unusable(database, error.into()));
        }
        tracing::warn!("the migration waits until no transaction uses the tables to change");
        database.sleep(PAUSE.mul_f64(0.5 + rand::random::<f64>())).await;
    }
}

/// Whether the schema needs no migration.
pub(super) async fn is_current(database: &Database) -> Result<bool, OpenError> {
    let found = async {
        let exists = database.read_one("SELECT 1 WHERE to_regclass('tintype') IS NOT NULL", &[]).await?;
        if exists.is_none() {
            return Ok(None);
        }
        let row = database.read_one("SELECT version FROM tintype", &[]).await?;
        Ok(row.map(|row| row.try_get::<_, i32>(0)).transpose()?)
    };
    let found = found.await.map_err(|error| unusable(database, error))?;
    match found.map(|version| usize::try_from(version).unwrap_or(usize::MAX)) {
        Some(version) if version > MIGRATIONS.len() => {
            Err(OpenError::Newer { found: version as i64, known: MIGRATIONS.len() })
        }
        version => Ok(version == Some(MIGRATIONS.len())),
    }
}

fn unusable(database: &Database, error: StoreError) -> OpenError {
    OpenError::Unusable { name: database.name(), error: words(error).to_string() }
}

/// The inner error is that of the server.
async fn attempt(database: &Database) -> Result<Result<(), tokio_postgres::Error>, OpenError> {
    let mut client = database.reader().await.map_err(|error| unusable(database, error))?;
    let outcome = async {
        let begun = client.transaction().await?;
        match steps(&begun, &database.name()).await? {
            Ok(()) => begun.commit().await.map(Ok),
            refusal => begun.rollback().await.map(|()| refusal),
        }
    };
    match outcome.await {
        Ok(Ok(())) => Ok(Ok(())),
        Ok(Err(refusal)) => Err(refusal),
        Err(error) => Ok(Err(error)),
    }
}

async fn steps(begun: &Transaction<'_>, name: &str) -> Result<Result<(), OpenError>, tokio_postgres::Error> {
    // Many processes may start at the same time, and the first may take long.
    begun.batch_execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = '5min'").await?;
    begun.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    let found: Option<i64> = match begun.query_one(
        "SELECT to_regclass('tintype') IS NOT NULL, to_regclass('accounts') IS NOT NULL OR to_regclass('tasks') IS NOT NULL",
        &[],
    ).await? {
        row if row.try_get(0)? => {
            let version: i32 = begun.query_one("SELECT version FROM tintype", &[]).await?.try_get(0)?;
            Some(version.into())
        }
        row if row.try_get(1)? => return Ok(Err(OpenError::Foreign(name.to_owned()))),
        _ => None,
    };
    let done = match usize::try_from(found.unwrap_or(0)) {
        Ok(done) if done <= MIGRATIONS.len() => done,
        _ => return Ok(Err(OpenError::Newer { found: found.unwrap_or(0), known: MIGRATIONS.len() })),
    };
    if done == MIGRATIONS.len() {
        return Ok(Ok(()));
    }
    // A waiting ALTER TABLE blocks all later statements on the table, so give up soon and try again. The timeout is
    // shorter than `deadlock_timeout`, so that the server never cancels other transactions instead.
    begun.batch_execute("SET LOCAL lock_timeout = '500ms'; SET LOCAL statement_timeout = 0").await?;
    for step in MIGRATIONS.iter().skip(done) {
        begun.batch_execute(step).await?;
    }
    if done == 0 {
        let secret: [u8; 32] = rand::random();
        begun.execute("INSERT INTO secrets (name, value) VALUES ('cursor', $1)", &[&&secret[..]]).await?;
    }
    let version = i32::try_from(MIGRATIONS.len()).expect("few migrations");
    begun.execute("UPDATE tintype SET version = $1", &[&version]).await?;
    Ok(Ok(()))
}
