//! Limits and strikes of people, for the tasks that they create in the studio.

use std::time::Duration;

use hyper::StatusCode;
use tempfile::TempDir;
use tintype_domain::person::{Person, Role};
use tintype_store::{Action, AuditEntry, QueueDepth, Via};
use tintype_system::clock::Timestamp;

use super::{Visitor, text};
use crate::rigs::service::{Caller, Service};

const POLICY: &str = "[[rule]]\nname = \"arms\"\nwords = [\"bomb\"]\n[strikes]\nlimit = 3\nwindow = \"1h\"\n";
const REASON: &str = "3 violations of the content policy within 1 hour";

/// A service with the policy, and the directory of its file.
async fn service() -> (Service, TempDir) {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("policy.toml");
    std::fs::write(&path, POLICY).expect("a file");
    (Service::start_with(&["--policy", path.to_str().expect("text")]).await, directory)
}

impl Visitor {
    /// Creates tasks that the policy refuses.
    async fn violate(&self, times: u32) {
        for _ in 0..times {
            self.create("a bomb").await;
        }
        self.service.work().await;
    }

    async fn found(&self) -> Person {
        self.service.find_person(self.person.id.as_str()).await.expect("a person")
    }
}

async fn log(service: &Service) -> Vec<AuditEntry> {
    service.shared.store.audit_entries(None, None, 100).await.expect("a store")
}

#[tokio::test]
async fn the_last_strike_suspends_the_person_alone_until_the_operator_lifts_it() {
    let (service, _policy) = service().await;
    let operator = service.visitor("admin", 0).await;
    let owner = service.visitor("ada", 100).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    let (key, _) = service.new_key(owner.account, |_| {}).await;
    owner.violate(2).await;
    bob.violate(2).await;
    assert!(bob.found().await.suspension.is_none(), "strikes of one person do not count for another");
    let done = bob.create("a boat").await;
    // A task that was accepted before the suspension is rendered.
    bob.violate(1).await;
    let suspension = bob.found().await.suspension.expect("a suspension");
    assert_eq!(suspension.reason, REASON);
    let metrics = service.shared.metrics.expose(&QueueDepth::default(), &[], Timestamp::from_millis(0), None);
    assert!(metrics.contains("tintype_people_suspended_total 1"), "{metrics}");

    let refused = bob.submit("a boat", &[]).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(text(&refused).contains("You are suspended") && text(&refused).contains("a boat"), "{}", text(&refused));
    assert_eq!(owner.credits().await, 98, "what was refused costs nothing");
    for path in ["/studio", "/studio/gallery", "/studio/uploads", &format!("/studio/tasks/{done}")] {
        bob.page(path).await;
    }
    assert!(bob.page("/studio").await.contains("Only the operator of this server can lift the suspension."));
    owner.create("a boat").await;
    let found = service.shared.store.find_key(key).await.expect("a store").expect("a key");
    assert!(found.suspension.is_none(), "a key has no part in it");

    let lift = format!("/studio/operator/people/{}/lift", bob.person.id);
    assert_eq!(owner.send(&lift, &[]).await.status, StatusCode::NOT_FOUND);
    assert_eq!(bob.send(&lift, &[]).await.status, StatusCode::NOT_FOUND);
    let remove = format!("/studio/people/{}/remove", bob.person.id);
    assert_eq!(owner.send(&remove, &[]).await.status, StatusCode::CONFLICT, "a new person would have no strikes");
    assert!(owner.page("/studio/people").await.contains("Suspended"));
    assert!(bob.found().await.suspension.is_some());

    for path in ["/studio/operator/strikes".to_owned(), format!("/studio/operator/accounts/{}", bob.account)] {
        let page = operator.page(&path).await;
        assert!(page.contains(&lift) && page.contains(REASON), "{page}");
    }
    assert_eq!(operator.send(&lift.replace("lift", "enable"), &[]).await.status, StatusCode::NOT_FOUND);
    assert_eq!(operator.send(&lift, &[]).await.status, StatusCode::SEE_OTHER);
    assert!(!operator.page("/studio/operator/strikes").await.contains(&lift));
    bob.violate(2).await;
    bob.create("a boat").await;

    let entries = log(&service).await;
    let told: Vec<_> = entries.iter().map(|entry| (entry.audited.action, entry.actor.name.as_str())).collect();
    assert_eq!(told, [(Action::Lift, "admin"), (Action::SuspendPerson, "content policy")]);
    for entry in &entries {
        assert_eq!((entry.audited.subject.as_deref(), entry.audited.account_id), (Some("bob"), Some(bob.account)));
    }
    assert_eq!([entries[0].actor.via, entries[1].actor.via], [Via::Studio, Via::Server]);
    assert_eq!(entries[1].audited.detail.as_deref(), Some(REASON));
    let page = operator.page("/studio/operator/audit").await;
    assert!(page.contains("Person suspended") && page.contains("Strikes lifted"), "{page}");
}

#[tokio::test]
async fn strikes_of_a_key_count_for_the_person_who_made_it() {
    let (service, _policy) = service().await;
    let operator = service.visitor("admin", 0).await;
    let ada = service.visitor("ada", 100).await;
    let bob = service.visitor_as("ada", "bob", Role::Owner).await;
    let make = async |maker: &Visitor| {
        let made = maker.send("/studio/keys", &[("name", "another")]).await;
        let key = maker.secret(&made).await;
        let store = &service.shared.store;
        let account = store.find_account(maker.account.as_str()).await.expect("a store").expect("an account");
        let key_id = store.list_keys(Some(maker.account)).await.expect("a store").last().expect("a key").id;
        Caller { service: service.clone(), account, key_id, key }
    };
    let violate = async |caller: &Caller| {
        caller.submit_prompt("a bomb").await;
        service.work().await;
    };
    // Each key has fewer strikes than suspend it.
    for struck in 0..3 {
        assert!(ada.found().await.suspension.is_none(), "{struck}");
        violate(&make(&ada).await).await;
    }
    assert_eq!(ada.found().await.suspension.expect("a suspension").reason, REASON);
    assert!(
        service
            .shared
            .store
            .list_keys(Some(ada.account))
            .await
            .expect("a store")
            .iter()
            .all(|key| key.suspension.is_none())
    );
    assert_eq!(ada.send("/studio/keys", &[("name", "another")]).await.status, StatusCode::FORBIDDEN);
    assert!(bob.found().await.suspension.is_none());
    // Strikes that are lifted from the key are lifted from its maker.
    let of_bob = make(&bob).await;
    violate(&of_bob).await;
    violate(&of_bob).await;
    let key = of_bob.key_id;
    assert_eq!(operator.send(&format!("/studio/operator/keys/{key}/lift"), &[]).await.status, StatusCode::SEE_OTHER);
    violate(&of_bob).await;
    violate(&of_bob).await;
    assert!(bob.found().await.suspension.is_none());
    violate(&of_bob).await;
    assert!(bob.found().await.suspension.is_some(), "with the key");
    let found = service.shared.store.find_key(key).await.expect("a store").expect("a key");
    assert!(found.suspension.is_some());
}

#[tokio::test]
async fn a_suspended_owner_gets_no_way_around_the_suspension() {
    let (service, _policy) = service().await;
    let ada = service.visitor("ada", 100).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    let (active, _) = service.new_key(ada.account, |_| {}).await;
    let (disabled, _) = service.new_key(ada.account, |_| {}).await;
    let disable = format!("/studio/keys/{disabled}/disable");
    assert_eq!(ada.send(&disable, &[]).await.status, StatusCode::SEE_OTHER);
    ada.violate(3).await;
    assert!(ada.found().await.suspension.is_some());
    let entries = log(&service).await.len();
    for (path, fields) in [
        ("/studio/people".to_owned(), vec![("name", "eve"), ("role", "owner")]),
        (format!("/studio/people/{}/link", bob.person.id), vec![]),
        (format!("/studio/people/{}/role", bob.person.id), vec![("role", "owner")]),
        ("/studio/keys".to_owned(), vec![("name", "another")]),
        (format!("/studio/keys/{active}/rotate"), vec![]),
        (format!("/studio/keys/{disabled}/enable"), vec![]),
    ] {
        let refused = ada.send(&path, &fields).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
        assert!(
            text(&refused).contains("Until the operator of this server lifts the suspension"),
            "{}",
            text(&refused)
        );
    }
    assert_eq!(log(&service).await.len(), entries, "nothing was changed");
    // To take access away stays possible.
    for path in [format!("/studio/keys/{active}/revoke"), format!("/studio/people/{}/remove", bob.person.id)] {
        assert_eq!(ada.send(&path, &[]).await.status, StatusCode::SEE_OTHER, "{path}");
    }
}

#[tokio::test]
async fn the_audit_log_tells_that_a_key_was_suspended() {
    let (service, _policy) = service().await;
    let operator = service.visitor("admin", 0).await;
    let caller = service.caller("ada", 100).await;
    caller.submit_many(3, "a bomb").await;
    service.work().await;
    let entries = log(&service).await;
    let keys = service.shared.store.list_keys(None).await.expect("a store");
    let suspended = keys.iter().find(|key| key.suspension.is_some()).expect("a suspended key");
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((entry.audited.action, entry.actor.via), (Action::SuspendKey, Via::Server));
    assert_eq!(entry.audited.subject.as_deref(), Some(suspended.id.as_str()));
    assert_eq!((entry.audited.account_id, entry.audited.detail.as_deref()), (Some(suspended.account_id), Some(REASON)));
    assert!(operator.page("/studio/operator/audit").await.contains("Key suspended"));
}

#[tokio::test]
async fn strikes_of_a_person_grow_old_and_go_with_the_person() {
    let (service, _policy) = service().await;
    let operator = service.visitor("admin", 0).await;
    let ada = service.visitor("ada", 100).await;
    ada.violate(2).await;
    service.clock.advance(Duration::from_secs(3_600));
    ada.violate(2).await;
    assert!(ada.found().await.suspension.is_none());
    assert!(operator.page("/studio/operator/strikes").await.contains("/people/"));
    // A task of a person who is gone is refused and refunded like any other.
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    bob.violate(2).await;
    bob.create("a bomb").await;
    assert_eq!(ada.send(&format!("/studio/people/{}/remove", bob.person.id), &[]).await.status, StatusCode::SEE_OTHER);
    service.work().await;
    assert_eq!(ada.credits().await, 100);
    let disposed = service.shared.store.change_account(ada.account, tintype_store::AccountChange::Delete).await;
    assert!(disposed.expect("a store").expect("an account").deleted_at.is_some());
    assert!(!operator.page("/studio/operator/strikes").await.contains("/people/"));
}

#[tokio::test]
async fn each_person_has_a_rate_limit_of_tasks() {
    let (service, ada) = Service::with_visitor(&["--submit-rate", "2"], 100).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    for _ in 0..2 {
        ada.create("a boat").await;
    }
    let refused = ada.submit("a boat", &[]).await;
    assert_eq!((refused.status, refused.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "30"));
    assert!(text(&refused).contains("too fast. Try again in") && text(&refused).contains("a boat"), "{refused:?}");
    assert_eq!(ada.credits().await, 96);
    ada.page("/studio").await;
    bob.create("a boat").await;
    let caller = service.caller("eve", 10).await;
    caller.submit_prompt("a boat").await;
    service.clock.advance(Duration::from_secs(30));
    ada.create("a boat").await;
}
