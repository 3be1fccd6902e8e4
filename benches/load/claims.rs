//! Throughput of a worker from claim to complete with a renderer that costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tempfile::TempDir;
use tintype::policy::Policy;
use tintype::service::ServiceContext;
use tintype::worker::Worker;
use tintype::worker::render::{RenderControl, RenderError, Renderer, Sources};
use tintype_config::ServerSettings;
use tintype_engine::picture::Picture;
use tintype_store::Claim;
use tokio_util::sync::CancellationToken;

use crate::fixture::{self, Caller};
use crate::generator::now;
use crate::{Outcome, median, service};

/// Render slots of the worker.
const RENDERS: usize = 64;
const ACCOUNTS: usize = 100;
/// Interval at which the benchmark checks whether the queue is empty.
const CHECK_EVERY: Duration = Duration::from_millis(2);
const SIDE: u32 = 32;

/// Tasks per second.
pub struct Rates {
    /// Completed by the worker, with files written and synced.
    pub worker: f64,
    /// Completed by the store alone, without files.
    pub store: f64,
}

/// Renders every task as the same small PNG.
struct FixedRenderer {
    png: Bytes,
    rendered: AtomicUsize,
}

#[async_trait]
impl Renderer for FixedRenderer {
    async fn render(&self, claim: &Claim, _: Sources, _: RenderControl) -> Result<Vec<Bytes>, RenderError> {
        self.rendered.fetch_add(1, Ordering::Relaxed);
        Ok(vec![self.png.clone(); claim.request.n.into()])
    }
}

/// Completes `count` tasks of many accounts, alternately with and without files, for `rounds` rounds.
pub async fn measure(directory: &TempDir, count: usize, rounds: usize) -> Outcome<Rates> {
    let data = directory.path().join("claims");
    std::fs::create_dir(&data)?;
    let settings = service::settings(&["--renders", &RENDERS.to_string()])?;
    let shared = service::shared(&data, &settings)?;
    let callers = fixture::callers(&shared.store, "claims", ACCOUNTS).await?;
    let (mut worker, mut store) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        eprintln!("claim to complete, round {round} of {rounds}");
        fixture::queue(&shared.store, &callers, count).await?;
        worker.push(count as f64 / run_worker(&settings, &shared, count).await?.as_secs_f64());
        store.push(complete(&shared, &callers, count).await?);
    }
    Ok(Rates { worker: median(&mut worker), store: median(&mut store) })
}

/// Runs a worker until the queue is empty; returns the elapsed time.
async fn run_worker(settings: &ServerSettings, shared: &Arc<ServiceContext>, count: usize) -> Outcome<Duration> {
    let picture = Picture::from_rgb(SIDE, SIDE, vec![128; (SIDE * SIDE * 3) as usize]).ok_or("a picture")?;
    let renderer = Arc::new(FixedRenderer { png: picture.to_png().into(), rendered: AtomicUsize::new(0) });
    let policy = Policy::open(None).await?;
    let worker = Worker::new(settings.worker.clone(), "bench", RENDERS, shared.clone(), policy, renderer.clone());
    let stop = CancellationToken::new();
    let started = now();
    let running = tokio::spawn(worker.run(stop.clone()));
    // Querying the store takes time from the worker, so the benchmark does it only for the last batch.
    while renderer.rendered.load(Ordering::Relaxed) < count {
        tokio::time::sleep(CHECK_EVERY).await;
    }
    loop {
        let depth = shared.store.queue_depth().await?;
        if depth.waiting + depth.leased == 0 {
            break;
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
    let took = started.elapsed();
    stop.cancel();
    running.await?;
    Ok(took)
}

/// Queues `count` tasks, then claims and completes them through the store alone; returns the rate.
async fn complete(shared: &ServiceContext, callers: &[Caller], count: usize) -> Outcome<f64> {
    fixture::queue(&shared.store, callers, count).await?;
    let started = now();
    let completed = fixture::complete_all(&shared.store, RENDERS).await?;
    Ok(completed as f64 / started.elapsed().as_secs_f64())
}
