//! Half an hour of a small installation, with everything that goes wrong in a month.

use std::sync::Arc;

use tempfile::TempDir;
use tintype_rigs::database::{Backend, NOON};
use tintype_rigs::simulation::{Plan, Report, run};
use tintype_store::Store;
use tintype_system::clock::Clock;

/// Runs it. The failover is a crash of the process with the database.
async fn simulate(backend: Backend, plan: &Plan) -> Report {
    let (directory, clock) = (TempDir::new().expect("a directory"), Clock::manual(NOON));
    let store = backend.open(&directory, &clock);
    let fail_over = |store: Arc<Store>| {
        drop(store);
        backend.open(&directory, &clock)
    };
    let report = run(plan, store, clock.clone(), fail_over).await.expect("no store error");
    println!("{report}");
    report
}

/// Whatever happened, light accounts waited less than the heavy ones that filled the queue.
fn check(report: &Report) {
    let [quiet, .., giant] = &report.classes[..] else { panic!("no classes") };
    assert!(giant.submitted > 0 && quiet.wait(0.99) < giant.wait(0.99), "{report}");
    // The rush makes a queue, and workers die, hang and come back late: else the run shows nothing.
    assert!(report.backlog > 40 && report.deaths > 5 && report.requeued > 5 && report.lost > 0, "{report}");
    assert!(report.oldest.as_secs() <= 10 * 60, "{report}");
}

#[tokio::test]
async fn a_rush_dead_workers_and_a_failover_leave_no_task_and_no_credit_behind() {
    let report = simulate(Backend::Sqlite, &Plan::short()).await;
    check(&report);
    assert_eq!(simulate(Backend::Sqlite, &Plan::short()).await, report, "a seed gives one run");
}

#[tokio::test(flavor = "multi_thread")]
async fn simulated_rush_on_postgres() {
    check(&simulate(Backend::Postgres, &Plan::short()).await);
}
