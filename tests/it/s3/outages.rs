//! The bucket goes away, stays silent or refuses: attempts end, and nothing is lost.

use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tintype::files::Files;
use tintype_config::TASK_TIME_LIMIT;
use tintype_domain::model::{EntryKind, IdSource};
use tokio::net::TcpListener;

use crate::rigs::s3::{S3Server, SECRET_KEY, variables};
use crate::rigs::service::{NOON, Service};
use crate::rigs::wait::listen_again;

/// The time limit of a write in tests that see it fail.
const SOON: Duration = Duration::from_millis(200);

#[tokio::test]
async fn an_attempt_survives_a_short_bucket_outage() {
    let service = Service::start_on_s3(&[]).await;
    let s3 = service.s3.as_ref().expect("a bucket");
    let caller = service.caller("ada", 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    s3.stop().await;
    let worker = service.worker.clone();
    let step = tokio::spawn(async move { worker.step().await });
    // The bucket comes back at the first request.
    let waiting = listen_again(s3.address).await;
    drop(waiting.accept().await.expect("a request"));
    drop(waiting);
    assert_eq!(caller.task(&task_id).await["status"], "processing");
    s3.come_back().await;
    assert_eq!(step.await.expect("no panic").expect("a store"), 1);
    let task = caller.task(&task_id).await;
    assert_eq!(task["status"], "completed", "{task}");
    assert_eq!(service.shared.metrics.attempts_lost.get(), 0, "the rendered images were kept");
    assert_eq!(service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await.status, 200);
}

#[tokio::test]
async fn a_lasting_bucket_outage_costs_no_attempt_and_the_task_is_refunded_in_time() {
    let service = Service::start_on_s3(&[]).await;
    let impatient = service.join_with_write_limit(&[], SOON).await;
    let s3 = service.s3.as_ref().expect("a bucket");
    let caller = service.caller("ada", 100).await;
    let seen = caller.outcome("a boat").await;
    s3.stop().await;
    let task_id = caller.submit_prompt("a boat").await;
    impatient.work().await;
    assert_eq!(caller.task(&task_id).await["status"], "processing");
    assert_eq!(impatient.shared.metrics.attempts_lost.get(), 0);
    service.clock.advance(TASK_TIME_LIMIT);
    service.sweep().await;
    let task = caller.task(&task_id).await;
    assert_eq!(task["status"], "failed", "{task}");
    let history = service.shared.store.history(caller.account.id, None, 10).await.expect("a store");
    assert_eq!(history[0].kind, EntryKind::Refund);
    let url = seen["media_url"].as_str().expect("a URL");
    service.fetch(url, &[]).await.assert_error(500, "INTERNAL_ERROR");
    s3.come_back().await;
    assert_eq!(service.fetch(url, &[]).await.status, 200);
    service.assert_sound().await;
}

#[tokio::test]
async fn a_write_to_a_bucket_that_does_not_answer_times_out() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    let settings = tintype_config::S3Settings::parse("s3://files", variables(address, "secret")).expect("settings");
    let files = Files::in_bucket(&settings).expect("files").with_write_limit(SOON);
    let written = files.write(IdSource::default().next(NOON), 0, Bytes::from_static(b"png")).await;
    let said = written.expect_err("no answer").to_string();
    assert!(said.contains("s3://files"), "{said}");
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_repeated_under_another_name() {
    let directory = TempDir::new().expect("a directory");
    let s3 = S3Server::start(directory.path(), "files").await;
    let relay = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = relay.local_addr().expect("an address");
    let behind = s3.address;
    let relaying = tokio::spawn(async move {
        // The first connection is closed once the server has answered, and the answer is lost.
        let (mut near, _) = relay.accept().await.expect("a connection");
        let mut far = tokio::net::TcpStream::connect(behind).await.expect("the server");
        let (mut from_near, _near) = near.split();
        let (mut from_far, mut to_far) = far.split();
        tokio::select! {
            _ = tokio::io::copy(&mut from_near, &mut to_far) => {}
            answered = tokio::io::AsyncReadExt::read_u8(&mut from_far) => drop(answered.expect("an answer")),
        }
        drop((near, far));
        loop {
            let (mut near, _) = relay.accept().await.expect("a connection");
            let mut far = tokio::net::TcpStream::connect(behind).await.expect("the server");
            tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut near, &mut far).await) });
        }
    });
    let settings = tintype_config::S3Settings::parse("s3://files", variables(address, SECRET_KEY));
    let files = Files::in_bucket(&settings.expect("settings")).expect("files");
    let name = files.write(IdSource::default().next(NOON), 0, Bytes::from_static(b"png")).await.expect("a write");
    relaying.abort();
    let folder = directory.path().join("files").join(&name[..10]);
    let written: Vec<_> =
        std::fs::read_dir(folder).expect("a day").map(|entry| entry.expect("a file").path()).collect();
    assert_eq!(written.len(), 2, "the first is an orphan: {written:?}");
    assert!(written.iter().any(|path| path.ends_with(&name)), "{written:?}");
    assert!(written.iter().all(|path| std::fs::read(path).expect("an object") == b"png"));
}
