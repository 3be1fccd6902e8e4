//! The URLs of files in a bucket: lasting or signed.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::Value;
use tintype::http::ApiSettings;
use tintype::service::ServiceContext;
use tintype::service::links::Links;
use tintype_config::ServerSettings;
use tokio::net::TcpStream;
use url::Url;

use crate::rigs::http::{Answer, TASKS, exchange};
use crate::rigs::s3::SECRET_KEY;
use crate::rigs::service::Service;

fn media_url(task: &Value) -> Url {
    task["media_url"].as_str().and_then(|url| url.parse().ok()).expect("a URL")
}

/// Fetches a URL without credentials.
async fn fetch(url: &Url) -> Answer {
    let address = format!("{}:{}", url.host_str().expect("a host"), url.port().expect("a port"));
    let target = &url[url::Position::BeforePath..];
    let request = Request::builder().uri(target).header("host", &address).body(Full::new(Bytes::new()));
    exchange(TcpStream::connect(&address).await.expect("a server"), request.expect("a request")).await
}

fn signed_for(url: &Url) -> u64 {
    let expires = url.query_pairs().find(|(name, _)| name == "X-Amz-Expires").expect("a lifetime");
    expires.1.parse().expect("seconds")
}

#[tokio::test]
async fn a_public_bucket_is_linked_to_by_the_key_of_the_object() {
    let service = Service::start_on_s3(&["--file-url", "https://cdn.example.com/pictures/"]).await;
    let caller = service.caller("ada", 100).await;
    let task = caller.outcome("a boat").await;
    let url = media_url(&task);
    let key = url.as_str().strip_prefix("https://cdn.example.com/pictures/").expect("the base");
    let object = service.directory.path().join("files").join(key);
    assert!(object.is_file(), "{}", object.display());
}

#[tokio::test]
async fn signed_links_serve_the_png_and_nothing_else() {
    let service = Service::start_on_s3(&["--file-urls", "signed", "--file-url-lifetime", "10m"]).await;
    let caller = service.caller("ada", 100).await;
    let task = caller.outcome("a boat").await;
    let url = media_url(&task);
    assert_eq!(url.port(), service.s3.as_ref().map(|s3| s3.address.port()));
    assert!(!url.as_str().contains(SECRET_KEY));
    let file = fetch(&url).await;
    assert_eq!((file.status.as_u16(), file.header("content-type")), (200, "image/png"));
    assert_eq!(file.header("cache-control"), "public, max-age=31536000, immutable");
    assert_eq!(&file.body[..8], b"\x89PNG\r\n\x1a\n");
    let mut bare = url.clone();
    bare.set_query(None);
    assert_eq!(fetch(&bare).await.status, 403, "the bucket is not public");
    let other = url.as_str().replace("-0-", "-1-").parse().expect("a URL");
    assert_eq!(fetch(&other).await.status, 403, "a signature is for one object");
    let listed = caller.get(TASKS).await.json()["data"]["items"][0]["media_url"].clone();
    assert_eq!(listed, task["media_url"], "polling and listing show the same");
}

#[tokio::test]
async fn a_signed_link_is_shown_only_while_its_lifetime_is_left() {
    let service = Service::start_on_s3(&["--file-urls", "signed", "--file-url-lifetime", "1h"]).await;
    let caller = service.caller("ada", 100).await;
    let task = caller.outcome("a boat").await;
    let task_id = task["task_id"].as_str().expect("a task_id");
    let first = media_url(&task);
    // The URL stays the same for a while, so that caches work...
    let reserve = signed_for(&first) - 3600;
    service.clock.advance(Duration::from_secs(reserve - 2));
    assert_eq!(media_url(&caller.task(task_id).await), first);
    // ...but not longer than the remaining lifetime allows. A new signature needs another second.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    service.clock.advance(Duration::from_secs(2));
    let second = media_url(&caller.task(task_id).await);
    assert_ne!(second, first);
    assert_eq!(fetch(&second).await.status, 200);
}

#[tokio::test]
async fn signed_links_are_refused_without_permanent_bucket_credentials() {
    let service = Service::start_on_s3(&[]).await;
    let settings = ServerSettings::from_flags(["--file-urls", "signed"]).expect("valid flags");
    let build = async |files| {
        let shared =
            ServiceContext::new(&settings, service.clock.clone(), service.shared.store.clone(), files, Vec::new());
        let links = ApiSettings::new(&settings, "http://127.0.0.1:1").expect("valid settings").studio.file_links;
        Links::open(links, shared).await.expect_err("a refusal")
    };
    let on_disk = tintype::files::Files::on_disk(service.directory.path()).expect("files");
    assert!(build(on_disk).await.contains("--files s3://"));
    let mut variables = service.s3.as_ref().expect("a bucket").variables();
    variables.push(("AWS_SESSION_TOKEN".into(), "a-token-that-ends".into()));
    let temporary = tintype_config::S3Settings::parse("s3://files", variables).expect("settings");
    let said = build(tintype::files::Files::in_bucket(&temporary).expect("files")).await;
    assert!(said.contains("AWS_SESSION_TOKEN") && !said.contains("a-token-that-ends"), "{said}");
}

#[test]
fn signed_links_and_a_base_url_exclude_each_other() {
    let flags = ["--files", "s3://files", "--file-urls", "signed", "--file-url", "https://cdn.example.com"];
    let settings = ServerSettings::from_flags(flags).expect("valid flags");
    let said = ApiSettings::new(&settings, "http://localhost").expect_err("a contradiction");
    assert!(said.contains("--file-url") && said.contains("AWS_ENDPOINT_URL"), "{said}");
}
