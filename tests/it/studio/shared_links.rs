//! Shared links: what they show without a sign-in, to whom, and for how long.

use std::time::Duration;

use hyper::StatusCode;
use tintype_domain::model::Id;
use tintype_domain::person::Role;
use tintype_store::Action;

use super::browser::Person;
use super::{Visitor, text};
use crate::rigs::http::Answer;
use crate::rigs::service::Service;

const PROMPT: &str = "A fox & a <hen>";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Visitor {
    /// A link for a target, and its path.
    pub async fn share(&self, fields: &[(&str, &str)]) -> (Id, String) {
        let made = self.send("/studio/links", fields).await;
        assert_eq!(made.status, StatusCode::SEE_OTHER, "{made:?}");
        let page = self.page(made.header("location")).await;
        let path = page.split("/studio/shared/").nth(1).expect("a link");
        let id = made.header("location").rsplit('=').next().expect("an id").parse().expect("an id");
        (id, format!("/studio/shared/{}", path.split('"').next().expect("a link")))
    }
}

impl Service {
    /// A request of somebody who isn't signed in.
    pub async fn stranger(&self, path: &str) -> Answer {
        self.call("GET", path, &[], "").await
    }

    /// The pictures of a page: their paths.
    async fn pictures(&self, page: &str) -> Vec<String> {
        let answer = self.stranger(page).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let links = text(&answer).split("<li><a href=\"").skip(1);
        links.map(|rest| rest.split('"').next().expect("a path").to_owned()).collect()
    }
}

#[tokio::test]
async fn a_link_shows_a_picture_to_everybody_and_nothing_else() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let (task, other) = (ada.finished(PROMPT).await, ada.finished("a secret").await);
    let (_, path) = ada.share(&[("task", task.as_str()), ("days", "7")]).await;
    let page = service.stranger(&path).await;
    assert_eq!(page.status, StatusCode::OK);
    for (name, value) in
        [("cache-control", "no-store"), ("referrer-policy", "no-referrer"), ("x-robots-tag", "noindex")]
    {
        assert_eq!(page.header(name), value, "{name}");
    }
    let html = text(&page);
    assert!(!html.contains("fox") && !html.contains("ada") && !html.contains("/files/"), "{html}");
    let pictures = service.pictures(&path).await;
    let [picture] = &pictures[..] else { panic!("{pictures:?}") };
    assert!(picture.starts_with(&path), "{picture}");
    let png = service.stranger(picture).await;
    assert_eq!(
        (png.status, png.header("content-type"), png.header("cache-control")),
        (StatusCode::OK, "image/png", "no-store")
    );
    assert_eq!(png.body, ada.get(&format!("/studio/tasks/{task}/pictures/1/file")).await.body);
    let small = service.stranger(&format!("{picture}/small")).await;
    assert_eq!(
        (small.status, small.header("content-type"), small.header("cache-control")),
        (StatusCode::OK, "image/webp", "no-store")
    );
    // Neither another task nor another number, nor a link that nobody made.
    let end = if path.ends_with('A') { 'Q' } else { 'A' };
    let forged = format!("{}{end}", &path[..path.len() - 1]);
    for wrong in [
        format!("{path}/{other}/1"),
        format!("{path}/{task}/2"),
        format!("{path}/{task}/0"),
        format!("{path}/x/1/small"),
        format!("{forged}/{task}/1"),
        forged,
        format!("/studio/shared/{task}"),
        "/studio/shared/%FF".into(),
    ] {
        let answer = service.stranger(&wrong).await;
        assert!([400, 404].contains(&answer.status.as_u16()), "{wrong}: {answer:?}");
    }
    // With the prompt, on request.
    let (_, told) = ada.share(&[("task", task.as_str()), ("days", "forever"), ("prompts", "1")]).await;
    assert!(text(&service.stranger(&told).await).contains("A fox &#38; a &#60;hen&#62;"));
}

#[tokio::test]
async fn a_link_to_a_board_follows_the_board() {
    let (service, ada) = Service::with_visitor(&[], 200).await;
    let board = ada.send("/studio/boards", &[("name", "Foxes")]).await;
    let board = board.header("location").rsplit('=').next().expect("a board").to_owned();
    let (_, path) = ada.share(&[("board", &board), ("days", "1")]).await;
    assert!(service.pictures(&path).await.is_empty());
    let mut tasks = Vec::new();
    for _ in 0..50 {
        tasks.push(ada.finished("a fox").await);
    }
    let fields: Vec<(String, &str)> = tasks.iter().map(|task| (format!("task-{task}"), "1")).collect();
    let mut fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    fields.push(("board", &board));
    assert_eq!(ada.send("/studio/gallery/put", &fields).await.status, StatusCode::SEE_OTHER);
    let newest = service.pictures(&path).await;
    assert_eq!(newest.len(), 48);
    let page = service.stranger(&path).await;
    let older = text(&page).split("?before=").nth(1).expect("a next page").split('"').next().expect("an id");
    assert_eq!(service.pictures(&format!("{path}?before={older}")).await.len(), 2);
    // A picture that leaves the board, or is deleted, leaves the link.
    let gone = format!("task-{}", tasks[49]);
    ada.send("/studio/gallery/take", &[(&gone, "1"), ("board", &board)]).await;
    assert_eq!(service.stranger(&newest[0]).await.status, StatusCode::NOT_FOUND);
    ada.send("/studio/gallery/delete", &[(&format!("task-{}", tasks[48]), "1")]).await;
    assert_eq!(service.stranger(&format!("{}/small", newest[1])).await.status, StatusCode::NOT_FOUND);
    assert_eq!(service.stranger(&newest[2]).await.status, StatusCode::OK);
    ada.send(&format!("/studio/boards/{board}/remove"), &[]).await;
    assert_eq!(service.stranger(&path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_link_ends_when_it_is_revoked_or_its_time_is_over() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let task = ada.finished(PROMPT).await;
    let (id, path) = ada.share(&[("task", task.as_str()), ("days", "7")]).await;
    let picture = service.pictures(&path).await.remove(0);
    service.call("HEAD", &path, &[], "").await;
    let views = async || service.shared.store.find_shared_link(id).await.expect("a store").expect("a link").views;
    assert_eq!(views().await, 1, "a program that asks for the header sees nothing");
    let revoke = format!("/studio/links/{id}/revoke");
    for _ in 0..2 {
        assert_eq!(ada.send(&revoke, &[]).await.status, StatusCode::SEE_OTHER);
        let gone = service.stranger(&path).await;
        assert!(gone.status == StatusCode::NOT_FOUND && text(&gone).contains("This link doesn&#39;t work"), "{gone:?}");
        assert_eq!(service.stranger(&picture).await.status, StatusCode::NOT_FOUND);
    }
    let (_, path) = ada.share(&[("task", task.as_str()), ("days", "1")]).await;
    let picture = service.pictures(&path).await.remove(0);
    service.clock.advance(DAY);
    for path in [&path, &picture, &format!("{picture}/small")] {
        assert_eq!(service.stranger(path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    service.sweeper.delete_expired().await;
    let log = service.shared.store.audit_entries(Some(ada.account), None, 9).await.expect("a store");
    let shares: Vec<_> =
        log.iter().map(|entry| entry.audited.action).filter(|action| *action != Action::AddPerson).collect();
    assert_eq!(shares, [Action::Share, Action::Unshare, Action::Share]);
}

#[tokio::test]
async fn members_share_and_revoke_their_own_links_and_owners_any() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let task = ada.finished(PROMPT).await;
    let fields = [("task", task.as_str()), ("days", "7")];
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    let viewer = service.visitor_as("ada", "vera", Role::Viewer).await;
    let eve = service.visitor("eve", 100).await;
    assert_eq!(viewer.send("/studio/links", &fields).await.status, StatusCode::FORBIDDEN);
    assert_eq!(viewer.get("/studio/links").await.status, StatusCode::FORBIDDEN);
    assert_eq!(eve.send("/studio/links", &fields).await.status, StatusCode::NOT_FOUND);
    for wrong in
        [vec![("task", task.as_str()), ("days", "365")], vec![("days", "7")], vec![("task", "x"), ("days", "7")]]
    {
        assert_eq!(ada.send("/studio/links", &wrong).await.status, StatusCode::BAD_REQUEST, "{wrong:?}");
    }
    let (of_ada, by_ada) = ada.share(&fields).await;
    let (of_bob, by_bob) = bob.share(&fields).await;
    let list = bob.page("/studio/links").await;
    assert!(list.contains(&by_bob) && !list.contains(&by_ada), "{list}");
    bob.send(&format!("/studio/links/{of_ada}/revoke"), &[]).await;
    eve.send(&format!("/studio/links/{of_bob}/revoke"), &[]).await;
    assert_eq!(service.pictures(&by_ada).await.len() + service.pictures(&by_bob).await.len(), 2);
    let list = ada.page("/studio/links").await;
    assert!(list.contains(&by_bob) && list.contains(&by_ada), "{list}");
    ada.send(&format!("/studio/links/{of_bob}/revoke"), &[]).await;
    assert_eq!(service.stranger(&by_bob).await.status, StatusCode::NOT_FOUND);
    // An owner revokes a link to a private board, and is not told what it shows.
    let board = bob.send("/studio/boards", &[("name", "Job application"), ("private", "1")]).await;
    let board = board.header("location").rsplit('=').next().expect("a board").to_owned();
    let (of_board, by_board) = bob.share(&[("board", &board), ("days", "7")]).await;
    let list = ada.page("/studio/links").await;
    assert!(list.contains(&format!("/studio/links/{of_board}/revoke")), "{list}");
    assert!(!list.contains("Job application") && !list.contains(&by_board), "{list}");
    assert!(bob.page("/studio/links").await.contains("Job application"));
    // Whoever may only look shares nothing any more.
    let role = format!("/studio/people/{}/role", bob.person.id);
    ada.send(&role, &[("role", "viewer")]).await;
    assert_eq!(service.stranger(&by_board).await.status, StatusCode::NOT_FOUND);
    ada.send(&role, &[("role", "member")]).await;
    assert_eq!(service.stranger(&by_board).await.status, StatusCode::OK);
    // Whoever leaves takes the links along.
    let (_, path) = bob.share(&fields).await;
    ada.send(&format!("/studio/people/{}/remove", bob.person.id), &[]).await;
    assert_eq!(service.stranger(&path).await.status, StatusCode::NOT_FOUND);
}

#[test]
fn a_person_shares_a_picture_and_a_stranger_sees_it() {
    let mut person = Person::sign_in(&[]);
    person.finish("A lighthouse in a storm");
    person.click("document.querySelector('.tile .open')");
    person.until("document.querySelector('.viewer .share')");
    person.click("document.querySelector('.viewer .share summary')");
    person.click("document.querySelector('.viewer .share [name=prompts]')");
    person.follow("document.querySelector('.viewer .share button')");
    person.until("document.querySelector('.notice .url')");
    let link = person.evaluate("document.querySelector('.notice .url').href");
    person.click("document.querySelector('.person summary')");
    person.follow("document.querySelector('[data-sign-out] button')");
    person.browser.open(link.as_str().expect("a link"));
    person.until("document.querySelector('.shared img').naturalWidth === 640");
    assert_eq!(person.evaluate("document.querySelector('h1').textContent"), "A lighthouse in a storm");
    assert_eq!(person.evaluate("document.querySelector('.bar')"), serde_json::Value::Null);
    person.leave();
}
