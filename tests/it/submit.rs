//! Creating tasks.

use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use tintype_store::START_WITHIN;

use crate::rigs::http::{GENERATE, TASKS};
use crate::rigs::service::Service;
use crate::rigs::wait::until;

#[tokio::test]
async fn a_valid_submit_is_charged_and_returns_the_reduced_task() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    let answer = caller.post(r#"{"prompt": "a boat", "n": 2, "aspect_ratio": "16:9"}"#).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "application/json");
    assert!(!answer.header("x-request-id").is_empty());
    let body = answer.json();
    let id = body["data"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(id.len(), 21);
    let expected = json!({
        "success": true,
        "data": {
            "id": id,
            "task_id": format!("imgmodel-{id}"),
            "status": "processing",
            "provider": "imgmodel",
            "model": "imgmodel",
            "type": "text-to-image",
            "media_url": null,
            "images": [],
            "created_at": "2026-11-21T12:00:00.000Z",
        }
    });
    assert_eq!(body, expected);
    assert_eq!(caller.credits().await, 6);
}

#[tokio::test]
async fn a_submit_with_references_is_image_to_image() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    let references = json!(["https://img.example.com/a.png", "HTTPS://IMG.example.com:443/b.png?x=1#y"]);
    let task = caller.submit(json!({ "prompt": "a boat", "reference_images": references })).await;
    assert_eq!(task["type"], "image-to-image");
    let task = caller.submit(json!({ "prompt": "a boat", "reference_images": [] })).await;
    assert_eq!(task["type"], "text-to-image");
}

#[tokio::test]
async fn every_aspect_ratio_is_accepted() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    for ratio in ["1:1", "16:9", "9:16", "4:3", "3:4", "3:2", "2:3", "5:4", "4:5", "2:1", "1:2", "21:9", "9:21"] {
        caller.submit(json!({ "prompt": "a boat", "aspect_ratio": ratio })).await;
    }
    assert_eq!(caller.credits().await, 100 - 13 * 2);
}

#[tokio::test]
async fn every_json_spelling_of_an_integer_is_accepted() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    for (n, cost) in [("1", 2), ("2.0", 4), ("3e0", 6), ("0.4E1", 8)] {
        let before = caller.credits().await;
        let answer = caller.post(format!(r#"{{"prompt": "a boat", "n": {n}}}"#)).await;
        assert_eq!(answer.status, 200, "{n}: {answer:?}");
        assert_eq!(before - caller.credits().await, cost, "{n}");
    }
    // The nearest numbers of 64 bits are whole.
    for n in ["4.0000000000000001", "0.99999999999999999999", "20000000000000000001e-19", "1e999"] {
        let answer = caller.post(format!(r#"{{"prompt": "a boat", "n": {n}}}"#)).await;
        answer.assert_error(400, "INVALID_REQUEST");
        let arguments = format!(r#"{{"prompt": "a boat", "n": {n}, "wait_seconds": 0}}"#);
        let params = format!(r#"{{"name": "generate_image", "arguments": {arguments}}}"#);
        let call = format!(r#"{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}"#);
        let answer = caller.post_json("/mcp", &[], call).await;
        assert!(!String::from_utf8_lossy(&answer.body).contains("imgmodel-"), "{n}: {answer:?}");
    }
    assert_eq!(caller.credits().await, 80);
}

#[tokio::test]
async fn unknown_fields_and_idempotency_keys_are_ignored() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let headers = [("content-type", "Application/JSON ; charset=utf-8"), ("idempotency-key", "once")];
    let body = r#"{"prompt": "a boat", "seed": 1, "more": {"n": 9, "n": 10}}"#;
    let first = caller.call("POST", GENERATE, &headers, body).await;
    let second = caller.call("POST", GENERATE, &headers, body).await;
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (200, 200));
    assert_ne!(first.json()["data"]["task_id"], second.json()["data"]["task_id"]);
    assert_eq!(caller.credits().await, 96);
}

#[tokio::test]
async fn a_header_names_the_ignored_fields_of_a_submit() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    for (body, names) in [
        (json!({ "prompt": "a boat" }), None),
        (json!({ "prompt": "a boat", "aspect": "16:9", "seed": 1, "size": null }), Some("aspect, seed, size")),
        (json!({ "Prompt": "b", "prompt": "a boat" }), Some("Prompt")),
        (json!({ "prompt": "a boat", "a\r\nx-injected: b": 1 }), Some("a%0D%0Ax-injected%3A%20b")),
    ] {
        let answer = caller.post(body.to_string()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let named = answer.headers.get("x-ignored-fields").map(|value| value.to_str().expect("text"));
        assert_eq!(named, names, "{body}");
        assert!(!answer.headers.contains_key("x-injected"), "{answer:?}");
    }
}

/// Bodies that are refused, each with what the message must mention.
fn bad_bodies() -> Vec<(Vec<u8>, &'static str)> {
    let text = |body: &str, about| (body.as_bytes().to_vec(), about);
    let mut bodies = vec![
        text("", "JSON"),
        text(" ", "JSON"),
        text("null", "object"),
        text("[]", "object"),
        text("\"a boat\"", "object"),
        text("7", "object"),
        text("{", "JSON"),
        text("{} {}", "JSON"),
        text("{}\u{0}", "JSON"),
        text("{'prompt': 'a boat'}", "JSON"),
        text("{\"prompt\": \"a boat\",}", "JSON"),
        text("{\"prompt\": \"a\nboat\"}", "JSON"),
        text("{\"prompt\": \"a boat\"} // really", "JSON"),
        text("{\"prompt\": \"\\ud800\"}", "JSON"),
        text("{\"prompt\": \"\\udc00\\ud800\"}", "JSON"),
        text("{\"prompt\": \"a boat\", \"n\": NaN}", "JSON"),
        text("{\"prompt\": \"a boat\", \"n\": Infinity}", "JSON"),
        text("{\"prompt\": \"a boat\", \"n\": 01}", "JSON"),
        text("{\"prompt\": \"a boat\", \"n\": +1}", "JSON"),
        text("{\"prompt\": \"a boat\", \"n\": 1e999}", "n must"),
        text("{\"prompt\": \"a boat\", \"x\": {\"n\": \"\\udead\"}}", "JSON"),
        text(&format!("{{\"prompt\": \"a boat\", \"x\": {{\"n\": {}}}}}", "[".repeat(200) + &"]".repeat(200)), "JSON"),
        text("{\"prompt\": \"a boat\", \"extra\": \"\\udead\"}", "JSON"),
        (b"{\"prompt\": \"\xff\xfe\"}".to_vec(), "JSON"),
        (b"{\"prompt\": \"\xc0\xaf\"}".to_vec(), "JSON"),
        text("{}", "prompt"),
        text("{\"prompt\": null}", "prompt"),
        text("{\"prompt\": 7}", "prompt"),
        text("{\"prompt\": [\"a boat\"]}", "prompt"),
        // The mark of the JSON library for values that it passes to itself as text.
        text("{\"prompt\": {\"$serde_json::private::RawValue\": \"\\\"a boat\\\"\"}}", "prompt must be a string"),
        text("{\"prompt\": \"\"}", "prompt"),
        text("{\"prompt\": \" \\t\\r\\n\\u00a0\\u3000\"}", "prompt"),
        text("{\"prompt\": \"a\\u0000boat\"}", "prompt"),
        text("{\"Prompt\": \"a boat\"}", "prompt"),
        text("{\"prompt\": \"a\", \"prompt\": \"b\"}", "repeats"),
        text("{\"prompt\": \"a\", \"pro\\u006dpt\": \"b\"}", "repeats"),
        text("{\"prompt\": \"a\", \"x\": 1, \"x\": 1}", "repeats"),
        text("{\"prompt\": \"a\", \"n\": 1, \"n\": 1}", "repeats"),
    ];
    for n in
        ["0", "5", "-1", "2.5", "\"2\"", "true", "null", "[1]", "1e300", "99999999999999999999999999", "1e-400", "-0"]
    {
        bodies.push((format!("{{\"prompt\": \"a boat\", \"n\": {n}}}").into_bytes(), "n must"));
    }
    for ratio in ["\"\"", "\"16x9\"", "\" 1:1\"", "\"1:1 \"", "\"16：9\"", "\"32:18\"", "null", "1", "[\"1:1\"]"] {
        bodies.push((format!("{{\"prompt\": \"a boat\", \"aspect_ratio\": {ratio}}}").into_bytes(), "aspect_ratio"));
    }
    let nested = format!("{{\"prompt\": \"a boat\", \"deep\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    bodies.push((nested.into_bytes(), "JSON"));
    bodies
}

#[tokio::test]
async fn bad_bodies_are_400_and_cost_nothing() {
    let (_, caller) = Service::with_caller(&["--submit-rate", "0"], 10).await;
    for (body, about) in bad_bodies() {
        let shown = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
        let message = caller.post(body).await.assert_error(400, "INVALID_REQUEST");
        assert!(message.contains(about), "{shown}: {message}");
    }
    let echo = caller.post(format!("\"{}\"", "secret ".repeat(1_000))).await.assert_error(400, "INVALID_REQUEST");
    assert!(!echo.contains("secret"), "{echo}");
    assert_eq!(caller.credits().await, 10);
    assert_eq!(caller.get(TASKS).await.json()["data"]["items"], json!([]));
}

/// One URL of each kind that no request may name. The unit tests of the domain have all the others.
const BAD_REFERENCES: [&str; 8] = [
    "",
    "http://img.example.com/a.png",
    "https://img.example.com/a b.png",
    "https:///img.example.com/a.png",
    "https://user:pass@img.example.com/",
    "https://img.example.com:8443/",
    "https://a.localhost/",
    "https://[::ffff:127.0.0.1]/",
];

#[tokio::test]
async fn bad_references_are_400_and_name_the_entry() {
    let (_, caller) = Service::with_caller(&["--submit-rate", "0"], 10).await;
    let long = format!("https://img.example.com/{}", "a".repeat(4_096));
    for url in BAD_REFERENCES.into_iter().chain([long.as_str()]) {
        let body = json!({ "prompt": "a boat", "reference_images": ["https://img.example.com/ok.png", url] });
        let message = caller.post(body.to_string()).await.assert_error(400, "INVALID_REQUEST");
        assert!(message.starts_with("reference_images[1] "), "{url}: {message}");
    }
    for value in ["null", "{}", "\"https://img.example.com/a.png\"", "[null]", "[1]", "[[]]"] {
        let body = format!("{{\"prompt\": \"a boat\", \"reference_images\": {value}}}");
        let message = caller.post(body).await.assert_error(400, "INVALID_REQUEST");
        assert!(message.contains("reference_images"), "{value}: {message}");
    }
    let five = vec!["https://img.example.com/a.png"; 5];
    caller
        .post(json!({ "prompt": "a", "reference_images": five }).to_string())
        .await
        .assert_error(400, "INVALID_REQUEST");
    assert_eq!(caller.credits().await, 10);
}

#[tokio::test]
async fn prompts_are_measured_in_characters() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    caller.submit(json!({ "prompt": "é".repeat(32_000) })).await;
    let message = caller.post(json!({ "prompt": "é".repeat(32_001) }).to_string()).await;
    assert!(message.assert_error(400, "INVALID_REQUEST").contains("32,000"));
    assert_eq!(caller.credits().await, 8);
}

#[tokio::test]
async fn a_body_without_a_json_content_type_is_refused() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    let body = r#"{"prompt": "a boat"}"#;
    for content_type in
        ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", "application/problem+json"]
    {
        let answer = caller.call("POST", GENERATE, &[("content-type", content_type)], body).await;
        let message = answer.assert_error(400, "INVALID_REQUEST");
        assert!(message.contains("Content-Type"), "{message}");
    }
    caller.call("POST", GENERATE, &[], body).await.assert_error(400, "INVALID_REQUEST");
    assert_eq!(caller.credits().await, 10);
}

#[tokio::test]
async fn large_bodies_are_413() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    let padded = |size: usize| {
        let body = r#"{"prompt": "a boat", "pad": ""}"#;
        body.replace("\"\"", &format!("\"{}\"", "x".repeat(size - body.len())))
    };
    assert_eq!(caller.post(padded(512 * 1024)).await.status, 200);
    caller.post(padded(512 * 1024 + 1)).await.assert_error(413, "INVALID_REQUEST");
    assert_eq!(caller.credits().await, 8);
}

#[tokio::test]
async fn too_few_credits_is_402_with_both_numbers_in_both_places() {
    let (_, caller) = Service::with_caller(&[], 5).await;
    caller.submit(json!({ "prompt": "a boat" })).await;
    let answer = caller.post(r#"{"prompt": "a boat", "n": 2}"#).await;
    answer.assert_error(402, "INSUFFICIENT_CREDITS");
    let body = answer.json();
    assert_eq!((&body["required"], &body["available"]), (&json!(4), &json!(3)));
    assert_eq!((&body["error"]["required"], &body["error"]["available"]), (&json!(4), &json!(3)));
    assert_eq!(caller.credits().await, 3);
    caller.submit(json!({ "prompt": "a boat" })).await;
    assert_eq!(caller.credits().await, 1);
    caller.post(r#"{"prompt": "a boat"}"#).await.assert_error(402, "INSUFFICIENT_CREDITS");
}

/// Another process, such as the command line, holds the write lock of SQLite while the time limit passes.
#[tokio::test]
async fn a_submit_that_the_sqlite_writer_reaches_too_late_never_begins() {
    let service = Service::start_on_sqlite(&["--test-fault", "before-submit=delay"]).await;
    let caller = service.caller("ada", 10).await;
    let other = Connection::open(service.directory.path().join("tintype.db")).expect("the database");
    other.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    let late = async {
        // The fault shows that the request has arrived. From then on its time limit counts.
        until(async || service.faults.all_happened()).await;
        service.clock.advance(START_WITHIN + Duration::from_millis(1));
        other.execute_batch("ROLLBACK").expect("the write lock is released");
    };
    let (answer, ()) = tokio::join!(caller.post(r#"{"prompt": "a boat"}"#), late);
    answer.assert_error(500, "INTERNAL_ERROR");
    assert_eq!(caller.credits().await, 10);
    assert_eq!(caller.get(TASKS).await.json()["data"]["items"], json!([]));
    assert_eq!(caller.post(r#"{"prompt": "a boat"}"#).await.status, 200, "the next submit begins in time");
    assert_eq!(caller.credits().await, 8);
}
