//! A Redis of a test's own, on loopback.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::rigs::debian;

/// Lower than the ports that systems give out by themselves, so that one is still free when it starts again.
const PORTS: std::ops::Range<u16> = 15_000..25_000;

/// A time limit that no call of a test reaches on a busy machine.
const PATIENT: [&str; 2] = ["--redis-timeout", "10s"];

/// A running `redis-server`, which ends with the thread that started it at the latest.
pub struct RedisServer {
    process: Child,
    stdout: BufReader<ChildStdout>,
    port: u16,
    options: Vec<String>,
    directory: TempDir,
}

impl RedisServer {
    /// Empty, without a password.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With options of `redis-server`.
    pub fn start_with(options: &[&str]) -> Self {
        Self::start_on("--port", options)
    }

    /// With a certificate, and over TLS alone.
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

    /// The one that counts for a whole service: none, unless `TEST_LIMITS=redis`.
    #[expect(clippy::disallowed_methods, reason = "how the tests run is no setting")]
    pub fn of_services() -> Option<Self> {
        match std::env::var("TEST_LIMITS").as_deref() {
            Err(_) | Ok("alone") => None,
            Ok("redis") => Some(Self::start()),
            Ok(other) => panic!("TEST_LIMITS={other} is neither alone nor redis"),
        }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A connection of the test's own.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).expect("a URL").get_connection().expect("a connection")
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("a child");
    }

    /// Starts it anew, empty, where it was.
    pub fn come_back(&mut self) {
        (self.process, self.stdout) = launch(&self.options, &self.directory).expect("its port is free");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Starts a server and waits until it listens; `None` when it cannot.
fn launch(options: &[String], directory: &TempDir) -> Option<(Child, BufReader<ChildStdout>)> {
    // From util-linux: when a test is killed, nobody else ends what it started.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "redis-server", "--bind", "127.0.0.1", "--save", "", "--dir"]);
    command.arg(directory.path()).args(options).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = command.spawn().expect("setpriv, from util-linux, runs");
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

/// The flags that let this Redis count.
pub fn counting<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--redis", url], &PATIENT[..], more].concat()
}
