//! Work while somebody keeps an old snapshot open, as a long report or a forgotten session does: no row that dies
//! meanwhile can be vacuumed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tintype::domain::model::{Account, Surface};
use tintype::store::{Store, Submission};
use tokio_postgres::Client;

use crate::cluster::Cluster;
use crate::load::request;
use crate::{Options, Outcome, history, median, now, open};

/// Tasks of one turn: submitted together, claimed and completed together.
const TURN: usize = 64;
/// Longest part without a snapshot.
const BESIDE: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(60);

/// The durations of one part.
#[derive(Default)]
struct Turns {
    tasks: u64,
    /// In milliseconds: all submits of a turn, one claim that found something, all its completions.
    submits: Vec<f64>,
    claims: Vec<f64>,
    completions: Vec<f64>,
}

/// Prints the rate of tasks from submit to completed, and what its steps take in the middle, before, while and after a
/// snapshot is kept.
pub async fn measure(cluster: &Cluster, options: &Options) -> Outcome<()> {
    let store = open(cluster).await?;
    let client = cluster.connect().await?;
    let accounts = history::fill(&client, &*store, 1_000).await?;
    let keeper = cluster.connect().await?;
    let kept = Duration::from_secs_f64(options.snapshot_seconds / 6.0);
    let beside = kept.min(BESIDE);
    print!("{:<10}{:>10}{:>14}{:>12}{:>16}", "snapshot", "tasks/s", "64 submits", "one claim", "completions");
    println!("{:>26}", "dead in queue, accounts");
    for phase in ["none", "none", "kept", "kept", "kept", "kept", "kept", "kept", "closed", "closed", "closed"] {
        let part = if phase == "kept" { kept } else { beside };
        match phase {
            "kept" => {
                // The first time it begins; later this is one more statement in it.
                keeper.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
                keeper.query_one("SELECT count(*) FROM queue", &[]).await?;
            }
            "closed" => keeper.batch_execute("ROLLBACK").await?,
            _ => {}
        }
        let begun = now();
        let Turns { tasks, mut submits, mut claims, mut completions } = turns(&store, &accounts, part).await?;
        let rate = tasks as f64 / begun.elapsed().as_secs_f64();
        let (submits, claims, completions) = (median(&mut submits), median(&mut claims), median(&mut completions));
        print!("{phase:<10}{rate:>10.0}{submits:>11.1} ms{claims:>9.1} ms{completions:>13.1} ms");
        println!("{:>14}{:>12}", dead_rows(&client, "queue").await?, dead_rows(&client, "accounts").await?);
    }
    let audit = store.audit().await?;
    if audit.drifts.is_empty() { Ok(()) } else { Err(format!("drift: {:?}", audit.drifts[0]).into()) }
}

async fn turns(store: &Arc<dyn Store>, accounts: &[Account], part: Duration) -> Outcome<Turns> {
    let begun = now();
    let millis = |begun: Instant| begun.elapsed().as_secs_f64() * 1_000.0;
    let mut all = Turns::default();
    while begun.elapsed() < part {
        let submitting = now();
        let submits =
            (0..TURN).map(|turn| store.submit(accounts[turn % accounts.len()].id, None, Surface::Api, request(), 0));
        for submission in join_all(submits).await {
            if !matches!(submission?, Submission::Accepted(_)) {
                return Err("a submit was refused".into());
            }
        }
        all.submits.push(millis(submitting));
        // A look that costs much is not made at once again, so a claim may find nothing for a moment.
        let mut open = TURN;
        while open > 0 {
            let claiming = now();
            let claims = store.claim(TURN, LEASE).await?;
            if claims.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            all.claims.push(millis(claiming));
            let completing = now();
            let ends = claims.iter().map(|claim| store.complete(claim.lease, vec!["2026-11-21/a.png".into()]));
            for end in join_all(ends).await {
                end?;
            }
            all.completions.push(millis(completing));
            open -= claims.len();
            all.tasks += claims.len() as u64;
        }
    }
    Ok(all)
}

async fn dead_rows(client: &Client, table: &str) -> Outcome<i64> {
    // The server's statistics lag unless they are flushed.
    client.batch_execute("SELECT pg_stat_force_next_flush()").await?;
    let sql = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = $1";
    Ok(client.query_one(sql, &[&table]).await?.try_get(0)?)
}
