//! Calls of OpenAI's dialect that a client repeats by itself are charged once.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;
use tintype_domain::key::KeySecret;
use tintype_store::KeyChange;
use tokio::net::TcpStream;

use crate::openai_edits::task_of;
use crate::rigs::binary::{self, Server};
use crate::rigs::http::{Answer, GENERATIONS, exchange, try_send};
use crate::rigs::service::{Caller, Service};
use crate::rigs::wait::until;

const BODY: &str = r#"{"prompt": "a boat"}"#;

/// Sends attempt number `attempt` at the call.
async fn attempt(caller: &Caller, attempt: &str) -> Answer {
    caller.generations(&[("x-stainless-retry-count", attempt)], BODY).await
}

/// Sends a first attempt and hangs up once it waits.
async fn hang_up(caller: &Caller) {
    tokio::select! {
        answer = attempt(caller, "0") => panic!("answered: {answer:?}"),
        () = caller.service.waiting(1) => {}
    }
    caller.service.waiting(0).await;
}

#[tokio::test]
async fn a_repeated_call_brings_the_pictures_of_the_first_without_credits_and_beyond_the_rate_limit() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "1"], 2).await;
    hang_up(&caller).await;
    assert_eq!(caller.credits().await, 0);
    assert_eq!(caller.generations(&[], BODY).await.json()["error"]["code"], "rate_limit_exceeded");
    let other_body = caller.generations(&[("x-stainless-retry-count", "1")], r#"{"prompt": "a ship"}"#).await;
    assert_eq!(other_body.json()["error"]["code"], "rate_limit_exceeded", "it would make a task of its own");
    assert!(other_body.header("ratelimit").starts_with("\"submit\";r=0;"), "the limit that refused it: {other_body:?}");
    let answer = service.worked(attempt(&caller, "1")).await;
    assert!(answer.json()["data"][0]["b64_json"].is_string());
    assert_eq!(caller.task(task_of(&answer)).await["status"], "completed");
    assert_eq!(caller.credits().await, 0);
}

#[tokio::test]
async fn a_new_call_with_the_same_words_is_another_task() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let first = service.worked(attempt(&caller, "0")).await;
    let second = service.worked(attempt(&caller, "0")).await;
    assert_ne!(task_of(&first), task_of(&second));
    assert_eq!(caller.credits().await, 96);
}

/// Python's aiohttp and others repeat a call whose connection a proxy closed after 60 s, without a sign (ComfyUI, pull request
/// 16204; lionagi, issue 2393).
#[tokio::test]
async fn a_client_that_counts_nothing_is_charged_once_for_a_call_that_it_gave_up_and_repeats() {
    // Its database writes in the order of the requests.
    let service = Service::start_on_sqlite(&[]).await;
    let caller = service.caller("ada", 100).await;
    tokio::select! {
        answer = caller.generations(&[], BODY) => panic!("answered: {answer:?}"),
        () = service.waiting(1) => {}
    }
    service.waiting(0).await;
    let other = service.worked(caller.generations(&[], r#"{"prompt": "a ship"}"#)).await;
    assert_eq!(caller.credits().await, 96, "a call with other words is a task of its own");
    // The worker has done its task meanwhile.
    let again = caller.generations(&[], BODY).await;
    assert_ne!(task_of(&other), task_of(&again));
    assert_eq!(
        (caller.task(task_of(&again)).await["status"].clone(), caller.credits().await),
        (json!("completed"), 96)
    );
    let new = service.worked(caller.generations(&[], BODY)).await;
    assert_ne!(task_of(&new), task_of(&again), "the answer of the first was delivered");
    assert_eq!(caller.credits().await, 94);
}

/// The caller hangs up after the commit, before the handler hears of the task.
#[tokio::test]
async fn a_call_given_up_during_its_submit_is_charged_once_when_it_is_repeated() {
    let service = Service::start_on_sqlite(&["--test-fault", "after-submit=delay"]).await;
    let caller = service.caller("ada", 100).await;
    tokio::select! {
        answer = caller.generations(&[], BODY) => panic!("answered: {answer:?}"),
        () = until(async || service.faults.all_happened()) => {}
    }
    let database = Connection::open(service.directory.path().join("tintype.db")).expect("the database");
    let held = "SELECT count(*) FROM calls WHERE holder IS NOT NULL";
    until(async || database.query_row(held, [], |row| row.get::<_, i64>(0)).expect("a count") == 0).await;
    service.worked(caller.generations(&[], BODY)).await;
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test]
async fn two_calls_at_once_of_a_client_that_counts_nothing_are_two_tasks() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let work = async {
        service.waiting(2).await;
        service.work().await;
    };
    let (one, other, ()) = tokio::join!(caller.generations(&[], BODY), caller.generations(&[], BODY), work);
    assert_ne!(task_of(&one), task_of(&other));
    assert_eq!(caller.credits().await, 96);
}

#[tokio::test]
async fn an_attempt_that_still_waits_gives_way_to_the_next_one() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let first = try_send(service.address, "POST", GENERATIONS, &caller.key, BODY);
    let second = async {
        service.waiting(1).await;
        let work = async {
            service.waiting(2).await;
            service.work().await;
        };
        tokio::join!(attempt(&caller, "1"), work).0
    };
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_none(), "no caller gets the pictures of another: {first:?}");
    assert_eq!(caller.task(task_of(&second)).await["status"], "completed");
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test]
async fn a_repeated_call_of_another_key_finds_nothing() {
    let service = Service::start().await;
    let (ada, eve) = (service.caller("ada", 100).await, service.caller("eve", 0).await);
    hang_up(&ada).await;
    assert_eq!(attempt(&eve, "1").await.json()["error"]["code"], "insufficient_quota");
    let (key_id, key) = service.new_key(ada.account.id, |_| {}).await;
    let other = Caller { service: service.clone(), account: ada.account.clone(), key_id, key };
    let mine = service.worked(attempt(&ada, "1")).await;
    let others = service.worked(attempt(&other, "1")).await;
    assert_ne!(task_of(&mine), task_of(&others));
    assert_eq!(ada.credits().await, 96);
}

#[tokio::test]
async fn a_revoked_key_gets_no_pictures_of_an_attempt_before() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    hang_up(&caller).await;
    service.shared.store.change_key(caller.key_id, KeyChange::Revoke).await.expect("a store");
    // The key is cached for a moment.
    service.clock.advance(std::time::Duration::from_secs(5));
    assert_eq!(attempt(&caller, "1").await.status, 401);
}

#[tokio::test]
async fn an_idempotency_key_stands_for_one_task_and_one_body() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let named = [("idempotency-key", "order 66")];
    let first = service.worked(caller.generations(&named, BODY)).await;
    let again = caller.generations(&named, r#"{"prompt": "a boat", "n": null}"#).await;
    assert_eq!((task_of(&first), first.json()["data"].clone()), (task_of(&again), again.json()["data"].clone()));
    let other = caller.generations(&named, r#"{"prompt": "a ship"}"#).await;
    assert_eq!((other.status.as_u16(), other.header("x-should-retry")), (422, "false"));
    assert_eq!(other.json()["error"]["code"], "idempotency_key_reused");
    for wrong in ["", &"k".repeat(256)] {
        let answer = caller.generations(&[("idempotency-key", wrong)], BODY).await;
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        assert_eq!(answer.status, 400);
    }
    let twice = caller.generations(&[("idempotency-key", "a"), ("idempotency-key", "b")], BODY).await;
    assert_eq!((twice.status.as_u16(), twice.json()["error"]["param"].clone()), (400, Value::Null));
    assert_eq!(caller.credits().await, 98);
    let fresh = KeySecret::random();
    let rotated =
        service.shared.store.rotate_key(caller.key_id, fresh.hash(), &fresh.hint(), Duration::from_secs(60)).await;
    assert!(rotated.expect("a store").is_some());
    let authorization = format!("Bearer {}", fresh.reveal());
    let with_new_key = [named[0], ("authorization", &authorization), ("content-type", "application/json")];
    let again = service.call("POST", "/v1/images/generations", &with_new_key, BODY).await;
    assert_eq!(task_of(&first), task_of(&again), "the key was rotated between the two");
    let both = [("idempotency-key", "order 67"), ("x-stainless-retry-count", "1")];
    let next = service.worked(caller.generations(&both, &json!({ "prompt": "a boat" }).to_string())).await;
    assert_ne!(task_of(&first), task_of(&next));
    assert_eq!(caller.credits().await, 96);
}

#[tokio::test]
async fn an_idempotency_key_whose_task_was_removed_is_answered_at_once_and_costs_nothing() {
    let (service, caller) = Service::with_caller(&["--retention", "1h"], 100).await;
    let named = ("idempotency-key", "order 66");
    service.worked(caller.generations(&[named], BODY)).await;
    service.clock.advance(std::time::Duration::from_secs(3_601));
    service.sweeper.remove_old().await;
    for also in [("x-stainless-retry-count", "1"), ("prefer", "respond-async")] {
        let answer = caller.generations(&[named, also], BODY).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-should-retry")), (410, "false"), "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], "task_removed");
    }
    assert_eq!(caller.credits().await, 98);
    service.worked(caller.generations(&[("idempotency-key", "order 67")], BODY)).await;
    assert_eq!(caller.credits().await, 96);
}

#[tokio::test]
async fn a_call_whose_process_is_killed_after_the_charge_is_repeated_at_the_next_process() {
    repeated_after_a_kill(Some("1")).await;
    // Most clients don't count their attempts.
    repeated_after_a_kill(None).await;
}

async fn repeated_after_a_kill(count: Option<&str>) {
    let data = TempDir::new().expect("a directory");
    let mut server = Server::start(data.path(), &["--test-fault", "after-submit=kill"]);
    let key = server.first_key().expect("a key");
    assert!(try_send(server.address, "POST", GENERATIONS, &key, BODY).await.is_none());
    assert!(!server.until_ended().await.success());
    let server = Server::start(data.path(), &[]);
    let mut request = Request::post(GENERATIONS)
        .header("host", server.address.to_string())
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json");
    if let Some(count) = count {
        request = request.header("x-stainless-retry-count", count);
    }
    let request = request.body(Full::new(Bytes::from(BODY)));
    let stream = TcpStream::connect(server.address).await.expect("the server listens");
    let answer = exchange(stream, request.expect("a request")).await;
    assert!(answer.json()["data"][0]["b64_json"].is_string(), "{answer:?}");
    server.stop();
    let audit = binary::json(data.path(), &["credits", "audit"]);
    assert_eq!((audit["tasks"].as_u64(), &audit["drifts"]), (Some(1), &json!([])), "one task, charged once");
}
