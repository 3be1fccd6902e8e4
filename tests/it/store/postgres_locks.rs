//! Accounts that somebody has locked on a database server, and tasks that are about to end.

use std::pin::pin;

use futures::FutureExt as _;
use futures::future::{join, join_all, maybe_done};
use tintype::domain::model::{Id, Status};
use tintype::store::{Claim, Lease, LeaseWrite, Result};

use super::fixture::{Fixture, LEASE, drawn};
use super::postgres_server::fixture_with;
use crate::rigs::postgres::{cluster, schema};

/// Completes a task of each of `others` while the lease of somebody is completed whose account is held. Says whether all of
/// them were answered while that one still waited.
async fn go_on_without(fx: &Fixture, held: Lease, others: &[Id]) -> Result<bool> {
    for other in others {
        fx.submit(*other).await?;
    }
    let claims = fx.store.claim(others.len(), LEASE).await?;
    assert_eq!(claims.len(), others.len());
    let complete = |claims: &[Claim]| {
        let leases: Vec<Lease> = claims.iter().map(|claim| claim.lease).collect();
        join_all(leases.into_iter().map(|lease| fx.store.complete(lease, drawn())))
    };
    // The first of them keeps the rest until all have asked, or else they come one by one: both is to work.
    let (some, rest) = claims.split_at(claims.len() / 2);
    let mut before = pin!(maybe_done(complete(some)));
    let mut waiting = pin!(maybe_done(fx.store.complete(held, drawn())));
    let mut after = pin!(maybe_done(complete(rest)));
    // All ask now, in this order.
    _ = (before.as_mut().now_or_never(), waiting.as_mut().now_or_never(), after.as_mut().now_or_never());
    join(before.as_mut(), after.as_mut()).await;
    let outcomes = [before.take_output(), after.take_output()].into_iter().flatten().flatten();
    for outcome in outcomes {
        assert_eq!(outcome?, LeaseWrite::Done);
    }
    _ = waiting.as_mut().now_or_never();
    Ok(waiting.take_output().is_none())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_somebody_holds_on_an_account_keeps_nobody_else_from_completing() -> Result<()> {
    let fx = fixture_with("");
    let held = fx.leased().await?;
    let mut others = Vec::new();
    for number in 0..8 {
        others.push(fx.account(&format!("account {number}"), 1_000).await?);
    }
    let holder = cluster().session().await;
    let hold = format!("BEGIN; SELECT * FROM {}.accounts WHERE name = 'ada' FOR UPDATE", schema(fx.directory.path()));
    holder.batch_execute(&hold).await.expect("nobody else holds it");
    // First they share a statement with it, and then they find it apart. On a slow machine it may be answered before
    // the others are, but not time after time.
    let mut went_on = 0;
    for _ in 0..8 {
        went_on += u32::from(go_on_without(&fx, held, &others).await?);
        if went_on == 2 {
            break;
        }
    }
    assert_eq!(went_on, 2, "the others were answered with it, or later");
    assert_eq!(fx.task(held.task_id).await?.status, Status::Processing);
    holder.batch_execute("ROLLBACK").await.expect("it was not cut");
    // Some who asked for this have gone, and what they asked for is done all the same: by one of them.
    fx.store.complete(held, drawn()).await?;
    assert!(matches!(fx.task(held.task_id).await?.status, Status::Completed { .. }));
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_waits_for_no_task_that_is_about_to_end() -> Result<()> {
    let fx = fixture_with("");
    let ada = fx.account("ada", 10).await?;
    for _ in 0..3 {
        fx.submit(ada).await?;
    }
    let leases: Vec<Lease> = fx.store.claim(3, LEASE).await?.iter().map(|claim| claim.lease).collect();
    let [ending, lost, kept] = leases[..] else { panic!("{leases:?}") };
    fx.store.release(lost).await?;
    let holder = cluster().session().await;
    let table = format!("{}.queue", schema(fx.directory.path()));
    holder.batch_execute(&format!("BEGIN; DELETE FROM {table} WHERE task_id = '{}'", ending.task_id)).await.unwrap();
    fx.clock.advance(LEASE / 2);
    assert_eq!(fx.store.renew(leases, LEASE).await?, [lost]);
    holder.batch_execute("ROLLBACK").await.expect("it was not cut");
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
