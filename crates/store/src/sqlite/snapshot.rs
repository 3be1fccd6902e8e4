//! Snapshots: copies of the database, taken while others write, and read-only access to them.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql};
use rustix::fs::Access;

use super::moved::{open, take_back};
use super::schema::{SCHEMA, SchemaState, check_current, check_file, name, state, unusable};
use super::{companions, integrity};
use crate::driver::query;
use crate::tasks::{COMPLETED_AFTER, completed};
use crate::{Audit, CompletedTask, OpenError, QueueDepth, Result, audit, fleet, queue};
use tintype_domain::files_marker::FilesMarker;
use tintype_domain::model::Id;

/// A database file to read, such as the file of a backup. Reading it writes neither to the file nor to its directory.
pub struct Snapshot {
    connection: Connection,
    current: bool,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("current", &self.current).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Copies the database's current state into `copy`, which must be empty or absent, while others read and write.
    /// Doesn't sync the copy, whose content is undefined after an error.
    pub fn take(database: &Path, copy: &Path) -> std::result::Result<(), OpenError> {
        let connection = open(database)?;
        check_current(&connection, database)?;
        copy_into(&connection, copy)
    }

    /// Copies a database that was marked as moved, so that nothing writes to it any more, into `copy` without the mark.
    pub fn take_moved(database: &Path, copy: &Path) -> std::result::Result<(), OpenError> {
        copy_into(&open(database)?, copy)?;
        take_back(copy).map(drop)
    }

    /// Opens a file with the current schema or an older one.
    pub fn open(path: &Path) -> std::result::Result<Self, OpenError> {
        // With `immutable` SQLite takes no lock and opens no log, so a read-only disk is enough.
        Self::open_as(path, Some("immutable=1"))
    }

    /// Opens the database of an installation where it is, whether or not a server runs on it. Creates no file.
    /// After the last server was killed, this is an error, because only the next one can read its log.
    pub fn open_in_place(path: &Path) -> std::result::Result<Self, OpenError> {
        let [log, index, _] = companions(path);
        match (std::fs::metadata(&log).is_ok_and(|log| log.len() > 0), index.exists()) {
            (_, true) if log.exists() => Self::open_as(path, None),
            (true, _) => Err(unusable(path, "the last server was killed; the next one reads its log")),
            (false, _) => Self::open(path),
        }
    }

    fn open_as(path: &Path, query: Option<&str>) -> std::result::Result<Self, OpenError> {
        check_file(path, Access::READ_OK)?;
        let absolute = std::path::absolute(path).map_err(|error| unusable(path, error))?;
        let mut url = url::Url::from_file_path(&absolute).map_err(|()| unusable(path, "not a path"))?;
        url.set_query(query);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(url.as_str(), flags).map_err(|error| unusable(path, error))?;
        let current = match state(&connection, path, &SCHEMA)? {
            SchemaState::Current => true,
            SchemaState::Older(_) => false,
            SchemaState::Empty => return Err(OpenError::Foreign(name(path))),
        };
        Ok(Self { connection, current })
    }

    /// Whether the file has the current schema, which all methods below except `check_integrity` need.
    pub fn is_current(&self) -> bool {
        self.current
    }

    /// Checks the whole file for damage. The error names the first.
    pub fn check_integrity(&self) -> Result<()> {
        integrity(self.connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?)
    }

    /// See [`crate::Store::audit`].
    pub fn audit(&self) -> Result<Audit> {
        audit::on_sqlite(&self.connection)
    }

    /// See [`crate::Store::queue_depth`].
    pub fn queue_depth(&self) -> Result<QueueDepth> {
        queue::depth(&query(&self.connection, queue::DEPTH, [""])?)
    }

    /// See [`crate::Store::files_marker`].
    pub fn files_marker(&self) -> Result<Option<FilesMarker>> {
        let no_parameters: [&dyn ToSql; 0] = [];
        query(&self.connection, fleet::MARKER, no_parameters)?.first().map(fleet::marker).transpose()
    }

    /// The tables to move to another database, in the order of their creation, each with the number of columns of its
    /// key, which come first. Not among them are `progress` and `previews`, which workers report again, sessions,
    /// sign-in links and invitations, which people create again, `sweeps`, and the prompt index, which is rebuilt.
    pub(crate) fn tables(&self) -> Result<Vec<(String, usize)>> {
        let sql = "SELECT s.name, count(*) FROM sqlite_schema s, pragma_table_info(s.name) c
            WHERE s.type = 'table' AND c.pk > 0 AND s.name NOT LIKE 'prompt%' AND s.name NOT IN (
                'progress', 'previews', 'sessions', 'sign_in_links', 'invitations', 'sweeps', 'unindexed')
            GROUP BY s.name ORDER BY s.rowid";
        let mut statement = self.connection.prepare(sql)?;
        let tables = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(tables.collect::<rusqlite::Result<_>>()?)
    }

    /// Rows of a table in the order of its first columns, the key, starting after the key `after`, or with the first
    /// row if that is empty.
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
        let mut statement = self.connection.prepare_cached(&sql)?;
        let width = statement.column_count();
        let rows = statement
            .query_map(rusqlite::params_from_iter(after), |row| (0..width).map(|column| row.get(column)).collect())?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// See [`crate::Store::completed_tasks`].
    pub fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
        let after = after.map_or_else(String::new, |id| id.to_string());
        let parameters: [&dyn ToSql; 2] = [&after, &limit];
        let rows = query(&self.connection, COMPLETED_AFTER, parameters)?;
        rows.iter().map(completed).collect()
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
        .map_err(|error| OpenError::Copy { path: copy.display().to_string(), error: error.to_string() })
        .map(drop)
}
