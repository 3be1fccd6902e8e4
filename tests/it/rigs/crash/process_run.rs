//! One process of the program, from its start to its end.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tintype_system::clock::Clock;
use tintype_system::fault::{Effect, Point};

use super::clients::Clients;
use super::{Tally, stale_worker};
use crate::rigs::binary::{SMALL, signal, tintype};

/// A short lease, so that heartbeats happen during a run.
pub const LEASE: Duration = Duration::from_millis(600);
/// The base of result URLs, the same for every run.
pub const PUBLIC_URL: &str = "http://images.test";
/// Time after which this test calls a wait a hang.
const HANG: Duration = Duration::from_secs(60);
/// Time to wait for a fault point that this run may not reach.
const POINT_PATIENCE: Duration = Duration::from_millis(1_200);

/// Effects before and after which a process is killed.
const EFFECTS: [Effect; 13] = [
    Effect::Commit,
    Effect::Submit,
    Effect::Claim,
    Effect::Renew,
    Effect::WriteFile,
    Effect::Complete,
    Effect::Fail,
    Effect::ClaimDelivery,
    Effect::EndDelivery,
    Effect::Retry,
    Effect::Reclaim,
    Effect::Expire,
    Effect::Checkpoint,
];

/// The way in which a process ends.
#[derive(Debug, Clone)]
pub enum Ending {
    /// SIGKILL at once.
    Kill,
    /// SIGKILL after some time.
    KillAfter(Duration),
    /// SIGKILL by itself at a named point.
    KillAt(String),
    /// SIGTERM after some time.
    Stop(Duration),
    /// SIGSTOP with files written and the task not completed; others take over; SIGCONT; then SIGKILL.
    StaleWorker,
}

/// Lines that a process wrote, each with its time.
type Log = Arc<Mutex<Vec<(Duration, String)>>>;

pub struct ProcessRun {
    pub data: PathBuf,
    child: Child,
    ending: Ending,
    started: Duration,
    clock: Clock,
    output: Log,
    log: Log,
}

impl ProcessRun {
    /// A process with a random ending.
    pub fn random(data: &Path, listen: SocketAddr, clock: &Clock) -> Self {
        let some_time = Duration::from_micros(rand::random_range(0..300_000));
        let ending = match rand::random_range(0..100) {
            // Short enough to hit the start as well.
            0..8 => Ending::KillAfter(some_time / 10),
            8..55 => Ending::KillAfter(some_time),
            55..85 => {
                let effect = EFFECTS[rand::random_range(0..EFFECTS.len())];
                let point = if rand::random() { Point::before(effect) } else { Point::after(effect) };
                Ending::KillAt(format!("{point}=kill@{}", rand::random_range(1..4)))
            }
            85..93 => Ending::StaleWorker,
            _ => Ending::Stop(some_time),
        };
        Self::start(data, listen, clock, ending)
    }

    /// A process that runs until it is told to end.
    pub fn calm(data: &Path, listen: SocketAddr, clock: &Clock) -> Self {
        Self::start(data, listen, clock, Ending::Kill)
    }

    fn start(data: &Path, listen: SocketAddr, clock: &Clock, ending: Ending) -> Self {
        let (listen, lease) = (listen.to_string(), format!("{}ms", LEASE.as_millis()));
        let mut command = tintype();
        command.args(["serve", "--listen", &listen, "--public-url", PUBLIC_URL, "--lease", &lease]);
        command.args(["--submit-rate", "0", "--read-rate", "0", "--max-unfinished", "40", "--drain-timeout", "300ms"]);
        command.args(["--max-failed-tasks", "0"]).args(SMALL);
        command.args(["--webhook-network", "127.0.0.0/8"]);
        command.args(["--log", "warn,tintype::worker=debug"]).arg("--data").arg(data);
        match &ending {
            Ending::KillAt(fault) => drop(command.args(["--test-fault", fault])),
            Ending::StaleWorker => {
                let turn = rand::random_range(1..4);
                command.args(["--test-fault", &format!("after-write-file=stop@{turn}")]);
            }
            _ => {}
        }
        let started = clock.elapsed();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let output = follow(child.stdout.take().expect("a pipe"), clock);
        let log = follow(child.stderr.take().expect("a pipe"), clock);
        Self { data: data.to_owned(), child, ending, started, clock: clock.clone(), output, log }
    }

    /// Its address once it listens; `None` if it dies before.
    pub fn address(&self) -> impl Future<Output = Option<SocketAddr>> + Send + 'static {
        let output = self.output.clone();
        async move {
            loop {
                let lines = output.lock().expect("no panic").clone();
                let text: String = lines.iter().map(|(_, line)| format!("{line}\n")).collect();
                if text.contains("\nReady.\n") {
                    let api = text.lines().find_map(|line| line.trim().strip_prefix("API")).expect("it says where");
                    return api.trim().split('/').nth(2).and_then(|host| host.parse().ok());
                }
                if lines.last().is_some_and(|(_, line)| line == END) {
                    return None;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Sends the callers to it, unless it will be stopped: no process can take over a database that a stopped writer
    /// has locked.
    pub fn meet(&self, clients: &Clients) {
        if !matches!(self.ending, Ending::StaleWorker) {
            clients.meet(self.address());
        }
    }

    pub async fn end(self, tally: &mut Tally, clients: &Clients) {
        let ending = self.ending.clone();
        match &ending {
            Ending::Kill | Ending::Stop(Duration::ZERO) => {}
            Ending::KillAfter(time) => tokio::time::sleep(*time).await,
            Ending::Stop(time) => {
                // Before it handles signals, SIGTERM would kill it.
                clients.met().await;
                tokio::time::sleep(*time).await;
            }
            Ending::KillAt(_) => {
                self.wait_until(POINT_PATIENCE, |run| run.state().is_none_or(|state| state == 'Z')).await
            }
            Ending::StaleWorker => {
                self.wait_until(POINT_PATIENCE, |run| run.state() == Some('T')).await;
                if self.state() == Some('T') {
                    stale_worker::resume(&self, tally).await;
                }
            }
        }
        self.finish(ending, tally).await;
    }

    pub async fn finish(mut self, ending: Ending, tally: &mut Tally) {
        match &ending {
            Ending::Stop(_) => {
                self.signal("TERM");
                self.wait_until(HANG, |run| run.state().is_none_or(|state| state == 'Z')).await;
                let status = self.child.wait().expect("a child");
                assert_eq!(status.code(), Some(0), "{:?}", self.log.lock());
                tally.stops += 1;
            }
            _ => {
                drop(self.child.kill());
                let status = self.child.wait().expect("a child");
                assert_eq!(status.code(), None, "it ended by itself: {status:?} {ending:?} {:?}", self.log.lock());
                self.wait_until(HANG, |run| run.logged(END).is_some()).await;
                match self.logged("action=Kill") {
                    Some(_) => tally.kills_at_points += 1,
                    None => tally.kills += 1,
                }
            }
        }
        tally.recoveries.extend(self.logged("claimed tasks").map(|at| at.saturating_sub(self.started)));
    }

    /// The time of the first log line with these words.
    pub fn logged(&self, words: &str) -> Option<Duration> {
        let log = self.log.lock().expect("no panic");
        log.iter().find(|(_, line)| line.contains(words)).map(|(at, _)| *at)
    }

    pub async fn wait_until(&self, patience: Duration, true_now: impl Fn(&Self) -> bool) {
        let deadline = self.clock.elapsed() + patience;
        while !true_now(self) && self.clock.elapsed() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// The state of the process in `/proc`; `None` when it is gone.
    fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }
}

const END: &str = "(end)";

/// Reads lines in a thread of its own, so that the program never blocks on a full pipe.
fn follow(pipe: impl Read + Send + 'static, clock: &Clock) -> Log {
    let (log, clock) = (Log::default(), clock.clone());
    let lines = log.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok).chain([END.to_owned()]) {
            lines.lock().expect("no panic").push((clock.elapsed(), line));
        }
    });
    log
}
