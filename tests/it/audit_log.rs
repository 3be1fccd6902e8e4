//! The audit log of a whole installation.

use std::time::Duration;

use tempfile::TempDir;
use tintype_config::ServerSettings;
use tintype_store::sqlite;
use tintype_store::{Action, Actor, Via};
use tintype_system::clock::Clock;

use crate::rigs::binary::json as run;
use crate::rigs::service::Service;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test]
async fn commands_are_recorded_with_the_name_of_the_user_of_the_system() {
    let data = TempDir::new().expect("a directory");
    run(data.path(), &["account", "create", "ada", "--credits", "3"]);
    run(data.path(), &["credits", "grant", "ada", "5", "--note", "for the poster"]);
    run(data.path(), &["account", "link", "ada"]);
    let user = std::process::Command::new("id").arg("-un").output().expect("a name").stdout;
    let user = String::from_utf8(user).expect("text");
    let store = sqlite::open(&data.path().join("tintype.db"), Clock::system()).expect("a database");
    let log = store.audit_entries(None, None, 10).await.expect("a store");
    let actions: Vec<_> = log.iter().map(|entry| entry.audited.action).collect();
    assert_eq!(actions, [Action::MakeLink, Action::AddPerson, Action::Grant, Action::CreateAccount]);
    for entry in log {
        let Actor { name, person_id, via, source } = entry.actor;
        // Somebody who logged in and became root is named, too.
        assert!(name == user.trim() || name.ends_with(&format!(" as {}", user.trim())), "{name}");
        assert_eq!((person_id, via), (None, Via::Command));
        assert!(source.is_some_and(|machine| !machine.is_empty()));
    }
}

#[tokio::test]
async fn entries_past_their_retention_are_deleted() {
    let service = Service::start_with(&["--audit-retention", "2d"]).await;
    let grace = Actor { name: "grace".into(), person_id: None, via: Via::Studio, source: None };
    let store = service.shared.store.acting(grace);
    for name in ["ada", "eve"] {
        store.create_account(name, 0).await.expect("a store");
        service.clock.advance(DAY);
    }
    service.clock.advance(Duration::from_millis(1));
    service.sweeper.delete_expired().await;
    let left = store.audit_entries(None, None, 10).await.expect("a store");
    assert_eq!(left.iter().map(|entry| entry.account.as_deref()).collect::<Vec<_>>(), [Some("eve")]);
}

#[test]
fn the_audit_log_is_kept_for_a_day_at_least() {
    for (flag, is_good) in [("365d", true), ("1d", true), ("23h", false), ("0", false), ("forever", false)] {
        let read = ServerSettings::from_flags([format!("--audit-retention={flag}").as_str()]);
        assert_eq!(read.is_ok(), is_good, "{flag}");
    }
}
