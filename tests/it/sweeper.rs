//! The sweeper: when it may end a task or take a lease away, and when it must wait.

use std::time::Duration;

use serde_json::Value;
use tintype_config::{LEASE, SWEEP_EVERY, TASK_TIME_LIMIT};
use tintype_store::{Lease, LeaseWrite};
use tintype_system::clock::Clock;

use crate::rigs::service::{Caller, NOON, Service};

const MINUTE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

/// A process of a service, whose machine has a clock of its own.
struct Process {
    service: Service,
    machine: Clock,
}

impl Process {
    async fn of(service: &Service) -> Self {
        let machine = Clock::manual(NOON);
        Self { service: service.join_with_clock(&machine).await, machine }
    }

    /// Lets time pass, on the clock of the database too.
    fn pass(&self, service: &Service, time: Duration) {
        self.machine.advance(time);
        service.clock.advance(time);
    }

    /// A task that has the time `left` is failed when that has passed, and no moment earlier.
    async fn assert_fails_after(&self, service: &Service, caller: &Caller, task: &str, left: Duration) {
        self.pass(service, left - MOMENT);
        self.service.sweep().await;
        assert_eq!(status(caller, task).await, "processing");
        self.pass(service, MOMENT);
        self.service.sweep().await;
        assert_eq!(status(caller, task).await, "failed");
    }
}

/// Creates a task while the clock of the database is ahead by this time.
async fn submit_ahead(service: &Service, caller: &Caller, ahead: Duration) -> String {
    let right = service.clock.now();
    service.clock.advance(ahead);
    let task = caller.submit_prompt("a boat").await;
    service.clock.set(right);
    task
}

async fn status(caller: &Caller, task_id: &str) -> Value {
    caller.task(task_id).await["status"].clone()
}

#[tokio::test]
async fn a_clock_that_is_set_ahead_ends_no_task_under_way() {
    let service = Service::start().await;
    let process = Process::of(&service).await;
    let caller = service.caller("ada", 100).await;
    let task = caller.submit_prompt("a boat").await;
    process.pass(&service, MINUTE);
    service.clock.advance(TASK_TIME_LIMIT);
    process.service.sweep().await;
    assert_eq!(status(&caller, &task).await, "processing");
    assert_eq!(process.service.worker.step().await.expect("a store"), 1);
    assert_eq!(status(&caller, &task).await, "completed");
}

#[tokio::test]
async fn a_task_from_before_the_clock_was_set_back_ends_in_time() {
    let service = Service::start().await;
    let process = Process::of(&service).await;
    let caller = service.caller("ada", 100).await;
    let task = submit_ahead(&service, &caller, MINUTE * 360).await;
    process.service.sweep().await;
    process.assert_fails_after(&service, &caller, &task, TASK_TIME_LIMIT).await;
    assert_eq!(service.shared.store.audit().await.expect("a store").drifts, []);
}

#[tokio::test]
async fn a_task_dated_ahead_that_a_worker_holds_for_a_while_ends_in_time() {
    let service = Service::start().await;
    let process = Process::of(&service).await;
    let caller = service.caller("ada", 100).await;
    let task = submit_ahead(&service, &caller, MINUTE * 360).await;
    process.service.sweep().await;
    let held = service.shared.store.claim(1, LEASE).await.expect("a store").remove(0).lease;
    process.pass(&service, LEASE / 2);
    process.service.sweep().await;
    let released = service.shared.store.release(held, Duration::ZERO).await.expect("a store");
    assert_eq!(released, LeaseWrite::Done);
    process.assert_fails_after(&service, &caller, &task, TASK_TIME_LIMIT - LEASE / 2).await;
}

#[tokio::test]
async fn a_task_dated_ahead_ends_in_time_when_the_clock_has_reached_its_date() {
    let service = Service::start().await;
    let process = Process::of(&service).await;
    let caller = service.caller("ada", 100).await;
    let task = submit_ahead(&service, &caller, MINUTE * 5).await;
    process.service.sweep().await;
    process.pass(&service, MINUTE * 5);
    process.service.sweep().await;
    process.assert_fails_after(&service, &caller, &task, TASK_TIME_LIMIT - MINUTE * 5).await;
}

#[tokio::test]
async fn a_task_dated_ahead_that_cannot_be_failed_delays_no_other() {
    let service = Service::start_with(&["--test-fault", "before-fail-unleased=error"]).await;
    let process = Process::of(&service).await;
    let caller = service.caller("ada", 100).await;
    let ahead = MINUTE * 360;
    let tasks = [submit_ahead(&service, &caller, ahead).await, submit_ahead(&service, &caller, ahead).await];
    process.service.sweep().await;
    process.pass(&service, TASK_TIME_LIMIT);
    let failed = async || {
        process.service.sweep().await;
        let states = [status(&caller, &tasks[0]).await, status(&caller, &tasks[1]).await];
        states.iter().filter(|state| *state == "failed").count()
    };
    assert_eq!(failed().await, 1);
    assert!(service.faults.all_happened());
    assert_eq!(failed().await, 2, "the next sweep tries again");
}

#[tokio::test]
async fn a_step_of_the_clock_prolongs_no_task() {
    let service = Service::start().await;
    let process = Process::of(&service).await;
    let (ada, eve) = (service.caller("ada", 100).await, service.caller("eve", 100).await);
    let before = ada.submit_prompt("a boat").await;
    process.pass(&service, MINUTE);
    service.clock.advance(MINUTE * 60);
    process.service.sweep().await;
    let after = eve.submit_prompt("a boat").await;
    process.assert_fails_after(&service, &ada, &before, TASK_TIME_LIMIT - MINUTE).await;
    process.assert_fails_after(&service, &eve, &after, MINUTE).await;
}

/// Sweeps once for every [`SWEEP_EVERY`] that passes.
async fn sweep_for(service: &Service, time: Duration) {
    for _ in 0..time.as_secs() / SWEEP_EVERY.as_secs() {
        service.clock.advance(SWEEP_EVERY);
        service.sweeper.step().await;
    }
}

async fn claim(service: &Service) -> Lease {
    let caller = service.caller("ada", 100).await;
    caller.submit_prompt("a boat").await;
    service.shared.store.claim(1, LEASE).await.expect("a store")[0].lease
}

/// The lease can still be renewed for one more lease time, and not longer.
async fn assert_spared_for_a_lease(service: &Service, lease: Lease) {
    sweep_for(service, LEASE - SWEEP_EVERY).await;
    let still_expired = Duration::ZERO;
    assert_eq!(
        service.shared.store.renew(vec![lease], still_expired).await.expect("a store"),
        [],
        "the lease is not lost"
    );
    sweep_for(service, SWEEP_EVERY).await;
    assert_eq!(service.shared.store.renew(vec![lease], LEASE).await.expect("a store"), [lease], "the lease is lost");
}

#[tokio::test]
async fn a_start_takes_no_lease_away_for_the_time_of_a_lease() {
    let service = Service::start().await;
    let lease = claim(&service).await;
    service.clock.advance(LEASE);
    let started = service.join(&[]).await;
    started.sweeper.step().await;
    assert_spared_for_a_lease(&started, lease).await;
}

#[tokio::test]
async fn a_failed_sweep_is_followed_by_the_time_of_a_lease_for_workers_to_renew() {
    for sweep in ["expire", "reclaim"] {
        let first = if sweep == "expire" { 1 } else { LEASE.as_secs() };
        let turns = LEASE.as_secs() * 2 - first + 1;
        let service = Service::start_with(&["--test-fault", &format!("before-{sweep}=error@{turns}")]).await;
        sweep_for(&service, LEASE).await;
        let lease = claim(&service).await;
        sweep_for(&service, LEASE).await;
        assert!(service.faults.all_happened());
        assert_spared_for_a_lease(&service, lease).await;
    }
}

#[tokio::test]
async fn a_sweep_that_had_to_wait_for_the_database_takes_no_lease_away() {
    let service = Service::start().await;
    sweep_for(&service, LEASE).await;
    let lease = claim(&service).await;
    service.clock.advance(LEASE);
    service.sweeper.step().await;
    assert_spared_for_a_lease(&service, lease).await;
}
