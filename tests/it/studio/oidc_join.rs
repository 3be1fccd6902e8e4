//! Joining an account by a rule of the operator, and roles that follow the provider.

use hyper::StatusCode;
use serde_json::json;
use tempfile::TempDir;
use tintype_config::ServerSettings;
use tintype_domain::person::{Person, Role};
use tintype_store::{AccountChange, Action};

use super::oidc::{FORBIDDEN, Scene, refused};
use super::{Visitor, text};
use crate::rigs::http::Answer;
use crate::rigs::oidc::Provider;

const CHIEFS: [&str; 2] = ["--oidc-join", "group:chiefs=studio:owner"];
const ARTISTS: [&str; 2] = ["--oidc-join", "group:artists=studio:member"];
const DOMAIN: [&str; 2] = ["--oidc-join", "domain:example.com=studio:viewer"];

async fn scene(person: &str, flags: &[&[&str]]) -> Scene {
    let scene = Scene::start(person, &flags.concat()).await;
    scene.service.shared.store.create_account("studio", 9).await.expect("a store");
    scene
}

impl Scene {
    /// The person with the identity `subject`.
    async fn person(&self, subject: &str) -> Option<Person> {
        let identity = tintype_domain::identity::Identity::new(&self.provider.issuer, subject).expect("an identity");
        self.service.shared.store.find_identity(&identity).await.expect("a store")
    }

    async fn role(&self, subject: &str) -> Option<Role> {
        self.person(subject).await.map(|person| person.role)
    }

    async fn is_in(&self, subject: &str) -> bool {
        let person = self.person(subject).await.expect("a person");
        !self.service.shared.store.list_sessions(person.id).await.expect("a store").is_empty()
    }
}

fn entered(answer: &Answer) {
    assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, "/studio"), "{answer:?}");
}

#[tokio::test]
async fn somebody_new_joins_by_the_first_rule_that_matches() {
    let scene = scene("ada", &[&CHIEFS, &ARTISTS, &DOMAIN]).await;
    let other = scene.service.visitor("ada", 0).await;
    for _ in 0..2 {
        entered(&scene.sign_in().await);
    }
    let ada = scene.person("ada").await.expect("a person");
    assert_eq!(ada.role, Role::Viewer);
    assert!(ada.account_id != other.account && ada.name == format!("ada-{}", ada.id.as_str().to_lowercase()));
    let log = scene.service.shared.store.audit_entries(Some(ada.account_id), None, 9).await.expect("a store");
    let found: Vec<_> = log.iter().map(|entry| (entry.audited.action, entry.actor.person_id)).collect();
    assert_eq!(found, [(Action::AddPerson, Some(ada.id))]);
    // Roles stay unless the operator lets them follow.
    for (subject, claims, role) in [
        ("ada", json!({"groups": ["chiefs"]}), Role::Viewer),
        ("grace", json!({"groups": ["artists", "chiefs"]}), Role::Owner),
        ("joan", json!({"groups": "artists", "email_verified": false}), Role::Member),
    ] {
        scene.provider.signs_in(subject);
        scene.provider.claims(&claims);
        entered(&scene.sign_in().await);
        assert_eq!(scene.role(subject).await, Some(role), "{subject}");
    }
}

#[tokio::test]
async fn claims_outside_of_the_id_token_count_too() {
    let provider = Provider::start_strict("ada");
    let scene = Scene::start_at(provider, &[&DOMAIN[..], &ARTISTS].concat()).await;
    scene.service.shared.store.create_account("studio", 0).await.expect("a store");
    scene.provider.claims(&json!({"preferred_username": "countess"}));
    entered(&scene.sign_in().await);
    let ada = scene.person("ada").await.expect("a person");
    assert_eq!((ada.role, ada.name.as_str()), (Role::Viewer, "countess"));
}

#[tokio::test]
async fn nobody_joins_without_a_claim_that_proves_it() {
    let scene = scene("eve", &[&ARTISTS, &DOMAIN]).await;
    for (claims, words) in [
        (json!({"email_verified": false}), "is not linked to an account here"),
        (json!({"email_verified": null}), "is not linked to an account here"),
        (json!({"email_verified": 1}), "could not be confirmed"),
        (json!({"email": "eve@example.com.evil.org"}), "is not linked to an account here"),
        (json!({"email": "eve@sub.example.com"}), "is not linked to an account here"),
        (json!({"email": "eve@example.com@evil.org"}), "is not linked to an account here"),
        (json!({"email": "eve@ex\u{430}mple.com"}), "is not linked to an account here"),
        (json!({"email": ["eve@example.com"]}), "could not be confirmed"),
        (json!({"email": null, "groups": ["Artists", "art", "artists,chiefs"]}), "is not linked to an account here"),
        (json!({"groups": {"artists": true}}), "could not be confirmed"),
        (json!({"groups": 5}), "could not be confirmed"),
        (json!({"groups": [["artists"]]}), "could not be confirmed"),
    ] {
        scene.provider.claims(&claims);
        let answer = scene.sign_in().await;
        assert!(text(&answer).contains(words), "{claims}: {answer:?}");
        refused(&answer, FORBIDDEN, words);
        // An attempt that failed counts, and few fail within a minute.
        scene.service.clock.advance(std::time::Duration::from_secs(61));
    }
    scene.provider.claims(&json!({}));
    let store = &scene.service.shared.store;
    let account = store.find_account("studio").await.expect("a store").expect("an account");
    assert_eq!(store.list_people(Some(account.id)).await.expect("a store"), []);
    store.change_account(account.id, AccountChange::Disable).await.expect("a store");
    refused(&scene.sign_in().await, FORBIDDEN, "account is disabled");
    store.change_account(account.id, AccountChange::Delete).await.expect("a store");
    refused(&scene.sign_in().await, FORBIDDEN, "is not linked to an account here");
    assert_eq!(store.list_people(None).await.expect("a store"), []);
}

#[tokio::test]
async fn a_role_follows_the_provider_until_no_rule_matches() {
    let scene = scene("ada", &[&CHIEFS, &ARTISTS, &["--oidc-roles", "always"]]).await;
    let store = &scene.service.shared.store;
    let boss = scene.service.visitor_as("studio", "boss", Role::Owner).await;
    for (group, role) in [("artists", Role::Member), ("chiefs", Role::Owner), ("artists", Role::Member)] {
        scene.provider.claims(&json!({"groups": [group]}));
        entered(&scene.sign_in().await);
        assert_eq!(scene.role("ada").await, Some(role));
    }
    let ada = scene.person("ada").await.expect("a person");
    let log = store.audit_entries(Some(ada.account_id), None, 9).await.expect("a store");
    assert_eq!((log[0].audited.action, log[0].actor.name.as_str()), (Action::ChangeRole, "OpenID Connect"));
    // The provider makes a claim of a type that says nothing: nobody is shut out by mistake.
    scene.provider.claims(&json!({"groups": 5}));
    refused(&scene.sign_in().await, FORBIDDEN, "could not be confirmed");
    assert!(scene.is_in("ada").await);
    scene.provider.claims(&json!({"groups": ["others"]}));
    refused(&scene.sign_in().await, FORBIDDEN, "no longer gives you access");
    assert!(!scene.is_in("ada").await);
    let log = store.audit_entries(Some(ada.account_id), None, 9).await.expect("a store");
    assert_eq!((log[0].audited.action, log[0].audited.subject.as_deref()), (Action::RevokeAccess, Some("ada")));
    scene.provider.claims(&json!({"groups": ["chiefs"]}));
    entered(&scene.sign_in().await);
    // The last owner stays one, so that the account has one.
    assert!(store.remove_person(boss.person.id).await.expect("a store"));
    scene.provider.claims(&json!({"groups": ["artists"]}));
    entered(&scene.sign_in().await);
    assert_eq!(scene.role("ada").await, Some(Role::Owner));
}

#[tokio::test]
async fn the_rules_of_one_account_do_not_concern_another_one() {
    let scene = scene("ada", &[&ARTISTS, &["--oidc-roles", "always", "--sign-up"]]).await;
    // Nobody had a rule for this person.
    entered(&scene.sign_in().await);
    let ada = scene.person("ada").await.expect("a person");
    scene.provider.claims(&json!({"groups": ["artists"]}));
    entered(&scene.sign_in().await);
    assert_eq!(scene.person("ada").await, Some(ada));
}

#[tokio::test]
async fn somebody_who_is_suspended_keeps_the_identity() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("policy.toml");
    std::fs::write(&path, "[[rule]]\nname = \"arms\"\nwords = [\"bomb\"]\n[strikes]\nlimit = 1\nwindow = \"1h\"\n")
        .expect("a file");
    let scene = scene("ada", &[&ARTISTS, &["--policy", path.to_str().expect("text")]]).await;
    scene.provider.claims(&json!({"groups": ["artists"]}));
    let answer = scene.sign_in().await;
    let mut cookies = answer.headers.get_all("set-cookie").iter().map(|set| set.to_str().expect("text"));
    let cookie = cookies.find_map(|set| set.split(';').next().filter(|set| set.starts_with("tintype=")));
    let person = scene.person("ada").await.expect("a person");
    let (service, account) = (&scene.service, person.account_id);
    let ada = Visitor { service: service.clone(), account, person, cookie: cookie.expect("a session").to_owned() };
    let set = ada.send("/studio/password", &[("new", "correct horse battery")]).await;
    let cookie = set.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let ada = Visitor { cookie, ..ada };
    // Otherwise the next sign-in would make a new person, who is not suspended.
    ada.create("a bomb").await;
    scene.service.work().await;
    assert!(scene.person("ada").await.expect("a person").suspension.is_some());
    assert_eq!(ada.send("/studio/oidc/unlink", &[]).await.status, StatusCode::CONFLICT);
    assert!(scene.person("ada").await.is_some());
}

#[test]
fn rules_need_a_provider_and_have_a_form() {
    let provider = ["--oidc-issuer", "https://id.example.com", "--oidc-client-id", "tintype"];
    let read = |flags: &[&str]| ServerSettings::from_flags(provider.iter().chain(flags).copied());
    read(&[&DOMAIN[..], &ARTISTS, &["--oidc-roles", "always", "--oidc-groups-claim", "roles"]].concat())
        .expect("flags");
    read(&["--oidc-join", "group:a=b:owner;group:c=d:viewer"]).expect("two rules");
    // forkmost#89, jellyfin-plugin-sso#36: Discord and Twitch have no scope `profile`, and refuse a sign-in that asks for it.
    for (named, asked_for) in [
        (&[][..], "openid profile email"),
        (&["--oidc-scope", "groups,email,roles"], "openid profile email groups roles"),
        (&["--oidc-scope", "identify,openid"], "identify openid"),
        (&["--oidc-scope", "openid email"], "openid email"),
    ] {
        let provider = read(named).expect("flags").oidc.provider().expect("no secret").expect("a provider");
        assert_eq!(provider.scopes.join(" "), asked_for);
    }
    for wrong in [
        &["--oidc-join", "group:a=b"][..],
        &["--oidc-join", "domain:*=b:owner"],
        &["--oidc-roles", "always"],
        &["--oidc-groups-claim", "roles"],
        &["--oidc-join", "group:a=b:owner", "--oidc-roles", "never"],
    ] {
        assert!(read(wrong).is_err(), "{wrong:?}");
    }
    assert!(ServerSettings::from_flags(ARTISTS).is_err());
}
