//! The two databases, as tests open them.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tintype_store::Store;
use tintype_store::sqlite;
use tintype_system::clock::{Clock, Timestamp};
use tintype_system::fault::Faults;

use crate::postgres;

/// 2026-11-21T12:00:00Z, when the clocks of tests start.
pub const NOON: Timestamp = Timestamp::from_millis(1_795_262_400_000);
/// The databases that the tests of the store run on.
#[derive(Debug, Clone, Copy)]
pub enum Backend {
    /// A file in the directory of the test.
    Sqlite,
    /// A schema in the shared cluster.
    Postgres,
}

impl Backend {
    /// The database of whole services: SQLite unless `TEST_STORE=postgres`.
    #[expect(clippy::disallowed_methods, reason = "how the tests run is no setting")]
    pub fn of_services() -> Self {
        match std::env::var("TEST_STORE").as_deref() {
            Err(_) | Ok("" | "sqlite") => Self::Sqlite,
            Ok("postgres") => Self::Postgres,
            Ok(other) => panic!("TEST_STORE={other} is neither sqlite nor postgres"),
        }
    }

    /// The URL of the database of the service in this directory, unless it is in the directory itself.
    pub fn url(self, directory: &Path) -> Option<String> {
        match self {
            Self::Sqlite => None,
            Self::Postgres => postgres::cluster().url_of_known(directory),
        }
    }

    /// An empty database that is removed with the directory.
    pub fn open(self, directory: &TempDir, clock: &Clock) -> Arc<Store> {
        self.open_with_faults(directory, clock, Faults::default())
    }

    /// An empty database with faults, which is removed with the directory.
    pub fn open_with_faults(self, directory: &TempDir, clock: &Clock, faults: Faults) -> Arc<Store> {
        match self {
            Self::Sqlite => {
                let path = directory.path().join("tintype.db");
                let store = sqlite::open_with_faults(&path, clock.clone(), faults);
                Arc::new(store.expect("a fresh database opens"))
            }
            Self::Postgres => postgres::cluster().open(directory.path(), clock, faults),
        }
    }
}
