//! Invitations: who makes them, whom they let in, and when they end.

use std::time::Duration;

use hyper::StatusCode;
use tintype_domain::model::Id;
use tintype_domain::person::Role;
use tintype_store::{AccountChange, Action, PersonChange};

use super::sign_up::focused;
use super::{Visitor, text};
use crate::rigs::http::Answer;
use crate::rigs::service::Service;
use crate::rigs::visitor::set_cookie;

const PASSWORD: &str = "a ferry at dusk, and 7 gulls";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Visitor {
    async fn invite(&self, role: &str, places: &str, days: &str) -> String {
        let made = self.send("/studio/invitations", &[("role", role), ("places", places), ("days", days)]).await;
        let link = self.secret(&made).await;
        let path = link.strip_prefix(&format!("http://{}", self.service.address));
        path.expect("a link of this server").to_owned()
    }

    async fn invitations(&self) -> Vec<Id> {
        let found = self.service.shared.store.list_invitations(self.account).await.expect("a store");
        found.iter().map(|invitation| invitation.id).collect()
    }
}

impl Service {
    async fn join_by(&self, path: &str, name: &str) -> Answer {
        self.join_with(path, name, PASSWORD, &[]).await
    }

    async fn join_with(&self, path: &str, name: &str, password: &str, headers: &[(&str, &str)]) -> Answer {
        self.post_form(path, &[("name", name), ("password", password)], headers).await
    }

    /// Neither the page nor the form of an invitation does anything.
    async fn assert_gone(&self, path: &str, why: &str) {
        for answer in [self.call("GET", path, &[], "").await, self.join_by(path, "late@example.com").await] {
            assert!(
                answer.status == 404 && text(&answer).contains("This invitation doesn&#39;t work"),
                "{why}: {answer:?}"
            );
            assert_eq!(answer.header("referrer-policy"), "strict-origin", "{why}");
            assert!(!answer.headers.contains_key("set-cookie"), "{why}");
        }
        assert!(self.find_person("late@example.com").await.is_none(), "{why}");
    }
}

#[tokio::test]
async fn one_link_lets_several_people_join_with_its_role() {
    let service = Service::start().await;
    let ada = service.visitor("Ada & <Co>", 10).await;
    let path = ada.invite("viewer", "2", "7").await;
    let shown = service.call("GET", &path, &[], "").await;
    assert!(shown.status == 200 && text(&shown).contains("Join Ada &#38; &#60;Co&#62;"), "{shown:?}");
    assert!(text(&shown).contains("Role: Viewer") && !text(&shown).contains("<script"), "{shown:?}");
    assert_eq!((shown.header("referrer-policy"), shown.header("cache-control")), ("strict-origin", "no-store"));
    let german = service.call("GET", &path, &[("accept-language", "de")], "").await;
    assert!(text(&german).contains("Rolle: Betrachter"), "{german:?}");
    // Somebody who asked for a page first lands there.
    let asked = service.call("GET", "/studio/gallery", &[("accept", "text/html")], "").await;
    let joined = service.join_with(&path, " Grace@Example.com ", PASSWORD, &[("cookie", set_cookie(&asked))]).await;
    assert_eq!((joined.status, joined.header("location")), (StatusCode::SEE_OTHER, "/studio/gallery"));
    assert_eq!(joined.header("referrer-policy"), "strict-origin");
    let grace = service.find_person("grace@example.com").await.expect("a person");
    assert_eq!((grace.account_id, grace.role, grace.has_password), (ada.account, Role::Viewer, true));
    let home = service.call("GET", "/studio", &[("cookie", set_cookie(&joined))], "").await;
    assert!(home.status == 200 && text(&home).contains("grace@example.com"), "{home:?}");
    let list = ada.page("/studio/people").await;
    assert!(list.contains("grace@example.com") && list.contains("data-label=\"Places left\">1<"), "{list}");
    assert!(!list.contains(path.rsplit('/').next().expect("a token")), "{list}");
    assert_eq!(service.join_by(&path, "hedy").await.header("location"), "/studio");
    service.assert_gone(&path, "both places are taken").await;
    assert!(!ada.page("/studio/people").await.contains("Open invitations"));
    let log = service.shared.store.audit_entries(Some(ada.account), None, 3).await.expect("a store");
    let log: Vec<_> = log
        .iter()
        .map(|entry| {
            (entry.audited.action, entry.actor.name.as_str(), entry.audited.detail.as_deref().unwrap_or_default())
        })
        .collect();
    let joined = |name| (Action::AddPerson, name, "viewer by invitation");
    let invited = (Action::Invite, ada.person.name.as_str(), "viewer, 2 places");
    assert_eq!(log, [joined("hedy"), joined("grace@example.com"), invited]);
}

#[tokio::test]
async fn a_form_that_cannot_be_taken_keeps_the_name_and_takes_no_place() {
    let service = Service::start().await;
    let ada = service.visitor("harbour", 10).await;
    service.visitor("coco", 10).await;
    let path = ada.invite("member", "1", "1").await;
    for (name, password, said) in [
        ("\"><b>grace", "short", "at least 12 characters"),
        ("\"><b>grace", "qwerty123456", "too easy to guess"),
        ("grace", "grace and 7 gulls", "must not contain your name"),
        ("grace", "harbour and 7 gulls", "must not contain your name"),
        (" ", PASSWORD, "1 to 100 characters"),
        ("two\nlines", PASSWORD, "1 to 100 characters"),
        ("gra\u{441}e", PASSWORD, "letters of one alphabet"),
        ("a\u{202e}grace", PASSWORD, "letters of one alphabet"),
        // Taken: in this account, in another one, and by somebody whose name looks the same.
        (" HARBOUR ", PASSWORD, "cannot be used"),
        ("coco", PASSWORD, "cannot be used"),
        ("\u{441}\u{43e}\u{441}\u{43e}", PASSWORD, "cannot be used"),
    ] {
        let refused = service.join_with(&path, name, password, &[]).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{name:?}: {refused:?}");
        assert!(text(&refused).contains(said) && !text(&refused).contains("<b>grace"), "{name:?}: {refused:?}");
        assert!(!text(&refused).contains(password) && !refused.headers.contains_key("set-cookie"), "{refused:?}");
        assert!(text(&refused).contains("Join harbour"), "{refused:?}");
        let field = if password == PASSWORD { "name" } else { "password" };
        assert_eq!(focused(&refused), field, "{name}: {refused:?}");
    }
    let refused = service.join_with(&path, "\"><b>grace", "short", &[]).await;
    assert!(text(&refused).contains("value=\"&#34;&#62;&#60;b&#62;grace\""), "{refused:?}");
    assert_eq!(service.join_by(&path, "grace").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn an_invitation_ends_with_its_time_its_maker_or_its_revocation() {
    let service = Service::start_on_sqlite(&[]).await;
    let ada = service.visitor("ada", 10).await;
    let store = &service.shared.store;
    for why in ["demoted", "suspended", "removed", "disabled", "revoked", "expired", "deleted"] {
        let maker = service.visitor_as("ada", why, Role::Owner).await;
        let path = maker.invite("member", "5", "1").await;
        let person = maker.person.id;
        assert_eq!(service.call("GET", &path, &[], "").await.status, StatusCode::OK, "{why}");
        match why {
            "demoted" => {
                ada.send(&format!("/studio/people/{person}/role"), &[("role", "member")]).await;
            }
            "suspended" => {
                let file = service.directory.path().join("tintype.db");
                let sql = "UPDATE people SET suspended_at = 1, suspended_for = 'test' WHERE id = ?1";
                rusqlite::Connection::open(file).expect("a database").execute(sql, [person.as_str()]).expect("SQL");
            }
            "removed" => {
                ada.send(&format!("/studio/people/{person}/remove"), &[]).await;
            }
            "revoked" => {
                let id = ada.invitations().await[0];
                for _ in 0..2 {
                    let answer = ada.send(&format!("/studio/invitations/{id}/revoke"), &[]).await;
                    assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, "/studio/people"));
                }
            }
            "expired" => {
                service.clock.advance(DAY);
                service.sweeper.delete_expired().await;
            }
            "disabled" => drop(store.change_account(ada.account, AccountChange::Disable).await.expect("a store")),
            _ => drop(store.change_account(ada.account, AccountChange::Delete).await.expect("a store")),
        }
        service.assert_gone(&path, why).await;
        let paused = ["demoted", "suspended"].contains(&why);
        if why == "demoted" {
            assert!(ada.page("/studio/people").await.contains("Paused: this person is suspended"), "{why}");
            store.change_person(person, PersonChange::Role(Role::Owner)).await.expect("a store");
        } else if why == "suspended" {
            store.change_person(person, PersonChange::Lift).await.expect("a store");
        } else if why == "disabled" {
            store.change_account(ada.account, AccountChange::Enable).await.expect("a store");
        }
        if paused || why == "disabled" {
            assert_eq!(service.call("GET", &path, &[], "").await.status, StatusCode::OK, "{why}, and back");
        }
    }
}

#[tokio::test]
async fn nobody_but_an_owner_invites_and_revokes() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let member = service.visitor_as("ada", "member", Role::Member).await;
    let fields = [("role", "owner"), ("places", "5"), ("days", "7")];
    let refused = member.send("/studio/invitations", &fields).await;
    assert_eq!((refused.status, member.invitations().await), (StatusCode::FORBIDDEN, vec![]));
    for (role, places, days) in [
        ("admin", "5", "7"),
        ("", "5", "7"),
        ("member", "0", "7"),
        ("member", "101", "7"),
        ("member", "-1", "7"),
        ("member", "many", "7"),
        ("member", "", "7"),
        ("member", "5", "365"),
        ("member", "5", ""),
    ] {
        let refused = ada.send("/studio/invitations", &[("role", role), ("places", places), ("days", days)]).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{role} {places} {days}");
    }
    let path = ada.invite("member", "100", "30").await;
    let id = ada.invitations().await[0];
    let revoke = format!("/studio/invitations/{id}/revoke");
    assert_eq!(member.send(&revoke, &[]).await.status, StatusCode::FORBIDDEN);
    assert_eq!(ada.send("/studio/invitations/nonsense/revoke", &[]).await.status, StatusCode::NOT_FOUND);
    assert_eq!(service.call("GET", &path, &[], "").await.status, StatusCode::OK);
    assert!(ada.page("/studio/people").await.contains(id.as_str()));
    for _ in 1..20 {
        ada.invite("member", "5", "7").await;
    }
    let refused = ada.send("/studio/invitations", &fields).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(text(&refused).contains("Revoke one first"), "{refused:?}");
    ada.send(&revoke, &[]).await;
    service.assert_gone(&path, "revoked").await;
    ada.invite("member", "5", "7").await;
}

#[tokio::test]
async fn somebody_who_is_signed_in_joins_nobody() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let path = ada.invite("member", "5", "7").await;
    let cookie = [("cookie", ada.cookie.as_str())];
    for shown in [ada.get(&path).await, service.join_with(&path, "grace", PASSWORD, &cookie).await] {
        assert!(text(&shown).contains("You are signed in as ada."), "{shown:?}");
        assert!(
            text(&shown).contains("href=\"/studio\"") && !text(&shown).contains("<form method=\"post\">"),
            "{shown:?}"
        );
        assert!(!shown.headers.contains_key("set-cookie"), "{shown:?}");
    }
    assert!(service.find_person("grace").await.is_none());
    // A link that does not work is told as such, whoever asks.
    assert_eq!(ada.get("/studio/join/nonsense").await.status, StatusCode::NOT_FOUND);
    let own = format!("http://{}", service.address);
    let headers = [("origin", own.as_str()), ("sec-fetch-site", "same-origin")];
    assert_eq!(service.join_with(&path, "grace", PASSWORD, &headers).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn somebody_who_joins_sets_up_the_second_factor_that_the_operator_requires() {
    let (service, ada) = Service::with_owner(&["--require-second-factor", "everyone"]).await;
    let hash = tintype_domain::person::Token::random();
    let new = tintype_store::NewInvitation {
        account_id: ada.account_id,
        person_id: ada.id,
        hash: hash.hash(),
        role: Role::Member,
        places: 5,
        expires_at: service.shared.store.now().saturating_add(DAY),
    };
    service.shared.store.create_invitation(new, 20).await.expect("a store").expect("an invitation");
    let joined = service.join_by(&format!("/studio/join/{}", hash.reveal()), "grace").await;
    assert_eq!((joined.status, joined.header("location")), (StatusCode::SEE_OTHER, "/studio"));
    let home = service.call("GET", "/studio", &[("cookie", set_cookie(&joined))], "").await;
    assert_eq!((home.status, home.header("location")), (StatusCode::SEE_OTHER, "/studio/second-factor"));
}
