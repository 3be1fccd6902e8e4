//! The data directory and the database.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;

use super::environment::secret_in;

/// SQLite's file in the data directory.
pub(super) const DATABASE: &str = "tintype.db";

/// Location of the data. Every command accepts these flags, before or after its own.
#[derive(Debug, Clone, Args)]
pub struct DataSettings {
    /// Directory for the database and the result files
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        env = "TINTYPE_DATA",
        default_value = "./tintype-data",
        value_name = "DIR"
    )]
    pub data: PathBuf,
    /// Database, as sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE [default: tintype.db in the data directory]
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        env = "TINTYPE_DATABASE",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub database: Option<String>,
    /// File that holds the URL of --database
    #[arg(long, global = true, help_heading = "Global options", env = "TINTYPE_DATABASE_FILE", value_name = "FILE")]
    pub database_file: Option<PathBuf>,
    /// PEM file with certificate authorities to trust for PostgreSQL, in addition to the public ones
    #[arg(long, global = true, help_heading = "Global options", env = "TINTYPE_DATABASE_CA", value_name = "FILE")]
    pub database_ca: Option<PathBuf>,
    /// Whether the URL was read from the file.
    #[arg(skip)]
    pub is_from_file: bool,
    /// Name of the system user who runs the command, for the audit log.
    #[arg(skip)]
    pub operator: String,
}

/// The kind of database and its location.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// Path of a SQLite file.
    Sqlite(PathBuf),
    /// A `postgres://` URL, which may contain a password.
    Postgres(String),
}

impl DatabaseUrl {
    /// The SQLite file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Sqlite(path) => Some(path),
            Self::Postgres(_) => None,
        }
    }
}

/// Hides the URL, which may contain a password.
impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
            Self::Postgres(_) => f.write_str("Postgres(…)"),
        }
    }
}

impl FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self::Postgres(url.to_owned()));
        }
        match url.strip_prefix("sqlite:") {
            Some(":memory:") => {
                Err("a database in memory would be lost with the process: name a file, as in sqlite:PATH".into())
            }
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            _ => Err("it must be sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE".into()),
        }
    }
}

impl DataSettings {
    /// Reads the file that `--database-file` names, while this process may read it.
    pub fn read_secrets(&mut self) -> Result<(), String> {
        if let (None, Some(file)) = (&self.database, &self.database_file) {
            self.database = Some(secret_in(file, "--database-file")?);
            self.is_from_file = true;
        }
        Ok(())
    }

    /// The database to use.
    ///
    /// # Errors
    /// A message for the operator: the secret file cannot be read, or the URL names another kind of database.
    pub fn database(&self) -> Result<DatabaseUrl, String> {
        let given = match &self.database {
            Some(url) => Some(url.clone()),
            None => self.database_file.as_deref().map(|file| secret_in(file, "--database-file")).transpose()?,
        };
        let parsed = |url: String| url.parse().map_err(|fault| format!("--database: {fault}"));
        given.map_or_else(|| Ok(DatabaseUrl::Sqlite(self.data.join(DATABASE))), parsed)
    }

    /// The file that holds the URL of the database, if it comes from one.
    pub fn url_file(&self) -> Option<&Path> {
        let is_used = self.database.is_none() || self.is_from_file;
        self.database_file.as_deref().filter(|_| is_used)
    }

    /// The SQLite file to use, for commands that work on files only.
    ///
    /// # Errors
    /// A message for the operator that ends with `instead`: the alternative on PostgreSQL.
    pub fn sqlite_file(&self, instead: &str) -> Result<PathBuf, String> {
        match self.database()? {
            DatabaseUrl::Sqlite(path) => Ok(path),
            DatabaseUrl::Postgres(_) => Err(format!("the database is PostgreSQL: {instead}")),
        }
    }
}
