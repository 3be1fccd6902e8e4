//! Claims while somebody keeps an old snapshot open, as a long report or a forgotten session does: no row that dies
//! meanwhile can be vacuumed.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tintype::model::{Account, Surface};
use tintype::store::{Store, Submission};
use tokio_postgres::Client;

use crate::cluster::Cluster;
use crate::load::request;
use crate::{Options, Outcome, history, now, open};

/// Tasks of one turn: submitted together, claimed and completed together.
const TURN: usize = 64;
const LEASE: Duration = Duration::from_secs(60);

/// Prints the rate of tasks from submit to completed before, while and after a snapshot is kept.
pub async fn measure(cluster: &Cluster, options: &Options) -> Outcome<()> {
    let store = open(cluster).await?;
    let client = cluster.connect().await?;
    let accounts = history::fill(&client, &*store, 1_000).await?;
    let keeper = cluster.connect().await?;
    let part = Duration::from_secs_f64(options.snapshot_seconds / 6.0);
    println!("{:<22}{:>12}{:>20}", "snapshot", "tasks/s", "dead rows in queue");
    for phase in ["none", "none", "kept", "kept", "kept", "kept", "kept", "kept", "closed", "closed", "closed"] {
        match phase {
            "kept" => {
                // The first time it begins; later this is one more statement in it.
                keeper.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
                keeper.query_one("SELECT count(*) FROM queue", &[]).await?;
            }
            "closed" => keeper.batch_execute("ROLLBACK").await?,
            _ => {}
        }
        let rate = turns(&store, &accounts, part).await?;
        println!("{phase:<22}{rate:>12.0}{:>20}", dead_rows(&client).await?);
    }
    Ok(())
}

async fn turns(store: &Arc<dyn Store>, accounts: &[Account], part: Duration) -> Outcome<f64> {
    let begun = now();
    let mut done = 0_u64;
    while begun.elapsed() < part {
        let submits =
            (0..TURN).map(|turn| store.submit(accounts[turn % accounts.len()].id, None, Surface::Api, request(), 0));
        for submission in join_all(submits).await {
            if !matches!(submission?, Submission::Accepted(_)) {
                return Err("a submit was refused".into());
            }
        }
        // A look that costs much is not made at once again, so a claim may find nothing for a moment.
        let mut open = TURN;
        while open > 0 {
            let claims = store.claim(TURN, LEASE).await?;
            let ends = claims.iter().map(|claim| store.complete(claim.lease, vec!["2026-11-21/a.png".into()]));
            for end in join_all(ends).await {
                end?;
            }
            open -= claims.len();
            done += claims.len() as u64;
            if claims.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

async fn dead_rows(client: &Client) -> Outcome<i64> {
    // What the server's own statistics say lags; the truth is in the pages.
    client.batch_execute("SELECT pg_stat_force_next_flush()").await?;
    let row = client.query_one("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'queue'", &[]).await?;
    Ok(row.try_get(0)?)
}
