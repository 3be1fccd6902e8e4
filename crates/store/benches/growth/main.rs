//! What grows with history: a simulated part of a month, and a table of one, ten and a hundred million tasks, on both
//! databases.
//!
//!     cargo bench --locked -p tintype-store --bench growth

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use tempfile::TempDir;
use tintype_rigs::database::NOON;
use tintype_rigs::postgres::{Cluster, Durability, Shutdown};
use tintype_rigs::simulation::{self, Plan};
use tintype_store::Store;
use tintype_store::sqlite;
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;
use tokio::runtime::Runtime;

mod database;
mod history;
mod table;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Measures what grows with history.
#[derive(Debug, Parser)]
pub struct Options {
    /// Parts to measure [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Databases
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Sqlite, Kind::Postgres])]
    on: Vec<Kind>,
    /// Seconds of the month to simulate
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// Finished tasks in the database; the table goes on from the last two
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000, 10_000_000])]
    tasks: Vec<u64>,
    /// Where SQLite's file of the month is; time is simulated, so it may be in memory [default: on the disk]
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Given by `cargo bench`, and not by `cargo test`
    #[arg(long, hide = true)]
    bench: bool,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A part of a month of 50 million tasks
    Month,
    /// Size, list, poll, claim, audit, backup and migration
    Table,
}

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A file
    Sqlite,
    /// A cluster of its own, with `fsync` on
    Postgres,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if !options.bench {
        eprintln!("nothing is measured here; run `cargo bench -p tintype-store --bench growth`");
        return ExitCode::SUCCESS;
    }
    match measure(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("growth: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Outcome<()> {
    let runtime = Runtime::new()?;
    let wants = |part| options.only.is_empty() || options.only.contains(&part);
    for kind in &options.on {
        let cluster = |durability| match kind {
            Kind::Sqlite => None,
            Kind::Postgres => Some(start_cluster(durability)),
        };
        if wants(Part::Month) {
            // A crash of the server alone loses nothing without syncing.
            runtime.block_on(month(cluster(Durability::Nothing), options))?;
        }
        if wants(Part::Table) {
            let cluster = cluster(Durability::Commits);
            runtime.block_on(table::measure(cluster, &options.tasks))?;
        }
    }
    Ok(())
}

/// A cluster that counts the pages that each statement touches. It lives until the end.
fn start_cluster(durability: Durability) -> &'static Cluster {
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(durability)));
    cluster.execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'");
    cluster.restart(Shutdown::Fast);
    cluster.execute("CREATE EXTENSION pg_stat_statements");
    cluster
}

/// Simulates a part of the month. The failover is a crash: of the process on SQLite, of the server on PostgreSQL.
async fn month(cluster: Option<&'static Cluster>, options: &Options) -> Outcome<()> {
    let directory = options.directory.as_ref().map_or_else(directory, |path| Ok(TempDir::new_in(path)?))?;
    let clock = Clock::manual(NOON);
    let path = directory.path().join("tintype.db");
    let plan = Plan::month(options.seconds);
    let begun = now();
    let report = match cluster {
        None => {
            let open = || -> Arc<Store> {
                Arc::new(sqlite::open(&path, clock.clone()).expect("the file opens, as it did before"))
            };
            let fail_over = |store| {
                drop(store);
                open()
            };
            simulation::run(&plan, open(), clock.clone(), fail_over).await?
        }
        Some(cluster) => {
            let store = cluster.open(directory.path(), &clock, Faults::default());
            let fail_over = |store| {
                database::print_pages(cluster, "before the failover");
                cluster.restart(Shutdown::Immediate);
                store
            };
            let report = simulation::run(&plan, store, clock.clone(), fail_over).await?;
            database::print_pages(cluster, "after the failover");
            report
        }
    };
    let (took, name) = (begun.elapsed().as_secs_f64(), if cluster.is_some() { "PostgreSQL" } else { "SQLite" });
    println!("\n{name}: {:.0} times as fast as time\n{report}", report.seconds as f64 / took);
    Ok(())
}

/// Not in /tmp, which may be memory: syncing is what a commit waits for.
fn directory() -> Outcome<TempDir> {
    Ok(TempDir::new_in(env!("CARGO_TARGET_TMPDIR"))?)
}

/// A clock for the load, which isn't part of the product.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}
