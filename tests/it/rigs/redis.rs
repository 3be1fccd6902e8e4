//! A Redis server for one test, on loopback.

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::rigs::binary::{Killed, signal};
use crate::rigs::debian;

/// Below the ephemeral ports, so that the port is still free when the server starts again.
const PORTS: std::ops::Range<u16> = 15_000..25_000;

/// A time limit that no call of a test reaches on a busy machine.
const PATIENT: [&str; 2] = ["--redis-timeout", "10s"];

/// A running `redis-server`. It ends with the thread that started it at the latest.
pub struct RedisServer {
    process: Killed,
    stdout: BufReader<ChildStdout>,
    port: u16,
    options: Vec<String>,
    directory: TempDir,
}

impl RedisServer {
    /// Starts an empty server without a password.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with options of `redis-server`.
    pub fn start_with(options: &[&str]) -> Self {
        Self::start_on("--port", options)
    }

    /// Starts it with a certificate, for TLS connections only.
    pub fn start_tls(cert: &str, key: &str) -> Self {
        let of_tls = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no", "--port", "0"];
        Self::start_on("--tls-port", &of_tls)
    }

    fn start_on(listening: &'static str, options: &[&str]) -> Self {
        debian::needs("redis-server", "redis-server");
        let directory = TempDir::new().expect("a directory");
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        loop {
            let port = rand::random_range(PORTS);
            let options = [&[listening.to_owned(), port.to_string()], &options[..]].concat();
            if let Some((process, stdout)) = launch(&options, &directory) {
                return Self { process, stdout, port, options, directory };
            }
        }
    }

    /// The server that counts for whole services: none unless `TEST_LIMITS=redis`.
    #[expect(clippy::disallowed_methods, reason = "how the tests run is no setting")]
    pub fn of_services() -> Option<Self> {
        match std::env::var("TEST_LIMITS").as_deref() {
            Err(_) | Ok("alone") => None,
            Ok("redis") => Some(Self::start()),
            Ok(other) => panic!("TEST_LIMITS={other} is neither alone nor redis"),
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// A connection for the test itself.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).expect("a URL").get_connection().expect("a connection")
    }

    pub fn signal(&self, name: &str) {
        signal(self.process.id(), name);
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("a child");
    }

    /// Starts it again, empty, on the same port.
    pub fn come_back(&mut self) {
        (self.process, self.stdout) = launch(&self.options, &self.directory).expect("its port is free");
    }
}

/// Starts a server and waits until it listens; `None` if the port is taken.
fn launch(options: &[String], directory: &TempDir) -> Option<(Killed, BufReader<ChildStdout>)> {
    // `setpriv` comes from util-linux. It ends the server when the test is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "redis-server", "--bind", "127.0.0.1", "--save", "", "--dir"]);
    command.arg(directory.path()).args(options).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Killed(command.spawn().expect("setpriv, from util-linux, runs"));
    let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("Ready to accept connections") {
        let before = said.len();
        if stdout.read_line(&mut said).expect("a pipe") == 0 {
            process.wait().expect("a child");
            assert!(said.contains("Address already in use"), "redis-server ended: {said}");
            return None;
        }
        assert!(before < 1 << 20, "{said}");
    }
    Some((process, stdout))
}

/// The flags of a service whose rate limits this Redis counts.
pub fn counting<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--redis", url], &PATIENT[..], more].concat()
}
