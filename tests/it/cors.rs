//! Calls of web pages on other origins: a browser asks first, and lets only pages of allowed origins read a response.

use std::collections::BTreeSet;

use serde_json::json;
use tintype_config::MAX_BODY;

use crate::rigs::http::{Answer, GENERATE, TASKS};
use crate::rigs::service::{Caller, Service};

const PAGE: &str = "https://app.example.com";
const OTHER: &str = "https://app.example.com.evil.example";
const TASK: &str = "/api/v1/images/task/imgmodel-AAAAAAAAAAAAAAAAAAAAA";

/// Sends a preflight request as Chromium does.
async fn preflight(service: &Service, path: &str, origin: &str) -> Answer {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,prefer"),
    ];
    service.call("OPTIONS", path, &headers, "").await
}

async fn get(caller: &Caller, path: &str, origins: &[&str]) -> Answer {
    let headers: Vec<_> = origins.iter().map(|origin| ("origin", *origin)).collect();
    caller.call("GET", path, &headers, "").await
}

fn allows(answer: &Answer) -> Option<&str> {
    assert!(!answer.headers.contains_key("access-control-allow-credentials"), "{answer:?}");
    answer.headers.get("access-control-allow-origin").map(|origin| origin.to_str().expect("text"))
}

fn members(answer: &Answer, name: &str) -> BTreeSet<String> {
    answer.header(name).split(',').map(|member| member.trim().to_lowercase()).collect()
}

fn set(members: &[&str]) -> BTreeSet<String> {
    members.iter().map(|member| (*member).to_owned()).collect()
}

#[tokio::test]
async fn a_server_without_allowed_origins_answers_as_if_there_were_no_browsers() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let answer = get(&caller, TASKS, &[PAGE]).await;
    assert_eq!((answer.status.as_u16(), allows(&answer)), (200, None));
    assert!(!answer.headers.contains_key("access-control-expose-headers"));
    let answer = preflight(&service, GENERATE, PAGE).await;
    answer.assert_error(405, "INVALID_REQUEST");
    assert_eq!(allows(&answer), None);
}

#[tokio::test]
async fn a_preflight_request_is_answered_before_authentication_and_rate_limits() {
    let service = Service::start_with(&["--production", "--cors-origin", PAGE, "http://localhost:5173"]).await;
    for (path, methods) in [(GENERATE, &["post"][..]), (TASKS, &["get", "head"]), (TASK, &["get", "head"])] {
        for origin in [PAGE, "http://localhost:5173"] {
            let answer = preflight(&service, path, origin).await;
            assert_eq!((answer.status.as_u16(), allows(&answer)), (204, Some(origin)), "{path}");
            assert_eq!(members(&answer, "access-control-allow-methods"), set(methods));
            let sent = members(&answer, "access-control-allow-headers");
            assert!(sent.is_superset(&set(&["authorization", "content-type", "prefer", "*"])), "{sent:?}");
            assert!(answer.header("access-control-max-age").parse::<u32>().expect("seconds") >= 600);
            assert_eq!(members(&answer, "vary"), set(&["origin"]));
            assert!(!answer.headers.contains_key("ratelimit"), "{answer:?}");
            assert!(!answer.header("x-request-id").is_empty());
        }
    }
}

#[tokio::test]
async fn other_origins_and_other_paths_are_answered_as_without_cors() {
    let (service, caller) = Service::with_caller(&["--cors-origin", PAGE], 10).await;
    for origin in
        [OTHER, "http://app.example.com", "https://app.example.com:444", "null", "", "*", "HTTPS://APP.EXAMPLE.COM"]
    {
        let answer = preflight(&service, GENERATE, origin).await;
        answer.assert_error(405, "INVALID_REQUEST");
        assert_eq!(allows(&answer), None, "{origin}");
        let answer = get(&caller, TASKS, &[origin]).await;
        assert_eq!((answer.status.as_u16(), allows(&answer)), (200, None), "{origin}");
        assert_eq!(members(&answer, "vary"), set(&["origin"]), "a cache must not show this to the allowed origin");
    }
    let answer = get(&caller, TASKS, &[PAGE, PAGE]).await;
    assert_eq!(allows(&answer), None, "no browser sends two origins");
    for path in ["/", "/docs/", "/openapi.json", "/healthz", "/readyz"] {
        assert_eq!(allows(&get(&caller, path, &[PAGE]).await), None, "{path}");
        let answer = preflight(&service, path, PAGE).await;
        assert_eq!((answer.status.as_u16(), allows(&answer)), (405, None), "{path}");
    }
    // Not a preflight request: no browser sends it.
    let answer = service.call("OPTIONS", GENERATE, &[("origin", PAGE)], "").await;
    answer.assert_error(405, "INVALID_REQUEST");
    assert_eq!(allows(&answer), Some(PAGE));
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_may_read_every_error() {
    let (service, caller) = Service::with_caller(&["--cors-origin", PAGE, "--submit-rate", "4"], 3).await;
    let post = async |body: &str| caller.post_with(&[("origin", PAGE)], body.to_owned()).await;
    let mut errors = vec![
        (400, post("{").await),
        (402, post(r#"{"prompt": "a boat", "n": 2}"#).await),
        (413, post(&" ".repeat(MAX_BODY + 1)).await),
        (400, post("{}").await),
        (429, post("{}").await),
        (401, service.call("GET", TASKS, &[("origin", PAGE)], "").await),
        (401, get(&caller, &format!("{TASKS}?token=x"), &[PAGE]).await),
        (404, get(&caller, TASK, &[PAGE]).await),
        (404, get(&caller, "/api/v2/none", &[PAGE]).await),
        (405, service.call("PUT", GENERATE, &[("origin", PAGE)], "").await),
    ];
    let headers = [("origin", PAGE), ("host", "twice.example")];
    errors.push((400, service.call("GET", TASKS, &headers, "").await));
    for (status, answer) in errors {
        assert_eq!((answer.status.as_u16(), allows(&answer)), (status, Some(PAGE)), "{answer:?}");
        assert_eq!(members(&answer, "vary"), set(&["origin"]));
        // The clients of OpenAI repeat what does not say that they should not.
        assert!(members(&answer, "access-control-expose-headers").contains("x-should-retry"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_page_may_read_every_header_that_the_api_documents() {
    let (_, caller) = Service::with_caller(&["--cors-origin", "*", "--submit-rate", "1"], 10).await;
    let body = json!({ "prompt": "a boat", "aspect": "16:9" }).to_string();
    let first = caller.post(body.clone()).await;
    let task = format!("{TASKS}/{}", first.json()["data"]["task_id"].as_str().expect("a task_id"));
    let answers = [first, caller.post(body).await, get(&caller, &task, &[PAGE]).await];
    assert_eq!(answers[1].status, 429);
    // Those that the standard or the browser handles itself.
    let known = ["cache-control", "content-type", "content-length", "vary", "connection"];
    let exposed = members(&answers[2], "access-control-expose-headers");
    for answer in &answers {
        for name in answer.headers.keys().map(|name| name.as_str()) {
            let told = known.contains(&name) || name.starts_with("access-control-");
            assert!(told || exposed.contains(name), "{name} is not exposed: {exposed:?}");
        }
    }
    assert!(exposed.is_superset(&set(&["retry-after", "x-request-id", "ratelimit", "ratelimit-policy"])));
}

#[tokio::test]
async fn a_star_allows_every_origin_and_nothing_else() {
    let (service, caller) = Service::with_caller(&["--cors-origin", "*"], 10).await;
    for origin in [PAGE, OTHER, "null"] {
        let answer = get(&caller, TASKS, &[origin]).await;
        assert_eq!((answer.status.as_u16(), allows(&answer)), (200, Some("*")));
        assert!(!answer.headers.contains_key("vary"), "the response is the same for every origin");
        assert_eq!(preflight(&service, GENERATE, origin).await.status, 204);
    }
    assert_eq!(allows(&get(&caller, TASKS, &[]).await), None);
    let answer = get(&caller, "/docs/", &[PAGE]).await;
    assert_eq!(allows(&answer), None);
}
