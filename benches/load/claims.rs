//! How fast a worker takes tasks from the queue to completed when drawing costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tempfile::TempDir;
use tintype::service::app::App;
use tintype::store::Claim;
use tintype::worker::Worker;
use tintype::worker::render::{RenderError, Renderer};
use tintype_engine::picture::Picture;
use tokio_util::sync::CancellationToken;

use crate::fixture::{self, Caller};
use crate::generator::now;
use crate::{Outcome, median, service};

/// Tasks worked on at once.
const RENDERS: usize = 64;
const ACCOUNTS: usize = 100;
/// How often to look whether the queue is empty.
const LOOK_EVERY: Duration = Duration::from_millis(2);
const SIDE: u32 = 32;

/// Tasks a second.
pub struct Rates {
    /// By the worker, with files written and synced.
    pub worker: f64,
    /// By the store alone, without files.
    pub store: f64,
}

/// Draws every task as the same small PNG.
struct Instantly {
    png: Bytes,
    drawn: AtomicUsize,
}

#[async_trait]
impl Renderer for Instantly {
    async fn render(&self, claim: &Claim, _: Duration) -> Result<Vec<Bytes>, RenderError> {
        self.drawn.fetch_add(1, Ordering::Relaxed);
        Ok(vec![self.png.clone(); claim.request.n.into()])
    }
}

/// Works off `count` tasks of many accounts, `rounds` times with files and without, in turns.
pub async fn measure(directory: &TempDir, count: usize, rounds: usize) -> Outcome<Rates> {
    let data = directory.path().join("claims");
    std::fs::create_dir(&data)?;
    let app = service::app(&data, "http://127.0.0.1", RENDERS).await?;
    let callers = fixture::callers(&*app.store, "claims", ACCOUNTS).await?;
    let (mut worker, mut store) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        eprintln!("claim to complete, round {round} of {rounds}");
        fixture::queue(&*app.store, &callers, count).await?;
        worker.push(count as f64 / work(&app, count).await?.as_secs_f64());
        store.push(complete(&app, &callers, count).await?);
    }
    Ok(Rates { worker: median(&mut worker), store: median(&mut store) })
}

/// Lets a worker empty the queue; returns how long that took.
async fn work(app: &Arc<App>, count: usize) -> Outcome<Duration> {
    let picture = Picture::from_rgb(SIDE, SIDE, vec![128; (SIDE * SIDE * 3) as usize]).ok_or("a picture")?;
    let renderer = Arc::new(Instantly { png: picture.to_png().into(), drawn: AtomicUsize::new(0) });
    let worker = Worker::new(app.clone(), renderer.clone());
    let stop = CancellationToken::new();
    let started = now();
    let running = tokio::spawn(worker.run(stop.clone()));
    // Only the last batch is waited for by asking the store, which takes time from the worker.
    while renderer.drawn.load(Ordering::Relaxed) < count {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    loop {
        let depth = app.store.queue_depth().await?;
        if depth.waiting + depth.leased == 0 {
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let took = started.elapsed();
    stop.cancel();
    running.await?;
    Ok(took)
}

/// Claims and completes as many tasks by the store alone; returns the rate.
async fn complete(app: &Arc<App>, callers: &[Caller], count: usize) -> Outcome<f64> {
    fixture::queue(&*app.store, callers, count).await?;
    let started = now();
    let completed = fixture::complete_all(&*app.store, RENDERS).await?;
    Ok(completed as f64 / started.elapsed().as_secs_f64())
}
