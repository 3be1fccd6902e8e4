//! Calls of OpenAI's Images API that are answered at once, and the polling of their tasks.

use serde_json::{Value, json};

use crate::rigs::http::{Answer, GENERATIONS};
use crate::rigs::service::{Caller, Service};

async fn post(caller: &Caller, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    caller.post_json(path, headers, body.to_string()).await
}

#[track_caller]
fn accepted(answer: &Answer) -> String {
    assert_eq!(answer.status, 202, "{answer:?}");
    let body = answer.json();
    assert_eq!((&body["status"], &body["object"]), (&json!("processing"), &json!("image.generation.task")));
    assert_eq!(answer.header("location"), body["poll_url"]);
    assert_eq!((answer.header("retry-after"), answer.header("cache-control")), ("3", "no-store"));
    assert_eq!(
        (answer.header("x-tintype-task-id"), &body["id"]),
        (body["task_id"].as_str().expect("an id"), &body["task_id"])
    );
    body["poll_url"].as_str().expect("a path").to_owned()
}

#[tokio::test]
async fn a_call_is_answered_at_once_and_its_task_is_polled() {
    let (service, caller) = Service::with_caller(&["--retention", "24h"], 100).await;
    let body = json!({ "prompt": "a boat", "n": 2 });
    let path = accepted(&post(&caller, "/v1/images/generations/async", &[], &body).await);
    let processing = caller.get(&path).await;
    let first = processing.json();
    assert_eq!((&first["status"], processing.header("retry-after")), (&json!("processing"), "3"));
    let created = first["created_at"].as_i64().expect("a time");
    assert_eq!(first["expires_at"], created + 24 * 60 * 60);
    assert!(first.get("result").is_none() && first.get("error").is_none(), "{first}");
    service.work().await;
    let done = caller.get(&path).await.json();
    assert_eq!((&done["status"], &done["http_status"]), (&json!("completed"), &json!(200)));
    let data = done["result"]["data"].as_array().expect("pictures");
    assert_eq!((data.len(), &done["image_url"]), (2, &data[0]["url"]));
    let file = service.fetch(data[1]["url"].as_str().expect("a URL"), &[]).await;
    assert_eq!((file.status.as_u16(), file.header("content-type")), (200, "image/png"));
    let id = done["id"].as_str().expect("an id");
    assert_eq!(caller.task(id).await["status"], "completed");
    assert_eq!(caller.credits().await, 96);
}

#[tokio::test]
async fn a_caller_asks_for_an_answer_at_once_in_three_ways() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let edit = json!({ "prompt": "a boat", "image": "https://example.com/a.png" });
    let body = json!({ "prompt": "a boat" });
    let preferred = post(&caller, GENERATIONS, &[("prefer", "respond-async")], &body).await;
    accepted(&preferred);
    assert_eq!(preferred.header("preference-applied"), "respond-async");
    accepted(&post(&caller, "/v1/images/generations?async=true", &[], &body).await);
    // As Python writes it.
    accepted(&post(&caller, "/v1/images/generations?async=True", &[], &body).await);
    let refused = post(&caller, "/v1/images/generations?async=maybe", &[], &body).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("async")));
    let refused = post(&caller, "/v1/images/generations?async=true&async=false", &[], &body).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("async")));
    let answer = post(&caller, "/v1/images/edits/async", &[], &edit).await;
    let polled = caller.get(&accepted(&answer)).await;
    for task in [answer, polled] {
        assert_eq!(task.json().get("expires_at"), Some(&Value::Null), "tasks are kept for ever");
    }
    let jpeg = json!({ "prompt": "a boat", "output_format": "jpeg" });
    let refused = post(&caller, "/v1/images/generations/async", &[], &jpeg).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("output_format")));
    assert_eq!(caller.credits().await, 92);
}

#[tokio::test]
async fn a_failed_task_has_the_error_and_the_status_of_a_call_that_waits() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    for (prompt, status, code) in
        [("a [[policy]]", 400, "content_policy_violation"), ("a [[fail]]", 500, "task_failed")]
    {
        let path = accepted(&post(&caller, "/v1/images/generations/async", &[], &json!({ "prompt": prompt })).await);
        service.work().await;
        let failed = caller.get(&path).await;
        assert_eq!(failed.status, 200);
        let failed = failed.json();
        assert_eq!((&failed["status"], &failed["http_status"]), (&json!("failed"), &json!(status)));
        assert_eq!(failed["error"]["code"], code);
        assert!(failed.get("result").is_none(), "{failed}");
    }
    assert_eq!(caller.credits().await, 100);
}

#[tokio::test]
async fn a_task_of_another_account_is_not_there() {
    let (_, [ada, eve]) = Service::with_callers(&[], ["ada", "eve"], 100).await;
    let path = accepted(&post(&ada, "/v1/images/generations/async", &[], &json!({ "prompt": "a boat" })).await);
    for (caller, path) in [(&eve, path.as_str()), (&ada, "/v1/images/tasks/x")] {
        let answer = caller.get(path).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (404, &json!("not_found")), "{path}");
    }
    let native = ada.submit_prompt("a boat").await;
    assert_eq!(ada.get(&format!("/v1/images/tasks/{native}")).await.json()["status"], "processing");
}

#[tokio::test]
async fn an_idempotency_key_names_one_task_that_is_answered_at_once() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let body = json!({ "prompt": "a boat" });
    let path = "/v1/images/generations/async";
    let first = accepted(&post(&caller, path, &[("idempotency-key", "a")], &body).await);
    let again = accepted(&post(&caller, path, &[("idempotency-key", "a")], &body).await);
    assert_eq!(first, again);
    assert_eq!(caller.credits().await, 98);
}
