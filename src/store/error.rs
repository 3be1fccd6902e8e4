//! Errors of the store, which keep their causes.

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
    /// The connection to the database broke before it said whether the change was made.
    #[error("it is unknown whether the change was made; check before you repeat it: {0}")]
    Unknown(#[source] Cause),
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

impl From<&str> for Cause {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self::new(text)
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
