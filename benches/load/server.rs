//! The real binary as a child process.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::Outcome;

/// A server process. Dropping it kills the process.
pub struct Server {
    process: Child,
    /// Kept open, because a server that cannot write to its standard output exits.
    stdout: BufReader<ChildStdout>,
    /// Address on which the server listens.
    pub address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Server {
    /// Starts the binary on a data directory and waits until it prints its address.
    pub fn start(data: &Path, flags: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tintype"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data"]).arg(data).args(flags);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(process.stdout.take().ok_or("the standard output is a pipe")?);
        let mut server = Self { process, stdout, address: ([0, 0, 0, 0], 0).into() };
        server.address = server.listening()?;
        Ok(server)
    }

    /// Reads lines until one contains the URL of the API.
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

    /// Sum of the given fields of the process's `smaps_rollup`, in MiB.
    pub fn memory(&self, names: &[&str]) -> Outcome<f64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id()))?;
        let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
        let kib: f64 = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok()).sum();
        Ok(kib / 1024.0)
    }
}
