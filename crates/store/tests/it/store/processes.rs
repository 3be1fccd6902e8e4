//! Concurrent callers, in one process and in several.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use tintype_domain::model::{FailureCause, Id, Status, Surface};
use tintype_store::{EndingsElsewhere, LeaseWrite, Result, Store, Submission};
use tintype_system::clock::Clock;

use super::fixture::{Fixture, LEASE, UNLIMITED, accepted, failure, ids, images, new_key, one_file};
use tintype_rigs::database::NOON;

/// Runs every future as a task of its own and returns their outputs in order.
async fn together<F>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let tasks: Vec<_> = futures.into_iter().map(tokio::spawn).collect();
    join_all(tasks).await.into_iter().map(|output| output.expect("no panic")).collect()
}

/// Submits a task for `n` images.
async fn submit(store: Arc<Store>, account: Id, n: u8, max_unfinished: u32) -> Result<Submission> {
    store.submit(account, None, Surface::Api, images(n), max_unfinished).await
}

/// The ids of the accepted among `submissions`.
fn accepted_ids(submissions: Vec<Result<Submission>>) -> Result<HashSet<Id>> {
    let mut found = HashSet::new();
    for submission in submissions {
        if let Submission::Accepted(task) = submission? {
            assert!(found.insert(task.id), "{task:?} was acknowledged twice");
        }
    }
    Ok(found)
}

/// The ids of an account's tasks.
async fn listed(fx: &Fixture, account: Id) -> Result<HashSet<Id>> {
    Ok(ids(&fx.store.list_tasks(account, Surface::Api, None, u32::MAX).await?).into_iter().collect())
}

case!(concurrent_submits_never_overspend, async |fx| {
    let ada = fx.account("ada", 61).await?;
    let submits = together((0..100).map(|_| submit(fx.store.clone(), ada, 1, UNLIMITED))).await;
    let tasks = accepted_ids(submits)?;
    assert_eq!(tasks.len(), 30);
    assert_eq!(listed(fx, ada).await?, tasks);
    assert_eq!(fx.credits(ada).await?, 1);
    assert_eq!(fx.store.history(ada, None, 1_000).await?.len(), 31);
    Ok(())
});

case!(concurrent_submits_charge_the_account_of_each_task, async |fx| {
    let accounts = [fx.account("ada", 1_000).await?, fx.account("bob", 1_000).await?, fx.account("cyd", 50).await?];
    let submits = (0..90).map(|turn| submit(fx.store.clone(), accounts[turn % 3], (turn % 2 + 1) as u8, UNLIMITED));
    let mut submissions = together(submits).await.into_iter();
    let mut of_accounts = [Vec::new(), Vec::new(), Vec::new()];
    for turn in 0..90 {
        of_accounts[turn % 3].push(submissions.next().expect("one result per submit"));
    }
    for (account, submissions) in accounts.into_iter().zip(of_accounts) {
        assert_eq!(listed(fx, account).await?, accepted_ids(submissions)?);
    }
    assert_eq!((fx.credits(accounts[0]).await?, fx.credits(accounts[1]).await?), (910, 910));
    assert!(fx.credits(accounts[2]).await? < 4, "the submits asked for more than all its credits");
    Ok(())
});

case!(concurrent_submits_never_exceed_the_limit_of_unfinished_tasks, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    let elsewhere = fx.another_process();
    let submits = (0..60).map(|turn| {
        let store = if turn % 2 == 0 { fx.store.clone() } else { elsewhere.clone() };
        submit(store, ada, 1, 7)
    });
    assert_eq!(accepted_ids(together(submits).await)?.len(), 7);
    assert_eq!(fx.credits(ada).await?, 986);
    Ok(())
});

case!(two_processes_submitting_at_once_never_overspend, async |fx| {
    let ada = fx.account("ada", 80).await?;
    let elsewhere = fx.another_process();
    let here = together((0..40).map(|_| submit(fx.store.clone(), ada, 1, UNLIMITED)));
    let there = together((0..40).map(|_| submit(elsewhere.clone(), ada, 1, UNLIMITED)));
    let (mut here, there) = join(here, there).await;
    here.extend(there);
    let tasks = accepted_ids(here)?;
    assert_eq!(tasks.len(), 40);
    assert_eq!(listed(fx, ada).await?, tasks);
    assert_eq!(fx.credits(ada).await?, 0);
    Ok(())
});

case!(a_grant_by_another_process_during_submits_is_not_lost, async |fx| {
    let ada = fx.account("ada", 200).await?;
    let elsewhere = fx.another_process();
    let submits = together((0..50).map(|_| submit(fx.store.clone(), ada, 1, UNLIMITED)));
    let grants = async {
        for _ in 0..5 {
            elsewhere.grant(ada, 100, None, None).await?;
        }
        Ok::<_, tintype_store::StoreError>(())
    };
    let (submissions, granted) = join(submits, grants).await;
    granted?;
    assert_eq!(accepted_ids(submissions)?.len(), 50);
    assert_eq!(fx.credits(ada).await?, 600);
    Ok(())
});

case!(a_failed_write_affects_no_other_write_of_its_batch, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let writes = (0..30).map(|turn| {
        let store = fx.store.clone();
        async move {
            if turn % 3 == 1 {
                store.grant(ada, -1, None, None).await.expect_err("no such grant");
            } else {
                accepted(submit(store, ada, 1, UNLIMITED).await.expect("no store error"));
            }
        }
    });
    together(writes).await;
    assert_eq!(fx.credits(ada).await?, 60);
    assert_eq!(listed(fx, ada).await?.len(), 20);
    Ok(())
});

case!(a_cancelled_submit_is_committed_entirely_or_not_at_all, async |fx| {
    let ada = fx.account("ada", 100).await?;
    for _ in 0..10 {
        let submit = fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED);
        drop(tokio::time::timeout(Duration::ZERO, submit).await);
    }
    // One process writes its submits in order, so this submit comes after the cancelled ones.
    fx.submit(ada).await?;
    let tasks = listed(fx, ada).await?.len();
    assert_eq!(fx.credits(ada).await?, 100 - 2 * tasks as i64);
    Ok(())
});

/// Claims until no task waits, or more than `most` tasks were claimed.
async fn claim_all(store: Arc<Store>, most: usize) -> Result<Vec<Id>> {
    let mut tasks = Vec::new();
    while tasks.len() <= most {
        let claims = store.claim(3, LEASE).await?;
        if claims.is_empty() {
            break;
        }
        tasks.extend(claims.iter().map(|claim| claim.lease.task_id));
    }
    Ok(tasks)
}

case!(concurrent_workers_never_claim_the_same_task, async |fx| {
    let mut submitted = HashSet::new();
    for name in ["ada", "bob", "cyd"] {
        let account = fx.account(name, 1_000).await?;
        let submits = together((0..30).map(|_| submit(fx.store.clone(), account, 1, UNLIMITED))).await;
        submitted.extend(accepted_ids(submits)?);
    }
    let elsewhere = fx.another_process();
    let stores = [fx.store.clone(), elsewhere.clone(), fx.store.clone(), elsewhere];
    let mut claimed = HashSet::new();
    for tasks in together(stores.map(|store| claim_all(store, submitted.len()))).await {
        for id in tasks? {
            assert!(claimed.insert(id), "{id} was claimed twice");
        }
    }
    assert_eq!(claimed, submitted);
    Ok(())
});

case!(a_task_ended_by_two_processes_at_once_ends_once, async |fx| {
    let ada = fx.account("ada", 40).await?;
    let elsewhere = fx.another_process();
    together((0..20).map(|_| submit(fx.store.clone(), ada, 1, UNLIMITED))).await;
    let leases: Vec<_> = fx.store.claim(20, LEASE).await?.into_iter().map(|claim| claim.lease).collect();
    let ends = together(leases.into_iter().map(|lease| {
        let (here, there) = (fx.store.clone(), elsewhere.clone());
        async move {
            (
                lease.task_id,
                join(
                    here.complete(lease, one_file()),
                    there.fail_unleased(lease.task_id, FailureCause::Operator, "no"),
                )
                .await,
            )
        }
    }));
    let mut failures = 0;
    for (id, (completed, failed)) in ends.await {
        let (completed, failed) = (completed? == LeaseWrite::Done, failed?.is_some());
        assert!(completed != failed, "{id} ended both ways or not at all");
        let expected = if completed { Status::Completed(one_file()) } else { failure(FailureCause::Operator, "no") };
        assert_eq!(fx.task(id).await?.status, expected);
        failures += i64::from(failed);
    }
    assert_eq!(fx.credits(ada).await?, 2 * failures);
    Ok(())
});

case!(concurrent_creations_of_one_account_name_create_one_account, async |fx| {
    let elsewhere = fx.another_process();
    let creations = (0..10).map(|turn| {
        let store = if turn % 2 == 0 { fx.store.clone() } else { elsewhere.clone() };
        async move { store.create_account("ada", 10).await }
    });
    let mut created = 0;
    for creation in together(creations).await {
        created += usize::from(creation?.is_some());
    }
    assert_eq!((created, fx.store.list_accounts().await?.len()), (1, 1));
    Ok(())
});

case!(concurrent_first_starts_create_one_first_account, async |fx| {
    let elsewhere = fx.another_process();
    let creations = (0..10).map(|turn| {
        let store = if turn % 2 == 0 { fx.store.clone() } else { elsewhere.clone() };
        async move { store.create_first_account(&format!("first{turn}"), 10, new_key("")).await }
    });
    let mut created = 0;
    for creation in together(creations).await {
        created += usize::from(creation?.is_some());
    }
    assert_eq!((created, fx.store.list_keys(None).await?.len()), (1, 1));
    Ok(())
});

case!(a_process_whose_clock_is_behind_keeps_the_order_of_its_own_tasks, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let newest = fx.submit(ada).await?.id;
    let behind = NOON.saturating_sub(LEASE);
    let elsewhere = fx.process_with_clock(&Clock::manual(behind));
    let mut expected = vec![newest];
    for _ in 0..5 {
        let task = accepted(elsewhere.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?);
        assert_eq!((task.created_at(), task.updated_at), (behind, behind));
        expected.insert(1, task.id);
    }
    assert_eq!(ids(&fx.store.list_tasks(ada, Surface::Api, None, 100).await?), expected);
    assert_eq!(fx.store.claim(100, LEASE).await?.len(), 6);
    Ok(())
});

case!(all_processes_of_one_database_share_its_cursor_secret, async |fx| {
    let secret = fx.store.cursor_secret().await?;
    assert_eq!(fx.store.cursor_secret().await?, secret);
    assert_eq!(fx.another_process().cursor_secret().await?, secret);
    assert_ne!(Fixture::new(fx.backend).store.cursor_secret().await?, secret);
    Ok(())
});

case!(a_ping_succeeds_and_changes_nothing, async |fx| {
    fx.leased().await?;
    let before = fx.state().await?;
    fx.store.ping().await?;
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(a_task_is_claimable_at_once_by_a_process_whose_clock_is_behind, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let task = fx.submit(ada).await?;
    let behind = fx.process_with_clock(&Clock::manual(NOON.saturating_sub(Duration::from_secs(1_200))));
    let claims = behind.claim(1, LEASE).await?;
    assert_eq!(claims.iter().map(|claim| claim.lease.task_id).collect::<Vec<_>>(), [task.id]);
    Ok(())
});

// The process of an operator's command ends as soon as the failure is committed.
case!(a_failure_by_a_command_reaches_callers_that_wait, async |fx| {
    let heard = async || {
        tokio::time::timeout(Duration::from_secs(60), fx.store.endings_elsewhere()).await.expect("it is heard")
    };
    // A process that begins to listen may have missed something.
    assert_eq!(heard().await, EndingsElsewhere::Missed);
    let ada = fx.account("ada", 10).await?;
    let task = fx.submit(ada).await?;
    let command = fx.another_process();
    assert!(command.fail_unleased(task.id, FailureCause::Operator, "stopped").await?.is_some());
    drop(command);
    match heard().await {
        EndingsElsewhere::Of(tasks) => assert_eq!(tasks, [task.id]),
        EndingsElsewhere::Missed => {}
    }
    Ok(())
});
