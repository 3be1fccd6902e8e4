//! How much callers may do: interface, section 7, and the rate limit headers.

use std::time::Duration;

use serde_json::json;

use crate::support::{Service, TASKS};

#[tokio::test]
async fn submits_are_limited_per_key_and_recover() {
    let service = Service::start().await;
    let ada = service.caller("ada", 1_000).await;
    let bob = service.caller("bob", 1_000).await;
    for used in 1..=60 {
        let answer = ada.post(r#"{"prompt": "a boat"}"#).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit-policy"), "\"submit\";q=60;w=60");
        assert!(answer.header("ratelimit").starts_with(&format!("\"submit\";r={};t=", 60 - used)), "{answer:?}");
    }
    let refused = ada.post(r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.header("ratelimit"), "\"submit\";r=0;t=1");
    assert_eq!(ada.credits().await, 1_000 - 120, "a refused submit costs nothing");
    assert_eq!(ada.get(TASKS).await.status, 200, "reads are counted apart");
    assert_eq!(bob.post(r#"{"prompt": "a boat"}"#).await.status, 200, "keys are counted apart");
    service.clock.advance(Duration::from_secs(1));
    assert_eq!(ada.post(r#"{"prompt": "a boat"}"#).await.status, 200);
    ada.post(r#"{"prompt": "a boat"}"#).await.assert_error(429, "RATE_LIMITED");
}

#[tokio::test]
async fn the_rate_limit_comes_after_the_key_and_before_the_body() {
    let service = Service::start_with(&["--submit-rate", "1/min"]).await;
    let caller = service.caller("ada", 0).await;
    caller.post("not json").await.assert_error(400, "INVALID_REQUEST");
    let refused = caller.post("not json").await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "60");
    service.clock.advance(Duration::from_secs(60));
    caller.post(r#"{"prompt": "a boat"}"#).await.assert_error(402, "INSUFFICIENT_CREDITS");
}

#[tokio::test]
async fn reads_are_limited_per_key() {
    let service = Service::start_with(&["--read-rate", "3"]).await;
    let caller = service.caller("ada", 10).await;
    for _ in 0..3 {
        assert_eq!(caller.get(TASKS).await.status, 200);
    }
    let refused = caller.get(&format!("{TASKS}/imgmodel-AAAAAAAAAAAAAAAAAAAAA")).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "20");
    assert_eq!(refused.header("ratelimit-policy"), "\"read\";q=3;w=60");
}

#[tokio::test]
async fn a_key_may_have_rates_of_its_own() {
    let service = Service::start_with(&["--read-rate", "1"]).await;
    let caller = service.caller("ada", 10).await;
    let (_, free) = service.new_key(caller.account.id, |key| key.read_rate = Some(0)).await;
    let (_, two) = service.new_key(caller.account.id, |key| key.read_rate = Some(2)).await;
    let read = async |key: &str| service.call("GET", TASKS, &[("authorization", &format!("Bearer {key}"))], "").await;
    for _ in 0..20 {
        let answer = read(&free).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.headers.contains_key("ratelimit"));
    }
    let statuses =
        [read(&two).await.status.as_u16(), read(&two).await.status.as_u16(), read(&two).await.status.as_u16()];
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn unfinished_tasks_are_limited_per_account() {
    let service = Service::start_with(&["--max-unfinished", "3"]).await;
    let ada = service.caller("ada", 100).await;
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
async fn what_would_not_be_finished_in_time_is_refused_at_once() {
    let service = Service::start_with(&["--renders", "1", "--submit-rate", "0"]).await;
    let caller = service.caller("ada", 100).await;
    service.app.backlog.observe(Duration::from_secs(60));
    for _ in 0..9 {
        caller.submit_prompt("a boat").await;
    }
    let refused = caller.post(r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "60");
    assert_eq!(caller.credits().await, 100 - 9 * 2);
    // The queue is looked at again, and renders turn out to take no time.
    service.clock.advance(Duration::from_secs(1));
    service.work().await;
    caller.submit_prompt("a boat").await;
}
