//! The real program and Redis: settings, the log, the doctor.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::rigs::binary::{Ran as _, Run as _, Server, tintype};
use crate::rigs::http::{TASKS, send};
use crate::rigs::postgres;
use crate::rigs::redis::RedisServer;
use crate::rigs::wait::until;

const PASSWORD: &str = "open sesame";
const ENCODED: &str = "open%20sesame";

/// `tintype serve` with a log that can be read.
fn serve(data: &Path, log: &Path, level: &str) -> Command {
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", level, "--data"]).arg(data);
    command.env("TINTYPE_REDIS_TIMEOUT", "10s").stderr(std::fs::File::create(log).expect("a file"));
    command
}

fn read(log: &Path) -> String {
    std::fs::read_to_string(log).expect("a log")
}

fn places() -> (TempDir, PathBuf, PathBuf) {
    let directory = TempDir::new().expect("a directory");
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    (directory, data, log)
}

/// The remaining requests in the header of a read.
async fn left(server: &Server, key: &str) -> String {
    let answer = send(server.address, "GET", TASKS, key, "").await;
    assert_eq!(answer.status, 200);
    answer.header("ratelimit").split(';').nth(1).expect("r").to_owned()
}

#[tokio::test]
async fn the_redis_password_is_used_and_never_shown() {
    let redis = RedisServer::start_with(&["--requirepass", PASSWORD]);
    let (_directory, data, log) = places();
    let url = format!("redis://:{ENCODED}@127.0.0.1:{}/3", redis.port());
    let file = data.with_extension("url");
    std::fs::write(&file, format!("{url}\n")).expect("a file");
    let mut command = serve(&data, &log, "trace");
    command.env("TINTYPE_REDIS_FILE", &file);
    let server = Server::spawn(command);
    let key = server.first_key().expect("a key");
    assert!(server.said.contains(&format!("Redis at 127.0.0.1:{}\n", redis.port())), "{}", server.said);
    left(&server, &key).await;
    server.stop();
    let mut connection = redis::Client::open(url).expect("a URL").get_connection().expect("a connection");
    let names: Vec<String> = redis::cmd("KEYS").arg("tintype:rate:*:read:1200").query(&mut connection).expect("names");
    assert_eq!(names.len(), 1, "counted in the database that the URL names");
    let log = read(&log);
    assert!(log.contains("TRACE") && !log.contains("sesame"));
}

#[tokio::test]
async fn a_server_starts_without_its_redis_and_logs_it_once() {
    let redis = RedisServer::start_with(&["--requirepass", PASSWORD]);
    let (_directory, data, log) = places();
    let mut command = serve(&data, &log, "info");
    command.env("TINTYPE_REDIS", format!("redis://:open%20simsim@127.0.0.1:{}", redis.port()));
    let server = Server::spawn(command);
    let said = read(&log);
    assert!(said.contains("Redis is unavailable: this process") && said.contains("authentication failed"), "{said}");
    let key = server.first_key().expect("a key");
    assert_eq!(left(&server, &key).await, "r=1199");
    let mut connection = redis.connection();
    redis::cmd("AUTH").arg(PASSWORD).exec(&mut connection).expect("the password");
    redis::cmd("CONFIG").arg(&["SET", "requirepass", "open simsim"]).exec(&mut connection).expect("done");
    until(async || read(&log).contains("Redis is available again")).await;
    left(&server, &key).await;
    server.stop();
    let said = read(&log);
    assert_eq!(said.matches("Redis is unavailable: this process").count(), 1, "{said}");
    assert_eq!(said.matches("Redis is available again").count(), 1, "{said}");
    assert!(!said.contains("simsim"), "{said}");
}

#[tokio::test]
async fn a_silent_redis_does_not_delay_the_start() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (_directory, data, log) = places();
    let mut command = serve(&data, &log, "info");
    let url = format!("redis://{}", silent.local_addr().expect("an address"));
    command.args(["--redis-timeout", "10ms", "--redis", &url]);
    let server = Server::spawn(command);
    assert!(read(&log).contains("no answer within 100ms"), "{}", read(&log));
    let key = server.first_key().expect("a key");
    for _ in 0..3 {
        left(&server, &key).await;
    }
    server.stop();
}

#[tokio::test]
async fn redis_is_reached_over_tls_with_a_trusted_authority() {
    let (directory, data, log) = places();
    std::fs::create_dir(&data).expect("a directory");
    // As `openssl req -x509` makes it.
    let mut signed = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
    signed.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pair = rcgen::KeyPair::generate().expect("a key");
    let (cert, key) = (data.join("cert.pem"), data.join("key.pem"));
    std::fs::write(&cert, signed.self_signed(&pair).expect("a certificate").pem()).expect("a file");
    std::fs::write(&key, pair.serialize_pem()).expect("a file");
    let (cert, key) = (cert.to_str().expect("text"), key.to_str().expect("text"));
    let redis = RedisServer::start_tls(cert, key);
    let url = format!("rediss://localhost:{}", redis.port());
    let mut command = serve(&data, &log, "info");
    command.args(["--redis", &url, "--redis-ca", cert]);
    let server = Server::spawn(command);
    assert_eq!(left(&server, &server.first_key().expect("a key")).await, "r=1199");
    server.stop();
    assert!(!read(&log).contains("Redis is unavailable"), "{}", read(&log));
    let mut command = serve(&data, &log, "info");
    command.args(["--redis", &url]);
    Server::spawn(command).stop();
    let said = read(&log);
    assert!(said.contains("invalid peer certificate") && said.contains("its authority in --redis-ca"), "{said}");
    let (well, detail) = doctor(&directory, &["--redis", &url.replace("rediss://", "redis://")]);
    assert!(!well && detail.contains("write rediss:// only if it uses TLS"), "{detail}");
    let plain = RedisServer::start();
    let mut command = serve(&data, &log, "info");
    command.args(["--redis", &plain.url().replace("redis://", "rediss://"), "--redis-timeout", "100ms"]);
    Server::spawn(command).stop();
    assert!(read(&log).contains("no answer within 1s: if this stays"), "{}", read(&log));
}

#[test]
fn processes_that_count_alone_or_without_protection_log_it() {
    let (_directory, data, log) = places();
    std::fs::create_dir(&data).expect("a directory");
    let database = postgres::cluster().url(&data);
    let start = |role: &str, redis: Option<&str>| {
        let mut command = tintype();
        command.args([role, "--listen", "127.0.0.1:0", "--database", &database, "--production", "--data"]).arg(&data);
        if let Some(url) = redis {
            command.args(["--redis", url]);
        }
        command.stderr(std::fs::File::create(&log).expect("a file"));
        let server = Server::spawn(command);
        assert!(server.said.contains("PostgreSQL database \"postgres\""), "{}", server.said);
        server.stop();
        read(&log)
    };
    let alone = "counts rate limits on its own; to share";
    let unprotected = "every API call will be refused";
    let said = start("api", None);
    assert!(said.contains(alone) && said.contains(unprotected), "{said}");
    let said = start("worker", None);
    assert!(!said.contains(alone) && !said.contains(unprotected), "a worker has no callers to limit: {said}");
    let redis = RedisServer::start();
    let said = start("api", Some(&redis.url()));
    assert!(!said.contains(alone), "{said}");
}

/// Whether the doctor succeeds, and its line about rate limits.
pub(super) fn doctor(data: &TempDir, flags: &[&str]) -> (bool, String) {
    let mut command = tintype();
    command.args(["doctor", "--json", "--redis-timeout", "10s"]).args(flags).arg("--data").arg(data.path());
    let output = command.ran();
    (output.status.success(), output.check("rate limits")["detail"].as_str().expect("text").to_owned())
}

#[test]
fn the_doctor_checks_redis() {
    let data = TempDir::new().expect("a directory");
    let mut redis = RedisServer::start();
    let url = redis.url();
    assert_eq!(doctor(&data, &[]), (true, "each process counts on its own".to_owned()));
    for url in [&url, &url.replace("redis://", "valkey://")] {
        let (well, detail) = doctor(&data, &["--redis", url]);
        assert!(well && detail.contains(&format!("Redis at 127.0.0.1:{}", redis.port())), "{detail}");
    }
    let poor = RedisServer::start_with(&["--rename-command", "SCRIPT", ""]);
    let (well, detail) = doctor(&data, &["--redis", &poor.url()]);
    assert!(!well && detail.ends_with("give --redis a server that runs scripts, and not its Sentinel"), "{detail}");
    redis.kill();
    let (well, detail) = doctor(&data, &["--redis", &url]);
    assert!(!well && detail.contains("refused"), "{detail}");
}

#[test]
fn a_redis_user_with_the_documented_rights_suffices() {
    let data = TempDir::new().expect("a directory");
    let redis = RedisServer::start();
    let docs = include_str!("../../../docs/operate/rate-limits.md");
    let line = docs.lines().find(|line| line.starts_with("ACL SETUSER")).expect("how to make a user");
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().expect("ACL"));
    command.arg(words.collect::<Vec<_>>()).exec(&mut redis.connection()).expect("a user");
    let url = format!("redis://tintype:SECRET@127.0.0.1:{}/1", redis.port());
    let (well, detail) = doctor(&data, &["--redis", &url]);
    assert!(well, "{detail}");
}
