//! Rows that another transaction has locked on a PostgreSQL server.

use std::time::Duration;

use tempfile::TempDir;
use tintype_domain::endpoint::DeliveryState;
use tintype_domain::key::KeySecret;
use tintype_domain::model::{FailureCause, Status, Surface, TaskRef};
use tintype_store::postgres;
use tintype_store::{
    AttemptEnd, AttemptFailure, AttemptProgress, AttemptWrite, EndpointChange, EndpointEffect, Lease, LeaseWrite,
    NewKey, NewUpload, Reclaim, Result, Right, StartLimit, Submission,
};

use super::endpoints::{claim, claim_one, complete, endpoint};
use super::fixture::{LEASE, UNLIMITED, images, one_file};
use super::postgres_server::{fixture_with, holding};
use tintype_rigs::database::NOON;
use tintype_rigs::postgres::{cluster, schema, waiting};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_does_not_wait_for_a_locked_account() -> Result<()> {
    let fx = fixture_with("");
    let held = fx.leased().await?;
    let holder =
        holding(&format!("SELECT * FROM {}.accounts WHERE name = 'ada' FOR UPDATE", schema(fx.directory.path()))).await;
    assert_eq!(fx.store.complete(held, one_file()).await?, LeaseWrite::Done);
    assert!(matches!(fx.task(held.task_id).await?.status, Status::Completed { .. }));
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_whose_caller_hangs_up_while_its_account_is_locked_does_not_start() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    let schema = schema(fx.directory.path());
    let holder = holding(&format!("SELECT * FROM {schema}.accounts WHERE name = 'ada' FOR UPDATE")).await;
    let start = StartLimit::none();
    let submitting = fx.store.submit_before(start.clone(), ada, None.into(), Surface::Api, images(1), UNLIMITED);
    let waiting = async {
        cluster().until(&waiting(&schema), |waits| waits == 1).await;
        start.hung_up.cancel();
        holder.batch_execute("ROLLBACK").await.expect("the session is open");
    };
    let (submission, ()) = futures::future::join(submitting, waiting).await;
    assert_eq!(submission?, Submission::NotStarted);
    assert_eq!(fx.credits(ada).await?, 10);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_ends_in_a_deadlock_is_repeated() -> Result<()> {
    let directory = TempDir::new().expect("a directory");
    let schema = schema(directory.path());
    // The server looks for a deadlock when the store has waited for so long.
    let url = cluster().url(directory.path()).replace("?options=", "?options=-cdeadlock_timeout%3D3s%20");
    let clock = Clock::manual(NOON);
    let store = postgres::open(&url, None, clock, Faults::default()).await.expect("a fresh schema");
    let Some(account) = store.create_account("ada", 5).await? else { panic!("a new name") };
    let account = account.id;
    let secret = KeySecret::random();
    store.create_key(account, NewKey::new(&secret)).await?.expect("a key");
    let by_key = store.with_right(Right::Key(secret.hash()));
    let holder = cluster().session().await;
    let hold = format!("SET deadlock_timeout = '1h'; BEGIN; SELECT 1 FROM {schema}.accounts FOR UPDATE");
    holder.batch_execute(&hold).await.expect("the lock is free");
    let beginning = by_key.begin_upload(NewUpload::of(account, Surface::Api), 1);
    let crossing = async {
        // The upload holds the key and waits for the account.
        cluster().until_waiting(&schema).await;
        let change = format!("UPDATE {schema}.api_keys SET name = 'crossed'; COMMIT");
        holder.batch_execute(&change).await.expect("the server ends the other one");
    };
    let (begun, ()) = futures::future::join(beginning, crossing).await;
    assert!(begun?.is_some());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_progress_delays_no_task() -> Result<()> {
    let fx = fixture_with("");
    let lease = fx.leased().await?;
    let progress = AttemptProgress { running: LEASE, stage: None };
    fx.store.report_progress(vec![(lease, progress)]).await?;
    let holder = holding(&format!("SELECT * FROM {}.progress FOR UPDATE", schema(fx.directory.path()))).await;
    fx.store.reclaim(Reclaim::All, "the worker died").await?;
    let again = fx.claim().await?;
    assert_eq!(fx.store.complete(again, one_file()).await?, LeaseWrite::Done);
    fx.store.reclaim(Reclaim::Expired, "the worker died").await?;
    assert_eq!(fx.count("progress"), 1, "the sweep does not wait either");
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    fx.store.reclaim(Reclaim::Expired, "the worker died").await?;
    assert_eq!(fx.count("progress"), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_does_not_wait_for_a_locked_task() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    for _ in 0..3 {
        fx.submit(ada).await?;
    }
    let leases: Vec<Lease> = fx.store.claim(3, LEASE).await?.iter().map(|claim| claim.lease).collect();
    let [ending, lost, kept] = leases[..] else { panic!("{leases:?}") };
    fx.store.release(lost, Duration::ZERO).await?;
    let holder = cluster().session().await;
    let table = format!("{}.queue", schema(fx.directory.path()));
    holder.batch_execute(&format!("BEGIN; DELETE FROM {table} WHERE task_id = '{}'", ending.task_id)).await.unwrap();
    fx.clock.advance(LEASE / 2);
    assert_eq!(fx.store.renew(leases, LEASE).await?, [lost]);
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    let until = |lease: Lease| {
        cluster().number(&format!("SELECT lease_until FROM {table} WHERE task_id = '{}'", lease.task_id))
    };
    let now = fx.clock.now();
    assert_eq!(until(ending), now.saturating_add(LEASE / 2).as_millis());
    assert_eq!(until(kept), now.saturating_add(LEASE).as_millis());
    assert_eq!(fx.store.renew(vec![ending], LEASE).await?, []);
    assert_eq!(until(ending), now.saturating_add(LEASE).as_millis());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balance_written_after_a_lock_wait_includes_the_entry_of_the_lock_holder() -> Result<()> {
    let fx = fixture_with("");
    let lease = fx.leased().await?;
    let ada = fx.store.find_account("ada").await?.expect("the account exists");
    let schema = schema(fx.directory.path());
    let holder = cluster().session().await;
    for is_grant in [true, false] {
        // Another transaction holds the lock on the account and has inserted a grant of 5 credits.
        let grant = format!(
            "BEGIN; SELECT * FROM {schema}.accounts FOR UPDATE;
             INSERT INTO {schema}.ledger (account_id, kind, amount, balance, created_at)
             VALUES ('{}', 'grant', 5, {}, 1)",
            ada.id,
            fx.credits(ada.id).await? + 5
        );
        holder.batch_execute(&grant).await.expect("the lock is free");
        let store = fx.store.clone();
        let waits = tokio::spawn(async move {
            if is_grant {
                store.grant(ada.id, 1, None, None).await.map(|_| ())
            } else {
                store.fail(lease, FailureCause::Engine, "it sank").await.map(|_| ())
            }
        });
        cluster().until_waiting(&schema).await;
        holder.batch_execute("COMMIT").await.expect("the session is open");
        waits.await.expect("no panic")?;
    }
    // Two grants of 5, one of 1, and the refund of 2.
    assert_eq!(fx.credits(ada.id).await?, ada.credits + 13);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_charged_while_the_sequence_is_behind_the_ledger() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    fx.submit(ada).await?;
    let schema = schema(fx.directory.path());
    cluster().execute(&format!("ALTER SEQUENCE {schema}.ledger_id_seq RESTART WITH 1"));
    let error = fx.store.grant(ada, 1, None, None).await.expect_err("the entry would not be the newest");
    assert!(error.to_string().contains("ledger_id_seq"), "{error}");
    assert_eq!(fx.credits(ada).await?, 8);
    cluster().execute(&format!("SELECT setval('{schema}.ledger_id_seq', (SELECT max(id) FROM {schema}.ledger))"));
    fx.submit(ada).await?;
    assert_eq!(fx.credits(ada).await?, 6);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_does_not_wait_for_a_locked_account() -> Result<()> {
    let fx = fixture_with("");
    let (ada, bob) = (fx.account("ada", 10).await?, fx.account("bob", 10).await?);
    let (of_ada, of_bob) = (fx.submit(ada).await?.id, fx.submit(bob).await?.id);
    let schema = schema(fx.directory.path());
    let holder =
        holding(&format!("SET lock_timeout = 0; SELECT * FROM {schema}.accounts WHERE id = '{ada}' FOR UPDATE")).await;
    let ended = |ended: Vec<TaskRef>| ended.iter().map(|ended| ended.id).collect::<Vec<_>>();
    assert_eq!(ended(fx.store.expire(fx.clock.now(), "too late").await?), [of_bob]);
    assert_eq!(cluster().number(&waiting(&schema)), 0);
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    assert_eq!(ended(fx.store.expire(fx.clock.now(), "too late").await?), [of_ada]);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_added_while_the_end_of_a_task_waits_is_told_of_it() -> Result<()> {
    let fx = fixture_with("");
    let schema = schema(fx.directory.path());
    let holder = cluster().session().await;
    let ada = fx.account("ada", 10).await?;
    for completes in [true, false] {
        let task = fx.submit(ada).await?.id;
        let lease = fx.claim().await?;
        let hold = format!("BEGIN; SELECT * FROM {schema}.queue FOR UPDATE");
        holder.batch_execute(&hold).await.expect("the lock is free");
        let store = fx.store.clone();
        let ends = tokio::spawn(async move {
            if completes {
                store.complete(lease, one_file()).await
            } else {
                store.fail(lease, FailureCause::Engine, "it sank").await
            }
        });
        cluster().until_waiting(&schema).await;
        let endpoint = endpoint(&fx, ada).await?;
        holder.batch_execute("COMMIT").await.expect("the session is open");
        assert_eq!(ends.await.expect("no panic")?, LeaseWrite::Done);
        let told = fx.store.list_deliveries(endpoint.id, None, 10).await?;
        assert_eq!(told.iter().map(|delivery| delivery.event_id).collect::<Vec<_>>(), [task]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_somebody_removes_does_not_stop_the_end_of_a_task() -> Result<()> {
    let fx = fixture_with("");
    let schema = schema(fx.directory.path());
    let holder = cluster().session().await;
    let held = fx.leased().await?;
    let ada = fx.store.find_account("ada").await?.expect("the account exists").id;
    endpoint(&fx, ada).await?;
    holder.batch_execute(&format!("BEGIN; DELETE FROM {schema}.endpoints")).await.expect("the row is free");
    let store = fx.store.clone();
    let ends = tokio::spawn(async move { store.complete(held, one_file()).await });
    cluster().until_waiting(&schema).await;
    holder.batch_execute("COMMIT").await.expect("the session is open");
    assert_eq!(ends.await.expect("no panic")?, LeaseWrite::Done);
    assert_eq!(fx.count("deliveries"), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_attempt_locks_its_endpoint_before_its_delivery() -> Result<()> {
    let fx = fixture_with("");
    let schema = schema(fx.directory.path());
    let holder = cluster().session().await;
    let ada = fx.account("ada", 100).await?;
    let endpoint = endpoint(&fx, ada).await?.id;
    for _ in 0..3 {
        complete(&fx, ada).await?;
    }
    let failure = AttemptFailure {
        status: Some(500),
        trouble: None,
        again_in: Some(LEASE),
        hold: LEASE,
        effect: EndpointEffect::Failing,
    };
    let claims = claim(&fx, endpoint, 3).await?;
    let failed = AttemptEnd::Failed(failure);
    assert_eq!(fx.store.end_attempt(claims[0].id, 1, failed).await?, AttemptWrite::Done);
    // The endpoint is failing now, so that a success changes it, too.
    for (claim, end) in claims[1..].iter().zip([failed, AttemptEnd::Delivered { status: 204 }]) {
        let lock = format!("BEGIN; SELECT 1 FROM {schema}.endpoints FOR NO KEY UPDATE");
        holder.batch_execute(&lock).await.expect("the lock is free");
        let (store, id) = (fx.store.clone(), claim.id);
        let ends = tokio::spawn(async move { store.end_attempt(id, 1, end).await });
        cluster().until_waiting(&schema).await;
        // As disabling it does. It would wait for a lock of the attempt, which waits for this one.
        let give_up = format!("UPDATE {schema}.deliveries SET next_attempt_at = NULL; COMMIT");
        holder.batch_execute(&give_up).await.expect("no deadlock");
        assert_eq!(ends.await.expect("no panic")?, AttemptWrite::Done);
    }
    assert_eq!(fx.store.waiting_deliveries().await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_commit_ends_after_its_endpoint_was_disabled_is_not_sent_later() -> Result<()> {
    let fx = fixture_with("");
    let holder = cluster().session().await;
    let ada = fx.account("ada", 10).await?;
    let endpoint = endpoint(&fx, ada).await?.id;
    let tell = format!(
        "BEGIN; INSERT INTO {}.deliveries (id, endpoint_id, event_id, type, data, happened_at, next_attempt_at)
         SELECT id, id, id, 'credits.low', '{{}}', 1, 1 FROM {0}.endpoints WHERE id = '{endpoint}' FOR KEY SHARE",
        schema(fx.directory.path())
    );
    holder.batch_execute(&tell).await.expect("an event");
    fx.store.change_endpoint(endpoint, EndpointChange::Disable).await?;
    holder.batch_execute("COMMIT").await.expect("the session is open");
    fx.store.change_endpoint(endpoint, EndpointChange::Enable).await?;
    let [given_up] = &fx.store.list_deliveries(endpoint, None, 10).await?[..] else { panic!("one delivery") };
    assert_eq!(given_up.state(), DeliveryState::Failed);
    assert_eq!(fx.store.due_endpoints(None, 10).await?, []);
    let replayed = fx.store.replay_delivery(given_up.id).await?;
    assert_eq!(Some(claim_one(&fx, endpoint).await?.id), replayed, "it can be sent by hand");
    Ok(())
}
