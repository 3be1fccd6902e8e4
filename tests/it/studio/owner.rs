//! The pages of owners: people, credits, keys, and everybody's own password.

use std::time::Duration;

use hyper::StatusCode;
use tintype::service::sign_in_attempts::ALLOWANCE;
use tintype_domain::person::Role;
use tintype_store::Action;

use super::{Visitor, text};
use crate::rigs::service::Service;

#[tokio::test]
async fn an_owner_adds_people_who_sign_in_once_by_a_link() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let added = ada.send("/studio/people", &[("name", " Grace@Example.com "), ("role", "viewer")]).await;
    let link = ada.secret(&added).await;
    let path = link.strip_prefix(&format!("http://{}", service.address)).expect("a link of this server");
    assert_eq!(service.call("POST", path, &[], "").await.status, StatusCode::SEE_OTHER);
    assert!(!ada.page("/studio/people").await.contains("class=\"secret\""));
    let grace = service.find_person("grace@example.com").await.expect("a person");
    assert_eq!((grace.account_id, grace.role), (ada.account, Role::Viewer));
    for (change, fields) in [("role", &[("role", "owner")][..]), ("link", &[]), ("remove", &[])] {
        let answer = ada.send(&format!("/studio/people/{}/{change}", grace.id), fields).await;
        assert!([200, 303].contains(&answer.status.as_u16()), "{change}: {answer:?}");
    }
    assert!(service.find_person("grace@example.com").await.is_none());
    let log = service.shared.store.audit_entries(Some(ada.account), None, 10).await.expect("a store");
    let actions: Vec<_> = log.iter().map(|entry| entry.audited.action).collect();
    let expected = [Action::RemovePerson, Action::MakeLink, Action::ChangeRole, Action::MakeLink, Action::AddPerson];
    assert_eq!(actions, expected);
    assert!(log.iter().all(|entry| entry.actor.person_id == Some(ada.person.id)));
}

#[tokio::test]
async fn nobody_but_an_owner_manages_people_and_nobody_oneself() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let member = service.visitor_as("ada", "member", Role::Member).await;
    assert_eq!(member.get("/studio/people").await.status, StatusCode::FORBIDDEN);
    assert_eq!(member.send("/studio/people", &[("name", "x"), ("role", "owner")]).await.status, StatusCode::FORBIDDEN);
    let fields = [("role", "owner")];
    for change in ["role", "link", "remove", "nonsense"] {
        let of = |person: &Visitor| format!("/studio/people/{}/{change}", person.person.id);
        assert_eq!(member.send(&of(&member), &fields).await.status, StatusCode::FORBIDDEN, "{change}");
        assert_eq!(ada.send(&of(&ada), &fields).await.status, StatusCode::CONFLICT, "{change}");
    }
    // A name is no id.
    assert_eq!(ada.send("/studio/people/member/remove", &[]).await.status, StatusCode::NOT_FOUND);
    service.visitor("eve", 10).await;
    service.visitor("coco", 10).await;
    for (name, role, status) in [
        ("eve", "viewer", 422),
        ("", "viewer", 422),
        ("two\nlines", "viewer", 422),
        // One letter is Cyrillic; the order of letters is turned around; all letters are Cyrillic.
        ("\u{435}ve", "viewer", 422),
        ("a\u{202e}eve", "viewer", 422),
        ("\u{441}\u{43e}\u{441}\u{43e}", "viewer", 422),
        ("x", "admin", 400),
    ] {
        let refused = ada.send("/studio/people", &[("name", name), ("role", role)]).await;
        assert_eq!(refused.status, status, "{name:?}");
        assert!(status != 422 || text(&refused).contains("value=\"viewer\" selected"), "{refused:?}");
    }
    assert!(!ada.page("/studio/people").await.contains(">eve<"));
    assert_eq!(service.find_person("member").await.expect("a person").role, Role::Member);
}

#[tokio::test]
async fn a_person_sets_a_password_and_stays_signed_in_here_alone() {
    let service = Service::start().await;
    let mut ada = service.visitor("ada", 10).await;
    let elsewhere = service.call("POST", &service.link(&ada.person).await, &[], "").await;
    let elsewhere = elsewhere.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    for (new, said) in [
        ("short", "at least 12 characters"),
        ("Password2024!", "too easy to guess"),
        ("my tintype pictures", "must not contain your name"),
    ] {
        let refused = ada.send("/studio/password", &[("new", new)]).await;
        assert!(refused.status == StatusCode::UNPROCESSABLE_ENTITY && text(&refused).contains(said), "{refused:?}");
    }
    for (present, new, status) in [
        ("", "correct horse battery", 303),
        ("correct horse", "another horse battery", 422),
        ("", "another horse battery", 422),
        ("correct horse battery", "another horse battery", 303),
    ] {
        let answer = ada.send("/studio/password", &[("present", present), ("new", new)]).await;
        assert_eq!(answer.status, status, "{present:?}");
        if status == 303 {
            let old = std::mem::replace(
                &mut ada.cookie,
                answer.header("set-cookie").split(';').next().expect("a cookie").to_owned(),
            );
            for ended in [&old, &elsewhere] {
                let gone = service.call("GET", "/studio", &[("cookie", ended)], "").await;
                assert_eq!(gone.status, StatusCode::SEE_OTHER, "the session is rotated");
            }
        }
    }
    ada.page("/studio").await;
    assert!(ada.page("/studio/sessions?password=set").await.contains("The password is set"));
}

#[tokio::test]
async fn the_ledger_is_filtered_on_the_page_and_in_its_download() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    ada.create("a boat").await;
    ada.create("a boat [[fail]]").await;
    service.work().await;
    let lines = async |query: &str| ada.page(&format!("/studio/credits.csv{query}")).await.lines().count() - 1;
    let today: String = service.shared.store.now().to_string().chars().take(10).collect();
    for (query, count) in [
        ("", 4),
        ("?kind=refund", 1),
        ("?kind=charge", 2),
        ("?kind=&from=&until=", 4),
        (format!("?from={today}&until={today}").as_str(), 4),
        ("?until=2020-01-01", 0),
        ("?from=2999-01-01", 0),
    ] {
        assert_eq!(lines(query).await, count, "{query}");
        ada.page(&format!("/studio/credits{query}")).await;
    }
    for query in ["?kind=theft", "?from=yesterday", "?until=2026-02-30"] {
        assert_eq!(ada.get(&format!("/studio/credits{query}")).await.status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(ada.get(&format!("/studio/credits.csv{query}")).await.status, StatusCode::BAD_REQUEST, "{query}");
    }
    assert_eq!(ada.get("/studio/credits?before=7").await.status, StatusCode::BAD_REQUEST, "no number of an entry");
    // Two credits were used today: four were charged, and two came back.
    let page = ada.page("/studio/credits?days=90").await;
    assert!(page.contains(&format!("<title>{today}: 2</title>")), "{page}");
    // Later entries are added to the kept counts, of today and of another day.
    ada.create("a boat").await;
    let page = ada.page("/studio/credits").await;
    assert!(page.contains(&format!("<title>{today}: 4</title>")), "{page}");
    service.work().await;
    service.clock.advance(Duration::from_secs(24 * 60 * 60));
    let tomorrow: String = service.shared.store.now().to_string().chars().take(10).collect();
    ada.create("a boat [[fail]]").await;
    ada.create("a boat").await;
    for _ in 0..2 {
        let page = ada.page("/studio/credits").await;
        assert!(page.contains(&format!("<title>{today}: 4</title>")), "{page}");
        assert!(page.contains(&format!("<title>{tomorrow}: 4</title>")), "{page}");
    }
}

#[tokio::test]
async fn a_key_has_limits_and_rotates_with_the_overlap_that_its_owner_chose() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let fields = [("name", "laptop"), ("days", "30"), ("submit_rate", "5"), ("read_rate", "1200")];
    ada.secret(&ada.send("/studio/keys", &fields).await).await;
    let keys = async || service.shared.store.list_keys(Some(ada.account)).await.expect("a store");
    let key = keys().await.remove(0);
    assert_eq!((key.submit_rate, key.read_rate), (Some(5), Some(1_200)));
    for rate in ["-1", "many", "99999999999", "0", "61"] {
        let refused = ada.send("/studio/keys", &[("name", "x"), ("submit_rate", rate)]).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{rate}");
        let page = text(&refused);
        assert!(
            page.contains("role=\"alert\"") && page.contains(&format!("name=\"submit_rate\" value=\"{rate}\"")),
            "{page}"
        );
        assert!(page.contains("name=\"name\" value=\"x\""), "{page}");
    }
    let page = ada.page("/studio/keys").await;
    assert!(page.contains("Made by ada"), "{page}");
    assert!(
        page.contains("Requests per minute (create): 5") && page.contains("Requests per minute (read): 1200"),
        "{page}"
    );
    let rotated = ada.send(&format!("/studio/keys/{}/rotate", key.id), &[("hours", "0")]).await;
    let shown = ada.get_secret(&rotated).await;
    assert!(text(&shown).contains("The old one no longer works"), "{shown:?}");
    assert_eq!(keys().await[0].expires_at, Some(service.shared.store.now()));
    let new = keys().await[1].id;
    let rotated = ada.send(&format!("/studio/keys/{new}/rotate"), &[("hours", "100000")]).await;
    let shown = ada.get_secret(&rotated).await;
    assert!(text(&shown).contains("24 more hours"), "an overlap that is not offered is the usual one");
}

#[tokio::test]
async fn the_ledger_is_downloaded_and_no_note_is_a_formula() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    service.shared.store.grant(ada.account, 5, Some("=cmd|' /C calc'!A0, \"quoted\""), None).await.expect("a store");
    ada.create("a boat").await;
    let csv = ada.page("/studio/credits.csv").await;
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!((lines.len(), lines[0]), (4, "\u{feff}time,kind,amount,balance,task_id,note"));
    assert!(lines[1].contains(",charge,-2,103,imgmodel-"), "{csv}");
    assert!(lines[2].ends_with(",grant,5,105,,\"'=cmd|' /C calc'!A0, \"\"quoted\"\"\""), "{csv}");
    let page = ada.page("/studio/credits").await;
    assert!(page.contains("103") && page.contains("Opening balance"), "{page}");
}

#[tokio::test]
async fn the_form_for_a_password_does_not_let_anybody_guess_the_present_one() {
    let service = Service::start().await;
    let mut ada = service.visitor("ada", 10).await;
    let set = ada.send("/studio/password", &[("new", "a ferry at dusk, and 7 gulls")]).await;
    ada.cookie = set.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let change = [("present", "a guess that is wrong"), ("new", "another ferry, and 8 gulls")];
    for _ in 1..ALLOWANCE.get() {
        assert_eq!(ada.send("/studio/password", &change).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    let right = [("present", "a ferry at dusk, and 7 gulls"), ("new", "another ferry, and 8 gulls")];
    assert_eq!(ada.send("/studio/password", &right).await.status, StatusCode::TOO_MANY_REQUESTS);
    service.clock.advance(Duration::from_secs(60));
    assert_eq!(ada.send("/studio/password", &right).await.status, StatusCode::SEE_OTHER);
}

/// A password of the thief's own would confirm all that a stolen session could not.
#[tokio::test]
async fn a_session_that_was_left_open_sets_no_first_password() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    service.clock.advance(Duration::from_secs(11 * 60));
    let refused = ada.send("/studio/password", &[("new", "a ferry at dusk, and 7 gulls")]).await;
    assert!(refused.status == StatusCode::FORBIDDEN && text(&refused).contains("last ten minutes"), "{refused:?}");
    assert!(ada.page("/studio/sessions").await.contains("last ten minutes"));
    let eve = service.visitor("eve", 10).await;
    let set = eve.send("/studio/password", &[("new", "a ferry at dusk, and 7 gulls")]).await;
    assert_eq!(set.status, StatusCode::SEE_OTHER);
}
