//! One process of a service of several: `tintype api` or `tintype worker`.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::rigs::binary::Server;
use crate::rigs::crash::life::PUBLIC_URL;
use crate::rigs::installation::Installation;

/// Longest that anything may take before these tests call it a hang.
pub const HANG: Duration = Duration::from_secs(60);
/// How often a process may fail to start, while its database does not run say.
const STARTS: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Api,
    Worker,
}

/// A process, and those that take its place.
pub struct Node {
    pub part: Part,
    pub server: Server,
    installation: Installation,
    flags: Vec<String>,
    log: PathBuf,
    /// Lines of the log that earlier processes wrote.
    before: usize,
    /// Whether something is to go wrong in it.
    pub armed: bool,
}

impl Node {
    /// Starts it with more flags than these tests need anyway.
    pub fn start(part: Part, number: usize, installation: &Installation, flags: &[&str]) -> Self {
        Self::start_with_fault(part, number, installation, flags, None)
    }

    /// Starts it with what is to go wrong in it.
    pub fn start_with_fault(
        part: Part,
        number: usize,
        installation: &Installation,
        flags: &[&str],
        fault: Option<&str>,
    ) -> Self {
        let log = installation.data.join(format!("{part:?}-{number}.log"));
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let server = spawn(part, installation, &flags, &log, fault).unwrap_or_else(|said| panic!("it ended: {said}"));
        Self { part, server, installation: installation.clone(), flags, log, before: 0, armed: fault.is_some() }
    }

    /// Starts another process after the last one ended, as systemd would, if need be with what is to go wrong in it.
    pub fn restart(&mut self, fault: Option<&str>) {
        self.before = self.lines().len();
        let start = |fault| spawn(self.part, &self.installation, &self.flags, &self.log, fault);
        // What goes wrong may do so at the start.
        let mut started = start(fault);
        self.armed = fault.is_some() && started.is_ok();
        for _ in 1..STARTS {
            if started.is_ok() {
                break;
            }
            started = start(None);
        }
        self.server = started.unwrap_or_else(|said| panic!("it does not come back: {said} {:#?}", self.lines()));
    }

    /// Ends it as a service manager does, and waits for its end.
    pub async fn stop(&mut self) {
        self.server.signal("TERM");
        let ended = tokio::time::timeout(HANG, self.server.until_ended()).await.expect("an end after SIGTERM");
        assert!(ended.code() == Some(0) || self.killed_itself(), "{ended:?} {:#?}", self.lines());
    }

    /// Whether it died at the point where it was to.
    pub fn killed_itself(&self) -> bool {
        self.logged("action=Kill") > 0
    }

    /// Ends it without a word.
    pub async fn kill(&mut self) {
        self.server.signal("KILL");
        self.server.until_ended().await;
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Lines that the present process logged and that hold these words.
    pub fn logged(&self, words: &str) -> usize {
        self.lines().iter().skip(self.before).filter(|line| line.contains(words)).count()
    }

    /// All that was logged.
    pub fn lines(&self) -> Vec<String> {
        let log = std::fs::read(&self.log).expect("a log");
        String::from_utf8_lossy(&log).lines().map(str::to_owned).collect()
    }
}

fn spawn(
    part: Part,
    installation: &Installation,
    flags: &Vec<String>,
    log: &PathBuf,
    fault: Option<&str>,
) -> Result<Server, String> {
    let name = match part {
        Part::Api => "api",
        Part::Worker => "worker",
    };
    let mut command = installation.command(&[name, "--public-url", PUBLIC_URL]);
    command.args(["--submit-rate", "0", "--read-rate", "0", "--renders", "2"]);
    command.args(["--log", "warn,tintype::worker=debug", "--test-fault", fault.unwrap_or_default()]).args(flags);
    command.stderr(OpenOptions::new().create(true).append(true).open(log).expect("a log"));
    Server::attempt(command)
}

/// Waits until something is so.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}
