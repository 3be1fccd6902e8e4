//! Every response has `X-Request-Id`, and every error the envelope.

use std::collections::HashSet;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::connections;
use crate::rigs::http::{GENERATE, TASKS};
use crate::rigs::service::Service;

#[tokio::test]
async fn unknown_paths_are_404() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    for path in [
        "/nope",
        "/api",
        "/api/",
        "/api/v1",
        "/api/v1/",
        "/api/v2/images/task",
        "/api/v1/images",
        "/api/v1/images/task/",
        "/api/v1/images/task/a/b",
        "/api/v1/images/generate/",
        "/API/v1/images/task",
        "//api/v1/images/task",
        "/files",
        "/files/",
        "/files/x.png",
        "/files/../tintype.db",
        "/files/%2e%2e/tintype.db",
        "/files/%ff",
        "/docs/nope.js",
        "/docs/%2e%2e%2fx",
        "/metrics",
        "/%00",
    ] {
        caller.get(path).await.assert_error(404, "NOT_FOUND");
    }
}

#[tokio::test]
async fn a_path_that_is_almost_right_is_answered_with_the_right_one() {
    const API_PATHS: &str = "MCP at /mcp; /docs/ describes them.";
    let (_, caller) = Service::with_caller(&[], 10).await;
    for (path, hint) in [
        ("/v1//images/generations", "path. Did you mean /v1/images/generations?"),
        ("/v1/images/generations/", "path. Did you mean /v1/images/generations?"),
        ("/v1/v1/images/edits", "path. Did you mean /v1/images/edits?"),
        ("/images/generations", "path. Did you mean /v1/images/generations?"),
        ("/models/sketch", "path. Did you mean /v1/models/{id}?"),
        ("//api/v1/images/task", "path. Did you mean /api/v1/images/task?"),
        ("/images/task/imgmodel-AAAAAAAAAAAAAAAAAAAAA/", "path. Did you mean /api/v1/images/task/{id}?"),
        ("/v1/mcp", "path. Did you mean /mcp?"),
        ("/v1/chat/completions", "supports only the image and model endpoints of OpenAI's API."),
        ("/register", "send a valid API key as \"Authorization: Bearer <API_KEY>\"."),
        ("/mcp/mcp/", API_PATHS),
        ("/sse", API_PATHS),
        ("/.well-known/oauth-protected-resource", API_PATHS),
        ("/chat/completions", API_PATHS),
        ("/nope", API_PATHS),
    ] {
        let answer = caller.get(path).await;
        assert_eq!(answer.status, 404, "{path}");
        let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.ends_with(hint), "{path}: {message}");
    }
}

#[tokio::test]
async fn every_response_has_a_request_id_of_its_own() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    let mut seen = HashSet::new();
    for path in [TASKS, "/nope", "/healthz", "/readyz", "/openapi.json", "/docs", "/docs/", "/", "/files/x", GENERATE] {
        for _ in 0..2 {
            let answer = caller.call("GET", path, &[("x-request-id", "mine")], "").await;
            let id = answer.header("x-request-id").to_owned();
            assert_ne!(id, "mine");
            assert!(seen.insert(id), "{path}: {answer:?}");
        }
    }
    let head = caller.call("HEAD", TASKS, &[], "").await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    assert!(seen.insert(head.header("x-request-id").to_owned()));
}

/// Writes bytes on a fresh connection and reads what comes back until the server closes.
async fn raw(service: &Service, bytes: impl AsRef<[u8]>) -> String {
    let mut stream = service.write(bytes).await;
    stream.shutdown().await.expect("an open socket");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn bytes_that_are_not_http_get_the_error_envelope() {
    let service = Service::start().await;
    let long_header = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(300_000));
    // More than the server reads at once.
    let long_after_length =
        format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nx: {}\r\n\r\n", u64::MAX, "a".repeat(20_000));
    let many_headers = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "x: y\r\n".repeat(200));
    for (request, status) in [
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/9.9\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
        ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551614\r\n\r\n", 413),
        ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551615\r\n\r\n", 413),
        ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551616\r\n\r\n", 400),
        (&long_after_length, 413),
        (&long_header, 431),
        (&many_headers, 431),
    ] {
        let answer = raw(&service, request).await;
        let shown = &request[..request.len().min(60)];
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{shown:?}: {answer:?}"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {answer}");
        let head = head.to_lowercase();
        let id = head
            .split("x-request-id: ")
            .nth(1)
            .and_then(|rest| rest.lines().next())
            .unwrap_or_else(|| panic!("{answer}"));
        let body: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{shown:?}: {answer}"));
        assert_eq!(body["error"]["code"], "INVALID_REQUEST");
        assert_eq!(body["error"]["request_id"].as_str().map(str::to_lowercase).as_deref(), Some(id));
        assert!(head.contains("content-type: application/json"));
    }
}

#[tokio::test]
async fn a_malformed_request_after_a_good_one_gets_the_envelope() {
    let service = Service::start().await;
    let answers = raw(&service, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nnonsense\r\n\r\n").await;
    assert!(answers.starts_with("HTTP/1.1 200 "), "{answers}");
    assert!(answers.contains("HTTP/1.1 400 ") && answers.ends_with("}}"), "{answers}");
    assert_eq!(answers.matches("\"INVALID_REQUEST\"").count(), 1, "{answers}");
}

#[tokio::test]
async fn a_submit_whose_body_breaks_off_is_not_charged() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    raw(&service, caller.submit_head(100) + r#"{"prompt": "a boat"}"#).await;
    assert_eq!(caller.credits().await, 10);
}

#[tokio::test(start_paused = true)]
async fn connections_with_an_incomplete_request_are_closed() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let body = caller.submit_head(100) + "{";
    for said in ["", "G", "PRI * HTTP/2.0\r\n\r\nSM\r\n", "GET / HTTP/1.1\r\nhost: x\r\n", &body] {
        let mut stream = service.write(said).await;
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
        closed.unwrap_or_else(|_| panic!("{said:?} keeps a connection open")).expect("an end");
    }
}

#[tokio::test]
async fn readiness_turns_red_before_the_server_stops() {
    let service = Service::start().await;
    assert_eq!(service.call("GET", "/readyz", &[], "").await.status, 200);
    service.readiness.stop();
    service.call("GET", "/readyz", &[], "").await.assert_error(503, "INTERNAL_ERROR");
    assert_eq!(service.call("GET", "/healthz", &[], "").await.status, 200);
}

fn statuses(answers: &str) -> Vec<&str> {
    answers.match_indices("HTTP/1.1 ").filter_map(|(at, _)| answers.get(at + 9..at + 12)).collect()
}

#[tokio::test]
async fn a_request_must_name_exactly_one_host() {
    let service = Service::start().await;
    for (request, status) in [
        ("GET /healthz HTTP/1.1\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost:\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: a\r\nHost: b\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: a, b\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: a/b\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: user@a\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: user@a:80\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: aa:bb@c:80\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: a@a\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: [::1]x:80\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: a:b\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: a:99999\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: a:+80\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: [::1]:+80\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: :80\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: [::g]\r\n\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nhost: a_b:\r\n\r\n", "200"),
        ("GET http://a/healthz HTTP/1.1\r\n\r\n", "400"),
        ("GET http://a/healthz HTTP/1.1\r\nhost: b\r\n\r\n", "400"),
        ("GET http://user@a/healthz HTTP/1.1\r\nhost: a\r\n\r\n", "400"),
        ("GET http://a/healthz HTTP/1.1\r\nhost: a\r\n\r\n", "200"),
        ("GET /healthz HTTP/1.1\r\nhost: a:8080\r\n\r\n", "200"),
        ("GET /healthz HTTP/1.1\r\nhost: [::1]:8080\r\n\r\n", "200"),
        ("GET /healthz HTTP/1.0\r\n\r\n", "200"),
        ("GET /healthz HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", "400"),
        ("CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n", "404"),
        ("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", "404"),
    ] {
        let answer = raw(&service, request).await.replacen("HTTP/1.0 ", "HTTP/1.1 ", 1);
        assert_eq!(statuses(&answer), [status], "{request:?}: {answer}");
        assert!(answer.contains("\r\nx-request-id: "), "{request:?}: {answer}");
        assert_eq!(answer.contains("\"request_id\":"), status != "200", "{request:?}: {answer}");
    }
}

#[tokio::test]
async fn request_smuggling_is_refused() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let head = format!(
        "POST {GENERATE} HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\ncontent-type: application/json\r\n",
        caller.authorization()
    );
    let body = r#"{"prompt":"a boat"}"#;
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let length = body.len();
    let hidden = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let te = "transfer-encoding: chunked\r\n";
    for (name, request) in [
        ("length, then chunks", format!("{head}content-length: {}\r\n{te}\r\n{chunked}", chunked.len())),
        ("chunks, then length", format!("{head}{te}content-length: {}\r\n\r\n{chunked}", chunked.len())),
        ("two lengths", format!("{head}content-length: {length}\r\ncontent-length: 3\r\n\r\n{body}")),
        ("the same length twice", format!("{head}content-length: {length}\r\ncontent-length: {length}\r\n\r\n{body}")),
        ("a list of lengths", format!("{head}content-length: {length}, {length}\r\n\r\n{body}")),
        ("a signed length", format!("{head}content-length: +{length}\r\n\r\n{body}")),
        ("two encodings", format!("{head}transfer-encoding: identity\r\n{te}\r\n{chunked}")),
        ("chunked, not last", format!("{head}transfer-encoding: chunked, identity\r\n\r\n{chunked}")),
        ("another encoding", format!("{head}transfer-encoding: xchunked\r\n\r\n{chunked}")),
        ("space before the colon", format!("{head}transfer-encoding : chunked\r\n\r\n{chunked}")),
        ("folded lines", format!("{head}x: a\r\n transfer-encoding: chunked\r\n\r\n{chunked}")),
        ("bare line feeds", format!("{head}x: a\n{te}\r\n{chunked}")),
        ("bare line feed at the end", format!("{head}{te}\n{chunked}")),
        ("bare carriage return", format!("{head}x: a\r{te}\r\n{chunked}")),
        ("a zero byte", format!("{head}x: a\0b\r\n{te}\r\n{chunked}")),
        ("chunks in HTTP/1.0", format!("{head}{te}\r\n{chunked}").replacen("HTTP/1.1", "HTTP/1.0", 1)),
        ("no hexadecimal size", format!("{head}{te}\r\n0x{chunked}")),
        ("chunk size ended by a line feed", format!("{head}{te}\r\n{:x}\n{body}\r\n0\r\n\r\n", body.len())),
        ("chunk longer than it says", format!("{head}{te}\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len() - 1)),
        ("chunk size past all numbers", format!("{head}{te}\r\n{}{chunked}", "f".repeat(16))),
    ] {
        let answers = raw(&service, format!("{request}{hidden}")).await.replacen("HTTP/1.0", "HTTP/1.1", 1);
        assert_eq!(statuses(&answers), ["400"], "{name}: {answers}");
        assert!(answers.contains("\"INVALID_REQUEST\""), "{name}: {answers}");
        let head = answers.to_ascii_lowercase();
        assert!(head.contains("\r\nconnection: close\r\n") && head.contains("\r\ndate: "), "{name}: {answers}");
        assert_eq!(caller.credits().await, 10, "{name}");
    }
}

#[tokio::test]
async fn a_body_that_a_get_never_reads_ends_its_connection() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let request = connections::get(TASKS, &caller).replace("\r\n\r\n", "\r\ncontent-length: 9\r\n\r\n");
    let answers = raw(&service, request).await;
    assert_eq!(statuses(&answers), ["200"], "{answers}");
    assert!(answers.contains("\r\nconnection: close\r\n"), "{answers}");
}

#[tokio::test]
async fn a_url_has_no_fragment() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let answers = raw(&service, connections::get(&format!("{TASKS}?a#&api_key=b"), &caller)).await;
    assert_eq!(statuses(&answers), ["400"], "{answers}");
}

#[tokio::test]
async fn bytes_after_a_body_are_a_request_of_their_own() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let body = r#"{"prompt":"a boat"}"#;
    let submit = |key: &str, length: usize| {
        let head = "host: x\r\ncontent-type: application/json\r\n";
        format!("POST {GENERATE} HTTP/1.1\r\n{head}{key}content-length: {length}\r\n\r\n{body}")
    };
    let key = format!("authorization: {}\r\n", caller.authorization());
    let whole = submit(&key, body.len());
    let keyless = submit("connection: close\r\n", body.len());
    let hidden = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    for (name, request, expected, credits) in [
        ("bytes past the length", format!("{whole}}}}}{hidden}"), &["200", "400"][..], 8),
        ("a length without the last byte", format!("{}{hidden}", submit(&key, body.len() - 1)), &["400", "400"], 8),
        ("no length", submit(&key, 0), &["400", "400"], 8),
        ("a request without the key of the one before", format!("{whole}{keyless}"), &["200", "401"], 6),
    ] {
        let mut stream = service.write(request).await;
        let mut answers = String::new();
        stream.read_to_string(&mut answers).await.expect("answers, and an end");
        assert_eq!(statuses(&answers), expected, "{name}: {answers}");
        assert_eq!(caller.credits().await, credits, "{name}");
    }
}

#[tokio::test]
async fn the_size_and_the_number_of_headers_are_limited() {
    let service = Service::start().await;
    let fields = |count: usize| format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{}\r\n", "x: y\r\n".repeat(count - 1));
    assert_eq!(statuses(&raw(&service, fields(100)).await), ["200"]);
    assert_eq!(statuses(&raw(&service, fields(101)).await), ["431"]);
    let sized = |size: usize| format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(size));
    assert_eq!(statuses(&raw(&service, sized(60 * 1024)).await), ["200"]);
    assert_eq!(statuses(&raw(&service, sized(65 * 1024)).await), ["431"]);
}

#[tokio::test]
async fn a_caller_who_sends_the_whole_body_first_reads_the_refusal() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "1"], 10).await;
    let authorization = caller.authorization();
    let body = vec![b' '; 4 * 1024 * 1024];
    let json = ("content-type", "application/json");
    let keyed = ("authorization", authorization.as_str());
    caller.submit_prompt("a boat").await;
    for (path, headers, status, code) in [
        (GENERATE, &[json][..], 401, "UNAUTHORIZED"),
        (GENERATE, &[json, keyed], 429, "RATE_LIMITED"),
        ("/nope", &[json, keyed], 404, "NOT_FOUND"),
        (TASKS, &[json, keyed], 405, "INVALID_REQUEST"),
    ] {
        service.call("POST", path, headers, body.clone()).await.assert_error(status, code);
    }
}
