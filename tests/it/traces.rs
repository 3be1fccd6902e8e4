//! Traces over OTLP: one trace for each task, without keys and prompts, at no cost when the collector is gone.

use std::fs::File;
use std::io::{Read as _, Write as _};

use axum::http::HeaderMap;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message as _;
use serde_json::json;
use tempfile::TempDir;
use tintype::traces::traces;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::rigs::binary::{Server, tintype};
use crate::rigs::faulty_http::{Double, Reply};
use crate::rigs::http::{Answer, GENERATE, TASKS, ended, send, submit};
use crate::rigs::images_api::{Dialect, ImagesServer};
use crate::rigs::ports::Port;

const PROMPT: &str = "an unmistakable lighthouse";

/// A collector of traces, whose schema is that of the OpenTelemetry project.
struct Collector(Double);

impl Collector {
    /// Starts it, and returns its base URL as well.
    async fn start() -> (Self, String) {
        let server = Double::start(|asked| {
            let kind = asked.header("content-type");
            assert_eq!((asked.path.as_str(), kind), ("/otel/v1/traces", Some("application/x-protobuf")));
            Reply::status(200)
        })
        .await;
        let url = format!("http://{}/otel", server.address);
        (Self(server), url)
    }

    fn resources(&self) -> Vec<ResourceSpans> {
        let batches = self.0.asked().into_iter();
        let batches = batches.map(|asked| ExportTraceServiceRequest::decode(&*asked.body).expect("protobuf"));
        batches.flat_map(|batch| batch.resource_spans).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let scopes = self.resources().into_iter().flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// Whether these characters were received, as any part of any span.
    fn knows(&self, secret: &str) -> bool {
        self.0.asked().iter().any(|asked| asked.body.windows(secret.len()).any(|window| window == secret.as_bytes()))
    }
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{key}: {other:?}"),
    }
}

fn of(span: &Span, key: &str) -> Option<String> {
    attribute(&span.attributes, key)
}

fn has_failed(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == SpanStatus::Error)
}

fn request_of<'a>(spans: &'a [Span], answer: &Answer) -> &'a Span {
    let id = answer.header("x-request-id");
    let request = spans.iter().find(|span| span.name == "request" && of(span, "request_id").as_deref() == Some(id));
    request.unwrap_or_else(|| panic!("{id}: {spans:#?}"))
}

/// The names and the spans of what happened within a span, in the order of their starts.
fn within<'a>(spans: &'a [Span], parent: &Span) -> (Vec<&'a str>, Vec<&'a Span>) {
    let mut children: Vec<_> = spans.iter().filter(|span| span.parent_span_id == parent.span_id).collect();
    children.sort_by_key(|span| span.start_time_unix_nano);
    (children.iter().map(|span| span.name.as_str()).collect(), children)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hosted_collector_gets_its_key_which_is_never_logged() {
    let ((collector, url), directory) = (Collector::start().await, TempDir::new().expect("a directory"));
    let log = directory.path().join("log");
    let mut command = tintype();
    // Hosted collectors print their URL with the path.
    let url = format!("{url}/v1/traces");
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "trace", "--otlp", &url, "--data"]);
    command.arg(directory.path().join("data")).stderr(File::create(&log).expect("a file"));
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=swallow%2Dkey, authorization=Basic%20c3dhbGxvdw==");
    let server = Server::spawn(command);
    send(server.address, "GET", TASKS, "nobody", "").await.assert_error(401, "UNAUTHORIZED");
    server.stop();
    for asked in collector.0.asked() {
        let keys = ["api-key", "authorization"].map(|name| asked.header(name));
        assert_eq!(keys, [Some("swallow-key"), Some("Basic c3dhbGxvdw==")]);
    }
    let log = std::fs::read_to_string(&log).expect("a log");
    assert!(log.contains("stopped") && !log.contains("swallow") && !log.contains("c3dhbGxvdw"), "a key is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_one_trace_from_its_request_to_its_completion() {
    let ((collector, url), data) = (Collector::start().await, TempDir::new().expect("a directory"));
    // The log of this server has warnings only; its traces are whole.
    let server = Server::start(data.path(), &["--otlp", &url]);
    let key = server.first_key().expect("a key");
    let answer = send(server.address, "POST", GENERATE, &key, &json!({ "prompt": PROMPT }).to_string()).await;
    let task_id = answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned();
    ended(&server, &key, &task_id).await;
    send(server.address, "GET", "/healthz", "", "").await;
    send(server.address, "GET", "/files/absent.png", "", "").await;
    let absent = send(server.address, "GET", &format!("{TASKS}/{}", &key[10..]), &key, "").await;
    // The last spans are sent at the stop.
    server.stop();

    let spans = collector.spans();
    let request = request_of(&spans, &answer);
    assert_eq!((request.kind(), has_failed(request)), (SpanKind::Server, false));
    assert_eq!(of(request, "http.route").as_deref(), Some(GENERATE));
    assert_eq!(of(request, "http.request.method").as_deref(), Some("POST"));
    assert_eq!(of(request, "http.response.status_code").as_deref(), Some("200"));
    assert!(request.parent_span_id.is_empty());
    let (names, children) = within(&spans, request);
    assert_eq!(names, ["claim", "task"]);
    let task = children[1];
    assert_eq!((of(task, "outcome").as_deref(), has_failed(task)), (Some("completed"), false));
    assert_eq!(task_id, format!("imgmodel-{}", of(task, "task_id").expect("a task_id")));
    let (names, children) = within(&spans, task);
    assert_eq!(names, ["references", "render", "files", "completion"]);
    assert_eq!(within(&spans, children[1]).0, ["encode"]);
    let in_trace: Vec<_> = spans.iter().filter(|span| span.trace_id == request.trace_id).collect();
    assert_eq!(in_trace.len(), 8, "{in_trace:#?}");
    for span in &spans {
        assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.events.is_empty(), "{span:#?}");
    }
    // The polls have traces of their own; health checks and files have none.
    let routes: Vec<_> = spans.iter().filter_map(|span| of(span, "http.route")).collect();
    assert!(routes.len() > 1 && routes.iter().all(|route| route.starts_with("/api/")), "{routes:?}");
    assert_eq!(of(request_of(&spans, &absent), "http.response.status_code").as_deref(), Some("404"));
    for resource in collector.resources() {
        let attributes = resource.resource.expect("a resource").attributes;
        assert_eq!(attribute(&attributes, "service.name").as_deref(), Some("tintype"));
        assert!(attribute(&attributes, "host.name").is_some_and(|host| !host.is_empty()));
    }
    // Also the random part of the key, which was part of a path.
    assert!(collector.knows("tintype") && !collector.knows("lighthouse") && !collector.knows(&key[10..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_render_shows_the_steps_that_its_pictures_go_through() {
    let ((collector, url), data) = (Collector::start().await, TempDir::new().expect("a directory"));
    let images = ImagesServer::start(Dialect::LocalAi).await;
    std::fs::write(data.path().join("known.txt"), "0123456789abcdef\n").expect("a list");
    let policy = data.path().join("policy.toml");
    std::fs::write(&policy, "[blocklist]\nfile = \"known.txt\"\ndistance = 0\n").expect("a policy");
    let policy = policy.to_str().expect("a path");
    let flags = ["--otlp", &url, "--engine", &images.engine(), "--model", "m", "--policy", policy];
    let server = Server::start(&data.path().join("data"), &flags);
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, PROMPT).await;
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    server.stop();
    let spans = collector.spans();
    let render = spans.iter().find(|span| span.name == "render").expect("a render");
    let (names, children) = within(&spans, render);
    assert_eq!(names, ["decode", "policy", "encode"]);
    let bytes: u64 = of(children[0], "bytes").and_then(|bytes| bytes.parse().ok()).expect("the size of the file");
    assert!(bytes > 100, "{bytes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_failed_spans() {
    let ((collector, url), data) = (Collector::start().await, TempDir::new().expect("a directory"));
    let server = Server::start(data.path(), &["--otlp", &url]);
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, "a boat [[fail]]").await;
    assert_eq!(ended(&server, &key, &task_id).await["status"], "failed");
    let task_id = submit(&server, &key, "a boat [[panic]]").await;
    assert_eq!(ended(&server, &key, &task_id).await["status"], "failed");
    server.stop();
    let spans = collector.spans();
    let tasks = spans.iter().filter(|span| span.name == "task");
    let mut outcomes: Vec<_> = tasks.map(|span| (of(span, "outcome").expect("an outcome"), has_failed(span))).collect();
    outcomes.sort();
    let expected = [("failed", true), ("lost", true), ("lost", true), ("lost", true)];
    assert_eq!(outcomes, expected.map(|(outcome, failed)| (outcome.to_owned(), failed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_gone_costs_one_warning_and_nothing_else() {
    let (gone, data) = (Port::take(), TempDir::new().expect("a directory"));
    let log = data.path().join("log");
    let server = Server::with_log(&data.path().join("data"), &log, &["--otlp", &format!("http://{}", gone.address)]);
    let key = server.first_key().expect("a key");
    for _ in 0..3 {
        let task_id = submit(&server, &key, PROMPT).await;
        assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    }
    server.stop();
    let log = std::fs::read_to_string(log).expect("a log");
    assert_eq!(log.matches("the trace collector rejects spans").count(), 1, "{log}");
    assert!(log.contains(&gone.address.to_string()) && log.contains("check --otlp"), "{log}");
    assert!(log.contains("did not accept all spans") && !log.contains("lighthouse"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_for_grpc_is_recognised() {
    let (listener, data) = (std::net::TcpListener::bind("127.0.0.1:0").expect("a port"), TempDir::new().expect("one"));
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.read_exact(&mut [0; 16]).expect("a request");
        // The settings with which HTTP/2 begins.
        stream.write_all(b"\0\0\0\x04\0\0\0\0\0").expect("an answer");
    });
    let log = data.path().join("log");
    let server = Server::with_log(&data.path().join("data"), &log, &["--otlp", &url]);
    send(server.address, "GET", TASKS, "", "").await;
    server.stop();
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains("give its port for HTTP"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_is_warned_of_once_and_heard_of_when_it_is_back() {
    let ((collector, url), data) = (Collector::start().await, TempDir::new().expect("a directory"));
    let log = data.path().join("log");
    collector.0.always(Reply::status(503));
    let server = Server::with_log(&data.path().join("data"), &log, &["--otlp", &url]);
    for batches in 1..=2 {
        send(server.address, "GET", TASKS, "", "").await;
        collector.0.hears(batches).await;
    }
    collector.0.always(Reply::status(200));
    let last = send(server.address, "GET", TASKS, "", "").await;
    server.stop();
    assert_eq!(of(request_of(&collector.spans(), &last), "http.response.status_code").as_deref(), Some("401"));
    let log = std::fs::read_to_string(log).expect("a log");
    assert_eq!(log.matches("the trace collector rejects spans").count(), 1, "{log}");
    assert!(log.contains("it answered 503") && log.contains("the trace collector accepts spans again"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_stops_neither_tasks_nor_the_stop() {
    let data = TempDir::new().expect("a directory");
    // Connections wait in its backlog.
    let hanging = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", hanging.local_addr().expect("an address"));
    let log = data.path().join("log");
    let server = Server::with_log(&data.path().join("data"), &log, &["--otlp", &url]);
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, PROMPT).await;
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    server.stop();
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains("all_sent=false"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_find_the_queue_full_are_lost_and_the_others_are_sent_at_the_stop() {
    let (collector, url) = Collector::start().await;
    let (tracing, exporter) = traces(&url, HeaderMap::new());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(tracing), || {
        for number in 0..5_000_u64 {
            tracing::info_span!("step", number);
        }
    });
    exporter.start(&Handle::current()).expect("a client").finish().await;
    let spans = collector.spans();
    assert_eq!(spans.len(), 4_096);
    assert_eq!(of(&spans[4_095], "number").as_deref(), Some("4095"));
}
