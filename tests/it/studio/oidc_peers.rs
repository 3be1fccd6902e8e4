//! Signing in at providers other than that of `oidc.rs`.

use hyper::StatusCode;
use tintype::clock::Clock;
use url::Url;

use crate::rigs::glewlwyd::Glewlwyd;
use crate::rigs::http::Answer;
use crate::rigs::service::Service;

#[tokio::test]
async fn a_person_signs_in_at_glewlwyd() {
    let provider = Glewlwyd::start("ada").await;
    let own = provider.flags();
    let flags: Vec<&str> = own.iter().map(String::as_str).chain(["--sign-up"]).collect();
    let service = Service::start_with(&flags).await;
    // The provider dates its tokens.
    service.clock.set(Clock::system().now());
    let away = depart(&service).await;
    let target = Url::parse(away.header("location")).expect("a URL");
    let redirect = target.query_pairs().find(|(name, _)| name == "redirect_uri").expect("a redirect URI").1;
    provider.register(&redirect).await;
    // The first time makes an account, and later ones find it.
    for _ in 0..2 {
        let away = depart(&service).await;
        let back = provider.visit("ada", away.header("location")).await;
        let cookie = away.header("set-cookie").split(';').next().expect("a cookie");
        let path = format!("{}?{}", back.path(), back.query().expect("a query"));
        let answer = service.call("GET", &path, &[("cookie", cookie), ("sec-fetch-site", "cross-site")], "").await;
        assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, "/studio"), "{answer:?}");
        let people = service.shared.store.list_people(None).await.expect("a store");
        assert_eq!(people.len(), 1);
    }
}

async fn depart(service: &Service) -> Answer {
    let answer = service.call("GET", "/studio/oidc", &[("sec-fetch-site", "same-origin")], "").await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{answer:?}");
    answer
}
