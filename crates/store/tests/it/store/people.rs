//! People, links and sessions.

use tintype_domain::model::Id;
use tintype_domain::person::{MAX_PEOPLE, Person, Role, Session, Token, TokenHash};
use tintype_store::{AccountChange, DeleteSessions, NewSession, PersonAdded, PersonChange, Result, StoreError};
use tintype_system::clock::Timestamp;

use super::fixture::{Fixture, HOUR, MILLISECOND};

impl Fixture {
    fn in_an_hour(&self) -> Timestamp {
        self.store.now().saturating_add(HOUR)
    }

    fn new_session(&self) -> NewSession {
        NewSession { hash: Token::random().hash(), expires_at: self.in_an_hour(), agent: "a browser".into() }
    }

    pub(super) async fn person(&self, account: Id, name: &str) -> Result<Person> {
        match self.store.create_person(account, name, Role::Member).await? {
            PersonAdded::Done(person) => Ok(person),
            refused => panic!("{name}: {refused:?}"),
        }
    }

    /// A session of a person, and its hash.
    async fn session(&self, person: &Person) -> Result<(Session, TokenHash)> {
        let new = self.new_session();
        let session = self.store.begin_session(person.id, None, new.clone()).await?.expect("a session");
        Ok((session, new.hash))
    }
}

case!(owners_whom_a_rule_demotes_at_once_leave_one, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let (ada, bob) = (fixture.person(account, "ada").await?, fixture.person(account, "bob").await?);
    let by_rule = |person: &Person, role| fixture.store.change_person(person.id, PersonChange::RoleByRule(role));
    for round in 0..10 {
        assert!(by_rule(&ada, Role::Owner).await?.is_some() && by_rule(&bob, Role::Owner).await?.is_some(), "{round}");
        let demoted = tokio::try_join!(by_rule(&ada, Role::Viewer), by_rule(&bob, Role::Viewer))?;
        assert_eq!([demoted.0, demoted.1].iter().flatten().count(), 1, "{round}");
        let people = fixture.store.list_people(Some(account)).await?;
        assert_eq!(people.iter().filter(|person| person.role == Role::Owner).count(), 1, "{round}");
    }
    Ok(())
});

case!(a_person_is_found_by_name_and_by_id, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let person = fixture.person(account, "ada@example.com").await?;
    assert_eq!((person.account_id, person.role, person.has_password), (account, Role::Member, false));
    for text in ["ada@example.com", person.id.as_str()] {
        let found = fixture.store.find_person(text).await?.expect("a person");
        assert_eq!((&found.person, found.password), (&person, None));
    }
    assert_eq!(fixture.store.find_person("ada").await?, None);
    let other = fixture.account("eve", 0).await?;
    let eve = fixture.person(other, "eve").await?;
    assert_eq!(fixture.store.list_people(Some(account)).await?, std::slice::from_ref(&person));
    assert_eq!(fixture.store.list_people(None).await?, [person.clone(), eve]);
    let owner = fixture.store.change_person(person.id, PersonChange::Role(Role::Owner)).await?.expect("a person");
    assert_eq!(owner, Person { role: Role::Owner, ..person });
    assert!(fixture.store.remove_person(person.id).await? && !fixture.store.remove_person(person.id).await?);
    assert_eq!(fixture.store.change_person(person.id, PersonChange::Role(Role::Viewer)).await?, None);
    Ok(())
});

case!(people_are_found_by_a_part_of_their_name_in_pages, async |fixture| {
    let (ada, eve) = (fixture.account("ada", 0).await?, fixture.account("eve", 0).await?);
    for (account, name) in [(ada, "joanna_1"), (eve, "anna"), (ada, "bob"), (eve, "hannah"), (ada, "jürgen")] {
        fixture.person(account, name).await?;
    }
    let find = async |account: Option<Id>, text: &str, after: &str, limit: u32| {
        let found = fixture.store.find_people(account, text, after, limit).await?;
        let row = |row: tintype_store::FoundPerson| format!("{} of {}", row.person.name, row.account);
        Result::Ok(found.into_iter().map(row).collect::<Vec<_>>())
    };
    assert_eq!(find(None, "ANNA", "", 9).await?, ["anna of eve", "hannah of eve", "joanna_1 of ada"]);
    assert_eq!(find(None, "anna", "", 2).await?, ["anna of eve", "hannah of eve"]);
    assert_eq!(find(None, "anna", "hannah", 2).await?, ["joanna_1 of ada"]);
    assert_eq!(find(Some(ada), "anna", "", 9).await?, ["joanna_1 of ada"]);
    assert_eq!(find(Some(ada), "", "", 9).await?, ["bob of ada", "joanna_1 of ada", "jürgen of ada"]);
    assert_eq!(find(None, "JÜR", "", 9).await?, ["jürgen of ada"]);
    for pattern in ["%", "an_a", "a%", "\0", "anna\0"] {
        assert_eq!(find(None, pattern, "", 9).await?, Vec::<String>::new(), "{pattern:?}");
        assert_eq!(fixture.store.find_accounts(pattern, "", 9).await?.len(), 0, "{pattern:?}");
    }
    assert_eq!(find(None, "", "\0", 9).await?, Vec::<String>::new());
    assert_eq!(fixture.store.find_accounts("", "\0", 9).await?.len(), 0);
    Ok(())
});

case!(a_name_of_a_person_is_taken_once, async |fixture| {
    let (ada, eve) = (fixture.account("ada", 0).await?, fixture.account("eve", 0).await?);
    let person = fixture.person(ada, "ada").await?;
    for (account, name) in [(ada, "ada"), (eve, "ada"), (eve, person.id.as_str())] {
        let refused = fixture.store.create_person(account, name, Role::Owner).await?;
        assert_eq!(refused, PersonAdded::NameTaken, "{name}");
    }
    assert_eq!(fixture.store.list_people(None).await?, [person]);
    Ok(())
});

case!(an_account_has_a_limited_number_of_people_and_a_deleted_one_none, async |fixture| {
    let (ada, eve) = (fixture.account("ada", 0).await?, fixture.account("eve", 0).await?);
    for number in 0..MAX_PEOPLE {
        fixture.person(ada, &format!("person {number}")).await?;
    }
    let more = fixture.store.create_person(ada, "one more", Role::Viewer).await?;
    assert_eq!(more, PersonAdded::NotPossible);
    let person = fixture.person(eve, "eve").await?;
    let (_, hash) = fixture.session(&person).await?;
    fixture.store.change_account(eve, AccountChange::Delete).await?;
    assert_eq!(fixture.store.list_people(Some(eve)).await?, []);
    assert_eq!(fixture.store.find_session(hash).await?, None);
    assert_eq!(fixture.store.create_person(eve, "mallory", Role::Owner).await?, PersonAdded::NotPossible);
    Ok(())
});

case!(a_link_signs_one_person_in_once, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let (person, link) = (fixture.person(account, "ada").await?, Token::random().hash());
    assert!(fixture.store.create_link(person.id, link, fixture.in_an_hour()).await?);
    assert!(!fixture.store.create_link(account, [0; 32], fixture.in_an_hour()).await?);
    assert_eq!(fixture.store.find_link(link).await?, Some(person.clone()));
    assert_eq!(fixture.store.find_link(Token::random().hash()).await?, None);
    let new = fixture.new_session();
    let session = fixture.store.sign_in_by_link(link, None, new.clone()).await?.expect("a session");
    let expected = Session {
        id: session.id,
        person,
        seen_at: fixture.store.now(),
        expires_at: new.expires_at,
        agent: "a browser".into(),
        by_provider: false,
    };
    assert_eq!(session, expected);
    assert_eq!(fixture.store.find_session(new.hash).await?, Some(session));
    assert_eq!(fixture.store.sign_in_by_link(link, None, fixture.new_session()).await?, None);
    assert_eq!(fixture.store.find_link(link).await?, None);
    Ok(())
});

case!(a_link_expires_at_its_exact_millisecond, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let (person, link) = (fixture.person(account, "ada").await?, Token::random().hash());
    fixture.store.create_link(person.id, link, fixture.in_an_hour()).await?;
    fixture.clock.advance(HOUR - MILLISECOND);
    assert_eq!(fixture.store.find_link(link).await?, Some(person));
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.store.find_link(link).await?, None);
    assert_eq!(fixture.store.sign_in_by_link(link, None, fixture.new_session()).await?, None);
    Ok(())
});

case!(of_several_processes_that_use_a_link_one_signs_in, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let (person, link) = (fixture.person(account, "ada").await?, Token::random().hash());
    fixture.store.create_link(person.id, link, fixture.in_an_hour()).await?;
    let mut attempts = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (process, session) = (fixture.another_process(), fixture.new_session());
        attempts.spawn(async move { process.sign_in_by_link(link, None, session).await });
    }
    let mut signed_in = 0;
    while let Some(attempt) = attempts.join_next().await {
        signed_in += usize::from(attempt.expect("no panic")?.is_some());
    }
    assert_eq!((signed_in, fixture.store.list_sessions(person.id).await?.len()), (1, 1));
    Ok(())
});

case!(a_session_ends_at_its_exact_millisecond_unless_it_is_used, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let person = fixture.person(account, "ada").await?;
    let (used, used_hash) = fixture.session(&person).await?;
    let (_, idle_hash) = fixture.session(&person).await?;
    fixture.clock.advance(HOUR - MILLISECOND);
    assert!(fixture.store.find_session(idle_hash).await?.is_some());
    fixture.store.touch_session(used.id, fixture.in_an_hour()).await?;
    // A later use with an earlier end takes nothing back.
    fixture.store.touch_session(used.id, fixture.store.now()).await?;
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.store.find_session(idle_hash).await?, None);
    let session = fixture.store.find_session(used_hash).await?.expect("a session");
    assert_eq!(session.seen_at, fixture.store.now().saturating_sub(MILLISECOND));
    assert_eq!(fixture.store.list_sessions(person.id).await?, [session]);
    Ok(())
});

case!(a_person_ends_one_session_or_all_others_and_those_of_nobody_else, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let (ada, eve) = (fixture.person(account, "ada").await?, fixture.person(account, "eve").await?);
    let (first, first_hash) = fixture.session(&ada).await?;
    let (second, _) = fixture.session(&ada).await?;
    let (third, _) = fixture.session(&ada).await?;
    let (other, _) = fixture.session(&eve).await?;
    assert!(!fixture.store.end_session(ada.id, other.id).await?);
    assert!(fixture.store.end_session(ada.id, first.id).await?);
    assert_eq!(fixture.store.find_session(first_hash).await?, None);
    assert_eq!(fixture.store.end_other_sessions(ada.id, third.id).await?, 1);
    assert_ne!(second.id, third.id);
    assert_eq!(fixture.store.list_sessions(ada.id).await?, [third]);
    assert_eq!(fixture.store.list_sessions(eve.id).await?, [other]);
    Ok(())
});

case!(a_new_password_ends_every_session, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let (ada, eve) = (fixture.person(account, "ada").await?, fixture.person(account, "eve").await?);
    let (_, hash) = fixture.session(&ada).await?;
    let (_, other) = fixture.session(&eve).await?;
    let changed = fixture.store.change_person(ada.id, PersonChange::Password("$argon2id$…".into())).await?;
    assert!(changed.expect("a person").has_password);
    let found = fixture.store.find_person("ada").await?.expect("a person");
    assert_eq!((found.person.has_password, found.password.as_deref()), (true, Some("$argon2id$…")));
    assert_eq!(fixture.store.find_session(hash).await?, None);
    assert!(fixture.store.find_session(other).await?.is_some());
    Ok(())
});

case!(the_live_ones_of_many_sessions_are_found_at_once, async |fixture| {
    let (ada, eve) = (fixture.account("ada", 0).await?, fixture.account("eve", 0).await?);
    let (ada, person) = (fixture.person(ada, "ada").await?, fixture.person(eve, "eve").await?);
    let (first, one) = fixture.session(&ada).await?;
    let (_, other) = fixture.session(&ada).await?;
    let (_, disabled) = fixture.session(&person).await?;
    let all = [one, other, disabled, Token::random().hash()];
    let live = async || {
        let mut live = fixture.store.live_sessions(&all).await?;
        live.sort_by_key(|hash| all.iter().position(|known| known == hash));
        Ok::<_, StoreError>(live)
    };
    assert_eq!(live().await?, [one, other, disabled]);
    assert_eq!(fixture.store.live_sessions(&[]).await?, [[0; 32]; 0]);
    fixture.store.end_session(ada.id, first.id).await?;
    fixture.store.change_account(eve, AccountChange::Disable).await?;
    assert_eq!(live().await?, [other]);
    fixture.clock.set(fixture.in_an_hour());
    assert_eq!(live().await?, [[0; 32]; 0]);
    Ok(())
});

case!(a_disabled_account_signs_nobody_in, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let (person, link) = (fixture.person(account, "ada").await?, Token::random().hash());
    fixture.store.create_link(person.id, link, fixture.in_an_hour()).await?;
    let (session, hash) = fixture.session(&person).await?;
    fixture.store.change_account(account, AccountChange::Disable).await?;
    assert_eq!(fixture.store.find_session(hash).await?, None);
    assert_eq!(fixture.store.find_link(link).await?, None);
    assert_eq!(fixture.store.sign_in_by_link(link, None, fixture.new_session()).await?, None);
    assert_eq!(fixture.store.begin_session(person.id, None, fixture.new_session()).await?, None);
    fixture.store.change_account(account, AccountChange::Enable).await?;
    assert_eq!(fixture.store.find_session(hash).await?, Some(session));
    assert!(fixture.store.sign_in_by_link(link, None, fixture.new_session()).await?.is_some());
    Ok(())
});

case!(expired_links_and_sessions_are_deleted_and_no_others, async |fixture| {
    let account = fixture.account("ada", 0).await?;
    let (person, link) = (fixture.person(account, "ada").await?, Token::random().hash());
    fixture.session(&person).await?;
    fixture.store.create_link(person.id, [1; 32], fixture.in_an_hour()).await?;
    fixture.clock.advance(HOUR);
    fixture.store.create_link(person.id, link, fixture.in_an_hour()).await?;
    let (_, hash) = fixture.session(&person).await?;
    assert_eq!(fixture.store.delete_sessions(DeleteSessions::Expired).await?, 2);
    assert!(fixture.store.find_link(link).await?.is_some() && fixture.store.find_session(hash).await?.is_some());
    assert_eq!(fixture.store.delete_sessions(DeleteSessions::All).await?, 2);
    assert!(fixture.store.find_link(link).await?.is_none() && fixture.store.find_session(hash).await?.is_none());
    Ok(())
});

case!(the_first_account_is_an_administrator_and_others_only_by_rank, async |fixture| {
    let (first, second) = (fixture.account("first", 0).await?, fixture.account("second", 0).await?);
    let Some(third) = fixture.store.create_account_as("third", 5, true).await? else {
        panic!("the name is free");
    };
    assert!(third.admin);
    for (account, admin) in [(first, true), (second, false), (third.id, true)] {
        let found = fixture.store.find_account(account.as_str()).await?.expect("an account");
        assert_eq!(found.admin, admin, "{}", found.name);
    }
    Ok(())
});
