//! Connections, requests and tasks.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;
use tintype_domain::ledger::STOPS_WITHIN;
use tintype_domain::model::TaskId;
use tintype_store::KeyChange;

use crate::connections::{get, rest};
use crate::limits::observe_attempts_of_a_minute;
use crate::retention::ended;
use crate::rigs::http::TASKS;
use crate::rigs::service::Service;
use crate::rigs::visitor::{Visitor, text};

#[tokio::test]
async fn connections() {
    let (service, caller) = Service::with_caller(&["--max-connections-per-address", "3"], 10).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(caller.hold(2).await);
    }
    let said = rest(service.write_from(2, get(TASKS, &caller)).await).await;
    assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("\r\nx-request-id: "), "{said}");
    assert!(said.contains("\"INTERNAL_ERROR\""), "{said}");
    caller.hold(3).await; // Another address is served.
}

#[tokio::test]
async fn requests() {
    let (service, [ada, bob]) =
        Service::with_callers(&["--account-submit-rate", "2", "--account-read-rate", "3"], ["ada", "bob"], 10).await;
    let mut authorizations = Vec::new();
    for _ in 0..4 {
        authorizations.push(format!("Bearer {}", service.new_key(ada.account.id, |_| {}).await.1));
    }
    let read = async |authorization: &str| service.call("GET", TASKS, &[("authorization", authorization)], "").await;
    for authorization in &authorizations[..3] {
        assert_eq!(read(authorization).await.status, 200);
    }
    let refused = read(&authorizations[3]).await;
    assert!(refused.assert_error(429, "RATE_LIMITED").contains("of this account"));
    assert_eq!(refused.header("ratelimit-policy"), "\"account-read\";q=3;w=60");
    assert_eq!(bob.get(TASKS).await.status, 200, "accounts are counted apart");
    ada.submit_many(2, "a boat").await;
    ada.post(r#"{"prompt": "a boat"}"#).await.assert_error(429, "RATE_LIMITED");
    bob.submit_prompt("a boat").await;
    service.clock.advance(Duration::from_secs(30));
    ada.submit_prompt("a boat").await;
}

#[tokio::test]
async fn credits_within_a_budget_of_the_operator() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let store = &service.shared.store;
    const FORM: &str = "action=\"/studio/keys\"";
    assert!(ada.page("/studio/keys").await.contains(FORM));
    // Budgets of the owners' own keep nobody from anything.
    let fields = [("name", "laptop"), ("budget", "10"), ("period", "month")];
    ada.secret(&ada.send("/studio/keys", &fields).await).await;
    ada.secret(&ada.send("/studio/keys", &[("name", "phone")]).await).await;
    let key = store.list_keys(Some(ada.account)).await.expect("a store").remove(0);
    assert!(!key.operator_budget);
    let set = async |budget: Option<&str>| {
        let budget = budget.map(|text| text.parse().expect("a budget"));
        store.change_key(key.id, KeyChange::Budget(budget)).await.expect("a store").expect("the key exists")
    };
    assert!(set(Some("5/month")).await.operator_budget);
    let lower = format!("/studio/keys/{}/budget", key.id);
    assert_eq!(ada.send(&lower, &[("budget", "4"), ("period", "month")]).await.status, StatusCode::SEE_OTHER);
    let refused = async || {
        let refused = ada.send("/studio/keys", &[("name", "another")]).await;
        assert!(text(&refused).contains("has set a budget for a key of this account"), "{}", text(&refused));
        let page = ada.page("/studio/keys").await;
        assert!(page.contains("has set a budget for a key of this account") && !page.contains(FORM), "{page}");
        store.list_keys(Some(ada.account)).await.expect("a store").len()
    };
    assert_eq!(refused().await, 2);
    ada.secret(&ada.send(&format!("/studio/keys/{}/rotate", key.id), &[("hours", "0")]).await).await;
    let rotated = store.list_keys(Some(ada.account)).await.expect("a store").remove(2);
    assert_eq!((rotated.first_id, rotated.operator_budget), (key.id, true));
    for id in [key.id, rotated.id] {
        ada.send(&format!("/studio/keys/{id}/revoke"), &[]).await;
    }
    assert_eq!(refused().await, 3, "also when the key is revoked");
    assert!(!set(None).await.operator_budget);
    ada.secret(&ada.send("/studio/keys", &[("name", "another")]).await).await;
}

#[tokio::test]
async fn unfinished_tasks() {
    let (service, ada) = Service::with_caller(&["--max-unfinished", "3"], 100).await;
    let bob = service.caller("bob", 100).await;
    for _ in 0..3 {
        ada.submit(json!({ "prompt": "a boat" })).await;
    }
    let refused = ada.post(r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert!(refused.header("retry-after").parse::<u32>().expect("whole seconds") >= 1);
    assert_eq!(ada.credits().await, 94);
    bob.submit(json!({ "prompt": "a boat" })).await;
    service.work().await;
    ada.submit(json!({ "prompt": "a boat" })).await;
    ada.submit(json!({ "prompt": "a boat [[fail]]" })).await;
    service.work().await;
    for _ in 0..3 {
        ada.submit(json!({ "prompt": "a boat" })).await;
    }
}

#[tokio::test]
async fn failed_tasks_which_are_refunded() {
    let (service, [ada, bob]) =
        Service::with_callers(&["--max-failed-tasks", "3", "--submit-rate", "0"], ["ada", "bob"], 100).await;
    for _ in 0..3 {
        ended(&ada, "a boat [[fail]]").await;
        service.clock.advance(Duration::from_secs(60));
    }
    let refused = ada.post(r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(429, "RATE_LIMITED");
    let message = &refused.json()["error"]["message"];
    assert_eq!(message, "3 tasks of the account have failed within ten minutes, which is its limit.");
    let wait: u64 = refused.header("retry-after").parse().expect("seconds");
    assert!((396..=397).contains(&wait), "{wait}");
    assert_eq!(ada.credits().await, 100);
    bob.submit_prompt("a boat").await;
    service.clock.advance(Duration::from_secs(wait));
    // Those that succeed do not count.
    for _ in 0..4 {
        ended(&ada, "a boat").await;
        service.clock.advance(Duration::from_secs(2));
    }
    ended(&ada, "a boat [[fail]]").await;
    service.clock.advance(Duration::from_secs(1));
    ada.post(r#"{"prompt": "a boat"}"#).await.assert_error(429, "RATE_LIMITED");
}

#[tokio::test]
async fn renders_that_are_stopped_and_refunded() {
    let (service, [ada, bob]) = Service::with_visitors(&["--submit-rate", "0"], ["ada", "bob"], 100).await;
    let rendering = async |visitor: &Visitor| {
        let id = visitor.create("a boat").await;
        let claims = service.shared.store.claim(1, Duration::from_secs(60)).await.expect("a store");
        assert_eq!(claims.len(), 1);
        format!("/studio/tasks/{id}/cancel")
    };
    for _ in 0..20 {
        let stop = rendering(&ada).await;
        assert_eq!(ada.send(&stop, &[]).await.status, StatusCode::SEE_OTHER);
    }
    let stop = rendering(&ada).await;
    for refused in [ada.send(&stop, &[]).await, ada.send_as_script(&stop).await] {
        let goes_on = "so this one continues. Let it finish, then delete it.";
        assert!(refused.status == 409 && text(&refused).contains(goes_on), "{refused:?}");
    }
    assert_eq!(ada.credits().await, 98);
    let of_bob = rendering(&bob).await;
    assert_eq!(bob.send(&of_bob, &[]).await.status, StatusCode::SEE_OTHER);
    assert_eq!(bob.credits().await, 100);
    service.clock.advance(STOPS_WITHIN);
    assert_eq!(ada.send(&stop, &[]).await.status, StatusCode::SEE_OTHER);
    assert_eq!(ada.credits().await, 100);
    // One that waits costs nothing.
    let waits = ada.create("a boat").await;
    assert_eq!(ada.send(&format!("/studio/tasks/{waits}/cancel"), &[]).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn prompts_and_references_of_failed_tasks_in_the_database() {
    let (service, [ada, bob]) =
        Service::with_callers(&["--failed-prompt-space", "1KiB", "--submit-rate", "0"], ["ada", "bob"], 100).await;
    let mut tasks = Vec::new();
    for caller in [&bob, &ada, &ada, &ada] {
        tasks.push(ended(caller, &format!("{:a>500} [[fail]]", "a boat ")).await);
    }
    service.clock.advance(Duration::from_secs(60 * 60 + 1));
    service.sweeper.erase_failed_prompts().await;
    let mut kept = Vec::new();
    for (task_id, caller) in tasks.iter().zip([&bob, &ada, &ada, &ada]) {
        let TaskId(id) = task_id.parse().expect("a task_id");
        let record = service.shared.store.inspect_task(id).await.expect("a store").expect("the task stays");
        kept.push(!record.request.prompt.is_empty());
        assert_eq!(caller.task(task_id).await["status"], "failed");
    }
    assert_eq!(kept, [true, false, true, true], "the oldest of the account that has too many");
}

#[tokio::test]
async fn the_queue() {
    let (service, [ada, bob]) =
        Service::with_callers(&["--renders", "1", "--submit-rate", "0"], ["ada", "bob"], 100).await;
    observe_attempts_of_a_minute(&service);
    ada.submit_many(9, "a boat").await;
    let refused = ada.post(r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "60");
    // The tasks of both take turns, so the fifth of bob is the ninth or the tenth to be rendered.
    bob.submit_many(4, "a boat").await;
    bob.post(r#"{"prompt": "a boat"}"#).await.assert_error(429, "RATE_LIMITED");
    service.clock.advance(Duration::from_secs(1));
    bob.post(r#"{"prompt": "a boat"}"#).await.assert_error(429, "RATE_LIMITED");
    assert_eq!((ada.credits().await, bob.credits().await), (82, 92));
    // The queue is measured again, and renders have taken no time.
    service.clock.advance(Duration::from_secs(1));
    service.work().await;
    bob.submit_prompt("a boat").await;
}
