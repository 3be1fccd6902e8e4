//! Errors of the store.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Failure of a store method.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No room is left on the device that holds the database. Nothing was changed.
    #[error("the disk that holds the database is full: {0}")]
    Full(#[source] Cause),
    /// Nothing was changed. The text is for the operator and never for a caller.
    #[error("database: {0}")]
    Other(#[source] Cause),
    /// The caller's right to write was lost before the write. Nothing was changed.
    #[error("the caller has lost the right to do this")]
    Revoked,
    /// The connection to the database broke before it said whether the change was made.
    #[error("it is unknown whether the change was made; check before you repeat it: {0}")]
    Unknown(#[source] Cause),
}

impl StoreError {
    /// [`StoreError::Other`] for an error or a message.
    pub(super) fn other(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other(Cause::new(reason))
    }
}

/// Failure to open a database; displays as a message for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The database, or a copy of it, cannot be reached, read, written or created, or cannot hold what Tintype needs.
    #[error("{0}")]
    Unusable(String),
    /// The database contains tables of another program.
    #[error("the {0} is a database of another program: Tintype needs a database or a schema of its own")]
    Foreign(String),
    /// The content of the database was moved to another one.
    #[error(
        "{path} was moved to the {to}: use that one with --database postgres://…; \
            `tintype migrate --from sqlite:{path} --take-back` \
         returns to the state before the move"
    )]
    Moved {
        /// The file.
        path: String,
        /// Description of the other database, without a password.
        to: String,
    },
    /// A command that moved the content to another database was interrupted. That database has all of it or nothing.
    #[error(
        "the migration of {path} to the {to} was interrupted: run the same `tintype migrate` command again; \
         `tintype migrate --from sqlite:{path} --take-back` returns to the state before it"
    )]
    Moving {
        /// The file.
        path: String,
        /// Description of the other database, without a password.
        to: String,
    },
    /// Another release wrote the database, and this one cannot use it.
    #[error("{0}")]
    Version(String),
}

/// The cause of a [`StoreError`], or its description where the original may hold a prompt. Displays with its own causes
/// on one line. Cheap to clone, because all writes of a failed batch get the same cause.
#[derive(Debug, Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// Creates a cause from an error or a text.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Arc::from(error.into()))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let causes = std::iter::successors(self.0.source(), |cause| (*cause).source());
        causes.fold(write!(f, "{}", self.0), |written, cause| written.and_then(|()| write!(f, ": {cause}")))
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
