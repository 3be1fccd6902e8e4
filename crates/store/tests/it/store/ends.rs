//! The ends of tasks, and that an ended task never changes.

use std::time::Duration;

use tintype_domain::model::{EntryKind, FailureCause, Id, ReferenceProblem, Status, Surface, TaskId};
use tintype_store::{Lease, LeaseWrite, MAX_LOST_LEASES, Reclaim, Result, Retry};
use tintype_system::clock::Clock;

use super::fixture::{Fixture, LEASE, MILLISECOND, failure, images, one_file};
use tintype_rigs::database::NOON;

/// Asserts that no write of a worker, the operator or the sweeper changes an ended task.
pub async fn assert_final(fx: &Fixture, lease: Lease) -> Result<()> {
    fx.clock.advance(LEASE);
    let before = fx.state().await?;
    assert_eq!(fx.store.complete(lease, vec!["late.png".into()]).await?, LeaseWrite::Lost);
    assert_eq!(fx.store.fail(lease, FailureCause::Engine, "too late").await?, LeaseWrite::Lost);
    assert_eq!(fx.store.refuse(lease, "too late", None).await?, None);
    assert_eq!(fx.store.retry(lease, Duration::ZERO, "too late").await?, Retry::Lost);
    assert_eq!(fx.store.release(lease, Duration::ZERO).await?, LeaseWrite::Lost);
    assert_eq!(fx.store.renew(vec![lease], LEASE).await?, [lease]);
    assert_eq!(fx.store.fail_unleased(lease.task_id, FailureCause::Operator, "too late").await?, None);
    assert!(fx.store.expire(fx.clock.now(), "too late").await?.is_empty());
    for which in [Reclaim::Expired, Reclaim::All] {
        assert_eq!(fx.store.reclaim(which, "too late").await?, Default::default());
    }
    assert!(fx.store.claim(10, LEASE).await?.is_empty());
    assert_eq!(fx.state().await?, before);
    Ok(())
}

/// Number of refunds of the task.
pub async fn refunds(fx: &Fixture, id: Id) -> Result<usize> {
    let account = fx.task(id).await?.account_id;
    let entries = fx.store.history(account, None, 1_000).await?;
    let refund = |kind, task_id| kind == EntryKind::Refund && task_id == Some(TaskId(id));
    Ok(entries.iter().filter(|entry| refund(entry.kind, entry.task_id)).count())
}

/// Asserts that the task is failed with this cause and message, and was refunded once.
pub async fn assert_refunded(fx: &Fixture, id: Id, cause: FailureCause, error: &str) -> Result<()> {
    assert_eq!(fx.task(id).await?.status, failure(cause, error));
    assert_eq!(refunds(fx, id).await?, 1);
    Ok(())
}

case!(a_completed_task_keeps_its_images_and_its_charge, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let id = fx.submit_request(ada, Surface::Api, images(3)).await?.id;
    let lease = fx.claim().await?;
    fx.clock.advance(MILLISECOND);
    let names = vec!["b.png".to_owned(), "a \"quoted\".png".to_owned(), "船.png".to_owned()];
    assert_eq!(fx.store.complete(lease, names.clone()).await?, LeaseWrite::Done);
    let task = fx.task(id).await?;
    assert_eq!((task.status, task.updated_at), (Status::Completed(names), fx.clock.now()));
    assert_eq!((fx.credits(ada).await?, refunds(fx, id).await?), (4, 0));
    assert_final(fx, lease).await
});

case!(a_failed_task_keeps_its_cause_and_one_of_another_release_is_read, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let references = ReferenceProblem::ALL.map(|problem| FailureCause::Reference(3, problem));
    for cause in references.into_iter().chain([FailureCause::TooManyReferences(2), FailureCause::NoEngine]) {
        let id = fx.submit(ada).await?.id;
        fx.store.fail(fx.claim().await?, cause, "it sank").await?;
        assert_refunded(fx, id, cause, "it sank").await?;
    }
    let id = fx.submit(ada).await?.id;
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    for (text, cause) in [
        ("'reference:1'", FailureCause::Reference(1, ReferenceProblem::Unknown)),
        ("'reference:1:melted'", FailureCause::Reference(1, ReferenceProblem::Unknown)),
        ("'melted'", FailureCause::Unknown),
        ("NULL", FailureCause::Unknown),
    ] {
        fx.execute(&format!("UPDATE tasks SET cause = {text} WHERE id = '{id}'"));
        assert_refunded(fx, id, cause, "it sank").await?;
    }
    Ok(())
});

case!(a_failed_task_is_refunded_once, async |fx| {
    let ada = fx.account("ada", 10).await?;
    for n in 1..=4 {
        let id = fx.submit_request(ada, Surface::Api, images(n)).await?.id;
        assert_eq!(fx.credits(ada).await?, 10 - 2 * i64::from(n));
        let lease = fx.claim().await?;
        fx.clock.advance(MILLISECOND);
        assert_eq!(fx.store.fail(lease, FailureCause::Engine, "it sank").await?, LeaseWrite::Done);
        assert_eq!((fx.credits(ada).await?, fx.task(id).await?.updated_at), (10, fx.clock.now()));
        let refund = fx.store.history(ada, None, 1).await?.remove(0);
        assert_eq!((refund.kind, refund.amount, refund.balance), (EntryKind::Refund, 2 * i64::from(n), 10));
        assert_eq!((refund.task_id, refund.created_at), (Some(TaskId(id)), fx.clock.now()));
        assert_final(fx, lease).await?;
        assert_refunded(fx, id, FailureCause::Engine, "it sank").await?;
    }
    Ok(())
});

case!(refunded_credits_can_be_spent_again, async |fx| {
    let ada = fx.account("ada", 2).await?;
    for _ in 0..3 {
        fx.submit(ada).await?;
        assert_eq!(fx.credits(ada).await?, 0);
        fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    }
    assert_eq!(fx.credits(ada).await?, 2);
    Ok(())
});

case!(fail_unleased_fails_a_waiting_task, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let id = fx.submit(ada).await?.id;
    fx.clock.advance(MILLISECOND);
    assert_eq!(
        fx.store.fail_unleased(id, FailureCause::Operator, "the operator said so").await?,
        Some(fx.ended(id).await?)
    );
    assert_refunded(fx, id, FailureCause::Operator, "the operator said so").await?;
    assert_eq!((fx.credits(ada).await?, fx.task(id).await?.updated_at), (10, fx.clock.now()));
    assert_final(fx, Lease { task_id: id, epoch: 0 }).await
});

case!(fail_unleased_fails_a_leased_task, async |fx| {
    let lease = fx.leased().await?;
    let ended = fx.ended(lease.task_id).await?;
    assert_eq!(
        fx.store.fail_unleased(lease.task_id, FailureCause::Operator, "the operator said so").await?,
        Some(ended)
    );
    assert_refunded(fx, lease.task_id, FailureCause::Operator, "the operator said so").await?;
    assert_final(fx, lease).await
});

case!(fail_unleased_of_a_missing_task_changes_nothing, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let before = fx.state().await?;
    assert_eq!(fx.store.fail_unleased(ada, FailureCause::Operator, "it sank").await?, None);
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(a_task_that_failed_at_its_last_retry_is_final, async |fx| {
    let mut lease = fx.leased().await?;
    for _ in 1..MAX_LOST_LEASES {
        fx.store.retry(lease, Duration::ZERO, "not yet").await?;
        lease = fx.claim().await?;
    }
    assert_eq!(fx.store.retry(lease, LEASE, "that was it").await?, Retry::Failed);
    assert_refunded(fx, lease.task_id, FailureCause::Lost, "that was it").await?;
    assert_final(fx, lease).await
});

case!(an_expired_task_is_final, async |fx| {
    let lease = fx.leased().await?;
    assert_eq!(fx.store.expire(fx.clock.now(), "it took too long").await?.len(), 1);
    assert_refunded(fx, lease.task_id, FailureCause::Expired, "it took too long").await?;
    assert_final(fx, lease).await
});

case!(expire_fails_exactly_the_unfinished_tasks_up_to_the_cutoff, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let bob = fx.account("bob", 100).await?;
    let delayed = fx.submit(ada).await?;
    fx.store.retry(fx.claim().await?, 10 * LEASE, "no answer").await?;
    let leased = fx.submit_request(bob, Surface::Web, images(4)).await?;
    fx.claim().await?;
    let at_cutoff = fx.submit(ada).await?;
    let after_cutoff = fx.submit(ada).await?;
    let cutoff = at_cutoff.created_at();
    assert_eq!(after_cutoff.created_at(), cutoff.saturating_add(MILLISECOND));
    let expired = fx.store.expire(cutoff, "it took too long").await?;
    assert_eq!(expired.len(), 3);
    for task in [delayed, leased, at_cutoff] {
        assert!(expired.contains(&fx.ended(task.id).await?), "{expired:?}");
        assert_refunded(fx, task.id, FailureCause::Expired, "it took too long").await?;
    }
    assert_eq!(fx.task(after_cutoff.id).await?, after_cutoff);
    assert_eq!((fx.credits(ada).await?, fx.credits(bob).await?), (98, 100));
    Ok(())
});

case!(only_the_end_of_a_task_changes_its_updated_at, async |fx| {
    let lease = fx.leased().await?;
    let before = fx.task(lease.task_id).await?;
    fx.clock.advance(MILLISECOND);
    fx.store.renew(vec![lease], LEASE).await?;
    fx.store.release(lease, Duration::ZERO).await?;
    fx.store.retry(fx.claim().await?, Duration::ZERO, "no answer").await?;
    fx.claim().await?;
    fx.store.reclaim(Reclaim::All, "the worker died").await?;
    assert_eq!(fx.task(lease.task_id).await?, before);
    Ok(())
});

case!(updated_at_is_never_before_created_at, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let behind = Clock::manual(NOON.saturating_sub(LEASE));
    let elsewhere = fx.process_with_clock(&behind);
    let tasks = [fx.submit(ada).await?, fx.submit(ada).await?, fx.submit(ada).await?, fx.submit(ada).await?];
    elsewhere.complete(fx.claim().await?, one_file()).await?;
    elsewhere.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    elsewhere.fail_unleased(tasks[2].id, FailureCause::Operator, "it sank").await?;
    elsewhere.expire(fx.clock.now(), "it took too long").await?;
    for task in tasks {
        let ended = fx.task(task.id).await?;
        assert!(ended.status.is_terminal());
        assert_eq!(ended.updated_at, ended.created_at());
    }
    Ok(())
});

case!(completing_without_images_is_an_error_and_changes_nothing, async |fx| {
    let ada = fx.account("ada", 10).await?;
    fx.submit(ada).await?;
    let lease = fx.claim().await?;
    let before = fx.state().await?;
    assert!(fx.store.complete(lease, Vec::new()).await.is_err());
    assert_eq!(fx.state().await?, before);
    assert_eq!(fx.store.complete(lease, one_file()).await?, LeaseWrite::Done);
    Ok(())
});

case!(records_of_a_list_have_the_requests_of_its_tasks, async |fx| {
    let (ada, eve) = (fx.account("ada", 100).await?, fx.account("eve", 10).await?);
    let mut expected = Vec::new();
    for n in 1..=4 {
        expected.insert(0, (fx.submit_request(ada, Surface::Web, images(n)).await?, images(n)));
        fx.submit_request(ada, Surface::Api, images(1)).await?;
        fx.submit_request(eve, Surface::Web, images(1)).await?;
    }
    let first = fx.store.list_records(ada, Surface::Web, None, 3).await?;
    let last = first.last().map(|record| record.task.id);
    let second = fx.store.list_records(ada, Surface::Web, last, 3).await?;
    for (task, request) in &expected {
        let found = fx.store.find_record(ada, Surface::Web, task.id).await?.expect("a record");
        assert_eq!((&found.task, &found.request), (task, request));
        assert!(fx.store.find_record(ada, Surface::Api, task.id).await?.is_none());
        assert!(fx.store.find_record(eve, Surface::Web, task.id).await?.is_none());
    }
    let found = first.into_iter().chain(second);
    assert_eq!(found.map(|record| (record.task, record.request)).collect::<Vec<_>>(), expected);
    Ok(())
});
