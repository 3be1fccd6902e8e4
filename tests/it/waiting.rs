//! `Prefer: wait=N`: a submit or a poll that waits for the end of its task.

use std::time::Duration;

use serde_json::json;
use tintype::service::waiters::MAX_SLOTS_OF_ACCOUNT;
use tintype_store::KeyChange;
use tokio::time::Instant;

use crate::rigs::http::{Answer, TASKS};
use crate::rigs::service::{Caller, Service};

async fn submit(caller: &Caller, prefer: &str, prompt: &str) -> Answer {
    caller.post_with(&[("prefer", prefer)], json!({ "prompt": prompt }).to_string()).await
}

async fn poll(caller: &Caller, prefer: &str, task_id: &str) -> Answer {
    caller.call("GET", &format!("{TASKS}/{task_id}"), &[("prefer", prefer)], "").await
}

fn applied(answer: &Answer) -> Option<&str> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.headers.get("preference-applied").map(|value| value.to_str().expect("text"))
}

fn task_id(answer: &Answer) -> String {
    answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned()
}

#[tokio::test]
async fn a_submit_that_waits_returns_the_whole_task_when_it_ends() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    for (prompt, status) in [("a boat", "completed"), ("a boat [[fail]]", "failed")] {
        let answer = service.worked(submit(&caller, "respond-async, wait=30", prompt)).await;
        assert_eq!(applied(&answer), Some("wait=30"));
        assert_eq!(answer.json()["data"]["status"], status);
        assert!(!answer.headers.contains_key("x-poll-after"), "nothing is left to poll for");
        let polled = caller.poll(&task_id(&answer)).await;
        assert_eq!(answer.json(), polled.json());
        assert_eq!(applied(&polled), None);
    }
    assert_eq!(service.shared.endings.waiters.count(), 0);
}

#[tokio::test]
async fn a_poll_that_waits_returns_when_the_task_ends() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let (one, other) = (caller.submit_prompt("a boat").await, caller.submit_prompt("a boat [[policy]]").await);
    let work = async {
        service.waiting(3).await;
        service.work().await;
    };
    let polls = tokio::join!(
        poll(&caller, "wait=30", &one),
        poll(&caller, "wait=99", &other),
        poll(&caller, "wait=7", &one),
        work
    );
    assert_eq!(
        [applied(&polls.0), applied(&polls.1), applied(&polls.2)],
        [Some("wait=30"), Some("wait=60"), Some("wait=7")]
    );
    assert_eq!(polls.0.json()["data"]["status"], "completed");
    assert_eq!(polls.1.json()["data"]["status"], "failed");
    assert_eq!(polls.0.json(), polls.2.json());
    let ended = poll(&caller, "wait=5", &one).await;
    assert_eq!(applied(&ended), Some("wait=5"), "a task that has ended meets every preference");
    poll(&caller, "wait=5", "imgmodel-AAAAAAAAAAAAAAAAAAAAA").await.assert_error(404, "NOT_FOUND");
    let stranger = service.caller("bob", 10).await;
    poll(&stranger, "wait=5", &other).await.assert_error(404, "NOT_FOUND");
}

#[tokio::test]
async fn a_task_that_does_not_end_in_time_is_answered_as_without_a_wait() {
    let service = Service::start_on_sqlite(&[]).await;
    let caller = service.caller("ada", 100).await;
    let task = caller.submit_prompt("a boat").await;
    let at_once = caller.poll(&task).await;
    // Only reads from here on: the paused clock would run away while the thread that writes works.
    tokio::time::pause();
    for (prefer, seconds) in [("wait=20", 20), ("wait=9999999999999999999999", 60), ("wait=0", 0), ("wait=x", 0)] {
        let begun = Instant::now();
        let polled = poll(&caller, prefer, &task).await;
        assert_eq!((begun.elapsed().as_secs(), applied(&polled)), (seconds, None), "{prefer}");
        assert_eq!(polled.json(), at_once.json());
        assert_eq!(polled.header("x-poll-after"), at_once.header("x-poll-after"));
    }
    // How long this one takes cannot be measured, for the reason above.
    let answer = submit(&caller, "wait=20", "a boat").await;
    assert_eq!(applied(&answer), None);
    let data = answer.json()["data"].clone();
    assert_eq!((&data["status"], &data["images"], data.get("error")), (&json!("processing"), &json!([]), None));
    assert!(!answer.header("x-poll-after").is_empty());
}

#[tokio::test]
async fn an_account_with_too_many_waiting_callers_is_answered_at_once_and_others_wait() {
    let service = Service::start_on_sqlite(&[]).await;
    let (ada, bob) = (service.caller("ada", 100).await, service.caller("bob", 100).await);
    let (task, other) = (ada.submit_prompt("a boat").await, bob.submit_prompt("a boat").await);
    let waiters = &service.shared.endings.waiters;
    let held: Vec<_> = (0..MAX_SLOTS_OF_ACCOUNT).map(|_| waiters.slot(ada.account.id).expect("room")).collect();
    tokio::time::pause();
    let begun = Instant::now();
    assert_eq!(applied(&poll(&ada, "wait=20", &task).await), None);
    assert_eq!(begun.elapsed().as_secs(), 0);
    assert_eq!(applied(&poll(&bob, "wait=20", &other).await), None);
    assert_eq!(begun.elapsed().as_secs(), 20);
    drop(held);
    assert_eq!(applied(&poll(&ada, "wait=20", &task).await), None);
    assert_eq!(begun.elapsed().as_secs(), 40);
}

#[tokio::test]
async fn nobody_waits_for_a_task_that_does_not_exist_or_belongs_to_others() {
    let service = Service::start_on_sqlite(&[]).await;
    let (ada, bob) = (service.caller("ada", 100).await, service.caller("bob", 0).await);
    let of_ada = ada.submit_prompt("a boat").await;
    tokio::time::pause();
    let begun = Instant::now();
    for task in [&of_ada, "imgmodel-AAAAAAAAAAAAAAAAAAAAA"] {
        poll(&bob, "wait=60", task).await.assert_error(404, "NOT_FOUND");
    }
    assert_eq!((begun.elapsed().as_secs(), service.shared.endings.waiters.slots()), (0, 0));
}

#[tokio::test]
async fn a_server_that_stops_and_a_caller_that_hangs_up_end_the_wait() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task = caller.submit_prompt("a boat").await;
    let request = format!(
        "GET {TASKS}/{task} HTTP/1.1\r\nhost: x\r\nprefer: wait=60\r\nauthorization: {}\r\n\r\n",
        caller.authorization()
    );
    let stream = service.write(request).await;
    service.waiting(1).await;
    drop(stream);
    service.waiting(0).await;

    let stop = async {
        service.waiting(2).await;
        service.readiness.stop();
    };
    let (polled, submitted, ()) =
        tokio::join!(poll(&caller, "wait=60", &task), submit(&caller, "wait=60", "a boat"), stop);
    for answer in [polled, submitted] {
        assert_eq!((applied(&answer), &answer.json()["data"]["status"]), (None, &json!("processing")));
    }
    assert_eq!(applied(&poll(&caller, "wait=60", &task).await), None, "a server that stops lets nobody wait");
}

#[tokio::test]
async fn a_key_that_is_revoked_during_the_wait_reads_no_task() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task = caller.submit_prompt("a boat").await;
    let revoke = async {
        service.waiting(2).await;
        service.shared.store.change_key(caller.key_id, KeyChange::Revoke).await.expect("a store");
        // The cache may remember the key for half a second.
        service.clock.advance(Duration::from_secs(1));
        service.work().await;
    };
    let (polled, submitted, ()) =
        tokio::join!(poll(&caller, "wait=60", &task), submit(&caller, "wait=60", "a boat"), revoke);
    polled.assert_error(401, "UNAUTHORIZED");
    assert_eq!(applied(&submitted), None);
    assert_eq!(submitted.json()["data"]["images"], json!([]), "a charged task is never answered with an error");
}
