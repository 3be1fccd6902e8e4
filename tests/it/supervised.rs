//! The server under a supervisor: systemd, a container engine, a collector of logs.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rigs::binary::{self, Ran as _, Run as _, Server, refused, signal, tintype};
use crate::rigs::cluster::Site;
use crate::rigs::cluster::node::Part;
use crate::rigs::http::send;
use crate::rigs::s3::{SECRET_KEY, variables};
use crate::rigs::wait::{in_time, until_some};

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

fn health(flags: &[&str]) -> Output {
    tintype().args(["health", "--json"]).args(flags).ran()
}

/// The findings of a command, and whether it exited with success.
fn found(output: &Output) -> (bool, Value) {
    let json = output.json();
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
    let text = tintype().args(["health", "--listen", &address]).ran();
    assert_eq!(text.text(), format!("ok    {address}: /readyz answers 200\n"));
    server.stop();
    let (works, said) = found(&health(&["--listen", &address]));
    assert!(!works && said["detail"].as_str().expect("a message").contains("refused"), "{said}");
    assert!(!found(&health(&["--listen", &socket])).0);
}

#[test]
fn a_server_that_cannot_work_is_alive_but_not_ready() {
    let data = TempDir::new().expect("a directory");
    let server = Server::start(data.path(), &["--min-free-space", "1000TB"]);
    let address = server.address.to_string();
    let worker = || tintype().args(["health", "--worker", "--json", "--data"]).arg(data.path()).ran();
    assert!(worker().exited(1).json()[0]["detail"].as_str().expect("a message").contains("disk is nearly full"));
    let (works, said) = found(&health(&["--listen", &address]));
    assert!(!works && said["detail"] == "/readyz answers 503", "{said}");
    assert!(found(&health(&["--alive", "--listen", &address])).0);
    server.stop();
    let server = Server::start(data.path(), &[]);
    assert_eq!(worker().exited(0).json()[0]["detail"], "the worker is ready", "the one of `tintype serve`");
    server.stop();
    assert_eq!(worker().exited(1).json()[0]["detail"], "no worker is running on this data directory");
}

#[test]
fn doctor_asks_the_running_server_whether_it_is_ready() {
    let data = TempDir::new().expect("a directory");
    let socket = format!("unix:{}", data.path().join("socket").display());
    let said = |flags: &[&str]| {
        let mut command = tintype();
        command.args(["serve", "--log", "warn", "--listen", &socket, "--listen", "127.0.0.1:0", "--data"]);
        command.arg(data.path()).args(flags);
        let server = Server::spawn(command);
        let output = tintype().args(["doctor", "--json", "--data"]).arg(data.path()).ran();
        server.stop();
        output.check("server")
    };
    assert_eq!(said(&[])["detail"], "running on this data directory, and ready");
    let check = said(&["--min-free-space", "1000TB"]);
    let detail =
        format!("running on this data directory, and not ready: /readyz at {socket} answers 503; its log says why");
    assert_eq!((&check["ok"], &check["detail"]), (&json!(false), &json!(detail)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_listens_nowhere_tells_its_health() {
    let site = Site::new().await;
    let ask = || {
        let output = site.installation.run(&["health", "--worker", "--timeout", "60s", "--json"]);
        let json = output.json();
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
    let detail = said[0]["detail"].as_str().expect("a message");
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

/// The socket at which systemd would listen.
struct Systemd {
    _directory: TempDir,
    path: PathBuf,
    socket: UnixDatagram,
}

impl Systemd {
    fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self { _directory: directory, path, socket }
    }

    fn hears(&self) -> String {
        let mut bytes = [0; 128];
        let count = loop {
            match self.socket.recv(&mut bytes) {
                // A process that was stopped for a moment gets this instead of a message (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                heard => break heard.expect("a message"),
            }
        };
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }
}

/// Waits for the line of a log that is the `count`th with this text: a server writes its log a moment later.
fn until_logged(log: &Path, text: &str, count: usize) -> String {
    let found = || {
        let log = std::fs::read_to_string(log).expect("a log");
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        whole.lines().filter(|line| line.contains(text)).nth(count - 1).map(str::to_owned)
    };
    for _ in 0..PATIENCE.as_millis() / 5 {
        if let Some(line) = found() {
            return line;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no {text:?} in the log");
}

#[tokio::test]
async fn a_hangup_reloads_the_log_filter_and_ends_nothing() {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let [config, policy, cert, key] =
        ["tintype.toml", "policy.toml", "cert.pem", "key.pem"].map(|name| directory.path().join(name));
    let write = |path: &Path, text: &str| std::fs::write(path, text).expect("a file");
    let sign = || {
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        write(&cert, &signed.cert.pem());
        write(&key, &signed.signing_key.serialize_pem());
    };
    sign();
    write(&policy, "");
    let settings = format!("policy = {policy:?}\ntls-cert = {cert:?}\ntls-key = {key:?}\n");
    write(&config, &format!("log = \"warn\"\n{settings}"));
    let systemd = Systemd::start();
    let mut command = serve(&data, &log, &["--config", &config.display().to_string()]);
    command.env("NOTIFY_SOCKET", &systemd.path);
    let server = Server::spawn(command);
    assert_eq!(systemd.hears(), "READY=1");
    let said = || std::fs::read_to_string(&log).expect("a log");
    assert!(!said().contains("INFO"), "{}", said());

    // The filter takes effect, or the log says why it does not, by the time that the server is ready again.
    let hangup = || {
        server.signal("HUP");
        let reloading = systemd.hears();
        let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").map(str::parse::<u64>);
        assert!(micros.is_some_and(|micros| micros.is_ok_and(|micros| micros > 0)), "{reloading}");
        assert_eq!(systemd.hears(), "READY=1");
    };
    write(&config, &format!("log = \"info\"\n{settings}"));
    hangup();
    until_logged(&log, "log filter reloaded after SIGHUP", 1);
    write(&config, &format!("log = \"info=loud\"\n{settings}"));
    hangup();
    until_logged(&log, "could not reload the log filter; keeping the previous one", 1);
    // The other files need no signal.
    write(&policy, "strikes = 3 strikes");
    until_logged(&log, "could not reload the policy; keeping the previous one", 1);
    write(&key, "no key");
    until_logged(&log, "could not reload the certificate; keeping the previous one", 1);
    sign();
    until_logged(&log, "certificate reloaded", 1);
    write(&policy, "");
    until_logged(&log, "policy reloaded", 1);
    assert_eq!(send(server.address, "GET", "/healthz", "", "").await.status, 200);
    server.stop();
    assert_eq!(systemd.hears(), "STOPPING=1");
}

#[test]
fn a_worker_without_file_descriptors_says_so_and_answers_later() {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let server = Server::spawn(serve(&data, &log, &[]));
    let ask = |patience: &str| {
        tintype().args(["health", "--worker", "--json", "--timeout", patience, "--data"]).arg(&data).ran()
    };
    let worker = ask("60s").exited(0).json()[0]["address"].as_str().expect("a process").to_owned();
    let limit = |most: &str| {
        let process = worker.trim_start_matches("process ");
        Command::new("prlimit").args(["--pid", process, &format!("--nofile={most}:")]).ran().succeeded();
    };
    limit("0");
    ask("1s").exited(1);
    until_logged(&log, "could not accept a connection; retrying", 1);
    limit("1024");
    ask("60s").exited(0);
    server.stop();
}

#[test]
fn systemd_hears_when_the_server_is_ready_and_when_it_stops() {
    let directory = TempDir::new().expect("a directory");
    let systemd = Systemd::start();
    let mut command = serve(&directory.path().join("data"), &directory.path().join("log"), &[]);
    command.env("NOTIFY_SOCKET", &systemd.path);
    let server = Server::spawn(command);
    assert_eq!(systemd.hears(), "READY=1");
    server.stop();
    assert_eq!(systemd.hears(), "STOPPING=1");
}

/// A server under a watchdog, and its process id as systemd sets it.
fn watched(systemd: &Systemd, directory: &Path, pid: &str) -> Server {
    let data = directory.join("data");
    // The shell becomes the server, so its process id is that of the server.
    let script = format!("export WATCHDOG_PID={pid}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.env_clear().args(["-c", &script, binary::TINTYPE, "serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    command.env("NOTIFY_SOCKET", &systemd.path).env("WATCHDOG_USEC", "400000");
    command.stdin(Stdio::null()).stderr(File::create(directory.join("log")).expect("a file"));
    Server::spawn(command)
}

#[test]
fn the_watchdog_hears_of_a_server_that_answers_and_of_no_other() {
    let directory = TempDir::new().expect("a directory");
    let systemd = Systemd::start();
    let server = watched(&systemd, directory.path(), "$$");
    assert_eq!(systemd.hears(), "READY=1");
    for _ in 0..3 {
        assert_eq!(systemd.hears(), "WATCHDOG=1");
    }
    server.signal("STOP");
    systemd.socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
    // Messages from before the stop do not count.
    while !server.is_stopped() {}
    while systemd.socket.recv(&mut [0; 64]).is_ok() {}
    systemd.socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket");
    assert!(systemd.socket.recv(&mut [0; 64]).is_err(), "a stopped server is not alive");
    server.signal("CONT");
    systemd.socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    assert_eq!(systemd.hears(), "WATCHDOG=1");
    server.stop();
}

#[test]
fn the_watchdog_of_another_process_is_not_ours() {
    let directory = TempDir::new().expect("a directory");
    let systemd = Systemd::start();
    let server = watched(&systemd, directory.path(), "1");
    assert_eq!(systemd.hears(), "READY=1");
    server.stop();
    assert_eq!(systemd.hears(), "STOPPING=1");
}

#[test]
fn sigterm_ends_a_server_that_is_still_starting() {
    let directory = TempDir::new().expect("a directory");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let mut command = serve(&directory.path().join("data"), &directory.path().join("log"), &[]);
    command.envs(variables(address, SECRET_KEY)).env("TINTYPE_FILES", "s3://files").stdout(Stdio::null());
    let mut server = command.spawn().expect("the program starts");
    // The server asks the bucket, which accepts the question and never answers.
    let asked = silent.accept().expect("a connection");
    signal(server.id(), "TERM");
    assert_eq!(server.wait().expect("a child").code(), Some(0));
    drop(asked);
    let log = std::fs::read_to_string(directory.path().join("log")).expect("a log");
    assert!(log.contains("stopped before the server was ready"), "{log}");
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
    let started = until_some(async || lines().into_iter().find(|line| line["message"] == "started")).await;
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
    in_time("the task does not end", async {
        // Slower than `until`, which the limit on reads would stop.
        while send(address, "GET", &task, key.trim(), "").await.json()["data"]["status"] == "processing" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    signal(process.id(), "TERM");
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
    let said = binary::run(&directory.path().join("tintpye-data"), ["doctor"]).exited(1).text();
    assert!(said.contains("there is no directory") && said.contains("--data"), "{said}");
}
