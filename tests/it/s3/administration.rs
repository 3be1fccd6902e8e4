//! The real program on a bucket: starting, refusing, backing up, restoring, auditing.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};

use hyper::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Run as _, Server, printed, tintype};
use crate::rigs::http::{ended, send, submit};
use crate::rigs::s3::{ACCESS_KEY, Proxy, S3Server, SECRET_KEY, variables};
use crate::rigs::wait::until_some;

const FILES: &str = "s3://pictures/of/ours";

fn on_bucket(data: &Path, s3: &S3Server, arguments: &[&str]) -> Command {
    let mut command = tintype();
    command.envs(s3.variables()).env("TINTYPE_FILES", FILES).args(arguments).arg("--data").arg(data);
    command
}

/// Runs an administrative command while the bucket is served.
async fn run(mut command: Command) -> Output {
    let running = tokio::task::spawn_blocking(move || command.ran());
    running.await.expect("no panic")
}

async fn json(command: Command) -> Value {
    printed(&run(command).await)
}

async fn start(data: &Path, s3: &S3Server, flags: &[&str]) -> Server {
    let mut command = on_bucket(data, s3, &["serve", "--listen", "127.0.0.1:0"]);
    command.args(flags);
    tokio::task::spawn_blocking(move || Server::spawn(command)).await.expect("no panic")
}

async fn stop(server: Server) {
    tokio::task::spawn_blocking(move || server.stop()).await.expect("no panic");
}

async fn refusal(command: Command) -> String {
    run(command).await.failed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_is_backed_up_and_restored_into_another_bucket() {
    let directory = TempDir::new().expect("a directory");
    let s3 = S3Server::start(&directory.path().join("s3"), "pictures").await;
    let data = directory.path().join("data");
    let server = start(&data, &s3, &["--log", "warn"]).await;
    assert!(server.said.contains(FILES), "{}", server.said);
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, "a boat").await;
    let task = ended(&server, &key, &task_id).await;
    assert_eq!(task["status"], "completed", "{task}");
    let path = task["media_url"].as_str().and_then(|url| url.strip_prefix(&server.url())).expect("our URL").to_owned();
    let served = send(server.address, "GET", &path, &key, "").await;
    assert_eq!((served.status.as_u16(), served.header("content-type")), (200, "image/png"));
    let copy = directory.path().join("copy");
    let copy_text = copy.to_str().expect("text").to_owned();
    let backup = json(on_bucket(&data, &s3, &["backup", &copy_text, "--json"])).await;
    assert_eq!((&backup["files"], &backup["drifts"]), (&1.into(), &Value::Array(Vec::new())), "{backup}");
    stop(server).await;
    let name = path.strip_prefix("/files/").expect("the path of a file");
    assert_eq!(std::fs::read(copy.join("files").join(name)).expect("a copy"), served.body);

    let audit = json(on_bucket(&data, &s3, &["credits", "audit", "--files", "--json"])).await;
    assert_eq!(audit["files"], 1, "{audit}");
    let object = directory.path().join("s3/pictures/of/ours").join(name);
    File::options().write(true).open(&object).and_then(|file| file.set_len(30)).expect("a harmed object");
    let said = run(on_bucket(&data, &s3, &["credits", "audit", "--files"])).await;
    assert!(!said.status.success() && said.text().contains("is truncated"), "{said:?}");

    let elsewhere = S3Server::start(&directory.path().join("elsewhere"), "pictures").await;
    let restored = directory.path().join("restored");
    let told = json(on_bucket(&restored, &elsewhere, &["restore", &copy_text, "--json"])).await;
    assert_eq!(told["files"], 1, "{told}");
    let server = start(&restored, &elsewhere, &["--log", "warn"]).await;
    assert_eq!(send(server.address, "GET", &path, &key, "").await.body, served.body);
    stop(server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_refuses_to_write_is_logged_with_what_to_check() {
    let refuses: Proxy = |head, _, _| {
        let error = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>";
        (head.method == Method::PUT && head.uri.path().ends_with(".png")).then_some((403, error))
    };
    let directory = TempDir::new().expect("a directory");
    let s3 = S3Server::start_behind(refuses, &directory.path().join("s3"), "pictures").await;
    let (data, log) = (directory.path().join("data"), directory.path().join("log"));
    let mut command = on_bucket(&data, &s3, &["serve", "--listen", "127.0.0.1:0", "--log", "warn"]);
    command.stderr(File::create(&log).expect("a file"));
    let server = tokio::task::spawn_blocking(move || Server::spawn(command)).await.expect("no panic");
    submit(&server, &server.first_key().expect("a key"), "a boat").await;
    let said = until_some(async || {
        let said = std::fs::read_to_string(&log).expect("a log");
        said.contains("result files cannot be written").then_some(said)
    });
    let said = said.await;
    stop(server).await;
    assert!(said.contains("set the clock of this machine") && said.contains("its keys and its policy"), "{said}");
    assert!(!said.contains("permissions and disk"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_refuses_to_start_on_an_unusable_bucket_and_reports_the_cause() {
    let directory = TempDir::new().expect("a directory");
    let s3 = S3Server::start(directory.path(), "pictures").await;
    let data = directory.path().join("data");
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    let mut wrong = on_bucket(&data, &s3, &serve);
    wrong.env("AWS_SECRET_ACCESS_KEY", "not-the-secret-at-all");
    let said = refusal(wrong).await;
    assert!(said.contains("SignatureDoesNotMatch") && said.contains("AWS_SECRET_ACCESS_KEY"), "{said}");
    assert!(!said.contains("not-the-secret-at-all"), "{said}");
    let mut missing = on_bucket(&data, &s3, &serve);
    missing.env("TINTYPE_FILES", "s3://elsewhere");
    let said = refusal(missing).await;
    assert!(said.contains("s3://elsewhere") && said.contains("NoSuchBucket"), "{said}");
    let mut away = on_bucket(&data, &s3, &serve);
    away.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    let said = refusal(away).await;
    assert!(said.contains("AWS_ENDPOINT_URL"), "{said}");
    let mut broken = on_bucket(&data, &s3, &serve);
    broken.env("AWS_SESSION_TOKEN", "hid\nden");
    let said = refusal(broken).await;
    assert!(said.contains("AWS_SESSION_TOKEN contains a line break") && !said.contains("panicked"), "{said}");
    for malformed in ["s3://", "s3:pictures", "s3://a/../b", "s3://a//b", "s3://a b", "ftp://a"] {
        let mut command = on_bucket(&data, &s3, &serve);
        command.env("TINTYPE_FILES", malformed);
        assert!(refusal(command).await.contains("s3://BUCKET"), "{malformed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_checks_the_bucket() {
    let directory = TempDir::new().expect("a directory");
    let s3 = S3Server::start(&directory.path().join("s3"), "pictures").await;
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    let mut command = on_bucket(&data, &s3, &["doctor", "--json"]);
    // As from files that end in line breaks.
    command.env("AWS_ACCESS_KEY_ID", format!("{ACCESS_KEY}\n")).env("AWS_SECRET_ACCESS_KEY", format!("{SECRET_KEY}\n"));
    command.env("AWS_REGION", "us-east-1\r\n");
    let found = run(command).await;
    found.succeeded();
    let files = found.check("files");
    assert!(files["ok"] == true && files["detail"].as_str().expect("text").starts_with(FILES), "{files}");
    let days = std::fs::read_dir(directory.path().join("s3/pictures/of/ours")).expect("a prefix");
    let left = days.flat_map(|day| std::fs::read_dir(day.expect("a day").path()).expect("files")).count();
    assert_eq!(left, 0, "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_of_the_bucket_are_never_shown() {
    const TOKEN: &str = "kittiwake-session-token";
    let directory = TempDir::new().expect("a directory");
    let s3 = S3Server::start(&directory.path().join("s3"), "pictures").await;
    let data = directory.path().join("data");
    let log = directory.path().join("log");
    let mut command = on_bucket(&data, &s3, &["serve", "--listen", "127.0.0.1:0", "--log", "trace"]);
    command.env("AWS_SESSION_TOKEN", TOKEN).stderr(File::create(&log).expect("a file"));
    let server = tokio::task::spawn_blocking(move || Server::spawn(command)).await.expect("no panic");
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, "a boat").await;
    let task = ended(&server, &key, &task_id).await;
    let path = task["media_url"].as_str().and_then(|url| url.strip_prefix(&server.url())).expect("our URL").to_owned();
    s3.stop().await;
    let answer = send(server.address, "GET", &path, &key, "").await;
    answer.assert_error(500, "INTERNAL_ERROR");
    stop(server).await;
    let log = std::fs::read_to_string(&log).expect("a log");
    assert!(log.contains("cause=files:"), "the log tells why the request failed");
    for secret in [SECRET_KEY, TOKEN] {
        assert!(!log.contains(secret), "a credential is in the log");
    }
    let settings = tintype_config::S3Settings::parse(FILES, variables(s3.address, SECRET_KEY)).expect("settings");
    let files = tintype::files::Files::in_bucket(&settings).expect("files");
    assert!(!format!("{settings:?} {files:?}").contains(SECRET_KEY));
}
