//! The schema of a database file: its owner, its version and the migrations to the current one.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;

use super::connection::BUSY_TIMEOUT;
use super::moved::{self, MOVED_ID};
use super::{companions, writer};
use crate::OpenError;
use tintype_system::owner;

/// The migrations from an empty file to the current schema.
pub(super) const MIGRATIONS: [&str; 38] = [
    include_str!("../../../../migrations/sqlite/0001_initial.sql"),
    include_str!("../../../../migrations/sqlite/0002_retention.sql"),
    include_str!("../../../../migrations/sqlite/0003_policy.sql"),
    include_str!("../../../../migrations/sqlite/0004_last_used.sql"),
    include_str!("../../../../migrations/sqlite/0005_workers.sql"),
    include_str!("../../../../migrations/sqlite/0006_dropped_months.sql"),
    include_str!("../../../../migrations/sqlite/0007_turns.sql"),
    include_str!("../../../../migrations/sqlite/0008_sweeps.sql"),
    include_str!("../../../../migrations/sqlite/0009_request_ids.sql"),
    include_str!("../../../../migrations/sqlite/0010_ledger_balances.sql"),
    include_str!("../../../../migrations/sqlite/0011_queue_pause.sql"),
    include_str!("../../../../migrations/sqlite/0012_taken_credits.sql"),
    include_str!("../../../../migrations/sqlite/0013_disabled_accounts.sql"),
    include_str!("../../../../migrations/sqlite/0014_one_table_of_tasks.sql"),
    include_str!("../../../../migrations/sqlite/0015_progress.sql"),
    include_str!("../../../../migrations/sqlite/0016_engines.sql"),
    include_str!("../../../../migrations/sqlite/0017_people.sql"),
    include_str!("../../../../migrations/sqlite/0018_audit_log.sql"),
    include_str!("../../../../migrations/sqlite/0019_previews.sql"),
    include_str!("../../../../migrations/sqlite/0020_uploads.sql"),
    include_str!("../../../../migrations/sqlite/0021_calls.sql"),
    include_str!("../../../../migrations/sqlite/0022_gallery.sql"),
    include_str!("../../../../migrations/sqlite/0023_strikes_of_people.sql"),
    include_str!("../../../../migrations/sqlite/0024_search_and_rendering.sql"),
    include_str!("../../../../migrations/sqlite/0025_audit_of_the_server.sql"),
    include_str!("../../../../migrations/sqlite/0026_sign_ups.sql"),
    include_str!("../../../../migrations/sqlite/0027_person_identities.sql"),
    include_str!("../../../../migrations/sqlite/0028_webhooks.sql"),
    include_str!("../../../../migrations/sqlite/0029_budgets_and_expiring_grants.sql"),
    include_str!("../../../../migrations/sqlite/0030_model_aliases_and_previews.sql"),
    include_str!("../../../../migrations/sqlite/0031_refunds_extend_once.sql"),
    include_str!("../../../../migrations/sqlite/0032_keys_of_account.sql"),
    include_str!("../../../../migrations/sqlite/0033_second_factor.sql"),
    include_str!("../../../../migrations/sqlite/0034_ended_journeys_and_makers.sql"),
    include_str!("../../../../migrations/sqlite/0035_failed_tasks.sql"),
    include_str!("../../../../migrations/sqlite/0036_budgets_of_operators.sql"),
    include_str!("../../../../migrations/sqlite/0037_indexes_of_account.sql"),
    include_str!("../../../../migrations/sqlite/0038_rules_in_one_place.sql"),
];
/// Application id of our SQLite files: "tint" in ASCII.
pub(super) const APPLICATION_ID: i32 = 0x7469_6E74;
/// Length of the shortest non-empty SQLite file: its smallest page size.
const MIN_FILE_BYTES: u64 = 512;

/// Whether the file is not empty but too short for a database; SQLite would treat it as empty. This does not open the
/// file, because closing it would release the POSIX locks that this process may hold on it.
pub(super) fn is_a_fragment(path: &Path) -> std::io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok((1..MIN_FILE_BYTES).contains(&metadata.len())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks that this process may read the file and, where they exist, its companions. SQLite would only say that it
/// cannot open them.
pub(super) fn check_permission(path: &Path) -> Result<(), String> {
    allowed(path, Access::READ_OK)?;
    companions(path).iter().try_for_each(|companion| allowed(companion, Access::READ_OK))
}

/// Checks that this process may read and write the file and, where they exist, its companions.
pub(super) fn check_write_permission(path: &Path) -> Result<(), String> {
    let both = Access::READ_OK | Access::WRITE_OK;
    allowed(path, both)?;
    companions(path).iter().try_for_each(|companion| allowed(companion, both))
}

fn allowed(path: &Path, access: Access) -> Result<(), String> {
    match rustix::fs::accessat(rustix::fs::CWD, path, access, AtFlags::EACCESS) {
        Err(Errno::ACCESS) => Err(owner::denied(path)),
        _ => Ok(()),
    }
}

/// The name of a database file in messages.
pub(super) fn name(path: &Path) -> String {
    format!("database {}", path.display())
}

pub(super) fn migrate(connection: &mut Connection, path: &Path) -> std::result::Result<(), OpenError> {
    let unusable = |error: rusqlite::Error| OpenError::Unusable { name: name(path), error: error.to_string() };
    let pending = match schema(connection).map_err(unusable)? {
        Schema::Ours => false,
        Schema::Empty | Schema::Older(_) => true,
        Schema::Foreign => return Err(OpenError::Foreign(name(path))),
        Schema::Moved(to) => return Err(OpenError::Moved { path: path.display().to_string(), to }),
        Schema::Newer(found) => return Err(OpenError::Newer { found, known: MIGRATIONS.len() }),
    };
    // A copy made by `Snapshot::take` is not in WAL mode.
    use_wal(connection).map_err(unusable)?;
    if !pending {
        return Ok(());
    }
    writer::alone(connection, |connection| {
        // Another process may have migrated while this one waited for the lock.
        let done = usize::try_from(pragma(connection, "PRAGMA user_version")?).unwrap_or(usize::MAX);
        for step in MIGRATIONS.iter().skip(done) {
            connection.execute_batch(step)?;
        }
        if done == 0 {
            let secret: [u8; 32] = rand::random();
            connection.execute("INSERT INTO secrets (name, value) VALUES ('cursor', ?1)", [&secret])?;
            connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        }
        connection.pragma_update(None, "user_version", MIGRATIONS.len() as i64)
    })
    .map_err(unusable)
}

/// Owner and version of the schema in a file.
pub(super) enum Schema {
    Empty,
    Ours,
    Older(i64),
    Newer(i64),
    Foreign,
    /// Its content is in the database that this describes.
    Moved(String),
}

pub(super) fn schema(connection: &Connection) -> rusqlite::Result<Schema> {
    // One transaction, so that a database that another process is creating is visible completely or not at all.
    let snapshot = connection.unchecked_transaction()?;
    let application = pragma(&snapshot, "PRAGMA application_id")?;
    let objects = pragma(&snapshot, "SELECT count(*) FROM sqlite_schema")?;
    let found = pragma(&snapshot, "PRAGMA user_version")?;
    if application == i64::from(MOVED_ID) {
        return Ok(Schema::Moved(moved::destination(&snapshot)?));
    }
    if application != i64::from(APPLICATION_ID) {
        return Ok(if application == 0 && objects == 0 { Schema::Empty } else { Schema::Foreign });
    }
    Ok(match usize::try_from(found) {
        Ok(version) if version == MIGRATIONS.len() => Schema::Ours,
        Ok(version) if version < MIGRATIONS.len() => Schema::Older(found),
        _ => Schema::Newer(found),
    })
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.query_row(name, [], |row| row.get(0))
}

/// Switches to WAL mode. SQLite does not wait for another process that does the same, so this function retries.
fn use_wal(connection: &Connection) -> rusqlite::Result<()> {
    const PAUSE: Duration = Duration::from_millis(20);
    let mut waited = Duration::ZERO;
    loop {
        match connection.execute_batch("PRAGMA journal_mode = WAL") {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && waited < BUSY_TIMEOUT => {
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            outcome => return outcome,
        }
    }
}
