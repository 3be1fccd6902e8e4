//! Budgets of keys, credits that expire, and the usage of an account, in the studio.

use hyper::StatusCode;
use tintype_domain::model::Surface;
use tintype_domain::person::Role;
use tintype_domain::request::GenerateRequest;
use tintype_store::{AccountChange, Action};

use super::text;
use crate::rigs::service::Service;

fn images(n: u8) -> GenerateRequest {
    GenerateRequest::parse(format!(r#"{{"prompt": "a boat", "n": {n}}}"#).as_bytes(), &[443]).expect("valid")
}

#[tokio::test]
async fn an_owner_sets_the_budget_of_a_key_and_sees_its_use() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let fields = [("name", "laptop"), ("budget", "10"), ("period", "month")];
    ada.secret(&ada.send("/studio/keys", &fields).await).await;
    let store = &service.shared.store;
    let key = store.list_keys(Some(ada.account)).await.expect("a store").remove(0);
    assert_eq!(key.budget.map(|budget| budget.to_string()).as_deref(), Some("10/month"));
    store.submit(ada.account, Some(key.id), Surface::Api, images(3), 0).await.expect("a store");
    let page = ada.page("/studio/keys").await;
    // The script shows it in the time zone of the reader.
    let resets = "resets at <time datetime=\"2026-12-01T00:00:00.000Z\" data-local>2026-12-01 00:00 UTC</time>";
    for shown in ["10 per month", "6 spent, 4 left", resets] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let budget = format!("/studio/keys/{}/budget", key.id);
    assert_eq!(ada.send(&budget, &[("budget", "8"), ("period", "month")]).await.status, StatusCode::SEE_OTHER);
    for (credits, period) in [("9", "month"), ("8", "day"), ("", "month")] {
        let refused = ada.send(&budget, &[("budget", credits), ("period", period)]).await;
        assert!(text(&refused).contains("You can only lower a budget"), "{credits} {period}");
    }
    assert!(ada.page("/studio/keys").await.contains("6 spent, 2 left"));
    for (credits, period) in [("0", "day"), ("-1", "day"), ("many", "day"), ("5", "year"), ("5", "")] {
        let refused = ada.send(&budget, &[("budget", credits), ("period", period)]).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{credits} {period}");
        let page = text(&refused);
        assert!(page.contains("whole number of credits above zero") && page.contains("<h1>Keys</h1>"), "{page}");
    }
    let eve = service.visitor("eve", 100).await;
    assert_eq!(eve.send(&budget, &[("budget", "")]).await.status, StatusCode::NOT_FOUND);
    let log = store.audit_entries(Some(ada.account), None, 10).await.expect("a store");
    let set: Vec<_> = log.iter().filter(|entry| entry.audited.action == Action::ChangeBudget).collect();
    assert_eq!(set.iter().map(|entry| entry.audited.detail.as_deref()).collect::<Vec<_>>(), [Some("8/month")]);
}

#[tokio::test]
async fn an_owner_sees_and_downloads_the_usage_by_key_and_by_day() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let (key, _) = service.new_key(ada.account, |key| key.name = "=laptop".into()).await;
    let store = &service.shared.store;
    store.submit(ada.account, Some(key), Surface::Api, images(4), 0).await.expect("a store");
    let failed = ada.finished("a boat [[fail]]").await;
    let ledger = ada.page("/studio/credits").await;
    let link = format!("<a href=\"/studio/tasks/{failed}\"><code>imgmodel-{failed}</code></a>");
    assert_eq!((ledger.matches(&link).count(), ledger.matches("href=\"/studio/tasks/").count()), (2, 2), "{ledger}");
    assert!(ledger.contains(">+2</td>") && ledger.contains(">-2</td>"), "{ledger}");
    let page = ada.page("/studio/usage").await;
    let charged = "<td class=\"number\" data-label=\"Charged\">10</td>";
    assert!(page.contains("=laptop") && page.contains(">Studio<") && page.contains(charged), "{page}");
    let now = jiff::Timestamp::from_millisecond(service.shared.store.now().as_millis()).expect("a time");
    let days = now.strftime("%-d %b %Y");
    assert!(page.contains(">Net credits</th>") && page.contains(&format!(">{days}</span> (UTC)")), "{page}");
    let csv = ada.page("/studio/usage.csv?by=key&days=90").await;
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines[0], "\u{feff}account,key_id,key,tasks,images,charged,refunded,credits");
    assert!(lines[1].ends_with(" =laptop\",1,4,8,0,8") && lines[2] == "\"ada\",,\"(studio)\",1,1,2,2,0", "{csv}");
    let day = service.shared.store.now().day();
    assert_eq!(
        ada.page("/studio/usage.csv?by=day").await,
        format!("\u{feff}day,tasks,images,charged,refunded,credits\r\n{day},2,5,10,2,8\r\n")
    );
    let member = service.visitor_as("ada", "member", Role::Member).await;
    for path in ["/studio/usage", "/studio/usage.csv"] {
        assert_eq!(member.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert!(!member.page("/studio/credits").await.contains("/studio/usage"));
    let by_day = ada.page("/studio/usage?by=day&days=365").await;
    assert!(by_day.contains("<a href=\"/studio/usage\" aria-current=\"page\">Usage</a>"), "{by_day}");
    // A year has a bar for each day and the names of its quarters, and the most of a day is below a round number.
    for part in ["peak 8", "<span>8</span><span>4</span><span>0</span>", ">2026</text>", ">Oct</text>"] {
        assert!(by_day.contains(part), "{part}: {by_day}");
    }
    assert_eq!(by_day.matches("<rect").count(), 1);
    assert!(!ada.page("/studio/usage?by=key").await.contains("<rect"));
}

#[tokio::test]
async fn an_operator_grants_credits_that_expire_and_their_owner_sees_them() {
    let (service, [operator, ada]) = Service::with_visitors(&[], ["admin", "ada"], 0).await;
    let account = ada.account.as_str();
    let grant = format!("/studio/operator/accounts/{account}/grant");
    let newest = operator.newest(account).await;
    for days in ["0", "-1", "soon", "99999"] {
        let fields = [("amount", "9"), ("note", "a trial"), ("days", days), ("newest", &newest)];
        let refused = operator.send(&grant, &fields).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{days}");
        let page = text(&refused);
        assert!(page.contains("at least 1 whole day"), "{page}");
        for (name, value) in &fields[..3] {
            assert!(page.contains(&format!("name=\"{name}\" value=\"{value}\"")), "{name}: {page}");
        }
    }
    let fields = [("amount", "9"), ("note", "a trial"), ("days", "3"), ("newest", newest.as_str())];
    assert_eq!(operator.send(&grant, &fields).await.status, StatusCode::SEE_OTHER);
    for page in
        [ada.page("/studio/credits").await, operator.page(&format!("/studio/operator/accounts/{account}")).await]
    {
        assert!(page.contains("Credits that expire") && page.contains("2026-11-24 12:00"), "{page}");
    }
    let log = operator.page("/studio/operator/audit").await;
    assert!(log.contains("+9 (until 2026-11-24 12:00) a trial"), "{log}");
    service.clock.advance(std::time::Duration::from_secs(3 * 24 * 60 * 60));
    service.sweeper.expire_grants().await;
    let page = ada.page("/studio/credits?kind=expiry").await;
    assert!(page.contains(">Expiry<") && page.contains(">-9<") && !page.contains("Credits that expire"), "{page}");
    assert_eq!(ada.page("/studio/credits.csv?kind=expiry").await.lines().count(), 2);
    assert_eq!(ada.credits().await, 0);
}

#[tokio::test]
async fn the_threshold_of_low_credits_is_shown_to_its_account_and_to_the_operator() {
    let service = Service::start().await;
    let (operator, ada) = (service.visitor("admin", 0).await, service.visitor("ada", 100).await);
    let paths =
        [(&ada, "/studio/credits".to_owned()), (&operator, format!("/studio/operator/accounts/{}", ada.account))];
    // Without one, the operator sees how to set it; the account needs no sentence about nothing.
    let [(ada, own), (operator, of_operator)] = &paths;
    assert!(!ada.page(own).await.contains("Low credits"), "{own}");
    let page = operator.page(of_operator).await;
    assert!(page.contains("no threshold is set") && page.contains("tintype account low-balance"), "{page}");
    let change = AccountChange::LowBalance(Some(40));
    service.shared.store.change_account(ada.account, change).await.expect("a store");
    for (visitor, path) in &paths {
        assert!(visitor.page(path).await.contains("balance falls below 40"), "{path}");
    }
}

#[tokio::test]
async fn credits_that_an_operator_took_are_not_called_a_grant() {
    let service = Service::start().await;
    let (operator, ada) = (service.visitor("admin", 0).await, service.visitor("ada", 100).await);
    service.shared.store.take(ada.account, 50, "paid back").await.expect("a store");
    for (visitor, path) in
        [(&ada, "/studio/credits".to_owned()), (&operator, format!("/studio/operator/accounts/{}", ada.account))]
    {
        let page = visitor.page(&path).await;
        let kinds = [">Taken</td>", ">Grant</td>"].map(|kind| page.matches(kind).count());
        assert_eq!(kinds, [1, 1], "{page}");
    }
}
