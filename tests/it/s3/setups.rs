//! Ways in which people set up buckets, and what stands before them.

use std::path::Path;
use std::process::Output;

use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use tempfile::TempDir;
use tintype::files::{Creation, FileName, Files};
use tintype_config::S3Settings;
use tintype_domain::files_marker::FilesMarker;
use tintype_domain::model::IdSource;

use crate::rigs::binary::{Run as _, tintype};
use crate::rigs::s3::{Proxy, S3Server};
use crate::rigs::service::NOON;

const FILES: &str = "s3://pictures/ours";

/// Whether a request is about an object, and not about the bucket.
fn is_about_object(head: &Parts) -> bool {
    head.uri.path().starts_with("/pictures/")
}

async fn bucket(proxy: Proxy) -> (TempDir, S3Server, Files) {
    let directory = TempDir::new().expect("a directory");
    let s3 = S3Server::start_behind(proxy, &directory.path().join("s3"), "pictures").await;
    let files = Files::in_bucket(&s3.settings(FILES)).expect("files");
    (directory, s3, files)
}

async fn write(files: &Files, bytes: usize) -> Result<String, String> {
    let png = Bytes::from(vec![7; bytes]);
    files.write(IdSource::default().next(NOON), 0, png).await.map_err(|error| error.to_string())
}

/// Runs the program on a bucket, and returns all that it said.
async fn said(s3: &S3Server, data: &Path, arguments: &[&str]) -> (Output, String) {
    let mut command = tintype();
    command.envs(s3.variables()).env("TINTYPE_FILES", FILES).args(arguments).arg("--data").arg(data);
    let running = tokio::task::spawn_blocking(move || command.ran());
    let output = running.await.expect("no panic");
    let said = [&output.stdout[..], &output.stderr].concat();
    (output, String::from_utf8(said).expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_of_a_proxy_is_found_by_the_doctor_and_ends_a_write() {
    // As nginx does unless it is told otherwise.
    const PAGE: &str = "<html><head><title>413 Request Entity Too Large</title></head></html>";
    let (directory, s3, files) = bucket(|_, bytes, _| (bytes > 1 << 20).then_some((413, PAGE))).await;
    write(&files, 1 << 20).await.expect("a small picture");
    let refused = write(&files, (1 << 20) + 1).await.expect_err("a large one");
    assert!(refused.contains("413") && refused.contains("client_max_body_size"), "{refused}");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    let (output, said) = said(&s3, &data, &["doctor"]).await;
    assert!(!output.status.success() && said.contains("client_max_body_size"), "{said}");
}

#[tokio::test]
async fn what_a_policy_hides_is_missing_if_a_listing_shows_that() {
    // Ceph answers like this where the right to list depends on the prefix.
    let hides: Proxy = |head, _, answered| {
        let denied = (403, "<Error><Code>AccessDenied</Code></Error>");
        (answered == Some(StatusCode::NOT_FOUND) && is_about_object(head)).then_some(denied)
    };
    let (_directory, _s3, files) = bucket(hides).await;
    let name = format!("2026-11-21/{}-0-{}.png", IdSource::default().next(NOON), "A".repeat(24));
    let missing = FileName::parse(&name).expect("a name");
    assert_eq!(files.marker().await.expect("an answer"), None);
    assert_eq!(files.size(missing).await.expect("an answer"), None);
    assert!(files.open(missing, None).await.expect("an answer").is_none());
    assert_eq!(files.read(missing).await.expect("an answer"), None);
    let marker = FilesMarker::random();
    assert_eq!(files.create_marker(marker).await.expect("an answer"), Creation::Done);
    assert_eq!(files.marker().await.expect("an answer"), Some(marker));
}

#[tokio::test]
async fn what_may_not_be_read_is_not_called_missing() {
    let denied: Proxy = |head, _, _| {
        let reads = [Method::GET, Method::HEAD].contains(&head.method) && is_about_object(head);
        reads.then_some((403, "<Error><Code>AccessDenied</Code></Error>"))
    };
    let (_directory, _s3, files) = bucket(denied).await;
    files.create_marker(FilesMarker::random()).await.expect("a write");
    let refused = files.marker().await.expect_err("it is there").to_string();
    assert!(refused.contains("AccessDenied"), "{refused}");
    // Without the right to list, nobody knows.
    let all: Proxy =
        |head, _, _| (head.method == Method::GET).then_some((403, "<Error><Code>AccessDenied</Code></Error>"));
    let (_directory, _s3, files) = bucket(all).await;
    let refused = files.marker().await.expect_err("no right").to_string();
    assert!(refused.contains("AccessDenied"), "{refused}");
}

#[tokio::test]
async fn a_bucket_with_object_lock_needs_checksums() {
    let locked: Proxy = |head, _, _| {
        let plain = head.method == Method::PUT && !head.headers.contains_key("x-amz-checksum-sha256");
        plain.then_some((
            400,
            "<Error><Code>InvalidRequest</Code><Message>Content-MD5 OR x-amz-checksum- HTTP header is required for Put \
             Object requests with Object Lock parameters</Message></Error>",
        ))
    };
    let (_directory, s3, files) = bucket(locked).await;
    let refused = write(&files, 5).await.expect_err("no checksum");
    assert!(refused.contains("AWS_CHECKSUM_ALGORITHM=SHA256") && !refused.contains("If-None-Match"), "{refused}");
    let variables = [s3.variables(), vec![("AWS_CHECKSUM_ALGORITHM".into(), "SHA256".into())]].concat();
    let files = Files::in_bucket(&S3Settings::parse(FILES, variables).expect("settings")).expect("files");
    write(&files, 5).await.expect("a write with a checksum");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_page_in_place_of_a_bucket_is_named() {
    let console: Proxy = |head, _, _| {
        let page =
            "\n<!doctype html><html lang=\"en\"><head><title>Console</title></head><body><p>Sign in</p></body></html>";
        (head.method == Method::GET).then_some((200, page))
    };
    let (directory, s3, files) = bucket(console).await;
    let refused = files.marker().await.expect_err("a page").to_string();
    assert!(refused.contains("web page") && refused.contains("AWS_ENDPOINT_URL"), "{refused}");
    let (output, said) = said(&s3, &directory.path().join("data"), &["serve", "--listen", "127.0.0.1:0"]).await;
    assert!(!output.status.success() && said.contains("AWS_ENDPOINT_URL") && !said.contains("adopt"), "{said}");
}
