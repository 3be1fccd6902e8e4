//! Open sign-up over HTTP: accounts that strangers open, and the limits on that.

use std::time::Duration;

use hyper::StatusCode;
use tintype_config::ServerSettings;
use tintype_domain::person::Role;
use tintype_store::{AccountChange, Action};

use super::text;
use crate::rigs::http::Answer;
use crate::rigs::service::Service;
use crate::rigs::visitor::set_cookie;

const PAGE: &str = "/studio/sign-up";
const PASSWORD: &str = "correct horse battery";
pub const OPEN: [&str; 5] = ["--sign-up", "--sign-up-credits", "20", "--trusted-proxy", "127.0.0.1"];
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const REFUSED: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;

impl Service {
    async fn send_sign_up(&self, headers: &[(&str, &str)], name: &str, password: &str) -> Answer {
        self.post_form(PAGE, &[("name", name), ("password", password)], headers).await
    }

    pub async fn sign_up_from(&self, address: &str, name: &str) -> Answer {
        self.send_sign_up(&[("x-forwarded-for", address)], name, PASSWORD).await
    }

    async fn exists(&self, name: &str) -> bool {
        self.find_person(name).await.is_some()
    }
}

#[tokio::test]
async fn nobody_signs_up_unless_the_operator_opens_it() {
    let service = Service::start().await;
    let shown = service.call("GET", "/studio/sign-in", &[], "").await;
    assert!(!text(&shown).contains("sign-up"), "{shown:?}");
    for answer in
        [service.call("GET", PAGE, &[], "").await, service.send_sign_up(&[], "ada@example.com", PASSWORD).await]
    {
        assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, "/studio/sign-in"));
    }
    assert!(!service.exists("ada@example.com").await);
}

#[tokio::test]
async fn a_stranger_opens_an_account_and_is_signed_in() {
    let service = Service::start_with(&OPEN).await;
    let shown = service.call("GET", "/studio/sign-in", &[], "").await;
    assert!(text(&shown).contains("href=\"/studio/sign-up\""), "{shown:?}");
    let page = service.call("GET", PAGE, &[], "").await;
    assert!(page.status == 200 && text(&page).contains("You start with 20 credits"), "{page:?}");
    assert!(page.header("content-security-policy").contains("script-src 'self'") && !text(&page).contains("<script"));
    let done = service.sign_up_from("192.0.2.1", " Ada@EXAMPLE.com ").await;
    assert_eq!((done.status, done.header("location")), (StatusCode::SEE_OTHER, "/studio"));
    for attribute in ["tintype=", "; Path=/", "; HttpOnly", "; SameSite=Lax"] {
        assert!(done.header("set-cookie").contains(attribute), "{done:?}");
    }
    let headers = [("cookie", set_cookie(&done))];
    let home = service.call("GET", "/studio", &headers, "").await;
    assert!(home.status == 200 && text(&home).contains("ada@example.com") && text(&home).contains("20 credits"));
    let credits = service.call("GET", "/studio/credits", &headers, "").await;
    assert!(text(&credits).contains("sign-up"), "{credits:?}");
    // It is the first account of this service, and no administrator's all the same.
    assert_eq!(service.call("GET", "/studio/operator", &headers, "").await.status, StatusCode::NOT_FOUND);
    assert_eq!(service.call("GET", PAGE, &headers, "").await.header("location"), "/studio");
    let log = service.shared.store.audit_entries(None, None, 10).await.expect("a store");
    let entry = log.first().expect("an entry");
    assert_eq!((entry.audited.action, entry.actor.source.as_deref()), (Action::SignUp, Some("192.0.2.1")));
    // The password signs in, with another session.
    let fields = [("name", "ada@example.com"), ("password", PASSWORD)];
    let again = service.post_form("/studio/sign-in", &fields, &[]).await;
    assert_eq!(again.status, StatusCode::SEE_OTHER);
    assert_ne!(set_cookie(&again), set_cookie(&done));
}

#[tokio::test]
async fn a_taken_name_is_refused_plainly_and_counts_as_an_attempt() {
    let service = Service::start_with(&OPEN).await;
    service.shared.store.create_account("acme", 0).await.expect("a store");
    service.person("acme", "ada", Role::Viewer).await;
    for spelling in ["ada", " ADA "] {
        let refused = service.sign_up_from("192.0.2.1", spelling).await;
        assert!(refused.status == REFUSED && text(&refused).contains("cannot be used"), "{refused:?}");
        assert!(!refused.headers.contains_key("set-cookie"));
    }
    assert_eq!(service.sign_up_from("192.0.2.1", "grace").await.status, StatusCode::SEE_OTHER);
    // A name that is free and one that is taken are refused in the same words when the limit is reached.
    let refusals = [service.sign_up_from("192.0.2.1", "eve").await, service.sign_up_from("192.0.2.1", "ada").await];
    let words = refusals.each_ref().map(|refused| text(refused).replace(refused.header("x-request-id"), ""));
    assert_eq!(refusals.each_ref().map(|refused| refused.status), [TOO_MANY; 2]);
    assert!(words[0] == words[1] && words[0].contains("from your network today"), "{words:?}");
    assert!(!service.exists("eve").await);
    // Two names that look alike, in letters of two alphabets.
    assert_eq!(service.sign_up_from("192.0.2.3", "coco").await.status, StatusCode::SEE_OTHER);
    let alike = service.sign_up_from("192.0.2.3", "\u{441}\u{43e}\u{441}\u{43e}").await;
    assert!(alike.status == REFUSED && text(&alike).contains("cannot be used"), "{alike:?}");
    assert_eq!(service.shared.store.sign_ups_of("192.0.2.3").await.expect("a store"), 2);
    // The name of an account is not one of a person.
    assert_eq!(service.sign_up_from("192.0.2.2", "acme").await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_network_opens_three_accounts_a_day() {
    let service = Service::start_with(&OPEN).await;
    for (number, address) in ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:0:3"].into_iter().enumerate() {
        let done = service.sign_up_from(address, &format!("person {number}")).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{address}: {done:?}");
    }
    assert_eq!(service.sign_up_from("2001:db8::4", "one more").await.status, TOO_MANY);
    assert_eq!(service.sign_up_from("2001:db8:0:1::1", "a neighbour").await.status, StatusCode::SEE_OTHER);
    // The tests begin at noon.
    service.clock.advance(Duration::from_secs(12 * 60 * 60));
    assert_eq!(service.sign_up_from("2001:db8::4", "one more").await.status, StatusCode::SEE_OTHER);
    service.sweeper.delete_expired().await;
    assert_eq!(service.shared.store.sign_ups_of("2001:db8::/64").await.expect("a store"), 1);
    assert_eq!(service.shared.store.delete_sign_ups().await.expect("a store"), 0, "the sweeper has deleted them");
}

#[tokio::test]
async fn the_operator_sets_the_limit_or_none() {
    for (limit, last) in [("1", TOO_MANY), ("0", StatusCode::SEE_OTHER)] {
        let service = Service::start_with(&["--sign-up", "--sign-up-per-address", limit]).await;
        assert_eq!(service.send_sign_up(&[], "ada", PASSWORD).await.status, StatusCode::SEE_OTHER);
        assert_eq!(service.send_sign_up(&[], "eve", PASSWORD).await.status, last, "{limit}");
        let page = service.call("GET", PAGE, &[("accept-language", "de")], "").await;
        assert!(text(&page).contains("Credits vergibt der Betreiber"), "{page:?}");
    }
}

/// The field in which a form begins.
pub(super) fn focused(answer: &Answer) -> &str {
    let page = text(answer);
    let field = page.split("<input ").find(|field| field.contains(" autofocus>")).unwrap_or_default();
    field.split('"').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn a_form_that_cannot_be_taken_keeps_the_name_and_counts_for_nothing() {
    let service = Service::start_with(&OPEN).await;
    let long = "x".repeat(1_025);
    for (name, password, said) in [
        ("\"><b>ada", "short", "at least 12 characters"),
        ("\"><b>ada", long.as_str(), "at least 12 characters"),
        ("\"><b>ada", "qwerty123456", "too easy to guess"),
        ("\"><b>ada", "x\"><b>ada 1234", "must not contain your name"),
        (" ", PASSWORD, "1 to 100 characters"),
        ("gra\u{441}e", PASSWORD, "letters of one alphabet"),
        ("two\nlines", PASSWORD, "1 to 100 characters"),
    ] {
        let refused = service.send_sign_up(&[("x-forwarded-for", "192.0.2.1")], name, password).await;
        assert!(refused.status == REFUSED && text(&refused).contains(said), "{name}: {refused:?}");
        assert!(!text(&refused).contains("<b>ada") && !text(&refused).contains(password), "{refused:?}");
        let field = if password == PASSWORD { "name" } else { "password" };
        assert_eq!(focused(&refused), field, "{name}: {refused:?}");
        assert_eq!(text(&refused).contains("value=\"&#34;&#62;&#60;b&#62;ada\""), name.contains("ada"), "{refused:?}");
    }
    assert_eq!(service.shared.store.sign_ups_of("192.0.2.1").await.expect("a store"), 0);
}

#[tokio::test]
async fn a_sign_up_over_https_binds_the_cookie_to_the_host() {
    let service = Service::start_with(&[&["--production"][..], &OPEN].concat()).await;
    let own = format!("https://{}", service.address);
    let headers = [("x-forwarded-proto", "https"), ("origin", own.as_str()), ("sec-fetch-site", "same-origin")];
    let done = service.send_sign_up(&headers, "ada", PASSWORD).await;
    let cookie = done.header("set-cookie");
    assert!(cookie.starts_with("__Host-tintype=") && cookie.ends_with("; Secure"), "{cookie}");
}

#[tokio::test]
async fn the_owner_of_a_disabled_account_is_out_and_the_name_of_a_deleted_one_is_free() {
    let service = Service::start_with(&OPEN).await;
    let done = service.sign_up_from("192.0.2.1", "ada").await;
    let headers = [("cookie", set_cookie(&done))];
    let person = service.find_person("ada").await.expect("a person");
    let change = async |change| service.shared.store.change_account(person.account_id, change).await.expect("a store");
    change(AccountChange::Disable).await;
    assert_eq!(service.call("GET", "/studio", &headers, "").await.status, StatusCode::SEE_OTHER);
    change(AccountChange::Delete).await;
    assert!(!service.exists("ada").await);
    assert_eq!(service.sign_up_from("192.0.2.1", "ada").await.status, StatusCode::SEE_OTHER);
}

#[test]
fn the_terms_of_sign_up_need_sign_up() {
    for (flags, is_good) in [
        (&["--sign-up"][..], true),
        (&["--sign-up", "--sign-up-credits", "20", "--sign-up-per-address", "0"], true),
        (&["--sign-up-credits", "20"], false),
        (&["--sign-up-per-address", "5"], false),
        (&["--sign-up", "--sign-up-credits=-1"], false),
        (&["--sign-up", "--sign-up-credits", "1000001"], false),
    ] {
        let read = ServerSettings::from_flags(flags.iter().copied());
        assert_eq!(read.is_ok(), is_good, "{flags:?}");
        if let Err(error) = read {
            assert!(error.to_string().contains("--sign-up"), "{error}");
        }
    }
}
