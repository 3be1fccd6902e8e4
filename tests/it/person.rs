//! `tintype person` and `tintype key lift`, by which the operator lifts strikes.

use std::time::Duration;

use tempfile::TempDir;
use tintype::clock::Clock;
use tintype::domain::model::Surface;
use tintype::domain::request::GenerateRequest;
use tintype::store::sqlite::SqliteStore;
use tintype::store::{
    Action, Actor, AuditLog as _, Keys as _, Origin, Queue as _, Reports as _, StartLimit, StrikeRule, Tasks as _, Via,
};

use crate::rigs::binary::{self, json};

fn open(data: &TempDir) -> SqliteStore {
    SqliteStore::open(&data.path().join("tintype.db"), Clock::system()).expect("a store")
}

/// Submits a task of this origin that the policy refuses, which suspends the key or the person.
async fn violate(data: &TempDir, origin: Origin, surface: Surface) {
    let store = open(data);
    let account = store.list_keys(None).await.expect("a store").remove(0).account_id;
    let request = GenerateRequest::parse(br#"{"prompt": "a boat"}"#, &[443]).expect("valid");
    let submitted = store.submit_before(StartLimit::none(), account, origin, surface, request, 0).await;
    submitted.expect("a store");
    let claims = store.claim(1, Duration::from_secs(60)).await.expect("a store");
    let rule = StrikeRule { limit: 1, window: Duration::from_secs(3_600) };
    store.refuse(claims[0].lease, "no", Some(rule)).await.expect("a store");
}

#[tokio::test]
async fn the_operator_lifts_strikes_on_the_command_line() {
    let data = TempDir::new().expect("a directory");
    let path = data.path();
    json(path, &["account", "create", "ada", "--credits", "10"]);
    let key = json(path, &["key", "create", "--account", "ada"]);
    let person = json(path, &["person", "add", "bob", "--account", "ada"]);
    assert!(person["suspension"].is_null(), "{person}");
    let id = |shown: &serde_json::Value| shown["id"].as_str().expect("an id").to_owned();
    let origin = Origin { person_id: id(&person).parse().ok(), ..Origin::default() };
    violate(&data, origin, Surface::Web).await;
    let listed = json(path, &["person", "list"]);
    assert_eq!(listed[0]["suspension"]["reason"], "1 violations of the content policy within 1h", "{listed}");
    let shown = String::from_utf8(binary::run(path, ["person", "list"]).stdout).expect("text");
    assert!(shown.contains("STATE") && shown.contains("suspended (1 violations"), "{shown}");
    assert!(json(path, &["person", "lift", "bob"])["suspension"].is_null());
    assert_eq!(open(&data).struck_people(10).await.expect("a store"), []);

    // A key that was disabled by hand stays disabled.
    violate(&data, Origin { key_id: id(&key).parse().ok(), ..Origin::default() }, Surface::Api).await;
    assert_eq!(json(path, &["key", "disable", &id(&key)])["state"], "disabled");
    let lifted = json(path, &["key", "lift", &id(&key)]);
    assert!(lifted["state"] == "disabled" && lifted["suspension"].is_null(), "{lifted}");
    assert_eq!(json(path, &["key", "enable", &id(&key)])["state"], "active");

    let log = open(&data).audit_entries(None, None, 100).await.expect("a store");
    let lifts = log.iter().filter(|entry| entry.deed.action == Action::Lift);
    let doors: Vec<_> = lifts.map(|entry| (entry.actor.via, entry.deed.subject.clone())).collect();
    assert_eq!(doors, [(Via::Command, Some(id(&key))), (Via::Command, Some("bob".to_owned()))]);
    let suspended = log.iter().find(|entry| entry.deed.action == Action::SuspendPerson).expect("an entry");
    let Actor { name, person_id, .. } = &suspended.actor;
    assert_eq!((name.as_str(), person_id), ("content policy", &None));
}
