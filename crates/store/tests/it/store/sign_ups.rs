//! Sign-ups: an account, its owner, the first credits, the audit log and the count of a day, in one commit.

use std::time::Duration;

use tintype_domain::identity::Identity;
use tintype_domain::model::EntryKind;
use tintype_domain::person::{Person, Role};
use tintype_store::{AccountChange, Action, Actor, Credential, PersonAdded, Result, SignUp, Via};

use super::fixture::Fixture;

const SOURCE: &str = "192.0.2.7";
/// From noon, when the tests begin, to the end of the day.
const REST_OF_THE_DAY: Duration = Duration::from_secs(12 * 60 * 60);

fn new(name: &str) -> SignUp {
    SignUp {
        name: name.into(),
        credential: Credential::Password("$argon2id$…".into()),
        credits: 20,
        source: SOURCE.into(),
        limit: 3,
    }
}

impl Fixture {
    async fn signed_up(&self, name: &str) -> Result<Person> {
        match self.store.sign_up(new(name)).await? {
            PersonAdded::Done(person) => Ok(person),
            refused => panic!("{name}: {refused:?}"),
        }
    }
}

case!(somebody_who_signs_up_owns_an_account_with_credits, async |fixture| {
    // Even the first account is no administrator's, because a stranger opens it.
    let ada = fixture.signed_up("ada@example.com").await?;
    assert_eq!((ada.name.as_str(), ada.role, ada.has_password), ("ada@example.com", Role::Owner, true));
    let found = fixture.store.find_person("ada@example.com").await?.expect("a person");
    assert_eq!((&found.person, found.password.as_deref()), (&ada, Some("$argon2id$…")));
    let account = fixture.store.find_account("ada@example.com").await?.expect("an account");
    assert_eq!((account.id, account.credits, account.admin), (ada.account_id, 20, false));
    let ledger = fixture.store.history(account.id, None, 10).await?;
    let entry = ledger.first().expect("an entry");
    assert_eq!((ledger.len(), entry.kind, entry.amount), (1, EntryKind::Grant, 20));
    assert_eq!(entry.note.as_deref(), Some("sign-up"));
    let log = fixture.store.audit_entries(None, None, 10).await?;
    let entry = log.first().expect("an entry");
    let actor =
        Actor { name: ada.name.clone(), person_id: Some(ada.id), via: Via::Studio, source: Some(SOURCE.into()) };
    assert_eq!((log.len(), &entry.actor, entry.audited.action), (1, &actor, Action::SignUp));
    assert_eq!((entry.audited.account_id, entry.audited.detail.as_deref()), (Some(account.id), Some("+20")));
    let penniless = SignUp { credits: 0, ..new("eve") };
    let PersonAdded::Done(eve) = fixture.store.sign_up(penniless).await? else { panic!("a free name") };
    assert_eq!(fixture.store.history(eve.account_id, None, 10).await?, []);
    Ok(())
});

case!(a_taken_name_opens_no_account_and_counts, async |fixture| {
    let account = fixture.account("acme", 0).await?;
    let grace = fixture.owner_of(account, "grace").await?;
    for name in ["grace", grace.id.as_str()] {
        assert_eq!(fixture.store.sign_up(new(name)).await?, PersonAdded::NameTaken, "{name}");
    }
    assert_eq!(fixture.store.sign_ups_of(SOURCE).await?, 2);
    assert_eq!((fixture.store.list_accounts().await?.len(), fixture.store.list_people(None).await?.len()), (1, 1));
    assert_eq!(fixture.store.audit_entries(None, None, 10).await?, []);
    Ok(())
});

case!(the_name_of_an_account_keeps_no_person_out, async |fixture| {
    let acme = fixture.account("acme", 0).await?;
    for name in ["acme", acme.as_str()] {
        let person = fixture.signed_up(name).await?;
        let account = fixture.store.find_account(person.account_id.as_str()).await?.expect("an account");
        assert_eq!(account.name, format!("{name}-{}", account.id));
    }
    let ada = fixture.signed_up("ada").await?;
    fixture.store.change_account(ada.account_id, AccountChange::Delete).await?;
    let again = SignUp { source: "192.0.2.8".into(), ..new("ada") };
    let PersonAdded::Done(again) = fixture.store.sign_up(again).await? else { panic!("the person is gone") };
    assert_ne!(again.account_id, ada.account_id);
    Ok(())
});

case!(attempts_are_limited_by_source_and_day_and_then_forgotten, async |fixture| {
    for name in ["a", "b", "c"] {
        fixture.signed_up(name).await?;
    }
    assert_eq!(fixture.store.sign_up(new("d")).await?, PersonAdded::TooManyToday);
    assert_eq!(fixture.store.sign_ups_of(SOURCE).await?, 3);
    assert!(fixture.store.find_person("d").await?.is_none());
    let elsewhere = SignUp { source: "2001:db8::/64".into(), ..new("d") };
    assert!(matches!(fixture.store.sign_up(elsewhere).await?, PersonAdded::Done(_)));
    assert_eq!(fixture.store.delete_sign_ups().await?, 0);
    fixture.clock.advance(REST_OF_THE_DAY);
    assert_eq!(fixture.store.sign_ups_of(SOURCE).await?, 0);
    fixture.signed_up("e").await?;
    assert_eq!((fixture.store.delete_sign_ups().await?, fixture.store.sign_ups_of(SOURCE).await?), (2, 1));
    Ok(())
});

case!(of_several_processes_one_opens_an_account_of_a_name, async |fixture| {
    let other = fixture.another_process();
    let (one, two) = tokio::join!(fixture.store.sign_up(new("ada")), other.sign_up(new("ada")));
    let done = [one?, two?].into_iter().filter(|outcome| matches!(outcome, PersonAdded::Done(_))).count();
    assert_eq!((done, fixture.store.list_accounts().await?.len()), (1, 1));
    assert_eq!(fixture.store.sign_ups_of(SOURCE).await?, 2);
    Ok(())
});

case!(of_several_processes_one_opens_an_account_of_an_identity, async |fixture| {
    let identity = Identity { issuer: "https://id.example.com".into(), subject: "42".into() };
    let new = || SignUp { credential: Credential::Identity(identity.clone()), ..new("ada") };
    let other = fixture.another_process();
    let outcomes = tokio::join!(fixture.store.sign_up(new()), other.sign_up(new()));
    let ((PersonAdded::Done(done), PersonAdded::Known(known)) | (PersonAdded::Known(known), PersonAdded::Done(done))) =
        (outcomes.0?, outcomes.1?)
    else {
        panic!("one opens an account, and the other finds it")
    };
    assert_eq!(known, done);
    assert_eq!((fixture.store.list_accounts().await?.len(), fixture.store.sign_ups_of(SOURCE).await?), (1, 1));
    Ok(())
});
