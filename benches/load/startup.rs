//! The real binary on an existing database: time to the first response, idle memory and speed of an audit.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tintype_store::sqlite;
use tintype_system::clock::Clock;

use crate::generator::{Load, now};
use crate::server::Server;
use crate::{Outcome, fixture, median};

/// Idle time before the memory of the process is read.
const IDLE: Duration = Duration::from_secs(2);
const ACCOUNTS: usize = 100;
const CLAIM_BATCH: usize = 1_024;

/// Results of the start-up measurement.
pub struct Startup {
    /// Milliseconds from the start of the process to its first response.
    pub answer_millis: f64,
    /// Resident memory of the idle process, in MiB.
    pub idle_mib: f64,
    /// Private part of it, in MiB.
    pub private_mib: f64,
    /// Tasks that `credits audit` checks per second, with their ledger entries.
    pub audited_per_second: f64,
}

/// Fills a database with `tasks` completed tasks and starts `tintype serve` on it `rounds` times.
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
    let store = sqlite::open(&data.join("tintype.db"), Clock::system())?;
    let callers = fixture::callers(&store, "startup", ACCOUNTS).await?;
    fixture::queue(&store, &callers, tasks).await?;
    fixture::complete_all(&store, CLAIM_BATCH).await?;
    Ok(())
}

/// Starts the binary; returns it and the milliseconds until its first response.
fn start(data: &Path) -> Outcome<(Server, f64)> {
    let started = now();
    let server = Server::start(data, &[])?;
    let request = Bytes::from(format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", server.address));
    Load { address: server.address, requests: vec![request] }.once()?;
    Ok((server, started.elapsed().as_secs_f64() * 1e3))
}

/// Duration in seconds of an audit beside the running server.
fn audit(data: &Path) -> Outcome<f64> {
    let started = now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tintype"));
    let status = command.args(["credits", "audit", "--data"]).arg(data).stdout(Stdio::null()).status()?;
    if status.success() { Ok(started.elapsed().as_secs_f64()) } else { Err("the books do not balance".into()) }
}
