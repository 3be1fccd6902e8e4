//! The caller's own account: its balance, its unfinished tasks and the limits of its key.

use serde_json::json;
use tintype_domain::model::Surface;
use tintype_domain::request::GenerateRequest;
use tintype_store::KeyChange;

use crate::rigs::service::Service;

const ACCOUNT: &str = "/api/v1/account";

#[tokio::test]
async fn an_account_shows_its_balance_its_unfinished_tasks_and_the_limits_of_the_key() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "7", "--max-unfinished", "3"], 10).await;
    service.caller("bob", 100).await.submit_prompt("a boat").await;
    let of_web = GenerateRequest::parse(br#"{"prompt": "a boat"}"#, &[443]).expect("valid");
    service.shared.store.submit(caller.account.id, None, Surface::Web, of_web, 0).await.expect("a store");
    caller.submit_prompt("a boat").await;
    let expected = |credits, unfinished| {
        json!({
            "success": true,
            "data": {
                "name": "ada",
                "credits": credits,
                "unfinished_tasks": unfinished,
                "limits": { "submits_per_minute": 7, "reads_per_minute": 1_200, "unfinished_tasks": 3 },
                "budget": null,
            }
        })
    };
    let answer = caller.get(ACCOUNT).await;
    assert_eq!((answer.status.as_u16(), answer.header("cache-control")), (200, "no-store"));
    assert_eq!(answer.json(), expected(6, 1), "tasks of the web are another surface");
    caller.submit_prompt("a boat [[fail]]").await;
    assert_eq!(caller.get(ACCOUNT).await.json(), expected(4, 2));
    service.work().await;
    assert_eq!(caller.get(ACCOUNT).await.json(), expected(6, 0));
}

#[tokio::test]
async fn a_limit_that_does_not_exist_is_null() {
    let (service, caller) = Service::with_caller(&["--read-rate", "0", "--max-unfinished", "0"], 10).await;
    let limits = async |key: &str| {
        let answer = service.call("GET", ACCOUNT, &[("authorization", &format!("Bearer {key}"))], "").await;
        answer.json()["data"]["limits"].clone()
    };
    let (_, own) =
        service.new_key(caller.account.id, |key| (key.submit_rate, key.read_rate) = (Some(0), Some(5))).await;
    let null = serde_json::Value::Null;
    assert_eq!(limits(&caller.key).await["submits_per_minute"], 60);
    assert_eq!(limits(&caller.key).await["reads_per_minute"], null);
    assert_eq!(
        limits(&own).await,
        json!({ "submits_per_minute": null, "reads_per_minute": 5, "unfinished_tasks": null })
    );
}

#[tokio::test]
async fn a_revoked_key_shows_no_account() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    service.shared.store.change_key(caller.key_id, KeyChange::Revoke).await.expect("a store");
    caller.get(ACCOUNT).await.assert_error(401, "UNAUTHORIZED");
}
