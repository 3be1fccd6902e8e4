//! A database of one kind: opened, measured, copied.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tintype_rigs::postgres::{Cluster, schema};
use tintype_store::postgres;
use tintype_store::sqlite;
use tintype_store::{Schema, Store};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

use crate::Outcome;

/// The schema of the first release.
const FIRST: [&str; 2] =
    [include_str!("../../migrations/sqlite/0100_first.sql"), include_str!("../../migrations/postgres/0100_first.sql")];

/// A database in a directory, or in the schema of that directory.
pub struct Database<'a> {
    pub cluster: Option<&'static Cluster>,
    pub directory: &'a Path,
}

impl Database<'_> {
    fn path(&self) -> std::path::PathBuf {
        self.directory.join("tintype.db")
    }

    /// Makes it with the schema of the first release.
    pub async fn create(&self) -> Outcome<()> {
        self.open_with(&Schema { in_force: FIRST[usize::from(self.cluster.is_some())], changes: &[] }).await.map(drop)
    }

    /// Opens it, and brings its schema up to date.
    pub async fn open(&self) -> Outcome<Arc<Store>> {
        self.open_with(if self.cluster.is_some() { &postgres::SCHEMA } else { &sqlite::SCHEMA }).await
    }

    async fn open_with(&self, schema: &Schema) -> Outcome<Arc<Store>> {
        let (clock, faults) = (Clock::system(), Faults::default());
        Ok(match self.cluster {
            None => Arc::new(sqlite::open_with(&self.path(), clock, faults, schema)?),
            Some(cluster) => {
                let url = cluster.url(self.directory);
                Arc::new(postgres::open_with(&url, None, clock, faults, schema).await?)
            }
        })
    }

    /// Runs SQL past the store.
    pub fn execute(&self, sql: &str) -> Outcome<()> {
        match self.cluster {
            None => rusqlite::Connection::open(self.path())?.execute_batch(sql)?,
            Some(cluster) => cluster.execute(&format!("SET search_path = {}; {sql}", schema(self.directory))),
        }
        Ok(())
    }

    /// Makes the statistics and the log as they are in an installation that runs for long.
    pub fn settle(&self) -> Outcome<()> {
        match self.cluster {
            None => {
                let connection = rusqlite::Connection::open(self.path())?;
                Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
            }
            Some(cluster) => {
                cluster.execute("VACUUM ANALYZE");
                cluster.execute("CHECKPOINT");
                Ok(())
            }
        }
    }

    /// Bytes of all tables and indexes.
    pub fn bytes(&self) -> Outcome<i64> {
        match self.cluster {
            None => Ok(i64::try_from(std::fs::metadata(self.path())?.len())?),
            Some(cluster) => Ok(cluster.number(&format!(
                "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
                 WHERE c.relkind = 'r' AND c.relnamespace = '{}'::regnamespace",
                schema(self.directory)
            ))),
        }
    }

    /// Copies it as the documentation says: a snapshot, or `pg_dump`.
    pub fn back_up(&self) -> Outcome<()> {
        let copy = self.directory.join("copy");
        match self.cluster {
            None => sqlite::copy(&self.path(), &copy)?,
            Some(cluster) => {
                let (url, schema) = (cluster.url(self.directory), schema(self.directory));
                let mut dump = Command::new("pg_dump");
                dump.arg("--dbname").arg(url).args(["--schema", &schema, "--format", "custom", "--file"]).arg(&copy);
                if !dump.status()?.success() {
                    return Err("pg_dump failed".into());
                }
            }
        }
        Ok(std::fs::remove_file(copy)?)
    }

    /// Drops the schema; a file goes with its directory.
    pub fn remove(&self) {
        if let Some(cluster) = self.cluster {
            cluster.execute(&format!("DROP SCHEMA {} CASCADE", schema(self.directory)));
        }
    }
}

/// Forgets the pages that statements have touched.
pub fn forget_pages(cluster: Option<&'static Cluster>) {
    if let Some(cluster) = cluster {
        cluster.query("SELECT pg_stat_statements_reset()");
    }
}

/// The pages that all statements since [`forget_pages`] have touched.
pub fn pages(cluster: &'static Cluster) -> i64 {
    cluster.number("SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0)::bigint FROM pg_stat_statements")
}

/// Prints the pages and rows of a call of the statements that touched the most.
pub fn print_pages(cluster: &'static Cluster, when: &str) {
    let rows = cluster.query(
        "SELECT calls, ((shared_blks_hit + shared_blks_read) / calls)::bigint, rows::float8 / calls,
                mean_exec_time, left(regexp_replace(query, '\\s+', ' ', 'g'), 70)
         FROM pg_stat_statements WHERE calls > 20 ORDER BY shared_blks_hit + shared_blks_read DESC LIMIT 12",
    );
    println!("\nPages touched, {when}:\n| Calls | Pages a call | Rows a call | ms a call | Statement |");
    println!("|---|---|---|---|---|");
    for row in rows {
        let (calls, pages, of_rows): (i64, i64, f64) = (row.get(0), row.get(1), row.get(2));
        let (millis, query): (f64, &str) = (row.get(3), row.get(4));
        println!("| {calls} | {pages} | {of_rows:.1} | {millis:.2} | `{query}` |");
    }
}
