//! Every action on an account asks first, or can be undone by another one on the same page.

use std::collections::BTreeSet;

use tintype_domain::model::Surface;
use tintype_domain::person::Role;

use super::Visitor;
use crate::person::{refuse, violate};
use crate::rigs::service::Service;

/// The forms that act at once, and why that is no harm.
const AT_ONCE: [&str; 18] = [
    // Undone by their opposites.
    "keys/ID/disable",
    "keys/ID/enable",
    "webhooks/ID/disable",
    "webhooks/ID/enable",
    "webhooks/ID/events",
    "people/ID/role",
    "operator/queue/pause",
    "operator/queue/resume",
    "operator/accounts/ID/enable",
    "language",
    // Undone by removing or revoking what they make, which asks.
    "keys",
    "webhooks",
    "people",
    "invitations",
    // A link that only the owner sees, and that ends by itself after 15 minutes.
    "people/ID/link",
    // One more call of the owner's own receiver.
    "webhooks/ID/test",
    // Wants the present password, or leads to a sign-in.
    "password",
    "sign-out",
];

/// The forms of a page whose button stands open, without a question before it.
fn at_once(page: &str) -> BTreeSet<String> {
    let (mut found, mut form, mut asks) = (BTreeSet::new(), None::<String>, false);
    for tag in page.split('<').filter_map(|rest| rest.split('>').next()) {
        let value = |name: &str| {
            let rest = tag.split(&format!(" {name}=\"")).nth(1)?;
            rest.split('"').next().map(str::to_owned)
        };
        match tag.split(' ').next().unwrap_or_default() {
            "form" => form = tag.contains("method=\"post\"").then(|| value("action").unwrap_or_default()),
            "/form" => form = None,
            "details" => asks = tag.contains("class=\"ask\""),
            "/details" => asks = false,
            "button" if !asks && !tag.contains("type=\"button\"") => {
                let action = form.clone().map(|action| value("formaction").unwrap_or(action));
                found.extend(action.map(|action| generic(&action)));
            }
            _ => {}
        }
    }
    found
}

/// A path of the studio without the ids in it.
fn generic(path: &str) -> String {
    let parts = path.trim_start_matches("/studio/").split('/');
    parts.map(|part| if part.len() == 21 { "ID" } else { part }).collect::<Vec<_>>().join("/")
}

/// A key with a strike, which suspends it, and a person with a strike.
async fn strike(service: &Service, of: &Visitor) {
    let (key, _) = service.new_key(of.account, |_| {}).await;
    let store = &service.shared.store;
    violate(store, of.account, Some(key), Surface::Api).await;
    of.create("a boat").await;
    refuse(store).await;
}

#[tokio::test]
async fn every_action_asks_first_or_can_be_undone() {
    let (service, [operator, ada]) = Service::with_visitors(&[], ["admin", "ada"], 100).await;
    let member = service.visitor_as("admin", "member", Role::Member).await;
    for person in [&operator, &member, &operator] {
        let elsewhere = service.link(&person.person).await;
        service.call("POST", &elsewhere, &[], "").await;
    }
    operator.send("/studio/keys", &[("name", "laptop")]).await;
    operator.send("/studio/webhooks", &[("url", "https://10.0.0.1/hooks"), ("task.completed", "on")]).await;
    operator.send("/studio/invitations", &[("role", "member"), ("places", "2"), ("days", "7")]).await;
    strike(&service, &ada).await;
    let endpoint = service.shared.store.list_endpoints(Some(operator.account)).await.expect("a store")[0].id;
    let account = format!("/studio/operator/accounts/{}", ada.account);
    let mut found = BTreeSet::new();
    for (path, shown) in [
        ("/studio/keys", "/revoke"),
        ("/studio/webhooks", "/remove"),
        (&format!("/studio/webhooks/{endpoint}"), "/rotate"),
        ("/studio/people", "/remove"),
        ("/studio/sessions", "/studio/sessions/end"),
        ("/studio/credits", "/studio/sign-out"),
        ("/studio/usage", "/studio/sign-out"),
        ("/studio/operator", "/queue/pause"),
        ("/studio/operator/accounts", "/studio/sign-out"),
        ("/studio/operator/people", "/lift"),
        ("/studio/operator/strikes", "/lift"),
        (&account, "/grant"),
    ] {
        let page = operator.page(path).await;
        assert!(page.contains(shown), "{path}: {page}");
        found.extend(at_once(&page));
    }
    operator.send(&format!("{account}/disable"), &[]).await;
    operator.send("/studio/operator/queue/pause", &[]).await;
    for path in [&account, "/studio/operator"] {
        found.extend(at_once(&operator.page(path).await));
    }
    let known = AT_ONCE.map(str::to_owned).into();
    let unknown: Vec<_> = found.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
