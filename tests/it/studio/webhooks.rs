//! The pages of webhooks, for owners.

use hyper::StatusCode;
use tintype_domain::endpoint::{AddedBy, DeliveryState, DisabledFor, Endpoint, EndpointState};
use tintype_domain::event::EventType;
use tintype_domain::person::Role;
use tintype_store::Action;

use super::{Visitor, text};
use crate::rigs::http::Answer;
use crate::rigs::receiver::{Receiver, Reply, verify};
use crate::rigs::service::Service;
use crate::webhooks;

const ALL: [(&str, &str); 4] =
    [("task.completed", "on"), ("task.failed", "on"), ("credits.low", "on"), ("key.suspended", "on")];

impl Visitor {
    async fn endpoints(&self) -> Vec<Endpoint> {
        self.service.shared.store.list_endpoints(Some(self.account)).await.expect("a store")
    }

    async fn add_endpoint(&self, url: &str, events: &[(&str, &str)]) -> Answer {
        self.send("/studio/webhooks", &[&[("url", url)], events].concat()).await
    }
}

#[tokio::test]
async fn an_owner_adds_rotates_disables_and_removes_an_endpoint() {
    let service = Service::start().await;
    // The first account belongs to the operator.
    service.visitor("operator", 10).await;
    let ada = service.visitor("ada", 10).await;
    let url = "https://example.com/hooks?token=hunter2";
    let added = ada.add_endpoint(url, &[("task.failed", "on"), ("nonsense", "on")]).await;
    let first = ada.secret(&added).await;
    assert!(first.starts_with("whsec_"));
    let page = ada.page("/studio/webhooks").await;
    assert!(page.contains(url) && !page.contains("whsec_"));
    let endpoint = ada.endpoints().await.remove(0);
    assert_eq!((endpoint.added_by, endpoint.events.kinds()), (AddedBy::Owner, &[EventType::TaskFailed][..]));
    let path = |change: &str| format!("/studio/webhooks/{}/{change}", endpoint.id);
    let rotated = ada.send(&path("rotate"), &[("hours", "1")]).await;
    assert_ne!(ada.secret(&rotated).await, first);
    assert_eq!(ada.send(&path("events"), &ALL[..2]).await.status, StatusCode::SEE_OTHER);
    assert_eq!(ada.endpoints().await[0].events.to_string(), "task.completed task.failed");
    let refused = ada.send(&path("events"), &[]).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(text(&refused).contains("Choose at least one event") && text(&refused).contains("<h1>Deliveries</h1>"));
    // The page of an endpoint changes it as the list does.
    for page in [ada.page("/studio/webhooks").await, ada.page(&format!("/studio/webhooks/{}", endpoint.id)).await] {
        for change in ["test", "disable", "rotate", "remove"] {
            assert!(page.contains(&format!("formaction=\"{}\"", path(change))), "{change}: {page}");
        }
    }
    assert_eq!(ada.send(&path("disable"), &[]).await.status, StatusCode::SEE_OTHER);
    assert_eq!(ada.endpoints().await[0].disabled_for, Some(DisabledFor::Request));
    assert_eq!(ada.send(&path("test"), &[]).await.status, StatusCode::CONFLICT);
    assert_eq!(ada.send(&path("enable"), &[]).await.status, StatusCode::SEE_OTHER);
    assert_eq!(ada.endpoints().await[0].state(), EndpointState::Active);
    assert_eq!(ada.send(&path("nonsense"), &[]).await.status, StatusCode::NOT_FOUND);
    assert_eq!(ada.send(&path("remove"), &[]).await.status, StatusCode::SEE_OTHER);
    assert_eq!(ada.endpoints().await, []);
    let log = service.shared.store.audit_entries(Some(ada.account), None, 10).await.expect("a store");
    let actions: Vec<_> = log.iter().rev().map(|entry| entry.audited.action).collect();
    let expected = [
        Action::AddEndpoint,
        Action::RotateEndpoint,
        Action::SubscribeEndpoint,
        Action::DisableEndpoint,
        Action::EnableEndpoint,
        Action::RemoveEndpoint,
    ];
    assert_eq!(actions, expected);
    assert!(log.iter().all(|entry| entry.actor.person_id == Some(ada.person.id)));
}

#[tokio::test]
async fn on_postgres_another_process_may_send_by_plain_http() {
    let operator = Service::start_on_postgres(&[]).await.visitor("operator", 10).await;
    let shown = operator.get_secret(&operator.add_endpoint("http://10.0.0.1/", &ALL).await).await;
    assert!(text(&shown).contains("--webhook-network"), "{shown:?}");
}

#[tokio::test]
async fn an_owner_names_public_https_alone_and_the_operator_what_the_server_reaches() {
    let service = Service::start_with(&webhooks::NETWORK).await;
    let operator = service.visitor("operator", 10).await;
    let ada = service.visitor("ada", 10).await;
    for url in ["", "example.com", "http://example.com/", "http://127.0.0.1/", "ftp://example.com/", "https://a:b@c.d/"]
    {
        let refused = ada.add_endpoint(url, &ALL).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{url}");
        let page = text(&refused);
        assert!(page.contains("role=\"alert\"") && page.contains(&format!("type=\"url\" value=\"{url}\"")), "{page}");
        assert_eq!(page.matches(" checked>").count(), 4, "{page}");
    }
    let url = "https://example.com/hooks";
    let refused = ada.add_endpoint(url, &[]).await;
    let page = text(&refused);
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(page.contains("Choose at least one event") && page.contains(url) && !page.contains(" checked>"), "{page}");
    for url in ["http://10.0.0.1/", "http://[::1]:9/"] {
        let refused = operator.add_endpoint(url, &ALL).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{url}");
        assert!(text(&refused).contains("--webhook-network"), "{url}: {}", text(&refused));
    }
    assert_eq!(operator.endpoints().await, []);
    for (url, is_noted) in [("http://127.0.0.1/", false), ("https://example.com/", false), ("https://10.0.0.1/", true)]
    {
        let shown = operator.get_secret(&operator.add_endpoint(url, &ALL).await).await;
        assert_eq!(text(&shown).contains("--webhook-network"), is_noted, "{url}");
    }
    assert!(operator.endpoints().await.iter().all(|endpoint| endpoint.added_by == AddedBy::Operator));
    for _ in 0..20 {
        ada.secret(&ada.add_endpoint("https://example.com/", &ALL).await).await;
    }
    assert_eq!(ada.add_endpoint("https://example.com/", &ALL).await.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn an_owner_sees_an_endpoint_of_the_operator_and_does_not_change_it() {
    let service = Service::start().await;
    service.visitor("operator", 10).await;
    let ada = service.visitor("ada", 10).await;
    let store = &service.shared.store;
    let url = "http://10.0.0.1:8080/hooks?token=hunter2";
    let (endpoint, _) = webhooks::add(store, ada.account, url, AddedBy::Operator).await.expect("a store");
    let page = format!("/studio/webhooks/{}", endpoint.id);
    for change in ["rotate", "events", "disable", "enable", "remove"] {
        for path in ["/studio/webhooks", &page] {
            let shown = ada.page(path).await;
            assert!(shown.contains("http://10.0.0.1:8080") && !shown.contains("hunter2"), "{path}");
            assert!(!shown.contains(&format!("{}/{change}\"", endpoint.id)), "{path} offers {change}");
        }
        let refused = ada.send(&format!("{page}/{change}"), &ALL).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{change}");
    }
    assert_eq!(ada.endpoints().await, [endpoint]);
    assert!(ada.page("/studio/webhooks").await.contains(&format!("{page}/test")));
    assert_eq!(ada.send(&format!("{page}/test"), &[]).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn an_owner_sends_a_limited_number_of_webhooks_by_hand() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 10).await;
    for visitor in [&ada, &eve] {
        visitor.add_endpoint("https://example.com/hooks", &ALL).await;
    }
    let endpoint = ada.endpoints().await.remove(0).id;
    let delivery = service.shared.store.test_endpoint(endpoint).await.expect("a store").expect("a delivery");
    let [test, replay] = ["test".into(), format!("deliveries/{delivery}/replay")]
        .map(|action: String| format!("/studio/webhooks/{endpoint}/{action}"));
    for _ in 0..15 {
        for path in [&test, &replay] {
            assert_eq!(ada.send(path, &[]).await.status, StatusCode::SEE_OTHER, "{path}");
        }
    }
    for path in [&test, &replay] {
        assert_eq!(ada.send(path, &[]).await.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    let of_eve = format!("/studio/webhooks/{}/test", eve.endpoints().await[0].id);
    assert_eq!(eve.send(&of_eve, &[]).await.status, StatusCode::SEE_OTHER);
    service.clock.advance(std::time::Duration::from_secs(2));
    assert_eq!(ada.send(&test, &[]).await.status, StatusCode::SEE_OTHER);
    let sent = service.shared.store.list_deliveries(endpoint, None, 10).await.expect("a store");
    assert_eq!(sent.len(), 1, "one waits to be sent at once");
}

#[tokio::test]
async fn nobody_but_an_owner_sees_endpoints_and_nobody_those_of_others() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 10).await;
    ada.add_endpoint("https://example.com/hooks", &ALL).await;
    let endpoint = ada.endpoints().await.remove(0);
    let delivery = service.shared.store.test_endpoint(endpoint.id).await.expect("a store").expect("a delivery");
    let page = format!("/studio/webhooks/{}", endpoint.id);
    let replay = format!("{page}/deliveries/{delivery}/replay");
    for role in [Role::Member, Role::Viewer] {
        let other = service.visitor_as("ada", role.as_str(), role).await;
        for path in ["/studio/webhooks", &page] {
            assert_eq!(other.get(path).await.status, StatusCode::FORBIDDEN, "{role}");
        }
        for path in ["/studio/webhooks", &format!("{page}/remove"), &format!("{page}/rotate"), &replay] {
            assert_eq!(
                other.send(path, &[("url", "https://a.example/")]).await.status,
                StatusCode::FORBIDDEN,
                "{role}"
            );
        }
        assert!(!other.page("/studio").await.contains("/studio/webhooks"));
    }
    // A delivery is looked for at its own endpoint alone.
    eve.add_endpoint("https://example.com/hooks", &ALL).await;
    let of_eve = eve.endpoints().await.remove(0).id;
    let mixed = format!("/studio/webhooks/{of_eve}/deliveries/{delivery}/replay");
    assert_eq!(eve.send(&mixed, &[]).await.status, StatusCode::NOT_FOUND);
    assert_eq!(ada.endpoints().await, [endpoint]);
}

#[tokio::test]
async fn an_owner_sees_what_became_of_deliveries_and_sends_one_again() {
    let (service, receiver) = (Service::start_with(&webhooks::NETWORK).await, Receiver::start().await);
    let operator = service.visitor("operator", 10).await;
    service.clock.set(tintype_system::clock::Clock::system().now());
    let added = operator.add_endpoint(&receiver.url(), &ALL).await;
    let endpoint = operator.endpoints().await.remove(0).id;
    let page = format!("/studio/webhooks/{endpoint}");
    receiver.always(Reply::status(503));
    let tested = operator.send(&format!("{page}/test"), &[]).await;
    assert_eq!((tested.status, tested.header("location")), (StatusCode::SEE_OTHER, page.as_str()));
    assert!(operator.page(&page).await.contains(">Waiting<"));
    service.deliver().await;
    let shown = operator.page(&page).await;
    assert!(shown.contains("webhook.test") && shown.contains(">Failed<") && shown.contains("503"));
    receiver.always(Reply::status(204));
    let store = &service.shared.store;
    let failed = store.list_deliveries(endpoint, None, 10).await.expect("a store").remove(0);
    let again = operator.send(&format!("{page}/deliveries/{}/replay", failed.id), &[]).await;
    assert_eq!(again.status, StatusCode::SEE_OTHER);
    service.deliver().await;
    let deliveries = store.list_deliveries(endpoint, None, 10).await.expect("a store");
    assert_eq!(
        deliveries.iter().map(|one| one.state()).collect::<Vec<_>>(),
        [DeliveryState::Delivered, DeliveryState::Failed]
    );
    let heard = receiver.asked();
    assert_eq!(heard[0].header("webhook-id"), heard[1].header("webhook-id"));
    verify(&heard[1], &operator.secret(&added).await).expect("a signature");
    // An endpoint that the server has disabled is marked.
    receiver.always(Reply::status(410));
    operator.send(&format!("{page}/test"), &[]).await;
    service.deliver().await;
    let shown = operator.page("/studio/webhooks").await;
    assert!(shown.contains("class=\"marked\"") && shown.contains("410 Gone") && shown.contains("role=\"alert\""));
}
