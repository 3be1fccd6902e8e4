//! Invitations.

use tintype_domain::model::Id;
use tintype_domain::person::{MAX_PEOPLE, Person, Role, Token, TokenHash};
use tintype_store::{
    AccountChange, Action, Actor, DeleteSessions, InvitationAcceptance, NewInvitation, PersonAdded, PersonChange,
    Result, Store, Via,
};

use super::fixture::{DAY, Fixture, MILLISECOND};

const MOST: u32 = 3;

impl Fixture {
    pub(super) async fn owner_of(&self, account: Id, name: &str) -> Result<Person> {
        match self.store.create_person(account, name, Role::Owner).await? {
            PersonAdded::Done(person) => Ok(person),
            refused => panic!("{name}: {refused:?}"),
        }
    }

    /// An invitation of a day, with its token; `None` if it is refused.
    pub(super) async fn invite(&self, account_id: Id, person_id: Id, places: i64) -> Result<Option<(Id, TokenHash)>> {
        let (hash, expires_at) = (Token::random().hash(), self.store.now().saturating_add(DAY));
        let new = NewInvitation { account_id, person_id, hash, role: Role::Member, places, expires_at };
        Ok(self.store.create_invitation(new, MOST).await?.map(|id| (id, hash)))
    }

    async fn invites(&self, hash: TokenHash) -> Result<bool> {
        Ok(self.store.find_invitation(hash).await?.is_some())
    }

    async fn accept(&self, hash: TokenHash, name: &str) -> Result<PersonAdded> {
        self.store.accept_invitation(acceptance(hash, name)).await
    }
}

fn acceptance(hash: TokenHash, name: &str) -> InvitationAcceptance {
    InvitationAcceptance { hash, name: name.into(), password: format!("$of {name}"), source: "192.0.2.1".into() }
}

case!(an_invitation_lets_as_many_people_in_as_it_has_places, async |fx| {
    let (ada, eve) = (fx.account("ada", 0).await?, fx.account("eve", 0).await?);
    let grace = fx.owner_of(ada, "grace").await?;
    let actor = Actor { name: "grace".into(), person_id: Some(grace.id), via: Via::Studio, source: None };
    let (hash, expires_at) = (Token::random().hash(), fx.store.now().saturating_add(DAY));
    let new = NewInvitation { account_id: ada, person_id: grace.id, hash, role: Role::Viewer, places: 2, expires_at };
    let id = fx.store.acting(actor).create_invitation(new, MOST).await?.expect("an invitation");
    let found = fx.store.find_invitation(hash).await?.expect("an invitation");
    assert_eq!((found.id, found.account_id, found.account.as_str(), found.maker.as_str()), (id, ada, "ada", "grace"));
    assert_eq!((found.role, found.places, found.expires_at, found.works), (Role::Viewer, 2, expires_at, true));
    assert_eq!(fx.store.find_invitation(Token::random().hash()).await?, None);
    let PersonAdded::Done(hedy) = fx.accept(hash, "hedy").await? else { panic!("there are two places") };
    let expected = fx.store.find_person("hedy").await?.expect("a person");
    assert_eq!((&hedy, expected.password.as_deref()), (&expected.person, Some("$of hedy")));
    assert_eq!((hedy.account_id, hedy.role, hedy.has_password), (ada, Role::Viewer, true));
    // A name that is taken, in any account, takes no place.
    fx.person(eve, "eve").await?;
    for taken in ["hedy", "eve", hedy.id.as_str()] {
        assert_eq!(fx.accept(hash, taken).await?, PersonAdded::NameTaken, "{taken}");
    }
    assert_eq!(fx.store.find_invitation(hash).await?.expect("a place is left").places, 1);
    assert!(matches!(fx.accept(hash, "joan").await?, PersonAdded::Done(_)));
    assert_eq!((fx.accept(hash, "kay").await?, fx.invites(hash).await?), (PersonAdded::InvitationGone, false));
    assert_eq!((fx.count("invitations"), fx.store.find_person("kay").await?), (0, None));
    let log = fx.store.audit_entries(Some(ada), None, 9).await?;
    let log: Vec<_> =
        log.into_iter().map(|entry| (entry.audited.action, entry.actor.name, entry.audited.detail.unwrap())).collect();
    let joined = |name: &str| (Action::AddPerson, name.to_owned(), "viewer by invitation".to_owned());
    assert_eq!(
        log,
        [joined("joan"), joined("hedy"), (Action::Invite, "grace".to_owned(), "viewer, 2 places".to_owned())]
    );
    Ok(())
});

case!(of_several_processes_no_more_people_join_than_there_are_places, async |fx| {
    let ada = fx.account("ada", 0).await?;
    let grace = fx.owner_of(ada, "grace").await?;
    let (_, hash) = fx.invite(ada, grace.id, 5).await?.expect("an invitation");
    let mut attempts = tokio::task::JoinSet::new();
    for number in 0..12 {
        let process = fx.another_process();
        attempts.spawn(async move { process.accept_invitation(acceptance(hash, &format!("person {number}"))).await });
    }
    let mut joined = 0;
    while let Some(attempt) = attempts.join_next().await {
        match attempt.expect("no panic")? {
            PersonAdded::Done(_) => joined += 1,
            other => assert_eq!(other, PersonAdded::InvitationGone),
        }
    }
    assert_eq!((joined, fx.store.list_people(Some(ada)).await?.len()), (5, 6));
    Ok(())
});

// The rights of the maker end while people join: whoever joins does so before or after, and nothing waits for itself.
case!(people_join_while_the_rights_of_the_maker_end, async |fx| {
    for loss in ["demoted", "removed", "disabled", "revoked"] {
        let ada = fx.account(loss, 0).await?;
        let grace = fx.owner_of(ada, &format!("{loss} grace")).await?.id;
        let (id, hash) = fx.invite(ada, grace, 100).await?.expect("an invitation");
        let mut attempts = tokio::task::JoinSet::new();
        for number in 0..6 {
            let process = fx.another_process();
            let name = format!("{loss} {number}");
            attempts.spawn(async move { process.accept_invitation(acceptance(hash, &name)).await });
        }
        let store = fx.another_process();
        end(&store, loss, ada, grace, id).await?;
        let before = attempts.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
        assert!(
            before.iter().all(|outcome| matches!(outcome, PersonAdded::Done(_) | PersonAdded::InvitationGone)),
            "{before:?}"
        );
        assert_eq!(fx.accept(hash, &format!("{loss} late")).await?, PersonAdded::InvitationGone, "{loss}");
    }
    Ok(())
});

async fn end(store: &Store, loss: &str, account: Id, maker: Id, id: Id) -> Result<()> {
    match loss {
        "demoted" => drop(store.change_person(maker, PersonChange::Role(Role::Member)).await?),
        "removed" => assert!(store.remove_person(maker).await?),
        "disabled" => drop(store.change_account(account, AccountChange::Disable).await?),
        "revoked" => assert!(store.revoke_invitation(account, id).await?),
        other => panic!("{other}"),
    }
    Ok(())
}

case!(an_invitation_works_while_its_maker_may_invite, async |fx| {
    let ada = fx.account("ada", 0).await?;
    let grace = fx.owner_of(ada, "grace").await?.id;
    let (id, hash) = fx.invite(ada, grace, 5).await?.expect("an invitation");
    let suspend = |at: &str| {
        fx.execute(&format!("UPDATE people SET suspended_at = {at}, suspended_for = {at} WHERE name = 'grace'"));
    };
    let refused = async |what: &str| -> Result<()> {
        assert_eq!(
            (fx.invites(hash).await?, fx.accept(hash, "hedy").await?),
            (false, PersonAdded::InvitationGone),
            "{what}"
        );
        let listed = fx.store.list_invitations(ada).await?;
        assert_eq!(listed.iter().map(|found| (found.id, found.works)).collect::<Vec<_>>(), [(id, false)], "{what}");
        Ok(())
    };
    fx.store.change_person(grace, PersonChange::Role(Role::Member)).await?;
    refused("a member").await?;
    fx.store.change_person(grace, PersonChange::Role(Role::Owner)).await?;
    suspend("'1'");
    refused("suspended").await?;
    fx.store.change_person(grace, PersonChange::Lift).await?;
    fx.store.change_account(ada, AccountChange::Disable).await?;
    refused("a disabled account").await?;
    fx.store.change_account(ada, AccountChange::Enable).await?;
    assert!(matches!(fx.accept(hash, "hedy").await?, PersonAdded::Done(_)));
    // It ends at its exact millisecond.
    fx.clock.advance(DAY - MILLISECOND);
    assert!(fx.invites(hash).await? && matches!(fx.accept(hash, "joan").await?, PersonAdded::Done(_)));
    assert_eq!(fx.store.delete_sessions(DeleteSessions::Expired).await?, 0);
    fx.clock.advance(MILLISECOND);
    assert_eq!((fx.invites(hash).await?, fx.accept(hash, "kay").await?), (false, PersonAdded::InvitationGone));
    assert_eq!((fx.store.list_invitations(ada).await?, fx.count("invitations")), (vec![], 1));
    assert_eq!((fx.store.delete_sessions(DeleteSessions::Expired).await?, fx.count("invitations")), (1, 0));
    // It goes with its maker, with its account, and with a restored database.
    let hedy = fx.owner_of(ada, "an owner").await?.id;
    for end in ["person", "restore", "account"] {
        let (_, hash) = fx.invite(ada, if end == "person" { hedy } else { grace }, 5).await?.expect("an invitation");
        match end {
            "person" => assert!(fx.store.remove_person(hedy).await?),
            "restore" => assert_eq!(fx.store.delete_sessions(DeleteSessions::All).await?, 1),
            _ => drop(fx.store.change_account(ada, AccountChange::Delete).await?),
        }
        assert_eq!(
            (fx.count("invitations"), fx.accept(hash, "late").await?),
            (0, PersonAdded::InvitationGone),
            "{end}"
        );
    }
    Ok(())
});

case!(invitations_are_limited_listed_and_revoked_by_account, async |fx| {
    let (ada, eve) = (fx.account("ada", 0).await?, fx.account("eve", 0).await?);
    let (grace, mallory) = (fx.owner_of(ada, "grace").await?.id, fx.owner_of(eve, "mallory").await?.id);
    assert_eq!(fx.invite(ada, mallory, 5).await?, None, "somebody of another account");
    let (old, _) = fx.invite(ada, grace, 5).await?.expect("an invitation");
    fx.clock.advance(DAY / 2);
    let (second, hash) = fx.invite(ada, grace, 5).await?.expect("an invitation");
    let (third, _) = fx.invite(ada, grace, 1).await?.expect("an invitation");
    assert_eq!(fx.invite(ada, grace, 5).await?, None, "there are three");
    assert!(fx.invite(eve, mallory, 5).await?.is_some());
    let listed = async || -> Result<Vec<Id>> {
        Ok(fx.store.list_invitations(ada).await?.iter().map(|invitation| invitation.id).collect())
    };
    assert_eq!(listed().await?, [third, second, old]);
    // One that has expired leaves room before the sweep.
    fx.clock.advance(DAY / 2);
    assert_eq!(listed().await?, [third, second]);
    assert!(fx.invite(ada, grace, 5).await?.is_some());
    assert!(!fx.store.revoke_invitation(eve, second).await? && fx.invites(hash).await?);
    let actor = Actor { name: "grace".into(), person_id: Some(grace), via: Via::Studio, source: None };
    let acting = fx.store.acting(actor);
    assert!(acting.revoke_invitation(ada, second).await? && !acting.revoke_invitation(ada, second).await?);
    assert_eq!((fx.invites(hash).await?, fx.accept(hash, "hedy").await?), (false, PersonAdded::InvitationGone));
    let log = fx.store.audit_entries(Some(ada), None, 9).await?;
    let log: Vec<_> = log.iter().map(|entry| (entry.audited.action, entry.audited.subject.clone())).collect();
    assert_eq!(log, [(Action::RevokeInvitation, Some(second.to_string()))]);
    Ok(())
});

case!(nobody_joins_an_account_that_is_full, async |fx| {
    let ada = fx.account("ada", 0).await?;
    let grace = fx.owner_of(ada, "grace").await?.id;
    let (_, hash) = fx.invite(ada, grace, 2).await?.expect("an invitation");
    for number in 1..MAX_PEOPLE {
        fx.person(ada, &format!("person {number}")).await?;
    }
    assert_eq!(
        (fx.accept(hash, "hedy").await?, fx.accept(hash, "grace").await?),
        (PersonAdded::NotPossible, PersonAdded::NameTaken)
    );
    assert_eq!(fx.store.find_invitation(hash).await?.expect("it works").places, 2);
    let last = fx.store.find_person("person 1").await?.expect("a person").person.id;
    fx.store.remove_person(last).await?;
    assert!(matches!(fx.accept(hash, "hedy").await?, PersonAdded::Done(_)));
    assert_eq!(fx.accept(hash, "joan").await?, PersonAdded::NotPossible);
    Ok(())
});
