//! A database at one moment: copied while others write, and read without touching it.

use std::fmt::{self, Display};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql};

use super::connection::connect;
use super::schema::{MIGRATIONS, OpenError, Schema, is_a_fragment, schema};
use super::{audit, integrity, tasks};
use crate::domain::model::Id;
use crate::store::{Audit, CompletedTask, Result};

/// A database file that nobody has open, such as a backup's. It is read without locks, and neither it
/// nor its directory is written to.
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
    /// Copies the database as it is at this moment into `copy`, an empty file or none, while others read
    /// and write. The copy is not synced.
    ///
    /// # Errors
    /// [`OpenError`]; `copy` may then hold anything.
    pub fn take(database: &Path, copy: &Path) -> std::result::Result<(), OpenError> {
        let unusable = |error: rusqlite::Error| unusable(database, &error);
        let connection = connect(database, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(unusable)?;
        match schema(&connection).map_err(unusable)? {
            Schema::Ours => {}
            Schema::Older(found) => return Err(OpenError::Older { found, known: MIGRATIONS.len() }),
            Schema::Newer(found) => return Err(OpenError::Newer { found, known: MIGRATIONS.len() }),
            Schema::Empty | Schema::Foreign => return Err(OpenError::Foreign(database.display().to_string())),
        }
        // Not SQLite's backup API: page by page it begins again whenever somebody writes. This reads in one
        // transaction, beside which the write-ahead log lets others write.
        connection
            .prepare("VACUUM INTO ?1")
            .and_then(|mut vacuum| vacuum.execute([PathText(copy)]))
            .map_err(|error| OpenError::Copy { path: copy.display().to_string(), error: error.to_string() })
            .map(drop)
    }

    /// Opens a file of the present schema or an older one.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> std::result::Result<Self, OpenError> {
        if is_a_fragment(path).map_err(|error| unusable(path, &error))? {
            return Err(unusable(path, &"the file is not a database"));
        }
        let absolute = std::path::absolute(path).map_err(|error| unusable(path, &error))?;
        let mut url = url::Url::from_file_path(&absolute).map_err(|()| unusable(path, &"not a path"))?;
        // Immutable: no lock is taken and no log is looked for, so that a read-only disk will do.
        url.set_query(Some("immutable=1"));
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(url.as_str(), flags).map_err(|error| unusable(path, &error))?;
        let current = match schema(&connection).map_err(|error| unusable(path, &error))? {
            Schema::Ours => true,
            Schema::Older(_) => false,
            Schema::Newer(found) => return Err(OpenError::Newer { found, known: MIGRATIONS.len() }),
            Schema::Empty | Schema::Foreign => return Err(OpenError::Foreign(path.display().to_string())),
        };
        Ok(Self { connection, current })
    }

    /// Whether it has the present schema, which the methods below but the first need.
    pub fn is_current(&self) -> bool {
        self.current
    }

    /// Looks for damage everywhere in the file.
    ///
    /// # Errors
    /// [`crate::store::StoreError`] with the first damage found.
    pub fn check_integrity(&self) -> Result<()> {
        integrity(self.connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?)
    }

    /// As [`crate::store::Store::audit`].
    ///
    /// # Errors
    /// [`crate::store::StoreError`].
    pub fn audit(&self) -> Result<Audit> {
        Ok(audit::audit(&self.connection)?)
    }

    /// Rows of a table by its first column, which is its key, from above `after`.
    pub(in crate::store) fn rows(
        &self,
        table: &str,
        columns: &[&str],
        after: &Value,
        limit: u32,
    ) -> Result<Vec<Vec<Value>>> {
        let (key, columns) = (columns[0], columns.join(", "));
        let above = if *after == Value::Null { "?1 IS NULL".to_owned() } else { format!("{key} > ?1") };
        let sql = format!("SELECT {columns} FROM {table} WHERE {above} ORDER BY {key} LIMIT ?2");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let width = statement.column_count();
        let rows = statement.query_map((after, limit), |row| (0..width).map(|column| row.get(column)).collect())?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// As [`crate::store::Store::completed_tasks`].
    ///
    /// # Errors
    /// [`crate::store::StoreError`].
    pub fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
        Ok(tasks::completed(&self.connection, after, limit)?)
    }
}

fn unusable(path: &Path, error: &dyn Display) -> OpenError {
    OpenError::Unusable { path: path.display().to_string(), error: error.to_string() }
}

/// A path as SQLite takes it: its bytes, which need not be UTF-8.
struct PathText<'a>(&'a Path);

impl ToSql for PathText<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0.as_os_str().as_bytes())))
    }
}
