//! The schema of a database file: its owner, its version, its creation and its migrations.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use rustix::fs::{Access, AtFlags, StatVfsMountFlags, statvfs};
use rustix::io::Errno;

use super::connection::BUSY_TIMEOUT;
use super::moved::{self, MOVED_ID};
use super::{companions, writer};
use crate::schema::schema;
use crate::{OpenError, Schema};
use tintype_system::{data_dir, owner};

/// The schema in force, and the changes since the first release.
pub const SCHEMA: Schema = schema!("sqlite");
/// Application id of our SQLite files: "tint" in ASCII.
pub(super) const APPLICATION_ID: i32 = 0x7469_6E74;
/// Length of the shortest non-empty SQLite file: its smallest page size.
const MIN_FILE_BYTES: u64 = 512;

/// Checks that a file is not too short for a database: SQLite would take it for an empty one. Also checks that this
/// process has `access` to it and to its companions that exist: SQLite would only say that it cannot open them.
/// This does not open the file: closing it would release the POSIX locks that this process may hold on it.
pub(super) fn check_file(path: &Path, access: Access) -> Result<(), OpenError> {
    match std::fs::metadata(path) {
        Ok(metadata) if (1..MIN_FILE_BYTES).contains(&metadata.len()) => {
            return Err(unusable(path, "the file is not a database"));
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unusable(path, error)),
        _ => {}
    }
    for file in [path.to_owned()].iter().chain(&companions(path)) {
        if rustix::fs::accessat(rustix::fs::CWD, file, access, AtFlags::EACCESS) == Err(Errno::ACCESS) {
            return Err(unusable(path, owner::denied(file)));
        }
    }
    Ok(())
}

/// The name of a database file in messages.
pub(super) fn name(path: &Path) -> String {
    format!("database {}", path.display())
}

/// The error for a file that the system or SQLite refuses.
pub(super) fn unusable(path: &Path, error: impl Display) -> OpenError {
    let mut error = error.to_string();
    let is_of_disk = ["disk I/O error", "unable to open database file", "attempt to write a readonly database"];
    let fault = is_of_disk.iter().any(|begin| error.starts_with(begin)).then(|| fault_of_disk(path)).flatten();
    error.push_str(match (error.as_str(), fault) {
        (_, Some(fault)) => fault,
        ("database is locked", _) => " by another program, or its file system has no locks (SMB)",
        ("disk I/O error", _) => {
            ": its disk fails, a file may not grow so large (ulimit -f, LimitFSIZE= of systemd), or its file system \
             shares no memory (mergerfs: mount it with cache.files=partial)"
        }
        _ => "",
    });
    OpenError::Unusable(format!("cannot open the {}: {error}", name(path)))
}

/// Why nothing can be written to the file system of a database. SQLite does not say it.
fn fault_of_disk(path: &Path) -> Option<&'static str> {
    /// More than SQLite writes to open a database.
    const ROOM: u64 = 1 << 20;
    let system = statvfs(data_dir::directory_of(path)).ok()?;
    if system.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Some(": its file system is read-only");
    }
    let has_room = system.f_bavail.saturating_mul(system.f_frsize) >= ROOM;
    let has_inodes = system.f_files == 0 || system.f_favail > 0;
    (!has_room || !has_inodes).then_some(": its disk is full: make room")
}

/// Creates the schema in an empty file, or brings an earlier one up to date.
pub(super) fn migrate(connection: &mut Connection, path: &Path, schema: &Schema) -> Result<(), OpenError> {
    let unusable = |error: rusqlite::Error| unusable(path, error);
    let found = state(connection, path, schema)?;
    // A copy is not in WAL mode.
    use_wal(connection).map_err(unusable)?;
    if matches!(found, SchemaState::Current) {
        return Ok(());
    }
    let migrated = writer::alone(connection, |connection| {
        // Another process may have migrated while this one waited for the lock.
        let found = pragma(connection, "PRAGMA user_version")?;
        if found == 0 {
            connection.execute_batch(schema.in_force)?;
            let secret: [u8; 32] = rand::random();
            connection.execute("INSERT INTO secrets (name, value) VALUES ('cursor', ?1)", [&secret])?;
            connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        } else {
            match schema.pending(found, &name(path)) {
                Ok(pending) => pending.iter().try_for_each(|change| connection.execute_batch(change))?,
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        connection.pragma_update(None, "user_version", schema.version())?;
        Ok(Ok(()))
    });
    migrated.map_err(unusable)??;
    if let SchemaState::Older(found) = found {
        schema.report(found, &name(path));
    }
    Ok(())
}

/// State of a file that this program can use, or could after a migration.
pub(super) enum SchemaState {
    Empty,
    Current,
    /// The version found is older.
    Older(i64),
}

/// The state of a file, or the reason why this program cannot use it.
pub(super) fn state(connection: &Connection, path: &Path, schema: &Schema) -> Result<SchemaState, OpenError> {
    let unusable = |error: rusqlite::Error| unusable(path, error);
    // One transaction, so that a database that another process is creating is visible completely or not at all.
    let snapshot = connection.unchecked_transaction().map_err(unusable)?;
    let read = |sql| pragma(&snapshot, sql).map_err(unusable);
    let application = read("PRAGMA application_id")?;
    let objects = read("SELECT count(*) FROM sqlite_schema")?;
    let found = read("PRAGMA user_version")?;
    if application == i64::from(MOVED_ID) {
        return Err(moved::refusal(&snapshot, path).map_err(unusable)?);
    }
    if application == 0 && objects == 0 {
        return Ok(SchemaState::Empty);
    }
    if application != i64::from(APPLICATION_ID) {
        return Err(OpenError::Foreign(name(path)));
    }
    Ok(if schema.pending(found, &name(path))?.is_empty() { SchemaState::Current } else { SchemaState::Older(found) })
}

/// Checks that a file has the current schema.
pub(super) fn check_current(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    match state(connection, path, &SCHEMA)? {
        SchemaState::Current => Ok(()),
        SchemaState::Older(found) => Err(OpenError::Version(format!(
            "the database was written by an older Tintype (schema {found}; this one knows {})",
            SCHEMA.version()
        ))),
        SchemaState::Empty => Err(OpenError::Foreign(name(path))),
    }
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
