//! The queue: its pause for maintenance, and the places of tasks in it.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tintype::service::wait_estimator::MIN_SAMPLES;
use tintype_domain::model::{FailureCause, TaskId};

use crate::rigs::binary::{self, Ran as _, Server, refused};
use crate::rigs::http::{Answer, ended, submit};
use crate::rigs::service::{Caller, Service};
use crate::rigs::wait::until;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_paused_queue_accepts_tasks_and_works_on_none_until_it_is_resumed() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let since = service.shared.store.pause_queue().await.expect("a store");
    service.clock.advance(SECOND);
    assert_eq!(service.shared.store.pause_queue().await.expect("a store"), since, "the pause goes on");
    let task_id = caller.submit_prompt("a boat").await;
    service.work().await;
    assert_eq!(caller.task(&task_id).await["status"], "processing");
    assert_eq!(service.call("GET", "/readyz", &[], "").await.status, 200);
    let depth = service.shared.store.queue_depth().await.expect("a store");
    let metrics = service.shared.metrics.expose(&depth, &[], service.clock.now(), None);
    assert!(metrics.contains("tintype_queue_paused 1"), "{metrics}");
    assert_eq!(service.shared.store.resume_queue().await.expect("a store"), Some(since));
    assert_eq!(service.shared.store.resume_queue().await.expect("a store"), None);
    service.work().await;
    assert_eq!(caller.task(&task_id).await["status"], "completed");
}

#[tokio::test]
async fn a_task_that_waits_through_a_pause_of_9_minutes_is_refunded() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    service.shared.store.pause_queue().await.expect("a store");
    let task_id = caller.submit_prompt("a boat").await;
    service.clock.advance(Duration::from_secs(9 * 60));
    service.sweep().await;
    assert_eq!(caller.task(&task_id).await["status"], "failed");
    assert_eq!(caller.credits().await, 10);
}

#[tokio::test]
async fn no_submit_is_refused_because_a_paused_queue_is_long() {
    let (service, caller) = Service::with_caller(&["--renders", "1", "--submit-rate", "0"], 100).await;
    (0..MIN_SAMPLES).for_each(|_| service.worker.throughput().observe(Duration::from_secs(60), 1));
    service.shared.store.pause_queue().await.expect("a store");
    caller.submit_many(20, "a boat").await;
    service.shared.store.resume_queue().await.expect("a store");
    service.clock.advance(SECOND);
    caller.post(r#"{"prompt": "a boat"}"#).await.assert_error(429, "RATE_LIMITED");
}

#[tokio::test]
async fn the_operator_pauses_and_resumes_a_running_server() {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let server = Server::with_log(&data, &log, &[]);
    let key = server.first_key().expect("a key");
    let logged = async |event: &str| {
        until(async || std::fs::read_to_string(&log).expect("a log").contains(event)).await;
    };
    let shown = |command: &str| binary::json(&data, &["queue", command]);
    let quiet = json!({
        "paused_at": null, "waiting": 0, "leased": 0, "oldest_submitted_at": null, "waiting_for_engines": []
    });
    assert_eq!(shown("show"), quiet);
    let paused = shown("pause");
    assert!(paused["paused_at"].is_string(), "{paused}");
    logged("the queue is paused").await;
    let task_id = submit(&server, &key, "a boat").await;
    let shown_now = shown("show");
    assert_eq!((&shown_now["paused_at"], &shown_now["waiting"]), (&paused["paused_at"], &json!(1)));
    let check = binary::run(&data, ["doctor", "--json"]).check("queue");
    assert!(check["ok"] == false && check["detail"].as_str().expect("text").contains("queue resume"), "{check}");
    assert_eq!(shown("resume")["paused_at"], Value::Null);
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    logged("no longer paused").await;
    server.stop();
}

#[test]
fn a_pause_says_what_becomes_of_waiting_tasks_and_survives_a_backup() {
    let directory = TempDir::new().expect("a directory");
    let (data, copy, restored) =
        (directory.path().join("data"), directory.path().join("copy"), directory.path().join("restored"));
    assert!(refused(&data, &["queue", "pause"]).contains("there is no database"));
    binary::json(&data, &["account", "create", "ada"]);
    let said = binary::run(&data, ["queue", "pause"]).text();
    assert!(said.contains("9 minutes") && said.contains("refunded") && said.contains("queue resume"), "{said}");
    binary::json(&data, &["backup", copy.to_str().expect("text")]);
    binary::json(&restored, &["restore", copy.to_str().expect("text")]);
    let show = |data| binary::json(data, &["queue", "show"]);
    assert_eq!(show(&restored)["paused_at"], show(&data)["paused_at"]);
}

/// The two headers of a poll.
fn place(answer: &Answer) -> (Option<&str>, Option<&str>) {
    let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().expect("text"));
    (header("x-queue-position"), header("x-expected-wait"))
}

#[tokio::test]
async fn a_poll_of_a_processing_task_shows_its_place_and_expected_wait() {
    let (service, [ada, bob]) =
        Service::with_callers(&["--renders", "1", "--submit-rate", "0"], ["ada", "bob"], 100).await;
    let mut tasks = Vec::new();
    for caller in [&ada, &ada, &ada, &bob] {
        tasks.push((caller, caller.submit_prompt("a boat").await));
        service.clock.advance(Duration::from_millis(1));
    }
    let positions = async || {
        let mut positions = Vec::new();
        for (caller, task_id) in &tasks {
            positions.push(place(&caller.poll(task_id).await).0.map(str::to_owned));
        }
        positions
    };
    assert_eq!(positions().await, ["1", "2", "3", "1"].map(|place| Some(place.to_owned())));
    assert_eq!(place(&bob.poll(&tasks[3].1).await), (Some("1"), None), "no attempt has ended yet");

    // One is claimed, and the others move up a second later.
    let lease = service.shared.store.claim(1, SECOND * 60).await.expect("a store").remove(0).lease;
    (0..MIN_SAMPLES).for_each(|_| service.worker.throughput().observe(SECOND * 10, 1));
    assert_eq!(place(&ada.poll(&tasks[1].1).await), (Some("2"), Some("40")), "the queue was read a moment ago");
    service.clock.advance(SECOND);
    assert_eq!(positions().await, ["0", "1", "2", "1"].map(|place| Some(place.to_owned())));
    assert_eq!(place(&bob.poll(&tasks[3].1).await), (Some("1"), Some("30")), "workers take turns between accounts");
    assert_eq!(place(&ada.poll(&tasks[0].1).await), (Some("0"), Some("10")));

    // A task that was submitted since then is the last; its wait ends with its time limit.
    let submitted = ada.post(r#"{"prompt": "a boat"}"#).await;
    let last = submitted.json()["data"]["task_id"].as_str().expect("a task_id").to_owned();
    assert_eq!(place(&submitted), (None, Some("50")), "all slots are taken");
    assert_eq!(place(&ada.poll(&last).await), (Some("3"), Some("50")));
    (0..64).for_each(|_| service.worker.throughput().observe(SECOND * 300, 1));
    assert_eq!(place(&ada.poll(&last).await), (Some("3"), Some("540")));

    let TaskId(id) = tasks[0].1.parse().expect("a task_id");
    assert_eq!(id, lease.task_id);
    service.shared.store.fail(lease, FailureCause::Engine, "it sank").await.expect("a store");
    assert_eq!(place(&ada.poll(&tasks[0].1).await), (None, None), "it has ended");
}

async fn position(caller: &Caller, task_id: &str) -> Option<String> {
    place(&caller.poll(task_id).await).0.map(str::to_owned)
}

#[tokio::test]
async fn tasks_of_a_burst_have_positions_of_their_own_before_the_queue_is_read_again() {
    let (service, [ada, bob]) = Service::with_callers(&["--submit-rate", "0"], ["ada", "bob"], 100).await;
    let first = bob.submit_prompt("a boat").await;
    assert_eq!(position(&bob, &first).await.as_deref(), Some("1"), "which reads the queue");
    let mut burst = Vec::new();
    for _ in 0..3 {
        burst.push(ada.submit_prompt("a boat").await);
    }
    let shown = async || {
        let mut shown = Vec::new();
        for task_id in &burst {
            shown.push(position(&ada, task_id).await);
        }
        shown
    };
    let expected = ["1", "2", "3"].map(|place| Some(place.to_owned()));
    assert_eq!(shown().await, expected, "the copy of the queue has none of them");
    service.clock.advance(SECOND);
    assert_eq!(shown().await, expected, "it has all of them");
    assert_eq!(position(&bob, &first).await.as_deref(), Some("1"));
}
