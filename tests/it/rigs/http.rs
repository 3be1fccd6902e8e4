//! Requests over HTTP/1.1 to any server, and the answers.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::binary::Server;
use super::wait::in_time;

pub const GENERATE: &str = "/api/v1/images/generate";
/// Path of calls of OpenAI's dialect.
pub const GENERATIONS: &str = "/v1/images/generations";
pub const TASKS: &str = "/api/v1/images/task";

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

pub async fn send(address: SocketAddr, method: &str, path: &str, key: &str, body: &str) -> Answer {
    try_send(address, method, path, key, body).await.expect("an answer")
}

/// Sends one request; `None` if the server went away before it answered.
pub async fn try_send(address: SocketAddr, method: &str, path: &str, key: &str, body: &str) -> Option<Answer> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", address.to_string())
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_owned())));
    try_exchange(TcpStream::connect(address).await.ok()?, request.expect("a request")).await.ok()
}

/// Submits a prompt and returns its task_id.
pub async fn submit(server: &Server, key: &str, prompt: &str) -> String {
    submit_body(server, key, &json!({ "prompt": prompt })).await
}

/// Submits a task and returns its task_id.
pub async fn submit_body(server: &Server, key: &str, body: &Value) -> String {
    let answer = send(server.address, "POST", GENERATE, key, &body.to_string()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned()
}

pub async fn ended(server: &Server, key: &str, task_id: &str) -> Value {
    let path = format!("{TASKS}/{task_id}");
    in_time(format!("{task_id} did not end"), async {
        loop {
            let task = send(server.address, "GET", &path, key, "").await.json()["data"].clone();
            if task["status"] != "processing" {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// Sends one request over a connection.
pub async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Answer
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    try_exchange(stream, request).await.expect("a response")
}

/// Sends one request over a connection to a server that may go away.
pub async fn try_exchange<S>(stream: S, request: Request<Full<Bytes>>) -> hyper::Result<Answer>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let failure = format!("{} {} was not answered", request.method(), request.uri());
    in_time(failure, async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        connection.abort();
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    })
    .await
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no header {name}: {self:?}")).to_str().expect("text")
    }

    /// Asserts that this is an error of JSON-RPC, which agents show, and returns its message.
    #[track_caller]
    pub fn assert_json_rpc_error(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        let body = self.json();
        let data = json!({ "code": code, "request_id": self.header("x-request-id") });
        assert_eq!((&body["jsonrpc"], &body["id"], &body["error"]["data"]), (&json!("2.0"), &Value::Null, &data));
        assert!(body["error"]["code"].is_i64(), "{body}");
        body["error"]["message"].as_str().expect("a message").to_owned()
    }

    /// Asserts that this is an error in the interface's envelope, and returns its message.
    #[track_caller]
    pub fn assert_error(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/json");
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("no error: {body}"));
        assert_eq!(error["code"], code, "{body}");
        assert_eq!(error["request_id"], self.header("x-request-id"), "{body}");
        let message = error["message"].as_str().expect("a message");
        assert!(!message.is_empty());
        let extra: Vec<_> =
            error.keys().filter(|key| !["code", "message", "request_id"].contains(&key.as_str())).collect();
        let expected: &[&str] = if code == "INSUFFICIENT_CREDITS" { &["required", "available"] } else { &[] };
        assert_eq!(extra, expected, "{body}");
        message.to_owned()
    }
}

/// The status of an answer of which nothing was read.
pub async fn status_of(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> u16 {
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.expect("an answer");
    std::str::from_utf8(&line[9..]).ok().and_then(|status| status.parse().ok()).expect("a status")
}
