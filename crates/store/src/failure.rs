//! Statement errors: what is known about their effect determines whether they can be retried.

use tokio_postgres::error::{Severity, SqlState};

use crate::{Cause, StoreError};

/// Errors because of another transaction, after which a later attempt may succeed.
const BUSY: [SqlState; 2] = [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED];

/// Most attempts at a write that ends in a deadlock.
const ATTEMPTS: u32 = 4;

/// Why a statement has no result.
#[derive(Debug)]
pub(crate) enum DbError {
    /// The server rolled it back.
    Refused(StoreError),
    /// The server rolled it back because of another transaction, which held a lock for too long.
    Busy(StoreError),
    /// The server rolled it back because it and another transaction waited for each other.
    Deadlock(StoreError),
    /// Nothing was done, and another connection may do it: none could be had, or this one broke or reached a read-only
    /// server.
    Broken(StoreError),
    /// The connection broke after the statement was sent: it may have taken effect.
    Unknown(StoreError),
}

/// The result of a part of a transaction.
pub(crate) type DbResult<T = ()> = Result<T, DbError>;

/// The cause of an error, without its outcome.
pub(crate) fn cause_of(error: StoreError) -> Cause {
    match error {
        StoreError::Full(cause) | StoreError::Other(cause) | StoreError::Unknown(cause) => cause,
        StoreError::Revoked => Cause::new(error),
    }
}

impl From<DbError> for StoreError {
    fn from(failure: DbError) -> Self {
        match failure {
            DbError::Unknown(error) => Self::Unknown(cause_of(error)),
            DbError::Refused(error) | DbError::Busy(error) | DbError::Deadlock(error) | DbError::Broken(error) => error,
        }
    }
}

impl From<StoreError> for DbError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for DbError {
    /// SQLite undoes a statement that fails.
    fn from(error: rusqlite::Error) -> Self {
        Self::Refused(error.into())
    }
}

impl From<tokio_postgres::Error> for DbError {
    /// Only an error of the server proves that the statement was rolled back; after any other the outcome is unknown.
    fn from(error: tokio_postgres::Error) -> Self {
        let refused = error.as_db_error().is_some_and(|server| server.parsed_severity() == Some(Severity::Error));
        match error.code() {
            Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Self::Broken(error.into()),
            Some(&SqlState::T_R_DEADLOCK_DETECTED) if refused => Self::Deadlock(error.into()),
            Some(code) if refused && BUSY.contains(code) => Self::Busy(error.into()),
            _ if refused => Self::Refused(error.into()),
            _ => Self::Unknown(error.into()),
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    /// Drops the details of a server error, which may contain a prompt.
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(server) = error.as_db_error() else { return Self::Other(Cause::new(error)) };
        // A pooler that was configured while we ran.
        let is_pooled = [SqlState::DUPLICATE_PSTATEMENT, SqlState::INVALID_SQL_STATEMENT_NAME].contains(server.code());
        let advice = match *server.code() {
            _ if is_pooled => ": is there a pooler in transaction mode in between?",
            // Since PostgreSQL 15, only the owner of a database may create tables in its schema `public`.
            SqlState::INSUFFICIENT_PRIVILEGE => {
                ": make this role the owner of the database, or of the schema and its tables"
            }
            SqlState::INVALID_SCHEMA_NAME => {
                ": the search_path of this role has no schema that exists and that it may use"
            }
            _ => "",
        };
        let cause = Cause::new(format!("{} (SQLSTATE {}){advice}", server.message(), server.code().code()));
        if *server.code() == SqlState::DISK_FULL { Self::Full(cause) } else { Self::Other(cause) }
    }
}

/// Whether to repeat a write, after this number of attempts: the server aborts one side of a deadlock, and the other
/// continues.
pub(crate) fn may_repeat<T>(attempts: u32, outcome: &DbResult<T>) -> bool {
    let Err(DbError::Deadlock(error)) = outcome else { return false };
    tracing::debug!(%error, attempts, "a write ended in a deadlock");
    attempts < ATTEMPTS
}

impl DbError {
    /// This failure as one of a statement that had no effect, which another connection can repeat.
    pub(crate) fn without_effect(self) -> Self {
        match self {
            Self::Unknown(error) => Self::Broken(error),
            failure => failure,
        }
    }
}
