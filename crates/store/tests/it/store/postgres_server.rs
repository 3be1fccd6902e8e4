//! PostgreSQL only: broken connections, and notifications between processes.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use tempfile::TempDir;
use tintype_domain::model::{FailureCause, Id, Surface, Task};
use tintype_store::postgres::{self, Import};
use tintype_store::{
    Audit, EndingsElsewhere, MAX_LOST_LEASES, MAX_UPDATE_BYTES, OpenError, Reclaim, Result, StartLimit, Store,
    StoreError, Submission, WORKER_SILENCE, WorkerReport,
};
use tintype_system::clock::{Clock, Timestamp};
use tintype_system::fault::Faults;
use tokio_util::sync::CancellationToken;

use super::fixture::{Fixture, UNLIMITED, accepted, ids, images, new_key};
use super::postgres_reads::entries_read;
use tintype_rigs::database::{Backend, NOON};
use tintype_rigs::postgres::{Cluster, Database, Durability, cluster, schema, waiting};

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens the store in the schema of a directory.
pub async fn open(directory: &TempDir) -> std::result::Result<Store, OpenError> {
    let url = cluster().url(directory.path());
    postgres::open(&url, None, Clock::manual(NOON), Faults::default()).await
}

pub fn fixture_with(faults: &str) -> Fixture {
    let directory = TempDir::new().expect("a directory");
    let clock = Clock::manual(NOON);
    let faults = faults.parse().expect("a plan");
    let store = Backend::Postgres.open_with_faults(&directory, &clock, faults);
    Fixture { store, clock, backend: Backend::Postgres, directory }
}

/// A session in a transaction that begins with these statements and holds what they lock.
pub async fn holding(statements: &str) -> tokio_postgres::Client {
    let holder = cluster().session().await;
    holder.batch_execute(&format!("BEGIN; {statements}")).await.expect("the lock is free");
    holder
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_whose_commit_answer_is_lost_is_acknowledged() -> Result<()> {
    let fx = fixture_with("after-commit=error");
    let ada = fx.account("ada", 10).await?;
    let task = accepted(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?);
    assert_eq!(ids(&fx.store.list_tasks(ada, Surface::Api, None, 10).await?), [task.id]);
    assert_eq!(fx.credits(ada).await?, 8);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_finds_the_disk_full_is_seen_by_pings_for_a_while() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    let session = cluster().session().await;
    // What PostgreSQL says when a table cannot grow. A small change of a row still succeeds.
    let full = format!(
        "SET search_path TO {};
         CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
         CREATE TRIGGER full_disk BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION full_disk()",
        schema(fx.directory.path())
    );
    session.batch_execute(&full).await.expect("a trigger");
    fx.store.ping().await?;
    let refused = fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await;
    assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
    assert!(matches!(fx.store.ping().await, Err(StoreError::Full(_))));
    fx.clock.advance(Duration::from_millis(9_999));
    assert!(fx.store.ping().await.is_err());
    session.batch_execute("DROP TRIGGER full_disk ON tasks").await.expect("a trigger");
    fx.clock.advance(Duration::from_millis(1));
    fx.store.ping().await?;
    accepted(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_read_from_its_file_when_a_connection_is_made() -> Result<()> {
    let (cluster, directory) = (Cluster::start(Durability::Nothing), TempDir::new().expect("a directory"));
    let session = cluster.session().await;
    let execute = async |sql: &str| session.batch_execute(sql).await.expect("a statement");
    execute("CREATE ROLE app SUPERUSER LOGIN PASSWORD 'one'").await;
    let rules: String = session.query_one("SHOW hba_file", &[]).await.expect("a file").get(0);
    let ask = "COPY (VALUES ('local all app scram-sha-256'), ('local all all trust')) TO";
    execute(&format!("{ask} '{rules}'; SELECT pg_reload_conf()")).await;
    let url = |password: &str| cluster.database_url().replace("tintype@", &format!("app:{password}@"));
    let open = async |url: String| postgres::open(&url, None, Clock::manual(NOON), Faults::default()).await;
    // The server reads its rules again soon.
    while open(url("wrong")).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let file = directory.path().join("url");
    std::fs::write(&file, format!("{}\n", url("one"))).expect("a file");
    let (following, other) = (open(url("one")).await.expect("it opens"), open(url("one")).await.expect("it opens"));
    following.follow(file.clone());
    std::fs::write(&file, format!("{}\n", url("two"))).expect("a file");
    execute("ALTER ROLE app PASSWORD 'two'").await;
    execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'app'").await;
    following.ping().await?;
    assert!(other.ping().await.is_err(), "the password that it began with");
    // A file that is gone, or is of another user, changes nothing.
    std::fs::write(&file, url("three").replace("app:", "tintype:")).expect("a file");
    execute("ALTER ROLE app PASSWORD 'one'").await;
    execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'app'").await;
    following.ping().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_pings_use_one_connection_and_share_a_write() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    let schema = schema(fx.directory.path());
    let counting = format!(
        "SET search_path TO {schema};
         CREATE SEQUENCE written;
         CREATE FUNCTION count_write() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM nextval('written'); RETURN NEW; END $$;
         CREATE TRIGGER count_write AFTER UPDATE ON tintype FOR EACH ROW EXECUTE FUNCTION count_write()"
    );
    cluster().session().await.batch_execute(&counting).await.expect("a trigger");
    // Another session locks the row that every ping writes.
    let holder = holding(&format!("SELECT * FROM {schema}.tintype FOR UPDATE")).await;
    let mut pings: Vec<_> = (0..64).map(|_| fx.store.ping().boxed()).collect();
    assert!(join_all(&mut pings).now_or_never().is_none(), "every ping has started");
    let submitting = fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED);
    assert!(matches!(submitting.await?, Submission::Accepted(_)));
    let waits = cluster().number(&waiting(&schema));
    assert!(waits <= 1, "{waits} connections wait");
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    for ping in join_all(pings).await {
        ping?;
    }
    // The first, and the one that all others share.
    assert_eq!(cluster().number(&format!("SELECT last_value FROM {schema}.written")), 2);
    fx.store.ping().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_whose_connection_ends_before_its_commit_is_an_error_and_charges_nothing() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    let schema = schema(fx.directory.path());
    // The first submit prepares the statement on its connection.
    accepted(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?);
    // The next submit has locked the account and waits for the table of the ledger.
    let holder = holding(&format!("LOCK TABLE {schema}.ledger IN SHARE MODE")).await;
    let submitting = tokio::spawn({
        let store = fx.store.clone();
        async move { store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await }
    });
    let terminate = format!(
        "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 60000)) FROM pg_stat_activity
         WHERE application_name = '{schema}' AND wait_event_type = 'Lock'"
    );
    cluster().until(&terminate, |cut| cut > 0).await;
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    let error = submitting.await.expect("no panic").expect_err("the connection was terminated");
    assert!(matches!(error, StoreError::Other(_)), "the error says that nothing was written: {error:?}");
    assert_eq!(fx.credits(ada).await?, 8);
    assert_eq!(fx.store.list_tasks(ada, Surface::Api, None, 10).await?.len(), 1);
    assert!(matches!(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?, Submission::Accepted(_)));
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_account_delays_no_submit_of_another() -> Result<()> {
    let fx = fixture_with("");
    let schema = schema(fx.directory.path());
    let (ada, bob) = (fx.account("ada", 100).await?, fx.account("bob", 100).await?);
    let submit = |account| Box::pin(fx.store.submit(account, None, Surface::Api, images(1), UNLIMITED));
    let holder = holding(&format!("SELECT * FROM {schema}.accounts WHERE id = '{ada}' FOR UPDATE")).await;
    // Ada's submits are more than one batch holds; bob submits between them.
    let mut of_ada: Vec<_> = (0..40).map(|_| submit(ada)).collect();
    assert!(join_all(&mut of_ada).now_or_never().is_none(), "every submit has started");
    accepted(submit(bob).await?);
    let limit = StartLimit { deadline: fx.clock.elapsed(), hung_up: CancellationToken::new() };
    let mut late =
        Box::pin(fx.store.submit_before(limit.clone(), ada, None.into(), Surface::Api, images(1), UNLIMITED));
    assert!((&mut late).now_or_never().is_none());
    accepted(submit(bob).await?);
    assert!(join_all(&mut of_ada).now_or_never().is_none(), "the submits of ada still wait for the lock");
    // A submit whose caller hung up stops waiting.
    limit.hung_up.cancel();
    assert_eq!(late.await?, Submission::NotStarted);
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    for submission in join_all(of_ada).await {
        accepted(submission?);
    }
    assert_eq!((fx.credits(ada).await?, fx.credits(bob).await?), (20, 96));
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_reconnects_after_all_its_connections_were_terminated() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    for _ in 0..5 {
        fx.submit(ada).await?;
        let lease = fx.claim().await?;
        cluster().terminate_all_of(fx.directory.path());
        assert_eq!(fx.store.list_tasks(ada, Surface::Api, None, 1).await?[0].id, lease.task_id);
        fx.store.fail(lease, FailureCause::Engine, "it sank").await?;
    }
    assert_eq!(fx.credits(ada).await?, 10);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_does_not_contain_the_password() {
    for url in [
        "postgres://ada:secret@127.0.0.1:1/tintype",
        "postgres://ada:secret@/tintype",
        "postgres://ada:secret@host:x/t",
    ] {
        let opened = postgres::open(url, None, Clock::manual(NOON), Faults::default()).await;
        let error = opened.expect_err("no server listens there").to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_create_no_tables_is_told_to_own_the_database() {
    let database = Database::create("");
    let guest = format!("guest_{}", database.name());
    let config: tokio_postgres::Config = database.direct().parse().expect("a URL");
    let (session, connection) = config.connect(tokio_postgres::NoTls).await.expect("the cluster runs");
    let driving = tokio::spawn(connection);
    // As the schema `public` has been since PostgreSQL 15.
    let made = format!("CREATE ROLE {guest} LOGIN; CREATE SCHEMA shared; GRANT USAGE ON SCHEMA shared TO {guest}");
    session.batch_execute(&made).await.expect("a role");
    let url = database.direct().replacen("tintype@", &format!("{guest}@"), 1) + "?options=-csearch_path%3D";
    for (schema, expected) in [("shared", "owner of the database"), ("absent", "search_path of this role")] {
        let opened = postgres::open(&format!("{url}{schema}"), None, Clock::manual(NOON), Faults::default()).await;
        let error = opened.expect_err("a role without rights").to_string();
        assert!(error.contains(expected), "{error}");
    }
    driving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_notifies_another_process() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    let elsewhere = fx.another_process();
    // The first wait ends when the process begins to listen, because it has missed earlier notifications.
    tokio::time::timeout(PATIENCE, elsewhere.tasks_elsewhere()).await.expect("the process listens");
    fx.submit(ada).await?;
    tokio::time::timeout(PATIENCE, elsewhere.tasks_elsewhere()).await.expect("a notification");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ending_is_announced_to_other_processes() -> Result<()> {
    let fx = fixture_with("");
    let elsewhere = fx.another_process();
    let heard =
        async |store: &Store| tokio::time::timeout(PATIENCE, store.endings_elsewhere()).await.expect("a notification");
    // A process that begins to listen has missed earlier notifications.
    for store in [&fx.store, &elsewhere] {
        assert_eq!(heard(&**store).await, EndingsElsewhere::Missed);
    }
    // More than one notification can name.
    let ids: Vec<_> = (0..700).map(|millis| Id::floor(Timestamp::from_millis(millis))).collect();
    ids.iter().for_each(|id| fx.store.announce_ending(*id));
    let mut found = Vec::new();
    while found.len() < ids.len() {
        match heard(&*elsewhere).await {
            EndingsElsewhere::Of(some) => found.extend(some),
            EndingsElsewhere::Missed => panic!("the connections did not break"),
        }
    }
    assert_eq!(found, ids);
    elsewhere.announce_ending(ids[7]);
    let found = heard(&*fx.store).await;
    assert_eq!(found, EndingsElsewhere::Of(vec![ids[7]]), "a process does not hear itself");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_reach_other_processes_in_order() -> Result<()> {
    let fx = fixture_with("");
    let elsewhere = fx.another_process();
    tokio::time::timeout(PATIENCE, elsewhere.tasks_elsewhere()).await.expect("the process listens");
    let updates = ["{\"it's\": 1}".to_owned(), format!("{{{}}}", "x".repeat(MAX_UPDATE_BYTES - 2))];
    for update in &updates {
        fx.store.send_update(update.clone());
    }
    for update in &updates {
        assert_eq!(&tokio::time::timeout(PATIENCE, elsewhere.update_elsewhere()).await.expect("an update"), update);
    }
    elsewhere.send_update("{}".into());
    let received = tokio::time::timeout(PATIENCE, fx.store.update_elsewhere()).await.expect("an update");
    assert_eq!(received, "{}", "a process does not receive its own");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_end_by_the_clock_of_the_database_server() -> Result<()> {
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

/// Sets the clock of the server back by `by_ms`, as the store in a schema reads it.
fn set_back(schema: &str, by_ms: i64) {
    cluster().execute(&format!(
        "CREATE OR REPLACE FUNCTION {schema}.tintype_now(given bigint) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
         $$ SELECT coalesce(given, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint - {by_ms}) $$"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_clock_is_set_back_continues_to_charge() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    // The process compares its clock with that of the server while the latter is 10 s behind.
    let schema = schema(fx.directory.path());
    set_back(&schema, 10_000);
    let store = fx.process_with_clock(&Clock::system());
    set_back(&schema, 0);
    accepted(store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?);
    assert_eq!(fx.credits(ada).await?, 8);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn account_lookups_read_few_index_entries_despite_an_old_snapshot() -> Result<()> {
    let mut fx = fixture_with("");
    // A page holds few rows with so long a name, and each page with dead versions of one costs an index entry.
    let ada = fx.account(&"a".repeat(1_000), 100_000).await?;
    let reader = cluster().session().await;
    let begin =
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {}.accounts", schema(fx.directory.path()));
    reader.batch_execute(&begin).await.expect("a snapshot");
    // If a charge wrote the row of the account, its dead version would stay as long as the snapshot of the reader.
    for _ in 0..300 {
        fx.submit(ada).await?;
    }
    let before = entries_read(&mut fx, "accounts").await;
    for _ in 0..100 {
        fx.submit(ada).await?;
    }
    let submitted = entries_read(&mut fx, "accounts").await;
    for _ in 0..100 {
        fx.store.grant(ada, 1, None, None).await?.expect("the account exists");
    }
    let granted = entries_read(&mut fx, "accounts").await;
    for _ in 0..100 {
        fx.store.create_key(ada, new_key("laptop")).await?.expect("the account exists");
    }
    let keyed = entries_read(&mut fx, "accounts").await;
    let each = [submitted - before, granted - submitted, keyed - granted].map(|read| read / 100);
    assert!(each.iter().all(|read| *read < 20), "index entries read by a submit, a grant and a new key: {each:?}");
    // A submit whose commit is not answered looks up its outcome, which also reads the account.
    let before = entries_read(&mut fx, "accounts").await;
    for _ in 0..5 {
        let faults = "after-commit=error".parse().expect("a plan");
        fx.store = Backend::Postgres.open_with_faults(&fx.directory, &fx.clock, faults);
        fx.submit(ada).await?;
    }
    let each = (entries_read(&mut fx, "accounts").await - before) / 5;
    assert!(each < 40, "a submit whose commit is not answered reads {each} index entries");
    reader.batch_execute("ROLLBACK").await.expect("nothing was changed");
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_deletes_the_rows_of_silent_workers() -> Result<()> {
    let fx = fixture_with("");
    let worker = |id: &str| WorkerReport {
        id: id.parse().expect("an id"),
        engine: "sketch".into(),
        max_references: 4,
        masks: false,
        slots: 1,
        mean: None,
        mean_of_image: None,
        is_available: true,
    };
    fx.store.report_worker(worker("FAAAAAAAAAAAAAAAAAAA1")).await?;
    fx.store.report_worker(worker("FAAAAAAAAAAAAAAAAAAA2")).await?;
    fx.clock.advance(WORKER_SILENCE);
    fx.store.report_worker(worker("FAAAAAAAAAAAAAAAAAAA1")).await?;
    assert_eq!(cluster().number(&format!("SELECT count(*) FROM {}.workers", schema(fx.directory.path()))), 1);
    Ok(())
}

/// Sets the balance in the entries of ada's charges; a refund adds to it.
fn set_balance_of_ada(fx: &Fixture, balance: i64) {
    cluster().execute(&format!(
        "SET search_path = {}; UPDATE ledger SET balance = {balance}
         WHERE kind = 'charge' AND account_id = (SELECT id FROM accounts WHERE name = 'ada')",
        schema(fx.directory.path())
    ));
}

/// Damages the ledger of ada so that a refund overflows.
fn damage_ada(fx: &Fixture) {
    set_balance_of_ada(fx, i64::MAX);
}

async fn state(fx: &Fixture, task: &Task) -> Result<&'static str> {
    Ok(fx.store.inspect_task(task.id).await?.expect("the task exists").task.status.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_or_locked_account_blocks_no_refund_of_another() -> Result<()> {
    let fx = fixture_with("");
    let (ada, bob) = (fx.account("ada", 10).await?, fx.account("bob", 10).await?);
    let (of_ada, of_bob) = (fx.submit(ada).await?, fx.submit(bob).await?);
    damage_ada(&fx);
    assert_eq!(fx.store.expire(fx.clock.now(), "too late").await?.len(), 1);
    assert_eq!((state(&fx, &of_ada).await?, state(&fx, &of_bob).await?), ("processing", "failed"));
    assert_eq!(fx.credits(bob).await?, 10);
    let schema = schema(fx.directory.path());
    set_balance_of_ada(&fx, 8);
    let of_bob = fx.submit(bob).await?;
    let holder = holding(&format!("SELECT * FROM {schema}.accounts WHERE name = 'ada' FOR UPDATE")).await;
    assert_eq!(fx.store.expire(fx.clock.now(), "too late").await?.len(), 1);
    assert_eq!((state(&fx, &of_ada).await?, state(&fx, &of_bob).await?), ("processing", "failed"));
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    assert_eq!(fx.store.expire(fx.clock.now(), "too late").await?.len(), 1);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_whose_tasks_are_locked_one_by_one_delays_no_refund_of_another() -> Result<()> {
    let fx = fixture_with("");
    let (ada, bob) = (fx.account("ada", 20).await?, fx.account("bob", 10).await?);
    // Together they would wait for longer than a transaction may take.
    for _ in 0..7 {
        fx.submit(ada).await?;
    }
    let of_bob = fx.submit(bob).await?;
    let schema = schema(fx.directory.path());
    let lock = format!("SELECT 1 FROM {schema}.tasks WHERE account_id = '{ada}' FOR UPDATE");
    let holder = holding(&lock).await;
    assert_eq!(fx.store.expire(fx.clock.now(), "too late").await?.len(), 1);
    assert_eq!((state(&fx, &of_bob).await?, fx.credits(bob).await?), ("failed", 10));
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    assert_eq!(fx.store.expire(fx.clock.now(), "too late").await?.len(), 7);
    assert_eq!(fx.credits(ada).await?, 20);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_have_ended_count_although_the_next_of_their_account_cannot_end() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 100).await?;
    for _ in 0..33 {
        fx.submit(ada).await?;
    }
    // The refunds of the 32 tasks that end in one transaction fit, and no more.
    set_balance_of_ada(&fx, i64::MAX - 64);
    assert_eq!(fx.store.expire(fx.clock.now(), "too late").await?.len(), 32);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_account_does_not_block_a_reclaim() -> Result<()> {
    let fx = fixture_with("");
    let (ada, bob) = (fx.account("ada", 10).await?, fx.account("bob", 10).await?);
    let (of_ada, of_bob) = (fx.submit(ada).await?, fx.submit(bob).await?);
    damage_ada(&fx);
    for turn in 1..=MAX_LOST_LEASES {
        assert_eq!(fx.store.claim(2, Duration::from_secs(60)).await?.len(), 2, "turn {turn}");
        fx.store.reclaim(Reclaim::All, "gave up").await?;
    }
    assert_eq!((state(&fx, &of_ada).await?, state(&fx, &of_bob).await?), ("processing", "failed"));
    assert_eq!(fx.credits(bob).await?, 10);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_task_without_a_row_does_not_block_the_expiry_of_others() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10_000).await?;
    let lost = fx.submit(ada).await?;
    for _ in 0..600 {
        fx.submit(ada).await?;
    }
    cluster().execute(&format!("DELETE FROM {}.tasks WHERE id = '{}'", schema(fx.directory.path()), lost.id));
    assert_eq!(fx.store.expire(fx.clock.now(), "too late").await?.len(), 600);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_on_a_broken_connection_uses_another() -> Result<()> {
    let mut fx = fixture_with("");
    let accounts = [fx.account("ada", 100).await?, fx.account("bob", 100).await?];
    for _ in 0..10 {
        // No connection has prepared the statement, so the store fails before it sends the statement itself.
        fx.store = fx.another_process();
        fx.credits(accounts[0]).await?;
        cluster().terminate_all_of(fx.directory.path());
        let submits = (0..8).map(|turn| fx.submit(accounts[turn % 2]));
        futures::future::try_join_all(submits).await?;
    }
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn remove_tasks_reaches_a_task_behind_thousands_of_accounts() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    // More accounts than one batch holds, with ids that sort before ada's.
    fx.execute(
        "INSERT INTO accounts (id, name) SELECT lpad(i::text, 21, '-'), 'account ' || i FROM generate_series(1, 2500) AS i",
    );
    fx.submit(ada).await?;
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    fx.clock.advance(Duration::from_secs(1));
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 1);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_whose_ledger_differs_leaves_nothing() -> Result<()> {
    let (source, target) = (Fixture::new(Backend::Sqlite), fixture_with(""));
    source.account("ada", 10).await?;
    let audit = source.store.audit().await?;
    let secret = target.store.cursor_secret().await?;
    let other = Audit { entries: audit.entries + 1, ..audit.clone() };
    let import = async |expected| target.store.import(&source.store, &expected, |_| (), std::future::pending()).await;
    assert_eq!(import(other).await?, Import::Differs(audit.clone()));
    assert_eq!((target.store.audit().await?.accounts, target.store.cursor_secret().await?), (0, secret));
    assert_eq!(import(audit.clone()).await?, Import::Done(audit));
    Ok(())
}
