//! How far a task is, for those who poll it: the steps of its engine, and the time that is left.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tintype::service::wait_estimator::MIN_SAMPLES;
use tintype::worker::Worker;
use tintype_engine::Stage;
use tokio::task::JoinHandle;

use crate::rigs::http::{Answer, TASKS};
use crate::rigs::service::{Caller, Service};
use crate::rigs::staged::Staged;
use crate::rigs::wait::Background;

const SECOND: Duration = Duration::from_secs(1);

/// A task of which a worker renders the images.
struct Rendering {
    engine: Arc<Staged>,
    worker: Arc<Worker>,
    step: JoinHandle<usize>,
    task_id: String,
}

impl Rendering {
    async fn begin(caller: &Caller) -> Self {
        let engine = Arc::new(Staged::default());
        let worker = engine.worker(&caller.service);
        let task_id = caller.submit_prompt("a boat").await;
        let stepping = worker.clone();
        let step = tokio::spawn(async move { stepping.step().await.expect("a store") });
        engine.begun().await;
        Self { engine, worker, step, task_id }
    }

    /// Reports so many of twenty steps.
    fn step(&self, done: u32) {
        self.engine.report(Stage::Step { done, of: 20 });
    }

    async fn end(self) {
        self.engine.end();
        assert_eq!(self.step.await.expect("no panic"), 1);
    }
}

async fn poll(caller: &Caller, task_id: &str) -> Answer {
    let answer = caller.poll(task_id).await;
    assert_eq!(answer.status, 200);
    answer
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.get(name).map(|value| value.to_str().expect("text"))
}

/// The headers of a poll about the work: its part and its steps.
fn stage(answer: &Answer) -> (Option<&str>, Option<&str>) {
    (header(answer, "x-progress"), header(answer, "x-steps"))
}

/// The headers of a poll about time: when to poll again, and the expected wait.
fn times(answer: &Answer) -> (Option<&str>, Option<&str>) {
    (header(answer, "x-poll-after"), header(answer, "x-expected-wait"))
}

fn measure_ten_seconds(service: &Service) {
    (0..MIN_SAMPLES).for_each(|_| service.worker.throughput().observe(SECOND * 10, 1));
}

#[tokio::test]
async fn a_poll_of_any_process_shows_the_steps_of_the_engine() {
    let service = Service::start().await;
    let (other, caller) = (service.join(&[]).await, service.caller("ada", 10).await);
    let rendering = Rendering::begin(&caller).await;
    let (engine, worker, task_id) = (&rendering.engine, &rendering.worker, &rendering.task_id);
    worker.report_progress().await;
    let first = poll(&caller, task_id).await;
    assert_eq!((stage(&first), header(&first, "x-queue-position")), ((None, None), Some("0")));
    rendering.step(7);
    assert_eq!(stage(&poll(&caller, task_id).await), (None, None), "the worker has not reported it yet");
    worker.report_progress().await;
    for process in [&service, &other] {
        let answer = poll(&caller.at(process), task_id).await;
        assert_eq!(stage(&answer), (Some("0.35"), Some("7/20")));
        assert_eq!(header(&answer, "x-queue-position"), Some("0"));
        assert_eq!(answer.json(), first.json(), "the task object is the interface's");
    }
    engine.report(Stage::Fraction(0.5));
    worker.report_progress().await;
    assert_eq!(stage(&poll(&caller, task_id).await), (Some("0.50"), None));
    let listed = caller.get(TASKS).await;
    assert_eq!(stage(&listed), (None, None));
    let stranger = service.caller("bob", 10).await;
    let missing = stranger.poll(task_id).await;
    missing.assert_error(404, "NOT_FOUND");
    assert_eq!(stage(&missing), (None, None));
    let task_id = task_id.clone();
    rendering.end().await;
    let ended = poll(&caller, &task_id).await;
    assert_eq!((ended.json()["data"]["status"].as_str(), stage(&ended)), (Some("completed"), (None, None)));
}

#[tokio::test]
async fn a_wait_that_ends_early_shows_the_latest_steps() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let rendering = Rendering::begin(&caller).await;
    rendering.step(3);
    rendering.worker.report_progress().await;
    let path = format!("{TASKS}/{}", rendering.task_id);
    let waiting = caller.call("GET", &path, &[("prefer", "wait=60")], "");
    let meanwhile = async {
        service.waiting(1).await;
        rendering.step(9);
        rendering.worker.report_progress().await;
        service.readiness.stop();
    };
    let (answer, ()) = tokio::join!(waiting, meanwhile);
    assert_eq!(stage(&answer), (Some("0.45"), Some("9/20")));
    rendering.end().await;
}

#[tokio::test]
async fn a_report_that_fails_is_repeated_and_costs_the_task_nothing() {
    let (service, caller) = Service::with_caller(&["--test-fault", "before-report-progress=error"], 10).await;
    let rendering = Rendering::begin(&caller).await;
    rendering.step(7);
    rendering.worker.report_progress().await;
    assert!(service.faults.all_happened());
    assert_eq!(stage(&poll(&caller, &rendering.task_id).await), (None, None));
    rendering.worker.report_progress().await;
    assert_eq!(stage(&poll(&caller, &rendering.task_id).await), (Some("0.35"), Some("7/20")));
    let task_id = rendering.task_id.clone();
    rendering.end().await;
    assert_eq!(caller.task(&task_id).await["status"], "completed");
}

#[tokio::test]
async fn a_task_whose_lease_is_lost_shows_no_steps_of_the_old_attempt() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let rendering = Rendering::begin(&caller).await;
    rendering.step(7);
    rendering.worker.report_progress().await;
    service.clock.advance(tintype_config::LEASE);
    service.sweep().await;
    service.clock.advance(SECOND);
    let answer = poll(&caller, &rendering.task_id).await;
    assert_eq!((stage(&answer), header(&answer, "x-queue-position")), ((None, None), Some("1")));
    rendering.step(8);
    rendering.worker.report_progress().await;
    assert_eq!(stage(&poll(&caller, &rendering.task_id).await), (None, None), "a late report");
    rendering.worker.renew().await;
    assert_eq!(rendering.step.await.expect("no panic"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_reports_at_most_once_a_second() {
    let service = Service::start_on_sqlite(&[]).await;
    let caller = service.caller("ada", 10).await;
    let engine = Arc::new(Staged::default());
    let running = Background::of(|stop| engine.worker(&service).run(stop));
    let task_id = caller.submit_prompt("a boat").await;
    engine.begun().await;
    let begun = tokio::time::Instant::now();
    let mut seen: Vec<Value> = Vec::new();
    for step in 0.. {
        if begun.elapsed() > SECOND * 10 {
            break;
        }
        engine.report(Stage::Step { done: step, of: 1_000 });
        tokio::time::sleep(SECOND / 10).await;
        let shown = stage(&poll(&caller, &task_id).await).1.map_or(Value::Null, Value::from);
        if !seen.contains(&shown) {
            seen.push(shown);
        }
    }
    let reports = seen.iter().filter(|shown| shown.is_string()).count();
    assert!((2..=11).contains(&reports), "{seen:?}");
    engine.end();
    running.end().await;
}

#[tokio::test]
async fn the_hint_for_the_next_poll_follows_what_is_left() {
    let (service, caller) = Service::with_caller(&["--renders", "1"], 10).await;
    let rendering = Rendering::begin(&caller).await;
    let (worker, task_id) = (&rendering.worker, &rendering.task_id);
    worker.report_progress().await;
    // The sketch engine, which this process knows, says to take 0.3 s.
    let typical = poll(&caller, task_id).await;
    assert_eq!(times(&typical), (Some("0.30"), None));

    measure_ten_seconds(&service);
    assert_eq!(times(&poll(&caller, task_id).await), (Some("10.00"), Some("10")));
    service.clock.advance(SECOND * 7);
    assert_eq!(times(&poll(&caller, task_id).await), (Some("3.00"), Some("3")));
    // It takes longer than the others did.
    service.clock.advance(SECOND * 13);
    assert_eq!(times(&poll(&caller, task_id).await), (Some("2.00"), Some("1")));
    // Steps tell more than the time of others: 5 of 20 took 20 s.
    rendering.step(5);
    worker.report_progress().await;
    assert_eq!(times(&poll(&caller, task_id).await), (Some("10.00"), Some("60")));
    service.clock.advance(SECOND * 30);
    rendering.step(19);
    worker.report_progress().await;
    assert_eq!(times(&poll(&caller, task_id).await), (Some("5.00"), Some("3")));
    rendering.end().await;
}

#[tokio::test]
async fn the_first_second_of_a_render_tells_nothing_of_its_pace() {
    let (service, caller) = Service::with_caller(&["--renders", "1"], 10).await;
    let rendering = Rendering::begin(&caller).await;
    let (worker, task_id) = (&rendering.worker, &rendering.task_id);
    // A step of 20 took no time. Its report is 0.9 s old when the caller polls.
    rendering.step(1);
    worker.report_progress().await;
    service.clock.advance(SECOND * 9 / 10);
    assert_eq!(times(&poll(&caller, task_id).await).1, None, "nothing was measured");
    measure_ten_seconds(&service);
    assert_eq!(times(&poll(&caller, task_id).await).1, Some("10"), "as the others, and not 18 s");
    service.clock.advance(SECOND * 11 / 10);
    rendering.step(10);
    worker.report_progress().await;
    assert_eq!(times(&poll(&caller, task_id).await).1, Some("2"), "half of it took 2 s");
    rendering.end().await;
}

#[tokio::test]
async fn the_hint_after_a_submit_follows_the_measured_time_and_the_queue() {
    let (service, caller) = Service::with_caller(&["--renders", "2"], 100).await;
    let submit = async || caller.post(r#"{"prompt": "a boat"}"#).await;
    assert_eq!(times(&submit().await), (Some("0.30"), None), "the engine's own word");
    service.work().await;
    (0..64).for_each(|_| service.worker.throughput().observe(SECOND * 4, 1));
    service.clock.advance(SECOND);
    let mut hints = Vec::new();
    for _ in 0..5 {
        let answer = submit().await;
        let (after, wait) = times(&answer);
        hints.push((after.expect("seconds").to_owned(), wait.expect("seconds").to_owned()));
    }
    // Two of them find a free slot.
    let expected = [("4.00", "4"), ("4.00", "4"), ("6.00", "6"), ("8.00", "8"), ("10.00", "10")];
    assert_eq!(hints, expected.map(|(after, wait)| (after.to_owned(), wait.to_owned())));
}
