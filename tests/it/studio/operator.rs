//! The pages of operators, and that they do not exist for anybody else.

use std::time::Duration;

use hyper::StatusCode;
use tintype::http::routes::ROUTES;
use tintype_domain::model::Surface;
use tintype_domain::person::Role;
use tintype_store::{Action, KeyChange, WorkerReport};

use super::{Visitor, path, text};
use crate::person::violate;
use crate::rigs::service::Service;

const GRANT_FORM: &str = "name=\"newest\" value=\"";

impl Visitor {
    /// The entry that the form for a grant names.
    pub(super) async fn newest(&self, account: &str) -> String {
        let page = self.page(&format!("/studio/operator/accounts/{account}")).await;
        page.split(GRANT_FORM).nth(1).and_then(|rest| rest.split('"').next()).expect("a form").to_owned()
    }

    async fn actions(&self) -> Vec<(Action, String)> {
        let log = self.service.shared.store.audit_entries(None, None, 100).await.expect("a store");
        log.into_iter().map(|entry| (entry.audited.action, entry.actor.name)).collect()
    }
}

#[tokio::test]
async fn the_pages_of_operators_are_unknown_to_everybody_else() {
    let service = Service::start().await;
    let operator = service.visitor("admin", 10).await;
    let eve = service.visitor("eve", 10).await;
    let member = service.visitor_as("admin", "member", Role::Member).await;
    let viewer = service.visitor_as("admin", "viewer", Role::Viewer).await;
    let routes: Vec<_> = ROUTES.iter().filter(|route| route.pattern.starts_with("/studio/operator")).collect();
    assert!(routes.len() >= 10);
    for person in [&eve, &member, &viewer] {
        let unknown = person.get("/studio/no-such-page").await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);
        assert!(!person.page("/studio").await.contains("/studio/operator"));
        for route in &routes {
            let path = path(route.pattern).replace("FAAAAAAAAAAAAAAAAAAAA", eve.account.as_str());
            let answer = match route.method.as_str() {
                "GET" => person.get(&path).await,
                _ => person.send(&path, &[("amount", "100"), ("newest", "")]).await,
            };
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
            assert_eq!(text(&answer), text(&unknown), "{path}");
        }
        let unknown = person.send("/studio/no-such-form", &[]).await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    }
    assert_eq!((eve.credits().await, operator.actions().await), (10, vec![]));
    for route in routes.iter().filter(|route| route.method == "GET" && !route.pattern.contains('{')) {
        operator.page(route.pattern).await;
    }
    assert!(operator.page("/studio").await.contains("/studio/operator"));
    // A role that was taken away counts at once, and so does a rank that another account has.
    let change = tintype_store::PersonChange::Role(Role::Member);
    service.shared.store.change_person(operator.person.id, change).await.expect("a store");
    assert_eq!(operator.get("/studio/operator").await.status, StatusCode::NOT_FOUND);
    service.shared.store.create_account_as("second", 0, true).await.expect("a store");
    let second = service.visitor_as("second", "second", Role::Owner).await;
    second.page("/studio/operator").await;
}

#[tokio::test]
async fn credits_are_granted_once_for_each_form_and_recorded() {
    let service = Service::start().await;
    let (operator, ada) = (service.visitor("admin", 0).await, service.visitor("ada", 10).await);
    let account = ada.account.as_str();
    let grant = format!("/studio/operator/accounts/{account}/grant");
    let newest = operator.newest(account).await;
    let fields = [("amount", "90"), ("note", "for <b>posters</b>"), ("newest", newest.as_str())];
    assert_eq!(operator.send(&grant, &fields).await.status, StatusCode::SEE_OTHER);
    // Enter in a field only asks.
    let newer = operator.newest(account).await;
    let asked = operator.send(&grant, &[("amount", "7"), ("newest", &newer), ("ask", "1")]).await;
    assert!(asked.status == StatusCode::OK && text(&asked).contains("<details class=\"ask\" open>"), "{asked:?}");
    let again = operator.send(&grant, &fields).await;
    assert!(again.status == StatusCode::UNPROCESSABLE_ENTITY && text(&again).contains("Nothing more"), "{again:?}");
    let newest = operator.newest(account).await;
    for amount in ["0", "-5", "1.5", "", "9007199254740993", "99999999999999999999", "9007199254740992"] {
        let refused = operator.send(&grant, &[("amount", amount), ("newest", &newest)]).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{amount}");
    }
    assert_eq!(ada.credits().await, 100);
    assert_eq!(operator.actions().await, [(Action::Grant, "admin".to_owned())]);
    let log = operator.page("/studio/operator/audit").await;
    assert!(log.contains("+90 for &#60;b&#62;posters&#60;/b&#62;") && log.contains("127.0.0.1"), "{log}");
    let of_own = operator.page(&format!("/studio/operator/audit?account={}", operator.account)).await;
    assert!(!of_own.contains("+90"), "{of_own}");
    // The owner sees the grant with its note.
    assert!(ada.page("/studio/credits?kind=grant").await.contains("for &#60;b&#62;posters"));
}

#[tokio::test]
async fn an_account_is_disabled_and_enabled_but_never_the_own_one() {
    let service = Service::start().await;
    let (operator, ada) = (service.visitor("admin", 0).await, service.visitor("ada", 10).await);
    let change = |account, change| format!("/studio/operator/accounts/{account}/{change}");
    assert_eq!(operator.send(&change(operator.account, "disable"), &[]).await.status, StatusCode::CONFLICT);
    assert_eq!(operator.send(&change(ada.account, "delete"), &[]).await.status, StatusCode::NOT_FOUND);
    assert_eq!(operator.send(&change(ada.account, "disable"), &[]).await.status, StatusCode::SEE_OTHER);
    assert_eq!(ada.get("/studio").await.status, StatusCode::SEE_OTHER);
    assert!(operator.page("/studio/operator/accounts?q=AD").await.contains("Disabled"));
    assert_eq!(operator.send(&change(ada.account, "enable"), &[]).await.status, StatusCode::SEE_OTHER);
    ada.page("/studio").await;
    let actions: Vec<_> = operator.actions().await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, [Action::EnableAccount, Action::DisableAccount]);
}

#[tokio::test]
async fn strikes_are_shown_and_lifted() {
    let service = Service::start().await;
    let (operator, ada) = (service.visitor("admin", 0).await, service.visitor("ada", 10).await);
    let (key, _) = service.new_key(ada.account, |key| key.name = "laptop".into()).await;
    let store = &service.shared.store;
    violate(store, ada.account, Some(key), Surface::Api).await;
    let page = operator.page("/studio/operator/strikes").await;
    assert!(page.contains("laptop") && page.contains("Suspended"), "{page}");
    assert!(operator.page("/studio/operator/accounts").await.contains("1 suspended key"));
    // A key that was disabled by hand stays disabled.
    store.change_key(key, KeyChange::Disable).await.expect("a store");
    let lifted = operator.send(&format!("/studio/operator/keys/{key}/lift"), &[]).await;
    assert_eq!(lifted.status, StatusCode::SEE_OTHER);
    let found = store.find_key(key).await.expect("a store").expect("a key");
    assert!(found.suspension.is_none() && found.disabled, "{found:?}");
    let actions = [(Action::Lift, "admin".to_owned()), (Action::SuspendKey, "content policy".to_owned())];
    assert_eq!(operator.actions().await, actions);
    assert!(!operator.page("/studio/operator/strikes").await.contains("laptop"));
    let overview = operator.page("/studio/operator").await;
    assert!(overview.contains("The content policy does not allow this."), "{overview}");
}

#[tokio::test]
async fn large_numbers_have_the_separators_of_the_language() {
    let service = Service::start().await;
    let operator = service.visitor("admin", 1_234_567).await;
    let account = format!("/studio/operator/accounts/{}", operator.account);
    for (language, shown) in [("en", "1,234,567"), ("de", "1.234.567")] {
        for path in ["/studio", "/studio/credits", "/studio/operator/accounts", &account] {
            let headers = [("cookie", operator.cookie.as_str()), ("accept-language", language)];
            let page = service.call("GET", path, &headers, "").await;
            assert!(text(&page).contains(shown) && !text(&page).contains(">1234567<"), "{language} {path}: {page:?}");
        }
    }
}

#[tokio::test]
async fn the_overview_counts_tasks_and_shows_engines_and_pauses_the_queue() {
    let service = Service::start().await;
    let operator = service.visitor("admin", 100).await;
    operator.create("a boat").await;
    operator.create("a boat [[fail]]").await;
    service.work().await;
    operator.create("a third boat").await;
    let report = WorkerReport {
        id: operator.account,
        engine: "sketch".to_owned(),
        max_references: 4,
        masks: false,
        slots: 1,
        mean: Some(Duration::from_secs(30)),
        mean_of_image: Some(Duration::from_millis(7_500)),
        is_available: true,
    };
    service.shared.store.report_worker(report).await.expect("a store");
    let page = operator.page("/studio/operator").await;
    for part in [
        "Tasks completed in 24 h</dt><dd>1<",
        "Tasks failed in 24 h</dt><dd>1<",
        "Waiting tasks</dt><dd>1<",
        "<svg",
        "sketch",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("a boat"), "no prompt");
    assert_eq!(page.matches("7.5 s").count(), 2, "of the worker and of its engine");
    assert_eq!(operator.send("/studio/operator/queue/pause", &[]).await.status, StatusCode::SEE_OTHER);
    assert!(operator.page("/studio/operator").await.contains("The queue has been paused since"));
    assert_eq!(operator.send("/studio/operator/queue/resume", &[]).await.status, StatusCode::SEE_OTHER);
    assert!(service.shared.store.queue_paused_at().await.expect("a store").is_none());
}

#[tokio::test]
async fn the_overview_shows_waiting_apart_from_rendering() {
    let service = Service::start().await;
    let operator = service.visitor("admin", 100).await;
    let (store, lease) = (&service.shared.store, Duration::from_secs(600));
    let fields = [("prompt", "boats"), ("shape", "1:1"), ("n", "4")];
    assert_eq!(operator.send("/studio/tasks", &fields).await.status, StatusCode::SEE_OTHER);
    service.clock.advance(Duration::from_secs(20));
    let first = store.claim(1, lease).await.expect("a store").remove(0).lease;
    service.clock.advance(Duration::from_secs(5));
    store.retry(first, Duration::ZERO, "no paper").await.expect("a store");
    service.clock.advance(Duration::from_secs(6));
    let second = store.claim(1, lease).await.expect("a store").remove(0).lease;
    service.clock.advance(Duration::from_secs(14));
    store.complete(second, vec!["a.png".into(); 4]).await.expect("a store");
    let begin = service.clock.now().as_millis() / 3_600_000 * 3_600_000;
    let hour = store.hour(tintype_system::clock::Timestamp::from_millis(begin)).await.expect("a store");
    let means = [hour.mean_wait(), hour.mean_render(), hour.mean_of_image()];
    assert_eq!(means, [31_000, 14_000, 3_500].map(|millis| Some(Duration::from_millis(millis))));
    let page = operator.page("/studio/operator").await;
    for part in ["31.0 s", "14.0 s", "3.5 s"] {
        assert!(page.contains(&format!("<td class=\"number\">{part}</td>")), "{part}: {page}");
    }
}

#[tokio::test]
async fn accounts_are_searched_and_listed_in_pages() {
    let service = Service::start().await;
    let operator = service.visitor("admin", 0).await;
    for number in 0..60 {
        service.shared.store.create_account(&format!("studio & {number:02}"), number).await.expect("a store");
    }
    let own = format!("/studio/operator/accounts/{}", operator.account);
    let first = operator.page("/studio/operator/accounts?q=STUDIO").await;
    assert!(first.contains("studio &#38; 49") && !first.contains("studio &#38; 50") && !first.contains(&own));
    let next = first.split("href=\"/studio/operator/accounts?").nth(1).and_then(|rest| rest.split('"').next());
    let next = next.expect("a link").replace("&#38;", "&").replace("&amp;", "&");
    let second = operator.page(&format!("/studio/operator/accounts?{next}")).await;
    assert!(second.contains("studio &#38; 59") && !second.contains("studio &#38; 49"), "{second}");
    assert!(operator.page("/studio/operator/accounts?q=%25").await.contains("No accounts match"));
}
