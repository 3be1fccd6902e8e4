//! The server under a supervisor: systemd, a container engine, a collector of logs.

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rigs::binary::{self, Server, refused, tintype};
use crate::rigs::cluster::Site;
use crate::rigs::cluster::node::Part;
use crate::rigs::http::{ended, send, submit};

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

fn health(flags: &[&str]) -> Output {
    tintype().args(["health", "--json"]).args(flags).output().expect("the program runs")
}

/// The findings of a command, and whether it exited with success.
fn found(output: &Output) -> (bool, Value) {
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(output.status.code(), Some(i32::from(json["ok"] != true)), "{output:?}");
    (output.status.success(), json)
}

#[test]
fn health_tells_whether_a_server_works() {
    let data = TempDir::new().expect("a directory");
    let socket = format!("unix:{}", data.path().join("socket").display());
    let server = Server::start(data.path(), &["--listen", &socket]);
    let address = server.address.to_string();
    for flags in [&["--listen", &address][..], &["--alive", "--listen", &address], &["--listen", &socket]] {
        assert!(found(&health(flags)).0, "{flags:?}");
    }
    let text = tintype().args(["health", "--listen", &address]).output().expect("the program runs");
    assert_eq!(String::from_utf8_lossy(&text.stdout), format!("ok    {address}: /readyz answers 200\n"));
    server.stop();
    let (works, said) = found(&health(&["--listen", &address]));
    assert!(!works && said["detail"].as_str().expect("a sentence").contains("refused"), "{said}");
    assert!(!found(&health(&["--listen", &socket])).0);
}

#[test]
fn a_server_that_cannot_work_is_alive_but_not_ready() {
    let data = TempDir::new().expect("a directory");
    let server = Server::start(data.path(), &["--min-free-space", "1000TB"]);
    let address = server.address.to_string();
    let (works, said) = found(&health(&["--listen", &address]));
    assert!(!works && said["detail"] == "/readyz answers 503", "{said}");
    assert!(found(&health(&["--alive", "--listen", &address])).0);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_listens_nowhere_tells_its_health() {
    let site = Site::new().await;
    let ask = || {
        let output = site.installation.run(&["health", "--worker", "--timeout", "60s", "--json"]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output.status.success(), json)
    };
    let (works, said) = ask();
    assert!(!works && said[0]["detail"] == "no worker is running on this data directory", "{said}");
    let mut worker = site.start(Part::Worker, 0, &[]);
    let (works, said) = ask();
    assert!(works && said[0]["detail"] == "the worker is ready" && said[1].is_null(), "{said}");
    let mut second = site.start(Part::Worker, 1, &[]);
    let (works, said) = ask();
    assert!(works && said.as_array().map(Vec::len) == Some(2), "{said}");
    second.stop().await;
    site.postgres.crash();
    let (works, said) = ask();
    let detail = said[0]["detail"].as_str().expect("a sentence");
    assert!(!works && detail.starts_with("the database does not answer"), "{said}");
    worker.kill().await;
    let (works, said) = ask();
    assert!(!works && said[0]["detail"] == "no worker is running on this data directory", "{said}");
}

/// Starts a server without a terminal, with its log in a file.
fn serve(data: &Path, log: &Path, flags: &[&str]) -> Command {
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(flags);
    command.stdin(Stdio::null()).stderr(File::create(log).expect("a file"));
    command
}

#[tokio::test]
async fn a_hangup_ends_nothing() {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let server = Server::spawn(serve(&data, &log, &[]));
    let key = server.first_key().expect("a key");
    server.signal("HUP");
    let task = submit(&server, &key, "a boat").await;
    assert_eq!(ended(&server, &key, &task).await["status"], "completed");
    server.stop();
    let log = std::fs::read_to_string(&log).expect("a log");
    assert!(log.contains("SIGHUP changes nothing"), "{log}");
}

#[test]
fn systemd_hears_when_the_server_is_ready_and_when_it_stops() {
    let directory = TempDir::new().expect("a directory");
    let socket = directory.path().join("notify");
    let systemd = UnixDatagram::bind(&socket).expect("a socket");
    systemd.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let said = || {
        let mut bytes = [0; 64];
        let count = systemd.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let mut command = serve(&directory.path().join("data"), &directory.path().join("log"), &[]);
    command.env("NOTIFY_SOCKET", &socket);
    let server = Server::spawn(command);
    assert_eq!(said(), "READY=1");
    server.stop();
    assert_eq!(said(), "STOPPING=1");
}

#[tokio::test]
async fn with_json_every_line_is_json() {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let mut command = serve(&data, &log, &["--log-format", "json"]);
    let output = directory.path().join("output");
    let mut process = command.stdout(File::create(&output).expect("a file")).spawn().expect("the program starts");
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).expect("a log");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
    };
    let started = async {
        loop {
            if let Some(event) = lines().into_iter().find(|line| line["message"] == "started") {
                return event;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let started = tokio::time::timeout(PATIENCE, started).await.expect("it starts");
    assert_eq!(started["version"], env!("CARGO_PKG_VERSION"));
    let path = data.join("tintype.db").display().to_string();
    assert_eq!(started["database"], format!("SQLite database {path}"));
    assert!(started["engine"].as_str().expect("text").contains("sketch"), "{started}");
    let address = started["addresses"].as_str().and_then(|url| url.strip_prefix("http://")).expect("a URL");
    let saved: Vec<Value> = lines().into_iter().filter(|line| line["file"].is_string()).collect();
    assert_eq!(saved.len(), 2, "{saved:?}");
    let key = std::fs::read_to_string(saved[0]["file"].as_str().expect("a path")).expect("the first key");
    let address = address.parse().expect("an address");
    let body = json!({ "prompt": "a boat [[panic]]" }).to_string();
    let headers = send(address, "POST", "/api/v1/images/generate", key.trim(), &body).await;
    let task = format!("/api/v1/images/task/{}", headers.json()["data"]["task_id"].as_str().expect("a task_id"));
    while send(address, "GET", &task, key.trim(), "").await.json()["data"]["status"] == "processing" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let kill = format!("kill -TERM {}", process.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
    assert_eq!(process.wait().expect("a child").code(), Some(0));
    assert_eq!(std::fs::read_to_string(output).expect("the output"), "");
    let lines = lines();
    assert!(lines.iter().all(|line| ["timestamp", "level", "message"].iter().all(|name| line[name].is_string())));
    assert_eq!(lines.iter().filter(|line| line["message"] == "started").count(), 1);
    // The engine panics only because the prompt rehearses that.
    assert!(lines.iter().all(|line| !line.to_string().contains("as a bug")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.to_string().contains("the engine panicked")), "{lines:#?}");
}

#[test]
fn with_json_the_reason_of_a_failed_start_is_json() {
    let data = TempDir::new().expect("a directory");
    let said = refused(data.path(), &["worker", "--log-format", "json"]);
    let event: Value = serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(event["message"].as_str().expect("text").contains("SQLite serves one process"), "{said}");
}

#[test]
fn a_public_url_with_a_path_is_refused() {
    let data = TempDir::new().expect("a directory");
    for command in [&["serve"][..], &["api"], &["account", "link", "default"]] {
        let flags = ["--public-url", "https://example.com/images/"];
        let said = refused(data.path(), &[command, &flags].concat());
        assert!(said.contains("/images") && said.contains("a host name of its own"), "{said}");
    }
    // One without a path is the same with a slash.
    let server = Server::start(data.path(), &["--public-url", "https://example.com/"]);
    server.stop();
}

#[test]
fn the_doctor_of_a_directory_that_is_not_there_is_not_content() {
    let directory = TempDir::new().expect("a directory");
    let output = binary::run(&directory.path().join("tintpye-data"), ["doctor"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("there is no directory") && said.contains("--data"), "{said}");
}
