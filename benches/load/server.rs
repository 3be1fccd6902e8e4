//! The real binary in a process of its own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::Outcome;

/// A server process, ended whatever happens to the benchmark.
pub struct Server {
    process: Child,
    /// Held open, because a server that cannot print what it has to say ends.
    stdout: BufReader<ChildStdout>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Server {
    /// Starts the binary on a data directory and waits until it tells where it listens.
    pub fn start(data: &Path, flags: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tintype"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data"]).arg(data).args(flags);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(process.stdout.take().ok_or("the standard output is a pipe")?);
        let mut server = Self { process, stdout, address: ([0, 0, 0, 0], 0).into() };
        server.address = server.listening()?;
        Ok(server)
    }

    /// Reads on until the line that tells where the API is.
    fn listening(&mut self) -> Outcome<SocketAddr> {
        let mut line = String::new();
        while self.stdout.read_line(&mut line)? > 0 {
            if let Some((_, rest)) = line.split_once("://") {
                return Ok(rest.split('/').next().unwrap_or(rest).parse()?);
            }
            line.clear();
        }
        Err("the server did not start".into())
    }

    /// The sum of some lines of the kernel's account of its memory, in MiB.
    pub fn memory(&self, names: &[&str]) -> Outcome<f64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id()))?;
        let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
        let kib: f64 = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok()).sum();
        Ok(kib / 1024.0)
    }
}
