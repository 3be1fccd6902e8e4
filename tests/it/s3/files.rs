//! Files in a bucket behave like files in a directory.

use bytes::Bytes;
use object_store::GetRange;
use serde_json::json;
use tempfile::TempDir;
use tintype::files::{Creation, FileName, Files};
use tintype_config::{ORPHAN_AGE, REMOVED_FILES_GRACE, S3Settings};
use tintype_domain::model::{Id, IdSource};

use crate::rigs::certificates::certificate;
use crate::rigs::s3::S3Server;
use crate::rigs::service::{NOON, Service, files};

fn some_task() -> Id {
    IdSource::default().next(NOON)
}

#[tokio::test]
async fn a_file_is_written_once_and_never_overwritten() {
    let directory = TempDir::new().expect("a directory");
    let s3 = S3Server::start(directory.path(), "pictures").await;
    let stored = Files::in_bucket(&s3.settings("s3://pictures/of/ours")).expect("files");
    let name = stored.write(some_task(), 0, Bytes::from_static(b"first")).await.expect("a write");
    let parsed = FileName::parse(&name).expect("a name");
    assert_eq!(stored.create(parsed, Bytes::from_static(b"second")).await.expect("an answer"), Creation::Exists);
    let path = directory.path().join("pictures/of/ours").join(&name);
    assert_eq!(std::fs::read(&path).expect("the object"), b"first");
    assert_eq!(stored.size(parsed).await.expect("an answer"), Some(5));
    let part = stored.open(parsed, Some(GetRange::Bounded(1..3))).await.expect("an answer").expect("a file");
    assert_eq!(part.bytes().await.expect("bytes"), "ir");
    assert_eq!(stored.days().await.expect("a list"), [&name[..10]]);
    for _ in 0..2 {
        stored.remove(&name).await.expect("a missing file is no error");
        assert_eq!(stored.size(parsed).await.expect("an answer"), None);
    }
    assert!(stored.open(parsed, None).await.expect("an answer").is_none());
    assert_eq!(stored.create(parsed, Bytes::from_static(b"second")).await.expect("an answer"), Creation::Done);
}

#[tokio::test]
async fn a_bucket_is_reached_over_tls_with_a_configured_authority() {
    let directory = TempDir::new().expect("a directory");
    let (tls, authority) = certificate("localhost");
    let s3 = S3Server::start_over(Some(tls), directory.path(), "pictures").await;
    let mut variables = s3.variables();
    variables.push(("AWS_ENDPOINT_URL_S3".into(), format!("https://localhost:{}", s3.address.port())));
    let mut settings = S3Settings::parse("s3://pictures", variables).expect("settings");
    let stranger = Files::in_bucket(&settings).expect("files");
    let said = stranger.check_access().await.expect_err("an untrusted certificate");
    assert!(said.contains("UnknownIssuer") && said.contains("in AWS_CA_BUNDLE"), "{said}");
    settings.authorities = Some(authority.into_bytes());
    let stored = Files::in_bucket(&settings).expect("files");
    assert_eq!(stored.check_access().await, Ok(()));
    let name = stored.write(some_task(), 0, Bytes::from_static(b"png")).await.expect("a write");
    assert_eq!(stored.size(FileName::parse(&name).expect("a name")).await.expect("an answer"), Some(3));
    settings.authorities = Some(b"no authority".to_vec());
    assert!(Files::in_bucket(&settings).expect_err("no PEM").to_string().contains("certificate authority"));
}

#[tokio::test]
async fn tasks_complete_and_their_files_are_served_in_ranges() {
    let service = Service::start_on_s3(&[]).await;
    let caller = service.caller("ada", 100).await;
    let task = caller.outcome_of(json!({ "prompt": "a boat", "n": 4 })).await;
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(files(&service).len(), 4);
    for image in task["images"].as_array().expect("images") {
        let url = image["url"].as_str().expect("a URL");
        let whole = service.fetch(url, &[]).await;
        assert_eq!((whole.status.as_u16(), whole.header("content-type")), (200, "image/png"));
        assert_eq!(whole.header("x-content-type-options"), "nosniff");
        assert_eq!(whole.header("content-length"), whole.body.len().to_string());
        let part = service.fetch(url, &[("range", "bytes=-12")]).await;
        assert_eq!((part.status.as_u16(), &part.body), (206, &whole.body.slice(whole.body.len() - 12..)));
        let etag = whole.header("etag");
        assert_eq!(service.fetch(url, &[("if-none-match", etag)]).await.status, 304);
        assert_eq!(service.fetch(url, &[("range", "bytes=99999999-")]).await.status, 416);
    }
    let missing = task["media_url"].as_str().expect("a URL").replace("-0-", "-1-");
    service.fetch(&missing, &[]).await.assert_error(404, "NOT_FOUND");
}

#[tokio::test]
async fn the_files_of_removed_tasks_are_deleted() {
    let service = Service::start_on_s3(&["--retention", "1h"]).await;
    let caller = service.caller("ada", 100).await;
    caller.submit(json!({ "prompt": "a boat", "n": 2 })).await;
    service.work().await;
    assert_eq!(files(&service).len(), 2);
    service.clock.advance(ORPHAN_AGE);
    service.sweeper.remove_old().await;
    assert_eq!(files(&service).len(), 2, "files stay for callers who read the URL before the removal");
    service.clock.advance(REMOVED_FILES_GRACE * 2);
    service.sweeper.remove_old().await;
    assert_eq!(files(&service).len(), 0);
}
