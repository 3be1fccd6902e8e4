//! Retention: old tasks disappear for callers, their files are removed later, and the ledger stays.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;
use tintype::files::Files;
use tintype_config::{FINISHED_TASK_TTL, ORPHAN_AGE, REMOVED_FILES_GRACE, ServerSettings};
use tintype_domain::model::{FailureCause, Surface, TaskId};
use tintype_system::clock::Clock;

use crate::rigs::binary::{self, Server, tintype};
use crate::rigs::http::{Answer, TASKS};
use crate::rigs::service::{Backend, Caller, NOON, Service, files};
use crate::rigs::wait::{Background, until};

const SECOND: Duration = Duration::from_secs(1);
const MONTH: Duration = Duration::from_secs(30 * 86_400);

/// A service that keeps tasks for 30 days, and a caller.
async fn keeping_a_month() -> (Service, Caller) {
    Service::with_caller(&["--retention", "30d", "--submit-rate", "0"], 100).await
}

/// Submits a task, lets it end, and returns its task_id.
pub async fn ended(caller: &Caller, prompt: &str) -> String {
    let task_id = caller.submit_prompt(prompt).await;
    caller.service.work().await;
    assert_ne!(caller.task(&task_id).await["status"], "processing");
    task_id
}

pub async fn listed(caller: &Caller, query: &str) -> (Vec<String>, Option<String>) {
    let data = caller.get(&format!("{TASKS}{query}")).await.json()["data"].clone();
    let items = data["items"].as_array().expect("items");
    let ids = items.iter().map(|item| item["task_id"].as_str().expect("a task_id").to_owned()).collect();
    (ids, data["next_cursor"].as_str().map(str::to_owned))
}

#[tokio::test]
async fn old_tasks_are_removed_after_any_ending_and_young_tasks_are_not() {
    let (service, caller) = keeping_a_month().await;
    let completed = ended(&caller, "a boat").await;
    let failed = ended(&caller, "a boat [[fail]]").await;
    service.clock.advance(MONTH - SECOND * 60);
    let young = ended(&caller, "a boat").await;
    service.sweeper.remove_old().await;
    assert_eq!(listed(&caller, "").await.0, [young.as_str(), &failed, &completed], "not before their time");
    service.clock.advance(SECOND * 60);
    service.sweeper.remove_old().await;
    assert_eq!(listed(&caller, "").await, (vec![young.clone()], None));
    for task_id in [completed, failed] {
        caller.poll(&task_id).await.assert_error(404, "NOT_FOUND");
    }
    assert_eq!(caller.task(&young).await["status"], "completed");
    assert_eq!(service.shared.metrics.removed.get(), 2);
    service.assert_sound().await;
}

#[tokio::test]
async fn a_removed_task_is_indistinguishable_from_a_missing_one() {
    let (service, caller) = keeping_a_month().await;
    let removed = ended(&caller, "a boat").await;
    service.clock.advance(MONTH);
    service.sweeper.remove_old().await;
    let unknown = caller.poll("imgmodel-FAAAAAAAAAAAAAAAAAAAA").await;
    let gone = caller.poll(&removed).await;
    let shape = |answer: &Answer| {
        let mut body = answer.json();
        body["error"]["request_id"] = Value::Null;
        let headers: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
        (answer.status, headers, body)
    };
    assert_eq!(shape(&gone), shape(&unknown));
}

#[tokio::test]
async fn the_files_of_a_removed_task_follow_it_after_an_hour() {
    let (service, caller) = keeping_a_month().await;
    let task = caller.outcome_of(json!({ "prompt": "a boat", "n": 2 })).await;
    let url = task["media_url"].as_str().expect("a URL");
    service.clock.advance(MONTH - SECOND * 60);
    let young = ended(&caller, "a boat").await;
    service.clock.advance(SECOND * 60);
    service.sweeper.remove_old().await;
    caller.poll(task["task_id"].as_str().expect("a task_id")).await.assert_error(404, "NOT_FOUND");
    service.clock.advance(REMOVED_FILES_GRACE);
    service.sweeper.remove_old().await;
    assert_eq!(service.fetch(url, &[]).await.status, 200, "files stay for callers who read the URL before the removal");
    service.clock.advance(SECOND);
    service.sweeper.remove_old().await;
    service.fetch(url, &[]).await.assert_error(404, "NOT_FOUND");
    let kept = caller.task(&young).await;
    assert_eq!(service.fetch(kept["media_url"].as_str().expect("a URL"), &[]).await.status, 200);
    assert_eq!(files(&service).len(), 1);
    service.assert_sound().await;
}

#[tokio::test]
async fn a_cursor_that_points_to_a_removed_task_still_works() {
    let (service, caller) = keeping_a_month().await;
    // The oldest takes longest, so that it outlives the one after it.
    let oldest = caller.submit_prompt("a boat").await;
    let lease = service.shared.store.claim(1, MONTH).await.expect("a store").remove(0).lease;
    let removed = ended(&caller, "a boat").await;
    let cursor = listed(&caller, "?limit=1").await.1.expect("another page");
    service.clock.advance(SECOND * 60);
    service.shared.store.fail(lease, FailureCause::Engine, "it sank").await.expect("a store");
    let newest = ended(&caller, "a boat").await;
    service.clock.advance(MONTH - SECOND * 30);
    service.sweeper.remove_old().await;
    caller.poll(&removed).await.assert_error(404, "NOT_FOUND");
    assert_eq!(listed(&caller, &format!("?cursor={cursor}")).await, (vec![oldest.clone()], None));
    let (first, cursor) = listed(&caller, "?limit=1").await;
    assert_eq!(first, [newest]);
    assert_eq!(listed(&caller, &format!("?limit=1&cursor={}", cursor.expect("a page"))).await, (vec![oldest], None));
}

#[tokio::test]
async fn a_result_stays_while_an_unfinished_task_refers_to_it() {
    let (service, caller) = keeping_a_month().await;
    let old = ended(&caller, "a boat").await;
    let name = files(&service).remove(0);
    service.clock.advance(MONTH);
    let reference = format!("https://images.example.com/files/{name}");
    let needing = caller.submit(json!({ "prompt": "a boat", "reference_images": [reference] })).await;
    let needing = needing["task_id"].as_str().expect("a task_id");
    service.clock.advance(SECOND);
    service.sweeper.remove_old().await;
    caller.poll(&old).await.assert_error(404, "NOT_FOUND");
    service.clock.advance(REMOVED_FILES_GRACE * 3);
    service.sweeper.remove_old().await;
    service.sweeper.sweep_orphans(usize::MAX).await;
    assert_eq!(caller.task(needing).await["status"], "processing");
    assert_eq!(files(&service), [name], "a worker may still download the reference");
    service.sweep().await;
    assert_eq!(caller.task(needing).await["status"], "failed", "the task was overdue");
    service.sweeper.remove_old().await;
    assert_eq!(files(&service), Vec::<String>::new());
    service.assert_sound().await;
}

#[tokio::test]
async fn a_poll_under_way_during_the_removal_does_not_bring_the_task_back() {
    let (service, caller) = keeping_a_month().await;
    let task_id = ended(&caller, "a boat").await;
    let TaskId(id) = task_id.parse().expect("a task_id");
    let seen = service.clock.elapsed();
    let read = service.shared.store.find_task(caller.account.id, Surface::Api, id).await.expect("a store");
    let read = Arc::new(read.expect("not removed yet"));
    service.clock.advance(MONTH);
    service.sweeper.remove_old().await;
    // The poll that read the task before its removal caches it only now.
    service.api.tasks.finished.insert(&read, seen);
    caller.poll(&task_id).await.assert_error(404, "NOT_FOUND");
}

#[tokio::test]
async fn a_crash_before_the_files_were_deleted_is_repaired_by_the_orphan_sweep() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = ended(&caller, "a boat").await;
    let kept = ended(&caller, "a boat").await;
    let TaskId(id) = kept.parse().expect("a task_id");
    // A server with a retention marked the older one and died; the one that runs now has none.
    let cutoff = service.shared.store.inspect_task(id).await.expect("a store").expect("a task").task.updated_at;
    assert_eq!(service.shared.store.remove_tasks(cutoff).await.expect("a store"), 1);
    for name in files(&service) {
        let file = File::options().write(true).open(service.directory.path().join("files").join(name));
        file.and_then(|file| file.set_modified(UNIX_EPOCH)).expect("an old file");
    }
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 0, "the task was removed just now");
    service.clock.advance(ORPHAN_AGE);
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 1);
    let left = files(&service);
    assert!(left.len() == 1 && left[0].contains(id.as_str()), "{left:?}: not those of {task_id}");
}

#[tokio::test]
async fn without_a_retention_nothing_is_ever_removed() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = ended(&caller, "a boat").await;
    for _ in 0..3 {
        service.clock.advance(MONTH * 1_200);
        service.sweeper.remove_old().await;
    }
    let task = caller.task(&task_id).await;
    assert_eq!(service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await.status, 200);
}

#[tokio::test]
async fn a_clock_that_steps_back_removes_nothing_and_brings_nothing_back() {
    let (service, caller) = keeping_a_month().await;
    let removed = ended(&caller, "a boat").await;
    service.clock.advance(MONTH / 2);
    let kept = ended(&caller, "a boat").await;
    service.clock.advance(MONTH / 2);
    service.sweeper.remove_old().await;
    let all = files(&service);
    // The same data, opened by a server whose clock is a year behind.
    let past = Clock::manual(NOON.saturating_sub(MONTH * 12));
    let stored = Files::on_disk(&service.directory.path().join("files")).expect("a store of files");
    let store = Backend::Sqlite.open(&service.directory, &past);
    let behind = service.beside(past, store, stored).await;
    behind.sweeper.remove_old().await;
    behind.sweeper.sweep_orphans(usize::MAX).await;
    assert_eq!(files(&service), all);
    assert_eq!(listed(&caller, "").await.0, [kept]);
    let find = behind.api.tasks.find(caller.account.id, Surface::Api, removed.parse().expect("a task_id"));
    assert_eq!(find.await.expect("a store"), None);
}

#[tokio::test]
async fn a_process_whose_clock_is_ahead_removes_nothing() {
    let (service, caller) = keeping_a_month().await;
    let kept = ended(&caller, "a boat").await;
    let ahead = Clock::manual(NOON.saturating_add(MONTH * 12));
    let stored = Files::on_disk(&service.directory.path().join("files")).expect("a store of files");
    let store = service.shared.store.clone();
    let other = service.beside(ahead, store, stored).await;
    other.sweeper.remove_old().await;
    assert_eq!(listed(&caller, "").await.0, [kept]);
}

#[tokio::test]
async fn a_task_removed_by_one_process_soon_leaves_the_cache_of_another() {
    let removing = Service::start_on_postgres(&["--retention", "30d"]).await;
    let other = removing.join(&[]).await;
    let caller = removing.caller("ada", 100).await;
    let elsewhere = caller.at(&other);
    let removed = ended(&caller, "a boat").await;
    removing.clock.advance(MONTH);
    let kept = ended(&caller, "a boat").await;
    for task_id in [&removed, &kept] {
        assert_eq!(elsewhere.task(task_id).await["status"], "completed");
    }
    removing.sweeper.remove_old().await;
    assert_eq!(listed(&elsewhere, "").await.0, [kept.as_str()], "lists are up to date");
    removing.clock.advance(FINISHED_TASK_TTL);
    elsewhere.poll(&removed).await.assert_error(404, "NOT_FOUND");
    assert_eq!(elsewhere.task(&kept).await["status"], "completed");
}

#[tokio::test(start_paused = true)]
async fn a_running_server_removes_old_tasks_by_itself() {
    let (service, caller) = keeping_a_month().await;
    let TaskId(id) = caller.submit_prompt("a boat").await.parse().expect("a task_id");
    service.work().await;
    service.clock.advance(MONTH);
    let running = Background::of(|stop| service.sweeper.clone().run(stop));
    let find = async || service.shared.store.find_task(caller.account.id, Surface::Api, id).await.expect("a store");
    for _ in 0..1_000_000 {
        if find().await.is_none() {
            break;
        }
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(find().await, None);
    running.end().await;
}

#[tokio::test]
async fn a_server_that_has_just_started_removes_nothing() {
    let (service, caller) = keeping_a_month().await;
    let old = ended(&caller, "a boat").await;
    service.clock.advance(MONTH);
    let overdue = caller.submit_prompt("a boat").await;
    service.clock.advance(SECOND * 600);
    let running = Background::of(|stop| service.sweeper.clone().run(stop));
    // A removal at the start would come before the first sweep, which is a second later.
    until(async || caller.task(&overdue).await["status"] != "processing").await;
    assert_eq!(caller.task(&old).await["status"], "completed");
    running.end().await;
}

#[test]
fn a_retention_below_an_hour_or_without_a_unit_is_refused() {
    for good in ["1h", "60m", "30d", "1y"] {
        assert!(ServerSettings::from_flags(["--retention", good]).is_ok(), "{good}");
    }
    for bad in ["0", "0s", "59m 59s", "3599s", "30", "a month", "-30d", ""] {
        let refused = ServerSettings::from_flags([format!("--retention={bad}").as_str()]);
        assert!(refused.is_err_and(|error| error.to_string().contains("--retention")), "{bad}");
    }
    let refused = ServerSettings::from_flags(["--retention", "10m"]).expect_err("too short").to_string();
    assert!(refused.contains("shortest retention is 1h"), "{refused}");
}

#[test]
fn the_program_accepts_a_retention_and_prints_it() {
    let data = TempDir::new().expect("a directory");
    let mut command = tintype();
    command.env("TINTYPE_RETENTION", "36h").args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data.path());
    let server = Server::spawn(command);
    assert!(server.said.contains("kept for 36h"), "{}", server.said);
    server.stop();
    let retention = |flags: &[&str]| {
        let checks = binary::json(data.path(), &[&["doctor"], flags].concat());
        let check = checks.as_array().and_then(|checks| checks.iter().find(|check| check["check"] == "retention"));
        check.expect("a check")["detail"].clone()
    };
    assert_eq!(retention(&[]), "finished tasks are kept forever");
    assert_eq!(retention(&["--retention", "90d"]), "finished tasks are kept for 90d");
}

#[tokio::test]
async fn the_operator_still_finds_a_removed_task() {
    let (service, caller) = keeping_a_month().await;
    let task_id = ended(&caller, "a secret boat").await;
    let data = service.directory.path();
    assert_eq!(binary::json(data, &["task", "show", &task_id])["removed_at"], Value::Null);
    service.clock.advance(MONTH);
    service.sweeper.remove_old().await;
    let shown = binary::json(data, &["task", "show", &task_id]);
    assert_eq!(shown["removed_at"], service.clock.now().to_string());
    assert_eq!((&shown["status"], &shown["request"]["prompt"]), (&json!("completed"), &json!("")));
    assert_eq!(binary::json(data, &["task", "list"]), json!([]));
    assert_eq!(binary::json(data, &["credits", "history", "ada"])[0]["task_id"], task_id);
    assert_eq!(binary::json(data, &["credits", "audit"])["drifts"], json!([]));
}

#[tokio::test]
async fn prompts_of_failed_tasks_are_erased_after_their_time_and_their_tasks_stay() {
    let (service, caller) = Service::with_caller(&["--failed-prompt-retention", "2h", "--submit-rate", "0"], 100).await;
    let (failed, completed) = (ended(&caller, "a boat [[fail]]").await, ended(&caller, "a boat").await);
    let prompt = async |task_id: &str| {
        let TaskId(id) = task_id.parse().expect("a task_id");
        service.shared.store.inspect_task(id).await.expect("a store").expect("the task exists").request.prompt
    };
    let before = caller.task(&failed).await;
    service.clock.advance(SECOND * 7_180);
    service.sweeper.erase_failed_prompts().await;
    assert_eq!(prompt(&failed).await, "a boat [[fail]]");
    service.clock.advance(SECOND * 10);
    service.sweeper.erase_failed_prompts().await;
    assert_eq!((prompt(&failed).await.as_str(), prompt(&completed).await.as_str()), ("", "a boat"));
    assert_eq!(caller.task(&failed).await, before);
    assert_eq!(listed(&caller, "").await.0, [completed, failed]);
    service.assert_sound().await;
}
