//! Signing in at providers other than that of `oidc.rs`: each signs in, links, joins a team, and loses access.

use hyper::StatusCode;
use tintype_domain::identity::Identity;
use tintype_domain::person::Role;
use tintype_system::clock::Clock;
use url::Url;

use super::oidc::refused;
use super::{Visitor, text};
use crate::rigs::glewlwyd::Glewlwyd;
use crate::rigs::http::Answer;
use crate::rigs::lemonldap::Lemonldap;
use crate::rigs::service::Service;

const ADA: &str = "ada";

enum Peer {
    Glewlwyd(Glewlwyd),
    Lemonldap(Lemonldap),
}

impl Peer {
    fn issuer(&self) -> String {
        match self {
            Self::Glewlwyd(provider) => provider.issuer(),
            Self::Lemonldap(provider) => provider.issuer(),
        }
    }

    async fn register(&mut self, redirect: &str) {
        match self {
            Self::Glewlwyd(provider) => provider.register(redirect).await,
            Self::Lemonldap(provider) => provider.register(redirect).await,
        }
    }

    /// Where the browser is sent, if the person can sign in.
    async fn visit(&self, target: &str) -> Option<Url> {
        match self {
            Self::Glewlwyd(provider) => provider.visit(ADA, target).await,
            Self::Lemonldap(provider) => provider.visit(target).await,
        }
    }

    async fn take_from_the_team(&mut self) {
        match self {
            Self::Glewlwyd(provider) => provider.set_groups(ADA, &["openid"]).await,
            Self::Lemonldap(provider) => provider.empty_the_group().await,
        }
    }

    async fn disable(&mut self) {
        match self {
            Self::Glewlwyd(provider) => provider.disable(ADA).await,
            Self::Lemonldap(provider) => provider.disable().await,
        }
    }
}

async fn depart(service: &Service, path: &str, cookie: &str) -> Answer {
    let headers = [("sec-fetch-site", "same-origin"), ("cookie", cookie)];
    let answer = service.call("GET", path, &headers, "").await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{answer:?}");
    answer
}

/// Goes to the provider and back.
async fn travel(service: &Service, peer: &Peer, path: &str, session: &str) -> Option<Answer> {
    let away = depart(service, path, session).await;
    let back = peer.visit(away.header("location")).await?;
    let cookie = away.header("set-cookie").split(';').next().expect("a cookie");
    let cookies = format!("{session}; {cookie}");
    let path = format!("{}?{}", back.path(), back.query().expect("a query"));
    Some(service.call("GET", &path, &[("cookie", &cookies), ("sec-fetch-site", "cross-site")], "").await)
}

/// The whole life of an identity, which is in a group of the provider.
async fn live(mut peer: Peer, flags: Vec<String>, group: &str) {
    let rule = format!("group:{group}=studio:member");
    let rules = ["--oidc-join", &rule, "--oidc-roles", "always"];
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(rules).collect();
    let service = Service::start_with(&flags).await;
    // The provider dates its tokens.
    service.clock.set(Clock::system().now());
    let store = &service.shared.store;
    let away = depart(&service, "/studio/oidc", "").await;
    let target = Url::parse(away.header("location")).expect("a URL");
    let redirect = target.query_pairs().find(|(name, _)| name == "redirect_uri").expect("a redirect URI").1;
    peer.register(&redirect).await;
    // Somebody links the identity, signs in with it, and removes it.
    let grace = service.visitor("grace", 0).await;
    let page = travel(&service, &peer, "/studio/oidc/link", &grace.cookie).await.expect("a person");
    let value = |name: &str| {
        let rest = text(&page).split(&format!("name=\"{name}\" value=\"")).nth(1).unwrap_or_else(|| panic!("{page:?}"));
        rest.split('"').next().expect("a value").to_owned()
    };
    let (subject, ticket) = (value("subject"), value("ticket"));
    let linked = grace.send("/studio/oidc/link", &[("subject", &subject), ("ticket", &ticket)]).await;
    assert_eq!(linked.header("location"), "/studio/sessions", "{linked:?}");
    let answer = travel(&service, &peer, "/studio/oidc", "").await.expect("a person");
    assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, "/studio"), "{answer:?}");
    assert_eq!(store.list_sessions(grace.person.id).await.expect("a store").len(), 2);
    assert!(store.unlink_identity(grace.person.id, &peer.issuer()).await.expect("a store"));
    // The same identity joins the team.
    store.create_account("studio", 0).await.expect("a store");
    let answer = travel(&service, &peer, "/studio/oidc", "").await.expect("a person");
    assert_eq!((answer.status, answer.header("location")), (StatusCode::SEE_OTHER, "/studio"), "{answer:?}");
    let identity = Identity::new(&peer.issuer(), &subject).expect("an identity");
    let person = store.find_identity(&identity).await.expect("a store").expect("a person");
    assert!(person.role == Role::Member && person.account_id != grace.account);
    // A sign-out goes on at the provider.
    let cookies = answer.headers.get_all("set-cookie").iter().map(|set| set.to_str().expect("text"));
    let cookies = cookies.filter_map(|set| set.split(';').next()).filter(|pair| !pair.ends_with('='));
    let (account, cookie) = (person.account_id, cookies.collect::<Vec<_>>().join("; "));
    let member = Visitor { service: service.clone(), account, person: person.clone(), cookie };
    let out = member.send("/studio/sign-out", &[]).await;
    assert!(
        text(&out).contains("client_id=tintype")
            && text(&out).contains("id_token_hint=ey")
            && out.header("refresh").contains("post_logout"),
        "{out:?}"
    );
    assert_eq!(store.list_sessions(person.id).await.expect("a store"), []);
    // It leaves the team, and then loses its place at the provider.
    peer.take_from_the_team().await;
    let answer = travel(&service, &peer, "/studio/oidc", "").await.expect("a person");
    refused(&answer, StatusCode::FORBIDDEN, "no longer gives you access");
    peer.disable().await;
    assert!(travel(&service, &peer, "/studio/oidc", "").await.is_none());
}

#[tokio::test]
async fn glewlwyd_identity_links_joins_and_loses_access() {
    let provider = Glewlwyd::start(ADA).await;
    provider.set_groups(ADA, &["openid", "g_profile"]).await;
    let flags = provider.flags();
    live(Peer::Glewlwyd(provider), flags, "g_profile").await;
}

#[tokio::test]
async fn an_identity_of_lemonldap_lives_its_life() {
    let provider = Lemonldap::start().await;
    let flags = provider.flags();
    live(Peer::Lemonldap(provider), flags, "artists").await;
}
