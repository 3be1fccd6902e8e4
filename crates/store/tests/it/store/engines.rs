//! Tasks that name an engine: claims by workers with it, and the end of those whose engine nobody has.

use tintype_domain::model::{FailureCause, Id, Status, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::{ANY_REFERENCES, Origin, Reclaim, Result, StartLimit, WaitingForEngine};

use super::fixture::{Fixture, LEASE, accepted, failure, images};

/// Submits a task that names an engine, with so many references.
async fn submit_for(fx: &Fixture, account: Id, engine: &str, references: usize) -> Result<Id> {
    let reference_images = vec!["https://pictures.example/a.png".into(); references];
    let request = GenerateRequest { reference_images, ..images(1) };
    let origin = Origin { engine: Some(engine.into()), ..Origin::default() };
    let submission = fx.store.submit_before(StartLimit::none(), account, origin, Surface::Api, request, 0).await?;
    Ok(accepted(submission).id)
}

/// Claims up to `max` tasks for an engine and returns their ids.
async fn claimed_for(fx: &Fixture, max: usize, engine: &str) -> Result<Vec<Id>> {
    let claims = fx.store.claim_within(max, engine, ANY_REFERENCES, LEASE, &[]).await?;
    Ok(claims.iter().map(|claim| claim.lease.task_id).collect())
}

case!(a_claim_takes_tasks_of_its_engine_and_of_none, async |fx| {
    let (ada, bob) = (fx.account("ada", 1_000).await?, fx.account("bob", 100).await?);
    // Those that nobody takes stand before all others.
    for _ in 0..100 {
        submit_for(fx, ada, "gone", 0).await?;
    }
    let (any, pen) = (fx.submit(ada).await?.id, submit_for(fx, ada, "pen", 0).await?);
    let (brush, late) = (submit_for(fx, bob, "brush", 1).await?, fx.submit(bob).await?.id);
    let waiting = |engine: &str, tasks, references| WaitingForEngine { engine: engine.into(), tasks, references };
    let all = [waiting("brush", 1, 1), waiting("gone", 100, 0), waiting("pen", 1, 0)];
    assert_eq!(fx.store.waiting_for_engines().await?, all);
    let named = fx.store.waiting_tasks(200).await?.into_iter().skip(100).map(|waiting| waiting.engine);
    assert_eq!(named.collect::<Vec<_>>(), [None, Some("pen".into()), Some("brush".into()), None]);
    assert_eq!(claimed_for(fx, 1, "pen").await?, [any], "the oldest first");
    assert_eq!(claimed_for(fx, 10, "pen").await?, [late, pen], "bob's turn");
    assert_eq!(claimed_for(fx, 10, "pen").await?, []);
    assert_eq!(fx.store.claim(10, LEASE).await?, []);
    assert_eq!(fx.store.claim_within(10, "brush", 0, LEASE, &[]).await?, [], "it has a reference");
    assert_eq!(claimed_for(fx, 10, "brush").await?, [brush]);
    assert_eq!(fx.store.waiting_for_engines().await?, [waiting("gone", 100, 0)]);
    // A task keeps its engine through a lost lease.
    fx.clock.advance(LEASE);
    fx.store.reclaim(Reclaim::Expired, "the worker died").await?;
    assert_eq!(fx.store.claim(10, LEASE).await?.len(), 2);
    assert_eq!(claimed_for(fx, 10, "brush").await?, [brush]);
    assert_eq!(claimed_for(fx, 10, "pen").await?, [pen]);
    Ok(())
});

// With turns in common, one engine would always meet ada and the other always bob.
case!(claims_for_different_engines_take_turns_of_their_own, async |fx| {
    let accounts = [fx.account("ada", 100).await?, fx.account("bob", 100).await?];
    for account in accounts {
        for engine in ["pen", "pen", "brush", "brush"] {
            submit_for(fx, account, engine, 0).await?;
        }
    }
    let mut served = [("pen", Vec::new()), ("brush", Vec::new())];
    for _ in 0..2 {
        for (engine, served) in &mut served {
            for claim in fx.store.claim_within(1, engine, ANY_REFERENCES, LEASE, &[]).await? {
                served.push(claim.account_id);
            }
        }
    }
    assert_eq!(served.map(|(_, served)| served == accounts), [true, true]);
    Ok(())
});

case!(fail_unmatched_fails_the_waiting_tasks_whose_engine_nobody_has_and_no_other, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let leased = submit_for(fx, ada, "gone", 0).await?;
    assert_eq!(claimed_for(fx, 1, "gone").await?, [leased]);
    let (gone, pen) = (submit_for(fx, ada, "gone", 0).await?, submit_for(fx, ada, "pen", 1).await?);
    let (beyond, any) = (submit_for(fx, ada, "pen", 2).await?, fx.submit(ada).await?.id);
    let mut ended = vec![fx.ended(gone).await?, fx.ended(beyond).await?];
    let engines = [("pen".to_owned(), 1), ("a \"quoted\" name".to_owned(), 4)];
    let mut failed = fx.store.fail_without_engine(&engines, "No engine.").await?;
    ended.sort_unstable_by_key(|ended| ended.id);
    failed.sort_unstable_by_key(|ended| ended.id);
    assert_eq!(failed, ended);
    assert_eq!(fx.store.fail_without_engine(&engines, "No engine.").await?, []);
    assert_eq!(
        (fx.task(gone).await?.status, fx.credits(ada).await?),
        (failure(FailureCause::NoEngine, "No engine."), 94)
    );
    for kept in [leased, pen, any] {
        assert_eq!(fx.task(kept).await?.status, Status::Processing);
    }
    Ok(())
});
