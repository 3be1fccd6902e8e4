//! Load benchmark of the service: `cargo bench --bench load`; add `-- --help` for the options.
//!
//! Requests go over loopback TCP to the service's accept loop and router, with a database on a real disk. The benchmark
//! compares them with bare handlers behind the same accept loop. Measurements that are compared alternate, so that
//! other activity on the machine affects both; read the medians and the ratios.

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use self::report::{Aim, Report};

mod attack;
mod claims;
mod disk;
mod engine;
mod face;
mod fixture;
mod generator;
mod neighbours;
mod report;
mod server;
mod service;
mod startup;
mod steps;
mod studio;
mod subjects;
mod webhooks;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Measures the throughput and latency of the service.
#[derive(Debug, Parser)]
pub struct Options {
    /// Seconds to measure each kind of request or attack, spread over all rounds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Rounds in which compared measurements alternate
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Concurrent connections
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Tasks that a worker completes in each round
    #[arg(long, default_value_t = 5_000)]
    claims: usize,
    /// Tasks beside an engine that answers at once
    #[arg(long, default_value_t = 200)]
    pictures: usize,
    /// Tasks in the database for the start-up measurement
    #[arg(long, default_value_t = 100_000)]
    tasks: usize,
    /// Webhooks that wait for their delivery
    #[arg(long, default_value_t = 5_000)]
    webhooks: usize,
    /// Parts to measure [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Parts to measure, as with `--only`
    #[arg(value_enum, conflicts_with = "only")]
    parts: Vec<Part>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Passed by `cargo bench`, but not by `cargo test`
    #[arg(long, hide = true)]
    bench: bool,
}

/// A part of the benchmark that can run on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Poll,
    List,
    Submit,
    Claim,
    Start,
    Steps,
    Engine,
    Face,
    Attack,
    Neighbours,
    Studio,
    Webhooks,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        let mut chosen = self.only.iter().chain(&self.parts).peekable();
        chosen.peek().is_none() || chosen.any(|chosen| *chosen == part)
    }

    /// Seconds per round.
    fn window(&self) -> f64 {
        self.seconds / self.rounds as f64
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if !options.bench {
        eprintln!("this run measures nothing; use `cargo bench --bench load`");
        return ExitCode::SUCCESS;
    }
    match measure(&options) {
        Ok(report) if options.json => println!("{}", serde_json::json!(report)),
        Ok(report) => print!("{}", report.text()),
        Err(error) => {
            eprintln!("load: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(options: &Options) -> Outcome<Report> {
    // Not in /tmp, which may be in memory: a durable submit waits for the disk.
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR"))?;
    let runtime = Runtime::new()?;
    let mut report = Report::default();
    if [Part::Poll, Part::List, Part::Submit].into_iter().any(|part| options.wants(part)) {
        report.http = subjects::measure(&runtime, &directory, options)?;
    }
    if options.wants(Part::Claim) {
        let rates = runtime.block_on(claims::measure(&directory, options.claims, options.rounds))?;
        report.fact("claim to complete, files synced", rates.worker, "tasks/s", Some(Aim::AtLeast(5_000.0)));
        report.fact("claim to complete, store only", rates.store, "tasks/s", None);
    }
    if options.wants(Part::Start) {
        let startup = runtime.block_on(startup::measure(&directory, options.tasks, options.rounds))?;
        report.fact("serve: start to first response", startup.answer_millis, "ms", Some(Aim::AtMost(100.0)));
        report.fact("serve: idle memory, resident", startup.idle_mib, "MiB", Some(Aim::AtMost(40.0)));
        report.fact("serve: idle memory, private", startup.private_mib, "MiB", None);
        report.fact("credits audit", startup.audited_per_second, "tasks/s", Some(Aim::AtLeast(100_000.0)));
    }
    if options.wants(Part::Steps) {
        steps::measure(&directory, options, &mut report)?;
    }
    if options.wants(Part::Engine) {
        engine::measure(&runtime, &directory, options, &mut report)?;
    }
    if options.wants(Part::Face) {
        face::measure(&runtime, &directory, options, &mut report)?;
    }
    if options.wants(Part::Attack) {
        report.attacks = attack::measure(&runtime, &directory, options)?;
    }
    if options.wants(Part::Neighbours) {
        report.neighbours = neighbours::measure(&runtime, &directory, options)?;
    }
    if options.wants(Part::Studio) {
        studio::measure(&runtime, &directory, options, &mut report)?;
    }
    if options.wants(Part::Webhooks) {
        runtime.block_on(webhooks::measure(&directory, options.webhooks, &mut report))?;
    }
    let disk = disk::measure(directory.path())?;
    report.fact("append and sync 4 KiB, p50", disk.sync_p50_micros, "µs", None);
    report.fact("append and sync 4 KiB, p99", disk.sync_p99_micros, "µs", None);
    report.file_system = disk.file_system;
    Ok(report)
}

/// The median of some numbers. Sorts them.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => numbers[middle],
        _ => f64::midpoint(numbers[middle - 1], numbers[middle]),
    }
}
