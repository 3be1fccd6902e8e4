//! Tries of passwords that come from many addresses.

use std::time::Duration;

use hyper::StatusCode;
use tintype::service::guesses::ALLOWANCE;

use super::text;
use crate::rigs::http::Answer;
use crate::rigs::service::Service;

const PASSWORD: &str = "correct horse battery";

async fn sign_in(service: &Service, name: &str, password: &str, address: &str) -> Answer {
    let body = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("name", name), ("password", password)])
        .finish();
    let headers = [("content-type", "application/x-www-form-urlencoded"), ("x-forwarded-for", address)];
    service.call("POST", "/studio/sign-in", &headers, body).await
}

/// Tries wrong passwords, each from another address, until nobody looks at them.
async fn guess(service: &Service, name: &str) {
    for number in 1..=ALLOWANCE.get() {
        let wrong = sign_in(service, name, "a guess", &format!("198.51.100.{number}")).await;
        assert!(
            wrong.status == StatusCode::OK && text(&wrong).contains("do not belong together"),
            "{number}: {wrong:?}"
        );
    }
    assert_refused(&sign_in(service, name, "a guess", "198.51.100.200").await);
}

fn assert_refused(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(text(answer).contains("This name was tried too often"), "{}", text(answer));
    assert!(!answer.headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn a_name_is_guessed_at_slowly_from_however_many_addresses() {
    let service = Service::start_with(&["--trusted-proxy", "127.0.0.0/8"]).await;
    let ada = service.visitor("ada", 10).await;
    assert_eq!(ada.send("/studio/password", &[("present", ""), ("new", PASSWORD)]).await.status, StatusCode::SEE_OTHER);
    guess(&service, "ada").await;
    // A name that nobody has is answered alike.
    guess(&service, "nobody").await;
    assert_refused(&sign_in(&service, "ada", PASSWORD, "203.0.113.1").await);
    let interval = Duration::from_secs(3600) / ALLOWANCE.get();
    service.clock.advance(interval);
    assert_eq!(sign_in(&service, "ada", PASSWORD, "203.0.113.1").await.status, StatusCode::SEE_OTHER);
    // Strangers do not keep her out from where she was.
    assert_refused(&sign_in(&service, "ada", PASSWORD, "203.0.113.2").await);
    assert_eq!(sign_in(&service, "ada", PASSWORD, "203.0.113.1").await.status, StatusCode::SEE_OTHER);
    for _ in 1..ALLOWANCE.get() {
        assert_eq!(sign_in(&service, "ada", "a guess", "203.0.113.1").await.status, StatusCode::OK);
    }
    assert_refused(&sign_in(&service, "ada", PASSWORD, "203.0.113.1").await);
}
