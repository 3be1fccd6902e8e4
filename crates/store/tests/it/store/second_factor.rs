//! Second factors, and the codes that sign-ins use up.

use std::time::Duration;

use tintype_domain::identity::Identity;
use tintype_domain::model::Id;
use tintype_domain::person::{Session, Token, TokenHash};
use tintype_domain::second_factor::{Factor, FactorCode, FactorSecret, NewFactor};
use tintype_store::{AccountChange, Action, Actor, NewSession, PersonChange, Proof, Result, Via};

use super::fixture::Fixture;

/// The step of the code that has turned the factor on.
const STEP: i64 = 100;
const RECOVERY: [TokenHash; 2] = [[1; 32], [2; 32]];
const HASH: &str = "$argon2id$…";

/// Somebody with a password, a session and, perhaps, a second factor.
struct Ada {
    id: Id,
    account: Id,
    session: Session,
    secret: FactorSecret,
}

impl Fixture {
    fn begins(&self) -> NewSession {
        let expires_at = self.store.now().saturating_add(Duration::from_secs(3_600));
        NewSession { hash: Token::random().hash(), expires_at, agent: String::new() }
    }

    async fn ada_without_factor(&self) -> Result<Ada> {
        let account = self.account("ada", 0).await?;
        let person = self.owner_of(account, "ada").await?;
        self.store.change_person(person.id, PersonChange::Password(HASH.into())).await?;
        let session = self.store.begin_session(person.id, None, self.begins()).await?.expect("a session");
        Ok(Ada { id: person.id, account, session, secret: FactorSecret::random() })
    }

    async fn ada_with_factor(&self) -> Result<Ada> {
        let ada = self.ada_without_factor().await?;
        assert!(self.store.add_factor(ada.id, ada.factor(), ada.session.id).await?);
        Ok(ada)
    }

    async fn link_of(&self, person: Id) -> Result<TokenHash> {
        let (link, end) = (Token::random().hash(), self.store.now().saturating_add(Duration::from_secs(60)));
        assert!(self.store.create_link(person, link, end).await?);
        Ok(link)
    }

    /// Whether a session begins with this proof.
    async fn signs_in(&self, ada: &Ada, proof: Proof) -> Result<bool> {
        Ok(self.store.begin_session(ada.id, Some(proof), self.begins()).await?.is_some())
    }
}

impl Ada {
    fn factor(&self) -> NewFactor {
        NewFactor { secret: self.secret, step: STEP, recovery: RECOVERY.to_vec() }
    }

    fn code(&self, step: i64) -> FactorCode {
        FactorCode::Step(self.secret, step)
    }
}

fn with(code: FactorCode) -> Proof {
    Proof::PasswordAndCode(HASH.into(), code)
}

case!(a_code_works_once_and_none_of_an_earlier_step_after_it, async |fixture| {
    let ada = fixture.ada_with_factor().await?;
    let expected = Factor { secret: ada.secret, step: STEP, recovery_codes: 2 };
    assert_eq!(fixture.store.find_factor(ada.id).await?, Some(expected));
    for (step, works) in [(STEP, false), (STEP + 2, true), (STEP + 2, false), (STEP + 1, false), (STEP + 3, true)] {
        assert_eq!(fixture.store.use_code(ada.id, ada.code(step)).await?, works, "{step}");
    }
    let other = FactorCode::Step(FactorSecret::random(), STEP + 9);
    assert!(!fixture.store.use_code(ada.id, other).await?, "a code of another secret");
    assert!(!fixture.store.use_code(ada.account, ada.code(STEP + 9)).await?, "a code of another person");
    for works in [true, false] {
        assert_eq!(fixture.store.use_code(ada.id, FactorCode::Recovery(RECOVERY[0])).await?, works);
    }
    let left = fixture.store.find_factor(ada.id).await?.expect("a factor");
    assert_eq!((left.step, left.recovery_codes), (STEP + 3, 1));
    Ok(())
});

case!(of_several_processes_that_use_a_code_one_succeeds, async |fixture| {
    let ada = fixture.ada_with_factor().await?;
    for code in [ada.code(STEP + 1), FactorCode::Recovery(RECOVERY[0])] {
        let before = fixture.store.list_sessions(ada.id).await?.len();
        let mut attempts = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let (process, session, proof) = (fixture.another_process(), fixture.begins(), with(code.clone()));
            attempts.spawn(async move { process.begin_session(ada.id, Some(proof), session).await });
        }
        let mut signed_in = 0;
        while let Some(attempt) = attempts.join_next().await {
            signed_in += usize::from(attempt.expect("no panic")?.is_some());
        }
        assert_eq!((signed_in, fixture.store.list_sessions(ada.id).await?.len()), (1, before + 1));
    }
    Ok(())
});

case!(a_password_is_not_enough_for_a_person_with_a_second_factor, async |fixture| {
    let ada = fixture.ada_without_factor().await?;
    let identity = Identity::new("https://id.example", "ada").expect("an identity");
    fixture.store.link_identity(ada.id, &identity).await?;
    assert!(fixture.signs_in(&ada, Proof::Password(HASH.into())).await?);
    assert!(!fixture.signs_in(&ada, with(ada.code(STEP))).await?, "nobody has turned it on");
    assert!(fixture.store.add_factor(ada.id, ada.factor(), ada.session.id).await?);
    assert!(!fixture.signs_in(&ada, Proof::Password(HASH.into())).await?);
    assert!(!fixture.signs_in(&ada, with(ada.code(STEP))).await?);
    assert!(fixture.signs_in(&ada, with(ada.code(STEP + 1))).await?);
    assert!(!fixture.signs_in(&ada, with(ada.code(STEP + 1))).await?);
    assert!(fixture.signs_in(&ada, with(FactorCode::Recovery(RECOVERY[1]))).await?);
    let other = Proof::PasswordAndCode("$argon2id$other".into(), ada.code(STEP + 2));
    assert!(!fixture.signs_in(&ada, other).await?, "another password with a code");
    // The provider is responsible, and a person who is signed in has shown the code before.
    assert!(fixture.signs_in(&ada, Proof::NewPassword(HASH.into())).await?);
    let by_provider = fixture
        .store
        .begin_session(ada.id, Some(Proof::Identity(identity, fixture.store.now())), fixture.begins())
        .await?;
    assert!(by_provider.expect("a session").by_provider && !ada.session.by_provider);
    // After a reset, the code of a sign-in that has begun before is worth nothing.
    assert!(fixture.store.reset_factor(ada.id).await?);
    assert!(!fixture.signs_in(&ada, with(ada.code(STEP + 3))).await?);
    assert!(!fixture.signs_in(&ada, with(FactorCode::Recovery(RECOVERY[0]))).await?);
    assert!(fixture.signs_in(&ada, Proof::Password(HASH.into())).await?);
    Ok(())
});

case!(a_link_is_used_up_only_with_the_code, async |fixture| {
    let ada = fixture.ada_with_factor().await?;
    let link = fixture.link_of(ada.id).await?;
    let sign_in = async |code| fixture.store.sign_in_by_link(link, code, fixture.begins()).await;
    for code in [None, Some(ada.code(STEP)), Some(FactorCode::Recovery([9; 32]))] {
        assert_eq!(sign_in(code).await?, None);
        assert!(fixture.store.find_link(link).await?.is_some());
    }
    assert!(sign_in(Some(ada.code(STEP + 1))).await?.is_some());
    assert_eq!(sign_in(Some(ada.code(STEP + 2))).await?, None, "the link is used up");
    assert_eq!(fixture.store.find_link(link).await?, None);
    Ok(())
});

case!(turning_a_second_factor_on_or_off_ends_other_sessions_and_links, async |fixture| {
    let ada = fixture.ada_without_factor().await?;
    let actor = Actor { name: "ada".into(), person_id: Some(ada.id), via: Via::Studio, source: None };
    let store = fixture.store.acting(actor);
    let changes = ["on", "off", "on", "reset"];
    for change in changes {
        fixture.store.begin_session(ada.id, None, fixture.begins()).await?.expect("a session");
        let link = fixture.link_of(ada.id).await?;
        let kept = ada.session.id;
        let changed = match change {
            "on" => store.add_factor(ada.id, ada.factor(), kept).await?,
            "off" => store.remove_factor(ada.id, kept).await?,
            _ => store.reset_factor(ada.id).await?,
        };
        assert!(changed, "{change}");
        assert_eq!(fixture.store.find_link(link).await?, None, "{change}");
        let left: Vec<_> = fixture.store.list_sessions(ada.id).await?.iter().map(|session| session.id).collect();
        let expected = if change == "reset" { vec![] } else { vec![kept] };
        assert_eq!(left, expected, "{change}");
        let has_factor = fixture.store.find_person("ada").await?.expect("a person").person.has_second_factor;
        assert_eq!((has_factor, fixture.store.find_factor(ada.id).await?.is_some()), (change == "on", change == "on"));
    }
    // Nothing to do, nothing recorded.
    let session = fixture.store.begin_session(ada.id, None, fixture.begins()).await?.expect("a session");
    assert!(!store.reset_factor(ada.id).await?);
    assert!(!store.replace_recovery_codes(ada.id, vec![[3; 32]]).await?);
    assert!(store.add_factor(ada.id, ada.factor(), session.id).await?);
    assert!(!store.add_factor(ada.id, NewFactor { secret: FactorSecret::random(), ..ada.factor() }, session.id).await?);
    assert_eq!(fixture.store.find_factor(ada.id).await?.expect("a factor").secret, ada.secret);
    assert!(store.replace_recovery_codes(ada.id, vec![[3; 32]]).await?);
    let log = fixture.store.audit_entries(None, None, 10).await?;
    let log: Vec<_> = log.iter().rev().map(|entry| (entry.audited.action, entry.audited.subject.as_deref())).collect();
    let actions = [
        Action::AddFactor,
        Action::RemoveFactor,
        Action::AddFactor,
        Action::ResetFactor,
        Action::AddFactor,
        Action::ReplaceRecoveryCodes,
    ];
    assert_eq!(log, actions.map(|action| (action, Some("ada"))));
    Ok(())
});

case!(recovery_codes_are_replaced_and_go_with_the_person, async |fixture| {
    let ada = fixture.ada_with_factor().await?;
    assert!(fixture.store.replace_recovery_codes(ada.id, vec![[3; 32]]).await?);
    assert!(!fixture.store.use_code(ada.id, FactorCode::Recovery(RECOVERY[0])).await?);
    assert!(fixture.store.use_code(ada.id, FactorCode::Recovery([3; 32])).await?);
    assert!(fixture.store.replace_recovery_codes(ada.id, RECOVERY.to_vec()).await?);
    fixture.store.change_account(ada.account, AccountChange::Delete).await?;
    assert_eq!(fixture.store.find_factor(ada.id).await?, None);
    assert!(!fixture.store.use_code(ada.id, FactorCode::Recovery(RECOVERY[0])).await?);
    Ok(())
});
