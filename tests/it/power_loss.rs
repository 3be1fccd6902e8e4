//! Power cuts at any moment.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::rigs::binary::{self, Server};
use crate::rigs::crowd::{Crowd, Findings, integrity};
use crate::rigs::disk::{self, Disk, Faults, Names, Survivors};
use crate::rigs::http::{TASKS, try_send};

/// A run cuts the power of a first start after every eighth change to the disk.
const STEP: u64 = 8;

fn survivors(seed: u64) -> Survivors {
    if seed.is_multiple_of(3) { Survivors::None } else { Survivors::Some(seed) }
}

#[tokio::test]
async fn a_first_start_keeps_the_key_that_it_showed_and_one_cut_short_starts_over() {
    if !disk::inside("power_loss::a_first_start_keeps_the_key_that_it_showed_and_one_cut_short_starts_over") {
        return;
    }
    let undisturbed = Disk::new();
    drop(Server::spawn(undisturbed.serve()));
    let mut shown = 0;
    // Each run begins at another change, so that several runs try them all.
    for cut_after in (rand::random_range(0..STEP)..undisturbed.changes() + 10).step_by(STEP as usize) {
        let mut disk = Disk::new();
        disk.set(Faults { cut_after: Some(cut_after), ..Faults::default() });
        let server = Server::attempt(disk.serve());
        disk.power_off();
        let key_file = server.ok().and_then(|server| server.first_key_file());
        disk.power_on(survivors(cut_after));
        let server = Server::spawn(disk.serve());
        if let Some(key_file) = key_file {
            shown += 1;
            assert_eq!(server.first_key_file(), None, "cut after {cut_after}: the first start was forgotten");
            let key = std::fs::read_to_string(server.path(&key_file));
            let key = key.unwrap_or_else(|error| panic!("cut after {cut_after}: the file that was named: {error}"));
            let answer = try_send(server.address, "GET", TASKS, key.trim(), "").await.expect("an answer");
            assert_eq!(answer.status, 200, "cut after {cut_after}: the key that was saved is lost");
        }
        drop(server);
        assert_eq!(integrity(&disk.data()), "ok", "cut after {cut_after}");
        let audit = binary::json(&disk.data(), &["credits", "audit"]);
        assert_eq!(
            (&audit["accounts"], &audit["drifts"]),
            (&1.into(), &serde_json::json!([])),
            "cut after {cut_after}"
        );
    }
    assert!(shown > 0, "no start came to its end");
}

/// The findings of several lives of a server on one disk, each ended by a power cut.
#[derive(Debug, Default)]
struct Toll {
    cuts: usize,
    acknowledged: usize,
    completed: usize,
    findings: Findings,
}

/// Callers use a server until the power fails after a seeded number of changes to the disk. This repeats at least this
/// number of times and until a task was completed. Each time, the next server is compared with the recorded answers.
async fn lives(seed: u64, lives: usize) -> Toll {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut toll = Toll::default();
    let mut disk = Disk::new();
    let crowd = Crowd::new(&disk.data(), 4);
    // Several lives may be too short for a task.
    while toll.findings.is_clean() && (toll.cuts < lives || (toll.completed == 0 && toll.cuts < 10 * lives)) {
        let in_start = dice.random_bool(0.3);
        let cut_after = |changes| Faults { cut_after: Some(changes), ..Faults::default() };
        disk.set(if in_start { cut_after(dice.random_range(0..60)) } else { Faults::default() });
        // An interrupted start has acknowledged nothing.
        if let Ok(server) = Server::attempt(disk.serve()) {
            if !in_start {
                disk.set(cut_after(dice.random_range(0..300)));
            }
            crowd.press(server.address, || !disk.is_powered()).await;
        }
        disk.power_on(survivors(dice.random()));
        toll.cuts += 1;
        assert_eq!(integrity(&disk.data()), "ok", "{toll:?}");
        let server = Server::spawn(disk.serve());
        toll.findings = crowd.check(server.address, &disk.data()).await;
        if toll.cuts >= lives && toll.findings.is_clean() {
            crowd.finish(server.address).await;
            toll.findings = crowd.check(server.address, &disk.data()).await;
        }
        (toll.acknowledged, toll.completed) = crowd.told();
    }
    toll
}

#[tokio::test]
async fn a_power_cut_under_load_loses_nothing_that_was_acknowledged() {
    if !disk::inside("power_loss::a_power_cut_under_load_loses_nothing_that_was_acknowledged") {
        return;
    }
    let first: u32 = rand::random();
    for seed in u64::from(first)..u64::from(first) + 3 {
        println!("seed {seed}");
        let toll = lives(seed, 4).await;
        println!("{toll:?}");
        assert!(toll.findings.is_clean(), "seed {seed}: {toll:?}");
        assert!(toll.completed > 0, "seed {seed}: no caller saw a completed task");
    }
}

/// One life of a server on a disk with these faults: the power fails once callers have seen some tasks completed.
async fn cut_after_some_completed(faults: Faults) -> (Disk, Crowd) {
    let mut disk = Disk::new();
    let crowd = Crowd::new(&disk.data(), 4);
    let server = Server::spawn(disk.serve());
    disk.set(faults);
    crowd.press(server.address, || crowd.told().1 > 2).await;
    // SQLite may have moved all that came before from its log to the database.
    crowd.caller().submit(server.address, "a boat", 1).await.expect("an answer");
    disk.power_off();
    drop(server);
    disk.power_on(Survivors::None);
    (disk, crowd)
}

#[tokio::test]
async fn a_power_cut_loses_data_if_a_sync_does_nothing() {
    if !disk::inside("power_loss::a_power_cut_loses_data_if_a_sync_does_nothing") {
        return;
    }
    let log: Names = |name| name.ends_with("-wal");
    let files: Names = |name| name.contains(".png");
    let days: Names = |name| name.len() == 10 && name.starts_with("20");
    let file_directory: Names = |name| name == "files";
    for (what, lie_about_sync) in [("log", log), ("files", files), ("day", days), ("days", file_directory)] {
        let (disk, crowd) =
            cut_after_some_completed(Faults { lie_about_sync: Some(lie_about_sync), ..Faults::default() }).await;
        let server = Server::spawn(disk.serve());
        let findings = crowd.check(server.address, &disk.data()).await;
        let (acknowledged, completed) = crowd.told();
        let (lost, dangling) = (findings.lost.len(), findings.dangling.len());
        println!(
            "{what}: of {acknowledged} acknowledged tasks {lost} lost; of {completed} completed {dangling} without their files"
        );
        if what == "log" {
            assert!(lost > 0, "the log is not worth its syncs");
        } else {
            assert!(lost == 0 && dangling > 0, "{what}: not worth its syncs: {findings:?}");
        }
    }
}

#[tokio::test]
async fn files_survive_in_a_directory_that_a_killed_write_created() {
    if !disk::inside("power_loss::files_survive_in_a_directory_that_a_killed_write_created") {
        return;
    }
    let mut disk = Disk::new();
    let crowd = Crowd::new(&disk.data(), 1);
    let server = Server::spawn(disk.serve());
    let task = crowd.caller().submit(server.address, "a boat [[fail]]", 1).await.expect("an answer").json();
    let today = task["data"]["created_at"].as_str().expect("a time")[..10].to_owned();
    // Created but not synced, as after a kill between the two.
    std::fs::create_dir(disk.data().join("files").join(today)).expect("a new directory");
    crowd.caller().submit(server.address, "a boat", 1).await.expect("an answer");
    crowd.finish(server.address).await;
    disk.power_off();
    drop(server);
    disk.power_on(Survivors::None);
    let server = Server::spawn(disk.serve());
    let findings = crowd.check(server.address, &disk.data()).await;
    assert!(findings.is_clean(), "{findings:?}");
}
