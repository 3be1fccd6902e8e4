//! The studio over HTTP: signing in, forms, rights, and that it and the API see nothing of each other.

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::json;
use tintype::http::routes::{Access, ROUTES, Route};
use tintype::service::people::People;
use tintype_config::MAX_BODY;
use tintype_domain::model::{FailureCause, Id, Status, Surface, TaskFailure};
use tintype_domain::person::{Role, Token};
use tintype_store::AccountChange;

use crate::rigs::http::{Answer, GENERATE, TASKS};
use crate::rigs::service::Service;
use crate::rigs::visitor::{Visitor, set_cookie, text};

mod accessible;
mod all_day;
mod asks;
mod bin;
mod browser;
mod cookies;
mod docs;
mod downloads;
mod drafts;
mod forms;
mod gallery;
mod grid;
pub mod guesses;
mod invitations;
mod live;
mod lookup;
mod masks;
mod news;
pub mod oidc;
mod oidc_join;
mod oidc_peers;
mod oidc_sign_out;
mod operator;
mod owner;
mod previews;
mod references;
mod rights;
pub mod second_factor;
pub mod shared_links;
mod shifts;
pub mod sign_up;
mod snippets;
mod spending;
mod stopping;
mod strikes;
mod surfaces;
mod uploads;
mod webhooks;
mod widths;
mod words;

/// The cookie where there is no TLS.
const COOKIE: &str = "tintype";

fn path(pattern: &str) -> String {
    let plain = pattern
        .replace("{id}", "FAAAAAAAAAAAAAAAAAAAA")
        .replace("{change}", "revoke")
        .replace("{delivery}", "FAAAAAAAAAAAAAAAAAAAA")
        .replace("{task}", "FAAAAAAAAAAAAAAAAAAAA")
        .replace("{number}", "1")
        .replace("{name}", "default");
    plain.replace("{token}", Token::random().reveal()).replace("{*path}", "no/such/page")
}

/// Those of pages and forms.
fn studio_routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|route| route.pattern.starts_with("/studio") && !route.pattern.starts_with("/studio/assets"))
}

#[tokio::test]
async fn no_page_opens_without_a_session() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let authorization = caller.authorization();
    let unknown = format!("{COOKIE}={}", Token::random().reveal());
    for route in ROUTES.iter().filter(|route| route.access == Access::Session) {
        let (method, path) = (route.method.as_str(), path(route.pattern));
        for headers in [&[][..], &[("authorization", authorization.as_str())], &[("cookie", unknown.as_str())]] {
            let answer = service.call(method, &path, headers, "").await;
            assert_eq!(answer.status, StatusCode::SEE_OTHER, "{route:?}: {answer:?}");
            assert_eq!(answer.header("location"), "/studio/sign-in", "{route:?}");
        }
    }
}

#[tokio::test]
async fn a_link_signs_in_once_and_only_by_its_button() {
    let (service, person) = Service::with_owner(&[]).await;
    let link = service.link(&person).await;
    for _ in 0..2 {
        let shown = service.call("GET", &link, &[], "").await;
        assert!(shown.status == 200 && text(&shown).contains("sign-in link for ada<"), "{shown:?}");
        assert_eq!(shown.header("referrer-policy"), "strict-origin");
        assert!(!shown.headers.contains_key("set-cookie"));
    }
    let used = service.call("POST", &link, &[("user-agent", "Browser/1")], "").await;
    assert_eq!(used.status, StatusCode::SEE_OTHER);
    let cookie = used.header("set-cookie");
    for attribute in ["tintype=", "; Path=/", "; HttpOnly", "; SameSite=Lax", "; Max-Age=7776000"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains("Secure") && !cookie.contains("__Host-"), "{cookie}");
    for (method, path) in [("POST", link.as_str()), ("GET", &link), ("POST", "/studio/sign-in/nonsense")] {
        let again = service.call(method, path, &[], "").await;
        assert!(again.status == 200 && text(&again).contains("has been used"), "{again:?}");
        assert!(!again.headers.contains_key("set-cookie"));
    }
    let sessions = service.shared.store.list_sessions(person.id).await.expect("a store");
    assert_eq!(sessions.iter().map(|session| session.agent.as_str()).collect::<Vec<_>>(), ["Browser/1"]);
}

#[tokio::test]
async fn a_password_signs_in_and_a_failure_does_not_tell_which_names_exist() {
    let service = Service::start().await;
    service.shared.store.create_account("ada", 10).await.expect("a store");
    let (ada, _) =
        (service.person("ada", "ada@example.com", Role::Owner).await, service.person("ada", "eve", Role::Owner).await);
    let people = People::new(service.shared.store.clone());
    let set = people.set_password(&ada, "correct horse battery".into()).await.expect("a store");
    assert!(set.expect("a good password").is_some());
    assert!(people.set_password(&ada, "short".into()).await.expect("a store").is_err());
    let sign_in = async |name: &str, password: &str| {
        service.post_form("/studio/sign-in", &[("name", name), ("password", password)], &[]).await
    };
    let mut refusals = Vec::new();
    for (name, password) in [
        ("ada@example.com", "correct horse"),
        ("nobody", "correct horse battery"),
        ("eve", "correct horse battery"),
        ("", ""),
        ("ada@example.com", ""),
    ] {
        let refused = sign_in(name, password).await;
        assert!(!refused.headers.contains_key("set-cookie"), "{name}");
        refusals.push((refused.status, text(&refused).replace(&format!("value=\"{name}\""), "")));
    }
    refusals.dedup();
    assert_eq!(refusals.len(), 1, "{refusals:#?}");
    assert_eq!(sign_in(" Ada@EXAMPLE.com ", "correct horse battery").await.status, StatusCode::SEE_OTHER);
    service.shared.store.change_account(ada.account_id, AccountChange::Disable).await.expect("a store");
    let disabled = sign_in("ada@example.com", "correct horse battery").await;
    assert_eq!((disabled.status, text(&disabled).contains("Wrong name or password")), (StatusCode::OK, true));
}

#[tokio::test]
async fn a_session_ends_for_good() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let elsewhere = service.link(&ada.person).await;
    let other = set_cookie(&service.call("POST", &elsewhere, &[], "").await).to_owned();
    let other = Visitor { service: service.clone(), account: ada.account, person: ada.person.clone(), cookie: other };
    other.page("/studio").await;
    assert_eq!(ada.send("/studio/sessions/end", &[]).await.status, StatusCode::SEE_OTHER);
    assert_eq!(other.get("/studio").await.status, StatusCode::SEE_OTHER);
    let out = ada.send("/studio/sign-out", &[]).await;
    assert!(out.header("set-cookie").contains("tintype=; Path=/; Max-Age=0"), "{out:?}");
    assert_eq!(ada.get("/studio").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn every_form_from_another_site_is_refused() {
    let (service, ada) = Service::with_visitor(&["--sign-up"], 10).await;
    let proof = ada.proof().await;
    for route in studio_routes().filter(|route| !route.method.is_safe()) {
        for header in [("origin", "https://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")] {
            let refused = match route.access {
                Access::Session => ada.send_with(&path(route.pattern), &[], &proof, &[header]).await,
                _ => service.call("POST", &path(route.pattern), &[header], "").await,
            };
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{route:?}, {header:?}: {refused:?}");
            assert!(text(&refused).contains("another page"), "{route:?}, {header:?}: {refused:?}");
        }
    }
}

#[tokio::test]
async fn a_form_from_another_site_is_refused() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let eve = service.visitor("eve", 10).await;
    let proof = ada.proof().await;
    let fields = [("prompt", "a boat"), ("shape", "1:1"), ("n", "1")];
    let own = format!("http://{}", service.address);
    for (proof, headers) in [("", &[][..]), (&proof, &[("sec-fetch-site", "same-site"), ("origin", &own)])] {
        let refused = ada.send_with("/studio/tasks", &fields, proof, headers).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{headers:?}: {refused:?}");
        assert!(text(&refused).contains("another page"), "{refused:?}");
    }
    // A secret of another session is one of this browser's earlier ones, as far as the server can tell.
    let old = ada.send_with("/studio/tasks", &fields, &eve.proof().await, &[]).await;
    assert_eq!(old.status, StatusCode::FORBIDDEN);
    assert!(text(&old).contains("You have signed in again since this page was loaded. Reload it"), "{old:?}");
    assert_eq!(ada.credits().await, 10);
    let headers = [("origin", own.as_str()), ("sec-fetch-site", "same-origin")];
    assert_eq!(ada.send_with("/studio/tasks", &fields, &proof, &headers).await.status, StatusCode::SEE_OTHER);
    assert_eq!(ada.credits().await, 8);
    // What the browser says of the page counts: with `Referrer-Policy: no-referrer` it sends no other origin.
    let headers = [("origin", "null"), ("sec-fetch-site", "same-origin")];
    assert_eq!(ada.send_with("/studio/tasks", &fields, &proof, &headers).await.status, StatusCode::SEE_OTHER);
    assert_eq!(ada.credits().await, 6);
}

#[tokio::test]
async fn cookies_of_other_applications_may_hold_any_bytes() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let cookies = format!("portal=José; {}; other=\u{1F98A}", ada.cookie);
    let page = service.call("GET", "/studio", &[("cookie", &cookies)], "").await;
    assert_eq!(page.status, StatusCode::OK, "{page:?}");
}

#[tokio::test]
async fn a_page_with_a_slash_too_many_leads_to_the_page() {
    let (_, ada) = Service::with_visitor(&[], 10).await;
    for (path, page) in [
        ("/studio/", "/studio"),
        ("/studio/?prompt=a%20boat", "/studio?prompt=a%20boat"),
        ("/studio/gallery/?q=x", "/studio/gallery?q=x"),
        ("/studio//", "/studio"),
        ("/studio/nowhere/", "/studio/nowhere"),
    ] {
        let answer = ada.get(path).await;
        assert_eq!((answer.status, answer.header("location")), (StatusCode::PERMANENT_REDIRECT, page), "{path}");
    }
    let nowhere = ada.get("/studio/nowhere").await;
    assert_eq!(nowhere.status, StatusCode::NOT_FOUND);
    assert!(text(&nowhere).contains("This page does not exist") && !text(&nowhere).contains("operator"), "{nowhere:?}");
}

#[tokio::test]
async fn a_form_arrives_through_a_proxy_that_names_another_host() {
    let (_, ada) = Service::with_visitor(&["--public-url", "https://images.example.com"], 10).await;
    let proof = ada.proof().await;
    let fields = [("prompt", "a boat"), ("shape", "1:1"), ("n", "1")];
    for (origin, status) in [("https://images.example.com", 303), ("https://example.com", 403)] {
        let answer = ada.send_with("/studio/tasks", &fields, &proof, &[("origin", origin)]).await;
        assert_eq!(answer.status, status, "{origin}");
    }
}

#[tokio::test]
async fn a_task_of_the_studio_is_charged_rendered_and_shown() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let id = ada.create("a <b>boat</b> & \"sails\"").await;
    assert_eq!(ada.credits().await, 8);
    let waiting = ada.page("/studio").await;
    assert!(waiting.contains("a &#60;b&#62;boat&#60;/b&#62; &#38; &#34;sails&#34;"), "{waiting}");
    assert!(
        waiting.contains("data-state=\"processing\"") && waiting.contains("Waiting") && waiting.contains("8 credits")
    );
    service.work().await;
    let done = ada.page(&format!("/studio/tasks/{id}")).await;
    let url = done.split("<a href=\"/files/").nth(1).and_then(|rest| rest.split('"').next()).expect("a picture");
    let file = service.call("GET", &format!("/files/{url}"), &[], "").await;
    assert!(file.status == 200 && file.body.starts_with(b"\x89PNG"));
    let failed = ada.finished("a boat [[fail]]").await;
    let page = ada.page(&format!("/studio/tasks/{failed}")).await;
    assert!(page.contains("Failed") && page.contains("refunded"), "{page}");
    assert_eq!(ada.credits().await, 8);
}

#[tokio::test]
async fn a_form_that_is_sent_again_after_a_lost_answer_is_charged_once() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    ada.create_with("a boat", &[("once", "7-1")]).await;
    let first = ada.create_with("a boat", &[("once", "7-1")]).await;
    assert_eq!(ada.credits().await, 8);
    service.work().await;
    let proof = ada.proof().await;
    let fields = [("prompt", "a boat"), ("shape", "1:1"), ("n", "1"), ("once", "7-1")];
    let script = [("x-requested-with", "studio")];
    let again = ada.send_with("/studio/tasks", &fields, &proof, &script).await;
    assert!(again.status == 200 && text(&again).contains(&format!("id=\"task-{first}\"")), "{again:?}");
    // Neither another form nor another person finds it.
    assert_ne!(ada.create_with("a boat", &[("once", "7-2")]).await, first);
    assert_ne!(bob.create_with("a boat", &[("once", "7-1")]).await, first);
    assert_eq!(ada.credits().await, 4);
}

#[tokio::test]
async fn two_copies_of_a_form_at_once_make_one_task() {
    let (_, ada) = Service::with_visitor(&[], 10).await;
    let once = [("once", "7-1")];
    let (one, other) = tokio::join!(ada.submit("a boat", &once), ada.submit("a boat", &once));
    assert_eq!((one.status, other.status, ada.credits().await), (StatusCode::SEE_OTHER, StatusCode::SEE_OTHER, 8));
    // The name does not stand for other fields.
    assert_eq!(ada.submit("a ferry", &once).await.status, StatusCode::SEE_OTHER);
    assert_eq!(ada.credits().await, 6);
}

#[tokio::test]
async fn a_form_that_is_sent_again_finds_its_task_before_anything_refuses_it() {
    let (_, ada) = Service::with_visitor(&["--submit-rate", "1"], 2).await;
    for _ in 0..3 {
        assert_eq!(ada.submit("a boat", &[("once", "7-1")]).await.status, StatusCode::SEE_OTHER);
    }
    assert_eq!(ada.submit("a boat", &[("once", "7-2")]).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ada.credits().await, 0);
}

#[tokio::test]
async fn the_studio_refuses_what_the_api_refuses_and_keeps_the_words() {
    let (_, ada) = Service::with_visitor(&[], 3).await;
    for (fields, reason) in [
        ([("prompt", "  "), ("shape", "1:1"), ("n", "1"), ("references", "")], "Describe the picture first"),
        ([("prompt", "a boat"), ("shape", "7:1"), ("n", "1"), ("references", "")], "Choose one of the shapes"),
        ([("prompt", "a boat"), ("shape", "1:1"), ("n", "5"), ("references", "")], "Choose 1 to 4 pictures"),
        ([("prompt", "a boat"), ("shape", "1:1"), ("n", "1"), ("references", "http://a.example/b.png")], "https"),
        ([("prompt", "a boat"), ("shape", "1:1"), ("n", "2"), ("references", "")], "costs 4 credits"),
    ] {
        let refused = ada.send("/studio/tasks", &fields).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{refused:?}");
        assert!(text(&refused).contains(reason), "{reason}: {}", text(&refused));
        assert!(text(&refused).contains(fields[0].1), "the words are still there");
    }
    assert_eq!(ada.credits().await, 3);
}

#[tokio::test]
async fn a_role_limits_a_person() {
    let (service, owner) = Service::with_visitor(&[], 100).await;
    let member = service.visitor_as("ada", "member", Role::Member).await;
    let viewer = service.visitor_as("ada", "viewer", Role::Viewer).await;
    let id = member.create("a boat").await;
    assert!(viewer.page("/studio").await.contains("a boat"));
    let fields = [("prompt", "a boat"), ("shape", "1:1"), ("n", "1")];
    assert_eq!(viewer.send("/studio/tasks", &fields).await.status, StatusCode::FORBIDDEN);
    assert_eq!(viewer.send(&format!("/studio/tasks/{id}/cancel"), &[]).await.status, StatusCode::FORBIDDEN);
    // What creates nothing is refused in other words.
    let task = format!("task-{id}");
    for path in [
        "/studio/gallery/star",
        "/studio/gallery/delete",
        "/studio/boards",
        "/studio/boards/FAAAAAAAAAAAAAAAAAAAA/remove",
        "/studio/bin/empty",
        "/studio/links",
        "/studio/uploads/FAAAAAAAAAAAAAAAAAAAA/remove",
    ] {
        let refused = viewer.send(path, &[(&task, "1"), ("name", "Boats")]).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
        assert!(text(&refused).contains("Viewers cannot change anything. Ask an owner."), "{path}: {refused:?}");
    }
    for person in [&member, &viewer] {
        assert_eq!(person.get("/studio/keys").await.status, StatusCode::FORBIDDEN);
        assert_eq!(person.send("/studio/keys", &[("name", "mine")]).await.status, StatusCode::FORBIDDEN);
    }
    assert_eq!(owner.get("/studio/keys").await.status, 200);
}

#[tokio::test]
async fn a_key_is_shown_once_and_works() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let made = ada.send("/studio/keys", &[("name", "laptop"), ("days", "30")]).await;
    let key = ada.secret(&made).await;
    let works = async |key: &str| {
        service.call("GET", TASKS, &[("authorization", &format!("Bearer {key}"))], "").await.status == 200
    };
    assert!(works(&key).await);
    let page = ada.page("/studio/keys").await;
    assert!(page.contains("laptop") && !page.contains(&key));
    let id = service.shared.store.list_keys(Some(ada.account)).await.expect("a store")[0].id;
    let rotated = ada.send(&format!("/studio/keys/{id}/rotate"), &[]).await;
    let new = ada.secret(&rotated).await;
    assert!(works(&key).await && works(&new).await);
    assert_eq!(ada.send(&format!("/studio/keys/{id}/revoke"), &[]).await.status, StatusCode::SEE_OTHER);
    service.clock.advance(tintype_config::KEY_CACHE_TTL * 2);
    assert!(!works(&key).await && works(&new).await);
}

#[tokio::test]
async fn production_wants_https_and_binds_the_cookie_to_the_host() {
    let (service, person) = Service::with_owner(&["--production", "--trusted-proxy", "127.0.0.0/8"]).await;
    let link = service.link(&person).await;
    for route in studio_routes() {
        let refused = service.call(route.method.as_str(), &path(route.pattern), &[], "").await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{route:?}: {refused:?}");
        assert!(text(&refused).contains("HTTPS"), "{route:?}: {refused:?}");
    }
    let https = ("x-forwarded-proto", "https");
    let answer = service.call("POST", &link, &[https], "").await;
    let cookie = answer.header("set-cookie").to_owned();
    assert!(cookie.starts_with("__Host-tintype=") && cookie.ends_with("; Secure"), "{cookie}");
    let cookie = cookie.split(';').next().expect("a cookie");
    assert_eq!(service.call("GET", "/studio", &[https, ("cookie", cookie)], "").await.status, 200);
    let plain = cookie.replace("__Host-", "");
    assert_eq!(service.call("GET", "/studio", &[https, ("cookie", &plain)], "").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn every_page_has_a_strict_policy_and_the_language_of_its_reader() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let headers = [("cookie", ada.cookie.as_str()), ("accept-language", "de-AT,de;q=0.9,en;q=0.5")];
    for path in ["/studio", "/studio/keys", "/studio/nowhere", "/studio/tasks/nonsense", "/studio/sign-in/x"] {
        let page = service.call("GET", path, &headers, "").await;
        assert!(text(&page).contains("<html lang=\"de\">"), "{path}: {page:?}");
        let policy = page.header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self';",
            "style-src 'self';",
            "frame-ancestors 'none'",
            "form-action 'self'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert_eq!(page.header("cache-control"), "no-store");
        assert_eq!(text(&page).contains("<noscript>"), path == "/studio", "only pages that follow tasks need scripts");
        assert!(!text(&page).contains(" style=\"") && !text(&page).contains("<script>"));
        assert!(!page.header("x-request-id").is_empty());
    }
}

#[tokio::test]
async fn a_body_that_is_no_form_is_refused() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let json = ("content-type", "application/json");
    let form = ("content-type", "application/x-www-form-urlencoded");
    for (kind, body) in [(json, Bytes::from_static(b"{}")), (form, Bytes::from(vec![b'a'; MAX_BODY + 1]))] {
        let headers = [("cookie", ada.cookie.as_str()), kind];
        let refused = service.call("POST", "/studio/tasks", &headers, body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
    }
}
