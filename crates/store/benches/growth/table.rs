//! The table: each figure at each size, and what it would be at the sizes that this machine does not reach.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tintype_domain::model::Surface;
use tintype_domain::request::GenerateRequest;
use tintype_rigs::postgres::Cluster;
use tintype_store::{Claim, Store, Submission};

use crate::database::{self, Database};
use crate::{Outcome, directory, history, now};

/// The sizes of the table.
const SIZES: [u64; 3] = [1_000_000, 10_000_000, 100_000_000];
/// Calls that each of the short figures is the median of.
const CALLS: u64 = 200;
/// Tasks that wait while claims are measured once more.
const BACKLOG: u64 = 10_000;
const LEASE: Duration = Duration::from_secs(60);

/// How a figure goes on beyond what was measured.
#[derive(Debug, Clone, Copy)]
enum Growth {
    /// With the number of tasks.
    Linear,
    /// Not, or with its logarithm.
    Flat,
}

struct Figure {
    name: String,
    value: f64,
    growth: Growth,
}

/// Measures a database at each size, and prints the table.
pub async fn measure(cluster: Option<&'static Cluster>, sizes: &[u64]) -> Outcome<()> {
    let mut measured = Vec::new();
    for tasks in sizes {
        eprintln!("{tasks} tasks");
        let directory = directory()?;
        let database = Database { cluster, directory: directory.path() };
        measured.push((*tasks, figures(&database, *tasks).await?));
        database.remove();
    }
    print(if cluster.is_some() { "PostgreSQL" } else { "SQLite" }, &measured);
    Ok(())
}

async fn figures(database: &Database<'_>, tasks: u64) -> Outcome<Vec<Figure>> {
    database.create().await?;
    history::fill(database, tasks)?;
    let mut found = Vec::new();
    let mut note = |name: &str, value, growth| found.push(Figure { name: name.to_owned(), value, growth });
    note("Size, GB", database.bytes()? as f64 / 1e9, Growth::Linear);
    let begun = now();
    let store = database.open().await?;
    note("Migration from the first schema, s", begun.elapsed().as_secs_f64(), Growth::Linear);
    database.settle()?;
    let begun = now();
    let audit = store.audit().await?;
    note("Audit, s", begun.elapsed().as_secs_f64(), Growth::Linear);
    let begun = now();
    database.back_up()?;
    note("Backup, s", begun.elapsed().as_secs_f64(), Growth::Linear);
    found.extend(calls(database, &store, tasks).await?);
    match audit.drifts.first() {
        None => Ok(found),
        Some(drift) => Err(format!("the books of the benchmark do not balance: {drift:?}").into()),
    }
}

/// The short calls, one after the other: their medians, and on PostgreSQL the pages that each touches.
async fn calls(database: &Database<'_>, store: &Store, tasks: u64) -> Outcome<Vec<Figure>> {
    let mut found = Vec::new();
    // Spread over all, and the same in each run.
    let task_of = |turn: u64| turn * 7_919 * 104_729 % tasks;
    let account_of = |turn: u64| history::id(task_of(turn) % history::ACCOUNTS);
    let list = async |turn| {
        store.list_tasks(account_of(turn), Surface::Api, None, 21).await?;
        Ok(())
    };
    found.extend(call(database, "List 20 tasks", list).await?);
    let poll = async |turn| {
        let found = store.find_task(account_of(turn), Surface::Api, history::id(task_of(turn))).await?;
        found.map(drop).ok_or_else(|| "a task is gone".into())
    };
    found.extend(call(database, "Poll", poll).await?);
    let none = async |_| {
        store.claim(1, LEASE).await?;
        Ok(())
    };
    found.extend(call(database, "Claim while none waits", none).await?);
    found.extend(call(database, "Submit", async |turn| submit(store, turn).await).await?);
    let claims = std::cell::RefCell::new(Vec::<Claim>::new());
    let claim = async |_| {
        let found = store.claim(1, LEASE).await?;
        claims.borrow_mut().extend(found);
        Ok(())
    };
    found.extend(call(database, &format!("Claim, {CALLS} waiting"), claim).await?);
    let complete = async |_| {
        let claim = claims.borrow_mut().pop().ok_or("a claim found nothing")?;
        store.complete(claim.lease, vec!["2026-11-21/a.png".into()]).await.map(drop).map_err(Into::into)
    };
    found.extend(call(database, "Complete", complete).await?);
    for start in (0..BACKLOG).step_by(64) {
        for submitted in join_all((start..start + 64).map(|turn| submit(store, turn))).await {
            submitted?;
        }
    }
    found.extend(call(database, &format!("Claim, {BACKLOG} waiting"), claim).await?);
    Ok(found)
}

async fn submit(store: &Store, turn: u64) -> Outcome<()> {
    let (account, request) = (history::id(turn * 7_919 % history::ACCOUNTS), "A red fox in the snow at dawn");
    match store.submit(account, None, Surface::Api, GenerateRequest::new(request), 0).await? {
        Submission::Accepted(_) => Ok(()),
        refused => Err(format!("{refused:?}").into()),
    }
}

async fn call(database: &Database<'_>, name: &str, call: impl AsyncFn(u64) -> Outcome<()>) -> Outcome<Vec<Figure>> {
    let mut times = Vec::new();
    database::forget_pages(database.cluster);
    for turn in 0..CALLS {
        let begun: Instant = now();
        call(turn).await?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let mut found = vec![Figure { name: format!("{name}, ms"), value: times[times.len() / 2], growth: Growth::Flat }];
    if let Some(cluster) = database.cluster {
        let pages = database::pages(cluster) as f64 / CALLS as f64;
        found.push(Figure { name: format!("{name}, pages"), value: pages, growth: Growth::Flat });
    }
    Ok(found)
}

/// Marks what was not measured: a size is reached by the last two in a straight line, or a short call stays as it is.
fn print(name: &str, measured: &[(u64, Vec<Figure>)]) {
    let Some((last, of_last)) = measured.last() else { return };
    let beyond: Vec<u64> = SIZES.into_iter().filter(|size| size > last).collect();
    print!("\n| {name}, tasks |");
    measured.iter().for_each(|(tasks, _)| print!(" {tasks} |"));
    beyond.iter().for_each(|tasks| print!(" ≈ {tasks} |"));
    println!("\n|---|{}", "---|".repeat(measured.len() + beyond.len()));
    for (place, figure) in of_last.iter().enumerate() {
        print!("| {} |", figure.name);
        measured.iter().for_each(|(_, figures)| print!(" {} |", short(figures[place].value)));
        let slope = measured.iter().rev().nth(1).map_or(figure.value / *last as f64, |(tasks, figures)| {
            (figure.value - figures[place].value) / (last - tasks) as f64
        });
        for tasks in &beyond {
            let value = match figure.growth {
                Growth::Linear => figure.value + slope * (tasks - last) as f64,
                Growth::Flat => figure.value,
            };
            print!(" ≈ {} |", short(value));
        }
        println!();
    }
}

/// Three digits.
fn short(value: f64) -> String {
    let places = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.places$}")
}
