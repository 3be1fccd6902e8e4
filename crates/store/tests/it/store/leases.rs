//! Leases: a write under a lost lease is refused by its fencing token, the lease epoch.

use std::time::Duration;

use tintype_domain::model::{FailureCause, Status};
use tintype_store::{LONGEST_LEASE, Lease, LeaseWrite, MAX_LOST_LEASES, Reclaim, Reclaimed, Result, Retry};

use super::fixture::{Fixture, LEASE, MILLISECOND, failure, one_file};

const QUEUED: Reclaimed = Reclaimed { queued: 1, failed: Vec::new() };
const NONE: Reclaimed = Reclaimed { queued: 0, failed: Vec::new() };

/// Asserts that every write under `lease` is refused and changes nothing.
async fn assert_lost(fx: &Fixture, lease: Lease) -> Result<()> {
    let before = fx.state().await?;
    assert_eq!(fx.store.renew(vec![lease], 10 * LEASE).await?, [lease]);
    assert_eq!(fx.store.release(lease, Duration::ZERO).await?, LeaseWrite::Lost);
    assert_eq!(fx.store.retry(lease, Duration::ZERO, "too late").await?, Retry::Lost);
    assert_eq!(fx.store.complete(lease, vec!["late.png".into()]).await?, LeaseWrite::Lost);
    assert_eq!(fx.store.fail(lease, FailureCause::Engine, "too late").await?, LeaseWrite::Lost);
    assert_eq!(fx.store.refuse(lease, "too late", None).await?, None);
    assert_eq!(fx.state().await?, before);
    Ok(())
}

/// Claims the task of a lost lease again. Asserts that writes under the old lease are refused and neither end nor extend
/// the new one.
async fn assert_lost_to_the_next_worker(fx: &Fixture, old: Lease) -> Result<()> {
    let current = fx.claim().await?;
    assert_eq!(current.task_id, old.task_id);
    fx.clock.advance(LEASE - MILLISECOND);
    assert_lost(fx, old).await?;
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "the worker died").await?, NONE);
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "the worker died").await?, QUEUED);
    assert_lost(fx, current).await?;
    let last = fx.claim().await?;
    assert_lost(fx, old).await?;
    assert_eq!(fx.store.complete(last, one_file()).await?, LeaseWrite::Done);
    assert_lost(fx, old).await?;
    assert_eq!(fx.task(old.task_id).await?.status, Status::Completed(one_file()));
    Ok(())
}

case!(a_write_under_a_reclaimed_lease_is_refused, async |fx| {
    let lease = fx.leased().await?;
    assert_eq!(fx.store.reclaim(Reclaim::All, "the worker died").await?, QUEUED);
    assert_lost(fx, lease).await?;
    assert_lost_to_the_next_worker(fx, lease).await
});

case!(a_write_under_a_released_lease_is_refused, async |fx| {
    let lease = fx.leased().await?;
    assert_eq!(fx.store.release(lease, Duration::ZERO).await?, LeaseWrite::Done);
    assert_lost(fx, lease).await?;
    assert_lost_to_the_next_worker(fx, lease).await
});

case!(a_write_under_a_lease_given_up_for_a_retry_is_refused, async |fx| {
    let lease = fx.leased().await?;
    assert_eq!(fx.store.retry(lease, Duration::ZERO, "no answer").await?, Retry::Queued);
    assert_lost(fx, lease).await?;
    assert_lost_to_the_next_worker(fx, lease).await
});

case!(a_write_under_a_lease_that_was_never_granted_is_refused, async |fx| {
    let held = fx.leased().await?;
    let waiting = fx.submit(fx.task(held.task_id).await?.account_id).await?.id;
    for epoch in [i64::MIN, -1, 0, held.epoch + 1, i64::MAX] {
        assert_lost(fx, Lease { task_id: held.task_id, epoch }).await?;
    }
    for epoch in [0, 1, held.epoch] {
        assert_lost(fx, Lease { task_id: waiting, epoch }).await?;
    }
    assert_eq!(fx.store.complete(held, one_file()).await?, LeaseWrite::Done);
    Ok(())
});

case!(renewing_a_lease_extends_it, async |fx| {
    let lease = fx.leased().await?;
    fx.clock.advance(LEASE - MILLISECOND);
    assert_eq!(fx.store.renew(vec![lease], LEASE).await?, []);
    fx.clock.advance(LEASE - MILLISECOND);
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "the worker died").await?, NONE);
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "the worker died").await?, QUEUED);
    Ok(())
});

case!(renew_returns_exactly_the_lost_leases, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let mut leases = Vec::new();
    for _ in 0..5 {
        fx.submit(ada).await?;
        leases.push(fx.claim().await?);
    }
    fx.store.release(leases[0], Duration::ZERO).await?;
    fx.store.complete(leases[2], one_file()).await?;
    fx.store.fail(leases[4], FailureCause::Engine, "it sank").await?;
    assert_eq!(fx.store.lost(leases.clone()).await?, [leases[0], leases[2], leases[4]]);
    let other = Lease { epoch: leases[1].epoch + 1, ..leases[1] };
    assert_eq!(fx.store.lost(vec![other, leases[3]]).await?, [other]);
    assert_eq!(fx.store.renew(leases.clone(), LEASE).await?, [leases[0], leases[2], leases[4]]);
    assert_eq!(fx.store.renew(vec![leases[1], leases[3]], LEASE).await?, []);
    assert_eq!(fx.store.renew(Vec::new(), LEASE).await?, []);
    Ok(())
});

case!(an_expired_lease_is_held_until_a_reclaim_takes_it, async |fx| {
    let lease = fx.leased().await?;
    fx.clock.advance(2 * LEASE);
    assert_eq!(fx.store.renew(vec![lease], LEASE).await?, []);
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "the worker died").await?, NONE);
    fx.clock.advance(2 * LEASE);
    assert_eq!(fx.store.complete(lease, one_file()).await?, LeaseWrite::Done);
    Ok(())
});

case!(a_release_does_not_count_as_a_lost_lease, async |fx| {
    let mut lease = fx.leased().await?;
    let paid = fx.state().await?;
    for _ in 0..2 * MAX_LOST_LEASES {
        assert_eq!(fx.store.release(lease, Duration::ZERO).await?, LeaseWrite::Done);
        assert_eq!(fx.lost_leases(lease.task_id).await?, Some(0));
        lease = fx.claim().await?;
    }
    assert_eq!(fx.state().await?, paid);
    Ok(())
});

/// Asserts that the task is failed with `error` and its account has all its credits back.
async fn assert_failed(fx: &Fixture, lease: Lease, error: &str) -> Result<()> {
    let task = fx.task(lease.task_id).await?;
    assert_eq!(task.status, failure(FailureCause::Lost, error));
    assert_eq!(fx.lost_leases(lease.task_id).await?, None);
    assert_eq!(fx.credits(task.account_id).await?, 10);
    assert_eq!(fx.store.history(task.account_id, None, 100).await?.len(), 3);
    Ok(())
}

case!(the_last_retry_fails_and_refunds_the_task_with_its_error, async |fx| {
    let mut lease = fx.leased().await?;
    for lost in 1..MAX_LOST_LEASES {
        assert_eq!(fx.store.retry(lease, Duration::ZERO, "not yet").await?, Retry::Queued);
        assert_eq!(fx.lost_leases(lease.task_id).await?, Some(lost));
        lease = fx.claim().await?;
    }
    assert_eq!(fx.store.retry(lease, Duration::ZERO, "that was it").await?, Retry::Failed);
    assert_failed(fx, lease, "that was it").await
});

case!(the_last_reclaim_fails_and_refunds_the_task_with_its_error, async |fx| {
    let mut lease = fx.leased().await?;
    for lost in 1..MAX_LOST_LEASES {
        assert_eq!(fx.store.reclaim(Reclaim::All, "not yet").await?, QUEUED);
        assert_eq!(fx.lost_leases(lease.task_id).await?, Some(lost));
        lease = fx.claim().await?;
    }
    fx.clock.advance(LEASE);
    let failed = vec![fx.ended(lease.task_id).await?];
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "that was it").await?, Reclaimed { queued: 0, failed });
    assert_failed(fx, lease, "that was it").await
});

case!(retries_and_reclaims_count_toward_one_limit_of_lost_leases, async |fx| {
    let mut lease = fx.leased().await?;
    for lost in 1..MAX_LOST_LEASES {
        fx.store.release(lease, Duration::ZERO).await?;
        lease = fx.claim().await?;
        if lost % 2 == 0 {
            assert_eq!(fx.store.reclaim(Reclaim::All, "not yet").await?, QUEUED);
        } else {
            assert_eq!(fx.store.retry(lease, Duration::ZERO, "not yet").await?, Retry::Queued);
        }
        lease = fx.claim().await?;
    }
    assert_eq!(fx.store.retry(lease, Duration::ZERO, "that was it").await?, Retry::Failed);
    assert_failed(fx, lease, "that was it").await
});

case!(a_reclaim_takes_exactly_the_expired_leases, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let mut leases = Vec::new();
    for seconds in [10, 20, 30] {
        fx.submit(ada).await?;
        let until = Duration::from_secs(seconds);
        leases.push(fx.store.claim(1, until).await?[0].lease);
    }
    fx.submit(ada).await?;
    // Each submit moved the clock by a millisecond, so the second lease ends 2 ms before 20 s from now.
    fx.clock.advance(Duration::from_secs(20) - 3 * MILLISECOND);
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "the worker died").await?, QUEUED);
    assert_eq!(fx.store.renew(vec![leases[0]], LEASE).await?, [leases[0]]);
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "the worker died").await?, QUEUED);
    assert_eq!(fx.store.renew(leases.clone(), LEASE).await?, [leases[0], leases[1]]);
    assert_eq!(fx.store.queue_depth().await?.waiting, 3);
    Ok(())
});

case!(a_reclaim_of_all_takes_every_lease_and_leaves_waiting_tasks, async |fx| {
    let ada = fx.account("ada", 100).await?;
    for _ in 0..4 {
        fx.submit(ada).await?;
    }
    let worn = fx.claim().await?;
    for _ in 1..MAX_LOST_LEASES {
        fx.store.reclaim(Reclaim::All, "not yet").await?;
        fx.store.claim(1, LEASE).await?;
    }
    fx.store.claim(2, 100 * LEASE).await?;
    let failed = vec![fx.ended(worn.task_id).await?];
    assert_eq!(fx.store.reclaim(Reclaim::All, "that was it").await?, Reclaimed { queued: 2, failed });
    assert_eq!(fx.task(worn.task_id).await?.status, failure(FailureCause::Lost, "that was it"));
    assert_eq!(fx.store.queue_depth().await?.waiting, 3);
    assert_eq!(fx.store.reclaim(Reclaim::All, "that was it").await?, NONE);
    let lost: Vec<_> = fx.store.claim(10, LEASE).await?.into_iter().map(|claim| claim.lease.task_id).collect();
    assert_eq!([fx.lost_leases(lost[0]).await?, fx.lost_leases(lost[2]).await?], [Some(1), Some(0)]);
    Ok(())
});

case!(a_reclaim_takes_a_lease_that_ends_later_than_the_longest_lease, async |fx| {
    fx.leased().await?;
    // Sets the clock back, so that the lease ends later than a lease claimed now could.
    fx.clock.set(fx.clock.now().saturating_sub(LONGEST_LEASE - LEASE));
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "the worker died").await?, NONE);
    fx.clock.set(fx.clock.now().saturating_sub(MILLISECOND));
    assert_eq!(fx.store.reclaim(Reclaim::Expired, "the worker died").await?, QUEUED);
    Ok(())
});
