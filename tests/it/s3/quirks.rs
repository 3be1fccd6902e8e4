//! Answers of buckets in the field that no document describes. Each ends in a message, soon.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::TryStreamExt as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tintype::files::Files;
use tintype_config::S3Settings;
use tintype_domain::model::IdSource;
use tintype_system::clock::Timestamp;
use tokio::net::TcpListener;

use crate::rigs::binary::{Killed, Ran as _, Run as _, tintype};
use crate::rigs::packages::python;
use crate::rigs::ports::Port;
use crate::rigs::s3::{ACCESS_KEY, SECRET_KEY, variables};
use crate::rigs::service::NOON;

/// The answer to a request: the parameters of a listing, or `None` for a write.
type Answer = fn(Option<&HashMap<String, String>>) -> (u16, String);

/// A bucket that answers as it likes.
struct Bucket {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    files: Files,
}

impl Bucket {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let count = count.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    count.fetch_add(1, Ordering::Relaxed);
                    let query = request.uri().query().unwrap_or_default().as_bytes();
                    let query = url::form_urlencoded::parse(query).into_owned().collect();
                    let (status, body) = answer((request.method() == Method::GET).then_some(&query));
                    let response = Response::builder().status(status).body(Full::new(Bytes::from(body)));
                    std::future::ready(response)
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        let settings = S3Settings::parse("s3://files/ours", variables(address, SECRET_KEY)).expect("settings");
        Self { address, asked, files: Files::in_bucket(&settings).expect("files") }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// A page of a listing with this name in it, and the token of the next page.
fn page(name: &str, token: &str) -> (u16, String) {
    let name = match name.strip_suffix('/') {
        Some(_) => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
        None => format!(
            "<Contents><Key>{name}</Key><Size>1</Size><LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
        ),
    };
    let next = format!("<NextContinuationToken>{token}</NextContinuationToken>");
    (200, format!("<ListBucketResult><IsTruncated>true</IsTruncated>{name}{next}</ListBucketResult>"))
}

#[tokio::test]
async fn a_listing_that_repeats_a_token_ends_in_an_error() {
    // Each with the pages that it may ask for.
    let quirks: [(&str, Answer, usize); 3] = [
        ("runpod/runpod-python#505: the same token on every page", |_| page("ours/2026-11-21/", "same"), 2),
        (
            "apache/druid#9097: the first page again, as from a cache that ignores the query",
            |query| {
                page("ours/2026-11-21/", query.and_then(|query| query.get("continuation-token")).map_or("a", |_| "a"))
            },
            2,
        ),
        (
            "two servers behind a balancer that do not share tokens",
            |query| {
                let token = query.and_then(|query| query.get("continuation-token")).map(String::as_str);
                page("ours/2026-11-21/", if token == Some("a") { "b" } else { "a" })
            },
            3,
        ),
    ];
    for (source, answer, pages) in quirks {
        let bucket = Bucket::start(answer).await;
        let said = bucket.files.days().await.expect_err(source).to_string();
        assert!(said.contains("repeats a continuation token"), "{source}: {said}");
        assert_eq!(bucket.asked(), pages, "{source}");
        let listed = bucket.files.written_before("2026-11-21".into(), Timestamp::MAX).try_collect::<Vec<_>>().await;
        assert!(listed.is_err(), "{source}");
        bucket.files.check_access().await.expect(source);
    }
}

#[tokio::test]
async fn objects_of_others_do_not_matter() {
    // Their names are none that the library can read, and stand before ours in every listing that has them.
    let bucket = Bucket::start(|query| {
        let prefix = query.map_or("", |query| query["prefix"].as_str());
        match prefix {
            "ours/20" => page("ours/2026-11-21/", ""),
            "ours/2026-11-21/" => page("ours/2026-11-21/theirs/a.png", ""),
            "ours/tintype-marker" => (200, "<ListBucketResult></ListBucketResult>".into()),
            _ => page("/their//key", ""),
        }
    })
    .await;
    bucket.files.check_access().await.expect("access");
    assert_eq!(bucket.files.days().await.expect("days"), ["2026-11-21"]);
    let listed = bucket.files.written_before("2026-11-21".into(), Timestamp::MAX).try_collect::<Vec<_>>().await;
    assert_eq!(listed.expect("a listing"), [[""; 0]; 0], "a folder of theirs within a day of ours is theirs");
}

#[tokio::test]
async fn a_store_without_conditional_writes_is_named_at_once() {
    let quirks: [(&str, Answer); 3] = [
        ("ceph/s3-tests#218: NotImplemented, as Amazon answered until 2024", |_| {
            (501, "<Error><Code>NotImplemented</Code><Message>A header implies functionality</Message></Error>".into())
        }),
        ("the same with an empty body", |_| (501, String::new())),
        ("400 InvalidArgument", |_| (400, "<Error><Code>InvalidArgument</Code><Message>no</Message></Error>".into())),
    ];
    for (source, answer) in quirks {
        let bucket = Bucket::start(answer).await;
        let written = bucket.files.write(IdSource::default().next(NOON), 0, Bytes::from_static(b"png")).await;
        let said = written.expect_err(source).to_string();
        assert!(said.contains("conditional writes (If-None-Match: *)"), "{source}: {said}");
        // One write, which the library sends up to three times.
        assert!(bucket.asked() <= 3, "{source}: {} requests to {}", bucket.asked(), bucket.address);
    }
}

#[test]
fn a_mistyped_endpoint_is_a_message() {
    let data = TempDir::new().expect("a directory");
    for endpoint in [
        "s3.example.com",
        "s3.example.com:9000",
        "http//s3.example.com",
        "htps://s3.example.com",
        "https://",
        "https://s3.example.com:99999",
        "https://s3 .example.com",
        "https:/s3.example.com",
        "https://s3.example.com/?region=eu",
        "https://hidden:hidden@s3.example.com",
        "https://s3.example.com\u{0}",
        "https://[::1",
    ] {
        let mut known = variables(([127, 0, 0, 1], 1).into(), SECRET_KEY);
        known.retain(|(name, _)| name != "AWS_ENDPOINT_URL");
        known.push(("AWS_ENDPOINT_URL".into(), endpoint.into()));
        let said = S3Settings::parse("s3://files", known.clone()).expect_err(endpoint);
        assert!(said.starts_with("AWS_ENDPOINT_URL is not the URL of a server"), "{endpoint}: {said}");
        assert!(!said.contains("hidden"), "{said}");
        if endpoint.contains('\0') {
            continue;
        }
        let mut command = tintype();
        command.envs(known).env("TINTYPE_FILES", "s3://files").args(["doctor", "--data"]).arg(data.path());
        let output = command.ran();
        let said = format!("{}{}", output.text(), output.errors());
        assert!(output.status.code() == Some(1) && !said.contains("panicked"), "{endpoint}: {said}");
        assert!(said.contains("AWS_ENDPOINT_URL is not the URL of a server"), "{endpoint}: {said}");
    }
}

/// A server of rclone, which ignores the condition of a write, until it is dropped.
struct Rclone {
    _process: Killed,
    port: Port,
}

impl Rclone {
    fn start(folder: &Path) -> Self {
        std::fs::create_dir(folder.join("files")).expect("a bucket");
        let port = Port::take();
        let mut command = Command::new(python().join("rclone"));
        command.args(["serve", "s3", "--config", "/dev/null", "--auth-key", &format!("{ACCESS_KEY},{SECRET_KEY}")]);
        command.args(["--addr", &port.address.to_string()]).arg(folder);
        let mut child = Killed(command.stderr(Stdio::null()).spawn().expect("rclone"));
        while std::net::TcpStream::connect(port.address).is_err() {
            assert!(child.try_wait().expect("a process").is_none(), "rclone ended");
            std::thread::yield_now();
        }
        Self { _process: child, port }
    }
}

#[test]
fn a_store_that_ignores_the_condition_of_a_write_is_refused() {
    let (data, stored) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    let rclone = Rclone::start(stored.path());
    // Also at the second one.
    for _ in 0..2 {
        let mut command = tintype();
        command.envs(variables(rclone.port.address, SECRET_KEY)).env("TINTYPE_FILES", "s3://files/pictures");
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data.path().join("data"));
        let output = command.ran();
        let said = output.errors();
        assert!(output.status.code() == Some(1) && said.contains("obeys If-None-Match: *"), "{said}");
    }
}
