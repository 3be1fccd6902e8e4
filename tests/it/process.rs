//! The server as a process: its start, stop and death, and its messages when it cannot run.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use hyper::StatusCode;
use serde_json::json;
use tempfile::TempDir;
use tintype_system::fault::{Effect, Point};

use crate::faults::{OF_A_PROCESS, is_of};
use crate::rigs::binary::{self, Ran as _, Run as _, Server, TINTYPE, refused, run_with, serve_on, tintype};
use crate::rigs::certificates::certificate;
use crate::rigs::http::{GENERATE, TASKS, ended, send, submit, try_send};
use crate::rigs::ports::Port;
use crate::rigs::wait::{until, until_some};

/// A library whose wall clock stands still.
const CLOCK_BEFORE_1970: &str = "
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    *now = (struct timespec){ .tv_sec = clock == CLOCK_REALTIME ? -1 : 1 };
    return 0;
}";

#[tokio::test]
async fn the_first_start_creates_everything_and_hands_out_one_key() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("made/by/the/server");
    let server = Server::start(&data, &[]);
    let key = server.first_key().expect("the first start shows a key");
    assert!(server.said.contains("curl ") && server.said.contains(&server.url()), "{}", server.said);
    let task_id = submit(&server, &key, "a boat").await;
    let task = ended(&server, &key, &task_id).await;
    let path = task["media_url"].as_str().and_then(|url| url.strip_prefix(&server.url())).expect("our URL").to_owned();
    assert_eq!(send(server.address, "GET", &path, &key, "").await.status, 200);
    assert_eq!(binary::json(&data, &["credits", "balance", "default"])["credits"], 998);
    server.stop();
    let again = Server::start(&data, &[]);
    assert_eq!(again.first_key(), None);
    assert!(!again.said.contains("key"), "{}", again.said);
    assert_eq!(ended(&again, &key, &task_id).await["status"], "completed");
    again.stop();
    for entry in std::fs::read_dir(&data).expect("a directory") {
        let path = entry.expect("an entry").path();
        let bytes = if path.is_file() { std::fs::read(&path).expect("a file") } else { Vec::new() };
        let stored = bytes.windows(key.len()).any(|window| window == key.as_bytes());
        assert!(!stored, "{} holds the key", path.display());
    }
}

#[test]
fn a_first_start_creates_no_account_if_one_exists() {
    let data = TempDir::new().expect("a directory");
    binary::json(data.path(), &["account", "create", "ada"]);
    let server = Server::start(data.path(), &[]);
    assert_eq!(server.first_key(), None);
    server.stop();
    assert_eq!(binary::json(data.path(), &["account", "list"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn a_second_server_on_the_same_data_is_refused() {
    let (data, first, _) = Server::install(&[]);
    let elsewhere = TempDir::new().expect("a directory");
    let database = format!("sqlite:{}", data.path().join("tintype.db").display());
    // Both wait for a while for the first one to end.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let said = refused(data.path(), &["serve", "--listen", "127.0.0.1:0"]);
            assert!(said.contains("another server") && said.contains("--data"), "{said}");
        });
        let said = refused(elsewhere.path(), &["serve", "--listen", "127.0.0.1:0", "--database", &database]);
        assert!(said.contains("another server") && said.contains("tintype.db"), "{said}");
    });
    for part in ["api", "worker"] {
        let said = refused(elsewhere.path(), &[part, "--listen", "127.0.0.1:0"]);
        assert!(said.contains("tintype serve"), "{said}");
    }
    first.stop();
    Server::start(data.path(), &[]).stop();
}

#[test]
fn commands_on_another_machine_leave_a_shared_database_alone() {
    let (data, server, _) = Server::install(&[]);
    let lock = data.path().join("tintype.db.lock");
    let own = std::fs::read_to_string(&lock).expect("the lock names the server");
    // The server now seems to run on a machine that shares this directory.
    let process = own.lines().next().expect("a process");
    std::fs::write(&lock, format!("{process}\n00000000-0000-0000-0000-000000000000")).expect("a file");
    let copy = data.path().join("copy").display().to_string();
    for arguments in [["account", "create", "ada"].as_slice(), &["credits", "audit"], &["backup", copy.as_str()]] {
        let said = refused(data.path(), arguments);
        assert!(said.contains("server on another machine"), "{arguments:?}: {said}");
    }
    let mut doctor = tintype();
    let checked = doctor.args(["doctor", "--data"]).arg(data.path()).output().expect("a program");
    let checked = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.lines().any(|line| line.starts_with("FAIL  database") && line.contains("machine")), "{checked}");
    // An older release names no machine.
    std::fs::write(&lock, process).expect("a file");
    assert_eq!(binary::json(data.path(), &["account", "list"]).as_array().map(Vec::len), Some(1));
    std::fs::write(&lock, &own).expect("a file");
    binary::json(data.path(), &["account", "create", "ada"]);
    server.stop();
    // The lock file of a server that has ended says nothing, wherever that ran.
    std::fs::write(&lock, format!("{process}\n00000000-0000-0000-0000-000000000000")).expect("a file");
    assert_eq!(binary::json(data.path(), &["account", "list"]).as_array().map(Vec::len), Some(2));
}

#[test]
fn a_server_waits_for_the_end_of_the_one_that_was_killed() {
    let data = TempDir::new().expect("a directory");
    // The test holds the lock in place of the process that is ending.
    let dying = std::fs::File::create(data.path().join("tintype.lock")).expect("a file");
    dying.lock().expect("the lock is free");
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data"]).arg(data.path());
    let (mut log, end) = std::io::pipe().expect("a pipe");
    command.stderr(end);
    let start = std::thread::spawn(|| Server::spawn(command));
    let mut said = Vec::new();
    while !said.ends_with(b"waiting for it to exit") && !said.ends_with(b"stop it") {
        let mut byte = [0];
        log.read_exact(&mut byte).expect("the server still runs");
        said.extend(byte);
    }
    dying.unlock().expect("the lock is held");
    start.join().expect("the server starts").stop();
}

#[tokio::test]
async fn a_server_gives_the_memory_of_ended_renders_back() {
    let (_data, server, key) = Server::install(&[]);
    let before = server.heap();
    let mut tasks = Vec::new();
    for _ in 0..16 {
        tasks.push(submit(&server, &key, "a boat").await);
    }
    for task_id in &tasks {
        assert_eq!(ended(&server, &key, task_id).await["status"], "completed");
    }
    // The buffers of the last task are freed a moment after callers can see its end.
    until(async || server.heap() <= before + 24).await;
    server.stop();
}

#[test]
fn a_port_in_use_is_reported_and_creates_no_first_key() {
    let data = TempDir::new().expect("a directory");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let said = refused(data.path(), &["serve", "--listen", &address]);
    assert!(said.contains(&address) && said.contains("in use") && said.contains("--listen"), "{said}");
    assert!(Server::start(data.path(), &[]).first_key().is_some());
}

#[test]
fn a_machine_that_cannot_run_a_server_is_reported() {
    let data = Path::new("/proc/tintype");
    // Processes of other users do not count.
    let few = ["--reuid=54321", "--regid=54321", "--clear-groups", "prlimit", "--nproc=4", TINTYPE, "serve"];
    let said = run_with(Path::new("setpriv"), data, [], few).exited(1).errors();
    assert!(said.contains("threads that a server needs") && said.contains("TasksMax="), "{said}");

    let own = TempDir::new().expect("a directory");
    let small = ["--as=524288000", TINTYPE, "serve", "--listen", "127.0.0.1:0"];
    let said = run_with(Path::new("prlimit"), data, [], small).exited(1).errors();
    assert!(said.contains("500 MiB on memory addresses") && said.contains("LimitAS="), "{said}");
    let short = ["--fsize=8192", TINTYPE, "serve", "--listen", "127.0.0.1:0"];
    let said = run_with(Path::new("prlimit"), own.path(), [], short).exited(1).errors();
    assert!(said.contains("ulimit -f"), "{said}");

    let stack = ["--stack=131072", TINTYPE, "config", "show"];
    run_with(Path::new("prlimit"), data, [], stack).succeeded();
    let few = ["--nofile=64", TINTYPE, "serve", "--listen", "127.0.0.1:0"];
    let said = run_with(Path::new("prlimit"), data, [], few).exited(1).errors();
    assert!(said.contains("few connections") && said.contains("ulimit -n"), "{said}");

    let directory = TempDir::new().expect("a directory");
    let (source, library) = (directory.path().join("clock.c"), directory.path().join("clock.so"));
    std::fs::write(&source, CLOCK_BEFORE_1970).expect("a file");
    Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).ran().succeeded();
    let variables = [("LD_PRELOAD".to_owned(), library.display().to_string())];
    let said = run_with(Path::new(TINTYPE), data, variables, ["serve"]).exited(1).errors();
    assert!(said.contains("before 1970"), "{said}");
}

#[test]
fn an_unwritable_data_directory_is_reported() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    std::fs::write(&file, "not a directory").expect("a file");
    for data in [file.join("data"), "/proc/tintype".into()] {
        let said = refused(&data, &["serve", "--listen", "127.0.0.1:0"]);
        assert!(said.contains("cannot create the directory"), "{said}");
        assert!(said.contains(&data.display().to_string()), "{said}");
    }
    for (data, files) in [("~/data", "file:files"), ("data", "file:~/files"), ("$HOME/data", "file:files")] {
        let mut serve = Command::new("timeout");
        serve.env_clear().current_dir(&directory).args(["60", TINTYPE, "serve", "--listen", "127.0.0.1:0"]);
        let said = serve.args(["--data", data, "--files", files]).ran().exited(1).errors();
        assert!(said.contains("write the path in full"), "{said}");
    }
}

#[test]
fn a_read_only_data_directory_is_reported() {
    let data = TempDir::new().expect("a directory");
    Server::start(data.path(), &[]).stop();
    let path = data.path().display();
    let output =
        serve_on(data.path(), &format!("mount --bind {path} {path}; mount -o remount,bind,ro {path}"), "").output();
    let said = output.expect("unshare runs").exited(1).errors();
    assert!(said.contains("cannot write in the data directory") && said.contains("ead-only"), "{said}");
    Server::start(data.path(), &[]).stop();
}

#[test]
fn a_command_that_is_process_1_ends_by_signals() {
    // The command has begun when it calls this server, which does not answer.
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", server.local_addr().expect("an address"));
    for (signal, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let mut outside = std::process::Command::new("unshare");
        outside.args(["--user", "--map-root-user", "--fork", "--pid", "--kill-child", binary::TINTYPE, "mcp"]);
        outside.envs([("TINTYPE_URL", url.as_str()), ("TINTYPE_KEY", "tt_any")]);
        outside.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut outside = outside.spawn().expect("unshare, from util-linux, runs");
        let mut stdin = outside.stdin.take().expect("a pipe");
        writeln!(stdin, r#"{{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}"#).expect("it reads");
        let _called = server.accept().expect("a call");
        let children = format!("/proc/{0}/task/{0}/children", outside.id());
        let inside = std::fs::read_to_string(children).expect("the process in the namespace");
        binary::signal(inside.trim().parse().expect("a process"), signal);
        assert_eq!(outside.wait().expect("it ends").code(), Some(128 + number), "{signal}");
    }
}

#[tokio::test]
async fn sigterm_lets_running_renders_finish() {
    let (data, server, key) = Server::install(&[]);
    let task_id = submit(&server, &key, "a boat [[delay 1s]]").await;
    claimed(data.path()).await;
    server.stop();
    let shown = binary::json(data.path(), &["task", "show", &task_id]);
    assert_eq!(shown["status"], "completed", "{shown}");
}

/// Waits until a worker holds a task, or all have ended.
async fn claimed(data: &Path) {
    let store = tintype_store::sqlite::open(&data.join("tintype.db"), tintype_system::clock::Clock::system());
    let store = store.expect("the server's database");
    let is_claimed = async || {
        let depth = tintype_store::Store::queue_depth(&store).await.expect("a store");
        depth.leased > 0 || depth.waiting == 0
    };
    until(is_claimed).await;
}

#[tokio::test]
async fn sigterm_releases_renders_that_take_too_long() {
    let (data, server, key) = Server::install(&["--drain-timeout", "100ms"]);
    let task_id = submit(&server, &key, "a boat [[delay 5m]]").await;
    claimed(data.path()).await;
    server.stop();
    let shown = binary::json(data.path(), &["task", "show", &task_id]);
    assert_eq!((&shown["status"], &shown["lost_leases"]), (&json!("processing"), &json!(0)), "no attempt is counted");
}

#[tokio::test]
async fn sigterm_releases_at_once_the_tasks_that_wait_for_references() {
    let (tls, ca_pem) = certificate("pictures.example.com");
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let trusted = format!("pictures.example.com={}", silent.local_addr().expect("an address"));
    let data = TempDir::new().expect("a directory");
    let ca = data.path().join("ca.pem");
    std::fs::write(&ca, ca_pem).expect("a file");
    let ca = ca.display().to_string();
    let flags = ["--drain-timeout", "9m", "--test-reference-host", &trusted, "--test-reference-ca", &ca];
    let server = Server::start(data.path(), &flags);
    let key = server.first_key().expect("a key");
    let body = r#"{"prompt": "a boat", "reference_images": ["https://pictures.example.com/a.png"]}"#;
    let answer = send(server.address, "POST", GENERATE, &key, body).await;
    let task_id = answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned();
    // The picture server accepts the request and never answers.
    let (stream, _) = silent.accept().await.expect("a connection");
    let asked = tls.accept(stream).await.expect("a handshake");
    server.stop();
    drop(asked);
    let shown = binary::json(data.path(), &["task", "show", &task_id]);
    assert_eq!((&shown["status"], &shown["lost_leases"]), (&json!("processing"), &json!(0)), "no attempt is counted");
}

#[tokio::test]
async fn a_restart_resumes_the_tasks_of_a_killed_server() {
    let (data, server, key) = Server::install(&["--renders", "1"]);
    let running = submit(&server, &key, "a boat [[delay 4s]]").await;
    let waiting = submit(&server, &key, "a second boat").await;
    claimed(data.path()).await;
    server.signal("KILL");
    server.wait();
    let server = Server::start(data.path(), &["--renders", "1"]);
    // The start takes the leases of the killed server away before it serves a request, long before they expire.
    assert_eq!(binary::json(data.path(), &["task", "show", &running])["lost_leases"], 1);
    assert_eq!(ended(&server, &key, &running).await["status"], "completed");
    assert_eq!(ended(&server, &key, &waiting).await["status"], "completed");
    server.stop();
    let audit = binary::json(data.path(), &["credits", "audit"]);
    assert_eq!((&audit["tasks"], &audit["drifts"]), (&json!(2), &json!([])));
}

#[tokio::test]
async fn administration_works_beside_a_running_server() {
    let (data, server, _) = Server::install(&[]);
    binary::json(data.path(), &["account", "create", "ada", "--credits", "2"]);
    let created = binary::json(data.path(), &["key", "create", "--account", "ada"]);
    let (id, key) = (created["id"].as_str().expect("an id"), created["key"].as_str().expect("a key"));
    submit(&server, key, "a boat").await;
    let poor = send(server.address, "POST", GENERATE, key, r#"{"prompt": "a boat"}"#).await;
    poor.assert_error(402, "INSUFFICIENT_CREDITS");
    assert_eq!(binary::json(data.path(), &["credits", "grant", "ada", "2"])["credits"], 2);
    submit(&server, key, "a boat").await;
    binary::json(data.path(), &["key", "disable", id]);
    until(async || send(server.address, "GET", TASKS, key, "").await.status == 401).await;
    server.stop();
}

#[tokio::test]
async fn the_list_of_keys_shows_which_were_used_and_which_leaked() {
    let (data, server, key) = Server::install(&[]);
    binary::json(data.path(), &["key", "create", "--account", "default", "--name", "spare"]);
    assert_eq!(send(server.address, "GET", TASKS, &key, "").await.status, 200);
    send(server.address, "GET", &format!("{TASKS}?token={key}"), "", "").await.assert_error(401, "UNAUTHORIZED");
    let listed = || binary::json(data.path(), &["key", "list"]);
    until(async || !listed()[0]["leaked_at"].is_null()).await;
    server.stop();
    let keys = listed();
    let last_used_at = keys[0]["last_used_at"].as_str().expect("a stop records the last use of keys");
    assert_eq!(keys[1]["last_used_at"], serde_json::Value::Null);
    let shown = binary::run(data.path(), ["key", "list"]).stdout;
    let shown = String::from_utf8(shown).expect("text");
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].contains("LAST USED"), "{shown}");
    assert!(lines[1].contains("rotate this") && lines[1].contains(last_used_at), "{shown}");
    let unused: Vec<_> = lines[2].split_whitespace().skip(3).collect();
    assert_eq!(unused, ["active", "-", "-", "-", "spare"], "{shown}");
}

#[tokio::test]
async fn metrics_have_a_listener_of_their_own() {
    let data = TempDir::new().expect("a directory");
    let free = Port::take();
    let server = Server::start(data.path(), &["--metrics-listen", &free.address.to_string()]);
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, "a boat").await;
    ended(&server, &key, &task_id).await;
    // The metric is updated a moment after callers can see the end.
    let counted = async || {
        let metrics = send(free.address, "GET", "/metrics", "", "").await;
        assert_eq!(metrics.status, 200);
        let text = String::from_utf8(metrics.body.to_vec()).expect("text");
        text.contains("tintype_tasks_ended_total{status=\"completed\"} 1").then_some(text)
    };
    let text = until_some(counted).await;
    for line in [
        "tintype_tasks_submitted_total 1",
        "tintype_credits_charged_total 2",
        "tintype_http_requests_total{method=\"POST\",route=\"/api/v1/images/generate\",status=\"200\"} 1",
        "tintype_tasks_removed_total 0",
        "tintype_queue_waiting 0",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("tt_") && !text.contains("boat"));
    send(server.address, "GET", "/metrics", "", "").await.assert_error(404, "NOT_FOUND");
    server.stop();
}

/// The commit that fails: later than the commits of a start and of an idle worker.
const TURN: usize = 40;

/// Submits until the process ends or enough tasks are acknowledged, and returns those.
async fn submit_while_it_lasts(server: &Server, key: &str) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for _ in 0..TURN {
        let Some(answer) = try_send(server.address, "POST", GENERATE, key, r#"{"prompt": "a boat [[fail]]"}"#).await
        else {
            break;
        };
        if answer.status == StatusCode::OK {
            acknowledged.push(answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned());
        }
    }
    acknowledged
}

#[tokio::test]
async fn a_process_exits_when_the_outcome_of_a_commit_is_unknown() {
    let points = Point::all().filter(|point| OF_A_PROCESS.iter().any(|effect| is_of(*point, *effect)));
    for point in points {
        for (action, code) in [("error", Some(74)), ("panic", Some(70)), ("kill", None), ("delay", Some(0))] {
            let turn = if is_of(point, Effect::Commit) { TURN } else { 1 };
            let fault = format!("{point}={action}@{turn}");
            let data = TempDir::new().expect("a directory");
            // The first start leaves a write-ahead log, and the second checkpoints it before the first submit.
            let server = Server::start(data.path(), &[]);
            let key = server.first_key().expect("a key");
            server.stop();
            let mut server = Server::start(data.path(), &["--test-fault", &fault]);
            let acknowledged = submit_while_it_lasts(&server, &key).await;
            assert!(!acknowledged.is_empty(), "{fault}");
            if action == "delay" {
                server.signal("TERM");
            }
            let status = server.until_ended().await;
            assert_eq!(status.code(), code, "{fault}");

            let server = Server::start(data.path(), &[]);
            for task_id in &acknowledged {
                assert_eq!(ended(&server, &key, task_id).await["status"], "failed", "{fault}");
            }
            server.stop();
            let audit = binary::json(data.path(), &["credits", "audit"]);
            assert_eq!(audit["drifts"], json!([]), "{fault}");
            let unanswered = audit["tasks"].as_u64().expect("a number") - acknowledged.len() as u64;
            assert!(unanswered <= 1, "{fault}: only the submit that got no answer may have made a task");
        }
    }
}
