//! Signing out here and at the provider.

use axum::http::HeaderValue;
use tempfile::TempDir;
use tintype_domain::person::Role;

use super::oidc::Scene;
use super::{Visitor, text};
use crate::rigs::binary::Server;
use crate::rigs::browser::Browser;
use crate::rigs::oidc::Provider;

#[test]
fn a_browser_without_scripts_goes_on_to_the_sign_out_of_the_provider() {
    let (provider, data) = (Provider::start("ada"), TempDir::new().expect("a directory"));
    let own = provider.flags();
    let flags: Vec<&str> = own.iter().map(String::as_str).chain(["--sign-up"]).collect();
    let server = Server::start(data.path(), &flags);
    let mut browser = Browser::start();
    browser.forbid_scripts();
    browser.open(&format!("{}/studio/oidc", server.url()));
    browser.click("document.querySelector('.person summary')");
    browser.follow("document.querySelector('[data-sign-out] button')");
    browser.until(&format!("location.href.startsWith('{}/session/end?client_id=tintype&')", provider.issuer));
    let refused = browser.errors.iter().filter(|error| error.contains("Content Security Policy"));
    assert_eq!(refused.count(), 0, "{:?}", browser.errors);
    browser.open(&format!("{}/studio", server.url()));
    assert_eq!(browser.evaluate("location.pathname"), "/studio/sign-in");
    server.stop();
}

#[tokio::test]
async fn only_a_session_of_the_provider_ends_there_and_only_if_it_answers() {
    let public = ["--sign-up", "--public-url", "https://images.example.com"];
    let scene = Scene::start("ada", &public).await;
    let visit = async || {
        let answer = scene.sign_in().await;
        let cookies = answer.headers.get_all("set-cookie").iter().map(|set| set.to_str().expect("text"));
        let cookies = cookies.filter_map(|set| set.split(';').next()).filter(|pair| !pair.ends_with('='));
        let cookie = cookies.collect::<Vec<_>>().join("; ");
        let people = scene.service.shared.store.list_people(None).await.expect("a store");
        let person = people.into_iter().find(|person| person.role == Role::Owner).expect("a person");
        Visitor { service: scene.service.clone(), account: person.account_id, person, cookie }
    };
    let ada = visit().await;
    let out = ada.send("/studio/sign-out", &[]).await;
    assert_eq!(out.status, 200, "{out:?}");
    assert!(text(&out).contains("signed out here") && text(&out).contains("Sign out of 127.0.0.1"), "{out:?}");
    let target = out.header("refresh").strip_prefix("0; url=").expect("a URL").to_owned();
    assert!(
        target.contains("post_logout_redirect_uri=https%3A%2F%2Fimages.example.com%2Fstudio%2Fsign-in"),
        "{target}"
    );
    assert!(out.headers.get_all("set-cookie").iter().any(|set| set.as_bytes().starts_with(b"tintype=;")), "{out:?}");
    let kept = ada.cookie.split_once("tintype-id-token=").expect("the ID token").1;
    assert!(target.ends_with(&format!("&id_token_hint={kept}")) && kept.starts_with("ey"), "{target}");
    let removed =
        |set: &HeaderValue| set.as_bytes().starts_with(b"tintype-id-token=; Path=/studio/sign-out; Max-Age=0");
    assert!(out.headers.get_all("set-cookie").iter().any(removed), "{out:?}");
    // The provider knows the client, where it wants to go back to, and its own token.
    assert_eq!(scene.provider.get(&target).await.status, 200);
    let grace = scene.service.visitor("grace", 0).await;
    assert_eq!(grace.send("/studio/sign-out", &[]).await.header("location"), "/studio/sign-in");
    let ada = visit().await;
    // Its endpoints are asked for again after ten minutes.
    scene.service.clock.advance(std::time::Duration::from_secs(11 * 60));
    scene.provider.pause();
    let out = ada.send("/studio/sign-out", &[]).await;
    assert_eq!(out.header("location"), "/studio/sign-in");
    scene.provider.resume();
}
