//! The audit log: each change is recorded in its own commit, with the one who made it.

use std::sync::Arc;

use tintype_domain::key::KeySecret;
use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_domain::person::{Role, Token};
use tintype_store::{
    AccountChange, Action, Actor, AuditEntry, KeyChange, NewKey, PersonAdded, PersonChange, Result, Store, Via,
};

use super::fixture::{DAY, Fixture};

fn grace() -> Actor {
    Actor { name: "grace".into(), person_id: None, via: Via::Studio, source: Some("192.0.2.7".into()) }
}

impl Fixture {
    /// The store for an actor.
    fn acting(&self) -> Arc<Store> {
        self.store.acting(grace())
    }

    async fn log(&self) -> Result<Vec<AuditEntry>> {
        self.store.audit_entries(None, None, 1_000).await
    }

    /// The actions of the log with subject and detail, oldest first.
    async fn actions(&self) -> Result<Vec<(Action, String, String)>> {
        let entries = self.log().await?.into_iter().rev();
        Ok(entries
            .map(|AuditEntry { audited, .. }| {
                (audited.action, audited.subject.unwrap_or_default(), audited.detail.unwrap_or_default())
            })
            .collect())
    }
}

fn owned(actions: &[(Action, &str, &str)]) -> Vec<(Action, String, String)> {
    actions.iter().map(|(action, subject, detail)| (*action, (*subject).into(), (*detail).into())).collect()
}

case!(changes_to_accounts_and_credits_are_recorded_with_their_actor, async |fixture| {
    let store = fixture.acting();
    let Some(ada) = store.create_account_as("ada", 10, true).await? else { panic!("a new name") };
    store.grant(ada.id, 5, Some("for being nice"), None).await?;
    store.take(ada.id, 2, "a mistake").await?;
    for change in [AccountChange::Disable, AccountChange::Enable, AccountChange::Delete] {
        store.change_account(ada.id, change).await?;
    }
    let actions = [
        (Action::CreateAccount, "", "+10 (admin)"),
        (Action::Grant, "", "+5 for being nice"),
        (Action::Take, "", "-2 a mistake"),
        (Action::DisableAccount, "", ""),
        (Action::EnableAccount, "", ""),
        (Action::DeleteAccount, "", ""),
    ];
    assert_eq!(fixture.actions().await?, owned(&actions));
    for AuditEntry { actor, audited, account, id } in fixture.log().await? {
        assert_eq!((actor, audited.account_id, account.as_deref()), (grace(), Some(ada.id), Some("ada")));
        assert_eq!(id.timestamp(), fixture.store.now());
    }
    Ok(())
});

case!(changes_to_keys_and_people_are_recorded_without_secrets, async |fixture| {
    let (store, account) = (fixture.acting(), fixture.account("ada", 0).await?);
    let secret = KeySecret::random();
    let key = store.create_key(account, NewKey::new(&secret)).await?.expect("a key");
    for change in [KeyChange::Disable, KeyChange::Enable, KeyChange::FlagLeaked] {
        store.change_key(key.id, change).await?;
    }
    let next = KeySecret::random();
    let new = store.rotate_key(key.id, next.hash(), &next.hint(), DAY).await?.expect("a key");
    store.change_key(key.id, KeyChange::Revoke).await?;
    let PersonAdded::Done(person) = store.create_person(account, "ada", Role::Member).await? else {
        panic!("a new name")
    };
    store.change_person(person.id, PersonChange::Role(Role::Owner)).await?;
    store.change_person(person.id, PersonChange::Password("$argon2id$secret".into())).await?;
    store.create_link(person.id, Token::random().hash(), fixture.store.now().saturating_add(DAY)).await?;
    store.remove_person(person.id).await?;
    let (id, label, rotated) = (key.id.to_string(), key.name.as_str(), format!("{}, 24 h", new.id));
    let actions = [
        (Action::CreateKey, id.as_str(), label),
        (Action::DisableKey, &id, label),
        (Action::EnableKey, &id, label),
        (Action::RotateKey, &id, &rotated),
        (Action::RevokeKey, &id, label),
        (Action::AddPerson, "ada", "member"),
        (Action::ChangeRole, "ada", "owner"),
        (Action::SetPassword, "ada", ""),
        (Action::MakeLink, "ada", ""),
        (Action::RemovePerson, "ada", ""),
    ];
    assert_eq!(fixture.actions().await?, owned(&actions));
    let log = format!("{:?}", fixture.log().await?);
    assert!(!log.contains("argon2") && !log.contains(secret.reveal()), "{log}");
    Ok(())
});

case!(changes_to_the_queue_and_to_tasks_are_recorded, async |fixture| {
    let (store, account) = (fixture.acting(), fixture.account("ada", 10).await?);
    store.pause_queue().await?;
    store.resume_queue().await?;
    store.resume_queue().await?;
    let task = fixture.submit(account).await?;
    for _ in 0..2 {
        store.fail_unleased(task.id, FailureCause::Operator, "It was stopped.").await?;
    }
    let id = task.id.to_string();
    let actions = [
        (Action::PauseQueue, "", ""),
        (Action::ResumeQueue, "", ""),
        (Action::FailTask, id.as_str(), "It was stopped."),
    ];
    assert_eq!(fixture.actions().await?, owned(&actions));
    Ok(())
});

case!(nothing_is_recorded_of_a_change_that_did_not_happen_or_without_an_actor, async |fixture| {
    let (store, nobody) = (fixture.acting(), Id::floor(fixture.store.now()));
    let account = fixture.account("ada", 2).await?;
    store.create_account("ada", 1).await?;
    store.grant(nobody, 1, None, None).await?;
    store.take(account, 3, "too much").await?;
    assert!(store.grant(account, i64::MAX, None, None).await.is_err());
    store.change_key(nobody, KeyChange::Disable).await?;
    store.rotate_key(nobody, [1; 32], "tt_", DAY).await?;
    store.create_key(nobody, NewKey::new(&KeySecret::random())).await?;
    store.create_person(nobody, "eve", Role::Owner).await?;
    store.change_person(nobody, PersonChange::Role(Role::Owner)).await?;
    store.remove_person(nobody).await?;
    store.create_link(nobody, [1; 32], fixture.store.now()).await?;
    fixture.submit(account).await?;
    // It has an unfinished task, so it is not deleted.
    store.change_account(account, AccountChange::Delete).await?;
    fixture.store.grant(account, 1, None, None).await?;
    let key = fixture.store.create_key(account, NewKey::new(&KeySecret::random())).await?.expect("a key");
    for change in [KeyChange::EnableByOwner, KeyChange::Enable, KeyChange::Lift, KeyChange::Budget(None)] {
        store.change_key(key.id, change).await?;
    }
    let person = fixture.person(account, "ada").await?;
    for change in [PersonChange::Lift, PersonChange::Role(person.role)] {
        store.change_person(person.id, change).await?;
    }
    for change in [AccountChange::Enable, AccountChange::LowBalance(None)] {
        store.change_account(account, change).await?;
    }
    assert_eq!(fixture.actions().await?, []);
    assert_eq!(fixture.store.count_unfinished(account, Surface::Api).await?, 1);
    Ok(())
});

case!(the_audit_log_is_read_by_account_and_in_pages_and_old_entries_are_deleted, async |fixture| {
    let store = fixture.acting();
    let (ada, eve) = (fixture.account("ada", 0).await?, fixture.account("eve", 0).await?);
    for amount in 1..=3 {
        store.grant(ada, amount, None, None).await?;
        store.grant(eve, amount, None, None).await?;
        fixture.clock.advance(DAY);
    }
    let of_ada = fixture.store.audit_entries(Some(ada), None, 10).await?;
    assert_eq!(
        of_ada.iter().map(|entry| entry.audited.detail.as_deref()).collect::<Vec<_>>(),
        [Some("+3"), Some("+2"), Some("+1")]
    );
    let first = fixture.store.audit_entries(Some(ada), None, 2).await?;
    assert_eq!(first, of_ada[..2]);
    assert_eq!(fixture.store.audit_entries(Some(ada), Some(first[1].id), 2).await?, of_ada[2..]);
    assert_eq!(fixture.store.audit_entries(None, Some(of_ada[2].id), 10).await?, []);
    let cutoff = of_ada[1].id.timestamp();
    assert_eq!(fixture.store.delete_audit_entries(cutoff).await?, 2);
    assert_eq!(fixture.log().await?.len(), 4);
    assert_eq!(fixture.store.delete_audit_entries(cutoff).await?, 0);
    let late = fixture.another_process().audit_entries(None, None, 10).await?;
    assert_eq!(late, fixture.log().await?);
    Ok(())
});
