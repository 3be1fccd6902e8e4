//! `tintype webhook` beside a running server and without one, and what the official libraries say of what is sent.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::NETWORK;
use crate::rigs::binary::{Ran as _, Run as _, Server, json, refused, run, tintype};
use crate::rigs::http::{ended, submit};
use crate::rigs::packages::{javascript, python};
use crate::rigs::postgres::cluster;
use crate::rigs::receiver::{Asked, Receiver, Reply, TOKEN, verify};
use crate::tidy::root;

/// A server that reaches the network of the receivers, and its first key.
fn start(data: &TempDir) -> (Server, String) {
    let server = Server::start(data.path(), &NETWORK);
    let key = server.first_key().expect("a key");
    (server, key)
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// Adds an endpoint of the first account; returns its id and its secret.
fn add(data: &TempDir, url: &str) -> (String, String) {
    let added = json(data.path(), &["webhook", "add", "--account", "default", url]);
    assert_eq!(added.as_object().expect("an object").keys().collect::<Vec<_>>(), ["id", "url", "secret"]);
    assert_eq!(added["url"], url);
    (text(&added["id"]).to_owned(), text(&added["secret"]).to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_are_managed_beside_a_running_server_and_without_one() {
    let (data, receiver) = (TempDir::new().expect("a directory"), Receiver::start().await);
    let (server, key) = start(&data);
    let (id, secret) = add(&data, &receiver.url());
    let task = submit(&server, &key, "a boat").await;
    ended(&server, &key, &task).await;
    let heard = receiver.hears(1).await;
    verify(&heard[0], &secret).expect("a signature");
    assert_eq!(heard[0].json()["data"]["task_id"], task);

    let tested = json(data.path(), &["webhook", "test", &id]);
    assert_eq!(
        (&tested["state"], &tested["status"], &tested["attempts"]),
        (&json!("delivered"), &json!(204), &json!(1))
    );
    receiver.reply([Reply::status(500)]);
    let tested = run(data.path(), ["webhook", "test", &id]);
    assert!(!tested.status.success());
    assert!(tested.text().contains("Not delivered: status 500."), "{tested:?}");

    let rotated = json(data.path(), &["webhook", "rotate", &id, "--overlap", "1h"]);
    json(data.path(), &["webhook", "test", &id]);
    let last = receiver.asked().pop().expect("a test");
    for secret in [&secret, text(&rotated["secret"])] {
        verify(&last, secret).expect("a signature");
    }
    server.stop();

    let all = json(data.path(), &["webhook", "deliveries", &id]);
    let all = all.as_array().expect("a list");
    assert_eq!(all.iter().map(|one| text(&one["type"])).filter(|kind| *kind == "webhook.test").count(), 3);
    let first = all.last().expect("the task");
    assert_eq!((&first["type"], &first["state"]), (&json!("task.completed"), &json!("delivered")));
    assert_eq!(first["webhook_id"], heard[0].header("webhook-id").expect("an id"));
    let replayed = json(data.path(), &["webhook", "replay", text(&first["id"])]);
    assert_eq!((&replayed["state"], &replayed["webhook_id"]), (&json!("waiting"), &first["webhook_id"]));
    let server = Server::start(data.path(), &NETWORK);
    let heard = receiver.hears(5).await;
    assert_eq!((heard[4].header("webhook-id"), &heard[4].body), (heard[0].header("webhook-id"), &heard[0].body));
    server.stop();

    json(data.path(), &["account", "disable", "default"]);
    for arguments in [["webhook", "test", &id], ["webhook", "replay", text(&first["id"])]] {
        let refusal = refused(data.path(), &arguments);
        assert!(refusal.contains("account default is disabled: `tintype account enable"), "{refusal}");
    }
    json(data.path(), &["account", "enable", "default"]);
    let disabled = json(data.path(), &["webhook", "disable", &id]);
    assert_eq!((&disabled["state"], &disabled["disabled_for"]), (&json!("disabled"), &json!("request")));
    for refusal in [
        refused(data.path(), &["webhook", "test", &id]),
        refused(data.path(), &["webhook", "replay", text(&first["id"])]),
    ] {
        assert!(refusal.contains(&format!("tintype webhook enable {id}")), "{refusal}");
    }
    assert_eq!(json(data.path(), &["webhook", "enable", &id])["state"], "active");
    let list = json(data.path(), &["webhook", "list", "--account", "default"]);
    let shown = &list[0];
    assert_eq!(
        (&shown["id"], &shown["account"], &shown["added_by"]),
        (&json!(id), &json!("default"), &json!("operator"))
    );
    assert!(!list.to_string().contains("whsec_"));
    json(data.path(), &["webhook", "remove", &id]);
    assert_eq!(json(data.path(), &["webhook", "list"]), json!([]));
    assert!(refused(data.path(), &["webhook", "disable", &id]).contains("tintype webhook list"));
}

#[test]
fn bad_input_is_refused_with_advice() {
    let data = TempDir::new().expect("a directory");
    json(data.path(), &["account", "create", "default"]);
    let add = |url: &str, more: &[&str]| {
        refused(data.path(), &[&["webhook", "add", "--account", "default", url], more].concat())
    };
    for (url, advice) in [
        ("example.com/hooks", "https://example.com/hooks"),
        ("ftp://example.com/", "https://"),
        ("https://ada:secret@example.com/", "no user name"),
        ("https://example.com/a b", "%20"),
    ] {
        let refusal = add(url, &[]);
        assert!(refusal.contains(advice), "{url}: {refusal}");
    }
    assert!(add("https://example.com/", &["--event", "task.started"]).contains("task.completed"));
    assert!(add("https://example.com/", &["--event", "webhook.test"]).contains("task.completed"));
    let nobody = refused(data.path(), &["webhook", "add", "--account", "nobody", "https://example.com/"]);
    assert!(nobody.contains("tintype account list"), "{nobody}");
    let events = ["--event", "task.failed", "credits.low"];
    // The syntax alone is checked, whatever the server reaches.
    let private = ["webhook", "add", "--account", "default", "http://10.0.0.1/hooks"];
    json(data.path(), &[&private[..], &events[..]].concat());
    assert_eq!(json(data.path(), &["webhook", "list"])[0]["events"], json!(["task.failed", "credits.low"]));
    for _ in 1..20 {
        json(data.path(), &private);
    }
    assert!(add("https://example.com/", &[]).contains("tintype webhook remove"));
}

#[test]
fn an_endpoint_that_no_event_can_reach_is_refused_or_told() {
    let data = TempDir::new().expect("a directory");
    let add = |url: &str| run(data.path(), ["webhook", "add", "--account", "default", url]);
    let warns = |url: &str| {
        let output = add(url);
        assert!(output.status.success(), "{url}: {output:?}");
        output.errors().contains("needs its network as --webhook-network CIDR")
    };
    let server = Server::start(data.path(), &[]);
    let plain = add("http://example.com/hooks");
    let said = plain.errors();
    assert!(!plain.status.success() && said.contains("use https, or restart it with"), "{plain:?}");
    assert_eq!(json(data.path(), &["webhook", "list"]), json!([]));
    assert!(warns("https://localhost/") && !warns("https://example.com/hooks"));
    server.stop();
    // Without a server its settings are not known.
    assert!(warns("http://example.com/hooks"));
    let server = Server::start(data.path(), &NETWORK);
    assert!(!warns("http://127.0.0.1:9/hooks") && !warns("https://localhost/") && warns("https://10.0.0.1/hooks"));
    let elsewhere = add("http://10.0.0.1/hooks");
    assert!(
        !elsewhere.status.success() && elsewhere.errors().contains("use https, or restart it with"),
        "{elsewhere:?}"
    );
    server.stop();
}

/// The verdict of a program, which verifies with the official library, on each of the requests.
fn verified(mut program: Command, secret: &str, requests: &[Value]) -> Vec<Value> {
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().expect("a program");
    let given = json!({ "secret": secret, "requests": requests }).to_string();
    program.stdin.take().expect("a pipe").write_all(given.as_bytes()).expect("a pipe");
    serde_json::from_str(&program.wait_with_output().expect("an end").succeeded()).expect("JSON")
}

/// A request as the programs take it.
fn shown(asked: &Asked) -> Value {
    let headers: serde_json::Map<_, _> =
        asked.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({ "headers": headers, "body": String::from_utf8_lossy(&asked.body) })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_libraries_verify_what_is_sent() {
    let (data, receiver) = (TempDir::new().expect("a directory"), Receiver::start().await);
    let (server, key) = start(&data);
    let (id, old) = add(&data, &receiver.url());
    let rotated = json(data.path(), &["webhook", "rotate", &id]);
    let task = submit(&server, &key, "a boat [[fail]]").await;
    ended(&server, &key, &task).await;
    let asked = receiver.hears(1).await.remove(0);
    server.stop();
    let mut changed = shown(&asked);
    changed["body"] = json!(text(&changed["body"]).replace("task.failed", "task.completed"));
    let mut of_another_time = shown(&asked);
    of_another_time["headers"]["webhook-timestamp"] = json!("1795262400");
    for secret in [&old, text(&rotated["secret"])] {
        let mut of_python = Command::new(python().join("python"));
        of_python.arg(root().join("tests/it/clients/verify_webhook.py"));
        let (of_node, _folder) = javascript("verify_webhook.mjs", &[]);
        for program in [of_python, of_node] {
            let requests = [shown(&asked), changed.clone(), of_another_time.clone()];
            let said = verified(program, secret, &requests);
            assert_eq!(said[0], asked.json());
            assert!(
                said[1..].iter().all(|said| said.as_str().is_some_and(|said| said.starts_with("refused"))),
                "{said:?}"
            );
        }
    }
}

/// A command with the most verbose log in a file of its own.
fn logged(folder: &Path, database: Option<&str>, arguments: &[&str]) -> Command {
    let log = folder.join(format!("{}.log", std::fs::read_dir(folder).expect("a folder").count()));
    let mut command = tintype();
    command.args(arguments).args(["--log", "trace", "--data"]).arg(folder.join("data"));
    command.args(database.iter().flat_map(|url| ["--database", url]));
    command.stderr(std::fs::File::create(log).expect("a file"));
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_secrets_nor_prompts_nor_paths_of_urls_are_logged() {
    for on_postgres in [false, true] {
        let (folder, receiver) = (TempDir::new().expect("a directory"), Receiver::start().await);
        let url = on_postgres.then(|| cluster().url(folder.path()));
        let command = |arguments: &[&str]| logged(folder.path(), url.as_deref(), arguments);
        let server = Server::spawn(command(&[&["serve", "--listen", "127.0.0.1:0"], &NETWORK[..]].concat()));
        let key = server.first_key().expect("a key");
        let json = |arguments: &[&str]| -> Value { command(&[arguments, &["--json"]].concat()).ran().json() };
        let added = json(&["webhook", "add", "--account", "default", &receiver.url()]);
        let id = text(&added["id"]);
        let rotated = json(&["webhook", "rotate", id]);
        receiver.reply([Reply::status(500), Reply::HangUp]);
        for count in 1..=3 {
            let task = submit(&server, &key, "a quagga in the moonlight").await;
            ended(&server, &key, &task).await;
            let tested = json(&["webhook", "test", id]);
            assert_ne!(tested["state"], "waiting");
            receiver.hears(count).await;
        }
        json(&["webhook", "deliveries", id]);
        server.stop();
        let shown = |secret: &Value| text(secret).strip_prefix("whsec_").expect("a secret").to_owned();
        let secrets = [shown(&added["secret"]), shown(&rotated["secret"]), TOKEN.to_owned(), "quagga".to_owned()];
        let logs = std::fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
        let logs: Vec<_> = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect();
        assert!(logs.len() > 5);
        for log in logs {
            let written = String::from_utf8_lossy(&std::fs::read(&log).expect("a file")).into_owned();
            for secret in &secrets {
                let line = written.lines().find(|line| line.contains(secret));
                assert_eq!(line, None, "{} on {url:?}", log.display());
            }
        }
    }
}
