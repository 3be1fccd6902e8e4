//! Uploads, signing in and up, and pages of the studio.

use std::time::Duration;

use axum::body::Body;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use hyper::{Request, StatusCode};
use serde_json::json;
use tintype::http::router;
use tintype::service::limits::{FORMS, OF_ACCOUNT, PAGES, REPORTS, RateLimit, VIEWS};
use tintype::service::rejections::ALLOWANCE;
use tintype::service::sign_in_attempts::CODE_ALLOWANCE;
use tintype::service::uploads::MAX_ARRIVING_OF_ACCOUNT;
use tintype::studio::MAX_WATCHERS_OF_PERSON;
use tintype_domain::model::Surface;
use tintype_domain::person::Role;
use tower_service::Service as _;

use super::answers::awaits;
use crate::openai_edits::data_url;
use crate::openai_edits::hostile::FORM;
use crate::person::violate;
use crate::rigs::http::{Answer, status_of};
use crate::rigs::service::Service;
use crate::rigs::visitor::{Visitor, text};
use crate::rigs::wait::until;
use crate::studio::guesses::PASSWORD;
use crate::studio::oidc::{ADDRESSES, FORBIDDEN, Scene, refused, with_false_code};
use crate::studio::second_factor::Ada as WithFactor;
use crate::studio::sign_up::OPEN;

/// The status of whoever takes too much.
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;

#[tokio::test]
async fn places_for_uploads() {
    let (_, [ada, bob]) = Service::with_callers(&["--submit-rate", "0"], ["ada", "bob"], 100).await;
    let announced = format!("content-type: {FORM}\r\ncontent-length: 100000\r\nexpect: 100-continue\r\n");
    let mut slow = Vec::new();
    for _ in 0..MAX_ARRIVING_OF_ACCOUNT {
        slow.push(ada.open(&announced).await);
        assert_eq!(status_of(slow.last_mut().expect("the last one")).await, 100, "its body is waited for");
    }
    assert_eq!(status_of(&mut ada.open(&announced).await).await, 429);
    assert_eq!(status_of(&mut bob.open(&announced).await).await, 100);
}

#[tokio::test]
async fn rejected_uploads() {
    let (service, [ada, bob]) = Service::with_callers(&["--submit-rate", "0"], ["ada", "bob"], 2).await;
    let nonsense = json!({ "prompt": "a boat", "image": data_url(b"nonsense") });
    for _ in 0..=ALLOWANCE.get() {
        assert_eq!(ada.edit_json(&nonsense).await.status, 400);
    }
    let paused = ada.edit_json(&nonsense).await;
    assert_eq!((paused.status.as_u16(), paused.header("retry-after")), (429, "3"), "{paused:?}");
    assert_eq!(bob.edit_json(&nonsense).await.status, 400);
    service.clock.advance(Duration::from_secs(4));
    assert_eq!(ada.edit_json(&nonsense).await.status, 400);
}

/// One address makes attempts that need a hash, while no hash ends. Few of them wait, and the others are refused. Then the
/// victim makes one at another address.
fn few_of_one_address_wait(flags: &[&str], victim: &str, attempt: impl AsyncFn(&Service, &str, &str) -> Answer) {
    // One thread computes, and the test keeps it busy.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    runtime.expect("a runtime").block_on(async {
        let service = Service::start_with(flags).await;
        service.ada().await;
        let (release, busy) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || busy.recv());
        let of_eve = async |number| attempt(&service, "192.0.2.1", &format!("eve-{number}")).await.status;
        // More than there are places. Those without one are answered.
        let mut attempts: FuturesUnordered<_> = (0..100).map(of_eve).collect();
        assert_eq!(attempts.next().await, Some(TOO_MANY));
        let others = async {
            for number in 200..203 {
                assert_eq!(of_eve(number).await, TOO_MANY);
            }
            drop(release);
        };
        let (served, ()) = tokio::join!(attempt(&service, "192.0.2.2", victim), others);
        assert_eq!(served.status, StatusCode::SEE_OTHER, "{served:?}");
        busy.await.expect("no panic").expect_err("nothing was sent");
    });
}

#[test]
fn password_hashes() {
    let flags = ["--trusted-proxy", "127.0.0.1"];
    few_of_one_address_wait(&flags, "ada@example.com", async |service, address, name| {
        service.sign_in_from(address, name, PASSWORD).await
    });
}

#[test]
fn sign_ups_that_wait() {
    few_of_one_address_wait(&OPEN, "bob", async |service, address, name| service.sign_up_from(address, name).await);
}

#[tokio::test]
async fn exchanges_with_the_openid_connect_provider() {
    let scene = Scene::start("ada", &["--sign-up", "--trusted-proxy", "127.0.0.1"]).await;
    let mut ways = Vec::new();
    for _ in 0..6 {
        let trip = scene.depart("/studio/oidc", "").await;
        let back = scene.provider.visit(&trip.target).await;
        ways.push((format!("{}?{}", back.path(), back.query().expect("a query")), trip.cookie));
    }
    scene.provider.pause();
    let (path, cookie) = ways.pop().expect("a way");
    let mut waiting: FuturesUnordered<_> = ways.iter().map(|(path, cookie)| scene.come_back(path, cookie)).collect();
    // The provider answers none of the others, so that each of them has a place.
    refused(&waiting.next().await.expect("an answer"), TOO_MANY, "");
    scene.provider.resume();
    assert_eq!(scene.come_back_from(ADDRESSES[1], &path, &cookie).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn exchanges_that_come_to_nothing() {
    let scene = Scene::start("ada", &["--sign-up", "--trusted-proxy", "127.0.0.1"]).await;
    let trip = scene.depart("/studio/oidc", "").await;
    let path = with_false_code(&trip);
    for _ in 0..=20 {
        refused(&scene.come_back(&path, &trip.cookie).await, FORBIDDEN, "could not be confirmed");
    }
    refused(&scene.come_back(&path, &trip.cookie).await, TOO_MANY, "");
    let other = scene.come_back_from(ADDRESSES[1], &path, &trip.cookie).await;
    refused(&other, FORBIDDEN, "could not be confirmed");
    scene.service.clock.advance(Duration::from_secs(4));
    assert_eq!(scene.sign_in().await.header("location"), "/studio");
}

#[tokio::test]
async fn codes_of_a_second_factor() {
    let service = Service::start_with(&["--trusted-proxy", "127.0.0.1"]).await;
    let (ada, bob) = (WithFactor::named("ada", &service).await, WithFactor::named("bob", &service).await);
    let form = service.show_password("ada").await;
    for number in 1..=CODE_ALLOWANCE.get() {
        assert_eq!(form.send_from(&format!("192.0.2.{number}"), "000000").await.status, StatusCode::OK, "{number}");
    }
    assert_eq!(form.send_from("192.0.2.20", &ada.code()).await.status, TOO_MANY);
    let of_bob = service.show_password("bob").await.send_from("192.0.2.20", &bob.code()).await;
    assert_eq!(of_bob.status, StatusCode::SEE_OTHER, "{of_bob:?}");
}

#[tokio::test]
async fn forms_of_the_studio() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 10).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    let path = format!("/studio/people/{}/link", bob.person.id);
    let proof = ada.proof().await;
    for sent in 0..240 {
        let made = ada.send_with(&path, &[], &proof, &[]).await;
        assert_eq!((made.status, made.header("location")), (StatusCode::SEE_OTHER, "/studio/secret"), "{sent}");
    }
    let log = async || service.shared.store.audit_entries(Some(ada.account), None, 1_000).await.expect("a store").len();
    let before = log().await;
    let refused = ada.send_with(&path, &[], &proof, &[]).await;
    assert_eq!((refused.status, refused.header("retry-after")), (TOO_MANY, "1"));
    assert!(text(&refused).contains("<html"), "{refused:?}");
    // Without a body that could be read.
    let unread = ada.send_with("/studio/uploads", &[], "", &[]).await;
    assert_eq!(unread.status, TOO_MANY);
    assert_eq!(log().await, before);
    ada.page("/studio/people").await;
    assert_eq!(eve.send("/studio/sessions/end", &[]).await.status, StatusCode::SEE_OTHER);
    service.clock.advance(Duration::from_millis(250));
    ada.secret(&ada.send_with(&path, &[], &proof, &[]).await).await;
    // Many people of one account together.
    for _ in 0..FORMS * OF_ACCOUNT {
        service.api.limits.count_one(ada.account, RateLimit::AccountForm).await;
    }
    assert_eq!(bob.send("/studio/sessions/end", &[]).await.status, TOO_MANY);
    assert_eq!(eve.send("/studio/sessions/end", &[]).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn pages_of_the_studio() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    for _ in 0..PAGES {
        assert_eq!(ada.get("/studio/tasks/FAAAAAAAAAAAAAAAAAAA0/pictures/1").await.status, StatusCode::NOT_FOUND);
    }
    let refused = ada.get("/studio/gallery").await;
    assert_eq!((refused.status, refused.header("retry-after")), (TOO_MANY, "1"), "{refused:?}");
    bob.page("/studio/gallery").await;
    service.clock.advance(Duration::from_secs(1));
    ada.page("/studio/gallery").await;
    // Many people of one account together.
    let eve = service.visitor("eve", 10).await;
    for _ in 0..PAGES * OF_ACCOUNT {
        service.api.limits.count_one(ada.account, RateLimit::AccountPage).await;
    }
    assert_eq!(bob.get("/studio/gallery").await.status, TOO_MANY);
    eve.page("/studio/gallery").await;
}

#[tokio::test]
async fn streams_of_open_pages() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let (bob, eve) = (service.visitor_as("ada", "bob", Role::Member).await, service.visitor("eve", 10).await);
    let mut open = Vec::new();
    let mut session = ada.cookie.clone();
    for number in 0..=MAX_WATCHERS_OF_PERSON {
        if number % 8 == 0 {
            let signed_in = service.call("POST", &service.link(&ada.person).await, &[], "").await;
            session = signed_in.header("set-cookie").split(';').next().expect("a cookie").to_owned();
        }
        let (status, stream) = streams(&service, &session).await;
        let expected = if number < MAX_WATCHERS_OF_PERSON { StatusCode::OK } else { TOO_MANY };
        assert_eq!(status, expected, "{number}");
        open.push(stream);
    }
    for other in [bob, eve] {
        assert_eq!(streams(&service, &other.cookie).await.0, StatusCode::OK);
    }
}

/// The begin of a stream of an open page.
async fn streams(service: &Service, cookie: &str) -> (StatusCode, Body) {
    let host = service.address.to_string();
    let request = Request::get("/studio/events").header("host", host).header("cookie", cookie).body(Body::empty());
    let mut router = router(service.api.clone(), service.readiness.clone());
    let answer = router.call(request.expect("a request")).await.expect("an answer");
    (answer.status(), answer.into_body())
}

#[tokio::test]
async fn thumbnails() {
    let (service, [ada, bob]) = Service::with_visitors(&[], ["ada", "bob"], 10).await;
    let thumbnail = async |visitor: &Visitor| format!("/studio/tasks/{}/pictures/1", visitor.finished("a boat").await);
    let (of_ada, of_bob) = (thumbnail(&ada).await, thumbnail(&bob).await);
    let making = service.api.studio.thumbnails().making();
    let held: Vec<_> = std::iter::from_fn(|| making.take(ada.account, 1).now_or_never()).collect();
    assert_eq!(held.len(), 2);
    let mut waiting = Box::pin(ada.get(&of_ada));
    awaits(making, &mut waiting).await;
    assert_eq!(bob.get(&of_bob).await.status, StatusCode::OK);
    assert!(making.is_awaited());
    drop(held);
    assert_eq!(waiting.await.status, StatusCode::OK);
}

#[tokio::test]
async fn usage_reports() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let bob = service.visitor_as("ada", "bob", Role::Owner).await;
    for _ in 0..REPORTS {
        ada.page("/studio/usage").await;
    }
    for path in ["/studio/usage", "/studio/usage.csv"] {
        assert_eq!(ada.get(path).await.status, TOO_MANY, "{path}");
        bob.page(path).await;
    }
    service.clock.advance(Duration::from_secs(2));
    ada.page("/studio/usage").await;
    // A download of the ledger counts, too.
    service.clock.advance(Duration::from_secs(2));
    ada.page("/studio/credits.csv").await;
    assert_eq!(ada.get("/studio/credits.csv").await.status, TOO_MANY);
    bob.page("/studio/credits.csv").await;
    // So does a page of the ledger that searches it, and others do not.
    service.clock.advance(Duration::from_secs(2));
    ada.page("/studio/credits?kind=expiry").await;
    assert_eq!(ada.get("/studio/credits?until=2020-01-01").await.status, TOO_MANY);
    ada.page("/studio/credits").await;
    reports_of_one_account(&service, &bob).await;
}

/// One account reads a report at a time, and no other one, and nothing but a report, waits for that.
async fn reports_of_one_account(service: &Service, bob: &Visitor) {
    let (eve, grace) = (service.visitor("eve", 10).await, service.visitor("grace", 10).await);
    let (turns, places) = (service.shared.store.report_turns(), service.api.studio.reports());
    let held = turns.acquire_many(turns.available_permits() as u32).await.expect("turns");
    let begin = || Request::get("/studio/usage").header("host", service.address.to_string());
    let report = begin().header("cookie", &bob.cookie).body(Body::empty()).expect("a request");
    let mut reading = Box::pin(router(service.api.clone(), service.readiness.clone()).call(report));
    until(async || (&mut reading).now_or_never().is_none() && places.used() == 1).await;
    // Whoever goes away has no other report begun.
    drop(reading);
    assert_eq!(places.used(), 1, "the report of one who has gone");
    let paths =
        ["/studio/usage", "/studio/usage.csv", "/studio/credits?kind=expiry", "/studio/credits?from=2026-11-01"];
    for path in paths {
        assert_eq!(bob.get(path).await.status, TOO_MANY, "{path}");
    }
    let task = eve.create("a boat").await;
    eve.page(&format!("/studio/tasks/{task}")).await;
    bob.page("/studio/credits").await;
    drop(held);
    for path in paths {
        eve.page(path).await;
    }
    until(async || places.used() == 0).await;
    bob.page("/studio/usage").await;
    for _ in 0..REPORTS * OF_ACCOUNT {
        service.api.limits.count_one(eve.account, RateLimit::AccountReport).await;
    }
    assert_eq!(eve.get("/studio/usage").await.status, TOO_MANY);
    grace.page("/studio/usage").await;
}

#[tokio::test]
async fn suspended_keys() {
    let service = Service::start_with(&["--max-suspended-keys", "2"]).await;
    let (operator, ada, bob) =
        (service.visitor("admin", 0).await, service.visitor("ada", 10).await, service.visitor("bob", 0).await);
    let (spare, _) = service.new_key(ada.account, |_| ()).await;
    let store = &service.shared.store;
    let mut suspended = None;
    for round in 0..2 {
        let made = ada.send("/studio/keys", &[("name", "new")]).await;
        assert!(ada.secret(&made).await.contains("tt_"), "round {round}");
        let (key, _) = service.new_key(ada.account, |_| ()).await;
        violate(store, ada.account, Some(key), Surface::Api).await;
        assert_eq!(ada.send(&format!("/studio/keys/{key}/revoke"), &[]).await.status, StatusCode::SEE_OTHER);
        suspended = Some(key);
    }
    let refused = "Too many keys of this account are suspended";
    assert!(text(&ada.send("/studio/keys", &[("name", "new")]).await).contains(refused));
    for change in ["rotate", "enable"] {
        assert!(text(&ada.send(&format!("/studio/keys/{spare}/{change}"), &[]).await).contains(refused), "{change}");
    }
    assert!(bob.secret(&bob.send("/studio/keys", &[("name", "new")]).await).await.contains("tt_"));
    let key = suspended.expect("a key");
    operator.send(&format!("/studio/operator/keys/{key}/lift"), &[]).await;
    assert!(store.find_key(key).await.expect("a store").expect("a key").suspension.is_none());
    ada.secret(&ada.send("/studio/keys", &[("name", "new")]).await).await;
}

/// Whoever has a link cannot keep the database busy with views, nor take the views of other accounts.
#[tokio::test]
async fn views_of_shared_links() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 100).await;
    let (of_ada, of_eve) = (ada.finished("a boat").await, eve.finished("a hut").await);
    let (_, first) = ada.share(&[("task", of_ada.as_str()), ("days", "7")]).await;
    let (_, second) = ada.share(&[("task", of_ada.as_str()), ("days", "7")]).await;
    let (_, third) = eve.share(&[("task", of_eve.as_str()), ("days", "7")]).await;
    for _ in 0..VIEWS {
        assert_eq!(service.stranger(&first).await.status, StatusCode::OK);
    }
    let refused = service.stranger(&first).await;
    assert_eq!((refused.status, refused.header("retry-after")), (TOO_MANY, "1"));
    assert_eq!(service.stranger(&second).await.status, StatusCode::OK);
    assert_eq!(service.stranger(&third).await.status, StatusCode::OK);
}
