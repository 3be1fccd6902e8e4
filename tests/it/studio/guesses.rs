//! Guesses of passwords over HTTP: those with one name are limited, wherever they come from.

use std::time::Duration;

use hyper::StatusCode;
use tintype_domain::person::Role;

use super::sign_up::focused;
use super::text;
use crate::rigs::http::Answer;
use crate::rigs::service::Service;

pub const PASSWORD: &str = "correct horse battery";

impl Service {
    pub async fn sign_in_from(&self, address: &str, name: &str, password: &str) -> Answer {
        let fields = [("name", name), ("password", password)];
        self.post_form("/studio/sign-in", &fields, &[("x-forwarded-for", address)]).await
    }

    /// Fails to sign in with this name from ten addresses.
    async fn guess_from_ten_addresses(&self, name: &str) {
        for number in 1..=10 {
            let refused = self.sign_in_from(&format!("192.0.2.{number}"), name, "a wrong password").await;
            assert_eq!(refused.status, StatusCode::OK, "{name}, {number}: {refused:?}");
            // The name stays, so the password is next.
            assert_eq!(focused(&refused), "password", "{refused:?}");
        }
    }

    /// Ada, who has a password.
    pub async fn ada(&self) -> tintype_domain::person::Person {
        self.shared.store.create_account("ada", 10).await.expect("a store");
        let ada = self.person("ada", "ada@example.com", Role::Owner).await;
        self.set_password(&ada, PASSWORD).await
    }
}

#[tokio::test]
async fn guesses_with_one_name_are_limited_wherever_they_come_from() {
    let service = Service::start_with(&["--trusted-proxy", "127.0.0.1"]).await;
    service.ada().await;
    let mut refusals = Vec::new();
    for name in ["ada@example.com", "nobody@example.com"] {
        service.guess_from_ten_addresses(name).await;
        let refused = service.sign_in_from("192.0.2.11", name, PASSWORD).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{refused:?}");
        assert!(text(&refused).contains("Too many attempts to sign in with this name"), "{refused:?}");
        assert!(!refused.headers.contains_key("set-cookie"));
        let id = refused.header("x-request-id").to_owned();
        refusals.push(text(&refused).replace(&id, ""));
    }
    assert_eq!(refusals[0], refusals[1], "a name that does not exist is refused in the same words");
    let spelled = service.sign_in_from("192.0.2.12", " Ada@EXAMPLE.com ", PASSWORD).await;
    assert_eq!(spelled.status, StatusCode::TOO_MANY_REQUESTS, "another spelling is the same name");
    let other = service.sign_in_from("192.0.2.1", "grace@example.com", "a wrong password").await;
    assert_eq!(other.status, StatusCode::OK, "another name has its own limit");
    service.clock.advance(Duration::from_secs(6));
    let again = service.sign_in_from("192.0.2.13", "ada@example.com", PASSWORD).await;
    assert_eq!(again.status, StatusCode::SEE_OTHER, "the limit ends within seconds: {again:?}");
}

#[tokio::test]
async fn a_stranger_who_guesses_keeps_nobody_out() {
    let service = Service::start_with(&["--trusted-proxy", "127.0.0.1"]).await;
    let ada = service.ada().await;
    let home = "198.51.100.1";
    assert_eq!(service.sign_in_from(home, "ada@example.com", PASSWORD).await.status, StatusCode::SEE_OTHER);
    service.clock.advance(Duration::from_secs(60));
    service.guess_from_ten_addresses("ada@example.com").await;
    let from_elsewhere = service.sign_in_from("198.51.100.2", "ada@example.com", PASSWORD).await;
    assert_eq!(from_elsewhere.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(service.sign_in_from(home, "ada@example.com", PASSWORD).await.status, StatusCode::SEE_OTHER);
    // A link needs no password, and makes its address known.
    let elsewhere = [("x-forwarded-for", "198.51.100.2")];
    let by_link = service.call("POST", &service.link(&ada).await, &elsewhere, "").await;
    assert_eq!(by_link.status, StatusCode::SEE_OTHER, "{by_link:?}");
    let then = service.sign_in_from("198.51.100.2", "ada@example.com", PASSWORD).await;
    assert_eq!(then.status, StatusCode::SEE_OTHER, "{then:?}");
    // The allowance of a known address has an end too.
    for _ in 0..9 {
        service.sign_in_from(home, "ada@example.com", "a wrong password").await;
    }
    let worn = service.sign_in_from(home, "ada@example.com", PASSWORD).await;
    assert_eq!(worn.status, StatusCode::TOO_MANY_REQUESTS, "{worn:?}");
}
