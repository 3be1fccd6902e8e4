//! The schema of a database: its owner, its version and the migrations to the current one.

use std::time::Duration;

use tokio_postgres::Transaction;

use super::connection::Database;
use super::failure::{Failure, words};
use crate::OpenError;

/// The migrations from an empty database to the current schema.
const MIGRATIONS: [&str; 38] = [
    include_str!("../../../../migrations/postgres/0001_initial.sql"),
    include_str!("../../../../migrations/postgres/0002_retention.sql"),
    include_str!("../../../../migrations/postgres/0003_policy.sql"),
    include_str!("../../../../migrations/postgres/0004_last_used.sql"),
    include_str!("../../../../migrations/postgres/0005_workers.sql"),
    include_str!("../../../../migrations/postgres/0006_dropped_months.sql"),
    include_str!("../../../../migrations/postgres/0007_turns.sql"),
    include_str!("../../../../migrations/postgres/0008_sweeps.sql"),
    include_str!("../../../../migrations/postgres/0009_request_ids.sql"),
    include_str!("../../../../migrations/postgres/0010_ledger_balances.sql"),
    include_str!("../../../../migrations/postgres/0011_queue_pause.sql"),
    include_str!("../../../../migrations/postgres/0012_taken_credits.sql"),
    include_str!("../../../../migrations/postgres/0013_disabled_accounts.sql"),
    include_str!("../../../../migrations/postgres/0014_one_table_of_tasks.sql"),
    include_str!("../../../../migrations/postgres/0015_progress.sql"),
    include_str!("../../../../migrations/postgres/0016_engines.sql"),
    include_str!("../../../../migrations/postgres/0017_people.sql"),
    include_str!("../../../../migrations/postgres/0018_audit_log.sql"),
    include_str!("../../../../migrations/postgres/0019_previews.sql"),
    include_str!("../../../../migrations/postgres/0020_uploads.sql"),
    include_str!("../../../../migrations/postgres/0021_calls.sql"),
    include_str!("../../../../migrations/postgres/0022_gallery.sql"),
    include_str!("../../../../migrations/postgres/0023_strikes_of_people.sql"),
    include_str!("../../../../migrations/postgres/0024_search_and_rendering.sql"),
    include_str!("../../../../migrations/postgres/0025_audit_of_the_server.sql"),
    include_str!("../../../../migrations/postgres/0026_sign_ups.sql"),
    include_str!("../../../../migrations/postgres/0027_person_identities.sql"),
    include_str!("../../../../migrations/postgres/0028_webhooks.sql"),
    include_str!("../../../../migrations/postgres/0029_budgets_and_expiring_grants.sql"),
    include_str!("../../../../migrations/postgres/0030_model_aliases_and_previews.sql"),
    include_str!("../../../../migrations/postgres/0031_refunds_extend_once.sql"),
    include_str!("../../../../migrations/postgres/0032_keys_of_account.sql"),
    include_str!("../../../../migrations/postgres/0033_second_factor.sql"),
    include_str!("../../../../migrations/postgres/0034_ended_journeys_and_makers.sql"),
    include_str!("../../../../migrations/postgres/0035_failed_tasks.sql"),
    include_str!("../../../../migrations/postgres/0036_budgets_of_operators.sql"),
    include_str!("../../../../migrations/postgres/0037_indexes_of_account.sql"),
    include_str!("../../../../migrations/postgres/0038_rules_in_one_place.sql"),
];
/// Key of the advisory lock for changes to the schema and for the first account: "tint" in ASCII.
pub(super) const LOCK: i64 = 0x7469_6E74;
/// Time limit and interval of the attempts to lock a busy table.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_secs(1);

/// Migrates the schema, or fails and leaves it unchanged. Of several processes that start at the same time the first
/// migrates and the others wait.
pub(super) async fn migrate(database: &Database) -> Result<(), OpenError> {
    let begun = database.clock.elapsed();
    loop {
        let failure = match attempt(database).await {
            Ok(outcome) => return outcome,
            Err(failure) => failure,
        };
        let waited = database.clock.elapsed().saturating_sub(begun);
        if !matches!(failure, Failure::Busy(_)) || waited > PATIENCE || database.clock.is_manual() {
            return Err(unusable(database, failure));
        }
        tracing::warn!("the migration waits until no transaction uses the tables to change");
        database.sleep(PAUSE.mul_f64(0.5 + rand::random::<f64>())).await;
    }
}

/// Whether the schema needs no migration.
pub(super) async fn is_current(database: &Database) -> Result<bool, OpenError> {
    let found = async {
        let mut client = database.reader().await?;
        let begun = client.transaction().await?;
        Ok(version(&begun, &database.name()).await?)
    };
    let found: Result<_, Failure> = found.await;
    Ok(found.map_err(|failure| unusable(database, failure))?? == MIGRATIONS.len())
}

pub(super) fn unusable(database: &Database, failure: Failure) -> OpenError {
    let mut error = words(failure.into()).to_string();
    // Many managed services have an authority of their own.
    if error.contains("UnknownIssuer") {
        error +=
            ": download the certificate authority of the service, and name the file in --database-ca or sslrootcert";
    }
    OpenError::Unusable { name: database.name(), error }
}

/// The inner error is about a database that is not migrated and stays as it is.
async fn attempt(database: &Database) -> Result<Result<(), OpenError>, Failure> {
    let mut client = database.reader().await?;
    let begun = client.transaction().await?;
    let outcome = steps(&begun, &database.name()).await?;
    begun.commit().await?;
    Ok(outcome)
}

/// The version of the schema; 0 for an empty database.
async fn version(begun: &Transaction<'_>, name: &str) -> Result<Result<usize, OpenError>, tokio_postgres::Error> {
    let tables = "SELECT to_regclass('tintype') IS NOT NULL,
        to_regclass('accounts') IS NOT NULL OR to_regclass('tasks') IS NOT NULL, current_setting('server_encoding')";
    let row = begun.query_one(tables, &[]).await?;
    let (is_ours, is_in_use): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
    if is_in_use && !is_ours {
        return Ok(Err(OpenError::Foreign(name.to_owned())));
    }
    let encoding: String = row.try_get(2)?;
    if !is_ours && encoding != "UTF8" {
        return Ok(Err(OpenError::Encoding { name: name.to_owned(), encoding }));
    }
    let found: i32 = if is_ours { begun.query_one("SELECT version FROM tintype", &[]).await?.try_get(0)? } else { 0 };
    Ok(match usize::try_from(found) {
        Ok(done) if done <= MIGRATIONS.len() => Ok(done),
        _ => Err(OpenError::Newer { found: found.into(), known: MIGRATIONS.len() }),
    })
}

async fn steps(begun: &Transaction<'_>, name: &str) -> Result<Result<(), OpenError>, tokio_postgres::Error> {
    // Many processes may start at the same time, and the first may take long.
    begun.batch_execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = '5min'").await?;
    begun.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    let done = match version(begun, name).await? {
        Ok(done) => done,
        Err(refusal) => return Ok(Err(refusal)),
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
