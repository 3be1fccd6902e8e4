//! Removing old tasks: callers no longer see them, and their ledger entries stay.

use std::time::Duration;

use tintype_domain::model::{FailureCause, Id, Status, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::{Result, TaskRecord};

use super::endpoints::complete;
use super::fixture::{Fixture, LEASE, MILLISECOND, UNLIMITED, accepted, ids, images, one_file};

/// The record of a task as the operator sees it.
async fn record(fx: &Fixture, id: Id) -> Result<TaskRecord> {
    Ok(fx.store.inspect_task(id).await?.expect("the task exists"))
}

case!(remove_tasks_removes_exactly_the_tasks_that_ended_before_the_cutoff, async |fx| {
    let (ada, bob) = (fx.account("ada", 100).await?, fx.account("bob", 100).await?);
    let late = fx.submit(ada).await?.id;
    let late_lease = fx.claim().await?;
    let old = complete(fx, ada).await?;
    let of_bob = fx.submit_request(bob, Surface::Web, images(2)).await?.id;
    fx.clock.advance(MILLISECOND);
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    fx.clock.advance(MILLISECOND);
    let cutoff = fx.clock.now();
    // Created before the cutoff, but ended at it.
    fx.store.complete(late_lease, one_file()).await?;
    let young = complete(fx, bob).await?;
    assert_eq!(fx.store.remove_tasks(fx.task(old).await?.updated_at).await?, 0);
    assert_eq!(fx.store.remove_tasks(cutoff).await?, 2);
    for (id, removed) in [(old, true), (of_bob, true), (late, false), (young, false)] {
        assert_eq!(record(fx, id).await?.removed_at.is_some(), removed, "{id}");
    }
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 2);
    Ok(())
});

case!(only_the_operator_sees_a_removed_task, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let reference_images = vec!["https://example.com/boat.png".into()];
    let request = GenerateRequest { reference_images, request_id: Some("quoted".into()), ..images(1) };
    let removed = fx.submit_request(ada, Surface::Api, request).await?.id;
    fx.store.complete(fx.claim().await?, one_file()).await?;
    let before = fx.task(removed).await?;
    fx.clock.advance(MILLISECOND);
    let kept = complete(fx, ada).await?;
    fx.store.remove_tasks(fx.task(kept).await?.updated_at).await?;
    assert_eq!(fx.store.find_task(ada, Surface::Api, removed).await?, None);
    assert_eq!(ids(&fx.store.list_tasks(ada, Surface::Api, None, 10).await?), [kept]);
    assert_eq!(fx.store.list_task_ids(ada, Surface::Api, None, 10).await?, [kept]);
    assert_eq!(ids(&fx.store.recent_tasks(None, 10).await?), [kept]);
    assert_eq!(ids(&fx.store.recent_tasks(Some(ada), 10).await?), [kept]);
    let record = record(fx, removed).await?;
    assert_eq!(record.removed_at, Some(fx.clock.now()));
    assert_eq!(record.task, before, "a removal keeps the names of the files");
    assert_eq!((record.request.prompt.as_str(), record.request.reference_images.len()), ("", 0));
    assert_eq!(record.request.request_id, None);
    Ok(())
});

case!(a_removal_changes_no_balance_and_no_ledger_entry, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let completed = complete(fx, ada).await?;
    let failed = fx.submit(ada).await?.id;
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    let before = (fx.credits(ada).await?, fx.store.history(ada, None, 100).await?);
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 2);
    assert_eq!((fx.credits(ada).await?, fx.store.history(ada, None, 100).await?), before);
    let named: Vec<_> = before.1.iter().filter_map(|entry| entry.task_id.map(|task| task.0)).collect();
    assert_eq!(named, [failed, failed, completed]);
    let audit = fx.store.audit().await?;
    assert_eq!((audit.tasks, audit.entries, audit.drifts.len()), (2, 4, 0));
    Ok(())
});

case!(an_unfinished_task_is_never_removed, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let leased = fx.submit(ada).await?.id;
    let lease = fx.claim().await?;
    let waiting = fx.submit(ada).await?.id;
    fx.clock.advance(Duration::from_secs(365 * 86_400));
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 0);
    assert_eq!(ids(&fx.store.list_tasks(ada, Surface::Api, None, 10).await?), [waiting, leased]);
    fx.store.complete(lease, one_file()).await?;
    assert_eq!(fx.task(leased).await?.status, Status::Completed(one_file()));
    assert_eq!(fx.store.claim(1, LEASE).await?[0].request, images(1), "the request is unchanged");
    Ok(())
});

case!(a_removal_of_many_tasks_removes_each_once, async |fx| {
    const MANY: usize = 600;
    let ada = fx.account("ada", 2_000).await?;
    let submits = (0..MANY).map(|_| fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED));
    futures::future::try_join_all(submits).await?;
    for claim in fx.store.claim(MANY, LEASE).await? {
        fx.store.complete(claim.lease, one_file()).await?;
    }
    let all = fx.store.list_task_ids(ada, Surface::Api, None, u32::MAX).await?;
    fx.clock.advance(MILLISECOND);
    let removed_at = fx.clock.now();
    assert_eq!(fx.store.remove_tasks(removed_at).await?, MANY);
    assert_eq!(fx.store.list_task_ids(ada, Surface::Api, None, u32::MAX).await?, []);
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 0);
    for id in all {
        assert_eq!(record(fx, id).await?.removed_at, Some(removed_at));
    }
    Ok(())
});

case!(pages_of_a_list_skip_removed_tasks, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let oldest = fx.submit(ada).await?.id;
    let oldest_lease = fx.claim().await?;
    let removed = complete(fx, ada).await?;
    fx.clock.advance(MILLISECOND);
    let cutoff = fx.clock.now();
    fx.store.complete(oldest_lease, one_file()).await?;
    let newest = complete(fx, ada).await?;
    assert_eq!(fx.store.remove_tasks(cutoff).await?, 1);
    let page = async |before| fx.store.list_task_ids(ada, Surface::Api, before, 1).await;
    assert_eq!(page(None).await?, [newest]);
    assert_eq!(page(Some(newest)).await?, [oldest]);
    assert_eq!(page(Some(removed)).await?, [oldest]);
    assert_eq!(page(Some(oldest)).await?, []);
    Ok(())
});

case!(a_removed_task_cannot_end_again, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let removed = complete(fx, ada).await?;
    fx.clock.advance(MILLISECOND);
    fx.store.remove_tasks(fx.clock.now()).await?;
    let before = fx.state().await?;
    assert_eq!(fx.store.fail_unleased(removed, FailureCause::Operator, "no").await?, None);
    assert!(fx.store.expire(fx.clock.now(), "no").await?.is_empty());
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(submits_succeed_during_a_removal, async |fx| {
    let ada = fx.account("ada", 2_000).await?;
    for _ in 0..300 {
        fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?;
    }
    for claim in fx.store.claim(300, LEASE).await? {
        fx.store.fail(claim.lease, FailureCause::Engine, "it sank").await?;
    }
    fx.clock.advance(MILLISECOND);
    let submits = (0..50).map(|_| fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED));
    let (removed, submissions) =
        futures::future::join(fx.store.remove_tasks(fx.clock.now()), futures::future::try_join_all(submits)).await;
    assert_eq!(removed?, 300);
    let mut submitted: Vec<_> = submissions?.into_iter().map(|submission| accepted(submission).id).collect();
    submitted.reverse();
    assert_eq!(fx.store.list_task_ids(ada, Surface::Api, None, 100).await?, submitted);
    assert_eq!(fx.credits(ada).await?, 1_900);
    Ok(())
});
