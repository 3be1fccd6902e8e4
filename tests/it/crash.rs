//! Kills the real program again and again while it is used, and checks every promise from outside.
//!
//! The suite runs it for a short while. The long run, which prints the table of `docs/reliability.md`:
//! `TINTYPE_KILLS=1000 cargo test --locked --test it crash -- --nocapture`

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tintype::clock::Clock;

use self::clients::{Clients, Recorded};
use self::life::{Ending, Life};
use self::verdict::Verdict;
use crate::binary;

mod clients;
mod life;
mod verdict;
mod zombie;

/// Kills in the run that is part of the suite.
const SHORT_RUN: u32 = 20;
/// Credits of each account: enough for a while, so that some submits are refused.
const CREDITS: &str = "400";
const ACCOUNTS: [&str; 3] = ["ada", "bob", "cyd"];
/// Longest wait for what is left at the end to be worked off.
const PATIENCE: Duration = Duration::from_secs(120);

/// What happened to the processes.
#[derive(Debug, Default)]
struct Tally {
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
    let keys = ACCOUNTS.map(|name| {
        binary::json(data.path(), &["account", "create", name, "--credits", CREDITS]);
        let key = binary::json(data.path(), &["key", "create", "--account", name]);
        key["key"].as_str().expect("a key").to_owned()
    });
    let clock = Clock::system();
    let recorded = Arc::new(Recorded::default());
    let clients = Clients::start(&keys, &recorded, &clock);
    let mut tally = Tally::default();
    while tally.kills + tally.kills_at_points < kills {
        let life = Life::random(data.path(), &clock);
        life.meet(&clients);
        life.end(&mut tally, &clients).await;
        if rand::random_ratio(1, 20) {
            let account = ACCOUNTS[rand::random_range(0..ACCOUNTS.len())];
            binary::json(data.path(), &["credits", "grant", account, "100"]);
        }
    }
    clients.stop().await;
    let last = Life::calm(data.path(), &clock);
    last.work_off(PATIENCE).await;
    let verdict = Verdict::of(&last, &keys, &ACCOUNTS, &recorded, &clock).await;
    last.finish(Ending::Kill, &mut tally).await;
    verdict.settle(data.path(), &recorded).await.print_and_assert(&tally);
}
