//! Standard output and standard error that nobody reads, or that cannot be written.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, PipeReader, PipeWriter, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rigs::binary::{self, Killed, Ran as _, Run as _, TINTYPE, signal, tintype};
use crate::rigs::http::send;
use crate::rigs::ports::Port;
use crate::rigs::wait::until_some;

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a write into the pipe answers that it is full: by waiting, or by an error if somebody has made it non-blocking, as
/// Node.js does (rust-lang/rust#100673).
#[derive(Clone, Copy)]
enum Full {
    Blocks,
    Refuses,
}

/// A pipe that takes nothing more until it is read.
fn full_pipe(full: Full) -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    fcntl_setfl(&writer, OFlags::NONBLOCK).expect("a pipe");
    let error = loop {
        if let Err(error) = writer.write(b"Somebody else wrote this.\n") {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // A few bytes may be left, for none of our lines.
    while writer.write(b"\n").is_ok() {}
    if let Full::Blocks = full {
        fcntl_setfl(&writer, OFlags::empty()).expect("a pipe");
    }
    (reader, writer)
}

/// A server that writes all it says into one pipe, as with `2>&1`.
struct Mute {
    process: Killed,
    address: SocketAddr,
    metrics: SocketAddr,
    _ports: [Port; 2],
}

impl Mute {
    /// Starts it and waits until it is ready, which it tells systemd.
    fn start(directory: &Path, pipe: PipeWriter) -> Self {
        let socket = directory.join("notify");
        let systemd = UnixDatagram::bind(&socket).expect("a socket");
        systemd.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let ports = [Port::take(), Port::take()];
        let [address, metrics] = [&ports[0], &ports[1]].map(|port| port.address);
        let mut command = tintype();
        command.args(["serve", "--log", "trace", "--listen", &address.to_string()]);
        command.args(["--metrics-listen", &metrics.to_string(), "--data"]).arg(directory.join("data"));
        command.env("NOTIFY_SOCKET", &socket).stdin(Stdio::null());
        command.stdout(pipe.try_clone().expect("a pipe")).stderr(pipe);
        let process = Killed(command.spawn().expect("the program starts"));
        let mut said = [0; 64];
        let count = systemd.recv(&mut said).expect("the server starts");
        assert_eq!(&said[..count], b"READY=1");
        Self { process, address, metrics, _ports: ports }
    }

    /// Sends requests until lines were dropped, and returns how many.
    async fn flood(&self) -> u64 {
        until_some(async || {
            // Reading the count costs the server far more than the lines of these requests.
            for _ in 0..100 {
                send(self.address, "GET", "/healthz", "", "").await;
            }
            let metrics = send(self.metrics, "GET", "/metrics", "", "").await;
            let metrics = String::from_utf8(metrics.body.to_vec()).expect("text");
            let dropped = metrics.lines().find_map(|line| line.strip_prefix("tintype_log_lines_dropped_total "));
            Some(dropped.expect("a metric").parse().expect("a number")).filter(|dropped| *dropped > 0)
        })
        .await
    }

    /// Sends SIGTERM, and waits for the end.
    async fn stop(&mut self) {
        signal(self.process.id(), "TERM");
        let status = until_some(async || self.process.try_wait().expect("a child")).await;
        assert_eq!(status.code(), Some(0));
    }
}

#[tokio::test]
async fn a_server_whose_output_nobody_reads_starts_answers_and_stops() {
    let directory = TempDir::new().expect("a directory");
    for (name, full) in [("blocks", Full::Blocks), ("refuses", Full::Refuses)] {
        let directory = directory.path().join(name);
        std::fs::create_dir(&directory).expect("a directory");
        let (_unread, pipe) = full_pipe(full);
        let mut server = Mute::start(&directory, pipe);
        server.flood().await;
        assert_eq!(send(server.address, "GET", "/healthz", "", "").await.status, 200);
        server.stop().await;
    }
}

#[tokio::test]
async fn dropped_lines_are_reported_to_a_reader_that_comes_back_and_the_last_lines_are_written() {
    let directory = TempDir::new().expect("a directory");
    let (unread, pipe) = full_pipe(Full::Refuses);
    let mut server = Mute::start(directory.path(), pipe);
    let dropped = server.flood().await;
    let reading = std::thread::spawn(move || {
        let lines = BufReader::new(unread).lines().map(|line| line.expect("text"));
        lines.filter(|line| line.contains("dropped") || line.contains("stopped")).collect::<Vec<_>>()
    });
    server.stop().await;
    let lines = reading.join().expect("no panic");
    assert!(lines.last().is_some_and(|line| line.ends_with("stopped")), "{lines:?}");
    let reported: u64 = lines
        .iter()
        .filter(|line| line.contains("log lines were dropped, because standard error was not read in time"))
        .map(|line| line.split_once("dropped=").expect("a number").1.trim().parse::<u64>().expect("a number"))
        .sum();
    assert!(reported >= dropped, "{reported} of {dropped}: {lines:?}");
}

/// Runs a command whose standard output cannot be written: a full disk, or a pipe without a reader.
fn run(data: &Path, on_full_disk: bool, arguments: &[&str]) -> Output {
    let mut command = tintype();
    command.args(arguments).arg("--data").arg(data);
    if on_full_disk {
        command.stdout(File::options().write(true).open("/dev/full").expect("a device"));
    } else {
        command.stdout(std::io::pipe().expect("a pipe").1);
    }
    command.stderr(Stdio::piped()).spawn().expect("it starts").wait_with_output().expect("it runs")
}

/// Runs such a command, which must fail; returns its message.
#[track_caller]
fn failure(data: &Path, on_full_disk: bool, arguments: &[&str]) -> String {
    let output = run(data, on_full_disk, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    output.errors()
}

#[test]
fn a_command_whose_output_cannot_be_written_fails() {
    let data = TempDir::new().expect("a directory");
    binary::json(data.path(), &["account", "create", "ada"]);
    let commands: [&[&str]; 8] = [
        &["account", "list"],
        &["account", "list", "--json"],
        &["credits", "history", "ada"],
        &["key", "list"],
        &["config", "show"],
        &["openapi"],
        &["completions", "bash"],
        &["queue", "show"],
    ];
    for arguments in commands {
        let said = failure(data.path(), true, arguments);
        assert!(said.contains("cannot write standard output"), "{arguments:?}: {said}");
        // As after `| head`.
        assert_eq!(failure(data.path(), false, arguments), "", "{arguments:?}");
    }
    assert_eq!(run(data.path(), true, &["--help"]).status.code(), Some(1));
}

#[test]
fn a_command_does_not_mind_that_nobody_reads_standard_error() {
    let data = TempDir::new().expect("a directory");
    let picture = data.path().join("boat.png");
    let path = picture.to_str().expect("text");
    let workflow = data.path().join("workflow.json");
    std::fs::write(&workflow, r#"{"1": {"class_type": "SaveImage", "inputs": {}}}"#).expect("a file");
    let cases: [(&[&str], i32); 5] = [
        (&["engine", "try", "sketch", "A boat", "--out", path], 0),
        (&["engine", "nodes", workflow.to_str().expect("text")], 1),
        (&["generate", "A boat"], 2),
        (&["mcp"], 2),
        (&["account", "list", "--log", "verbose"], 2),
    ];
    for (arguments, code) in cases {
        let mut command = tintype();
        command.args(arguments).arg("--data").arg(data.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(std::io::pipe().expect("a pipe").1);
        let status = command.status().expect("it runs");
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
    assert!(picture.exists());
}

#[test]
fn a_secret_that_cannot_be_printed_is_not_created() {
    let data = TempDir::new().expect("a directory");
    let data = data.path();
    binary::json(data, &["account", "create", "ada"]);
    let key = binary::json(data, &["key", "create", "--account", "ada"])["id"].as_str().expect("an id").to_owned();
    let url = "https://example.com/hook";
    let endpoint = binary::json(data, &["webhook", "add", "--account", "ada", url])["id"].clone();
    let endpoint = endpoint.as_str().expect("an id");
    let shown = |noun: &str| binary::json(data, &[noun, "list"]).as_array().expect("a list").clone();
    let (keys, endpoints) = (shown("key"), shown("webhook"));
    for form in [&["--json"][..], &[]] {
        let cases: [(&[&str], &str); 6] = [
            (&["key", "create", "--account", "ada"], "so it was revoked"),
            (&["key", "rotate", &key, "--overlap", "0s"], "so nothing was rotated"),
            (&["webhook", "add", "--account", "ada", url], "so the endpoint was removed"),
            (&["webhook", "rotate", endpoint], "so nothing was rotated"),
            (&["account", "link", "ada"], "repeat this for another one"),
            (&["person", "link", "ada"], "repeat this for another one"),
        ];
        for (arguments, message) in cases {
            for on_full_disk in [true, false] {
                let said = failure(data, on_full_disk, &[arguments, form].concat());
                assert!(said.contains(message), "{arguments:?}: {said}");
            }
            for closed in [">&-", ">/dev/null"] {
                let line = format!("exec {TINTYPE} \"$@\" --data {} {closed}", data.display());
                let output = Command::new("sh").args(["-c", &line, "sh"]).args(arguments).args(form).ran();
                assert_eq!(output.status.code(), Some(1), "{closed} {arguments:?}: {output:?}");
                assert!(output.errors().contains(message), "{closed} {arguments:?}: {output:?}");
            }
        }
    }
    let alive = |key: &Value| key["state"] != "revoked";
    assert_eq!(shown("key").into_iter().filter(alive).collect::<Vec<_>>(), keys);
    assert_eq!(shown("webhook"), endpoints);
}

#[test]
fn a_reader_of_the_first_line_gets_a_key_that_works() {
    let data = TempDir::new().expect("a directory");
    binary::json(data.path(), &["account", "create", "ada"]);
    for _ in 0..5 {
        let command = format!("{TINTYPE} key create --account ada --data {} | head -n 1", data.path().display());
        let read = Command::new("sh").args(["-c", &command]).ran();
        assert!(read.stdout.starts_with(b"tt_") && read.stderr.is_empty(), "{read:?}");
    }
    let keys = binary::json(data.path(), &["key", "list"]);
    assert!(keys.as_array().expect("a list").iter().all(|key| key["state"] == "active"), "{keys}");
}

#[test]
fn a_rotated_key_is_one_text_in_either_form() {
    let data = TempDir::new().expect("a directory");
    binary::json(data.path(), &["account", "create", "ada"]);
    let first = binary::json(data.path(), &["key", "create", "--account", "ada"]);
    let second = binary::json(data.path(), &["key", "rotate", first["id"].as_str().expect("an id")]);
    for field in ["id", "key", "account_id", "name", "budget", "expires_at", "state"] {
        assert!(second.get(field).is_some(), "{field}: {second}");
    }
    assert_eq!(second["replaces"], first["id"]);
    assert!(second["old_key_expires_at"].is_string(), "{second}");
    let id = second["id"].as_str().expect("an id");
    let third = binary::run(data.path(), ["key", "rotate", id]).text();
    let lines: Vec<_> = third.lines().collect();
    assert!(lines[0].starts_with("tt_") && lines[1].is_empty() && lines[2].contains("This is key"), "{third}");
    assert!(lines[3].starts_with(&format!("The old key {id} expires at 20")), "{third}");
    assert_eq!(second["state"], json!("active"));
}
