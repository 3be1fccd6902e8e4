//! Copies of the database, taken while others write, and files that are only read.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, OpenFlags, Row, ToSql};
use rustix::fs::Access;

use super::connection::connect;
use super::moved::{open, unmark_copy};
use super::schema::{SCHEMA, SchemaState, check_current, check_file, name, state, unusable};
use super::{SqliteStore, check_restored, companions};
use crate::driver::{Driver, Store};
use crate::{OpenError, Result};
use tintype_system::clock::Clock;
use tintype_system::locked::Locked as _;

/// Copies the database's current state into `copy`, which must be empty or absent, while others read and write.
/// Doesn't sync the copy, whose content is undefined after an error.
pub fn copy(database: &Path, copy: &Path) -> std::result::Result<(), OpenError> {
    let connection = open(database)?;
    check_current(&connection, database)?;
    copy_into(&connection, copy)
}

/// Copies a database whose move has begun, so that nothing writes to it any more, into `copy` without the mark.
pub fn copy_moved(database: &Path, copy: &Path) -> std::result::Result<(), OpenError> {
    copy_into(&open(database)?, copy)?;
    unmark_copy(copy)
}

/// Opens a database file only for reading, such as the file of a backup. Writes neither to the file nor to its
/// directory. Also returns whether the file has the current schema, which all methods except
/// [`Store::check_integrity`] need; otherwise it has an older one.
pub fn open_for_reading(path: &Path) -> std::result::Result<(Store, bool), OpenError> {
    // With `immutable` SQLite takes no lock and opens no log, so a read-only disk is enough.
    open_as(path, Some("immutable=1"))
}

/// [`open_for_reading`] for the database of an installation where it is, whether or not a server runs on it. After the
/// last server was killed, this is an error, because only the next one can read its log.
pub fn open_in_place(path: &Path) -> std::result::Result<(Store, bool), OpenError> {
    check_restored(path)?;
    let [log, index, _] = companions(path);
    match (std::fs::metadata(&log).is_ok_and(|log| log.len() > 0), index.exists()) {
        (_, true) if log.exists() => open_as(path, None),
        (true, _) => Err(unusable(path, "the last server was killed; the next one reads its log")),
        (false, _) => open_for_reading(path),
    }
}

fn open_as(path: &Path, query: Option<&str>) -> std::result::Result<(Store, bool), OpenError> {
    check_file(path, Access::READ_OK)?;
    let absolute = std::path::absolute(path).map_err(|error| unusable(path, error))?;
    let mut url = url::Url::from_file_path(&absolute).map_err(|()| unusable(path, "not a path"))?;
    url.set_query(query);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let store = SqliteStore::new(Path::new(url.as_str()), flags, Clock::system());
    let connection = connect(&store.path, flags).map_err(|error| unusable(path, error))?;
    let is_current = match state(&connection, path, &SCHEMA)? {
        SchemaState::Current => true,
        SchemaState::Older(_) => false,
        SchemaState::Empty => return Err(OpenError::Foreign(name(path))),
    };
    // Reads go on although the file may be removed.
    store.idle.locked().push(connection);
    Ok((Driver::Sqlite(Arc::new(store)).into(), is_current))
}

impl SqliteStore {
    /// The tables to move to another database, in the order of their creation, each with the number of its key columns,
    /// which come first. Left out are `progress` and `previews`, which workers report again; sessions, sign-in links
    /// and invitations, which people create again; `sweeps`; and the prompt index, which is rebuilt.
    pub(crate) fn tables(&self) -> Result<Vec<(String, usize)>> {
        let sql = "SELECT s.name, count(*) FROM sqlite_schema s, pragma_table_info(s.name) c
            WHERE s.type = 'table' AND c.pk > 0 AND s.name NOT LIKE 'prompt%' AND s.name NOT IN (
                'progress', 'previews', 'sessions', 'sign_in_links', 'invitations', 'sweeps', 'unindexed')
            GROUP BY s.name ORDER BY s.rowid";
        self.read(|connection| connection.prepare(sql)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
    }

    /// The id of the move that this copy was made for.
    pub(crate) fn move_id(&self) -> Result<Vec<u8>> {
        self.read(|connection| {
            connection.query_row("SELECT value FROM secrets WHERE name = 'move'", [], |row| row.get(0))
        })
    }

    /// Rows of a table in the order of its key, which is its first columns, from the one after the key `after`, or from
    /// the first row if that is empty.
    pub(crate) fn rows(
        &self,
        table: &str,
        columns: &[&str],
        keys: usize,
        after: &[Value],
        limit: u32,
    ) -> Result<Vec<Vec<Value>>> {
        let (key, columns) = (columns[..keys].join(", "), columns.join(", "));
        let above =
            if after.is_empty() { String::new() } else { format!("WHERE ({key}) > ({})", vec!["?"; keys].join(", ")) };
        let sql = format!("SELECT {columns} FROM {table} {above} ORDER BY {key} LIMIT {limit}");
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let width = statement.column_count();
            let row = |row: &Row<'_>| (0..width).map(|column| row.get(column)).collect();
            statement.query_map(rusqlite::params_from_iter(after), row)?.collect()
        })
    }
}

/// A path as an SQLite parameter: its bytes, which need not be UTF-8.
struct PathText<'a>(&'a Path);

impl ToSql for PathText<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0.as_os_str().as_bytes())))
    }
}

/// SQLite's backup API starts over whenever another process writes. VACUUM INTO reads in one transaction, during which
/// others can write to the write-ahead log.
fn copy_into(connection: &Connection, copy: &Path) -> std::result::Result<(), OpenError> {
    connection
        .prepare("VACUUM INTO ?1")
        .and_then(|mut vacuum| vacuum.execute([PathText(copy)]))
        .map_err(|error| OpenError::Unusable(format!("cannot write {}: {error}", copy.display())))
        .map(drop)
}
