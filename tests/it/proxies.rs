//! The shipped configurations of nginx, Caddy and HAProxy, run by Debian's packages: one table of cases for all three.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::future::join;
use http_body_util::Full;
use hyper::Request;
use serde_json::json;
use tintype_config::{MAX_BODY, MAX_EDIT_BODY, TASK_TIME_LIMIT};
use tintype_engine::picture::Picture;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::openai_edits::data_url;
use crate::rigs::http::{Answer, GENERATE, GENERATIONS, TASKS, try_exchange};
use crate::rigs::proxy::{Kind, Proxy};
use crate::rigs::service::Service;

/// Each case runs behind each proxy.
macro_rules! behind_each_proxy {
    ($($case:ident,)*) => {
        behind_each_proxy!(@ nginx, Nginx, $($case,)*);
        behind_each_proxy!(@ caddy, Caddy, $($case,)*);
        behind_each_proxy!(@ haproxy, Haproxy, $($case,)*);
    };
    (@ $name:ident, $kind:ident, $($case:ident,)*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Kind::$kind).await;
            })*
        }
    };
}

behind_each_proxy! {
    a_task_is_submitted_polled_and_fetched,
    an_edit_and_an_upload_of_a_megabyte_arrive,
    events_arrive_while_a_task_renders,
    forged_headers_count_for_nothing,
    a_post_without_an_answer_gets_none,
    an_absent_server_is_an_error_in_the_envelope,
    a_call_may_last_as_long_as_a_task,
}

/// A service that callers reach only through a proxy.
async fn behind(kind: Kind, flags: &[&str]) -> (Service, Proxy) {
    let mut service = Service::start_changed(flags, |limits| limits.heartbeat = Duration::from_millis(20)).await;
    let proxy = Proxy::start(kind, service.address, &[]).await;
    service.reach_at(proxy.address);
    (service, proxy)
}

/// A PNG that does not compress.
fn noise() -> Vec<u8> {
    let pixels = (0..600 * 600 * 3).map(|_| rand::random()).collect();
    let bytes = Picture::from_rgb(600, 600, pixels).expect("a picture").to_png();
    assert!(bytes.len() > 1_000_000);
    bytes
}

async fn a_task_is_submitted_polled_and_fetched(kind: Kind) {
    let (service, _proxy) = behind(kind, &["--trusted-proxy", "127.0.0.1"]).await;
    let ada = service.caller("ada", 10).await;
    let task_id = ada.submit_prompt("a boat").await;
    assert_eq!(ada.task(&task_id).await["status"], "processing");
    service.work().await;
    let task = ada.task(&task_id).await;
    let url = task["media_url"].as_str().expect("a URL");
    let path = url.split_once("/files/").expect("a path").1;
    let file = service.call("GET", &format!("/files/{path}"), &[], "").await;
    assert!(file.status == 200 && file.body.starts_with(b"\x89PNG"), "{:?}", file.headers);
    // A refusal of the service itself passes unchanged.
    let long = json!({ "prompt": "a".repeat(MAX_BODY + 1) });
    ada.post(long.to_string()).await.assert_error(413, "INVALID_REQUEST");
    ada.get("/api/v1/nowhere").await.assert_error(404, "NOT_FOUND");
}

async fn an_edit_and_an_upload_of_a_megabyte_arrive(kind: Kind) {
    let (service, _proxy) = behind(kind, &["--trusted-proxy", "127.0.0.1"]).await;
    let (ada, picture) = (service.caller("ada", 10).await, noise());
    let body = json!({ "prompt": "a boat", "images": [{ "image_url": data_url(&picture) }] });
    let edited = service.worked(ada.edit_json(&body)).await;
    assert_eq!(edited.status, 200, "{edited:?}");
    let drawn = edited.json()["data"][0]["b64_json"].as_str().map(|text| BASE64_STANDARD.decode(text).unwrap());
    assert!(drawn.expect("a picture").starts_with(b"\x89PNG"));
    let eve = service.visitor("eve", 10).await;
    let proof = eve.proof().await;
    let headers = [("cookie", eve.cookie.as_str()), ("content-type", "image/png"), ("x-proof", &proof)];
    let uploaded = service.call("POST", "/studio/uploads", &headers, picture).await;
    assert_eq!(uploaded.status, 200, "{uploaded:?}");
    if kind == Kind::Nginx {
        let text = kind.shipped();
        let limit = text.split("client_max_body_size ").nth(1).and_then(|rest| rest.split('m').next());
        let limit: u64 = limit.and_then(|limit| limit.parse().ok()).expect("a limit in MiB");
        assert!(limit * 1024 * 1024 > MAX_EDIT_BODY, "the largest edit has {MAX_EDIT_BODY} bytes");
    }
}

/// Caddy passes a refusal on with the next part of the body, or ends the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_arrives_before_a_large_body_has_left() {
    let refuse = async |kind: Kind| {
        let (service, proxy) = behind(kind, &["--trusted-proxy", "127.0.0.1"]).await;
        let mut stream = TcpStream::connect(service.address).await.expect("the proxy listens");
        let head = format!(
            "POST /v1/images/edits HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer tt_no\r\n\
             content-type: application/json\r\ncontent-length: 120000000\r\n\r\n{{\"prompt\": \"",
            proxy.address
        );
        stream.write_all(head.as_bytes()).await.expect("a connection");
        reads(&mut stream, "HTTP/1.1 401 ").await;
    };
    join(refuse(Kind::Nginx), refuse(Kind::Haproxy)).await;
}

async fn events_arrive_while_a_task_renders(kind: Kind) {
    let (service, _proxy) = behind(kind, &["--trusted-proxy", "127.0.0.1"]).await;
    let ada = service.caller("ada", 10).await;
    let body = json!({ "prompt": "a boat", "stream": true }).to_string();
    let head = format!("POST {GENERATIONS} HTTP/1.1\r\nauthorization: Bearer {}\r\n", ada.key);
    let head = format!("{head}content-type: application/json\r\ncontent-length: {}", body.len());
    let mut stream = TcpStream::connect(service.address).await.expect("the proxy listens");
    stream.write_all(format!("{head}\r\nhost: {}\r\n\r\n{body}", service.address).as_bytes()).await.unwrap();
    reads(&mut stream, "text/event-stream").await;
    // A sign of life, before the task has ended.
    reads(&mut stream, "\n:").await;
    service.work().await;
    reads(&mut stream, "event: image_generation.completed").await;

    let eve = service.visitor("eve", 10).await;
    let head = format!("GET /studio/events HTTP/1.1\r\nhost: {}\r\ncookie: {}\r\n\r\n", service.address, eve.cookie);
    let mut stream = TcpStream::connect(service.address).await.expect("the proxy listens");
    stream.write_all(head.as_bytes()).await.expect("a connection");
    // This stream does not end.
    reads(&mut stream, "event: begin").await;
}

async fn forged_headers_count_for_nothing(kind: Kind) {
    let (service, _proxy) = behind(kind, &["--production", "--trusted-proxy", "127.0.0.1"]).await;
    let ada = service.caller("ada", 10).await;
    let forged = ada.call("GET", TASKS, &[("x-forwarded-proto", "https")], "").await;
    forged.assert_error(401, "UNAUTHORIZED");
    let (upstream, seen, _server) = silent().await;
    let proxy = Proxy::start(kind, upstream, &[]).await;
    let request = Request::get(TASKS).header("host", "images.test").header("x-forwarded-for", "192.0.2.1");
    call(proxy.address, request, "").await.expect("an answer");
    let seen = seen.lock().expect("no panic").concat().to_lowercase();
    assert!(seen.contains("x-forwarded-for: 127.0.0.1\r\n") && !seen.contains("192.0.2.1"), "{seen}");
    assert!(seen.contains("x-forwarded-proto: http\r\n") && seen.contains("host: images.test\r\n"), "{seen}");
}

async fn a_post_without_an_answer_gets_none(kind: Kind) {
    let (upstream, seen, _server) = silent().await;
    let proxy = Proxy::start(kind, upstream, &[]).await;
    let mut sent = 0;
    for path in [GENERATE, GENERATIONS, "/v1/images/edits", "/v1/images/generations/async", "/mcp", "/studio/tasks"] {
        let answer = call(proxy.address, Request::post(path).header("host", "images.test"), "{}").await;
        assert!(answer.is_err(), "the task may exist and be charged: {path}: {answer:?}");
        sent += 1;
    }
    assert_eq!(seen.lock().expect("no panic").len(), sent, "none was sent twice");
    let answer = call(proxy.address, Request::get(TASKS).header("host", "images.test"), "").await;
    answer.expect("an answer").assert_error(500, "INTERNAL_ERROR");
}

async fn an_absent_server_is_an_error_in_the_envelope(kind: Kind) {
    let (upstream, _, server) = silent().await;
    drop(server);
    let proxy = Proxy::start(kind, upstream, &[]).await;
    for request in [Request::get(TASKS), Request::post(GENERATE), Request::post(GENERATIONS)] {
        let answer = call(proxy.address, request.header("host", "images.test"), "{}").await.expect("an answer");
        answer.assert_error(500, "INTERNAL_ERROR");
    }
}

async fn a_call_may_last_as_long_as_a_task(kind: Kind) {
    let text = kind.shipped();
    let timeouts: HashMap<&str, u64> =
        ["proxy_read_timeout ", "proxy_send_timeout ", "timeout client ", "timeout server "]
            .into_iter()
            .filter_map(|name| Some((name, text.split(name).nth(1)?.split('s').next()?.parse().ok()?)))
            .collect();
    // Caddy has no such timeout.
    assert_eq!(timeouts.len(), if kind == Kind::Caddy { 0 } else { 2 }, "{timeouts:?}");
    assert!(timeouts.values().all(|seconds| *seconds > TASK_TIME_LIMIT.as_secs() + 60), "{timeouts:?}");
    if kind == Kind::Caddy {
        return;
    }
    // These are the timeouts that hold: with shorter ones a call ends without an answer, as its task goes on.
    let (service, ada) = Service::with_caller(&["--trusted-proxy", "127.0.0.1"], 10).await;
    let proxy = Proxy::start(kind, service.address, &[("660s", "300ms".into())]).await;
    for path in [GENERATE, GENERATIONS] {
        let request = Request::post(path).header("host", "images.test").header("prefer", "wait=60");
        let request = request.header("authorization", ada.authorization()).header("content-type", "application/json");
        let answer = call(proxy.address, request, r#"{"prompt": "a boat"}"#).await;
        assert!(answer.is_err(), "the task exists and is charged: {path}: {answer:?}");
    }
    assert_eq!(ada.credits().await, 6);
}

/// A server that reads requests and closes their connections, with the requests but for those of health checks.
async fn silent() -> (SocketAddr, Arc<Mutex<Vec<String>>>, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (address, seen) = (listener.local_addr().expect("an address"), Arc::new(Mutex::new(Vec::new())));
    let seeing = seen.clone();
    let serve = async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = String::new();
            let mut bytes = [0; 4096];
            while !request.contains("\r\n\r\n") {
                let count = stream.read(&mut bytes).await.unwrap_or(0);
                if count == 0 {
                    break;
                }
                request.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
            if request.starts_with("GET /readyz ") {
                drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await);
            } else if !request.is_empty() {
                seeing.lock().expect("no panic").push(request);
            }
        }
    };
    (address, seen, AbortOnDropHandle::new(tokio::spawn(serve)))
}

async fn call(to: SocketAddr, request: hyper::http::request::Builder, body: &str) -> hyper::Result<Answer> {
    let stream = TcpStream::connect(to).await.expect("the proxy listens");
    let body = Bytes::from(body.to_owned());
    try_exchange(stream, request.body(Full::new(body)).expect("a request")).await
}

async fn reads(stream: &mut (impl AsyncRead + Unpin), words: &str) {
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains(words) {
        let count = stream.read_buf(&mut text).await.expect("a connection");
        assert!(count > 0, "no {words}: {}", String::from_utf8_lossy(&text));
    }
}
