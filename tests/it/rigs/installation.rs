//! The parts that all processes of one service share: data directory, database, file store.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::Value;
use tintype_store::Store;
use tintype_store::postgres;
use tintype_store::sqlite;
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

use crate::rigs::binary::{TINTYPE, printed, run_with};

/// The location of each part.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The program, possibly of another release.
    pub program: PathBuf,
    pub data: PathBuf,
    /// The URL of its PostgreSQL database, if it has one.
    pub database: Option<String>,
    pub variables: Vec<(String, String)>,
}

impl Installation {
    pub fn on_sqlite(data: &Path) -> Self {
        Self { program: TINTYPE.into(), data: data.to_owned(), database: None, variables: Vec::new() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(self.environment()).args(arguments).arg("--data").arg(&self.data);
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        run_with(&self.program, &self.data, self.environment(), arguments)
    }

    /// Runs an administrative command that succeeds, and returns the JSON it printed.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        printed(&self.run(&[arguments, &["--json"]].concat()))
    }

    /// Creates an account with credits, and returns a key.
    pub fn account(&self, name: &str, credits: &str) -> String {
        self.json(&["account", "create", name, "--credits", credits]);
        self.json(&["key", "create", "--account", name])["key"].as_str().expect("a key").to_owned()
    }

    /// The store as another process opens it.
    pub async fn store(&self, clock: Clock) -> Arc<Store> {
        match &self.database {
            None => Arc::new(sqlite::open(&self.data.join("tintype.db"), clock).expect("a database")),
            Some(url) => Arc::new(postgres::open(url, None, clock, Faults::default()).await.expect("a database")),
        }
    }

    fn environment(&self) -> impl Iterator<Item = (String, String)> {
        let database = self.database.iter().map(|url| ("TINTYPE_DATABASE".to_owned(), url.clone()));
        self.variables.iter().cloned().chain(database)
    }
}
