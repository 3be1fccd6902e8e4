//! The real binary on an existing database: how soon it answers, how much memory it takes idle, and how
//! fast it audits.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tintype::clock::Clock;
use tintype::store::sqlite::SqliteStore;

use crate::generator::{Load, now};
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

/// A server process, ended whatever happens to the benchmark.
struct Server {
    process: Child,
    /// Held open, because a server that cannot print what it has to say ends.
    stdout: BufReader<ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Server {
    /// Reads on until the line that tells where the API is.
    fn address(&mut self) -> Outcome<SocketAddr> {
        let mut line = String::new();
        while self.stdout.read_line(&mut line)? > 0 {
            if let Some((_, rest)) = line.split_once("http://") {
                return Ok(rest.split('/').next().unwrap_or(rest).parse()?);
            }
            line.clear();
        }
        Err("the server did not start".into())
    }
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
        let pid = server.process.id();
        idle.push(memory(pid, &["Rss:"])?);
        private.push(memory(pid, &["Private_Clean:", "Private_Dirty:"])?);
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_tintype"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data"]).arg(data);
    let mut process = command.stdout(Stdio::piped()).spawn()?;
    let stdout = BufReader::new(process.stdout.take().ok_or("the standard output is a pipe")?);
    let mut server = Server { process, stdout };
    let address = server.address()?;
    let request = Bytes::from(format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\n\r\n"));
    Load { address, requests: vec![request] }.once()?;
    Ok((server, started.elapsed().as_secs_f64() * 1e3))
}

/// Seconds that an audit takes beside the running server.
fn audit(data: &Path) -> Outcome<f64> {
    let started = now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tintype"));
    let status = command.args(["credits", "audit", "--data"]).arg(data).stdout(Stdio::null()).status()?;
    if status.success() { Ok(started.elapsed().as_secs_f64()) } else { Err("the books do not balance".into()) }
}

/// The sum of some lines of the kernel's account of a process's memory, in MiB.
fn memory(pid: u32, names: &[&str]) -> Outcome<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    let kib: f64 = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok()).sum();
    Ok(kib / 1024.0)
}
