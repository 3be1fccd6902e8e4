//! Sweeps of result files: in pages, one process per day, and not repeated at every start.

use std::fs::File;
use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use futures::TryStreamExt as _;
use tintype::files::Files;
use tintype_config::{
    FILE_SWEEP_LEASE, FULL_ORPHAN_SWEEP_EVERY, ORPHAN_AGE, ORPHAN_SWEEP_EVERY, REMOVED_FILES_GRACE, S3Settings,
};
use tintype_domain::model::{Id, IdSource};
use tintype_system::clock::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::retention::ended;
use crate::rigs::s3::{SECRET_KEY, variables};
use crate::rigs::service::{Caller, NOON, Service, files};

const DAY: Duration = Duration::from_secs(86_400);
/// More than one page of lookups.
const MANY: usize = 600;

async fn completed(caller: &Caller) -> Id {
    let task_id = ended(caller, "a boat").await;
    task_id.strip_prefix("imgmodel-").and_then(|id| id.parse().ok()).expect("an id")
}

/// Leaves an old file of a task behind.
async fn left_behind(service: &Service, task: Id) -> String {
    left_behind_at(service, task, Timestamp::from_millis(0)).await
}

async fn left_behind_at(service: &Service, task: Id, at: Timestamp) -> String {
    let name = service.shared.files.write(task, 1, Bytes::from_static(b"left behind")).await.expect("a file");
    let file = File::options().write(true).open(service.directory.path().join("files").join(&name));
    let at = UNIX_EPOCH + Duration::from_millis(at.as_millis().unsigned_abs());
    file.and_then(|file| file.set_modified(at)).expect("a time of our own");
    name
}

/// One result among many orphaned files.
async fn a_day_of_many_files_is_swept_piece_by_piece(service: Service) {
    let caller = service.caller("ada", 100).await;
    let task = completed(&caller).await;
    let result = files(&service).remove(0);
    for _ in 0..MANY {
        left_behind(&service, task).await;
    }
    let listed = service.shared.files.written_before(result[..10].to_owned(), Timestamp::MAX);
    let pieces: Vec<Vec<String>> = listed.try_collect().await.expect("a listing");
    assert!(pieces.iter().all(|piece| (1..=256).contains(&piece.len())), "each batch of names is bounded");
    let mut names = pieces.concat();
    names.sort();
    assert_eq!(names, files(&service));
    assert_eq!(names.len(), MANY + 1);
    service.clock.advance(ORPHAN_AGE * 2);
    let young = left_behind_at(&service, task, service.clock.now()).await;
    let of_no_task = left_behind(&service, IdSource::default().next(NOON)).await;
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, MANY);
    let mut kept = [result, young, of_no_task];
    kept.sort();
    assert_eq!(files(&service), kept);
}

#[tokio::test]
async fn many_files_on_a_disk_are_swept() {
    a_day_of_many_files_is_swept_piece_by_piece(Service::start_on_disk(&[]).await).await;
}

#[tokio::test]
async fn many_files_in_a_bucket_are_swept() {
    a_day_of_many_files_is_swept_piece_by_piece(Service::start_on_s3(&[]).await).await;
}

#[tokio::test]
async fn listing_a_missing_day_is_an_error_on_a_disk_and_empty_in_a_bucket() {
    let day = || "2026-11-21".to_owned();
    let disk = Service::start_on_disk(&[]).await;
    disk.shared.files.written_before(day(), Timestamp::MAX).try_next().await.expect_err("no such directory");
    let bucket = Service::start_on_s3(&[]).await;
    assert_eq!(bucket.shared.files.written_before(day(), Timestamp::MAX).try_next().await.expect("a listing"), None);
}

#[tokio::test]
async fn a_day_is_swept_by_one_process_in_an_hour() {
    let service = Service::start().await;
    let other = service.join(&[]).await;
    let task = completed(&service.caller("ada", 100).await).await;
    service.clock.advance(ORPHAN_AGE * 2);
    left_behind(&service, task).await;
    assert_eq!(service.sweeper.sweep_orphans_in_turn().await, 1);
    left_behind(&service, task).await;
    for process in [&other, &service] {
        assert_eq!(process.sweeper.sweep_orphans_in_turn().await, 0, "the day was swept just now");
    }
    service.clock.advance(ORPHAN_SWEEP_EVERY);
    assert_eq!(other.sweeper.sweep_orphans_in_turn().await, 1);
    assert_eq!(files(&service).len(), 1);
}

#[tokio::test]
async fn a_single_process_sweeps_again_after_an_hour() {
    let service = Service::start().await;
    let task = completed(&service.caller("ada", 100).await).await;
    service.clock.advance(ORPHAN_AGE * 2);
    for _ in 0..5 {
        left_behind(&service, task).await;
        // The clock of the database is slightly behind.
        service.clock.advance(ORPHAN_SWEEP_EVERY - Duration::from_secs(1));
        assert_eq!(service.sweeper.sweep_orphans_in_turn().await, 1);
    }
}

#[tokio::test]
async fn a_process_that_died_during_a_sweep_holds_its_day_until_the_claim_ends() {
    let service = Service::start().await;
    let task = completed(&service.caller("ada", 100).await).await;
    service.clock.advance(ORPHAN_AGE * 2);
    let orphan = left_behind(&service, task).await;
    let days = service.shared.files.days().await.expect("a list");
    assert_eq!(
        service.shared.store.claim_sweep(&days, FILE_SWEEP_LEASE).await.expect("a store").as_ref(),
        days.first()
    );
    assert_eq!(service.sweeper.sweep_orphans_in_turn().await, 0, "another process holds the claim");
    service.clock.advance(FILE_SWEEP_LEASE);
    assert_eq!(service.sweeper.sweep_orphans_in_turn().await, 1);
    assert!(!files(&service).contains(&orphan));
}

#[tokio::test]
async fn an_old_day_is_swept_once_a_week_and_not_at_every_start() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "0"], 100).await;
    let oldest = completed(&caller).await;
    let mut latest = oldest;
    for _ in 0..5 {
        service.clock.advance(DAY);
        latest = completed(&caller).await;
    }
    service.clock.advance(ORPHAN_AGE * 2);
    left_behind(&service, oldest).await;
    assert_eq!(service.sweeper.sweep_orphans_in_turn().await, 1, "the day was never swept");
    let orphan = left_behind(&service, oldest).await;
    service.clock.advance(ORPHAN_SWEEP_EVERY);
    let restarted = service.join(&[]).await;
    assert_eq!(restarted.sweeper.sweep_orphans_in_turn().await, 0);
    left_behind(&service, latest).await;
    service.clock.advance(ORPHAN_SWEEP_EVERY);
    assert_eq!(restarted.sweeper.sweep_orphans_in_turn().await, 1, "only the latest days are due");
    assert!(files(&service).contains(&orphan));
    service.clock.advance(FULL_ORPHAN_SWEEP_EVERY);
    assert_eq!(restarted.sweeper.sweep_orphans_in_turn().await, 1);
    assert!(!files(&service).contains(&orphan), "every day has its turn");
}

#[tokio::test]
async fn a_process_that_cannot_remove_files_takes_no_day() {
    let service = Service::start().await;
    let task = completed(&service.caller("ada", 100).await).await;
    service.clock.advance(ORPHAN_AGE * 2);
    left_behind(&service, task).await;
    let backup = service.shared.files.keep_all().expect("a lock");
    assert_eq!(service.sweeper.sweep_orphans_in_turn().await, 0);
    drop(backup);
    assert_eq!(service.sweeper.sweep_orphans_in_turn().await, 1);
}

/// Passes one request to the server behind it, and refuses the next.
async fn answer_once(relay: TcpListener, behind: SocketAddr) {
    let (mut near, _) = relay.accept().await.expect("a connection");
    drop(relay);
    let mut far = TcpStream::connect(behind).await.expect("the server");
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        assert_ne!(near.read_buf(&mut request).await.expect("a request"), 0);
    }
    far.write_all(&request).await.expect("the server");
    let (mut from_near, mut to_near) = near.split();
    tokio::select! {
        _ = tokio::io::copy(&mut far, &mut to_near) => {}
        next = from_near.read_u8() => drop(next.expect("another request")),
    }
}

#[tokio::test]
async fn a_day_whose_sweep_was_interrupted_is_soon_due_again() {
    let service = Service::start_on_s3(&[]).await;
    let task = completed(&service.caller("ada", 100).await).await;
    service.clock.advance(ORPHAN_AGE * 2);
    left_behind(&service, task).await;
    let relay = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let settings = S3Settings::parse("s3://files", variables(relay.local_addr().expect("an address"), SECRET_KEY));
    let breaking = Files::in_bucket(&settings.expect("settings")).expect("files");
    let relaying = tokio::spawn(answer_once(relay, service.s3.as_ref().expect("a bucket").address));
    let (clock, store) = (service.clock.clone(), service.shared.store.clone());
    let other = service.beside(clock, store, breaking).await;
    assert_eq!(other.sweeper.sweep_orphans_in_turn().await, 0);
    relaying.await.expect("the relay passed the list of days only");
    assert_eq!(service.sweeper.sweep_orphans_in_turn().await, 0);
    service.clock.advance(FILE_SWEEP_LEASE);
    assert_eq!(service.sweeper.sweep_orphans_in_turn().await, 1);
}

#[tokio::test]
async fn old_tasks_and_their_files_are_removed_by_one_process_in_an_hour() {
    let flags = ["--retention", "3h"];
    let service = Service::start_with(&flags).await;
    let other = service.join(&flags).await;
    let caller = service.caller("ada", 100).await;
    let minutes = |count: u64| Duration::from_secs(count * 60);
    let removed = || [&service, &other].map(|process| process.shared.metrics.removed.get());
    completed(&caller).await;
    service.clock.advance(minutes(30));
    let second = completed(&caller).await;
    service.clock.advance(minutes(160));
    service.sweeper.remove_old_in_turn().await;
    assert_eq!(removed(), [1, 0]);
    service.clock.advance(minutes(40));
    for process in [&other, &service] {
        process.sweeper.remove_old_in_turn().await;
    }
    assert_eq!(removed(), [1, 0], "the removal already ran in this hour");
    service.clock.advance(REMOVED_FILES_GRACE / 2);
    other.sweeper.remove_old_in_turn().await;
    assert_eq!(removed(), [1, 1]);
    let left = files(&service);
    assert!(left.len() == 1 && left[0].contains(second.as_str()), "{left:?}: its files stay for an hour");
}
