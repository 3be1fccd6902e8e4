//! `tintype person` and `tintype key lift`, by which the operator lifts strikes.

use std::time::Duration;

use tempfile::TempDir;
use tintype_domain::key::KeySecret;
use tintype_domain::model::{Id, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::sqlite;
use tintype_store::{Action, Actor, NewKey, Origin, StartLimit, Store, StrikeRule, Via};
use tintype_system::clock::Clock;

use crate::rigs::binary::{self, Ran as _, json, run};

fn open(data: &TempDir) -> Store {
    sqlite::open(&data.path().join("tintype.db"), Clock::system()).expect("a store")
}

/// Submits a task of this origin that the policy refuses, which suspends the key or the person.
pub async fn violate(store: &Store, account: Id, origin: impl Into<Origin>, surface: Surface) {
    let (start, request) = (StartLimit::none(), GenerateRequest::new("a boat"));
    store.submit_before(start, account, origin.into(), surface, request, 0).await.expect("a store");
    refuse(store).await;
}

/// Refuses the task that is next, which suspends its key or its person.
pub async fn refuse(store: &Store) {
    let lease = store.claim(1, Duration::from_secs(60)).await.expect("a store").remove(0).lease;
    let rule = StrikeRule { limit: 1, window: Duration::from_secs(2 * 60 * 60) };
    store.refuse(lease, "It is not allowed.", Some(rule)).await.expect("a store");
}

/// Runs a command that fails, and returns what it says.
fn refused(data: &TempDir, command: &[&str]) -> String {
    let output = run(data.path(), command);
    assert!(!output.status.success(), "{command:?}: {output:?}");
    output.errors()
}

#[test]
fn a_new_name_looks_like_no_other_and_a_password_is_not_one_that_everybody_tries() {
    let data = TempDir::new().expect("a directory");
    json(data.path(), &["account", "create", "coco"]);
    let (mixed, alike) = ("c\u{43e}co", "\u{441}\u{43e}\u{441}\u{43e}");
    assert!(refused(&data, &["account", "create", mixed]).contains("letters of one script"));
    assert!(refused(&data, &["account", "create", alike]).contains("looks like the account \"coco\""));
    json(data.path(), &["person", "add", "coco", "--account", "coco"]);
    assert!(refused(&data, &["person", "add", "a\u{202e}b", "--account", "coco"]).contains("invisible"));
    assert!(refused(&data, &["person", "add", alike, "--account", "coco"]).contains("named \"coco\" already"));
    let file = data.path().join("password");
    for (password, said) in [("password1234", "too easy to guess"), ("I am Coco, or not", "must not contain the name")]
    {
        std::fs::write(&file, password).expect("a file");
        let path = file.to_str().expect("text");
        let add = ["person", "add", "grace", "--account", "coco", "--password-file", path];
        assert!(refused(&data, &add).contains(said), "{password}");
    }
    assert_eq!(json(data.path(), &["person", "list"]).as_array().map(Vec::len), Some(1), "nothing was written");
}

#[test]
fn the_owner_of_an_account_gets_a_free_name() {
    let data = TempDir::new().expect("a directory");
    let long = "\u{130}".repeat(100);
    let accounts = [("a", "a"), ("A", "a-2"), (&long, "")];
    for (account, owner) in accounts {
        json(data.path(), &["account", "create", account]);
        let said = run(data.path(), ["account", "link", account]).succeeded();
        assert!(said.contains(&format!("link for {owner}")), "{account}: {said}");
        assert_eq!(
            said.contains(&format!("{owner}, an owner of the account {account}, valid")),
            account != owner,
            "{said}"
        );
    }
    let people = json(data.path(), &["person", "list"]);
    assert!(people.as_array().is_some_and(|people| people.len() == accounts.len()), "{people}");
}

#[tokio::test]
async fn the_keys_that_a_former_owner_made_are_named() {
    let data = TempDir::new().expect("a directory");
    let path = data.path();
    let account = json(path, &["account", "create", "ada"])["id"].as_str().and_then(|id| id.parse().ok());
    let owner = json(path, &["person", "add", "bob", "--account", "ada", "--role", "owner"]);
    let bob = owner["id"].as_str().and_then(|id| id.parse().ok());
    let actor = Actor { name: "bob".into(), person_id: bob, via: Via::Studio, source: None };
    let secret = KeySecret::random();
    let made = open(&data).acting(actor).create_key(account.expect("an id"), NewKey::new(&secret)).await;
    let id = made.expect("a store").expect("the account exists").id;
    let said = format!("Keys that bob made still work: {id}. tintype key revoke ID revokes one.");
    assert!(binary::run(path, ["key", "show", id.as_str()]).text().contains("MADE BY    bob\n"));
    assert!(binary::run(path, ["person", "role", "bob", "member"]).text().contains(&said));
    assert!(!binary::run(path, ["person", "role", "bob", "owner"]).text().contains("Keys"));
    assert!(binary::run(path, ["person", "remove", "bob"]).text().contains(&said));
    assert!(binary::run(path, ["key", "show", id.as_str()]).text().contains("MADE BY    a former member\n"));

    // A key in place of its id, or of a name, ends in no log of a terminal.
    for command in [["key", "revoke"], ["account", "delete"]] {
        let said = refused(&data, &[command[0], command[1], secret.reveal()]);
        assert!(said.contains("tt_********") && said.contains(" list`") && !said.contains(secret.reveal()), "{said}");
    }
    for command in [["key", "rotate", id.as_str(), "--overlap"], ["get", id.as_str(), "--url=127.0.0.1", "--key-file"]]
    {
        let said = refused(&data, &[&command[..], &[secret.reveal()]].concat());
        assert!(!said.contains(secret.reveal()), "{said}");
    }
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
    let account = key["account_id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
    violate(&open(&data), account, origin, Surface::Web).await;
    let listed = json(path, &["person", "list"]);
    assert_eq!(listed[0]["suspension"]["reason"], "1 violation of the content policy within 2 hours", "{listed}");
    let shown = binary::run(path, ["person", "list"]).text();
    assert!(shown.contains("STATE") && shown.contains("suspended (1 violation "), "{shown}");
    let lifted = json(path, &["person", "lift", "bob"]);
    assert!(lifted["suspension"].is_null() && lifted["account"] == "ada", "{lifted}");
    assert_eq!(open(&data).struck_people(10).await.expect("a store"), []);

    // A key that was disabled by hand stays disabled.
    violate(&open(&data), account, id(&key).parse().ok(), Surface::Api).await;
    assert_eq!(json(path, &["key", "disable", &id(&key)])["state"], "disabled");
    let lifted = json(path, &["key", "lift", &id(&key)]);
    assert!(lifted["state"] == "disabled" && lifted["suspension"].is_null(), "{lifted}");
    assert_eq!(json(path, &["key", "enable", &id(&key)])["state"], "active");

    let log = open(&data).audit_entries(None, None, 100).await.expect("a store");
    let lifts = log.iter().filter(|entry| entry.audited.action == Action::Lift);
    let doors: Vec<_> = lifts.map(|entry| (entry.actor.via, entry.audited.subject.clone())).collect();
    assert_eq!(doors, [(Via::Command, Some(id(&key))), (Via::Command, Some("bob".to_owned()))]);
    let suspended = log.iter().find(|entry| entry.audited.action == Action::SuspendPerson).expect("an entry");
    let Actor { name, person_id, .. } = &suspended.actor;
    assert_eq!((name.as_str(), person_id), ("content policy", &None));
}
