//! The worker and the sweeper: the ends of tasks under every failure.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tintype::files::Files;
use tintype::worker::render::{RenderControl, RenderError, Renderer, Sources};
use tintype_config::{LEASE, ORPHAN_AGE, TASK_TIME_LIMIT};
use tintype_domain::model::{FailureCause, TaskId};
use tintype_domain::request::AspectRatio;
use tintype_engine::picture::Picture;
use tintype_store::{Claim, LeaseWrite, Reclaim};
use tintype_system::clock::Clock;
use tokio::sync::Notify;

use crate::rigs::service::{Caller, NOON, Service, control, files};
use crate::rigs::wait::until;

fn decode(png: &[u8]) -> Picture {
    Picture::decode(png).expect("a PNG")
}

async fn assert_refunded(caller: &Caller, task_id: &str, about: &str) {
    let task = caller.task(task_id).await;
    assert_eq!(task["status"], "failed", "{task}");
    assert!(task["error"].as_str().expect("a message").contains(about), "{task}");
    assert_eq!((&task["media_url"], &task["images"]), (&Value::Null, &Value::Null));
    assert_eq!(caller.credits().await, 100);
    caller.service.assert_sound().await;
}

#[tokio::test]
async fn a_worker_whose_clock_is_ahead_takes_no_time_from_a_task() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task = caller.submit(json!({ "prompt": "a boat" })).await;
    let ahead = Clock::manual(NOON.saturating_add(TASK_TIME_LIMIT * 2));
    let files = Files::on_disk(&service.directory.path().join("files")).expect("a store of files");
    let app = service.beside(ahead, service.shared.store.clone(), files).await;
    app.sweeper.sweep(Reclaim::Expired).await;
    assert_eq!(app.worker.step().await.expect("a store"), 1);
    let task = caller.task(task["task_id"].as_str().expect("a task_id")).await;
    assert_eq!(task["status"], "completed", "{task}");
}

#[tokio::test]
async fn images_have_exactly_the_size_of_their_ratio() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "0"], 100).await;
    for ratio in AspectRatio::ALL {
        let task = caller.outcome_of(json!({ "prompt": "a boat", "aspect_ratio": ratio.as_str() })).await;
        let file = service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await;
        let (width, height) = ratio.size();
        let header = &file.body[16..24];
        assert_eq!(header, [width.to_be_bytes(), height.to_be_bytes()].concat(), "{ratio}");
        assert!(file.body.starts_with(b"\x89PNG\r\n\x1a\n"));
    }
}

#[tokio::test]
async fn pictures_carry_no_metadata() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task = caller.outcome("a secret boat").await;
    let png = service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await.body;
    let mut chunks = Vec::new();
    let mut rest = &png[8..];
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        chunks.push(String::from_utf8_lossy(&after[..4]).into_owned());
        rest = &after[length + 8..];
    }
    chunks.dedup();
    assert_eq!(chunks, ["IHDR", "IDAT", "IEND"]);
}

#[tokio::test]
async fn a_panicking_engine_costs_attempts_and_then_fails_the_task() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = caller.submit_prompt("a boat [[panic]]").await;
    let beside = caller.submit_prompt("a boat").await;
    assert_eq!(service.worker.step().await.expect("a store"), 2);
    assert_eq!(caller.task(&task_id).await["status"], "processing", "one lost attempt does not fail the task");
    assert_eq!(caller.task(&beside).await["status"], "completed", "the other task is not affected");
    assert_eq!(service.worker.step().await.expect("a store"), 0, "not at once again");
    for _ in 0..2 {
        service.clock.advance(Duration::from_secs(1));
        assert_eq!(service.worker.step().await.expect("a store"), 1);
    }
    assert_eq!(caller.task(&task_id).await["status"], "failed");
    assert_eq!(caller.credits().await, 98);
    service.assert_sound().await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_engine_is_abandoned_at_its_time_limit() {
    let (service, caller) = Service::with_caller(&["--render-timeout", "5s"], 100).await;
    let task_id = caller.submit_prompt("a boat [[hang]]").await;
    service.work().await;
    assert_refunded(&caller, &task_id, "several attempts").await;
}

#[tokio::test(start_paused = true)]
async fn a_delay_directive_delays_the_render() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = caller.submit_prompt("a boat [[delay 3s]]").await;
    let before = tokio::time::Instant::now();
    service.worker.step().await.expect("a store");
    assert!(before.elapsed() >= Duration::from_secs(3));
    assert_eq!(caller.task(&task_id).await["status"], "completed");
}

#[tokio::test]
async fn a_worker_that_died_loses_its_lease_and_another_takes_over() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let store = &service.shared.store;
    let dead = store.claim(1, LEASE).await.expect("a store");
    service.clock.advance(LEASE - Duration::from_millis(1));
    service.sweep().await;
    assert_eq!(service.worker.step().await.expect("a store"), 0, "the lease still holds");
    service.clock.advance(Duration::from_millis(1));
    service.sweep().await;
    assert_eq!(service.worker.step().await.expect("a store"), 1);
    let task = caller.task(&task_id).await;
    assert_eq!(task["status"], "completed");
    // The dead worker resumes.
    let lease = dead[0].lease;
    assert_eq!(store.complete(lease, vec!["2026-11-21/x.png".into()]).await.expect("a store"), LeaseWrite::Lost);
    assert_eq!(store.fail(lease, FailureCause::Engine, "no").await.expect("a store"), LeaseWrite::Lost);
    assert_eq!(store.renew(vec![lease], LEASE).await.expect("a store"), [lease]);
    assert_eq!(caller.task(&task_id).await, task);
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test]
async fn a_third_lost_lease_fails_a_task() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    for _ in 0..3 {
        assert_eq!(caller.task(&task_id).await["status"], "processing");
        assert_eq!(service.shared.store.claim(1, LEASE).await.expect("a store").len(), 1);
        service.clock.advance(LEASE);
        service.sweep().await;
    }
    assert_refunded(&caller, &task_id, "several attempts").await;
}

#[tokio::test]
async fn a_task_fails_after_nine_minutes_leased_or_not() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let waiting = caller.submit_prompt("a boat").await;
    service.clock.advance(Duration::from_secs(9 * 60) - Duration::from_millis(1));
    service.sweep().await;
    assert_eq!(caller.task(&waiting).await["status"], "processing");
    service.clock.advance(Duration::from_millis(1));
    service.sweep().await;
    assert_refunded(&caller, &waiting, "9 minutes").await;

    let leased = caller.submit_prompt("a boat").await;
    let claims = service.shared.store.claim(1, Duration::from_secs(3_600)).await.expect("a store");
    service.clock.advance(Duration::from_secs(9 * 60));
    service.sweep().await;
    assert_refunded(&caller, &leased, "9 minutes").await;
    assert_eq!(
        service.shared.store.complete(claims[0].lease, vec!["x".into()]).await.expect("a store"),
        LeaseWrite::Lost
    );
    assert_refunded(&caller, &leased, "9 minutes").await;
}

struct Gate {
    reached: Notify,
    open: Notify,
}

#[async_trait]
impl Renderer for Gate {
    async fn render(&self, _: &Claim, _: Sources, control: RenderControl) -> Result<Vec<Bytes>, RenderError> {
        self.reached.notify_one();
        tokio::select! {
            () = self.open.notified() => {}
            () = control.cancel.cancelled() => {}
        }
        Ok(vec![Bytes::from_static(b"a picture")])
    }
}

#[tokio::test]
async fn a_render_that_lost_its_lease_is_discarded_with_its_files() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let gate = Arc::new(Gate { reached: Notify::new(), open: Notify::new() });
    let slow = service.worker_with(gate.clone());
    let step = tokio::spawn(async move { slow.step().await });
    gate.reached.notified().await;
    service.clock.advance(LEASE);
    service.sweep().await;
    service.work().await;
    let task = caller.task(&task_id).await;
    assert_eq!(task["status"], "completed");
    let kept = files(&service);
    gate.open.notify_one();
    step.await.expect("no panic").expect("a store");
    assert_eq!(caller.task(&task_id).await, task);
    assert_eq!(files(&service), kept, "the late result left nothing behind");
    assert_eq!(kept.len(), 1);
}

#[tokio::test]
async fn a_heartbeat_keeps_a_lease_and_notices_its_loss() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let gate = Arc::new(Gate { reached: Notify::new(), open: Notify::new() });
    let slow = service.worker_with(gate.clone());
    let stepping = slow.clone();
    let step = tokio::spawn(async move { stepping.step().await });
    gate.reached.notified().await;
    for _ in 0..5 {
        service.clock.advance(LEASE / 2);
        slow.renew().await;
        service.sweep().await;
    }
    assert_eq!(service.worker.step().await.expect("a store"), 0, "the lease is alive");
    service.clock.advance(LEASE);
    service.sweep().await;
    slow.renew().await;
    step.await.expect("no panic").expect("a store");
    service.work().await;
    assert_eq!(
        caller.task(&task_id).await["status"],
        "completed",
        "the first render never ended; another worker completed the task"
    );
}

/// The log would otherwise call the end of a task a lost lease.
#[tokio::test]
async fn an_attempt_that_is_just_completing_its_task_has_not_lost_its_lease() {
    // The worker hears of the completion later than everyone else.
    let (service, caller) = Service::with_caller(&["--test-fault", "after-complete=delay"], 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let stepping = service.worker.clone();
    let step = tokio::spawn(async move { stepping.step().await });
    until(async || caller.task(&task_id).await["status"] == "completed").await;
    assert_eq!(service.worker.cancel_lost().await, 0);
    assert_eq!(step.await.expect("no panic").expect("a store"), 1);
}

#[tokio::test]
async fn the_sweep_removes_orphaned_files_and_keeps_results() {
    let service = Service::start_on_disk(&[]).await;
    let caller = service.caller("ada", 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let claim = service.shared.store.claim(1, LEASE).await.expect("a store").remove(0);
    let left_behind =
        service.shared.files.write(claim.lease.task_id, 0, Bytes::from_static(b"x")).await.expect("a file");
    service.clock.advance(LEASE);
    service.sweep().await;
    service.work().await;
    let folder = service.directory.path().join("files");
    let cut_off = format!("{left_behind}#1");
    let unknown = left_behind.replace(claim.lease.task_id.as_str(), "FAAAAAAAAAAAAAAAAAAAA");
    let strays = ["2026-11-21/notes.txt", "lost+found/notes.txt", &cut_off, &unknown];
    std::fs::create_dir(folder.join("lost+found")).expect("a directory");
    for name in strays {
        std::fs::write(folder.join(name), "left behind").expect("a file");
    }
    // The sweep goes by the age of the files, which the real clock gave them.
    let now = UNIX_EPOCH + Duration::from_millis(service.clock.now().as_millis().unsigned_abs());
    for name in files(&service) {
        let file = File::options().write(true).open(folder.join(name));
        file.and_then(|file| file.set_modified(now)).expect("a time of our own");
    }
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 0, "all files are young");
    service.clock.advance(ORPHAN_AGE + Duration::from_secs(60));
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 2);
    let left = files(&service);
    assert!(!left.contains(&left_behind) && !left.contains(&cut_off), "{left:?}");
    assert!(
        left.contains(&unknown) && left.contains(&strays[0].into()) && left.contains(&strays[1].into()),
        "{left:?}"
    );
    let task = caller.task(&task_id).await;
    let image = service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await;
    assert_eq!(image.status, 200);
}

#[tokio::test]
async fn files_of_a_task_that_failed_just_now_stay_a_day() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    caller.submit_prompt("a boat").await;
    let claim = service.shared.store.claim(1, LEASE).await.expect("a store").remove(0);
    let result = service.shared.files.write(claim.lease.task_id, 0, Bytes::from_static(b"x")).await.expect("a file");
    std::fs::File::open(service.directory.path().join("files").join(&result))
        .and_then(|file| file.set_modified(UNIX_EPOCH))
        .expect("an old file");
    // Like a backup in which the task is still processing, opened with the real files.
    service.clock.advance(ORPHAN_AGE * 2);
    service.sweep().await;
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 0);
    service.clock.advance(ORPHAN_AGE * 2);
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 1);
}

#[tokio::test]
async fn files_of_a_task_that_is_not_terminal_stay() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    caller.submit_prompt("a boat").await;
    let claim = service.shared.store.claim(1, LEASE).await.expect("a store").remove(0);
    let result = service.shared.files.write(claim.lease.task_id, 0, Bytes::from_static(b"x")).await.expect("a file");
    File::open(service.directory.path().join("files").join(&result))
        .and_then(|file| file.set_modified(UNIX_EPOCH))
        .expect("an old file");
    // No matter how long the task itself was not removed.
    service.clock.advance(ORPHAN_AGE * 2);
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 0);
    assert_eq!(files(&service), [result]);
}

#[tokio::test]
async fn the_same_task_gives_the_same_pictures_on_another_attempt() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    caller.submit(json!({ "prompt": "a boat", "n": 2 })).await;
    let claim = service.shared.store.claim(1, LEASE).await.expect("a store").remove(0);
    let renderer = service.renderer();
    let render = async || renderer.render(&claim, Sources::default(), control()).await.expect("pictures");
    let (first, second) = (render().await, render().await);
    assert_eq!(first, second);
    assert_ne!(first[0], first[1]);
    assert_eq!(decode(&first[0]).width(), 1024);
}

#[tokio::test]
async fn a_failure_or_refusal_that_the_database_did_not_take_is_tried_again() {
    for (prompt, write, about) in [("[[fail]]", "fail", "could not be generated"), ("[[policy]]", "refuse", "policy")] {
        for moment in ["before", "after"] {
            let (service, caller) =
                Service::with_caller(&["--test-fault", &format!("{moment}-{write}=error")], 100).await;
            let task_id = caller.submit_prompt(prompt).await;
            assert_eq!(service.worker.step().await.expect("a store"), 1);
            assert!(service.faults.all_happened());
            assert_refunded(&caller, &task_id, about).await;
        }
    }
}

#[tokio::test]
async fn a_worker_whose_files_fail_costs_no_attempt_and_claims_nothing_until_a_write_succeeds() {
    let service = Service::start_on_disk(&[]).await;
    let caller = service.caller("ada", 100).await;
    let (files, away) = (service.directory.path().join("files"), service.directory.path().join("away"));
    let ready = async || service.call("GET", "/readyz", &[], "").await.status.as_u16();
    let task_id = caller.submit_prompt("a boat").await;
    std::fs::rename(&files, &away).expect("a free name");
    assert_eq!(ready().await, 200);
    assert_eq!(service.worker.step().await.expect("a store"), 1);
    assert_eq!(ready().await, 503);
    for _ in 0..5 {
        assert_eq!(service.worker.step().await.expect("a store"), 0, "no task is claimed");
    }
    let TaskId(id) = task_id.parse().expect("a task_id");
    let record = service.shared.store.inspect_task(id).await.expect("a store").expect("the task exists");
    assert_eq!(record.lost_leases, Some(0));
    std::fs::rename(&away, &files).expect("a free name");
    assert_eq!(service.worker.step().await.expect("a store"), 1);
    assert_eq!(ready().await, 200);
    assert_eq!(caller.task(&task_id).await["status"], "completed");
    assert_eq!(crate::rigs::service::files(&service).len(), 1, "the test writes are removed");
}
