//! Identities of people at OpenID Connect providers.

use std::time::Duration;

use tintype_domain::identity::Identity;
use tintype_domain::model::Id;
use tintype_domain::person::{Person, Role, Token};
use tintype_store::{
    AccountChange, Action, Actor, Credential, DeleteSessions, NewSession, Newcomer, PersonAdded, PersonChange, Proof,
    Result, SignUp, Via,
};

use super::fixture::Fixture;

fn identity(subject: &str) -> Identity {
    Identity::new("https://id.example.com", subject).expect("an identity")
}

fn newcomer(name: &str, subject: &str) -> SignUp {
    let credential = Credential::Identity(identity(subject));
    SignUp { name: name.into(), credential, credits: 5, source: "192.0.2.7".into(), limit: 9 }
}

impl Fixture {
    async fn linked(&self, account: Id, name: &str) -> Result<Person> {
        let person = self.owner_of(account, name).await?;
        assert!(self.store.link_identity(person.id, &identity(name)).await?);
        Ok(person)
    }
}

case!(an_identity_is_that_of_one_person_who_has_one_of_each_provider, async |fixture| {
    let account = fixture.account("acme", 0).await?;
    let actor = Actor { name: "ada".into(), person_id: None, via: Via::Studio, source: None };
    let store = fixture.store.acting(actor);
    let (ada, eve) = (fixture.linked(account, "ada").await?, fixture.linked(account, "eve").await?);
    assert_eq!(fixture.store.find_identity(&identity("ada")).await?.as_ref(), Some(&ada));
    let elsewhere = Identity::new("https://id.example.org", "ada").expect("an identity");
    assert_eq!(fixture.store.find_identity(&elsewhere).await?, None);
    // Again, one of another person, a second one, and one for nobody.
    assert!(store.link_identity(ada.id, &identity("ada")).await?);
    assert!(!store.link_identity(ada.id, &identity("eve")).await?);
    assert!(!store.link_identity(ada.id, &identity("ada 2")).await?);
    assert!(!store.link_identity(account, &identity("nobody")).await?);
    assert_eq!(fixture.store.audit_entries(None, None, 10).await?, [], "nothing has changed");
    assert!(store.link_identity(ada.id, &elsewhere).await?);
    assert!(fixture.store.has_identity(ada.id, "https://id.example.org").await?);
    for gone in [true, false] {
        assert_eq!(store.unlink_identity(ada.id, "https://id.example.org").await?, gone);
    }
    assert!(!fixture.store.has_identity(ada.id, "https://id.example.org").await?);
    assert_eq!(fixture.store.find_identity(&identity("eve")).await?, Some(eve));
    let log = fixture.store.audit_entries(None, None, 10).await?;
    let log: Vec<_> = log.iter().map(|entry| (entry.audited.action, entry.audited.detail.as_deref())).collect();
    let detail = Some("https://id.example.org");
    assert_eq!(log, [(Action::UnlinkIdentity, detail), (Action::LinkIdentity, detail)]);
    Ok(())
});

case!(an_identity_goes_with_its_person_and_its_account, async |fixture| {
    let account = fixture.account("acme", 0).await?;
    let ada = fixture.linked(account, "ada").await?;
    assert!(fixture.store.remove_person(ada.id).await?);
    assert_eq!(fixture.store.find_identity(&identity("ada")).await?, None);
    fixture.linked(account, "eve").await?;
    fixture.store.change_account(account, AccountChange::Delete).await?;
    assert_eq!(fixture.store.find_identity(&identity("eve")).await?, None);
    let other = fixture.account("other", 0).await?;
    fixture.linked(other, "eve").await?;
    Ok(())
});

case!(somebody_signs_up_with_an_identity_under_any_name, async |fixture| {
    let PersonAdded::Done(ada) = fixture.store.sign_up(newcomer("ada", "1")).await? else { panic!("a free name") };
    assert_eq!((ada.name.as_str(), ada.has_password), ("ada", false));
    let long = "x".repeat(100);
    for (name, subject, kept) in [("ada", "2", "ada"), (&long, "3", &long[..]), (&long, "4", &long[..78])] {
        let PersonAdded::Done(person) = fixture.store.sign_up(newcomer(name, subject)).await? else { panic!("{name}") };
        let id = person.id.as_str().to_lowercase();
        let expected = if subject == "3" { kept.to_owned() } else { format!("{kept}-{id}") };
        assert_eq!(person.name, expected);
        assert_eq!(fixture.store.find_identity(&identity(subject)).await?, Some(person));
    }
    // An identity that somebody has opens nothing, and nothing of it stays.
    assert_eq!(fixture.store.sign_up(newcomer("eve", "1")).await?, PersonAdded::Known(ada));
    assert!(fixture.store.find_person("eve").await?.is_none() && fixture.store.find_account("eve").await?.is_none());
    assert_eq!(fixture.store.sign_ups_of("192.0.2.7").await?, 4);
    let log = fixture.store.audit_entries(None, None, 10).await?;
    assert!(log.iter().all(|entry| entry.audited.detail.as_deref() == Some("+5 https://id.example.com")), "{log:?}");
    Ok(())
});

fn joining(account_id: Id, name: &str, subject: &str) -> Newcomer {
    let source = "192.0.2.7".into();
    Newcomer { account_id, name: name.into(), role: Role::Viewer, identity: identity(subject), source }
}

case!(somebody_joins_an_account_with_an_identity_under_any_name, async |fixture| {
    let (account, other) = (fixture.account("acme", 0).await?, fixture.account("other", 0).await?);
    let PersonAdded::Done(ada) = fixture.store.join(joining(account, "ada", "1")).await? else { panic!("a free name") };
    assert_eq!((ada.name.as_str(), ada.role, ada.account_id, ada.has_password), ("ada", Role::Viewer, account, false));
    assert_eq!(fixture.store.find_identity(&identity("1")).await?.as_ref(), Some(&ada));
    let PersonAdded::Done(second) = fixture.store.join(joining(account, "ada", "2")).await? else { panic!("a name") };
    assert_eq!(second.name, format!("ada-{}", second.id.as_str().to_lowercase()));
    // Somebody with the identity stays where that person is.
    assert_eq!(fixture.store.join(joining(other, "ada", "1")).await?, PersonAdded::Known(ada.clone()));
    fixture.store.change_account(other, AccountChange::Delete).await?;
    assert_eq!(fixture.store.join(joining(other, "eve", "3")).await?, PersonAdded::NotPossible);
    assert_eq!(fixture.store.find_identity(&identity("3")).await?, None);
    let log = fixture.store.audit_entries(Some(account), None, 10).await?;
    let audited = &log.last().expect("an entry").audited;
    assert_eq!((log.len(), audited.action, audited.subject.as_deref()), (2, Action::AddPerson, Some("ada")));
    assert_eq!(audited.detail.as_deref(), Some("viewer https://id.example.com"));
    assert_eq!(log.last().expect("an entry").actor.person_id, Some(ada.id));
    Ok(())
});

case!(somebody_who_is_shut_out_has_no_way_in_but_a_new_one, async |fixture| {
    let account = fixture.account("acme", 0).await?;
    let ada = fixture.linked(account, "ada").await?;
    fixture.store.change_person(ada.id, PersonChange::Password("hash".into())).await?;
    let began_at = fixture.store.now();
    let session = |token: &Token| NewSession {
        hash: token.hash(),
        expires_at: began_at.saturating_add(Duration::from_secs(60)),
        agent: String::new(),
    };
    let (token, link) = (Token::random(), Token::random());
    assert!(fixture.store.begin_session(ada.id, None, session(&token)).await?.is_some());
    assert!(fixture.store.create_link(ada.id, link.hash(), session(&link).expires_at).await?);
    let (_, invitation) = fixture.invite(account, ada.id, 2).await?.expect("an invitation");
    fixture.clock.advance(Duration::from_millis(1));
    let person = fixture.store.change_person(ada.id, PersonChange::RevokeAccess).await?.expect("a person");
    assert!(!person.has_password && person.role == Role::Owner);
    assert!(fixture.store.find_session(token.hash()).await?.is_none());
    assert!(fixture.store.find_link(link.hash()).await?.is_none());
    assert!(fixture.store.find_invitation(invitation).await?.is_none(), "it would let the same person in again");
    for proof in [Proof::Password("hash".into()), Proof::Identity(identity("ada"), began_at)] {
        assert!(fixture.store.begin_session(ada.id, Some(proof), session(&token)).await?.is_none());
    }
    let anew = Proof::Identity(identity("ada"), fixture.store.now());
    assert!(fixture.store.begin_session(ada.id, Some(anew), session(&token)).await?.is_some());
    // All sessions ended while the clock was a day ahead, as on a restore; it is right again.
    let now = fixture.store.now();
    fixture.clock.advance(Duration::from_secs(24 * 60 * 60));
    fixture.store.delete_sessions(DeleteSessions::All).await?;
    fixture.clock.set(now);
    let anew = Proof::Identity(identity("ada"), now);
    assert!(fixture.store.begin_session(ada.id, Some(anew), session(&token)).await?.is_some());
    Ok(())
});
