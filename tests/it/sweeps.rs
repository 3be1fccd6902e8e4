//! The sweeps of result files.

use std::fs::File;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use futures::TryStreamExt as _;
use tintype::clock::Timestamp;
use tintype::config::ORPHAN_AGE;
use tintype::model::Id;
use tintype::sweeper;

use crate::retention::ended;
use crate::support::{Caller, Service};
use crate::work::files;

/// More than are looked up at a time.
const MANY: usize = 600;

/// A completed task with one result.
async fn completed(caller: &Caller<'_>) -> Id {
    let task_id = ended(caller, "a boat").await;
    task_id.strip_prefix("imgmodel-").and_then(|id| id.parse().ok()).expect("an id")
}

/// Leaves a file of a task behind, as if it had been there since long ago.
async fn left_behind(service: &Service, task: Id) -> String {
    let name = service.app.files.write(task, 1, Bytes::from_static(b"left behind")).await.expect("a file");
    let file = File::options().write(true).open(service.directory.path().join("files").join(&name));
    file.and_then(|file| file.set_modified(UNIX_EPOCH)).expect("an old file");
    name
}

/// One result among a great many files that are none.
async fn a_day_of_many_files_is_swept_piece_by_piece(service: Service) {
    let caller = service.caller("ada", 100).await;
    let task = completed(&caller).await;
    let result = files(&service).remove(0);
    for _ in 0..MANY {
        left_behind(&service, task).await;
    }
    let listed = service.app.files.written_before(result[..10].to_owned(), Timestamp::MAX);
    let pieces: Vec<Vec<String>> = listed.try_collect().await.expect("a listing");
    assert!(pieces.iter().all(|piece| (1..=256).contains(&piece.len())), "what is in memory is bounded");
    let mut names = pieces.concat();
    names.sort();
    assert_eq!(names, files(&service));
    assert_eq!(names.len(), MANY + 1);
    service.clock.advance(ORPHAN_AGE * 2);
    assert_eq!(sweeper::sweep_orphans(&service.app, usize::MAX).await, MANY);
    assert_eq!(files(&service), [result]);
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
async fn listing_a_day_that_is_not_there_is_an_error_on_a_disk_and_no_files_in_a_bucket() {
    let day = || "2026-11-21".to_owned();
    let disk = Service::start_on_disk(&[]).await;
    disk.app.files.written_before(day(), Timestamp::MAX).try_next().await.expect_err("no such directory");
    let bucket = Service::start_on_s3(&[]).await;
    assert_eq!(bucket.app.files.written_before(day(), Timestamp::MAX).try_next().await.expect("a listing"), None);
}
