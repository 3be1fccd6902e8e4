//! The database schema: the current one, and the changes from earlier ones.
//!
//! `crates/store/schema/sqlite.sql` and `crates/store/schema/postgres.sql` show the schema in force; a new database is
//! made from its file. To change the schema:
//!
//! 1. Change both files.
//! 2. Write the statements that bring an existing database there into `NNNN_title.sql` in
//!    `crates/store/migrations/sqlite` and `crates/store/migrations/postgres`. NNNN is the version that they lead to:
//!    0101 is the first. On PostgreSQL, processes of the release before run beside it, so it only adds.
//! 3. List their name below.
//!
//! `crates/store/tests/it/store/schema.rs` makes databases from `0100_first.sql` and all changes, and compares them
//! with the schema in force.

use crate::OpenError;

/// The version of a database without any change. Unreleased versions of Tintype counted from 1 to 38.
pub const FIRST_VERSION: i64 = 100;

/// The schema of a kind of database, from the files in its folders.
macro_rules! schema {
    ($kind:literal) => {
        schema!($kind: "0101_cause" "0102_settings" "0103_masks" "0104_authors" "0105_stars" "0106_private_boards"
            "0107_shared_links" "0108_symbols" "0109_invitations" "0110_uploaders" "0111_primary_key" "0112_balances")
    };
    ($kind:literal: $($change:literal)+) => {
        Schema {
            in_force: include_str!(concat!("../../schema/", $kind, ".sql")),
            changes: &[$(include_str!(concat!("../../migrations/", $kind, "/", $change, ".sql"))),+],
        }
    };
}
pub(crate) use schema;

/// The schema of one kind of database.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// The statements that make a new database.
    pub in_force: &'static str,
    /// The statements that bring a database from each version to the next, from [`FIRST_VERSION`] on.
    pub changes: &'static [&'static str],
}

impl Schema {
    /// The version of a database with this schema.
    pub fn version(&self) -> i64 {
        FIRST_VERSION + self.changes.len() as i64
    }

    /// Tells the operator about a migration, which a mere command may have made.
    pub(crate) fn report(&self, found: i64, name: &str) {
        let version = self.version();
        tracing::info!(
            "migrated the {name} from schema {found} to {version}: older releases of this program refuse it"
        );
    }

    /// The changes that a database of version `found` needs, if this program knows the version.
    pub(crate) fn pending(&self, found: i64, name: &str) -> Result<&'static [&'static str], OpenError> {
        let known = self.version();
        let Ok(done) = usize::try_from(found - FIRST_VERSION) else {
            return Err(OpenError::Version(format!(
                "the {name} was made before release 0.1.0 (schema {found}): stop all processes, make a copy of it, and \
                 bring it over once with `tools/bring-over` of the source code"
            )));
        };
        self.changes.get(done..).ok_or_else(|| {
            OpenError::Version(format!(
                "the database was written by a newer Tintype (schema {found}; this one knows {known}): upgrade this \
                 binary or restore a backup"
            ))
        })
    }
}
