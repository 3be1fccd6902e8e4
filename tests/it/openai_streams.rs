//! Streams of events of OpenAI's Images API: heartbeats, partial images, pictures in their order, errors, and repeated calls.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tintype::worker::Worker;
use tintype_domain::model::Surface;
use tintype_engine::Stage;
use tintype_store::KeyChange;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::openai_edits::png;
use crate::rigs::http::GENERATIONS;
use crate::rigs::service::{Caller, Service};
use crate::rigs::staged::{Staged, grey};

const EDITS: &str = "/v1/images/edits";

struct Stream {
    headers: HeaderMap,
    body: Incoming,
    text: String,
    _connection: tokio_util::task::AbortOnDropHandle<hyper::Result<()>>,
}

impl Stream {
    async fn open(caller: &Caller, path: &str, headers: &[(&str, &str)], body: &Value) -> Self {
        let address = caller.service.address;
        let tcp = TcpStream::connect(address).await.expect("the service listens");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await.expect("a connection");
        let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
        let mut request = Request::post(path)
            .header("host", address.to_string())
            .header("authorization", caller.authorization())
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string()))).expect("a request");
        let (parts, body) = sender.send_request(request).await.expect("an answer").into_parts();
        assert_eq!(
            (parts.status.as_u16(), &parts.headers["content-type"]),
            (200, &"text/event-stream".parse().unwrap())
        );
        Self { headers: parts.headers, body, text: String::new(), _connection: connection }
    }

    async fn generate(caller: &Caller, body: Value) -> Self {
        let mut all = json!({ "prompt": "a boat", "stream": true });
        all.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
        Self::open(caller, GENERATIONS, &[], &all).await
    }

    /// The next message, a comment or an event; `None` at the end. `Err` if the connection breaks off.
    async fn message(&mut self) -> Result<Option<String>, hyper::Error> {
        loop {
            // coder#28185, llmgateway#2334: clients read an empty line after a comment as an event without data.
            let end = if self.text.starts_with(':') { "\n" } else { "\n\n" };
            if let Some((message, rest)) = self.text.split_once(end) {
                let (message, rest) = (message.to_owned(), rest.to_owned());
                self.text = rest;
                return Ok(Some(message));
            }
            let Some(frame) = self.body.frame().await else {
                assert_eq!(self.text, "");
                return Ok(None);
            };
            let data = frame?.into_data().expect("data");
            self.text.push_str(std::str::from_utf8(&data).expect("text"));
        }
    }

    /// The data of the next event; `None` at the end.
    async fn event(&mut self) -> Option<Value> {
        while let Some(message) = self.message().await.expect("a connection") {
            if message == ": ping" {
                continue;
            }
            let (name, data) = message.split_once('\n').expect("two lines");
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{data}");
            return Some(data);
        }
        None
    }

    /// All events until the end.
    async fn rest(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }

    fn task(&self) -> &str {
        self.headers["x-tintype-task-id"].to_str().expect("text")
    }
}

fn file(event: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(event["b64_json"].as_str().expect("a file")).expect("base64")
}

#[tokio::test]
async fn a_stream_brings_one_event_for_each_picture_in_their_order() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let stream = Stream::generate(&caller, json!({ "n": 2, "size": "1536x1024" })).await;
    assert_eq!(stream.headers["cache-control"], "no-store, no-transform");
    service.work().await;
    let task = caller.task(stream.task()).await;
    let events = stream.rest().await;
    assert_eq!((events.len(), task["status"].as_str()), (2, Some("completed")));
    for (event, image) in events.iter().zip(task["images"].as_array().expect("images")) {
        let stored = service.fetch(image["url"].as_str().expect("a URL"), &[]).await;
        assert_eq!(file(event), stored.body);
        let mut about = event.clone();
        about.as_object_mut().expect("an object").remove("b64_json");
        let created_at = about["created_at"].as_i64().expect("a time");
        assert!((1_795_262_400..1_795_262_500).contains(&created_at), "{created_at}");
        let expected = json!({
            "type": "image_generation.completed", "created_at": created_at, "size": "1536x1024", "quality": "auto",
            "background": "opaque", "output_format": "png",
            "usage": { "input_tokens": 0, "input_tokens_details": { "image_tokens": 0, "text_tokens": 0 },
                "output_tokens": 2, "total_tokens": 2 },
        });
        assert_eq!(about, expected);
    }
    assert_eq!(caller.credits().await, 96);
}

#[tokio::test]
async fn an_edit_is_streamed_in_the_format_that_it_asks_for() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let picture = format!("data:image/png;base64,{}", BASE64_STANDARD.encode(png(20, 30)));
    let body = json!({ "prompt": "a boat", "image": picture, "stream": true, "output_format": "jpeg" });
    let stream = Stream::open(&caller, EDITS, &[], &body).await;
    service.work().await;
    let events = stream.rest().await;
    let [event] = &events[..] else { panic!("{} events", events.len()) };
    assert_eq!((&event["type"], &event["output_format"]), (&json!("image_edit.completed"), &json!("jpeg")));
    assert_eq!(event["size"], "832x1248", "that of the picture");
    let decoded = image::load_from_memory_with_format(&file(event), image::ImageFormat::Jpeg).expect("a JPEG");
    assert_eq!((decoded.width(), decoded.height()), (832, 1248));
}

#[tokio::test]
async fn a_quiet_stream_shows_that_it_is_alive() {
    let service = Service::start_changed(&[], |limits| limits.heartbeat = Duration::from_millis(5)).await;
    let caller = service.caller("ada", 100).await;
    let mut stream = Stream::generate(&caller, json!({})).await;
    for _ in 0..3 {
        assert_eq!(stream.message().await.expect("a connection").as_deref(), Some(": ping"));
    }
    service.work().await;
    assert_eq!(stream.rest().await.len(), 1);
}

#[tokio::test]
async fn an_error_before_the_task_is_one_of_the_call_and_a_later_one_is_an_event() {
    let service = Service::start().await;
    let (caller, poor) = (service.caller("ada", 100).await, service.caller("eve", 1).await);
    let body = |more: Value| {
        let mut body = json!({ "prompt": "a boat", "stream": true });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let answer = poor.generations(&[], body(json!({}))).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (429, &json!("insufficient_quota")));
    for (more, param) in [
        (json!({ "response_format": "url" }), "response_format"),
        (json!({ "partial_images": 4 }), "partial_images"),
        (json!({ "stream": "yes" }), "stream"),
    ] {
        let answer = caller.generations(&[], body(more)).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["param"]), (400, &json!(param)), "{answer:?}");
    }
    let at_once = caller.generations(&[("prefer", "respond-async")], body(json!({}))).await;
    let at_route = caller.post_json("/v1/images/generations/async", &[], body(json!({})).to_string()).await;
    for answer in [at_once, at_route] {
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["param"]), (400, &json!("stream")));
    }
    for (prompt, code, kind) in [
        ("a boat [[policy]]", "content_policy_violation", "invalid_request_error"),
        ("a boat [[fail]]", "task_failed", "server_error"),
    ] {
        let stream = Stream::generate(&caller, json!({ "prompt": prompt })).await;
        service.work().await;
        let events = stream.rest().await;
        let [event] = &events[..] else { panic!("{} events", events.len()) };
        assert_eq!((&event["type"], &event["error"]["code"]), (&json!("error"), &json!(code)));
        assert_eq!(event["error"]["type"], kind);
        assert!(event["error"]["message"].as_str().is_some_and(|message| message.contains("refunded")));
    }
    assert_eq!(caller.credits().await, 100);
}

#[tokio::test]
async fn a_key_that_is_revoked_during_a_stream_gets_no_pictures() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let stream = Stream::generate(&caller, json!({})).await;
    service.waiting(1).await;
    service.shared.store.change_key(caller.key_id, KeyChange::Revoke).await.expect("a store");
    // The key is cached for a moment.
    service.clock.advance(Duration::from_secs(5));
    service.work().await;
    let events = stream.rest().await;
    assert_eq!((events.len(), &events[0]["error"]["code"]), (1, &json!("invalid_api_key")));
}

#[tokio::test]
async fn a_caller_who_hangs_up_loses_nothing_and_a_repeated_call_brings_the_pictures() {
    let (service, caller) = Service::with_caller(&[], 2).await;
    let body = json!({ "prompt": "a boat", "stream": true });
    let attempt = |count: &'static str| {
        let (caller, body) = (&caller, &body);
        async move { Stream::open(caller, GENERATIONS, &[("x-stainless-retry-count", count)], body).await }
    };
    let first = attempt("0").await;
    let task = first.task().to_owned();
    service.waiting(1).await;
    drop(first);
    service.waiting(0).await;
    let second = attempt("1").await;
    assert_eq!(second.task(), task);
    service.work().await;
    assert_eq!(second.rest().await.len(), 1);
    // All of it was delivered, so that the next attempt would be another task.
    let third = caller.generations(&[("x-stainless-retry-count", "2")], &body).await;
    assert_eq!(third.json()["error"]["code"], "insufficient_quota");
    assert_eq!((caller.task(&task).await["status"].as_str(), caller.credits().await), (Some("completed"), 0));
}

#[tokio::test]
async fn an_attempt_that_still_streams_gives_way_to_the_next_one() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let body = json!({ "prompt": "a boat", "stream": true });
    let mut first = Stream::open(&caller, GENERATIONS, &[("x-stainless-retry-count", "0")], &body).await;
    let second = Stream::open(&caller, GENERATIONS, &[("x-stainless-retry-count", "1")], &body).await;
    assert_eq!(first.task(), second.task());
    service.waiting(2).await;
    service.work().await;
    assert_eq!(first.message().await.expect("a connection").as_deref(), Some(": ping"));
    assert!(first.message().await.is_err(), "the connection breaks off");
    assert_eq!((second.rest().await.len(), caller.credits().await), (1, 98));
}

#[tokio::test]
async fn an_idempotency_key_brings_the_same_pictures_in_every_stream() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let (named, body) = ([("idempotency-key", "order 66")], json!({ "prompt": "a boat", "stream": true }));
    let first = Stream::open(&caller, GENERATIONS, &named, &body).await;
    service.work().await;
    let first = first.rest().await;
    let again = Stream::open(&caller, GENERATIONS, &named, &body).await.rest().await;
    assert_eq!((first.len(), caller.credits().await), (1, 98));
    assert_eq!(first, again);
}

#[tokio::test]
async fn a_stream_ends_with_a_word_when_the_server_stops_and_the_task_goes_on() {
    let service = Service::start().await;
    let (other, caller) = (service.join(&[]).await, service.caller("ada", 2).await);
    let body = json!({ "prompt": "a boat", "stream": true });
    let stream = Stream::open(&caller, GENERATIONS, &[("x-stainless-retry-count", "0")], &body).await;
    service.waiting(1).await;
    service.readiness.stop();
    let task = stream.task().to_owned();
    let events = stream.rest().await;
    assert_eq!((events.len(), &events[0]["error"]["code"]), (1, &json!("task_goes_on")));
    service.waiting(0).await;
    let elsewhere = caller.at(&other);
    let again = Stream::open(&elsewhere, GENERATIONS, &[("x-stainless-retry-count", "1")], &body).await;
    assert_eq!(again.task(), task);
    other.work().await;
    assert_eq!((again.rest().await.len(), caller.credits().await), (1, 0));
}

/// A render that is under way.
struct Render<'a> {
    service: &'a Service,
    engine: Arc<Staged>,
    worker: Arc<Worker>,
    step: JoinHandle<usize>,
}

impl<'a> Render<'a> {
    async fn begin(service: &'a Service) -> Self {
        let engine = Arc::new(Staged::default());
        let worker = engine.worker(service);
        let step = tokio::spawn({
            let worker = worker.clone();
            async move { worker.step().await.expect("a store") }
        });
        engine.begun().await;
        Self { service, engine, worker, step }
    }

    /// Shows a grey preview after `done` of ten steps.
    async fn show(&self, done: u32, level: u8) {
        self.engine.report(Stage::Step { done, of: 10 });
        self.engine.show(grey(64, 32, level));
        self.worker.report_progress().await;
        self.service.api.previews.look().await;
    }

    async fn end(self) {
        self.engine.end();
        assert_eq!(self.step.await.expect("no panic"), 1);
    }
}

#[tokio::test]
async fn partial_images_are_spread_over_the_work_and_shown_to_the_caller_who_asked() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let mut stream = Stream::generate(&caller, json!({ "partial_images": 2 })).await;
    service.waiting(1).await;
    let render = Render::begin(&service).await;
    assert!(render.engine.wants_previews());
    // The first is due after a third of the work, the second after two thirds.
    render.show(1, 10).await;
    render.show(3, 20).await;
    render.show(4, 30).await;
    service.api.previews.look().await;
    render.show(5, 40).await;
    render.show(7, 50).await;
    render.show(8, 60).await;
    for (index, level) in [(0, 30), (1, 50)] {
        let event = stream.event().await.expect("an event");
        assert_eq!(event["type"], "image_generation.partial_image");
        assert_eq!((&event["partial_image_index"], file(&event)), (&json!(index), grey(64, 32, level).to_png()));
        assert_eq!((&event["size"], event.get("usage")), (&json!("1024x1024"), None));
    }
    let task = stream.task().strip_prefix("imgmodel-").and_then(|id| id.parse().ok()).expect("an id");
    let in_studio = service.shared.store.find_preview(caller.account.id, Surface::Web, task).await.expect("a store");
    assert_eq!(in_studio, None);
    render.end().await;
    let rest = stream.rest().await;
    assert_eq!((rest.len(), &rest[0]["type"]), (1, &json!("image_generation.completed")));
}

#[tokio::test]
async fn a_key_that_is_revoked_gets_no_more_partial_images() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let mut stream = Stream::generate(&caller, json!({ "partial_images": 2 })).await;
    service.waiting(1).await;
    let render = Render::begin(&service).await;
    render.show(4, 10).await;
    assert_eq!(stream.event().await.expect("an event")["type"], "image_generation.partial_image");
    service.shared.store.change_key(caller.key_id, KeyChange::Revoke).await.expect("a store");
    // The key is cached for a moment.
    service.clock.advance(Duration::from_secs(5));
    render.show(8, 10).await;
    let rest = stream.rest().await;
    assert_eq!((rest.len(), &rest[0]["error"]["code"]), (1, &json!("invalid_api_key")));
    render.end().await;
}

/// Whether the engine makes previews for a call.
async fn makes_previews(service: &Service, caller: &Caller, body: Value) -> bool {
    let stream = Stream::generate(caller, body).await;
    service.waiting(1).await;
    let engine = Arc::new(Staged::default());
    let worker = engine.worker(service);
    let wanted = async {
        engine.begun().await;
        engine.end();
        engine.wants_previews()
    };
    let (done, wanted) = tokio::join!(worker.step(), wanted);
    assert_eq!((done.expect("a store"), stream.rest().await.len()), (1, 1));
    wanted
}

#[tokio::test]
async fn no_preview_is_made_unless_it_is_asked_for_and_none_where_the_policy_judges_results() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    assert!(!makes_previews(&service, &caller, json!({})).await);
    assert!(!makes_previews(&service, &caller, json!({ "partial_images": 0 })).await);
    assert!(makes_previews(&service, &caller, json!({ "partial_images": 1 })).await);
    let folder = TempDir::new().expect("a directory");
    let policy = folder.path().join("policy.toml");
    std::fs::write(folder.path().join("blocked.txt"), "").expect("a file");
    std::fs::write(&policy, "[blocklist]\nfile = \"blocked.txt\"\n").expect("a file");
    let (service, caller) = Service::with_caller(&["--policy", policy.to_str().expect("a path")], 100).await;
    assert!(!makes_previews(&service, &caller, json!({ "partial_images": 3 })).await);
}
