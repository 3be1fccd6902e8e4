//! The crash harness for a cluster: its processes, network, database and bucket.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, IteratorRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use tintype_system::clock::Clock;
use tintype_system::fault::{Effect, Point};

use crate::rigs::cluster::Site;
use crate::rigs::cluster::node::{Node, Part};
use crate::rigs::cluster::relay::{Passage, Relay};
use crate::rigs::crash::clients::{Clients, Manners, Recorded};
use crate::rigs::crash::verdict::Verdict;
use crate::rigs::crash::{ACCOUNTS, CREDITS, work_off};
use crate::rigs::postgres::Shutdown;
use crate::rigs::wait::until;

const NODES_OF_EACH_PART: usize = 2;
/// A short lease, so that some troubles outlast it.
const LEASE: Duration = Duration::from_secs(2);
/// Limit of connections terminated at once.
const MOST_TERMINATED: u32 = 8;

/// Effects before and after which APIs and workers are killed.
const API_EFFECTS: [Effect; 2] = [Effect::Commit, Effect::Submit];
const WORKER_EFFECTS: [Effect; 6] =
    [Effect::Claim, Effect::Renew, Effect::WriteFile, Effect::Complete, Effect::Fail, Effect::Retry];

#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// SIGKILL at once, and another process.
    Kill(Part),
    /// SIGKILL at a named point.
    KillAtPoint(Part),
    /// SIGTERM, and another process.
    Stop(Part),
    /// SIGSTOP and, a while later, SIGCONT.
    Freeze(Part),
    /// SIGSTOP with a file written and its task not completed; SIGCONT when others have taken over.
    StaleWorker,
    /// The relay of a process passes only this for a while.
    Network(Part, Passage),
    /// The server terminates some connections.
    Terminate,
    Restart(Shutdown),
    /// The bucket cannot be reached.
    BucketAway,
}

use Part::{Api, Worker};
use Trouble::{BucketAway, Freeze, Kill, KillAtPoint, Network, Restart, StaleWorker, Stop, Terminate};

/// One round: each trouble once. The suite runs one round.
const TROUBLES: [Trouble; 21] = [
    Kill(Api),
    Kill(Worker),
    KillAtPoint(Api),
    KillAtPoint(Worker),
    Stop(Api),
    Stop(Worker),
    Freeze(Api),
    Freeze(Worker),
    StaleWorker,
    Network(Api, Passage::Held),
    Network(Api, Passage::Deaf),
    Network(Api, Passage::Late),
    Network(Api, Passage::Closed),
    Network(Worker, Passage::Held),
    Network(Worker, Passage::Deaf),
    Network(Worker, Passage::Late),
    Network(Worker, Passage::Closed),
    Terminate,
    Restart(Shutdown::Fast),
    Restart(Shutdown::Immediate),
    BucketAway,
];

#[derive(Debug, Default)]
struct Tally {
    kills: u32,
    kills_at_points: u32,
    stops: u32,
    freezes: u32,
    stale_workers: u32,
    stale_writes_refused: u32,
    cuts: u32,
    terminated: i64,
    fast_restarts: u32,
    immediate_restarts: u32,
    bucket_outages: u32,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_failure_of_a_cluster_loses_a_task_or_charges_it_twice() {
    #[expect(clippy::disallowed_methods, reason = "what to do and how long is a setting of this test")]
    let number = |name| std::env::var(name).ok().map(|number: String| number.parse::<u64>().expect("a number"));
    let troubles = number("TINTYPE_TROUBLES").unwrap_or(TROUBLES.len() as u64);
    #[expect(clippy::disallowed_methods, reason = "which troubles is a setting of this test")]
    let only = std::env::var("TINTYPE_ONLY").unwrap_or_default();
    let seed = number("TINTYPE_SEED").unwrap_or_else(rand::random);
    println!("TINTYPE_SEED={seed}");
    let mut crew = Crew::start(StdRng::seed_from_u64(seed)).await;
    let keys = ACCOUNTS.map(|name| crew.site.installation.account(name, CREDITS));
    let (clock, recorded) = (Clock::system(), Arc::new(Recorded::default()));
    let manners = Manners { rest: Duration::from_millis(150), patient: true };
    let clients = Clients::start(&keys, manners, &recorded, &clock);
    let mut round = Vec::new();
    for _ in 0..troubles {
        crew.tend(&clients).await;
        if round.is_empty() {
            round = TROUBLES.into_iter().filter(|trouble| format!("{trouble:?}").starts_with(&only)).collect();
            round.shuffle(&mut crew.dice);
        }
        crew.pause(0..600).await;
        let trouble = round.pop().expect("a round");
        println!("{:>8} ms  {trouble:?}", clock.elapsed().as_millis());
        crew.make(trouble, &clients).await;
        if crew.dice.random_ratio(1, 4) {
            let account = ACCOUNTS.choose(&mut crew.dice).expect("accounts");
            crew.site.installation.json(&["credits", "grant", account, "100"]);
        }
    }
    clients.stop().await;
    crew.tend_quietly().await;
    crew.disarm().await;
    work_off(&crew.site.installation, &clock).await;
    let server = crew.nodes[0].address();
    let verdict = Verdict::of(&crew.site.installation, server, &keys, &recorded, &clock).await;
    for node in &mut crew.nodes {
        node.stop().await;
    }
    verdict.settle(&crew.site.installation, &recorded).await.print_and_assert(&crew.tally);
    assert_eq!(crew.tally.stale_workers, crew.tally.stale_writes_refused);
}

/// The processes, their relays, and the installation.
struct Crew {
    site: Site,
    /// APIs, then workers. The first of each reaches the database through the relay of its part.
    nodes: Vec<Node>,
    relays: [Relay; 2],
    dice: StdRng,
    tally: Tally,
}

impl Crew {
    async fn start(dice: StdRng) -> Self {
        let site = Site::new().await;
        let relays = [Relay::to(&site.postgres.directory), Relay::to(&site.postgres.directory)];
        let lease = format!("{}ms", LEASE.as_millis());
        let flags = ["--max-unfinished", "40", "--drain-timeout", "300ms", "--lease", &lease];
        let mut nodes = Vec::new();
        for (part, relay) in [Api, Worker].into_iter().zip(&relays) {
            let relayed = site.by_way_of(relay.directory.path());
            nodes.push(Node::start(part, 0, &relayed, &flags));
            nodes.extend((1..NODES_OF_EACH_PART).map(|number| site.start(part, number, &flags)));
        }
        Self { site, nodes, relays, dice, tally: Tally::default() }
    }

    /// Replaces dead processes, and tells callers the new addresses.
    async fn tend(&mut self, clients: &Clients) {
        self.tend_quietly().await;
        clients.turn_to(self.nodes.iter().filter(|node| node.part == Api).map(Node::address).collect());
    }

    async fn tend_quietly(&mut self) {
        for node in &mut self.nodes {
            if let Some(status) = node.server.ended() {
                assert!(node.killed_itself(), "it ended by itself: {status:?} {:#?}", node.lines());
                self.tally.kills_at_points += 1;
                node.restart(None);
            }
        }
    }

    /// Replaces processes that still have a fault ahead, because no later step would replace them.
    async fn disarm(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.armed) {
            node.stop().await;
            self.tally.kills_at_points += u32::from(node.killed_itself());
            self.tally.stops += u32::from(!node.killed_itself());
            node.restart(None);
        }
    }

    async fn pause(&mut self, millis: std::ops::Range<u64>) {
        tokio::time::sleep(Duration::from_millis(self.dice.random_range(millis))).await;
    }

    fn one(&mut self, part: Part) -> usize {
        let first = if part == Api { 0 } else { NODES_OF_EACH_PART };
        first + self.dice.random_range(0..NODES_OF_EACH_PART)
    }

    async fn make(&mut self, trouble: Trouble, clients: &Clients) {
        let lease = LEASE.as_millis() as u64;
        match trouble {
            Kill(part) => {
                let one = self.one(part);
                self.nodes[one].kill().await;
                self.tally.kills += 1;
                self.nodes[one].restart(None);
            }
            KillAtPoint(part) => {
                let one = self.one(part);
                let effects = if part == Api { &API_EFFECTS[..] } else { &WORKER_EFFECTS };
                let points = effects.iter().flat_map(|effect| [Point::before(*effect), Point::after(*effect)]);
                let point = points.chain([Point::after(Effect::Reclaim)]).choose(&mut self.dice).expect("points");
                // The fault may hit during the start.
                let turn = self.dice.random_range(2..5);
                self.nodes[one].stop().await;
                self.tally.stops += 1;
                self.nodes[one].restart(Some(&format!("{point}=kill@{turn}")));
            }
            Stop(part) => {
                let one = self.one(part);
                self.nodes[one].stop().await;
                self.tally.stops += 1;
                self.nodes[one].restart(None);
            }
            Freeze(part) => {
                let one = self.one(part);
                self.nodes[one].server.signal("STOP");
                self.pause(lease / 2..lease * 2).await;
                self.nodes[one].server.signal("CONT");
                self.tally.freezes += 1;
            }
            StaleWorker => self.resume_stale(clients).await,
            Network(part, passage) => {
                let relay = usize::from(part == Worker);
                self.relays[relay].set(passage);
                self.pause(lease / 2..lease * 5 / 2).await;
                self.relays[relay].set(Passage::Open);
                self.tally.cuts += 1;
            }
            Terminate => {
                let most = self.dice.random_range(1..=MOST_TERMINATED);
                self.tally.terminated += self.site.postgres.terminate(most);
            }
            Restart(how) => {
                self.site.postgres.restart(how);
                match how {
                    Shutdown::Fast => self.tally.fast_restarts += 1,
                    Shutdown::Immediate => self.tally.immediate_restarts += 1,
                }
            }
            BucketAway => {
                self.site.s3.stop().await;
                self.pause(500..3_000).await;
                self.site.s3.come_back().await;
                self.tally.bucket_outages += 1;
            }
        }
    }

    /// Stops a worker with a file written and its task not completed, and resumes it when another worker owns that
    /// task.
    async fn resume_stale(&mut self, clients: &Clients) {
        for name in ACCOUNTS {
            self.site.installation.json(&["credits", "grant", name, "100"]);
        }
        let one = self.one(Worker);
        let turn = self.dice.random_range(1..4);
        self.nodes[one].stop().await;
        self.tally.stops += 1;
        self.nodes[one].restart(Some(&format!("after-write-file=stop@{turn}")));
        self.tend(clients).await;
        until(async || self.nodes[one].server.is_stopped()).await;
        let held = self.site.leases();
        until(async || self.site.leases().is_disjoint(&held)).await;
        // If the first try to complete the task finds a closed connection, it may have been answered there.
        let refused = |node: &Node| node.logged("lease lost") + node.logged("its lease was already lost");
        let before = refused(&self.nodes[one]);
        self.nodes[one].server.signal("CONT");
        self.tally.stale_workers += 1;
        until(async || refused(&self.nodes[one]) > before).await;
        self.tally.stale_writes_refused += 1;
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "SIGKILL at random moments        {}", self.kills)?;
        writeln!(f, "SIGKILL at named points          {}", self.kills_at_points)?;
        writeln!(f, "SIGTERM under load               {}", self.stops)?;
        writeln!(f, "stopped for a while, resumed     {}", self.freezes)?;
        writeln!(f, "stopped past the lease, resumed  {}", self.stale_workers)?;
        writeln!(f, "stale writes refused             {}", self.stale_writes_refused)?;
        writeln!(f, "cut off, held up, deaf or late   {}", self.cuts)?;
        writeln!(f, "connections terminated           {}", self.terminated)?;
        writeln!(f, "PostgreSQL restarted, fast       {}", self.fast_restarts)?;
        writeln!(f, "PostgreSQL restarted, immediate  {}", self.immediate_restarts)?;
        write!(f, "bucket away                      {}", self.bucket_outages)
    }
}
