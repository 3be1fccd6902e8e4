//! The schema of a database: its owner, its version, its creation and its migrations.

use std::time::Duration;

use tintype_outbound::trust;
use tokio_postgres::Transaction;

use super::connection::Database;
use crate::failure::{DbError, DbResult, cause_of};
use crate::schema::schema;
use crate::{OpenError, Schema};

/// The schema in force, and the changes since the first release.
pub const SCHEMA: Schema = schema!("postgres");
/// Key of the advisory lock for changes to the schema and for the first account: "tint" in ASCII.
pub(crate) const LOCK: i64 = 0x7469_6E74;
/// Time limit and interval of the attempts to lock a busy table.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_secs(1);

/// Creates the schema in an empty database, or brings an earlier one up to date; or fails and leaves it unchanged. Of
/// several processes that start at the same time the first migrates and the others wait.
pub(super) async fn migrate(database: &Database, schema: &Schema) -> Result<(), OpenError> {
    let started = database.clock.elapsed();
    loop {
        let failure = match attempt(database, schema).await {
            Ok(outcome) => return outcome,
            Err(failure) => failure,
        };
        let waited = database.clock.elapsed().saturating_sub(started);
        if !matches!(failure, DbError::Busy(_) | DbError::Deadlock(_))
            || waited > PATIENCE
            || database.clock.is_manual()
        {
            return Err(unusable(database, failure));
        }
        tracing::warn!("the migration is waiting for transactions that use the tables");
        database.sleep(PAUSE.mul_f64(0.5 + rand::random::<f64>())).await;
    }
}

/// Whether the schema needs no migration.
pub(super) async fn is_current(database: &Database) -> Result<bool, OpenError> {
    let found = async {
        let mut client = database.reader().await?;
        let tx = client.transaction().await?;
        Ok(version(&tx, &database.name()).await?)
    };
    let found: DbResult<_> = found.await;
    match found.map_err(|failure| unusable(database, failure))?? {
        Some(found) => Ok(SCHEMA.pending(found, &database.name())?.is_empty()),
        None => Ok(false),
    }
}

pub(super) fn unusable(database: &Database, failure: DbError) -> OpenError {
    // Many managed services use their own certificate authority, whose certificate can be downloaded.
    let error = trust::explain(cause_of(failure.into()).to_string(), "--database-ca or sslrootcert");
    OpenError::Unusable(format!("cannot open the {}: {error}{}", database.name(), advice(&error)))
}

/// Advice about errors of the driver that name no cause: another server answers, or none behind a proxy.
fn advice(error: &str) -> &'static str {
    let is_one_of = |errors: &[&str]| errors.iter().any(|one| error.contains(one));
    if is_one_of(&["does not support TLS"]) {
        "; turn TLS off with `?sslmode=disable` if the network is private"
    } else if is_one_of(&["unknown message tag", "bytes remaining", "connection closed", "early eof", "reset by peer"])
    {
        "; is PostgreSQL running at this host and port, and do the server and any pooler allow enough connections?"
    } else {
        ""
    }
}

/// The inner error is about a database that is not migrated and stays as it is.
async fn attempt(database: &Database, schema: &Schema) -> DbResult<Result<(), OpenError>> {
    let mut client = database.reader().await?;
    let tx = client.transaction().await?;
    let outcome = steps(&tx, &database.name(), schema).await?;
    tx.commit().await?;
    if let Ok(Some(found)) = outcome
        && found < schema.version()
    {
        schema.report(found, &database.name());
    }
    Ok(outcome.map(drop))
}

/// The version of the schema; none for an empty database.
async fn version(tx: &Transaction<'_>, name: &str) -> Result<Result<Option<i64>, OpenError>, tokio_postgres::Error> {
    let tables = "SELECT to_regclass('tintype') IS NOT NULL,
        to_regclass('accounts') IS NOT NULL OR to_regclass('tasks') IS NOT NULL, current_setting('server_encoding')";
    let row = tx.query_one(tables, &[]).await?;
    let (is_ours, is_in_use): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
    if is_in_use && !is_ours {
        return Ok(Err(OpenError::Foreign(name.to_owned())));
    }
    let encoding: String = row.try_get(2)?;
    if !is_ours && encoding != "UTF8" {
        return Ok(Err(OpenError::Unusable(format!(
            "the {name} has the encoding {encoding}, which cannot hold every prompt: create one with \
             `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`"
        ))));
    }
    if !is_ours {
        return Ok(Ok(None));
    }
    let found: i32 = tx.query_one("SELECT version FROM tintype", &[]).await?.try_get(0)?;
    Ok(Ok(Some(found.into())))
}

/// Returns the version that was found.
async fn steps(
    tx: &Transaction<'_>,
    name: &str,
    schema: &Schema,
) -> Result<Result<Option<i64>, OpenError>, tokio_postgres::Error> {
    // Many processes may start at the same time, and the first may take long.
    tx.batch_execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = '5min'").await?;
    tx.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    let found = match version(tx, name).await? {
        Ok(found) => found,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let pending = match found.map_or(Ok(&[][..]), |found| schema.pending(found, name)) {
        Ok(pending) => pending,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let version = i32::try_from(schema.version()).expect("few changes");
    if found.is_none() {
        tx.batch_execute(schema.in_force).await?;
        let secret: [u8; 32] = rand::random();
        tx.execute("INSERT INTO secrets (name, value) VALUES ('cursor', $1)", &[&&secret[..]]).await?;
        tx.execute("INSERT INTO tintype (version) VALUES ($1)", &[&version]).await?;
    } else if !pending.is_empty() {
        // A waiting ALTER TABLE blocks all later statements on the table, so give up soon and try again. The timeout is
        // shorter than `deadlock_timeout`, so that the server never cancels other transactions instead.
        tx.batch_execute("SET LOCAL lock_timeout = '500ms'; SET LOCAL statement_timeout = 0").await?;
        // Every writing transaction locks this table first. So does the migration: otherwise a transaction in progress
        // could wait for a table of the first change, and the migration for one that the transaction has locked.
        tx.batch_execute("LOCK TABLE tintype IN ACCESS EXCLUSIVE MODE").await?;
        for change in pending {
            tx.batch_execute(change).await?;
        }
        tx.execute("UPDATE tintype SET version = $1", &[&version]).await?;
    }
    Ok(Ok(found))
}
