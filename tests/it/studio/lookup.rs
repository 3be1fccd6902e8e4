//! Searches for people, by operators among all accounts and by owners in their own.

use hyper::StatusCode;
use tintype_domain::person::Role;

use super::Visitor;
use crate::rigs::service::Service;

impl Visitor {
    /// The page to which the button below a list leads.
    async fn next(&self, path: &str, page: &str) -> String {
        let next = page.split(&format!("href=\"{path}?")).nth(1).and_then(|rest| rest.split('"').next());
        let next = next.expect("a link").replace("&#38;", "&").replace("&amp;", "&");
        self.page(&format!("{path}?{next}")).await
    }
}

#[tokio::test]
async fn an_operator_finds_a_person_by_a_part_of_the_name() {
    let service = Service::start().await;
    let operator = service.visitor("admin", 0).await;
    for number in 0..60 {
        let account = format!("studio {number:02}");
        service.shared.store.create_account(&account, 0).await.expect("a store");
        service.person(&account, &format!("grace & {number:02}"), Role::Member).await;
    }
    let path = "/studio/operator/people";
    let first = operator.page(&format!("{path}?q=GRACE")).await;
    assert!(first.contains("grace &#38; 49") && !first.contains("grace &#38; 50"), "{first}");
    let second = operator.next(path, &first).await;
    assert!(second.contains("grace &#38; 59") && second.contains(">studio 59<"), "{second}");
    assert!(!second.contains("grace &#38; 49") && second.contains("value=\"GRACE\""), "{second}");
    let one = operator.page(&format!("{path}?q=%26+17")).await;
    assert!(one.contains("grace &#38; 17") && one.matches("grace &#38;").count() == 1, "{one}");
    assert!(one.contains("<td data-label=\"State\">Active</td>"), "{one}");
    for nobody in ["%25", "nobody"] {
        assert!(operator.page(&format!("{path}?q={nobody}")).await.contains("No people match."), "{nobody}");
    }
    assert_eq!(operator.get(&format!("{path}?account=nonsense")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_account_with_many_people_has_them_in_pages() {
    let service = Service::start().await;
    let operator = service.visitor("admin", 0).await;
    let (ada, eve) = (service.visitor("ada", 0).await, service.visitor("eve", 0).await);
    let search = "role=\"search\"";
    assert!(!ada.page("/studio/people").await.contains(search));
    for number in 0..60 {
        service.person("ada", &format!("member {number:02}"), Role::Viewer).await;
    }
    for (visitor, path, query) in [
        (&ada, "/studio/people", String::new()),
        (&operator, "/studio/operator/people", format!("?account={}", ada.account)),
    ] {
        let first = visitor.page(&format!("{path}{query}")).await;
        assert!(first.contains(search) && first.contains("member 48") && !first.contains("member 49"), "{first}");
        let second = visitor.next(path, &first).await;
        assert!(second.contains("member 59") && !second.contains("member 48") && !second.contains(">eve<"), "{second}");
    }
    let proof = ada.proof().await;
    // A change on a later page leads back to it, and to no other page.
    let member = service.find_person("member 55").await.expect("a person");
    for (referrer, expected) in [
        ("http://localhost/studio/people?after=member+48", "/studio/people?after=member+48"),
        ("http://localhost/studio/keys?after=x", "/studio/people"),
        ("http://localhost/studio/people", "/studio/people"),
    ] {
        let path = format!("/studio/people/{}/role", member.id);
        let changed = ada.send_with(&path, &[("role", "member")], &proof, &[("referer", referrer)]).await;
        assert_eq!(changed.header("location"), expected, "{referrer}");
    }
    let found = ada.page("/studio/people?q=ber+31").await;
    assert!(found.contains("member 31") && !found.contains("member 30"), "{found}");
    assert!(ada.page("/studio/people?q=eve").await.contains("No people match."));
    let account = operator.page(&format!("/studio/operator/accounts/{}", ada.account)).await;
    let all = format!("/studio/operator/people?account={}", ada.account);
    assert!(account.contains("member 48") && !account.contains("member 49") && account.contains(&all), "{account}");
    assert!(!operator.page(&format!("/studio/operator/accounts/{}", eve.account)).await.contains("people?account"));
}
