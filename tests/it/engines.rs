//! Engines other than the built-in one: what they cannot do, when they are not available, and how they are cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tintype::worker::Worker;
use tintype_config::{LEASE, PROGRESS_EVERY};
use tintype_domain::model::{FailureCause, TaskId};
use tintype_engine::{Brief, CancellationToken, Engine, EngineError, EngineInfo, Picture, Progress, Sizes, Stage};
use tokio::sync::Notify;

use crate::rigs::service::{Caller, Service};
use crate::rigs::staged::Staged;
use crate::rigs::wait::{Background, until};

mod comfyui;
mod command;
mod diffusion;
mod openai;
mod openai_faults;
mod openai_quirks;
mod same_image;
pub mod servers;
mod several;

/// A third of a lease of five minutes is more.
const BEFORE_A_HEARTBEAT: Duration = Duration::from_secs(90);

#[derive(Debug, Default)]
struct TestEngine {
    is_down: AtomicBool,
    hangs: bool,
    /// Whether a render that hangs goes on after it was cancelled.
    ignores_cancellation: bool,
    /// Renders that were asked for, and those that began.
    asked: AtomicUsize,
    briefs: AtomicUsize,
    began: Notify,
    cancelled: AtomicBool,
}

#[async_trait]
impl Engine for TestEngine {
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.probe().await?;
        self.briefs.fetch_add(1, Ordering::SeqCst);
        self.began.notify_one();
        progress.report(Stage::Step { done: 7, of: 20 });
        if self.hangs {
            cancel.cancelled().await;
            self.cancelled.store(true, Ordering::SeqCst);
            if self.ignores_cancellation {
                std::future::pending::<()>().await;
            }
        }
        let pixels = vec![7; (brief.width * brief.height * 3) as usize];
        let picture = Picture::from_rgb(brief.width, brief.height, pixels).expect("a picture");
        Ok(vec![picture; brief.seeds.len()])
    }

    async fn probe(&self) -> Result<(), EngineError> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err(EngineError::NotAvailable("connection refused".into())),
            false => Ok(()),
        }
    }
}

fn info() -> EngineInfo {
    let info = EngineInfo::new("test", "an engine that a test controls", Duration::from_secs(1));
    EngineInfo { max_references: 4, slots: 2, ..info }
}

fn worker(service: &Service, info: EngineInfo, engine: &Arc<TestEngine>) -> Arc<Worker> {
    service.worker_with(Arc::new(service.renderer_with(info, engine.clone())))
}

async fn step(worker: &Arc<Worker>) -> usize {
    worker.step().await.expect("a store")
}

pub async fn lost_leases(caller: &Caller, task_id: &str) -> Option<u32> {
    let TaskId(id) = task_id.parse().expect("a task_id");
    let record = caller.service.shared.store.inspect_task(id).await.expect("a store");
    record.expect("the task exists").lost_leases
}

#[tokio::test]
async fn an_engine_that_is_not_available_costs_no_attempt_and_gets_no_task_until_a_probe_succeeds() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let engine = Arc::new(TestEngine { is_down: true.into(), ..TestEngine::default() });
    let worker = worker(&service, info(), &engine);
    assert_eq!(step(&worker).await, 1);
    assert_eq!(lost_leases(&caller, &task_id).await, Some(0));
    for _ in 0..5 {
        assert_eq!(step(&worker).await, 0, "no task is claimed");
    }
    let depth = service.shared.store.queue_depth().await.expect("a store");
    assert_eq!((depth.waiting, depth.leased), (1, 0), "other workers may claim it");
    engine.is_down.store(false, Ordering::SeqCst);
    assert_eq!(step(&worker).await, 1);
    assert_eq!(caller.task(&task_id).await["status"], "completed");
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_probes_its_engine_before_it_claims_a_task() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let engine = Arc::new(TestEngine { is_down: true.into(), ..TestEngine::default() });
    let running = Background::of(|stop| worker(&service, info(), &engine).run(stop));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(caller.task(&task_id).await["status"], "processing");
    assert_eq!(lost_leases(&caller, &task_id).await, Some(0));
    assert_eq!(engine.asked.load(Ordering::SeqCst), 0, "the probe at the start failed");
    engine.is_down.store(false, Ordering::SeqCst);
    while caller.task(&task_id).await["status"] == "processing" {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(caller.task(&task_id).await["status"], "completed");
    running.end().await;
}

#[tokio::test]
async fn a_lost_lease_cancels_the_render() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let engine = Arc::new(TestEngine { hangs: true, ..TestEngine::default() });
    let worker = worker(&service, info(), &engine);
    let stepping = worker.clone();
    let stepping = tokio::spawn(async move { step(&stepping).await });
    engine.began.notified().await;
    service.clock.advance(LEASE);
    service.sweep().await;
    worker.renew().await;
    stepping.await.expect("no panic");
    assert!(engine.cancelled.load(Ordering::SeqCst));
    service.work().await;
    assert_eq!(caller.task(&task_id).await["status"], "completed", "by another worker");
}

#[tokio::test]
async fn a_task_that_an_operator_ends_stops_its_render_soon() {
    assert!(PROGRESS_EVERY <= Duration::from_secs(1), "the worker looks so often for tasks that have ended");
    let (service, caller) = Service::with_caller(&["--lease", "5m"], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let engine = Arc::new(TestEngine { hangs: true, ..TestEngine::default() });
    let running = Background::of(|stop| worker(&service, info(), &engine).run(stop));
    engine.began.notified().await;
    let TaskId(id) = task_id.parse().expect("a task_id");
    // Another process may do this, so that no ending of this process tells of it.
    service
        .shared
        .store
        .fail_unleased(id, FailureCause::Operator, "Ended.")
        .await
        .expect("a store")
        .expect("it was processing");
    let cancelled = until(async || engine.cancelled.load(Ordering::SeqCst));
    tokio::time::timeout(BEFORE_A_HEARTBEAT, cancelled).await.expect("the render is cancelled");
    running.end().await;
    assert_eq!((caller.task(&task_id).await["error"].as_str(), caller.credits().await), (Some("Ended."), 100));
}

#[tokio::test(start_paused = true)]
async fn a_render_that_overruns_its_time_limit_is_cancelled_and_costs_the_attempt() {
    for ignores_cancellation in [false, true] {
        let (service, caller) = Service::with_caller(&["--render-timeout", "5s"], 100).await;
        let task_id = caller.submit_prompt("a boat").await;
        let engine = Arc::new(TestEngine { hangs: true, ignores_cancellation, ..TestEngine::default() });
        assert_eq!(step(&worker(&service, info(), &engine)).await, 1);
        assert!(engine.cancelled.load(Ordering::SeqCst));
        assert_eq!(lost_leases(&caller, &task_id).await, Some(1));
        assert_eq!(service.shared.metrics.renders.get(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_cancels_the_render_after_the_drain_time_and_releases_the_task() {
    let (service, caller) = Service::with_caller(&["--drain-timeout", "5s"], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let engine = Arc::new(TestEngine { hangs: true, ..TestEngine::default() });
    let running = Background::of(|stop| worker(&service, info(), &engine).run(stop));
    engine.began.notified().await;
    running.end().await;
    assert!(engine.cancelled.load(Ordering::SeqCst));
    assert_eq!(lost_leases(&caller, &task_id).await, Some(0));
    let depth = service.shared.store.queue_depth().await.expect("a store");
    assert_eq!((depth.waiting, depth.leased), (1, 0));
}

#[tokio::test]
async fn a_worker_that_gives_way_lets_its_render_end() {
    let (service, caller) = Service::with_caller(&["--drain-timeout", "0s"], 100).await;
    let engine = Arc::new(Staged::default());
    let (leave, stop) = (CancellationToken::new(), CancellationToken::new());
    let running = tokio::spawn(engine.worker(&service).run_until(leave.clone(), stop.clone()));
    let task_id = caller.submit_prompt("a boat").await;
    engine.begun().await;
    leave.cancel();
    let workers = async || {
        let engines = service.shared.store.engines().await.expect("a store");
        engines.iter().map(|engine| engine.workers).sum::<u64>()
    };
    until(async || workers().await == 0).await;
    let waits = caller.submit_prompt("a second boat").await;
    engine.end();
    running.await.expect("no panic");
    assert_eq!(caller.task(&task_id).await["status"], "completed");
    assert_eq!(caller.task(&waits).await["status"], "processing", "it claims nothing more");
}

#[tokio::test]
async fn pictures_of_another_size_become_the_size_of_the_ratio() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task = caller.submit(json!({ "prompt": "a boat", "aspect_ratio": "16:9" })).await;
    let engine = Arc::new(TestEngine::default());
    let sizes = Sizes::Of(vec![(512, 512), (640, 384)]);
    assert_eq!(step(&worker(&service, EngineInfo { sizes, ..info() }, &engine)).await, 1);
    let task = caller.task(task["task_id"].as_str().expect("a task_id")).await;
    let file = service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await;
    let picture = Picture::decode(&file.body).expect("a PNG");
    assert_eq!(file.body[16..24], [1280_u32.to_be_bytes(), 720_u32.to_be_bytes()].concat(), "{}", picture.width());
}

#[tokio::test]
async fn a_task_with_more_references_than_the_engine_takes_fails_and_is_refunded() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let references = ["https://pictures.example.com/a.png"];
    let task = caller.submit(json!({ "prompt": "a boat", "reference_images": references })).await;
    let engine = Arc::new(TestEngine::default());
    let worker = worker(&service, EngineInfo { max_references: 0, ..info() }, &engine);
    worker.report().await;
    assert_eq!(step(&worker).await, 0, "no worker claims it");
    service.sweep().await;
    let task = caller.task(task["task_id"].as_str().expect("a task_id")).await;
    assert_eq!(task["status"], "failed");
    assert!(task["error"].as_str().expect("a message").contains("takes no reference images"), "{task}");
    assert_eq!((caller.credits().await, engine.briefs.load(Ordering::SeqCst)), (100, 0));
}
