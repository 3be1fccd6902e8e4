//! OpenAI's Images API under `/v1`: ordinary tasks, in the shapes that its clients know.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tintype_store::KeyChange;

use crate::rigs::http::{Answer, GENERATIONS, TASKS};
use crate::rigs::service::{Caller, Service};

/// Sends a call and works on its task.
async fn call(caller: &Caller, body: Value) -> Answer {
    caller.service.worked(caller.generations(&[], body)).await
}

/// The error of an answer: `type`, `code` and `param`.
#[track_caller]
fn error(answer: &Answer, status: u16) -> (String, Value, Value) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), "application/json");
    assert!(!answer.header("x-request-id").is_empty());
    let body = answer.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("no error: {body}"));
    assert_eq!(error.len(), 4, "{body}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    (error["type"].as_str().expect("a type").to_owned(), error["code"].clone(), error["param"].clone())
}

fn task_of(answer: &Answer) -> String {
    answer.header("x-tintype-task-id").to_owned()
}

fn picture(data: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(data["b64_json"].as_str().expect("a file")).expect("base64")
}

#[tokio::test]
async fn a_generation_is_a_task_of_the_native_api() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let answer =
        call(&caller, json!({ "prompt": "a boat", "n": 2, "size": "1792x1024", "model": "gpt-image-1" })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    assert_eq!((&body["size"], &body["output_format"]), (&json!("1792x1024"), &json!("png")));
    assert_eq!(body["usage"]["total_tokens"], 4);
    assert!(body["created"].as_i64().is_some_and(|created| created >= 1_795_262_400));
    let task = caller.task(&task_of(&answer)).await;
    assert_eq!(task["status"], "completed");
    let (data, images) = (body["data"].as_array().expect("pictures"), task["images"].as_array().expect("images"));
    assert_eq!((data.len(), images.len()), (2, 2));
    for (data, image) in data.iter().zip(images) {
        let file = service.fetch(image["url"].as_str().expect("a URL"), &[]).await;
        assert_eq!(picture(data), file.body);
    }
    assert_eq!(caller.credits().await, 96);
    let urls = call(&caller, json!({ "prompt": "a boat", "response_format": "url" })).await;
    let file = service.fetch(urls.json()["data"][0]["url"].as_str().expect("a URL"), &[]).await;
    assert_eq!((file.status.as_u16(), file.header("content-type")), (200, "image/png"));
}

#[tokio::test]
async fn pictures_are_transcoded_on_request() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    for (format, kind) in [("jpeg", image::ImageFormat::Jpeg), ("webp", image::ImageFormat::WebP)] {
        let body = json!({ "prompt": "a boat", "output_format": format, "output_compression": 0, "size": "1024x1536" });
        let answer = call(&caller, body).await;
        assert_eq!(answer.json()["output_format"], format, "{answer:?}");
        let decoded = image::load_from_memory_with_format(&picture(&answer.json()["data"][0]), kind).expect(format);
        assert_eq!((decoded.width(), decoded.height()), (832, 1248));
    }
}

#[tokio::test]
async fn a_task_that_fails_is_an_error_that_no_client_repeats() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    for (prompt, status, kind, code) in [
        ("a boat [[policy]]", 400, "invalid_request_error", "content_policy_violation"),
        ("a boat [[fail]]", 500, "server_error", "task_failed"),
    ] {
        let answer = call(&caller, json!({ "prompt": prompt })).await;
        assert_eq!(error(&answer, status), (kind.to_owned(), json!(code), Value::Null));
        assert_eq!(answer.header("x-should-retry"), "false");
        assert_eq!(caller.task(&task_of(&answer)).await["status"], "failed");
    }
    assert_eq!(caller.credits().await, 100, "both were refunded");
}

#[tokio::test]
async fn a_wrong_field_is_named_and_nothing_is_charged() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    for (field, value) in [
        ("prompt", json!(" ")),
        ("prompt", json!(7)),
        ("n", json!(5)),
        ("n", json!(0)),
        ("n", json!("two")),
        ("n", json!("1.0000000000000000001")),
        ("n", json!(1.5)),
        ("size", json!("large")),
        ("size", json!(1024)),
        ("mask", json!({ "image_url": "https://example.com/a.png" })),
        ("images", json!([])),
        ("image", json!("https://example.com/a.png")),
        ("image_url", json!("https://example.com/a.png")),
        ("reference_images", json!(["https://example.com/a.png"])),
        ("width", json!(0)),
        ("width", json!("wide")),
        ("background", json!("transparent")),
        ("background", json!("blue")),
        ("output_format", json!("gif")),
        ("output_compression", json!(101)),
        ("response_format", json!("file")),
        ("model", json!(["a"])),
        ("model", json!("m".repeat(201))),
        ("aspect_ratio", json!("wide")),
        ("stream", json!("yes")),
        ("partial_images", json!(4)),
    ] {
        let mut body = json!({ "prompt": "a boat" });
        body[field] = value;
        let answer = caller.generations(&[], &body.to_string()).await;
        assert_eq!(error(&answer, 400), ("invalid_request_error".into(), Value::Null, json!(field)), "{body}");
    }
    for n in ["1.0000000000000000001", "0.99999999999999999999", "1e999"] {
        let answer = caller.generations(&[], &format!(r#"{{"prompt": "a boat", "n": {n}}}"#)).await;
        assert_eq!(error(&answer, 400).2, json!("n"), "{n}");
    }
    let url_of_jpeg = r#"{"prompt": "a", "response_format": "url", "output_format": "jpeg"}"#;
    assert_eq!(error(&caller.generations(&[], url_of_jpeg).await, 400).2, json!("output_format"));
    for body in ["", "[]", "{", "null", r#"{"prompt": "a", "prompt": "b"}"#, &"[".repeat(200_000), &nested(20_000)] {
        error(&caller.generations(&[], body).await, 400);
    }
    error(&caller.generations(&[], &format!("\"{}\"", "a".repeat(600_000))).await, 413);
    assert_eq!(caller.credits().await, 100);
}

/// What the clients of Together send: they name neither `size` nor OpenAI's word for the bytes.
#[tokio::test]
async fn sides_in_fields_of_their_own_choose_the_ratio() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let answer =
        call(&caller, json!({ "prompt": "a fox", "width": 1280, "height": "720", "response_format": "base64" })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let decoded = image::load_from_memory(&picture(&answer.json()["data"][0])).expect("an image");
    assert_eq!((decoded.width(), decoded.height()), (1280, 720));
    for (sides, at_fault) in [(json!({ "width": 1280 }), "height"), (json!({ "height": 720 }), "width")] {
        let mut body = json!({ "prompt": "a fox" });
        body.as_object_mut().expect("an object").extend(sides.as_object().expect("an object").clone());
        assert_eq!(error(&caller.generations(&[], body).await, 400).2, json!(at_fault));
    }
}

/// A field with a deep object.
fn nested(depth: usize) -> String {
    format!(r#"{{"prompt": "a", "x": {}"#, r#"{"a":"#.repeat(depth))
}

#[tokio::test]
async fn documented_fields_are_taken_and_null_is_absence() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let answer = call(
        &caller,
        json!({
            "prompt": "a boat", "model": "", "n": null, "size": "auto", "quality": "hd", "style": "vivid", "user": "u",
            "background": "auto", "moderation": 1, "metadata": null, "output_format": "", "output_compression": 100,
            "response_format": "", "stream": false, "partial_images": 0, "mask": null, "steps": 7
        }),
    )
    .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("x-ignored-fields"), "steps");
}

#[tokio::test]
async fn every_error_has_openais_shape() {
    let (service, caller) = Service::with_caller(&["--max-unfinished", "1"], 3).await;
    let not_found = |answer: &Answer| assert_eq!(error(answer, 404).1, json!("not_found"));
    not_found(&caller.get("/v1").await);
    not_found(&caller.get("/v1/images/variations").await);
    error(&caller.get(GENERATIONS).await, 405);
    let body = r#"{"prompt": "a boat"}"#;
    let bad_key = service.call("POST", GENERATIONS, &[("authorization", "Bearer tt_wrong")], body).await;
    assert_eq!(error(&bad_key, 401), ("invalid_request_error".into(), json!("invalid_api_key"), Value::Null));
    let key = [("authorization", format!("Bearer {}", caller.key))];
    let key = key.each_ref().map(|(name, value)| (*name, value.as_str()));
    let in_query = service.call("POST", &format!("{GENERATIONS}?api_key={}", caller.key), &key, body).await;
    assert_eq!(error(&in_query, 401).1, json!("invalid_api_key"));
    let poor = caller.generations(&[], r#"{"prompt": "a boat", "n": 2}"#).await;
    assert_eq!(error(&poor, 429), ("insufficient_quota".into(), json!("insufficient_quota"), Value::Null));
    assert_eq!(poor.header("x-should-retry"), "false");
    caller.submit_prompt("a boat").await;
    let rich = service.caller("bob", 100).await;
    rich.submit_prompt("a boat").await;
    let busy = rich.generations(&[], body).await;
    assert_eq!((error(&busy, 429).1, busy.header("retry-after")), (json!("rate_limit_exceeded"), "5"));
    let no_type = rich.call("POST", GENERATIONS, &[], body).await;
    assert_eq!(error(&no_type, 400).0, "invalid_request_error");
}

#[tokio::test]
async fn options_say_without_a_key_that_a_path_is_there() {
    let service = Service::start().await;
    let options = async |path: &str| service.call("OPTIONS", path, &[], "").await;
    let answer = options(GENERATIONS).await;
    assert_eq!((answer.status.as_u16(), answer.header("allow"), answer.body.len()), (204, "POST", 0));
    assert_eq!(options("/v1/models").await.header("allow"), "GET, HEAD");
    assert_eq!(error(&options("/v1/images/variations").await, 404).1, json!("not_found"));
    options(TASKS).await.assert_error(405, "INVALID_REQUEST");
}

#[tokio::test]
async fn any_name_is_a_model() {
    let (_, caller) = Service::with_caller(&[], 0).await;
    let models = caller.get("/v1/models").await.json();
    let model = json!({ "id": "imgmodel", "object": "model", "created": 1_795_262_400, "owned_by": "tintype" });
    assert_eq!(models, json!({ "object": "list", "data": [model] }));
    assert_eq!(caller.get("/v1/models/dall-e-3").await.json()["id"], "dall-e-3");
}

#[tokio::test]
async fn a_caller_who_hangs_up_finds_the_task_in_the_native_api() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    tokio::select! {
        answer = caller.generations(&[], r#"{"prompt": "a boat"}"#) => panic!("answered: {answer:?}"),
        () = service.waiting(1) => {}
    }
    service.waiting(0).await;
    service.work().await;
    let list = caller.get(TASKS).await.json();
    assert_eq!(list["data"]["items"][0]["status"], "completed");
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test]
async fn a_key_that_is_revoked_during_the_wait_gets_no_pictures() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let revoke = async {
        service.waiting(1).await;
        service.shared.store.change_key(caller.key_id, KeyChange::Revoke).await.expect("a store");
        // The key is cached for a moment.
        service.clock.advance(Duration::from_secs(5));
        service.work().await;
    };
    let (answer, ()) = tokio::join!(caller.generations(&[], r#"{"prompt": "a boat"}"#), revoke);
    assert_eq!(error(&answer, 401).1, json!("invalid_api_key"));
}
