//! Polls, pages, submits and claims, each as fast as it goes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tintype_domain::model::{Account, Id, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_rigs::postgres::{Cluster, path};
use tintype_store::{Store, Submission};

use crate::{Figure, Options, Outcome, history, median, now, open};

const LEASE: Duration = Duration::from_secs(60);
/// Tasks that a worker claims at once.
const CLAIM: usize = 16;
/// The tables of pgbench's smallest possible submit.
const RAW_TABLES: &str = "
    CREATE TABLE raw_accounts (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
    INSERT INTO raw_accounts SELECT k, 1000000000 FROM generate_series(1, 100) AS k;
    CREATE TABLE raw_tasks (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account_id int NOT NULL,
        prompt text NOT NULL);";

/// The request of a submit.
pub fn request() -> GenerateRequest {
    GenerateRequest::new("A red fox in the snow at dawn")
}

/// All figures at one size.
pub async fn measure(cluster: &Cluster, tasks: u32, options: &Options) -> Outcome<Vec<Figure>> {
    let store = open(cluster).await?;
    let client = cluster.session().await;
    let accounts = history::fill(&client, &store, tasks).await?;
    client.batch_execute(RAW_TABLES).await?;
    let (mut raw_one, mut raw_many, mut one, mut many) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut polls, mut pages) = (Vec::new(), Vec::new());
    let (callers, window) = (options.callers, options.window());
    let waiting = waiting_tasks(&store, &accounts).await?;
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        raw_one.push(raw(cluster, "1", callers, window)?);
        one.push(rate(callers, window, |_| submit(store.clone(), accounts[0].id)).await?);
        raw_many.push(raw(cluster, "random(1, 100)", callers, window)?);
        let next = |turn: u64| submit(store.clone(), accounts[(turn % u64::from(history::ACCOUNTS)) as usize].id);
        many.push(rate(callers, window, next).await?);
        let last = |rates: &[f64]| rates.last().copied().unwrap_or(f64::NAN);
        eprintln!(
            "  submits beside pgbench: {:.0} and {:.0} (one account), {:.0} and {:.0} (100 accounts)",
            last(&one),
            last(&raw_one),
            last(&many),
            last(&raw_many)
        );
        work(&store).await?;
        let poll = |turn: u64| {
            let (store, (account, id)) = (store.clone(), waiting[(turn % waiting.len() as u64) as usize]);
            async move { Ok(store.find_task(account, Surface::Api, id).await?.map(|_| ()).ok_or("a task is gone")?) }
        };
        polls.push(rate(callers, window, poll).await?);
        let page = |turn: u64| {
            let (store, account) = (store.clone(), accounts[(turn % u64::from(history::ACCOUNTS)) as usize].id);
            async move { Ok(store.list_tasks(account, Surface::Api, None, 21).await.map(drop)?) }
        };
        pages.push(rate(callers, window, page).await?);
    }
    // Neighbouring windows saw the same load of the machine, so ratios are taken pair by pair.
    let in_turns =
        |rates: &[f64], raw: &[f64]| median(&mut rates.iter().zip(raw).map(|(a, b)| a / b).collect::<Vec<_>>());
    let (to_raw_one, to_raw_many) = (in_turns(&one, &raw_one), in_turns(&many, &raw_many));
    let mut figures = vec![
        ("polls of unfinished tasks".to_owned(), median(&mut polls), None),
        ("list pages of 20".to_owned(), median(&mut pages), None),
        ("pgbench, one account".to_owned(), median(&mut raw_one), None),
        ("submits, one account".to_owned(), median(&mut one), Some(to_raw_one)),
        ("pgbench, 100 accounts".to_owned(), median(&mut raw_many), None),
        ("submits, 100 accounts".to_owned(), median(&mut many), Some(to_raw_many)),
    ];
    for workers in [1, 4, 16] {
        let rate = claims(cluster, &store, &accounts, workers, options).await?;
        figures.push((format!("claim to complete, {workers} workers"), rate, None));
    }
    let audit = store.audit().await?;
    if audit.drifts.is_empty() { Ok(figures) } else { Err(format!("drift: {:?}", audit.drifts[0]).into()) }
}

fn raw(cluster: &Cluster, account: &str, clients: usize, window: Duration) -> Outcome<f64> {
    let script = format!(
        "\\set id {account}\nBEGIN;\nUPDATE raw_accounts SET balance = balance - 2 WHERE id = :id;\n\
         INSERT INTO raw_tasks (account_id, prompt) VALUES (:id, 'A red fox in the snow at dawn');\nCOMMIT;\n"
    );
    pgbench(cluster, &script, clients, window)
}

/// Runs pgbench with a script of its own; returns transactions a second.
fn pgbench(cluster: &Cluster, script: &str, clients: usize, window: Duration) -> Outcome<f64> {
    let file = cluster.directory.join("script.sql");
    std::fs::write(&file, script)?;
    std::fs::set_permissions(&file, Permissions::from_mode(0o644))?;
    let (clients, seconds) = (clients.to_string(), (window.as_secs_f64().ceil() as u64).max(1).to_string());
    let mut program = cluster.program("pgbench");
    program.args(["-n", "-M", "prepared", "-h", path(&cluster.directory), "-U", "tintype"]);
    let output = program.args(["-c", &clients, "-j", "2", "-T", &seconds, "-f", path(&file), "postgres"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("pgbench: {said} {}", String::from_utf8_lossy(&output.stderr)).into())
}

async fn submit(store: Arc<Store>, account: Id) -> Outcome<()> {
    match store.submit(account, None, Surface::Api, request(), 0).await? {
        Submission::Accepted(_) => Ok(()),
        refused => Err(format!("{refused:?}").into()),
    }
}

/// Tasks that nobody works on, to be polled.
async fn waiting_tasks(store: &Arc<Store>, accounts: &[Account]) -> Outcome<Vec<(Id, Id)>> {
    for account in accounts {
        submit(store.clone(), account.id).await?;
    }
    let mut tasks = Vec::new();
    for account in accounts {
        let page = store.list_task_ids(account.id, Surface::Api, None, 1).await?;
        tasks.extend(page.into_iter().map(|id| (account.id, id)));
    }
    // Held for long, so that nobody works them off.
    while !store.claim(CLAIM, LEASE * 1_000).await?.is_empty() {}
    Ok(tasks)
}

/// Operations a second of `callers` callers that repeat `operation`.
async fn rate<F>(callers: usize, window: Duration, operation: impl Fn(u64) -> F) -> Outcome<f64>
where
    F: Future<Output = Outcome<()>>,
{
    let (turn, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let begun = now();
    let caller = async || -> Outcome<u64> {
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            operation(turn.fetch_add(1, Ordering::Relaxed)).await?;
            done += 1;
        }
        Ok(done)
    };
    let timer = async {
        tokio::time::sleep(window).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (done, ()) = tokio::join!(join_all((0..callers).map(|_| caller())), timer);
    let done: u64 = done.into_iter().sum::<Outcome<u64>>()?;
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

/// Queues tasks for about as long as they are worked off in one window, then works them off with `workers` workers,
/// each a process's store of its own.
async fn claims(
    cluster: &Cluster,
    store: &Arc<Store>,
    accounts: &[Account],
    workers: usize,
    options: &Options,
) -> Outcome<f64> {
    let stores = join_all((0..workers).map(|_| open(cluster))).await.into_iter().collect::<Outcome<Vec<_>>>()?;
    let mut rates = Vec::new();
    for _ in 0..options.rounds {
        let next = |turn: u64| submit(store.clone(), accounts[(turn % u64::from(history::ACCOUNTS)) as usize].id);
        rate(options.callers, options.window(), next).await?;
        let begun = now();
        let done = join_all(stores.iter().map(work)).await.into_iter().sum::<Outcome<u64>>()?;
        rates.push(done as f64 / begun.elapsed().as_secs_f64());
    }
    Ok(median(&mut rates))
}

/// One worker: claims a few and completes them, until nothing is left.
async fn work(store: &Arc<Store>) -> Outcome<u64> {
    let mut done = 0;
    loop {
        let claims = store.claim(CLAIM, LEASE).await?;
        if claims.is_empty() {
            return Ok(done);
        }
        done += claims.len() as u64;
        let ends = claims.iter().map(|claim| store.complete(claim.lease, vec!["2026-11-21/a.png".into()]));
        for end in join_all(ends).await {
            end?;
        }
    }
}
