//! Budgets of keys and credits that expire, as callers see them.

use std::time::Duration;

use serde_json::{Value, json};
use tintype_domain::budget::Budget;
use tintype_store::KeyChange;

use crate::rigs::http::Answer;
use crate::rigs::service::{Caller, Service};

const ACCOUNT: &str = "/api/v1/account";
const HOUR: Duration = Duration::from_secs(3_600);

fn budget(text: &str) -> Option<Budget> {
    Some(text.parse().expect("a budget"))
}

async fn limited(service: &Service, credits: i64, text: &str) -> Caller {
    let caller = service.caller("ada", credits).await;
    let change = KeyChange::Budget(budget(text));
    service.shared.store.change_key(caller.key_id, change).await.expect("a store").expect("a key");
    caller
}

async fn shown(caller: &Caller) -> Value {
    caller.get(ACCOUNT).await.json()["data"]["budget"].clone()
}

fn message(answer: &Answer) -> String {
    answer.json()["error"]["message"].as_str().expect("a message").to_owned()
}

#[tokio::test]
async fn a_spent_budget_is_402_with_what_is_left_and_until_when() {
    let service = Service::start().await;
    let caller = limited(&service, 100, "5/day").await;
    caller.submit(json!({ "prompt": "a boat" })).await;
    let answer = caller.post(r#"{"prompt": "a boat", "n": 2}"#).await;
    answer.assert_error(402, "INSUFFICIENT_CREDITS");
    let body = answer.json();
    assert_eq!((&body["required"], &body["available"]), (&json!(4), &json!(3)));
    assert_eq!((&body["error"]["required"], &body["error"]["available"]), (&json!(4), &json!(3)));
    assert_eq!(
        message(&answer),
        "This task costs 4 credits and the budget of this key has 3 left until 2026-11-22T00:00:00.000Z."
    );
    assert_eq!(caller.credits().await, 98);
    let another = service.new_key(caller.account.id, |_| {}).await.1;
    let free = service.call("GET", ACCOUNT, &[("authorization", &format!("Bearer {another}"))], "").await;
    assert_eq!(free.json()["data"]["budget"], Value::Null);
    service.assert_sound().await;
}

#[tokio::test]
async fn the_balance_counts_if_it_is_smaller_than_the_budget() {
    let service = Service::start().await;
    let caller = limited(&service, 3, "6/week").await;
    let answer = caller.post(r#"{"prompt": "a boat", "n": 4}"#).await;
    answer.assert_error(402, "INSUFFICIENT_CREDITS");
    assert_eq!(answer.json()["available"], 3);
    assert!(message(&answer).contains("has 6 left until 2026-11-23T"), "{answer:?}");
    let answer = caller.post(r#"{"prompt": "a boat", "n": 3}"#).await;
    assert_eq!(
        (message(&answer), &answer.json()["available"]),
        ("This task costs 6 credits and the account has 3.".into(), &json!(3))
    );
}

#[tokio::test]
async fn the_account_shows_the_budget_of_the_key_and_a_refund_returns_to_it() {
    let service = Service::start().await;
    let caller = limited(&service, 100, "6/month").await;
    let used = |spent: i64, left: i64, resets_at: &str| json!({ "credits": 6, "period": "month", "spent": spent, "left": left, "resets_at": resets_at });
    assert_eq!(shown(&caller).await, used(0, 6, "2026-12-01T00:00:00.000Z"));
    caller.submit_prompt("a boat [[fail]]").await;
    caller.submit_prompt("a boat").await;
    assert_eq!(shown(&caller).await, used(4, 2, "2026-12-01T00:00:00.000Z"));
    service.work().await;
    assert_eq!(shown(&caller).await, used(2, 4, "2026-12-01T00:00:00.000Z"));
    service.clock.advance(HOUR * 24 * 10);
    assert_eq!(shown(&caller).await, used(0, 6, "2027-01-01T00:00:00.000Z"));
    service.assert_sound().await;
}

#[tokio::test]
async fn openais_dialect_answers_a_spent_budget_as_too_few_credits() {
    let service = Service::start().await;
    let caller = limited(&service, 100, "3/day").await;
    let refused = caller.generations(&[], r#"{"prompt": "a boat", "n": 2}"#).await;
    assert_eq!((refused.status.as_u16(), refused.header("x-should-retry")), (429, "false"));
    let error = &refused.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("insufficient_quota"), &json!("insufficient_quota")));
    assert!(message(&refused).contains("the budget of this key has 3 left until 2026-11-22T"), "{refused:?}");
    // Refused before anything of the form is read.
    caller.submit_prompt("a boat").await;
    let refused = caller.edit(&[], "multipart/form-data; boundary=b", "no form at all").await;
    assert_eq!(refused.status, 429);
    assert!(message(&refused).contains("the budget of this key has 1 left"), "{refused:?}");
    assert_eq!(caller.credits().await, 98);
    service.assert_sound().await;
}

#[tokio::test]
async fn expired_credits_pay_nothing_and_the_sweeper_takes_them() {
    let (service, caller) = Service::with_caller(&[], 1).await;
    let store = &service.shared.store;
    let end = service.clock.now().saturating_add(HOUR);
    store.grant(caller.account.id, 4, None, Some(end)).await.expect("a store");
    caller.submit_prompt("a boat").await;
    service.clock.set(end);
    let answer = caller.post(r#"{"prompt": "a boat"}"#).await;
    answer.assert_error(402, "INSUFFICIENT_CREDITS");
    assert_eq!(answer.json()["available"], 1);
    service.sweeper.step().await;
    assert_eq!(caller.credits().await, 3, "the sweep ends the task too, which is refunded for a day");
    let entries = store.history(caller.account.id, None, 3).await.expect("a store");
    let lines: Vec<_> = entries.iter().map(|entry| (entry.kind.as_str(), entry.amount, entry.balance)).collect();
    assert_eq!(lines, [("expiry", -2, 3), ("refund", 2, 5), ("charge", -2, 3)]);
    service.clock.advance(HOUR * 24);
    service.sweeper.step().await;
    assert_eq!(caller.credits().await, 1);
    service.assert_sound().await;
}
