//! Rights that are lost between a request and its effect.

use std::sync::Arc;
use std::time::Duration;

use tintype_domain::budget::{Budget, Period};
use tintype_domain::identity::Identity;
use tintype_domain::key::KeySecret;
use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_domain::person::{Person, Role, Token, TokenHash};
use tintype_store::{
    AccountChange, DeleteSessions, KeyChange, NewKey, NewSession, NewUpload, Origin, PersonChange, Proof, Result,
    Right, SessionRight, StartLimit, Store, StoreError, StrikeRule, Submission,
};
use tintype_system::clock::Timestamp;

use super::fixture::{Fixture, HOUR, LEASE, MILLISECOND, UNLIMITED, images, new_key};

/// An owner with a session.
struct Owner {
    account: Id,
    person: Person,
    session: TokenHash,
}

impl Fixture {
    fn session_of_an_hour(&self) -> NewSession {
        let expires_at = self.store.now().saturating_add(HOUR);
        NewSession { hash: Token::random().hash(), expires_at, agent: String::new() }
    }

    async fn owner(&self, name: &str) -> Result<Owner> {
        let account = self.account(name, 100).await?;
        let person = self.owner_of(account, name).await?;
        let new = self.session_of_an_hour();
        let session = new.hash;
        self.store.begin_session(person.id, None, new).await?.expect("a session");
        Ok(Owner { account, person, session })
    }
}

impl Owner {
    fn right(&self, operator: bool) -> Right {
        Right::Session(SessionRight { session: self.session, role: Role::Owner, suspended: false, operator })
    }
}

/// The ways in which a person loses rights.
const LOSSES: [&str; 6] = ["removed", "demoted", "signed out", "password", "disabled", "suspended"];

async fn lose(fixture: &Fixture, owner: &Owner, loss: &str) -> Result<()> {
    let (store, id) = (&fixture.store, owner.person.id);
    match loss {
        "removed" => drop(store.remove_person(id).await?),
        "demoted" => drop(store.change_person(id, PersonChange::Role(Role::Member)).await?),
        "signed out" => {
            let session = store.find_session(owner.session).await?.expect("a session");
            store.end_session(id, session.id).await?;
        }
        "password" => drop(store.change_person(id, PersonChange::Password("$argon2id$new".into())).await?),
        "disabled" => drop(store.change_account(owner.account, AccountChange::Disable).await?),
        _ => {
            let origin = Origin { person_id: Some(id), ..Origin::default() };
            let start = StartLimit::none();
            store.submit_before(start, owner.account, origin, Surface::Web, images(1), UNLIMITED).await?;
            let rule = StrikeRule { limit: 1, window: HOUR };
            let lease = fixture.claim().await?;
            store.refuse(lease, "no", Some(rule)).await?;
            assert!(store.find_person(id.as_str()).await?.expect("a person").person.suspension.is_some());
        }
    }
    Ok(())
}

/// Tries one write of each kind, and returns how many of them took place.
async fn writes(store: &Arc<Store>, account: Id, other: Id) -> usize {
    let outcomes = [
        store.grant(account, 1, None, None).await.map(drop),
        store
            .create_person(account, &format!("p{}", Token::random().reveal().to_lowercase()), Role::Member)
            .await
            .map(drop),
        store.change_person(other, PersonChange::Role(Role::Viewer)).await.map(drop),
        store.create_link(other, Token::random().hash(), store.now()).await.map(drop),
        store.begin_upload(NewUpload::of(account, Surface::Web), 100).await.map(drop),
        store.create_board(account, None, Token::random().reveal(), 100).await.map(drop),
        store.star_tasks(account, other, &[other], true).await.map(drop),
        store.delete_tasks(account, &[other], None).await.map(drop),
        store.restore_tasks(account, &[other], None).await.map(drop),
        store.purge_tasks(account, &[other], None).await.map(drop),
        store.cancel(account, Surface::Web, other, None, "no").await.map(drop),
        store.end_session(other, other).await.map(drop),
        store.test_endpoint(other).await.map(drop),
        store.pause_queue().await.map(drop),
        store.resume_queue().await.map(drop),
        store.change_account(account, AccountChange::LowBalance(Some(5))).await.map(drop),
    ];
    let mut done = 0;
    for outcome in outcomes {
        match outcome {
            Ok(()) => done += 1,
            Err(StoreError::Revoked) => {}
            Err(error) => panic!("{error}"),
        }
    }
    done
}

case!(a_store_with_the_right_of_a_session_writes_only_while_that_holds, async |fixture| {
    for (number, loss) in LOSSES.into_iter().enumerate() {
        let owner = fixture.owner(&format!("ada{number}")).await?;
        let other = fixture.owner(&format!("eve{number}")).await?;
        let store = fixture.store.with_right(owner.right(false));
        let all = writes(&store, owner.account, other.person.id).await;
        assert_eq!(all, 16);
        lose(fixture, &owner, loss).await?;
        let (people, credits) = (fixture.count("people"), fixture.credits(owner.account).await?);
        assert_eq!(writes(&store, owner.account, other.person.id).await, 0, "{loss}");
        assert_eq!((fixture.count("people"), fixture.credits(owner.account).await?), (people, credits), "{loss}");
        // Other stores of the same database write on.
        assert_eq!(writes(&fixture.store, other.account, other.person.id).await, all, "{loss}");
    }
    Ok(())
});

case!(a_store_with_the_right_of_an_operator_writes_only_while_that_holds, async |fixture| {
    // The first account is an administrator's.
    let (operator, other) = (fixture.owner("ada").await?, fixture.owner("eve").await?);
    let write =
        async |owner: &Owner| fixture.store.with_right(owner.right(true)).grant(other.account, 1, None, None).await;
    assert!(write(&operator).await.is_ok());
    assert!(matches!(write(&other).await, Err(StoreError::Revoked)));
    lose(fixture, &operator, "demoted").await?;
    assert!(matches!(write(&operator).await, Err(StoreError::Revoked)));
    assert_eq!(fixture.credits(other.account).await?, 101);
    Ok(())
});

case!(a_task_is_submitted_only_while_the_right_of_its_caller_holds, async |fixture| {
    let submit = async |account, right| {
        let store = fixture.store.with_right(right);
        match store.submit(account, None, Surface::Api, images(1), UNLIMITED).await {
            Ok(Submission::Accepted(_)) => true,
            Err(StoreError::Revoked) => false,
            other => panic!("{other:?}"),
        }
    };
    for (number, loss) in LOSSES.into_iter().enumerate() {
        let owner = fixture.owner(&format!("ada{number}")).await?;
        assert!(submit(owner.account, owner.right(false)).await);
        // A suspension needs a task of its own to be claimed.
        while let Some(claim) = fixture.store.claim(1, LEASE).await?.first() {
            fixture.store.fail(claim.lease, FailureCause::Engine, "no").await?;
        }
        lose(fixture, &owner, loss).await?;
        let credits = fixture.credits(owner.account).await?;
        // A member may submit, too.
        let may = loss == "demoted";
        let right = SessionRight { session: owner.session, role: Role::Member, suspended: false, operator: false };
        assert_eq!(submit(owner.account, Right::Session(right)).await, may, "{loss}");
        assert_eq!(fixture.credits(owner.account).await?, credits - if may { 2 } else { 0 }, "{loss}");
    }
    for (number, loss) in ["revoked", "disabled", "rotated", "account", "expired"].into_iter().enumerate() {
        let account = fixture.account(&format!("key{number}"), 100).await?;
        let secret = KeySecret::random();
        let key = fixture.store.create_key(account, NewKey::new(&secret)).await?.expect("a key");
        let right = Right::Key(secret.hash());
        assert!(submit(account, right).await);
        match loss {
            "revoked" => drop(fixture.store.change_key(key.id, KeyChange::Revoke).await?),
            "disabled" => drop(fixture.store.change_key(key.id, KeyChange::Disable).await?),
            "account" => drop(fixture.store.change_account(account, AccountChange::Disable).await?),
            "rotated" => {
                let hash = Token::random().hash();
                fixture.store.rotate_key(key.id, hash, "hint", Duration::ZERO).await?.expect("a key");
            }
            _ => {
                let hash = Token::random().hash();
                fixture.store.rotate_key(key.id, hash, "hint", HOUR).await?.expect("a key");
                assert!(submit(account, right).await, "both keys work during the overlap");
                fixture.clock.advance(HOUR);
            }
        }
        let credits = fixture.credits(account).await?;
        assert!(!submit(account, right).await, "{loss}");
        assert_eq!(fixture.credits(account).await?, credits, "{loss}");
    }
    Ok(())
});

case!(a_session_begins_only_with_a_proof_that_still_holds, async |fixture| {
    let owner = fixture.owner("ada").await?;
    let id = owner.person.id;
    let identity = Identity::new("https://id.example", "ada").expect("an identity");
    let begin = async |proof: Proof| {
        Ok::<_, StoreError>(fixture.store.begin_session(id, Some(proof), fixture.session_of_an_hour()).await?.is_some())
    };
    let password = |hash: &str| Proof::Password(hash.into());
    assert!(!begin(password("old")).await?);
    let shown = |identity: &Identity| Proof::Identity(identity.clone(), fixture.store.now());
    assert!(!begin(shown(&identity)).await?);
    fixture.store.change_person(id, PersonChange::Password("old".into())).await?;
    fixture.store.link_identity(id, &identity).await?;
    assert!(begin(password("old")).await?);
    assert!(begin(shown(&identity)).await?);
    fixture.store.change_person(id, PersonChange::Password("new".into())).await?;
    fixture.store.unlink_identity(id, &identity.issuer).await?;
    assert!(!begin(password("old")).await?);
    assert!(!begin(shown(&identity)).await?);
    assert_eq!(fixture.store.list_sessions(id).await?, []);
    assert!(begin(password("new")).await?);
    Ok(())
});

case!(a_new_password_and_the_end_of_all_sessions_end_authentication_requests, async |fixture| {
    let (ada, eve) = (fixture.owner("ada").await?, fixture.owner("eve").await?);
    let identity =
        |owner: &Owner| Identity::new("https://id.example", owner.person.name.as_str()).expect("an identity");
    for owner in [&ada, &eve] {
        fixture.store.link_identity(owner.person.id, &identity(owner)).await?;
    }
    let begin = async |owner: &Owner, began_at: Timestamp| {
        let proof = Some(Proof::Identity(identity(owner), began_at));
        let session = fixture.store.begin_session(owner.person.id, proof, fixture.session_of_an_hour()).await?;
        Ok::<_, StoreError>(session.is_some())
    };
    let first = fixture.store.now();
    fixture.clock.advance(MILLISECOND);
    let session = fixture.store.find_session(ada.session).await?.expect("a session");
    fixture.store.end_session(ada.person.id, session.id).await?;
    assert!(begin(&ada, first).await?, "to sign out in one browser ends nothing else");
    fixture.store.end_other_sessions(ada.person.id, session.id).await?;
    let second = fixture.store.now();
    assert!(!begin(&ada, first).await? && begin(&ada, second).await?);
    fixture.clock.advance(MILLISECOND);
    fixture.store.change_person(ada.person.id, PersonChange::Password("new".into())).await?;
    let third = fixture.store.now();
    assert!(!begin(&ada, second).await? && begin(&ada, third).await?);
    assert!(begin(&eve, first).await?);
    fixture.clock.advance(MILLISECOND);
    fixture.store.delete_sessions(DeleteSessions::All).await?;
    assert!(!begin(&ada, third).await? && !begin(&eve, first).await?);
    Ok(())
});

case!(a_new_password_and_the_end_of_all_sessions_end_sign_in_links, async |fixture| {
    let (ada, eve) = (fixture.owner("ada").await?, fixture.owner("eve").await?);
    let link = async |owner: &Owner| {
        let (hash, end) = (Token::random().hash(), fixture.store.now().saturating_add(HOUR));
        assert!(fixture.store.create_link(owner.person.id, hash, end).await?);
        Ok::<_, StoreError>(hash)
    };
    let (of_ada, of_eve) = (link(&ada).await?, link(&eve).await?);
    let session = fixture.store.find_session(ada.session).await?.expect("a session");
    assert_eq!(fixture.store.end_other_sessions(ada.person.id, session.id).await?, 0);
    assert_eq!(fixture.store.find_link(of_ada).await?, None);
    let of_ada = link(&ada).await?;
    fixture.store.change_person(ada.person.id, PersonChange::Password("new".into())).await?;
    assert_eq!(fixture.store.find_link(of_ada).await?, None);
    assert!(fixture.store.find_link(of_eve).await?.is_some());
    Ok(())
});

case!(an_owner_cannot_raise_a_budget_even_if_the_key_had_none_a_moment_ago, async |fixture| {
    let owner = fixture.owner("ada").await?;
    let key = fixture.store.create_key(owner.account, new_key("")).await?.expect("an account").id;
    let daily = |credits| KeyChange::Budget(Some(Budget { credits, period: Period::Day }));
    fixture.store.change_key(key, daily(10)).await?.expect("a key");
    let store = fixture.store.with_right(owner.right(false));
    for raised in [KeyChange::Budget(None), daily(11)] {
        assert_eq!(store.change_key(key, raised).await?, None);
    }
    let lowered = store.change_key(key, daily(9)).await?.expect("a key");
    assert_eq!(lowered.budget, Some(Budget { credits: 9, period: Period::Day }));
    Ok(())
});
