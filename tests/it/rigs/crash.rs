//! The crash harness: processes that are killed at chosen moments, callers that record their answers, and the final
//! check of every promise.

use std::fmt::{self, Display};
use std::time::Duration;

use tintype_system::clock::Clock;

use super::installation::Installation;

pub mod clients;
pub mod editors;
pub mod leftovers;
pub mod process_run;
pub mod stale_worker;
pub mod verdict;
pub mod visitors;
pub mod webhook_check;

/// Credits of each account: few enough that some submits are refused.
pub const CREDITS: &str = "400";
pub const ACCOUNTS: [&str; 3] = ["ada", "bob", "cyd"];
/// Time limit for the last tasks to end.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Counts of what happened to the processes.
#[derive(Debug, Default)]
pub struct Tally {
    /// SIGKILL from outside, at a random moment.
    pub kills: u32,
    pub kills_at_points: u32,
    /// SIGTERM under load.
    pub stops: u32,
    /// Stopped until its lease expired, then resumed.
    pub stale_workers: u32,
    /// Times from the start of a process to its first claim.
    pub recoveries: Vec<Duration>,
    pub stale_writes_attempted: u32,
    pub stale_writes_refused: u32,
}

/// Waits until no task is unfinished.
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
        writeln!(f, "stopped past the lease, resumed  {}", self.stale_workers)?;
        writeln!(f, "stale writes attempted           {}", self.stale_writes_attempted)?;
        writeln!(f, "stale writes refused             {}", self.stale_writes_refused)?;
        write!(f, "from restart to first claim      median {:?}, 99% {:?}, longest {:?}", at(50), at(99), at(100))
    }
}
