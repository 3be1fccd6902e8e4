//! Endpoints, and the events that they are told of.

use std::collections::BTreeMap;
use std::time::Duration;

use tintype_domain::endpoint::{AddedBy, DeliveryState, DisabledFor, Endpoint, EndpointState, SigningSecret};
use tintype_domain::event::{EventType, Subscription};
use tintype_domain::model::{FailureCause, Id, Surface, TaskId};
use tintype_store::{
    AccountChange, Action, Actor, Addition, AttemptEnd, AttemptWrite, DeliveryClaim, EndpointChange, NewEndpoint,
    Reclaim, Refused, Result, StrikeRule, Via,
};

use super::fixture::{DAY, Fixture, MILLISECOND, MINUTE, UNLIMITED, accepted, images, new_key, one_file};

pub fn new_endpoint(url: &str) -> NewEndpoint {
    NewEndpoint {
        url: url.parse().expect("a URL"),
        events: Subscription::to_all(),
        added_by: AddedBy::Owner,
        secret: SigningSecret::random(),
    }
}

pub async fn add(fx: &Fixture, account: Id, new: NewEndpoint) -> Result<Endpoint> {
    match fx.store.add_endpoint(account, new, 20).await? {
        Addition::Created(endpoint) => Ok(endpoint),
        refused => panic!("{refused:?}"),
    }
}

pub async fn endpoint(fx: &Fixture, account: Id) -> Result<Endpoint> {
    add(fx, account, new_endpoint("https://example.com/hooks")).await
}

pub async fn found(fx: &Fixture, id: Id) -> Result<Endpoint> {
    Ok(fx.store.find_endpoint(id).await?.expect("the endpoint exists"))
}

/// Claims up to so many deliveries to an endpoint.
pub async fn claim(fx: &Fixture, endpoint: Id, most: u32) -> Result<Vec<DeliveryClaim>> {
    fx.store.claim_deliveries(&[(endpoint, most)], MINUTE).await
}

pub async fn claim_one(fx: &Fixture, endpoint: Id) -> Result<DeliveryClaim> {
    let mut claims = claim(fx, endpoint, 1).await?;
    Ok(claims.pop().expect("a delivery is due"))
}

pub async fn deliver(fx: &Fixture, claim: &DeliveryClaim) -> Result<AttemptWrite> {
    fx.store.end_attempt(claim.id, claim.attempt, AttemptEnd::Delivered { status: 204 }).await
}

/// Completes one more task of an account.
pub async fn complete(fx: &Fixture, account: Id) -> Result<Id> {
    let id = fx.submit(account).await?.id;
    fx.store.complete(fx.claim().await?, one_file()).await?;
    Ok(id)
}

/// The events that wait for an endpoint: their types and ids.
pub async fn told(fx: &Fixture, endpoint: Id) -> Result<Vec<(EventType, Id)>> {
    let mut deliveries = fx.store.list_deliveries(endpoint, None, 1_000).await?;
    deliveries.reverse();
    assert!(deliveries.iter().all(|delivery| delivery.state() == DeliveryState::Waiting && delivery.attempts == 0));
    Ok(deliveries.iter().map(|delivery| (delivery.kind, delivery.event_id)).collect())
}

impl Fixture {
    /// An id that nothing has.
    pub fn clock_id(&self) -> Id {
        Id::floor(self.clock.now())
    }
}

case!(every_end_of_a_task_of_the_api_is_told_in_its_commit, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    let bob = fx.account("bob", 1_000).await?;
    let (of_ada, of_bob) = (endpoint(fx, ada).await?.id, endpoint(fx, bob).await?.id);
    // The tasks of the studio come first, so that a later ending would show an event of theirs.
    for surface in [Surface::Web, Surface::Api] {
        let mut expected = Vec::new();
        let submit = async || fx.submit_request(ada, surface, images(1)).await;
        expected.push((EventType::TaskCompleted, submit().await?.id));
        fx.store.complete(fx.claim().await?, one_file()).await?;
        expected.push((EventType::TaskFailed, submit().await?.id));
        fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
        expected.push((EventType::TaskFailed, submit().await?.id));
        fx.store.refuse(fx.claim().await?, "refused", None).await?;
        let cancelled = submit().await?.id;
        expected.push((EventType::TaskFailed, cancelled));
        fx.store.cancel(ada, surface, cancelled, None, "cancelled").await?;
        let ended = submit().await?.id;
        expected.push((EventType::TaskFailed, ended));
        fx.store.fail_unleased(ended, FailureCause::Operator, "failed").await?;
        expected.push((EventType::TaskFailed, submit().await?.id));
        for _ in 0..3 {
            fx.store.retry(fx.claim().await?, Duration::ZERO, "lost").await?;
        }
        expected.push((EventType::TaskFailed, submit().await?.id));
        for _ in 0..3 {
            fx.claim().await?;
            fx.store.reclaim(Reclaim::All, "lost").await?;
        }
        let mut request = images(1);
        request.reference_images = vec!["https://pictures.example.com/a.png".into()];
        expected.push((EventType::TaskFailed, fx.submit_request(ada, surface, request).await?.id));
        fx.store.fail_over_reference_limit(0, "too many").await?;
        for _ in 0..2 {
            expected.push((EventType::TaskFailed, submit().await?.id));
        }
        fx.store.expire(fx.clock.now(), "too late").await?;
        let mut found = told(fx, of_ada).await?;
        found.sort_by_key(|(_, id)| *id);
        assert_eq!(expected.len(), 10);
        assert_eq!(found, if surface == Surface::Api { expected } else { Vec::new() });
    }
    assert_eq!(told(fx, of_bob).await?, []);
    Ok(())
});

case!(an_event_says_how_its_task_ended_and_nothing_of_the_request, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let endpoint = endpoint(fx, ada).await?;
    let completed = complete(fx, ada).await?;
    let failed = fx.submit(ada).await?.id;
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "It \"sank\".").await?;
    let claims = claim(fx, endpoint.id, 10).await?;
    assert!(claims.iter().all(|claim| claim.endpoint == endpoint && claim.attempt == 1));
    let events: BTreeMap<Id, _> = claims.into_iter().map(|claim| (claim.event.id, claim.event)).collect();
    for (id, kind, status, error) in [
        (completed, EventType::TaskCompleted, "completed", serde_json::Value::Null),
        (failed, EventType::TaskFailed, "failed", "It \"sank\".".into()),
    ] {
        let (task, event) = (fx.task(id).await?, &events[&id]);
        assert_eq!((event.kind, event.happened_at), (kind, task.updated_at));
        let body: serde_json::Value = serde_json::from_str(&event.body()).expect("JSON");
        let expected = serde_json::json!({
            "type": kind.as_str(),
            "timestamp": task.updated_at.to_string(),
            "data": {
                "task_id": TaskId(id).to_string(),
                "status": status,
                "error": error,
                "created_at": task.created_at().to_string(),
                "updated_at": task.updated_at.to_string(),
            },
        });
        assert_eq!(body, expected);
    }
    Ok(())
});

case!(only_enabled_endpoints_that_subscribe_are_told, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let failed = Subscription::to(&[EventType::TaskFailed]).expect("a subscription");
    let one = add(fx, ada, NewEndpoint { events: failed.clone(), ..new_endpoint("https://a.example/") }).await?;
    assert_eq!((&one.events, one.state()), (&failed, EndpointState::Active));
    let other = endpoint(fx, ada).await?;
    let off = endpoint(fx, ada).await?;
    assert_eq!(fx.store.list_endpoints(Some(ada)).await?, [one.clone(), other.clone(), off.clone()]);
    let off = fx.store.change_endpoint(off.id, EndpointChange::Disable).await?.expect("an endpoint");
    assert_eq!((off.state(), off.disabled_for), (EndpointState::Disabled, Some(DisabledFor::Request)));
    let task = complete(fx, ada).await?;
    assert_eq!(told(fx, one.id).await?, []);
    assert_eq!(told(fx, other.id).await?, [(EventType::TaskCompleted, task)]);
    assert_eq!(told(fx, off.id).await?, []);
    fx.store.change_endpoint(off.id, EndpointChange::Enable).await?;
    fx.store.change_endpoint(one.id, EndpointChange::Subscribe(Subscription::to_all())).await?;
    let task = complete(fx, ada).await?;
    assert_eq!(told(fx, one.id).await?, [(EventType::TaskCompleted, task)]);
    assert_eq!(told(fx, off.id).await?, [(EventType::TaskCompleted, task)]);
    Ok(())
});

case!(a_suspended_key_is_told_once, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let only = Subscription::to(&[EventType::KeySuspended]).expect("a subscription");
    let endpoint = add(fx, ada, NewEndpoint { events: only, ..new_endpoint("https://a.example/") }).await?;
    let key = fx.store.create_key(ada, new_key("laptop")).await?.expect("a key");
    let rule = Some(StrikeRule { limit: 2, window: DAY });
    for suspended_key in [None, Some(key.id), None] {
        accepted(fx.store.submit(ada, Some(key.id), Surface::Api, images(1), UNLIMITED).await?);
        let refused = fx.store.refuse(fx.claim().await?, "refused", rule).await?;
        assert_eq!(refused, Some(Refused { suspended_key, suspended_person: None }));
    }
    let claims = claim(fx, endpoint.id, 10).await?;
    let [claim] = &claims[..] else { panic!("{claims:?}") };
    assert_eq!(claim.event.kind, EventType::KeySuspended);
    let expected = serde_json::json!({
        "key_id": key.id.to_string(),
        "name": "laptop",
        "reason": "2 violations of the content policy within 1 day",
        "suspended_at": fx.clock.now().to_string(),
    });
    assert_eq!(claim.event.data, expected);
    Ok(())
});

case!(both_secrets_sign_until_the_end_of_the_overlap, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let new = new_endpoint("https://a.example/");
    let first = new.secret.clone();
    let endpoint = add(fx, ada, new).await?.id;
    let secrets = async || {
        complete(fx, ada).await?;
        let claim = claim_one(fx, endpoint).await?;
        deliver(fx, &claim).await?;
        Result::Ok(claim.secrets)
    };
    assert_eq!(secrets().await?, std::slice::from_ref(&first));
    let second = SigningSecret::random();
    let rotate = |secret: &SigningSecret| EndpointChange::Rotate { secret: secret.clone(), overlap: DAY };
    assert!(fx.store.change_endpoint(endpoint, rotate(&second)).await?.is_some());
    let rotated = fx.clock.now();
    assert_eq!(secrets().await?, [second.clone(), first]);
    fx.clock.set(rotated.saturating_add(DAY).saturating_sub(2 * MILLISECOND));
    assert_eq!(secrets().await?.len(), 2);
    assert_eq!(secrets().await?, std::slice::from_ref(&second));
    let third = SigningSecret::random();
    fx.store.change_endpoint(endpoint, rotate(&third)).await?;
    assert_eq!(secrets().await?, [third, second]);
    assert_eq!(fx.store.change_endpoint(fx.clock_id(), EndpointChange::Disable).await?, None);
    Ok(())
});

case!(an_account_has_a_limited_number_of_endpoints_and_a_deleted_one_none, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let bob = fx.account("bob", 100).await?;
    let new = || new_endpoint("https://a.example/");
    let processes = [fx.another_process(), fx.another_process()];
    let adding = (0..6).map(|turn| {
        let store = processes[turn % 2].clone();
        async move { store.add_endpoint(ada, new(), 3).await }
    });
    let mut created = 0;
    for outcome in futures::future::join_all(adding).await {
        created += u32::from(matches!(outcome?, Addition::Created(_)));
    }
    assert_eq!(created, 3);
    assert_eq!(fx.store.add_endpoint(ada, new(), 3).await?, Addition::TooMany);
    let of_bob = endpoint(fx, bob).await?;
    let removed = fx.store.list_endpoints(Some(ada)).await?.remove(0);
    complete(fx, ada).await?;
    assert_eq!(fx.count("deliveries"), 3);
    assert_eq!(fx.store.remove_endpoint(removed.id).await?, Some(removed.clone()));
    assert_eq!(fx.store.remove_endpoint(removed.id).await?, None);
    assert_eq!((fx.count("deliveries"), fx.store.find_endpoint(removed.id).await?), (2, None));
    fx.store.change_account(ada, AccountChange::Disable).await?;
    assert_eq!(fx.count("endpoints"), 3);
    fx.store.change_account(ada, AccountChange::Delete).await?;
    assert_eq!((fx.count("deliveries"), fx.store.list_endpoints(None).await?), (0, vec![of_bob]));
    assert_eq!(fx.store.add_endpoint(ada, new(), 3).await?, Addition::NotPossible);
    assert_eq!(fx.store.add_endpoint(fx.clock_id(), new(), 3).await?, Addition::NotPossible);
    Ok(())
});

case!(changes_to_endpoints_are_recorded_without_secrets, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let actor = Actor { name: "grace".into(), person_id: None, via: Via::Command, source: None };
    let store = fx.store.acting(actor);
    let new = new_endpoint("https://a.example:8443/hooks/hunter2?token=hunter2");
    let Addition::Created(endpoint) = store.add_endpoint(ada, new, 1).await? else { panic!("room") };
    store.add_endpoint(ada, new_endpoint("https://b.example/"), 1).await?;
    let secret = SigningSecret::random();
    for change in [
        EndpointChange::Rotate { secret: secret.clone(), overlap: DAY },
        EndpointChange::Subscribe(Subscription::to(&[EventType::TaskFailed]).expect("a subscription")),
        EndpointChange::Disable,
        EndpointChange::Enable,
    ] {
        store.change_endpoint(endpoint.id, change).await?;
    }
    let test = store.test_endpoint(endpoint.id).await?.expect("an enabled endpoint");
    store.replay_delivery(test).await?;
    store.replay_delivery(fx.clock_id()).await?;
    store.remove_endpoint(endpoint.id).await?;
    store.remove_endpoint(endpoint.id).await?;
    let mut entries = fx.store.audit_entries(Some(ada), None, 20).await?;
    entries.reverse();
    let shown: Vec<_> = entries
        .iter()
        .map(|entry| (entry.audited.action, entry.audited.subject.as_deref(), entry.audited.detail.as_deref()))
        .collect();
    let (id, test) = (Some(endpoint.id.as_str()), Some(test.as_str()));
    let origin = Some("https://a.example:8443");
    let expected = [
        (Action::AddEndpoint, id, origin),
        (Action::RotateEndpoint, id, Some("24 h")),
        (Action::SubscribeEndpoint, id, Some("task.failed")),
        (Action::DisableEndpoint, id, origin),
        (Action::EnableEndpoint, id, origin),
        (Action::ReplayDelivery, test, None),
        (Action::RemoveEndpoint, id, origin),
    ];
    assert_eq!(shown, expected);
    assert!(!format!("{entries:?}").contains("hunter2"));
    Ok(())
});
