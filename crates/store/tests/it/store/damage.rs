//! A row that cannot be read affects only its own task.

use futures::future::join_all;
use tintype_domain::model::{FailureCause, Surface, TaskRef};
use tintype_store::{MAX_LOST_LEASES, Reclaim, Reclaimed, Result};

use super::fixture::{Fixture, LEASE, UNLIMITED, accepted, failure, images};

case!(an_unreadable_task_does_not_block_claims_of_other_tasks, async |fx| {
    let (ada, bob) = (fx.account("ada", 10).await?, fx.account("bob", 10).await?);
    let (damaged, whole) = (fx.submit(ada).await?.id, fx.submit(bob).await?.id);
    fx.execute(&format!("UPDATE tasks SET aspect_ratio = 'round' WHERE id = '{damaged}'"));
    let claims = fx.store.claim(2, LEASE).await?;
    assert_eq!(claims.iter().map(|claim| claim.lease.task_id).collect::<Vec<_>>(), [whole]);
    fx.store.fail(claims[0].lease, FailureCause::Engine, "it sank").await?;
    // A claim leases the damaged task and does not return it, so it fails after enough lost leases.
    let ended = TaskRef { id: damaged, account_id: ada, surface: Surface::Api };
    for lost in 1..=MAX_LOST_LEASES {
        assert_eq!(fx.store.queue_depth().await?.leased, 1);
        fx.clock.advance(LEASE);
        let reclaimed = match lost {
            MAX_LOST_LEASES => Reclaimed { queued: 0, failed: vec![ended] },
            _ => Reclaimed { queued: 1, failed: Vec::new() },
        };
        assert_eq!(fx.store.reclaim(Reclaim::Expired, "gave up").await?, reclaimed);
        assert!(fx.store.claim(2, LEASE).await?.is_empty());
    }
    let found = fx.store.find_task(ada, Surface::Api, damaged).await?.expect("the task exists");
    assert_eq!(found.status, failure(FailureCause::Lost, "gave up"));
    assert_eq!(fx.credits(ada).await?, 10);
    Ok(())
});

case!(a_task_that_cannot_end_delays_no_other_of_its_account, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let (damaged, whole) = (fx.submit(ada).await?.id, fx.submit(ada).await?.id);
    let take = |taken: &str| fx.execute(&format!("UPDATE queue SET taken = {taken} WHERE task_id = '{damaged}'"));
    for (taken, ended) in [("'['", whole), ("NULL", damaged)] {
        take(taken);
        let expired = fx.store.expire(fx.clock.now(), "too late").await?;
        assert_eq!(expired.iter().map(|expired| expired.id).collect::<Vec<_>>(), [ended]);
    }
    assert_eq!(fx.credits(ada).await?, 10);
    Ok(())
});

case!(an_unreadable_task_fails_no_lookup_of_another_task, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let mut ids = Vec::new();
    for _ in 0..32 {
        ids.push(accepted(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?).id);
    }
    fx.store.expire(fx.clock.now(), "it sank").await?;
    let damaged = ids[16];
    fx.execute(&format!("UPDATE tasks SET status = 'completed', error = NULL, images = '[' WHERE id = '{damaged}'"));
    // Some of so many concurrent lookups share a statement with that of the damaged task.
    let polls =
        ids.repeat(8).into_iter().map(|id| async move { (id, fx.store.find_task(ada, Surface::Api, id).await) });
    for (id, found) in join_all(polls).await {
        match found {
            Ok(found) => assert_eq!(found.expect("the task exists").id, id),
            Err(error) => assert_eq!(id, damaged, "{error}"),
        }
    }
    assert!(fx.store.find_task(ada, Surface::Api, damaged).await.is_err());
    // Repairs the row, because the fixture audits the ledger.
    fx.execute(&format!("UPDATE tasks SET status = 'failed', error = 'it sank', images = NULL WHERE id = '{damaged}'"));
    Ok(())
});
