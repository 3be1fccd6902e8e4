//! Deliveries of events to endpoints.

use std::time::Duration;

use tintype_domain::endpoint::{DeliveryState, DisabledFor, EndpointState, Trouble};
use tintype_domain::event::{EventType, Subscription};
use tintype_domain::model::Id;
use tintype_store::{
    AccountChange, Action, AttemptEnd, AttemptFailure, AttemptWrite, DeliveryClaim, EndpointChange, EndpointEffect,
    LONGEST_WAIT, NewEndpoint, Result, Store, Via,
};
use tintype_system::clock::Clock;

use super::endpoints::{add, claim, claim_one, complete, deliver, endpoint, found, new_endpoint};
use super::fixture::{DAY, Fixture, MILLISECOND, MINUTE};

fn failure(effect: EndpointEffect) -> AttemptFailure {
    AttemptFailure { status: Some(500), trouble: None, again_in: Some(MINUTE), hold: MILLISECOND, effect }
}

async fn fail(fx: &Fixture, claim: &DeliveryClaim, failure: AttemptFailure) -> Result<AttemptWrite> {
    fx.store.end_attempt(claim.id, claim.attempt, AttemptEnd::Failed(failure)).await
}

async fn due(store: &Store) -> Result<Vec<Id>> {
    Ok(store.due_endpoints(None, 100).await?.iter().map(|due| due.id).collect())
}

case!(an_attempt_belongs_to_one_process_until_its_lease_ends, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let endpoint = endpoint(fx, ada).await?.id;
    complete(fx, ada).await?;
    let other = fx.another_process();
    assert_eq!(due(&other).await?, [endpoint]);
    let first = claim_one(fx, endpoint).await?;
    assert!(due(&other).await?.is_empty() && other.claim_deliveries(&[(endpoint, 5)], MINUTE).await?.is_empty());
    fx.clock.advance(MINUTE - MILLISECOND);
    assert_eq!(due(&other).await?, []);
    fx.clock.advance(MILLISECOND);
    assert_eq!(due(&other).await?, [endpoint]);
    fx.store.change_account(ada, AccountChange::Disable).await?;
    assert!(due(&other).await?.is_empty() && other.claim_deliveries(&[(endpoint, 5)], MINUTE).await?.is_empty());
    fx.store.change_account(ada, AccountChange::Enable).await?;
    let second = other.claim_deliveries(&[(endpoint, 5)], MINUTE).await?.pop().expect("it is due again");
    assert_eq!((second.id, second.event.id, second.attempt), (first.id, first.event.id, 2));
    let before = fx.store.find_delivery(first.id).await?;
    assert_eq!(deliver(fx, &first).await?, AttemptWrite::Lost);
    assert_eq!(fail(fx, &first, failure(EndpointEffect::Gone)).await?, AttemptWrite::Lost);
    assert_eq!(fx.store.find_delivery(first.id).await?, before);
    assert_eq!(deliver(fx, &second).await?, AttemptWrite::Done);
    assert_eq!(deliver(fx, &second).await?, AttemptWrite::Lost);
    let delivery = fx.store.find_delivery(first.id).await?.expect("a delivery");
    assert_eq!((delivery.state(), delivery.attempts, delivery.status), (DeliveryState::Delivered, 2, Some(204)));
    assert_eq!(delivery.delivered_at, Some(fx.clock.now()));
    fx.clock.advance(DAY);
    assert_eq!(due(&other).await?, []);
    Ok(())
});

case!(of_several_processes_one_claims_each_delivery, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    let endpoint = endpoint(fx, ada).await?.id;
    for _ in 0..30 {
        complete(fx, ada).await?;
    }
    let processes = [fx.another_process(), fx.another_process(), fx.another_process()];
    let claims = processes.iter().map(|store| async move {
        let mut all = Vec::new();
        for _ in 0..30 {
            all.extend(store.claim_deliveries(&[(endpoint, 3)], MINUTE).await?);
        }
        Result::Ok(all)
    });
    let mut claimed = Vec::new();
    for claims in futures::future::join_all(claims).await {
        claimed.extend(claims?.iter().map(|claim| claim.id));
    }
    assert_eq!(claimed.len(), 30);
    claimed.sort();
    claimed.dedup();
    assert_eq!(claimed.len(), 30);
    Ok(())
});

case!(a_failed_attempt_is_made_again_until_it_is_given_up, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let endpoint = endpoint(fx, ada).await?.id;
    complete(fx, ada).await?;
    let first = claim_one(fx, endpoint).await?;
    let failed_at = fx.clock.now();
    let no_answer =
        AttemptFailure { status: None, trouble: Some(Trouble::Timeout), ..failure(EndpointEffect::Failing) };
    assert_eq!(fail(fx, &first, no_answer).await?, AttemptWrite::Done);
    let delivery = fx.store.find_delivery(first.id).await?.expect("a delivery");
    assert_eq!((delivery.status, delivery.trouble), (None, Some(Trouble::Timeout)));
    assert_eq!(delivery.next_attempt_at, Some(failed_at.saturating_add(MINUTE)));
    assert_eq!(found(fx, endpoint).await?.failing_since, Some(failed_at));
    fx.clock.advance(MINUTE);
    let second = claim_one(fx, endpoint).await?;
    assert_eq!((second.attempt, second.endpoint.state()), (2, EndpointState::Failing));
    assert_eq!(
        fail(fx, &second, AttemptFailure { again_in: None, ..failure(EndpointEffect::Failing) }).await?,
        AttemptWrite::Done
    );
    let delivery = fx.store.find_delivery(first.id).await?.expect("a delivery");
    assert_eq!((delivery.state(), delivery.status, delivery.trouble), (DeliveryState::Failed, Some(500), None));
    assert_eq!(found(fx, endpoint).await?.failing_since, Some(failed_at), "since the first failure");
    fx.clock.advance(DAY);
    assert_eq!(due(&fx.store).await?, []);
    complete(fx, ada).await?;
    assert!(fx.store.due_endpoints(None, 1).await?[0].is_failing);
    fx.store.change_account(ada, AccountChange::Enable).await?;
    assert_eq!(found(fx, endpoint).await?.failing_since, Some(failed_at), "it was not disabled");
    fx.store.change_account(ada, AccountChange::Disable).await?;
    fx.clock.advance(DAY);
    fx.store.change_account(ada, AccountChange::Enable).await?;
    assert_eq!(found(fx, endpoint).await?.failing_since, Some(fx.clock.now()), "its events were held until now");
    deliver(fx, &claim_one(fx, endpoint).await?).await?;
    assert_eq!(found(fx, endpoint).await?.state(), EndpointState::Active);
    Ok(())
});

case!(an_endpoint_waits_as_long_as_its_receiver_asks, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let endpoint = endpoint(fx, ada).await?.id;
    for _ in 0..3 {
        complete(fx, ada).await?;
    }
    let [first, second] = &claim(fx, endpoint, 2).await?[..] else { panic!("two are due") };
    let hold = 30 * MINUTE;
    fail(fx, first, AttemptFailure { again_in: Some(hold), hold, ..failure(EndpointEffect::Failing) }).await?;
    assert_eq!(due(&fx.store).await?, []);
    fx.clock.advance(hold - MILLISECOND);
    assert_eq!(due(&fx.store).await?, []);
    // A success of another attempt ends the wait.
    fx.clock.advance(MILLISECOND);
    assert_eq!(due(&fx.store).await?, [endpoint]);
    let again = fx.store.claim_deliveries(&[(endpoint, 3)], MINUTE).await?;
    assert_eq!(again.len(), 3, "the lease of the second attempt has ended");
    fail(fx, &again[0], AttemptFailure { hold: DAY, ..failure(EndpointEffect::Failing) }).await?;
    assert_eq!(due(&fx.store).await?, []);
    deliver(fx, &again[1]).await?;
    fx.clock.advance(MINUTE);
    assert_eq!(due(&fx.store).await?, [endpoint]);
    assert_eq!(deliver(fx, second).await?, AttemptWrite::Lost);
    Ok(())
});

case!(an_endpoint_that_is_gone_or_dead_is_disabled, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let (gone, dead) = (endpoint(fx, ada).await?.id, endpoint(fx, ada).await?.id);
    for _ in 0..2 {
        complete(fx, ada).await?;
    }
    let until_gone = claim_one(fx, gone).await?;
    let disabled = fail(fx, &until_gone, AttemptFailure { again_in: None, ..failure(EndpointEffect::Gone) }).await?;
    assert_eq!(disabled, AttemptWrite::Disabled(DisabledFor::Gone));
    assert_eq!(found(fx, gone).await?.disabled_for, Some(DisabledFor::Gone));
    let deliveries = fx.store.list_deliveries(gone, None, 10).await?;
    assert!(deliveries.len() == 2 && deliveries.iter().all(|delivery| delivery.state() == DeliveryState::Failed));

    let begun = fx.clock.now();
    let since = |at| failure(EndpointEffect::FailingSince(at));
    assert_eq!(fail(fx, &claim_one(fx, dead).await?, failure(EndpointEffect::Failing)).await?, AttemptWrite::Done);
    fx.clock.advance(MINUTE);
    let before = begun.saturating_sub(MILLISECOND);
    assert_eq!(fail(fx, &claim_one(fx, dead).await?, since(before)).await?, AttemptWrite::Done, "not for so long");
    fx.clock.advance(MINUTE);
    let last = claim_one(fx, dead).await?;
    assert_eq!(fail(fx, &last, since(begun)).await?, AttemptWrite::Disabled(DisabledFor::Failing));
    complete(fx, ada).await?;
    assert_eq!(fx.store.list_deliveries(dead, None, 10).await?.len(), 2, "nothing is written for a disabled endpoint");
    assert_eq!(fx.store.waiting_deliveries().await?, 0);
    let entries = fx.store.audit_entries(Some(ada), None, 10).await?;
    let shown: Vec<_> = entries.iter().map(|entry| (entry.audited.action, entry.actor.via)).collect();
    assert_eq!(shown, [(Action::DisableEndpoint, Via::Server); 2], "{entries:?}");
    let enabled = fx.store.change_endpoint(dead, EndpointChange::Enable).await?.expect("an endpoint");
    assert_eq!((enabled.state(), enabled.disabled_for, enabled.failing_since), (EndpointState::Active, None, None));
    Ok(())
});

case!(claims_take_the_oldest_of_each_endpoint_up_to_its_share, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    let bob = fx.account("bob", 1_000).await?;
    let (one, two, three) = (endpoint(fx, ada).await?.id, endpoint(fx, bob).await?.id, endpoint(fx, bob).await?.id);
    let mut of_ada = Vec::new();
    for _ in 0..5 {
        of_ada.push(complete(fx, ada).await?);
        complete(fx, bob).await?;
    }
    assert_eq!(due(&fx.store).await?, [one, two, three]);
    let page = fx.store.due_endpoints(Some(one), 1).await?;
    assert_eq!(
        page.iter().map(|due| (due.id, due.account_id, due.is_failing)).collect::<Vec<_>>(),
        [(two, bob, false)]
    );
    assert_eq!(fx.store.due_endpoints(Some(three), 10).await?, []);
    let claims = fx.store.claim_deliveries(&[(one, 2), (two, 1)], MINUTE).await?;
    let of = |endpoint: Id| claims.iter().filter(move |claim| claim.endpoint.id == endpoint);
    let mut events: Vec<_> = of(one).map(|claim| claim.event.id).collect();
    events.sort();
    assert_eq!((events.as_slice(), of(two).count(), claims.len()), (&of_ada[..2], 1, 3));
    assert_eq!(claim(fx, one, 10).await?.len(), 3);
    assert_eq!(due(&fx.store).await?, [two, three]);
    assert_eq!(claim(fx, fx.clock_id(), 10).await?.len(), 0, "an unknown endpoint");
    Ok(())
});

case!(a_delivery_postponed_before_the_clock_was_set_back_is_due, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let endpoint = endpoint(fx, ada).await?.id;
    complete(fx, ada).await?;
    let hold = Duration::from_secs(20 * 3_600);
    let failed = AttemptFailure { again_in: Some(hold), hold, ..failure(EndpointEffect::Failing) };
    fail(fx, &claim_one(fx, endpoint).await?, failed).await?;
    let behind = Clock::manual(fx.clock.now().saturating_sub(LONGEST_WAIT - hold));
    let process = fx.process_with_clock(&behind);
    assert_eq!(due(&process).await?, []);
    behind.set(behind.now().saturating_sub(MILLISECOND));
    assert_eq!(due(&process).await?, [endpoint]);
    assert_eq!(process.claim_deliveries(&[(endpoint, 1)], MINUTE).await?.len(), 1);
    Ok(())
});

case!(a_test_and_a_replay_go_first_and_do_not_wait_for_an_endpoint, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let only = Subscription::to(&[EventType::TaskCompleted]).expect("a subscription");
    let endpoint = add(fx, ada, NewEndpoint { events: only, ..new_endpoint("https://a.example/") }).await?.id;
    let task = complete(fx, ada).await?;
    let delivered = claim_one(fx, endpoint).await?;
    deliver(fx, &delivered).await?;
    for _ in 0..2 {
        complete(fx, ada).await?;
    }
    let held = AttemptFailure { hold: DAY, ..failure(EndpointEffect::Failing) };
    let waiting = claim_one(fx, endpoint).await?;
    fail(fx, &waiting, held).await?;
    assert_eq!(due(&fx.store).await?, []);
    let test = fx.store.test_endpoint(endpoint).await?.expect("an enabled endpoint");
    assert_eq!(due(&fx.store).await?, [endpoint]);
    let [claimed] = &claim(fx, endpoint, 10).await?[..] else { panic!("the test alone, since the endpoint waits") };
    assert_eq!((claimed.id, claimed.event.kind), (test, EventType::Test));
    assert_eq!(claimed.event.data, serde_json::json!({ "endpoint_id": endpoint.to_string() }));
    fx.store.replay_delivery(test).await?;
    fail(fx, claimed, held).await?;
    assert_eq!(due(&fx.store).await?, [endpoint], "the receiver asked for time during the attempt");
    let again = claim_one(fx, endpoint).await?;
    assert_eq!((again.id, again.attempt), (test, 2));
    deliver(fx, &again).await?;

    let replayed = fx.store.replay_delivery(delivered.id).await?.expect("an enabled endpoint");
    assert_ne!(replayed, delivered.id);
    let claim = claim_one(fx, endpoint).await?;
    assert_eq!((claim.id, claim.event.id, claim.attempt), (replayed, task, 1));
    assert_eq!(claim.event, delivered.event);
    let at_once = fx.store.replay_delivery(waiting.id).await?;
    assert_eq!(at_once, Some(waiting.id), "one that waits is sent at once");
    let claim = claim_one(fx, endpoint).await?;
    assert_eq!((claim.id, claim.attempt), (waiting.id, 2));
    fx.store.replay_delivery(waiting.id).await?;
    fail(fx, &claim, failure(EndpointEffect::Nothing)).await?;
    let again = claim_one(fx, endpoint).await?;
    assert_eq!((again.id, again.attempt), (waiting.id, 3), "the end of an attempt leaves a replay alone");

    fx.store.change_endpoint(endpoint, EndpointChange::Disable).await?;
    assert_eq!((fx.store.test_endpoint(endpoint).await?, fx.store.replay_delivery(delivered.id).await?), (None, None));
    let nothing = fx.clock_id();
    assert_eq!((fx.store.test_endpoint(nothing).await?, fx.store.replay_delivery(nothing).await?), (None, None));
    Ok(())
});

case!(what_waits_to_be_sent_at_once_is_not_added_again, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let (endpoint, other) = (endpoint(fx, ada).await?.id, endpoint(fx, ada).await?.id);
    let test = fx.store.test_endpoint(endpoint).await?;
    assert!(test.is_some());
    assert_eq!(fx.store.test_endpoint(endpoint).await?, test);
    assert_ne!(fx.store.test_endpoint(other).await?, test);
    let begun = claim_one(fx, endpoint).await?;
    let next = fx.store.test_endpoint(endpoint).await?;
    assert!(next != test && next.is_some(), "the one before is under way");
    assert_eq!(fx.store.test_endpoint(endpoint).await?, next);
    deliver(fx, &begun).await?;
    deliver(fx, &claim_one(fx, endpoint).await?).await?;

    for _ in 0..2 {
        complete(fx, ada).await?;
    }
    let [first, second] = &claim(fx, endpoint, 2).await?[..] else { panic!("two are due") };
    deliver(fx, first).await?;
    deliver(fx, second).await?;
    let before = fx.count("deliveries");
    let replayed = fx.store.replay_delivery(first.id).await?.expect("an enabled endpoint");
    let processes = [fx.another_process(), fx.another_process()];
    let replays = [first.id, replayed, first.id].into_iter().zip(processes.iter().cycle());
    let replays = replays.map(|(id, store)| async move { store.replay_delivery(id).await });
    for again in futures::future::join_all(replays).await {
        assert_eq!(again?, Some(replayed));
    }
    assert_ne!(fx.store.replay_delivery(second.id).await?, Some(replayed), "another event");
    assert_eq!(fx.count("deliveries"), before + 2);
    Ok(())
});

case!(old_deliveries_are_deleted_and_the_oldest_of_too_many_given_up, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    let (one, two) = (endpoint(fx, ada).await?.id, endpoint(fx, ada).await?.id);
    complete(fx, ada).await?;
    deliver(fx, &claim_one(fx, one).await?).await?;
    fx.clock.advance(DAY);
    let mut recent = Vec::new();
    for _ in 0..5 {
        recent.push(complete(fx, ada).await?);
    }
    deliver(fx, &claim_one(fx, two).await?).await?;
    let cutoff = fx.clock.now().saturating_sub(DAY / 2);
    assert_eq!(fx.store.trim_deliveries(cutoff, 3).await?, 2 + 2 + 2, "old ones, and two of each endpoint");
    assert_eq!(fx.store.trim_deliveries(cutoff, 3).await?, 0);
    for endpoint in [one, two] {
        let deliveries = fx.store.list_deliveries(endpoint, None, 10).await?;
        let waiting = deliveries.iter().filter(|delivery| delivery.state() == DeliveryState::Waiting);
        let mut waiting: Vec<_> = waiting.map(|delivery| delivery.event_id).collect();
        waiting.sort();
        assert_eq!((deliveries.len(), waiting.as_slice()), (5, &recent[2..]));
        let page = fx.store.list_deliveries(endpoint, Some(deliveries[1].id), 2).await?;
        assert_eq!(page, deliveries[2..4]);
    }
    assert_eq!(fx.store.waiting_deliveries().await?, 6);
    Ok(())
});
