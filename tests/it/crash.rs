//! Kills the real program again and again while it is used, and checks every promise from outside.
//!
//! The suite runs it for a short while. The long run, which prints the table of `docs/evidence/reliability.md`:
//! `TINTYPE_KILLS=1000 cargo test --locked --test it crash -- --nocapture`

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tintype_system::clock::Clock;

use crate::rigs::crash::clients::{Clients, Manners, Recorded};
use crate::rigs::crash::editors::charged_twice;
use crate::rigs::crash::leftovers;
use crate::rigs::crash::process_run::{Ending, ProcessRun};
use crate::rigs::crash::verdict::Verdict;
use crate::rigs::crash::webhook_check::WebhookCheck;
use crate::rigs::crash::{ACCOUNTS, CREDITS, Tally, stale_worker, visitors, work_off};
use crate::rigs::installation::Installation;
use crate::rigs::ports;

/// Kills in the run that is part of the suite.
const SHORT_RUN: u32 = 20;
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_kill_loses_a_task_or_charges_it_twice() {
    #[expect(clippy::disallowed_methods, reason = "how long to run is a setting of this test")]
    let kills = std::env::var("TINTYPE_KILLS").map_or(SHORT_RUN, |kills| kills.parse().expect("a number of kills"));
    let data = TempDir::new().expect("a directory");
    let installation = Installation::on_sqlite(data.path());
    let keys = ACCOUNTS.map(|name| installation.account(name, CREDITS));
    let (clock, listen) = (Clock::system(), ports::of_own_address());
    let recorded = Arc::new(Recorded::default());
    let manners = Manners { rest: Duration::from_millis(5), patient: false };
    let visitors = visitors::sign_in(&installation).await;
    let told = WebhookCheck::start(&installation).await;
    let mut clients = Clients::start(&keys, manners, &recorded, &clock);
    clients.join(visitors, manners, &recorded);
    clients.join_editors(&keys, manners, &recorded);
    let mut tally = Tally::default();
    while tally.kills + tally.kills_at_points < kills {
        let run = ProcessRun::random(data.path(), listen, &clock);
        run.meet(&clients);
        run.end(&mut tally, &clients).await;
        if rand::random_ratio(1, 20) {
            let account = ACCOUNTS[rand::random_range(0..ACCOUNTS.len())];
            installation.json(&["credits", "grant", account, "100"]);
        }
    }
    clients.stop().await;
    let last = ProcessRun::calm(data.path(), listen, &clock);
    work_off(&installation, &clock).await;
    let address = last.address().await.expect("it listens");
    let mut verdict = Verdict::of(&installation, address, &keys, &recorded, &clock).await;
    verdict.untold = told.wrongs(&installation, &clock).await;
    last.finish(Ending::Kill, &mut tally).await;
    stale_worker::store_beside(data.path(), Clock::system()).check_integrity().expect("a whole database");
    assert!(verdict.of_studio > 0, "{verdict:?}");
    verdict.settle(&installation, &recorded).await.print_and_assert(&tally);
    assert_eq!(tally.stale_writes_attempted, tally.stale_writes_refused);
    let (twice, calls) = charged_twice(data.path());
    println!("calls of OpenAI's API            {calls}");
    assert!(twice.is_empty() && calls > 0, "charged twice: {twice:?}");
    let left = leftovers::after_all_sweeps(&installation).await;
    assert!(left.is_empty(), "files that nothing names: {left:?}");
}
