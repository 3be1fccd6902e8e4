//! The disk is full, read-only or failing.

use std::net::SocketAddr;

use crate::rigs::binary::{Ran as _, Server, run};
use crate::rigs::crowd::{Crowd, integrity};
use crate::rigs::disk::{self, ALL, Disk, Faults, Names, Survivors};
use crate::rigs::http::try_send;
use crate::rigs::wait::until;

const LOG: Names = |name| name.ends_with("-wal");
const DATABASE: Names = |name| name == "tintype.db";
const PICTURES: Names = |name| name.contains(".png");
const DAYS: Names = |name| name.len() == 10 && name.starts_with("20");

/// The exit code of a server that ends by itself.
async fn exit_code(mut server: Server) -> Option<i32> {
    server.until_ended().await.code()
}

async fn readiness(address: SocketAddr) -> u16 {
    try_send(address, "GET", "/readyz", "", "").await.expect("an answer").status.as_u16()
}

/// A server on a disk of its own that has completed a task.
async fn at_work() -> (Disk, Crowd, Server) {
    let disk = Disk::new();
    let crowd = Crowd::new(&disk.data(), 1);
    let server = Server::spawn(disk.serve());
    crowd.caller().submit(server.address, "a boat", 1).await.expect("an answer");
    crowd.finish(server.address).await;
    (disk, crowd, server)
}

/// Submits until the server refuses, and checks the refusal.
async fn refused(crowd: &Crowd, address: SocketAddr, prompt: &str) {
    let (before, _) = crowd.told();
    loop {
        let answer = crowd.caller().submit(address, prompt, 1).await.expect("an answer");
        if answer.status != 200 {
            answer.assert_error(500, "INTERNAL_ERROR");
            return;
        }
        assert!(crowd.told().0 - before < 50, "such a disk does not hold this many");
    }
}

/// Asserts that the same process still serves every acknowledged task while the disk accepts no writes.
async fn reads(crowd: &Crowd, server: &Server, disk: &Disk) {
    let findings = crowd.check(server.address, &disk.data()).await;
    assert!(findings.is_clean(), "{findings:?}");
    until(async || readiness(server.address).await == 503).await;
}

/// Asserts that the server recovers by itself once the disk works again.
async fn recovers(crowd: &Crowd, server: Server, disk: &Disk) {
    until(async || readiness(server.address).await == 200).await;
    let (before, _) = crowd.told();
    let answer = crowd.caller().submit(server.address, "a boat", 1).await.expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    crowd.finish(server.address).await;
    assert_eq!(crowd.told(), (before + 1, before + 1), "every task is completed");
    let findings = crowd.check(server.address, &disk.data()).await;
    assert!(findings.is_clean(), "{findings:?}");
    server.stop();
    assert_eq!(integrity(&disk.data()), "ok");
}

#[tokio::test]
async fn a_full_disk_refuses_submits_and_serves_reads_until_space_is_freed() {
    if !disk::inside("disk_faults::a_full_disk_refuses_submits_and_serves_reads_until_space_is_freed") {
        return;
    }
    let (disk, crowd, server) = at_work().await;
    disk.set(Faults { free_pages: Some(0), ..Faults::default() });
    refused(&crowd, server.address, &format!("a boat {}", "x".repeat(30_000))).await;
    reads(&crowd, &server, &disk).await;
    disk.heal();
    recovers(&crowd, server, &disk).await;
}

#[tokio::test]
async fn reads_continue_on_a_read_only_disk_until_it_is_writable_again() {
    if !disk::inside("disk_faults::reads_continue_on_a_read_only_disk_until_it_is_writable_again") {
        return;
    }
    let (disk, crowd, server) = at_work().await;
    disk.set(Faults { read_only: true, ..Faults::default() });
    refused(&crowd, server.address, "a boat").await;
    reads(&crowd, &server, &disk).await;
    until(async || disk.met(DATABASE) > 0).await;
    reads(&crowd, &server, &disk).await;
    disk.heal();
    recovers(&crowd, server, &disk).await;
}

#[tokio::test]
async fn a_disk_that_fills_up_during_renders_costs_attempts_and_leaves_no_dead_url() {
    if !disk::inside("disk_faults::a_disk_that_fills_up_during_renders_costs_attempts_and_leaves_no_dead_url") {
        return;
    }
    let (disk, crowd, server) = at_work().await;
    // The write-ahead log has free pages, so that it cannot fail by chance.
    disk.set(Faults { full_for: Some(PICTURES), ..Faults::default() });
    for _ in 0..3 {
        crowd.caller().submit(server.address, "a boat", 2).await.expect("an answer");
    }
    until(async || disk.met(PICTURES) > 0).await;
    disk.heal();
    crowd.finish(server.address).await;
    recovers(&crowd, server, &disk).await;
    let left = disk.names(|name| name.contains('#'));
    assert!(left.is_empty(), "half-written files: {left:?}");
}

/// The process exits at this fault. A restart on the repaired disk, with or without a power cut before it, still has
/// every acknowledged task, and so has one after a further power cut.
async fn ends_and_knows(what: &str, fault: Faults) {
    for survivors in [None, Some(Survivors::Some(7))] {
        let (mut disk, crowd, server) = at_work().await;
        disk.set(fault);
        crowd.caller().submit(server.address, "a boat", 1).await;
        assert_eq!(exit_code(server).await, Some(74), "{what}");
        match survivors {
            Some(survivors) => disk.power_on(survivors),
            None => disk.heal(),
        }
        let server = Server::spawn(disk.serve());
        let findings = crowd.check(server.address, &disk.data()).await;
        assert!(findings.is_clean(), "{what}, {survivors:?}: {findings:?}");
        // New answers must not depend on pages that the disk has only appeared to hold since the error.
        let answer = crowd.caller().submit(server.address, "a boat", 1).await.expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        disk.power_off();
        drop(server);
        disk.power_on(Survivors::None);
        let server = Server::spawn(disk.serve());
        let findings = crowd.check(server.address, &disk.data()).await;
        assert!(findings.is_clean(), "{what}, {survivors:?}, then a cut: {findings:?}");
        crowd.finish(server.address).await;
        recovers(&crowd, server, &disk).await;
    }
}

#[tokio::test]
async fn an_io_error_of_the_write_ahead_log_ends_the_process_and_a_restart_has_lost_nothing() {
    if !disk::inside("disk_faults::an_io_error_of_the_write_ahead_log_ends_the_process_and_a_restart_has_lost_nothing")
    {
        return;
    }
    ends_and_knows("write of the log", Faults { fail_write: Some(LOG), ..Faults::default() }).await;
    ends_and_knows("sync of the log", Faults { fail_sync: Some(LOG), ..Faults::default() }).await;
}

#[tokio::test]
async fn an_io_error_of_the_database_ends_the_process_and_a_restart_has_lost_nothing() {
    if !disk::inside("disk_faults::an_io_error_of_the_database_ends_the_process_and_a_restart_has_lost_nothing") {
        return;
    }
    ends_and_knows("write of the database", Faults { fail_write: Some(DATABASE), ..Faults::default() }).await;
    ends_and_knows("sync of the database", Faults { fail_sync: Some(DATABASE), ..Faults::default() }).await;
}

#[tokio::test]
async fn a_disk_without_hard_links_and_permissions_holds_the_data_and_a_restored_copy() {
    if !disk::inside("disk_faults::a_disk_without_hard_links_and_permissions_holds_the_data_and_a_restored_copy") {
        return;
    }
    let disk = Disk::new();
    disk.set(Faults { foreign: true, ..Faults::default() });
    let crowd = Crowd::new(&disk.data(), 1);
    let log = disk.path().join("log");
    let server = Server::spawn({
        let mut serve = disk.serve();
        serve.stderr(std::fs::File::create(&log).expect("a file"));
        serve
    });
    crowd.caller().submit(server.address, "a boat", 1).await.expect("an answer");
    crowd.finish(server.address).await;
    server.stop();
    let said = std::fs::read_to_string(&log).expect("a log");
    assert!(said.contains("ignores permissions") && !said.contains("removed the permission"), "{said}");

    let doctor = run(&disk.data(), ["doctor"]).text();
    assert!(doctor.contains("umask=077"), "{doctor}");

    let (backup, restored) = (disk.path().join("backup").display().to_string(), disk.path().join("restored"));
    run(&disk.data(), ["backup", &backup]).succeeded();
    run(&restored, ["restore", &backup]).succeeded();
    let audit = run(&restored, ["credits", "audit", "--files"]).succeeded();
    assert!(audit.contains("1 result file"), "{audit}");
}

#[tokio::test]
async fn a_command_says_that_a_file_system_shares_no_memory() {
    if !disk::inside("disk_faults::a_command_says_that_a_file_system_shares_no_memory") {
        return;
    }
    let disk = Disk::new();
    disk.set(Faults { unmapped: true, ..Faults::default() });
    let said = run(&disk.data(), ["account", "create", "ada"]).failed();
    assert!(said.contains("shares no memory (mergerfs"), "{said}");
}

#[tokio::test]
async fn an_io_error_of_a_result_file_costs_one_attempt() {
    if !disk::inside("disk_faults::an_io_error_of_a_result_file_costs_one_attempt") {
        return;
    }
    let none = Faults::default();
    let faults = [
        Faults { fail_write: Some(PICTURES), ..none },
        Faults { fail_sync: Some(PICTURES), ..none },
        Faults { fail_sync: Some(DAYS), ..none },
    ];
    for fault in faults {
        let (mut disk, crowd, server) = at_work().await;
        let met = disk.met(ALL);
        disk.set(fault);
        crowd.caller().submit(server.address, "a boat", 2).await.expect("an answer");
        until(async || disk.met(ALL) > met).await;
        disk.heal();
        crowd.finish(server.address).await;
        assert_eq!(crowd.told(), (2, 2), "{fault:?}: the next attempt completes the task");
        disk.power_off();
        drop(server);
        disk.power_on(Survivors::None);
        let server = Server::spawn(disk.serve());
        recovers(&crowd, server, &disk).await;
    }
}
