//! The mark of a database that `tintype migrate` moves to PostgreSQL: another application id, so that earlier releases
//! refuse the file too, and a row of `secrets` with its destination. Until the move has ended, another row has its id.
//! PostgreSQL gets that row with all others: there it shows that an interrupted move was committed.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::connection::connect;
use super::schema::{APPLICATION_ID, SCHEMA, check_current, state, unusable};
use super::writer;
use crate::OpenError;

/// Application id of a database that was moved: "tinm" in ASCII.
pub(super) const MOVED_ID: i32 = 0x7469_6E6D;

/// The error for opening a marked database.
pub(super) fn refusal(connection: &Connection, database: &Path) -> rusqlite::Result<OpenError> {
    let sql = "SELECT value, EXISTS (SELECT 1 FROM secrets WHERE name = 'move') FROM secrets WHERE name = 'moved_to'";
    let (to, is_moving): (Vec<u8>, bool) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (path, to) = (database.display().to_string(), String::from_utf8_lossy(&to).into_owned());
    Ok(if is_moving { OpenError::Moving { path, to } } else { OpenError::Moved { path, to } })
}

/// Marks the database, whose move to the place that `to` describes begins. Nothing opens it from then on. Returns
/// whether an interrupted move to this place had begun already; any other mark is an error.
pub fn begin_move(database: &Path, to: &str) -> Result<bool, OpenError> {
    let mut connection = open(database)?;
    match check_current(&connection, database) {
        Err(OpenError::Moving { to: before, .. }) if before == to => return Ok(true),
        checked => checked?,
    }
    let id: [u8; 16] = rand::random();
    let marked = writer::alone(&mut connection, |connection| {
        let rows = (to.as_bytes(), &id[..]);
        connection
            .execute("INSERT OR REPLACE INTO secrets (name, value) VALUES ('moved_to', ?1), ('move', ?2)", rows)?;
        connection.pragma_update(None, "application_id", MOVED_ID)
    });
    marked.map_err(|error| unusable(database, error)).map(|()| false)
}

/// Notes that the move of a marked database has ended.
pub fn end_move(database: &Path) -> Result<(), OpenError> {
    let ended = writer::alone(&mut open(database)?, |connection| {
        connection.execute("DELETE FROM secrets WHERE name = 'move'", [])
    });
    ended.map_err(|error| unusable(database, error)).map(drop)
}

/// Removes the mark. Returns whether there was one.
pub fn take_back(database: &Path) -> Result<bool, OpenError> {
    remove_mark(database, "DELETE FROM secrets WHERE name IN ('moved_to', 'move')")
}

/// Removes the mark from a copy, which keeps the id of the move.
pub(super) fn unmark_copy(copy: &Path) -> Result<(), OpenError> {
    remove_mark(copy, "DELETE FROM secrets WHERE name = 'moved_to'").map(drop)
}

fn remove_mark(database: &Path, sql: &str) -> Result<bool, OpenError> {
    let mut connection = open(database)?;
    if !matches!(state(&connection, database, &SCHEMA), Err(OpenError::Moved { .. } | OpenError::Moving { .. })) {
        return Ok(false);
    }
    let unmarked = writer::alone(&mut connection, |connection| {
        connection.execute(sql, [])?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)
    });
    unmarked.map_err(|error| unusable(database, error))?;
    Ok(true)
}

/// A connection to a database file, whatever it contains.
pub(super) fn open(database: &Path) -> Result<Connection, OpenError> {
    connect(database, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|error| unusable(database, error))
}
