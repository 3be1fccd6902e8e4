//! The log of the real program leads from the request id that a caller quotes to the cause.

use std::fs;
use std::path::Path;

use http_body_util::Full;
use hyper::Request;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::rigs::binary::{self, Server};
use crate::rigs::http::{GENERATE, TASKS, ended, exchange, send};
use crate::rigs::ports::Port;

/// The lines of a log that hold `id`.
fn lines(log: &Path, id: &str) -> Vec<String> {
    let log = fs::read_to_string(log).expect("a log");
    log.lines().filter(|line| line.contains(id)).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_request_id_of_a_failed_submit_leads_to_its_cause() {
    let directory = TempDir::new().expect("a directory");
    let log = directory.path().join("log");
    let server = Server::with_log(&directory.path().join("data"), &log, &["--test-fault", "before-submit=error"]);
    let key = server.first_key().expect("a key");
    let prompt = "a boat of secrets";
    let answer = send(server.address, "POST", GENERATE, &key, &json!({ "prompt": prompt }).to_string()).await;
    answer.assert_error(500, "INTERNAL_ERROR");
    server.stop();
    let lines = lines(&log, answer.header("x-request-id"));
    let errors: Vec<_> = lines.iter().filter(|line| line.contains("ERROR")).collect();
    assert!(matches!(errors[..], [line] if line.contains("database: ") && line.contains("status=500")), "{lines:#?}");
    assert!(!fs::read_to_string(&log).expect("a log").contains("secrets"), "a prompt is in the log");
}

#[tokio::test]
async fn the_request_id_of_a_submit_leads_to_its_failed_render() {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let server = Server::with_log(&data, &log, &[]);
    let key = server.first_key().expect("a key");
    let answer =
        send(server.address, "POST", GENERATE, &key, &json!({ "prompt": "a boat [[fail]]" }).to_string()).await;
    let id = answer.header("x-request-id").to_owned();
    let task_id = answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned();
    assert_eq!(ended(&server, &key, &task_id).await["status"], "failed");
    let poll = send(server.address, "GET", &format!("{TASKS}/{task_id}"), &key, "").await;
    assert!(!String::from_utf8_lossy(&poll.body).contains(&id), "the API does not show it");
    assert_eq!(binary::json(&data, &["task", "show", &task_id])["request_id"], id.as_str());
    server.stop();
    let lines = lines(&log, &id);
    let task = task_id.strip_prefix("imgmodel-").expect("a task_id");
    for event in ["task accepted", "task failed and refunded"] {
        let found = lines.iter().any(|line| line.contains(event) && line.contains(task));
        assert!(found, "{event}: {lines:#?}");
    }
}

#[tokio::test]
async fn a_successful_read_is_counted_and_not_logged() {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let metrics = Port::take();
    let server = Server::with_log(&data, &log, &["--metrics-listen", &metrics.address.to_string()]);
    let key = server.first_key().expect("a key");
    let read = send(server.address, "GET", TASKS, &key, "").await;
    assert_eq!(read.status, 200);
    let refused = send(server.address, "GET", &format!("{TASKS}/nothing"), &key, "").await;
    let counted = send(metrics.address, "GET", "/metrics", &key, "").await;
    let counted = String::from_utf8_lossy(&counted.body).into_owned();
    assert!(
        counted.contains(&format!("http_requests_total{{method=\"GET\",route=\"{TASKS}\",status=\"200\"}} 1")),
        "{counted}"
    );
    server.stop();
    assert_eq!(lines(&log, read.header("x-request-id")), [""; 0]);
    assert_eq!(lines(&log, refused.header("x-request-id")).len(), 1);
}

#[tokio::test]
async fn the_cause_of_an_unusable_reference_is_logged_with_its_task_and_account_and_not_shown() {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let server = Server::with_log(&data, &log, &[]);
    let key = server.first_key().expect("a key");
    let body = json!({ "prompt": "a boat", "reference_images": ["https://nowhere.test.example/a.png?signature"] });
    let answer = send(server.address, "POST", GENERATE, &key, &body.to_string()).await;
    let task_id = answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned();
    let task = ended(&server, &key, &task_id).await;
    server.stop();
    let shown = task["error"].as_str().expect("a message");
    assert!(shown.contains("reference_images[0]") && !shown.contains("nowhere"), "{shown}");
    let account = binary::json(&data, &["account", "list"])[0]["id"].as_str().expect("an id").to_owned();
    let lines = lines(&log, task_id.strip_prefix("imgmodel-").expect("a task_id"));
    let cause = lines.iter().find(|line| line.contains("a reference image cannot be used"));
    let cause = cause.unwrap_or_else(|| panic!("{lines:#?}"));
    for part in [account.as_str(), "https://nowhere.test.example/a.png", "error="] {
        assert!(cause.contains(part), "{part} is not in {cause}");
    }
    assert!(!cause.contains("signature"), "{cause}");
}

#[tokio::test]
async fn lines_about_requests_name_the_client_if_the_operator_wants_that() {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let said = async |flags: &[&str]| {
        let server = Server::with_log(&data, &log, flags);
        let request = Request::builder().uri(TASKS).header("host", "localhost");
        let request = request.header("x-forwarded-for", "203.0.113.7, 192.0.2.9").body(Full::default());
        let stream = TcpStream::connect(server.address).await.expect("it listens");
        let answer = exchange(stream, request.expect("a request")).await;
        server.stop();
        lines(&log, answer.header("x-request-id"))
    };
    let silent = said(&["--trusted-proxy", "127.0.0.1/32"]).await.concat();
    assert!(silent.contains(&format!("method=GET route=\"{TASKS}\" status=401")), "{silent}");
    assert!(!silent.contains("192.0.2.9") && !silent.contains("127.0.0.1"), "{silent}");
    let named = said(&["--trusted-proxy", "127.0.0.1/32", "--log-clients"]).await.concat();
    assert!(named.contains("client=192.0.2.9"), "{named}");
    let direct = said(&["--log-clients"]).await.concat();
    assert!(direct.contains("client=127.0.0.1"), "{direct}");
}
