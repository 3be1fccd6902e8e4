//! Connections to the file.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

/// Longest wait for the write lock while another process holds it, such as the command line.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Prepared statements cached per connection.
const STATEMENT_CACHE: usize = 64;

pub(super) fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    #[cfg_attr(not(test), expect(unused_mut, reason = "only tests trace statements"))]
    let mut connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    #[cfg(test)]
    super::plans::note(&mut connection, path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    // Without this, SQLite plans a query with LIMIT ? again on every run, because the number might change the plan.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // Deleted content is overwritten, so that no erased prompt stays in a free part of the file.
    connection.execute_batch(
        "PRAGMA secure_delete = ON;
         PRAGMA synchronous = FULL;
         PRAGMA foreign_keys = ON;
         PRAGMA cache_size = -8192;
         PRAGMA temp_store = MEMORY;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;",
    )?;
    Ok(connection)
}
