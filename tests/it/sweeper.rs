//! The sweeper: when it may end a task or take a lease away, and when it must wait.

use std::time::Duration;

use serde_json::Value;
use tintype_config::{LEASE, SWEEP_EVERY, TASK_TIME_LIMIT};
use tintype_store::{Lease, LeaseWrite};
use tintype_system::clock::Clock;

use crate::rigs::service::{Caller, NOON, Service};

const MINUTE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

/// A service with a caller, and a process of it whose machine has a clock of its own.
struct Rig {
    service: Service,
    caller: Caller,
    process: Service,
    machine: Clock,
}

impl Rig {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(flags: &[&str]) -> Self {
        let (service, caller) = Service::with_caller(flags, 100).await;
        let machine = Clock::manual(NOON);
        let process = service.join_with_clock(&machine).await;
        Self { service, caller, process, machine }
    }

    /// Lets time pass, on the clock of the database too.
    fn pass(&self, time: Duration) {
        self.machine.advance(time);
        self.service.clock.advance(time);
    }

    /// Creates a task while the clock of the database is ahead by this time.
    async fn submit_ahead(&self, ahead: Duration) -> String {
        let right = self.service.clock.now();
        self.service.clock.advance(ahead);
        let task = self.caller.submit_prompt("a boat").await;
        self.service.clock.set(right);
        task
    }

    /// A task that has the time `left` is failed when that has passed, and no moment earlier.
    async fn assert_fails_after(&self, caller: &Caller, task: &str, left: Duration) {
        self.pass(left - MOMENT);
        self.process.sweep().await;
        assert_eq!(status(caller, task).await, "processing");
        self.pass(MOMENT);
        self.process.sweep().await;
        assert_eq!(status(caller, task).await, "failed");
    }
}

async fn status(caller: &Caller, task_id: &str) -> Value {
    caller.task(task_id).await["status"].clone()
}

#[tokio::test]
async fn a_clock_that_is_set_ahead_ends_no_task_under_way() {
    let rig = Rig::start().await;
    let task = rig.caller.submit_prompt("a boat").await;
    rig.pass(MINUTE);
    rig.service.clock.advance(TASK_TIME_LIMIT);
    rig.process.sweep().await;
    assert_eq!(status(&rig.caller, &task).await, "processing");
    assert_eq!(rig.process.worker.step().await.expect("a store"), 1);
    assert_eq!(status(&rig.caller, &task).await, "completed");
}

#[tokio::test]
async fn a_task_from_before_the_clock_was_set_back_ends_in_time() {
    let rig = Rig::start().await;
    let task = rig.submit_ahead(MINUTE * 360).await;
    rig.process.sweep().await;
    rig.assert_fails_after(&rig.caller, &task, TASK_TIME_LIMIT).await;
    rig.service.assert_sound().await;
}

#[tokio::test]
async fn a_task_dated_ahead_that_a_worker_holds_for_a_while_ends_in_time() {
    let rig = Rig::start().await;
    let (store, task) = (&rig.service.shared.store, rig.submit_ahead(MINUTE * 360).await);
    rig.process.sweep().await;
    let held = store.claim(1, LEASE).await.expect("a store").remove(0).lease;
    rig.pass(LEASE / 2);
    rig.process.sweep().await;
    assert_eq!(store.release(held, Duration::ZERO).await.expect("a store"), LeaseWrite::Done);
    rig.assert_fails_after(&rig.caller, &task, TASK_TIME_LIMIT - LEASE / 2).await;
}

#[tokio::test]
async fn a_task_dated_ahead_ends_in_time_when_the_clock_has_reached_its_date() {
    let rig = Rig::start().await;
    let task = rig.submit_ahead(MINUTE * 5).await;
    rig.process.sweep().await;
    rig.pass(MINUTE * 5);
    rig.process.sweep().await;
    rig.assert_fails_after(&rig.caller, &task, TASK_TIME_LIMIT - MINUTE * 5).await;
}

#[tokio::test]
async fn a_task_dated_ahead_that_cannot_be_failed_delays_no_other() {
    let rig = Rig::start_with(&["--test-fault", "before-fail-unleased=error"]).await;
    let tasks = [rig.submit_ahead(MINUTE * 360).await, rig.submit_ahead(MINUTE * 360).await];
    rig.process.sweep().await;
    rig.pass(TASK_TIME_LIMIT);
    let failed = async || {
        rig.process.sweep().await;
        let states = [status(&rig.caller, &tasks[0]).await, status(&rig.caller, &tasks[1]).await];
        states.iter().filter(|state| *state == "failed").count()
    };
    assert_eq!(failed().await, 1);
    assert!(rig.service.faults.all_happened());
    assert_eq!(failed().await, 2, "the next sweep tries again");
}

#[tokio::test]
async fn a_step_of_the_clock_prolongs_no_task() {
    let rig = Rig::start().await;
    let (ada, eve) = (&rig.caller, rig.service.caller("eve", 100).await);
    let before = ada.submit_prompt("a boat").await;
    rig.pass(MINUTE);
    rig.service.clock.advance(MINUTE * 60);
    rig.process.sweep().await;
    let after = eve.submit_prompt("a boat").await;
    rig.assert_fails_after(ada, &before, TASK_TIME_LIMIT - MINUTE).await;
    rig.assert_fails_after(&eve, &after, MINUTE).await;
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
