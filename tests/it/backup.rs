//! Backing up, restoring, and finding damage in the files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use futures::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use tintype::files::Files;
use tintype_config::LEASE;
use tintype_domain::model::{FailureCause, Surface, TaskId};
use tintype_domain::request::GenerateRequest;
use tintype_engine::picture::Picture;
use tintype_store::sqlite;
use tintype_store::{AttemptProgress, LeaseWrite};
use tintype_system::clock::Clock;
use tintype_system::data_dir::backup_lock;

use crate::rigs::binary::{
    self, Ran as _, Run as _, Server, TINTYPE, in_mount_namespace, names_in, refused, run, text, tintype,
};
use crate::rigs::http::{TASKS, ended, send, submit};
use crate::rigs::service::Service;

mod damage;
mod interrupted;
mod refusals;
mod tables;

/// A data directory with some completed tasks of the account ada, and no server.
struct Installation {
    directory: TempDir,
    results: Vec<(TaskId, String)>,
}

impl Installation {
    async fn with_tasks(count: usize) -> Self {
        Self::with_images(count, png()).await
    }

    async fn with_images(count: usize, image: Bytes) -> Self {
        let directory = TempDir::new().expect("a directory");
        let data = directory.path().join("data");
        fs::create_dir_all(data.join("files")).expect("a directory");
        let account = binary::json(&data, &["account", "create", "ada", "--credits", "100000"]);
        let account = account["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
        let store = sqlite::open(&data.join("tintype.db"), Clock::system()).expect("a store");
        let files = Files::on_disk(&data.join("files")).expect("files");
        let request = GenerateRequest::parse(br#"{"prompt": "a boat"}"#, &[443]).expect("valid");
        let mut results = Vec::new();
        for _ in 0..count {
            store.submit(account, None, Surface::Api, request.clone(), 0).await.expect("a store");
            let lease = store.claim(1, LEASE).await.expect("a store")[0].lease;
            let name = files.write(lease.task_id, 0, image.clone()).await.expect("a file");
            let completed = store.complete(lease, vec![name.clone()]).await.expect("a store");
            assert_eq!(completed, LeaseWrite::Done);
            results.push((TaskId(lease.task_id), name));
        }
        Self { directory, results }
    }

    fn data(&self) -> PathBuf {
        self.path("data")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn result(&self, number: usize) -> PathBuf {
        self.data().join("files").join(&self.results[number].1)
    }

    /// Backs up to `name` and returns the path.
    fn back_up(&self, name: &str) -> PathBuf {
        let to = self.path(name);
        let taken = binary::json(&self.data(), &["backup", text(&to)]);
        assert_eq!((&taken["to"], &taken["drifts"]), (&json!(text(&to)), &json!([])));
        to
    }
}

fn png() -> Bytes {
    Picture::from_rgb(2, 2, vec![7; 12]).expect("a picture").to_png().into()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Everything that commands show of an installation, except its files.
fn books(data: &Path) -> [Value; 4] {
    [
        &["account", "list"][..],
        &["key", "list"],
        &["credits", "history", "default"],
        &["task", "list", "--limit", "100000"],
    ]
    .map(|arguments| binary::json(data, arguments))
}

fn tasks_that_are(status: &str, data: &Path) -> Vec<String> {
    let all = binary::json(data, &["task", "list", "--limit", "100000"]);
    let tasks = all.as_array().expect("tasks").iter().filter(|task| task["status"] == status);
    tasks.map(|task| task["task_id"].as_str().expect("an id").to_owned()).collect()
}

/// Audits the ledger and the files, and returns the number of files.
#[track_caller]
fn assert_sound(data: &Path) -> u64 {
    let audit = binary::json(data, &["credits", "audit", "--files"]);
    assert_eq!((&audit["drifts"], &audit["drifts_left_out"]), (&json!([]), &json!(0)));
    audit["files"].as_u64().expect("a number")
}

/// Asserts that every image of every completed task of the key is served, and returns the number of tasks.
async fn assert_served(server: &Server, key: &str, task_ids: &[String]) {
    for task_id in task_ids {
        let task = send(server.address, "GET", &format!("{TASKS}/{task_id}"), key, "").await.json()["data"].clone();
        let images = task["images"].as_array().unwrap_or_else(|| panic!("{task}"));
        for image in images {
            let url = image.as_str().or(image["url"].as_str()).unwrap_or_else(|| panic!("{task}"));
            let path = url.strip_prefix(&server.url()).expect("our URL");
            let answer = send(server.address, "GET", path, key, "").await;
            assert_eq!(answer.status, 200, "{url}");
            Picture::decode(&answer.body).expect("a whole PNG");
        }
    }
}

/// Submits tasks one after the other until it is stopped, and returns how many were accepted.
async fn keep_submitting(server: Arc<Server>, key: String, stop: Arc<AtomicBool>) -> usize {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let task_id = submit(&server, &key, "a boat").await;
        assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
        count += 1;
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_of_a_busy_server_completes_its_tasks() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("the data");
    let flags = ["--submit-rate", "0", "--read-rate", "0", "--max-unfinished", "0", "--renders", "4"];
    let server = Arc::new(Server::start(&data, &flags));
    let key = server.first_key().expect("a key");
    binary::json(&data, &["credits", "grant", "default", "100000"]);
    let mut before = Vec::new();
    for _ in 0..5 {
        before.push(submit(&server, &key, "a boat").await);
    }
    for task_id in &before {
        assert_eq!(ended(&server, &key, task_id).await["status"], "completed");
    }
    let slow = submit(&server, &key, "a boat [[delay 8s]]").await;
    let stop = Arc::new(AtomicBool::new(false));
    let loads: Vec<_> =
        (0..3).map(|_| tokio::spawn(keep_submitting(server.clone(), key.clone(), stop.clone()))).collect();
    let copy = directory.path().join("the copy");
    let taking = {
        let (data, copy) = (data.clone(), copy.clone());
        move || binary::json(&data, &["backup", text(&copy)])
    };
    let taken = tokio::task::spawn_blocking(taking).await.expect("a backup");
    stop.store(true, Ordering::Relaxed);
    let submitted = 6 + join_all(loads).await.into_iter().map(|load| load.expect("a load")).sum::<usize>();
    let names = ["to", "accounts", "tasks", "files", "bytes", "seconds", "drifts", "drifts_left_out", "models"];
    assert_eq!(keys(&taken), names);
    assert_eq!((&taken["accounts"], &taken["drifts"]), (&json!(1), &json!([])));
    let tasks = taken["tasks"].as_u64().expect("a number") as usize;
    assert!((6..=submitted).contains(&tasks), "{tasks} of {submitted}");
    assert_eq!(names_in(&copy), ["files", "tintype.db"]);
    assert_private(&copy);
    // It need not end the task that the backup has.
    drop(Arc::into_inner(server).expect("the load has ended"));

    let elsewhere = directory.path().join(OsStr::from_bytes(b"restored \xff here"));
    let restored = binary::json(&elsewhere, &["restore", text(&copy)]);
    assert_eq!(
        keys(&restored),
        ["from", "data", "accounts", "tasks", "files", "bytes", "seconds", "drifts", "drifts_left_out"]
    );
    assert_eq!((&restored["tasks"], &restored["files"]), (&taken["tasks"], &taken["files"]));
    assert_eq!(json!(assert_sound(&elsewhere)), taken["files"]);
    let unfinished = tasks_that_are("processing", &elsewhere);
    assert!(!unfinished.is_empty());

    let server = Server::start(&elsewhere, &flags);
    assert_eq!(server.first_key(), None);
    for task_id in before.iter().chain([&slow]).chain(&unfinished) {
        assert_eq!(ended(&server, &key, task_id).await["status"], "completed");
    }
    let completed = tasks_that_are("completed", &elsewhere);
    assert_eq!(completed.len(), tasks);
    assert_served(&server, &key, &completed).await;
    let credits = binary::json(&elsewhere, &["credits", "balance", "default"]);
    assert_eq!(credits["credits"], 101_000 - 2 * tasks as i64);
    server.stop();
    assert_eq!(assert_sound(&elsewhere), tasks as u64);
}

fn assert_private(path: &Path) {
    let metadata = fs::metadata(path).expect("a file");
    assert_eq!(metadata.permissions().mode() & 0o077, 0, "{} can be read by others", path.display());
    if metadata.is_dir() {
        for name in names_in(path) {
            assert_private(&path.join(name));
        }
    }
}

#[tokio::test]
async fn backup_and_restore_keep_all_data() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("data");
    let server = Server::start(&data, &["--drain-timeout", "1s"]);
    let key = server.first_key().expect("a key");
    for prompt in ["a boat", "a boat [[fail]]", "a boat [[policy]]"] {
        let task_id = submit(&server, &key, prompt).await;
        ended(&server, &key, &task_id).await;
    }
    submit(&server, &key, "a boat [[hang]]").await;
    let listed = send(server.address, "GET", &format!("{TASKS}?limit=2"), &key, "").await.json();
    let cursor = listed["data"]["next_cursor"].as_str().expect("a cursor").to_owned();
    server.stop();
    let original = books(&data);

    let path = |name: &str| directory.path().join(name);
    binary::json(&data, &["backup", text(&path("copy"))]);
    binary::json(&path("second"), &["restore", text(&path("copy"))]);
    binary::json(&path("second"), &["backup", text(&path("copy of the second"))]);
    binary::json(&path("third"), &["restore", text(&path("copy of the second"))]);
    for again in ["second", "third"] {
        assert_eq!(books(&path(again)), original, "{again}");
        assert_sound(&path(again));
    }
    let server = Server::start(&path("third"), &[]);
    let page = send(server.address, "GET", &format!("{TASKS}?cursor={cursor}"), &key, "").await;
    assert_eq!(page.status, 200, "cursors go on working");
    drop(server);
}

#[tokio::test]
async fn a_server_can_start_on_a_backup() {
    let installation = Installation::with_tasks(3).await;
    let copy = installation.back_up("copy");
    let key = binary::json(&copy, &["key", "create", "--account", "ada"])["key"].as_str().expect("a key").to_owned();
    let server = Server::start(&copy, &[]);
    let database = rusqlite::Connection::open(copy.join("tintype.db")).expect("a database");
    let mode: String = database.query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("a mode");
    assert_eq!(mode, "wal", "or readers would stop the writer");
    let task_ids: Vec<String> = installation.results.iter().map(|(id, _)| id.to_string()).collect();
    assert_served(&server, &key, &task_ids).await;
    server.stop();
}

#[tokio::test]
async fn the_database_and_the_files_may_be_outside_of_the_data_directory() {
    let installation = Installation::with_tasks(3).await;
    let data = installation.data();
    fs::rename(data.join("files"), installation.path("pictures")).expect("a directory moves");
    fs::rename(data.join("tintype.db"), installation.path("books.db")).expect("a database moves");
    let database = format!("sqlite:{}", installation.path("books.db").display());
    let files = format!("file:{}", installation.path("pictures").display());
    let copy = installation.path("copy");
    binary::json(&data, &["backup", text(&copy), "--database", &database, "--files", &files]);
    assert_eq!(names_in(&copy), ["files", "tintype.db"]);

    let new_database = format!("sqlite:{}", installation.path("new.db").display());
    fs::create_dir_all(installation.path("disk/lost+found")).expect("a directory");
    let new_files = format!("file:{}", installation.path("disk").display());
    let restored = installation.path("restored");
    let to = ["--database", &new_database, "--files", &new_files];
    binary::json(&restored, &[&["restore", text(&copy)], &to[..]].concat());
    let audit = ["credits", "audit", "--database", &new_database];
    let with_files = format!("--files={new_files}");
    assert_eq!(binary::json(&restored, &[&audit[..], &[&with_files]].concat())["files"], 3);
    let checks = binary::json(&restored, &[&["doctor"], &to[..]].concat());
    let files = checks.as_array().expect("checks").iter().find(|check| check["check"] == "files").expect("a check");
    assert!(files["detail"].as_str().expect("text").contains("disk"), "{files}");
    let output = tintype()
        .args(audit)
        .args(["--json", "--files", "--data"])
        .arg(&restored)
        .env("TINTYPE_FILES", &new_files)
        .ran();
    assert!(output.status.success(), "a bare --files looks where serve does: {output:?}");
}

#[tokio::test]
async fn a_backup_prints_what_it_copied() {
    let installation = Installation::with_tasks(2).await;
    let output = run(&installation.data(), ["backup", text(&installation.path("copy"))]);
    let said = output.text();
    assert!(said.contains("1 account, 2 tasks, 2 result files") && said.lines().count() == 1, "{said}");
    assert!(output.stderr.is_empty(), "no progress where there is no terminal");
    // On a terminal it prints its progress.
    let (data, copy) = (installation.data(), installation.path("watched"));
    let command = format!("{TINTYPE} backup {} --data {}", copy.display(), data.display());
    let output = Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output();
    let shown = output.expect("bsdutils").text();
    assert!(shown.contains("0 of 2 tasks") && shown.contains("Backed up to"), "{shown}");
    let said = run(&installation.path("restored"), ["restore", text(&installation.path("copy"))]).text();
    assert!(said.starts_with("Restored ") && said.contains("2 result files"), "{said}");
    let said = run(&installation.path("restored"), ["credits", "audit", "--files"]).text();
    assert_eq!(said, "1 account, 2 tasks, 3 ledger entries, 2 result files: all balances match and all files exist.\n");
}

#[test]
fn an_installation_without_results_is_backed_up() {
    let directory = TempDir::new().expect("a directory");
    let (data, copy) = (directory.path().join("data"), directory.path().join("copy"));
    binary::json(&data, &["account", "create", "ada", "--credits", "5"]);
    assert_eq!(binary::json(&data, &["backup", text(&copy)])["files"], 0);
    binary::json(&directory.path().join("again"), &["restore", text(&copy)]);
    assert_eq!(binary::json(&directory.path().join("again"), &["credits", "balance", "ada"])["credits"], 5);
}

#[tokio::test]
async fn nothing_is_removed_while_a_backup_needs_it() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    caller.submit_prompt("a boat [[fail]]").await;
    let claim = service.shared.store.claim(1, LEASE).await.expect("a store").remove(0);
    let orphan = service.shared.files.write(claim.lease.task_id, 0, Bytes::from_static(b"x")).await.expect("a file");
    let path = service.directory.path().join("files").join(&orphan);
    File::open(&path).and_then(|file| file.set_modified(UNIX_EPOCH)).expect("an old file");
    service.shared.store.fail(claim.lease, FailureCause::Engine, "it sank").await.expect("a store");
    service.clock.advance(tintype_config::ORPHAN_AGE * 2);

    let backup = service.shared.files.keep_all().expect("a lock");
    let audit = service.shared.files.keep_all().expect("a lock that several may hold");
    assert!(service.shared.files.try_removal().expect("a lock").is_none());
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 0);
    drop(backup);
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 0);
    assert!(path.exists());
    drop(audit);
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 1);
    assert!(!path.exists());
    let removing = service.shared.files.try_removal().expect("a lock");
    assert!(removing.is_some() && service.shared.files.try_removal().expect("a lock").is_none(), "one at a time");
}

#[tokio::test]
async fn a_backup_during_a_render_restores_no_progress() {
    let installation = Installation::with_tasks(0).await;
    let data = installation.data();
    let store = sqlite::open(&data.join("tintype.db"), Clock::system()).expect("a store");
    let account = store.find_account("ada").await.expect("a store").expect("an account").id;
    let request = GenerateRequest::parse(br#"{"prompt": "a boat"}"#, &[443]).expect("valid");
    store.submit(account, None, Surface::Api, request, 0).await.expect("a store");
    let lease = store.claim(1, LEASE).await.expect("a store")[0].lease;
    let progress = AttemptProgress { running: LEASE / 2, stage: None };
    store.report_progress(vec![(lease, progress)]).await.expect("a store");
    store.report_previews(vec![(lease, vec![1].into())]).await.expect("a store");
    // The restored server takes up no task, of which it would report progress of its own.
    store.pause_queue().await.expect("a store");
    let (copy, restored) = (installation.back_up("copy"), installation.path("restored"));
    binary::json(&restored, &["restore", text(&copy)]);
    // Its start takes all leases away.
    Server::start(&restored, &[]).stop();
    let database = rusqlite::Connection::open(restored.join("tintype.db")).expect("a database");
    for table in ["progress", "previews"] {
        let count = format!("SELECT count(*) FROM {table}");
        let rows: i64 = database.query_row(&count, [], |row| row.get(0)).expect("a count");
        assert_eq!(rows, 0, "{table}");
    }
}
