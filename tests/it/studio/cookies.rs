//! What a browser keeps between two requests: a secret that was just made, the page asked for before a sign-in, and a
//! language.

use std::time::Duration;

use hyper::StatusCode;
use tintype_store::PersonChange;

use super::text;
use crate::rigs::service::Service;
use crate::rigs::visitor::set_cookie;

const GALLERY: &str = "/studio/gallery?q=a%20boat;x&starred=1";

#[tokio::test]
async fn a_secret_stays_in_view_until_it_is_put_away_and_a_reload_makes_nothing() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let made = ada.send("/studio/keys", &[("name", "laptop")]).await;
    let key = ada.secret(&made).await;
    assert_eq!(ada.secret(&made).await, key);
    assert_eq!(service.shared.store.list_keys(Some(ada.account)).await.expect("a store").len(), 1);
    let cookies = format!("{}; {}", ada.cookie, set_cookie(&made));
    let proof = ada.proof().await;
    let headers = [("cookie", cookies.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    let done = service.call("POST", "/studio/secret", &headers, format!("proof={proof}")).await;
    assert_eq!((done.status, done.header("location")), (StatusCode::SEE_OTHER, "/studio/keys"));
    assert!(done.header("set-cookie").starts_with("tintype-secret=; Path=/; Max-Age=0"), "{done:?}");
    let gone = ada.get("/studio/secret").await;
    assert!(gone.status == StatusCode::GONE && text(&gone).contains("no longer shown"), "{gone:?}");
}

#[tokio::test]
async fn a_secret_is_shown_in_its_own_session_for_ten_minutes() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 10).await;
    let elsewhere = service.call("POST", &service.link(&ada.person).await, &[], "").await;
    let made = ada.send("/studio/people", &[("name", "grace"), ("role", "viewer")]).await;
    assert!(ada.secret(&made).await.contains("/studio/sign-in/"));
    let secret = set_cookie(&made);
    let (text, tag) = secret.rsplit_once('.').expect("a signature");
    for cookies in [
        format!("{}; {secret}", eve.cookie),
        format!("{}; {secret}", set_cookie(&elsewhere)),
        format!("{}; {text}", ada.cookie),
        format!("{}; {}A.{tag}", ada.cookie, text),
        format!("{}; tintype-secret=.", ada.cookie),
    ] {
        let refused = service.call("GET", "/studio/secret", &[("cookie", &cookies)], "").await;
        assert_eq!(refused.status, StatusCode::GONE, "{cookies}");
    }
    service.clock.advance(Duration::from_secs(10 * 60 + 1));
    assert_eq!(ada.get_secret(&made).await.status, StatusCode::GONE);
    let out = ada.send("/studio/sign-out", &[]).await;
    let removed: Vec<_> = out.headers.get_all("set-cookie").iter().map(|line| line.to_str().expect("text")).collect();
    assert!(removed.iter().any(|line| line.starts_with("tintype-secret=; ")), "{removed:?}");
}

#[tokio::test]
async fn a_sign_in_leads_to_the_page_that_was_asked_for() {
    let (service, person) = Service::with_owner(&[]).await;
    let sent_away = service.call("GET", GALLERY, &[("accept", "text/html,application/xhtml+xml,*/*;q=0.8")], "").await;
    assert_eq!(sent_away.header("location"), "/studio/sign-in");
    let wanted = set_cookie(&sent_away);
    let link = service.link(&person).await;
    let entered = service.call("POST", &link, &[("cookie", wanted)], "").await;
    assert_eq!((entered.status, entered.header("location")), (StatusCode::SEE_OTHER, GALLERY));
    let lines: Vec<_> = entered.headers.get_all("set-cookie").iter().map(|line| line.to_str().expect("text")).collect();
    assert!(lines.len() == 2 && lines[1].starts_with("tintype-wanted=; Path=/; Max-Age=0"), "{lines:?}");
}

#[tokio::test]
async fn a_form_of_an_ended_session_is_not_lost_without_a_word() {
    const ENDED: &str = "Your session has ended. Your last step was not saved.";
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let proof = ada.proof().await;
    let new = PersonChange::Password("$new".into());
    service.shared.store.change_person(ada.person.id, new).await.expect("a store");
    let page = ("referer", "http://localhost/studio/boards?x=1");
    for script in [&[page][..], &[page, ("x-requested-with", "studio")]] {
        let lost = ada.send_with("/studio/boards", &[("name", "Boats")], &proof, script).await;
        assert_eq!((lost.status, lost.header("location")), (StatusCode::SEE_OTHER, "/studio/sign-in"));
        let cookie = set_cookie(&lost);
        let said = service.call("GET", "/studio/sign-in", &[("cookie", cookie)], "").await;
        assert!(text(&said).contains(ENDED), "{said:?}");
        let headers = [("cookie", cookie), ("accept-language", "de")];
        let said = service.call("GET", "/studio/sign-in", &headers, "").await;
        assert!(text(&said).contains("Der letzte Schritt wurde nicht gespeichert."), "{said:?}");
        let entered = service.call("POST", &service.link(&ada.person).await, &[("cookie", cookie)], "").await;
        assert_eq!((entered.status, entered.header("location")), (StatusCode::SEE_OTHER, "/studio/boards?x=1"));
    }
    // Another origin's address leads nowhere but to a page of this server, and nothing was lost with a sign-out.
    for (path, referrer) in [
        ("/studio/boards", "https://evil.example/x"),
        ("/studio/boards", "javascript:alert(1)"),
        ("/studio/sign-out", page.1),
    ] {
        let answer = ada.send_with(path, &[("name", "Boats")], &proof, &[("referer", referrer)]).await;
        assert!(answer.status == StatusCode::SEE_OTHER && !answer.headers.contains_key("set-cookie"), "{answer:?}");
    }
    // Whoever only asks for a page has lost nothing.
    let asked = service.call("GET", GALLERY, &[("accept", "text/html")], "").await;
    let page = service.call("GET", "/studio/sign-in", &[("cookie", set_cookie(&asked))], "").await;
    assert!(!text(&page).contains(ENDED), "{page:?}");
}

#[tokio::test]
async fn a_sign_in_leads_nowhere_else() {
    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    let (service, person) = Service::with_owner(&[]).await;
    // Only a page is remembered.
    for (method, path, header) in [
        ("POST", "/studio/tasks", ("accept", "text/html,*/*;q=0.8")),
        ("GET", "/studio/uploads", ("accept", "image/avif,image/webp,*/*;q=0.8")),
        ("GET", "/studio/events", ("accept", "text/event-stream")),
        ("GET", "/studio/older", ("accept", "*/*")),
    ] {
        let answer = service.call(method, path, &[header], "").await;
        assert!(answer.status == StatusCode::SEE_OTHER && !answer.headers.contains_key("set-cookie"), "{answer:?}");
    }
    for hostile in ["//elsewhere.example", "/\\elsewhere.example", "/studio\r\nx: y", "/api/v1/images", ""] {
        let cookie = format!("tintype-wanted={}", BASE64_URL_SAFE_NO_PAD.encode(hostile));
        let entered = service.call("POST", &service.link(&person).await, &[("cookie", &cookie)], "").await;
        assert_eq!((entered.status, entered.header("location")), (StatusCode::SEE_OTHER, "/studio"), "{hostile:?}");
    }
}

#[tokio::test]
async fn a_chosen_language_wins_over_that_of_the_browser() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let form = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("referer", "http://localhost/studio/gallery?q=x"),
        ("sec-fetch-site", "same-origin"),
    ];
    let chosen = service.call("POST", "/studio/language", &form, "language=de").await;
    assert_eq!((chosen.status, chosen.header("location")), (StatusCode::SEE_OTHER, "/studio/gallery?q=x"));
    for (session, path) in [(ada.cookie.as_str(), "/studio"), ("a=b", "/studio/sign-in")] {
        let cookies = format!("{session}; {}", set_cookie(&chosen));
        let page = service.call("GET", path, &[("cookie", &cookies), ("accept-language", "en")], "").await;
        assert!(text(&page).contains("<html lang=\"de\">") && text(&page).contains(">English<"), "{page:?}");
    }
    // A page whose address is a secret keeps it out of its referrer, and names it in the form.
    let join = ada.send("/studio/invitations", &[("role", "member"), ("places", "2"), ("days", "7")]).await;
    let join = ada.secret(&join).await.split_once("/studio/").map(|(_, path)| format!("/studio/{path}"));
    for path in [service.link(&ada.person).await, join.expect("a link"), "/studio/join/nonsense".to_owned()] {
        let page = service.call("GET", &path, &[], "").await;
        assert!(text(&page).contains(&format!("name=\"back\" value=\"{path}\"")), "{page:?}");
        let body = url::form_urlencoded::Serializer::new("language=de".to_owned()).append_pair("back", &path).finish();
        let chosen = service.call("POST", "/studio/language", &form, body).await;
        assert_eq!((chosen.status, chosen.header("location")), (StatusCode::SEE_OTHER, path.as_str()));
    }
    let away = service.call("POST", "/studio/language", &form, "language=de&back=https://evil.example/").await;
    assert_eq!(away.header("location"), "/studio");
    assert_eq!(service.call("POST", "/studio/language", &form, "language=tlh").await.status, StatusCode::BAD_REQUEST);
    let other_site = [form[0], form[1], ("sec-fetch-site", "cross-site")];
    let refused = service.call("POST", "/studio/language", &other_site, "language=de").await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
}
