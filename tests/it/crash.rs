//! Kills the real program again and again while it is used, and checks every promise from outside.
//!
//! The suite runs it for a short while. The long run, which prints the table of `docs/reliability.md`:
//! `TINTYPE_KILLS=1000 cargo test --locked --test it crash -- --nocapture`

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tintype::clock::Clock;

use self::clients::{Clients, Manners, Recorded};
use self::life::{Ending, Life};
use self::verdict::Verdict;
use crate::installation::Installation;
use crate::ports;

pub mod clients;
pub mod life;
pub mod verdict;
mod zombie;

/// Kills in the run that is part of the suite.
const SHORT_RUN: u32 = 20;
/// Credits of each account: enough for a while, so that some submits are refused.
pub const CREDITS: &str = "400";
pub const ACCOUNTS: [&str; 3] = ["ada", "bob", "cyd"];
/// Longest wait for what is left at the end to be worked off.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What happened to the processes.
#[derive(Debug, Default)]
pub struct Tally {
    /// SIGKILL from outside, at a random moment.
    kills: u32,
    /// SIGKILL at a named point.
    kills_at_points: u32,
    /// SIGTERM under load.
    stops: u32,
    /// Stopped past its lease, and let go on.
    zombies: u32,
    /// Times from the start of a process to its first claim.
    recoveries: Vec<Duration>,
    zombie_writes_attempted: u32,
    zombie_writes_refused: u32,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_kills_it_nothing_is_lost_or_charged_twice() {
    #[expect(clippy::disallowed_methods, reason = "how long to run is a setting of this test")]
    let kills = std::env::var("TINTYPE_KILLS").map_or(SHORT_RUN, |kills| kills.parse().expect("a number of kills"));
    let data = TempDir::new().expect("a directory");
    let installation = Installation::on_sqlite(data.path());
    let keys = ACCOUNTS.map(|name| installation.account(name, CREDITS));
    let (clock, listen) = (Clock::system(), ports::of_own_address());
    let recorded = Arc::new(Recorded::default());
    let manners = Manners { rest: Duration::from_millis(5), patient: false };
    let clients = Clients::start(&keys, manners, &recorded, &clock);
    let mut tally = Tally::default();
    while tally.kills + tally.kills_at_points < kills {
        let life = Life::random(data.path(), listen, &clock);
        life.meet(&clients);
        life.end(&mut tally, &clients).await;
        if rand::random_ratio(1, 20) {
            let account = ACCOUNTS[rand::random_range(0..ACCOUNTS.len())];
            installation.json(&["credits", "grant", account, "100"]);
        }
    }
    clients.stop().await;
    let last = Life::calm(data.path(), listen, &clock);
    work_off(&installation, &clock).await;
    let address = last.address().await.expect("it listens");
    let verdict = Verdict::of(&installation, address, &keys, &recorded, &clock).await;
    last.finish(Ending::Kill, &mut tally).await;
    zombie::store_beside(data.path(), Clock::system()).check_integrity().expect("a whole database");
    verdict.settle(&installation, &recorded).await.print_and_assert(&tally);
    assert_eq!(tally.zombie_writes_attempted, tally.zombie_writes_refused);
}

/// Waits until nothing is unfinished.
pub async fn work_off(installation: &Installation, clock: &Clock) {
    let store = installation.store(Clock::system()).await;
    let deadline = clock.elapsed() + PATIENCE;
    loop {
        let depth = store.queue_depth().await.expect("a store");
        if depth.waiting + depth.leased == 0 || clock.elapsed() > deadline {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut recoveries = self.recoveries.clone();
        recoveries.sort();
        let at =
            |share: usize| recoveries.get((recoveries.len().max(1) - 1) * share / 100).copied().unwrap_or_default();
        writeln!(f, "SIGKILL at random moments        {}", self.kills)?;
        writeln!(f, "SIGKILL at named points          {}", self.kills_at_points)?;
        writeln!(f, "SIGTERM under load               {}", self.stops)?;
        writeln!(f, "stopped past the lease, resumed  {}", self.zombies)?;
        writeln!(f, "zombie writes attempted          {}", self.zombie_writes_attempted)?;
        writeln!(f, "zombie writes refused            {}", self.zombie_writes_refused)?;
        write!(f, "from restart to first claim      median {:?}, 99% {:?}, longest {:?}", at(50), at(99), at(100))
    }
}
