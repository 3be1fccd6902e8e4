//! The real binary on an existing database: how soon it answers, how much memory it takes idle, and how
//! fast it audits.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tintype::clock::Clock;
use tintype::store::sqlite::SqliteStore;

use crate::generator::{Load, now};
use crate::server::Server;
use crate::{Outcome, fixture, median};

/// How long the process is left alone before its memory is read.
const IDLE: Duration = Duration::from_secs(2);
const ACCOUNTS: usize = 100;
const CLAIM_BATCH: usize = 1_024;

/// What was measured.
pub struct Startup {
    /// Milliseconds from the start of the process to its first answer.
    pub answer_millis: f64,
    /// Resident memory when idle, in MiB.
    pub idle_mib: f64,
    /// Part of it that no other process shares, in MiB.
    pub private_mib: f64,
    /// Tasks that `credits audit` checks in a second, with their ledger entries.
    pub audited_per_second: f64,
}

/// Fills a database with so many completed tasks and starts `tintype serve` on it `rounds` times.
pub async fn measure(directory: &TempDir, tasks: usize, rounds: usize) -> Outcome<Startup> {
    let data = directory.path().join("startup");
    fs::create_dir(&data)?;
    eprintln!("start-up: filling a database with {tasks} tasks");
    fill(&data, tasks).await?;
    let (mut answer, mut idle, mut private, mut audited) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        eprintln!("start-up, round {round} of {rounds}");
        let (server, millis) = start(&data)?;
        std::thread::sleep(IDLE);
        answer.push(millis);
        idle.push(server.memory(&["Rss:"])?);
        private.push(server.memory(&["Private_Clean:", "Private_Dirty:"])?);
        audited.push(tasks as f64 / audit(&data)?);
    }
    Ok(Startup {
        answer_millis: median(&mut answer),
        idle_mib: median(&mut idle),
        private_mib: median(&mut private),
        audited_per_second: median(&mut audited),
    })
}

async fn fill(data: &Path, tasks: usize) -> Outcome<()> {
    let store = SqliteStore::open(&data.join("tintype.db"), Clock::system())?;
    let callers = fixture::callers(&store, "startup", ACCOUNTS).await?;
    fixture::queue(&store, &callers, tasks).await?;
    fixture::complete_all(&store, CLAIM_BATCH).await?;
    Ok(())
}

/// Starts the binary; returns it with the milliseconds that passed until it answered.
fn start(data: &Path) -> Outcome<(Server, f64)> {
    let started = now();
    let server = Server::start(data, &[])?;
    let request = Bytes::from(format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", server.address));
    Load { address: server.address, requests: vec![request] }.once()?;
    Ok((server, started.elapsed().as_secs_f64() * 1e3))
}

/// Seconds that an audit takes beside the running server.
fn audit(data: &Path) -> Outcome<f64> {
    let started = now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tintype"));
    let status = command.args(["credits", "audit", "--data"]).arg(data).stdout(Stdio::null()).status()?;
    if status.success() { Ok(started.elapsed().as_secs_f64()) } else { Err("the books do not balance".into()) }
}
