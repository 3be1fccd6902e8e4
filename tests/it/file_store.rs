//! The marker that ties a store of result files to its database.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tintype::files::{Creation, Files};
use tintype::service::file_store;
use tintype_domain::files_marker::FilesMarker;
use tintype_domain::model::Id;
use tintype_system::clock::Clock;

use crate::rigs::binary::{Ran as _, Server, json, printed, refused, run, tintype};
use crate::rigs::http::send;
use crate::rigs::postgres;
use crate::rigs::service::{Backend, NOON, Service};
use crate::rigs::wait::until;

const MARKER: &str = "tintype-marker";
const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];

/// A data directory and a second directory of files.
struct Places {
    directory: TempDir,
}

impl Places {
    fn new() -> Self {
        Self { directory: TempDir::new().expect("a directory") }
    }

    fn started() -> Self {
        let places = Self::new();
        start_and_stop(&places.data(), &[]);
        places
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn marker(&self) -> PathBuf {
        self.data().join("files").join(MARKER)
    }

    fn elsewhere(&self) -> String {
        format!("file:{}", self.directory.path().join("elsewhere").display())
    }

    /// Forgets the marker in the database, as in one of an earlier release.
    fn forget(&self) {
        let database = rusqlite::Connection::open(self.data().join("tintype.db")).expect("a database");
        database.execute("DELETE FROM secrets WHERE name = 'files'", []).expect("a database");
    }
}

fn start_and_stop(data: &Path, flags: &[&str]) {
    Server::start(data, flags).stop();
}

#[track_caller]
fn assert_not_started(data: &Path, flags: &[&str]) {
    let said = refused(data, &[&SERVE, flags].concat());
    assert!(said.contains("--files") && said.contains("tintype files adopt"), "{said}");
}

#[test]
fn a_server_with_another_store_of_files_does_not_start() {
    let places = Places::started();
    let (data, elsewhere) = (places.data(), places.elsewhere());
    assert_not_started(&data, &["--files", &elsewhere]);
    let others = Places::started();
    let of_another = format!("file:{}", others.data().join("files").display());
    assert_not_started(&data, &["--files", &of_another]);
    start_and_stop(&data, &[]);
}

#[test]
fn an_api_and_a_worker_with_files_of_their_own_do_not_both_start() {
    let places = Places::new();
    let (api, worker) = (places.directory.path().join("api"), places.directory.path().join("worker"));
    let database = postgres::cluster().url(places.directory.path());
    let mut command = tintype();
    command.args(["api", "--listen", "127.0.0.1:0", "--database", &database, "--data"]).arg(&api);
    let server = Server::spawn(command);
    let said = refused(&worker, &["worker", "--database", &database]);
    assert!(said.contains("not the store of result files"), "{said}");
    let shared = format!("file:{}", api.join("files").display());
    let mut command = tintype();
    command.args(["worker", "--database", &database, "--files", &shared, "--data"]).arg(&worker);
    Server::spawn(command).stop();
    server.stop();
}

#[tokio::test]
async fn a_server_whose_files_are_not_mounted_any_more_is_not_ready_until_they_are() {
    for role in ["api", "serve"] {
        let places = Places::new();
        let database = postgres::cluster().url(places.directory.path());
        let mut command = tintype();
        command.args([role, "--listen", "127.0.0.1:0", "--database", &database, "--data"]).arg(places.data());
        let server = Server::spawn(command);
        let ready = async || send(server.address, "GET", "/readyz", "", "").await.status.as_u16();
        assert_eq!(ready().await, 200, "{role}");
        let (files, away) = (places.data().join("files"), places.data().join("away"));
        fs::rename(&files, &away).expect("a directory");
        fs::create_dir(&files).expect("a directory");
        assert_eq!(ready().await, 503, "{role}");
        fs::remove_dir_all(&files).expect("a directory");
        fs::rename(&away, &files).expect("a directory");
        until(async || ready().await == 200).await;
        server.stop();
    }
}

#[tokio::test]
async fn a_result_below_the_mount_point_of_a_lost_file_system_is_not_stored() {
    let (places, clock) = (Places::started(), Clock::system());
    let (path, away) = (places.data().join("files"), places.data().join("away"));
    let files = Files::on_disk(&path).expect("a store of files");
    files.marker().await.expect("a marker");
    let write = async || files.write(Id::floor(clock.now()), 0, Bytes::from_static(b"x")).await;
    write().await.expect("a file");
    fs::rename(&path, &away).expect("a directory");
    fs::create_dir(&path).expect("a directory");
    let error = write().await.expect_err("no marker is here").to_string();
    assert!(error.contains("is its file system mounted?"), "{error}");
    for is_there in [false, true] {
        if is_there {
            fs::remove_dir_all(&path).expect("a directory");
            fs::rename(&away, &path).expect("a directory");
        }
        files.try_again(clock.now()).await;
        assert_eq!(files.are_writable(), is_there);
    }
}

#[test]
fn files_that_were_moved_on_purpose_are_adopted() {
    let places = Places::started();
    let (data, elsewhere) = (places.data(), places.elsewhere());
    let said = refused(&data, &["files", "adopt", "--files", &elsewhere]);
    assert!(said.contains("there is no directory"), "{said}");
    // Copied with its marker, as `cp -r` does.
    let moved = places.directory.path().join("elsewhere");
    fs::create_dir(&moved).expect("a directory");
    fs::copy(places.marker(), moved.join(MARKER)).expect("a copy");
    let adopted = json(&data, &["files", "adopt", "--files", &elsewhere]);
    assert_eq!(adopted["marker"], fs::read_to_string(moved.join(MARKER)).expect("a marker").trim_end());
    start_and_stop(&data, &["--files", &elsewhere]);
    assert_not_started(&data, &[]);
}

#[test]
fn an_installation_of_an_earlier_release_adopts_its_store_at_the_first_start() {
    let places = Places::started();
    places.forget();
    fs::remove_file(places.marker()).expect("a marker");
    start_and_stop(&places.data(), &[]);
    assert_not_started(&places.data(), &["--files", &places.elsewhere()]);
}

#[test]
fn a_start_after_one_interrupted_after_marking_the_files_succeeds() {
    let places = Places::started();
    let marker = fs::read_to_string(places.marker()).expect("a marker");
    places.forget();
    start_and_stop(&places.data(), &[]);
    assert_eq!(fs::read_to_string(places.marker()).expect("a marker"), marker);
}

#[test]
fn a_damaged_marker_is_named_and_can_be_replaced() {
    let places = Places::started();
    for damage in ["", "0123", &"x".repeat(100_000)] {
        fs::write(places.marker(), damage).expect("a file");
        let said = refused(&places.data(), &SERVE);
        assert!(said.contains("damaged") && said.contains("tintype files adopt"), "{said}");
        json(&places.data(), &["files", "adopt"]);
        start_and_stop(&places.data(), &[]);
    }
}

#[test]
fn the_doctor_reports_whether_the_files_belong_to_the_database() {
    let places = Places::new();
    let files = |flags: &[&str]| run(&places.data(), ["doctor", "--json"].iter().chain(flags)).check("files");
    assert!(files(&[])["detail"].as_str().expect("text").contains("the first start"));
    start_and_stop(&places.data(), &[]);
    assert!(files(&[])["detail"].as_str().expect("text").contains("belongs to this database"));
    let other = files(&["--files", &places.elsewhere()]);
    assert!(other["ok"] == false && other["detail"].as_str().expect("text").contains("files adopt"), "{other}");
}

#[test]
fn a_backup_and_a_move_keep_files_and_database_together() {
    let places = Places::started();
    let (data, copy, restored) =
        (places.data(), places.directory.path().join("copy"), places.directory.path().join("restored"));
    json(&data, &["backup", copy.to_str().expect("text")]);
    let marker = fs::read_to_string(places.marker()).expect("a marker");
    assert_eq!(fs::read_to_string(copy.join("files").join(MARKER)).expect("a marker"), marker);
    json(&restored, &["restore", copy.to_str().expect("text")]);
    assert_eq!(fs::read_to_string(restored.join("files").join(MARKER)).expect("a marker"), marker);
    start_and_stop(&restored, &[]);
    assert_not_started(&restored, &["--files", &places.elsewhere()]);

    let database = postgres::cluster().url(places.directory.path());
    let from = format!("sqlite:{}", data.join("tintype.db").display());
    printed(&run(&data, ["migrate", "--from", &from, "--to", &database, "--json"]));
    start_and_stop(&data, &["--database", &database]);
    assert_not_started(&data, &["--database", &database, "--files", &places.elsewhere()]);
}

#[tokio::test]
async fn one_of_several_processes_that_start_with_different_stores_wins() {
    let directory = TempDir::new().expect("a directory");
    let store = Backend::of_services().open(&directory, &Clock::manual(NOON));
    let open = |name: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        Files::on_disk(&path).expect("a store of files")
    };
    let (one, same, other) = (open("one"), open("one"), open("other"));
    let (first, second) = tokio::join!(file_store::open(&store, &one), file_store::open(&store, &same));
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert!(file_store::open(&store, &other).await.is_err());

    let directory = TempDir::new().expect("a directory");
    let store = Backend::of_services().open(&directory, &Clock::manual(NOON));
    let (first, second) = tokio::join!(file_store::open(&store, &one), file_store::open(&store, &other));
    assert!(first.is_ok() != second.is_ok(), "{first:?}, {second:?}");
}

#[tokio::test]
async fn the_marker_is_neither_served_nor_listed_nor_swept() {
    const LONG: Duration = Duration::from_secs(365 * 86_400);
    let service = Service::start_with(&["--retention", "1h"]).await;
    let marker = FilesMarker::random();
    let files = &service.shared.files;
    assert_eq!(files.create_marker(marker).await.expect("files"), Creation::Done);
    assert_eq!(files.create_marker(FilesMarker::random()).await.expect("files"), Creation::Exists);
    for path in [MARKER.to_owned(), format!("./{MARKER}"), format!("x/../{MARKER}")] {
        assert_eq!(service.call("GET", &format!("/files/{path}"), &[], "").await.status, 404);
    }
    assert!(files.days().await.expect("files").is_empty());
    service.clock.advance(LONG);
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 0);
    service.sweeper.remove_old().await;
    assert_eq!(files.marker().await.expect("files"), Some(marker));
}
