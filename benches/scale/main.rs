//! Throughput on PostgreSQL: `cargo bench --bench scale`.
//!
//! The benchmark starts a cluster of its own with `fsync` on a real disk. The server, the store under test and the load
//! share the cores. The store's figures are compared with those of pgbench on the same cluster, with the smallest
//! transaction that a submit could be: one update and one insert. Compared runs alternate.
//!
//! `cargo bench --bench scale -- --help` lists the options.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use tintype_rigs::postgres::Cluster;
use tintype_store::Store;
use tintype_store::postgres;
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;
use tokio::runtime::Runtime;

mod history;
mod load;
mod snapshot;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Measures what PostgreSQL carries.
#[derive(Debug, Parser)]
pub struct Options {
    /// Seconds that each figure is measured for, spread over the rounds
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// Turns that measurements which are compared take
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Callers at once
    #[arg(long, default_value_t = 64)]
    callers: usize,
    /// Finished tasks in the database, for one set of figures each
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 1_000_000])]
    tasks: Vec<u32>,
    /// Tasks that are done while a snapshot is kept
    #[arg(long, default_value_t = 60_000)]
    snapshot_tasks: usize,
    /// Parts to measure [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Given by `cargo bench`, and not by `cargo test`
    #[arg(long, hide = true)]
    bench: bool,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Polls, pages, submits and claims, beside pgbench
    Rates,
    /// The steps of a task while a reader keeps an old snapshot
    Snapshot,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds / self.rounds as f64)
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if !options.bench {
        eprintln!("nothing is measured here; run `cargo bench --bench scale`");
        return ExitCode::SUCCESS;
    }
    match measure(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scale: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Outcome<()> {
    let runtime = Runtime::new()?;
    if options.wants(Part::Rates) {
        let mut sizes = Vec::new();
        for tasks in &options.tasks {
            eprintln!("{tasks} finished tasks");
            let cluster = cluster();
            sizes.push((*tasks, runtime.block_on(load::measure(&cluster, *tasks, options))?));
        }
        print(&sizes);
    }
    if options.wants(Part::Snapshot) {
        let cluster = cluster();
        runtime.block_on(snapshot::measure(&cluster, options))?;
    }
    Ok(())
}

fn cluster() -> Cluster {
    Cluster::start_for_benchmark(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// One figure: a name, a rate, and its ratio to what it is compared with, in the middle of the rounds.
type Figure = (String, f64, Option<f64>);

fn print(sizes: &[(u32, Vec<Figure>)]) {
    let Some((_, names)) = sizes.first() else { return };
    print!("{:<40}", "a second, with finished tasks:");
    for (tasks, _) in sizes {
        print!("{tasks:>12}");
    }
    println!("{:>10}   ratio to pgbench", if sizes.len() > 1 { "last/first" } else { "" });
    for (place, (name, first, _)) in names.iter().enumerate() {
        print!("{name:<40}");
        for (_, figures) in sizes {
            print!("{:>12.0}", figures[place].1);
        }
        let last = sizes.last().map_or(*first, |(_, figures)| figures[place].1);
        print!("{:>10.2}  ", last / first);
        for (_, figures) in sizes {
            if let Some(ratio) = figures[place].2 {
                print!(" {ratio:.2}");
            }
        }
        println!();
    }
}

/// A store of a process of its own.
async fn open(cluster: &Cluster) -> Outcome<Arc<Store>> {
    Ok(Arc::new(postgres::open(&cluster.database_url(), None, Clock::system(), Faults::default()).await?))
}

/// A clock for the load, which isn't part of the product.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// The middle of some numbers; sorts them.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
