//! The mark of a database that `tintype migrate` has moved to PostgreSQL: another application id, so that earlier
//! releases refuse the file too, and a row of `secrets` with its destination.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::connection::connect;
use super::schema::{APPLICATION_ID, SCHEMA, check_current, state, unusable};
use super::writer;
use crate::OpenError;

/// Application id of a database that was moved: "tinm" in ASCII.
pub(super) const MOVED_ID: i32 = 0x7469_6E6D;
/// The row of `secrets` that names the destination.
const ROW: &str = "moved_to";

/// The destination of a moved database.
pub(super) fn destination(connection: &Connection) -> rusqlite::Result<String> {
    let value: Vec<u8> = connection.query_row("SELECT value FROM secrets WHERE name = ?1", [ROW], |row| row.get(0))?;
    Ok(String::from_utf8_lossy(&value).into_owned())
}

/// Marks the database as moved to the place that `to` describes. Nothing opens it from then on. A marked one is an
/// error.
pub fn mark_as_moved(database: &Path, to: &str) -> Result<(), OpenError> {
    let mut connection = open(database)?;
    check_current(&connection, database)?;
    let marked = writer::alone(&mut connection, |connection| {
        let row = (ROW, to.as_bytes());
        connection.execute("INSERT OR REPLACE INTO secrets (name, value) VALUES (?1, ?2)", row)?;
        connection.pragma_update(None, "application_id", MOVED_ID)
    });
    marked.map_err(|error| unusable(database, error))
}

/// Removes the mark. Returns whether there was one.
pub fn take_back(database: &Path) -> Result<bool, OpenError> {
    let mut connection = open(database)?;
    if !matches!(state(&connection, database, &SCHEMA), Err(OpenError::Moved { .. })) {
        return Ok(false);
    }
    let unmarked = writer::alone(&mut connection, |connection| {
        connection.execute("DELETE FROM secrets WHERE name = ?1", [ROW])?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)
    });
    unmarked.map_err(|error| unusable(database, error))?;
    Ok(true)
}

/// A connection to a database file, whatever it contains.
pub(super) fn open(database: &Path) -> Result<Connection, OpenError> {
    connect(database, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|error| unusable(database, error))
}
