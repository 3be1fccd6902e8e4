//! Tasks that wait for reference images: the slots they hold, the tasks they do not delay, and how they end.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tintype::worker::Worker;
use tintype::worker::render::{RenderControl, RenderError, Renderer, Sources};
use tintype_config::LEASE;
use tintype_domain::model::{Id, TaskId};
use tintype_engine::picture::Picture;
use tintype_store::Claim;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::rigs::service::{Caller, Service};
use crate::rigs::wait::{Background, until};

/// One render slot; eight reference slots, two of them per account.
pub const ONE_SLOT: [&str; 4] = ["--renders", "1", "--submit-rate", "0"];
/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// The state of a task in the worker.
#[derive(Debug, PartialEq)]
pub enum Event {
    Fetches(Id),
    /// Its references have arrived, or the wait for them has ended.
    Leaves(Id),
    Renders(Id, Duration),
}

/// A renderer whose slow references and long renders wait until the test releases them.
pub struct GatedRenderer {
    events: UnboundedSender<Event>,
    pub references: Semaphore,
    renders: Semaphore,
}

/// Reports the end of the wait for the references of a task.
struct Leaving<'a>(&'a GatedRenderer, Id);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        // The test may have ended already.
        drop(self.0.events.send(Event::Leaves(self.1)));
    }
}

async fn pass(gate: &Semaphore) {
    gate.acquire().await.expect("a gate").forget();
}

#[async_trait]
impl Renderer for GatedRenderer {
    async fn prepare(&self, claim: &Claim) -> Result<Sources, RenderError> {
        if claim.request.reference_images.is_empty() {
            return Ok(Sources::default());
        }
        let id = claim.lease.task_id;
        let _leaving = Leaving(self, id);
        self.events.send(Event::Fetches(id)).expect("a test");
        let prompt = &claim.request.prompt;
        assert!(!prompt.contains("panic"), "the prompt asks for a panic");
        if prompt.contains("slow") {
            pass(&self.references).await;
        }
        let references = vec![Picture::from_rgb(1, 1, vec![7; 3]).expect("a picture")];
        Ok(Sources { references, mask: None })
    }

    async fn render(&self, claim: &Claim, sources: Sources, control: RenderControl) -> Result<Vec<Bytes>, RenderError> {
        assert_eq!(sources.references.len(), claim.request.reference_images.len(), "the render gets every reference");
        self.events.send(Event::Renders(claim.lease.task_id, control.time_limit)).expect("a test");
        if claim.request.prompt.contains("long") {
            pass(&self.renders).await;
        }
        Ok(vec![Bytes::from_static(b"a picture")])
    }
}

/// A worker with such a renderer.
pub struct Rig<'a> {
    service: &'a Service,
    pub renderer: Arc<GatedRenderer>,
    worker: Arc<Worker>,
    events: UnboundedReceiver<Event>,
}

impl<'a> Rig<'a> {
    pub fn new(service: &'a Service) -> Self {
        let (sender, events) = unbounded_channel();
        let renderer =
            Arc::new(GatedRenderer { events: sender, references: Semaphore::new(0), renders: Semaphore::new(0) });
        let worker = service.worker_with(renderer.clone());
        Self { service, renderer, worker, events }
    }

    pub fn run(&self) -> Background {
        Background::of(|stop| self.worker.clone().run(stop))
    }

    fn step(&self) -> JoinHandle<usize> {
        let worker = self.worker.clone();
        tokio::spawn(async move { worker.step().await.expect("a store") })
    }

    pub async fn next(&mut self) -> Event {
        let next = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        next.expect("an event in time").expect("a worker")
    }

    /// Waits until this task is rendered. Meanwhile only `allowed` may begin to wait for references.
    pub async fn rendered(&mut self, id: Id, allowed: &[Id]) {
        loop {
            match self.next().await {
                Event::Renders(rendered, _) if rendered == id => return,
                Event::Fetches(other) => assert!(allowed.contains(&other), "{other} waits for references"),
                Event::Leaves(_) | Event::Renders(..) => {}
            }
        }
    }

    /// Waits until these numbers of tasks wait in the queue and are leased.
    pub async fn depth(&self, waiting: u64, leased: u64) {
        let store = &self.service.shared.store;
        let is_so = async || {
            let depth = store.queue_depth().await.expect("a store");
            (depth.waiting, depth.leased) == (waiting, leased)
        };
        until(is_so).await;
    }

    /// Waits until these numbers of tasks hold reference slots and render slots: a slot is freed a moment after its
    /// task is completed.
    pub async fn gauges(&self, fetches: i64, renders: i64) {
        let metrics = &self.service.shared.metrics;
        let is_so = async || (metrics.fetches.get(), metrics.renders.get()) == (fetches, renders);
        until(is_so).await;
    }

    /// Asserts that no attempt was counted as lost.
    async fn assert_unharmed(&self, id: Id) {
        let record = self.service.shared.store.inspect_task(id).await.expect("a store").expect("the task exists");
        assert_eq!(record.lost_leases, Some(0));
    }

    /// Releases every reference and render until all tasks are completed.
    pub async fn complete_all(&self, running: Background) {
        self.renderer.references.add_permits(100);
        self.renderer.renders.add_permits(100);
        self.depth(0, 0).await;
        running.end().await;
        for task in self.service.shared.store.recent_tasks(None, 100).await.expect("a store") {
            assert_eq!(task.status.as_str(), "completed", "{task:?}");
        }
        self.service.assert_sound().await;
        self.gauges(0, 0).await;
    }
}

fn id(task: &Value) -> Id {
    let TaskId(id) = task["task_id"].as_str().and_then(|id| id.parse().ok()).expect("a task_id");
    id
}

pub async fn submit(caller: &Caller, prompt: &str) -> Id {
    id(&caller.submit(json!({ "prompt": prompt })).await)
}

pub async fn submit_with_reference(caller: &Caller, prompt: &str) -> Id {
    let references = ["https://pictures.example.com/a.png"];
    id(&caller.submit(json!({ "prompt": prompt, "reference_images": references })).await)
}

#[tokio::test]
async fn a_task_without_a_free_reference_slot_is_released_and_claimed_again_when_one_is_free() {
    let service = Service::start_with(&ONE_SLOT).await;
    let mut rig = Rig::new(&service);
    let running = rig.run();
    for name in ["ada", "bea", "cyd", "dan"] {
        let caller = service.caller(name, 100).await;
        for _ in 0..2 {
            let slow = submit_with_reference(&caller, "slow").await;
            assert_eq!(rig.next().await, Event::Fetches(slow));
        }
    }
    let (late, bob) = (service.caller("late", 100).await, service.caller("bob", 100).await);
    let slow = submit_with_reference(&late, "slow").await;
    for _ in 0..3 {
        let boat = submit(&bob, "a boat").await;
        rig.rendered(boat, &[]).await;
    }
    rig.depth(1, 8).await;
    rig.assert_unharmed(slow).await;
    rig.gauges(8, 0).await;

    rig.renderer.references.add_permits(1);
    while rig.next().await != Event::Fetches(slow) {}
    rig.depth(0, 8).await;
    rig.complete_all(running).await;
}

#[tokio::test]
async fn a_lost_lease_ends_the_wait_for_references() {
    let (service, ada) = Service::with_caller(&ONE_SLOT, 100).await;
    let slow = submit_with_reference(&ada, "slow").await;
    let mut rig = Rig::new(&service);
    let step = rig.step();
    assert_eq!(rig.next().await, Event::Fetches(slow));
    for _ in 0..5 {
        service.clock.advance(LEASE / 2);
        rig.worker.renew().await;
        service.sweep().await;
    }
    rig.depth(0, 1).await;
    service.clock.advance(LEASE);
    service.sweep().await;
    rig.worker.renew().await;
    assert_eq!(step.await.expect("no panic"), 1);
    assert_eq!(rig.next().await, Event::Leaves(slow));
    rig.gauges(0, 0).await;
    rig.depth(1, 0).await;
    rig.complete_all(rig.run()).await;
}

#[tokio::test]
async fn a_stopping_worker_releases_tasks_that_wait_for_references() {
    let (service, ada) = Service::with_caller(&["--renders", "1", "--drain-timeout", "9m"], 100).await;
    let slow = [submit_with_reference(&ada, "slow").await, submit_with_reference(&ada, "slow").await];
    let mut rig = Rig::new(&service);
    let running = rig.run();
    for expected in slow {
        assert_eq!(rig.next().await, Event::Fetches(expected));
    }
    running.end().await;
    rig.depth(2, 0).await;
    for task in slow {
        rig.assert_unharmed(task).await;
    }
    rig.gauges(0, 0).await;
    rig.complete_all(rig.run()).await;
}

#[tokio::test]
async fn a_stopping_worker_releases_tasks_that_wait_for_a_render_slot_and_finishes_the_others() {
    let (service, ada) = Service::with_caller(&["--renders", "1", "--drain-timeout", "9m"], 100).await;
    let mut rig = Rig::new(&service);
    let running = rig.run();
    let slow = submit_with_reference(&ada, "slow").await;
    assert_eq!(rig.next().await, Event::Fetches(slow));
    let long = submit(&ada, "a long boat").await;
    rig.rendered(long, &[]).await;
    rig.renderer.references.add_permits(1);
    assert_eq!(rig.next().await, Event::Leaves(slow));
    // It keeps its reference slot until it has a render slot.
    rig.gauges(1, 1).await;
    running.stop.cancel();
    rig.depth(1, 1).await;
    rig.assert_unharmed(slow).await;
    rig.renderer.renders.add_permits(1);
    running.end().await;
    rig.depth(1, 0).await;
    rig.complete_all(rig.run()).await;
}

#[tokio::test]
async fn tasks_are_rendered_in_the_order_in_which_their_references_arrive() {
    let (service, [ada, bob]) = Service::with_callers(&ONE_SLOT, ["ada", "bob"], 100).await;
    let mut rig = Rig::new(&service);
    let running = rig.run();
    let first = submit_with_reference(&ada, "slow").await;
    assert_eq!(rig.next().await, Event::Fetches(first));
    let second = submit_with_reference(&bob, "slow").await;
    assert_eq!(rig.next().await, Event::Fetches(second));
    let long = submit(&bob, "a long boat").await;
    rig.rendered(long, &[]).await;
    rig.renderer.references.add_permits(1);
    assert_eq!(rig.next().await, Event::Leaves(first));
    rig.renderer.references.add_permits(1);
    assert_eq!(rig.next().await, Event::Leaves(second));
    rig.renderer.renders.add_permits(1);
    for expected in [first, second] {
        let next = rig.next().await;
        assert!(matches!(next, Event::Renders(rendered, _) if rendered == expected), "{next:?}");
    }
    rig.complete_all(running).await;
}

#[tokio::test]
async fn the_wait_for_references_counts_toward_the_attempt_and_not_toward_the_render_slot() {
    let (service, ada) =
        Service::with_caller(&["--renders", "1", "--submit-rate", "0", "--render-timeout", "9m"], 100).await;
    let slow = submit_with_reference(&ada, "slow").await;
    let mut rig = Rig::new(&service);
    let step = rig.step();
    assert_eq!(rig.next().await, Event::Fetches(slow));
    service.clock.advance(Duration::from_secs(8 * 60));
    rig.renderer.references.add_permits(1);
    assert_eq!(step.await.expect("no panic"), 1);
    assert_eq!(rig.next().await, Event::Leaves(slow));
    assert_eq!(rig.next().await, Event::Renders(slow, Duration::from_secs(60)));
    // If the wait of eight minutes counted as rendering, the second of these would be refused.
    for _ in 0..3 {
        submit(&ada, "a boat").await;
    }
    rig.complete_all(rig.run()).await;
}

/// Works three times on a task with this reference, which then fails.
async fn fails_after_three_attempts(flags: &[&str], reference: &str) {
    let (service, ada) = Service::with_caller(flags, 100).await;
    let task = submit_with_reference(&ada, reference).await;
    let rig = Rig::new(&service);
    for _ in 0..3 {
        assert_eq!(rig.step().await.expect("no panic of the worker"), 1);
        rig.gauges(0, 0).await;
        service.clock.advance(Duration::from_secs(1));
    }
    let task = ada.task(&TaskId(task).to_string()).await;
    assert!(task["error"].as_str().expect("a message").contains("several attempts"), "{task}");
    assert_eq!(ada.credits().await, 100);
}

#[tokio::test]
async fn a_panic_while_fetching_references_costs_attempts_and_then_fails_the_task() {
    fails_after_three_attempts(&ONE_SLOT, "panic").await;
}

#[tokio::test(start_paused = true)]
async fn references_that_time_out_cost_attempts_and_then_fail_the_task() {
    fails_after_three_attempts(&["--renders", "1", "--render-timeout", "5s"], "slow").await;
}
