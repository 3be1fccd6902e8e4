//! What is particular to a database on a server: connections that break, schemas, months, and processes that hear
//! of each other.

use std::time::Duration;

use tempfile::TempDir;
use tintype::clock::Clock;
use tintype::fault::Faults;
use tintype::model::Surface;
use tintype::store::postgres::{OpenError, PostgresStore};
use tintype::store::{Result, Store as _, StoreError, Submission, WORKER_SILENCE, WorkerReport};

use super::fixture::{Fixture, UNLIMITED, accepted, drawn, ids, images};
use crate::postgres::{cluster, schema};
use crate::support::{Backend, NOON};

/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens the schema of a directory, which may not work.
async fn open(directory: &TempDir) -> std::result::Result<PostgresStore, OpenError> {
    let url = cluster().url(directory.path());
    PostgresStore::open(&url, None, Clock::manual(NOON), Faults::default()).await
}

fn fixture_with(faults: &str) -> Fixture {
    let directory = TempDir::new().expect("a directory");
    let clock = Clock::manual(NOON);
    let faults = faults.parse().expect("a plan");
    let store = Backend::Postgres.open_with_faults(&directory, &clock, faults);
    Fixture { store, clock, backend: Backend::Postgres, directory }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_whose_answer_got_lost_is_answered_all_the_same() -> Result<()> {
    let fx = fixture_with("after-commit=error");
    let ada = fx.account("ada", 10).await?;
    let task = accepted(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?);
    assert_eq!(ids(&fx.store.list_tasks(ada, Surface::Api, None, 10).await?), [task.id]);
    assert_eq!(fx.credits(ada).await?, 8);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_that_was_cut_off_before_its_commit_is_an_error_and_charges_nothing() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    let schema = schema(fx.directory.path());
    // Somebody holds the account, so the submit waits for it.
    let holder = cluster().session().await;
    let hold = format!("BEGIN; SELECT * FROM {schema}.accounts FOR UPDATE");
    holder.batch_execute(&hold).await.expect("nobody else holds it");
    let submitting = tokio::spawn({
        let store = fx.store.clone();
        async move { store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await }
    });
    let terminate = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE application_name = '{schema}' AND wait_event_type = 'Lock'"
    );
    tokio::time::timeout(PATIENCE, async { while cluster().number(&terminate) == 0 {} }).await.expect("it waits");
    holder.batch_execute("ROLLBACK").await.expect("it was not cut");
    let error = submitting.await.expect("no panic").expect_err("its connection was cut");
    assert!(matches!(error, StoreError::Other(_)), "it is known that nothing was done: {error:?}");
    assert_eq!(fx.credits(ada).await?, 10);
    assert_eq!(fx.store.list_tasks(ada, Surface::Api, None, 10).await?, []);
    assert!(matches!(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?, Submission::Accepted(_)));
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_goes_on_after_all_its_connections_were_cut() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    for _ in 0..5 {
        fx.submit(ada).await?;
        let lease = fx.claim().await?;
        cluster().terminate_all_of(fx.directory.path());
        assert_eq!(fx.store.list_tasks(ada, Surface::Api, None, 1).await?[0].id, lease.task_id);
        fx.store.fail(lease, "it sank").await?;
    }
    assert_eq!(fx.credits(ada).await?, 10);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_refused() {
    let directory = TempDir::new().expect("a directory");
    drop(open(&directory).await.expect("a fresh schema"));
    cluster().execute(&format!("UPDATE {}.tintype SET version = 99", schema(directory.path())));
    let error = open(&directory).await.expect_err("a newer schema");
    assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("upgrade this binary"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_somebody_else_are_left_alone() {
    let directory = TempDir::new().expect("a directory");
    let schema = schema(directory.path());
    cluster().url(directory.path());
    cluster().execute(&format!("CREATE TABLE {schema}.accounts (name text)"));
    let error = open(&directory).await.expect_err("not ours");
    assert!(matches!(error, OpenError::Foreign(_)), "{error}");
    assert_eq!(cluster().number(&format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'")), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_start_at_once_make_one_schema() {
    let directory = TempDir::new().expect("a directory");
    let started = futures::future::join_all((0..6).map(|_| open(&directory))).await;
    for store in started {
        store.expect("it waits for the first").ping().await.expect("a store that works");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_reads_the_password_in_an_error() {
    for url in [
        "postgres://ada:secret@127.0.0.1:1/tintype",
        "postgres://ada:secret@/tintype",
        "postgres://ada:secret@host:x/t",
    ] {
        let opened = PostgresStore::open(url, None, Clock::manual(NOON), Faults::default()).await;
        let error = opened.expect_err("nobody listens there").to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_all_months_are_one_list() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 100).await?;
    let mut submitted = Vec::new();
    for _ in 0..5 {
        let task = fx.submit(ada).await?;
        fx.store.complete(fx.claim().await?, drawn()).await?;
        submitted.push(task.id);
        fx.clock.advance(Duration::from_secs(20 * 24 * 3_600));
    }
    submitted.reverse();
    let listed = fx.store.list_task_ids(ada, Surface::Api, None, 10).await?;
    assert_eq!(listed, submitted);
    for id in &listed {
        assert!(fx.store.find_task(ada, Surface::Api, *id).await?.is_some());
    }
    let page = fx.store.list_task_ids(ada, Surface::Api, Some(listed[1]), 2).await?;
    assert_eq!(page, listed[2..4]);
    let months = format!(
        "SELECT count(*) FROM pg_class WHERE relispartition AND relkind = 'r' AND relnamespace = '{}'::regnamespace",
        schema(fx.directory.path())
    );
    assert!(cluster().number(&months) >= 3, "they lie in partitions");
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_hears_of_a_submit() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    let elsewhere = fx.another_process();
    // Once when it begins to listen: whatever was announced before was not heard.
    tokio::time::timeout(PATIENCE, elsewhere.tasks_elsewhere()).await.expect("it listens");
    fx.submit(ada).await?;
    tokio::time::timeout(PATIENCE, elsewhere.tasks_elsewhere()).await.expect("it hears");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_go_by_the_clock_of_the_server() -> Result<()> {
    let directory = TempDir::new().expect("a directory");
    let store = Backend::Postgres.open(&directory, &Clock::system());
    let fx = Fixture { store, clock: Clock::manual(NOON), backend: Backend::Postgres, directory };
    let ada = fx.account("ada", 10).await?;
    accepted(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?);
    fx.store.claim(1, Duration::from_secs(60)).await?;
    let lease_ms = format!(
        "SELECT (lease_until - floor(extract(epoch FROM clock_timestamp()) * 1000))::bigint FROM {}.queue",
        schema(fx.directory.path())
    );
    let left = cluster().number(&lease_ms);
    assert!((1..=60_000).contains(&left), "{left} ms left of a minute");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_reports_passes_by_those_that_are_silent() -> Result<()> {
    let fx = fixture_with("");
    let worker = |id: &str| WorkerReport { id: id.parse().expect("an id"), slots: 1, mean: None };
    fx.store.report_worker(worker("FAAAAAAAAAAAAAAAAAAA1")).await?;
    fx.store.report_worker(worker("FAAAAAAAAAAAAAAAAAAA2")).await?;
    fx.clock.advance(WORKER_SILENCE);
    fx.store.report_worker(worker("FAAAAAAAAAAAAAAAAAAA1")).await?;
    assert_eq!(cluster().number(&format!("SELECT count(*) FROM {}.workers", schema(fx.directory.path()))), 1);
    Ok(())
}
