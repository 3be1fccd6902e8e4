//! One process of a cluster: `tintype api` or `tintype worker`.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::rigs::binary::{Server, small_sketches};
use crate::rigs::crash::process_run::PUBLIC_URL;
use crate::rigs::installation::Installation;

/// Time after which these tests call a wait a hang.
pub const HANG: Duration = Duration::from_secs(60);
/// Limit of failed starts in a row, for example while the database is down.
const STARTS: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Api,
    Worker,
}

pub struct Node {
    pub part: Part,
    pub server: Server,
    installation: Installation,
    flags: Vec<String>,
    log: PathBuf,
    /// Log lines of earlier processes.
    before: usize,
    /// Whether it was started with a fault.
    pub armed: bool,
}

impl Node {
    /// Starts it with these flags in addition to those that all these tests need.
    pub fn start(part: Part, number: usize, installation: &Installation, flags: &[&str]) -> Self {
        Self::start_with_fault(part, number, installation, flags, None)
    }

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

    /// Starts another process after the last one ended, as systemd does, perhaps with a fault.
    pub fn restart(&mut self, fault: Option<&str>) {
        self.before = self.lines().len();
        let start = |fault| spawn(self.part, &self.installation, &self.flags, &self.log, fault);
        // The fault may end the process during its start.
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

    /// Sends SIGTERM and waits for its end.
    pub async fn stop(&mut self) {
        self.server.signal("TERM");
        let ended = self.server.until_ended().await;
        assert!(ended.code() == Some(0) || self.killed_itself(), "{ended:?} {:#?}", self.lines());
    }

    /// Whether it died at its fault point.
    pub fn killed_itself(&self) -> bool {
        self.logged("action=Kill") > 0
    }

    pub async fn kill(&mut self) {
        self.server.signal("KILL");
        self.server.until_ended().await;
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Log lines of the current process that contain these words.
    pub fn logged(&self, words: &str) -> usize {
        self.lines().iter().skip(self.before).filter(|line| line.contains(words)).count()
    }

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
    command.args(["--submit-rate", "0", "--read-rate", "0", "--renders", "2", "--max-failed-tasks", "0"]);
    command.args(["--log", "warn,tintype::worker=debug", "--test-fault", fault.unwrap_or_default()]).args(flags);
    command.stderr(OpenOptions::new().create(true).append(true).open(log).expect("a log"));
    Server::attempt(small_sketches(command, &installation.data))
}
