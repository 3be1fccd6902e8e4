//! Work while a reader keeps an old snapshot open, as a long report or a forgotten session does: vacuum removes no dead
//! tuple meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tintype_domain::model::{Account, Surface};
use tintype_rigs::postgres::Cluster;
use tintype_store::{Store, Submission};
use tokio_postgres::Client;

use crate::load::request;
use crate::{Options, Outcome, history, median, now, open};

/// Tasks that are submitted, claimed and completed together while dead tuples are made.
const TURN: usize = 64;
/// Time between two tasks while durations are measured: 100 tasks a second.
const PACE: Duration = Duration::from_millis(10);
/// Time for which durations are measured.
const MEASURED: Duration = Duration::from_secs(30);
/// Time before, in which the horizon of the queue moves past the tasks that were made in a hurry.
const SETTLING: Duration = Duration::from_secs(25);
const LEASE: Duration = Duration::from_secs(60);

/// The steps of a task, each with its durations in milliseconds.
#[derive(Default)]
struct Steps([(&'static str, Vec<f64>); 6]);

/// Makes as many dead tuples as ten minutes of 100 tasks a second leave under a snapshot, all of them of one account,
/// and prints how long each step of a task takes at that pace, without and with them, and the ratio.
pub async fn measure(cluster: &Cluster, options: &Options) -> Outcome<()> {
    let store = open(cluster).await?;
    let client = cluster.session().await;
    let account = history::fill(&client, &store, 1_000).await?.swap_remove(0);
    let mut without = paced(&store, &account, MEASURED).await?;
    let reader = cluster.session().await;
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    reader.query_one("SELECT count(*) FROM queue", &[]).await?;
    for _ in 0..options.snapshot_tasks.div_ceil(TURN) {
        turn(&store, &account).await?;
    }
    paced(&store, &account, SETTLING).await?;
    let mut with = paced(&store, &account, MEASURED).await?;
    println!(
        "{} dead tuples in the queue, {} in accounts",
        dead(&client, "queue").await?,
        dead(&client, "accounts").await?
    );
    println!("{:<14}{:>14}{:>14}{:>10}", "step", "no snapshot", "snapshot", "ratio");
    for ((step, without), (_, with)) in without.0.iter_mut().zip(&mut with.0) {
        let (without, with) = (median(without), median(with));
        println!("{step:<14}{without:>11.2} ms{with:>11.2} ms{:>10.2}", with / without);
    }
    reader.batch_execute("ROLLBACK").await?;
    let audit = store.audit().await?;
    if audit.drifts.is_empty() { Ok(()) } else { Err(format!("drift: {:?}", audit.drifts[0]).into()) }
}

/// One task at a time at [`PACE`], for `part`.
async fn paced(store: &Arc<Store>, account: &Account, part: Duration) -> Outcome<Steps> {
    let (begun, mut next, mut steps) = (now(), now(), Steps::default());
    while begun.elapsed() < part {
        let mut step = now();
        let mut done = 0;
        let mut note = |name| {
            let (as_named, durations) = &mut steps.0[done];
            *as_named = name;
            durations.push(step.elapsed().as_secs_f64() * 1_000.0);
            (step, done) = (now(), done + 1);
        };
        let Submission::Accepted(task) = store.submit(account.id, None, Surface::Api, request(), 100).await? else {
            return Err("a submit was refused".into());
        };
        note("submit");
        let claims = store.claim(1, LEASE).await?;
        note("claim");
        store.find_task(account.id, Surface::Api, task.id).await?;
        note("poll");
        for claim in &claims {
            store.complete(claim.lease, vec!["2026-11-21/a.png".into()]).await?;
        }
        note("complete");
        store.list_tasks(account.id, Surface::Api, None, 20).await?;
        note("list");
        store.grant(account.id, 2, None, None).await?;
        note("grant");
        next += PACE;
        tokio::time::sleep_until(next.into()).await;
    }
    Ok(steps)
}

/// [`TURN`] tasks at once.
async fn turn(store: &Arc<Store>, account: &Account) -> Outcome<()> {
    let submits = (0..TURN).map(|_| store.submit(account.id, None, Surface::Api, request(), 0));
    for submission in join_all(submits).await {
        if !matches!(submission?, Submission::Accepted(_)) {
            return Err("a submit was refused".into());
        }
    }
    let mut open = TURN;
    while open > 0 {
        let claims = store.claim(TURN, LEASE).await?;
        let ends = claims.iter().map(|claim| store.complete(claim.lease, vec!["2026-11-21/a.png".into()]));
        for end in join_all(ends).await {
            end?;
        }
        open -= claims.len();
    }
    Ok(())
}

async fn dead(client: &Client, table: &str) -> Outcome<i64> {
    // The server's statistics lag unless they are flushed.
    client.batch_execute("SELECT pg_stat_force_next_flush()").await?;
    let sql = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = $1";
    Ok(client.query_one(sql, &[&table]).await?.try_get(0)?)
}
