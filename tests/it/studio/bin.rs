//! The bin, and whose tasks they are: authors, the rights over the tasks of others, and who spent the credits.

use hyper::StatusCode;
use tintype_config::ERASE_EVERY;
use tintype_domain::model::Id;
use tintype_domain::person::Role;
use tintype_store::Action;

use super::Visitor;
use crate::rigs::service::Service;

const BIN: &str = "/studio/bin";

impl Visitor {
    async fn bin(&self, change: &str, tasks: &[Id]) -> StatusCode {
        let names: Vec<String> = tasks.iter().map(|task| format!("task-{task}")).collect();
        let fields: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
        self.send(&format!("{BIN}/{change}"), &fields).await.status
    }

    async fn delete(&self, task: Id) -> StatusCode {
        self.send("/studio/gallery/delete", &[(&format!("task-{task}"), "1")]).await.status
    }

    async fn sees(&self, path: &str, task: Id) -> bool {
        self.page(path).await.contains(task.as_str())
    }
}

#[tokio::test]
async fn the_bin_restores_and_erases_one_several_or_all() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    assert!(ada.page(BIN).await.contains("The bin is empty"));
    let mut tasks = Vec::new();
    for number in 0..4 {
        tasks.push(ada.finished(&format!("boat {number}")).await);
        assert_eq!(ada.delete(tasks[number]).await, StatusCode::SEE_OTHER);
    }
    let page = ada.page(BIN).await;
    assert!(tasks.iter().all(|task| page.contains(task.as_str())) && page.contains("for 30 days"), "{page}");
    let chosen = async |query: &str| ada.page(&format!("{BIN}{query}")).await.matches(" checked>").count();
    assert_eq!((chosen("").await, chosen("?all=1").await, chosen("?all=0").await), (0, 4, 0));
    let thumbnail = format!("/studio/tasks/{}/pictures/1", tasks[0]);
    assert_eq!(ada.get(&thumbnail).await.status, 200);
    for change in ["restore", "erase"] {
        assert_eq!(ada.bin(change, &[]).await, StatusCode::UNPROCESSABLE_ENTITY);
    }
    assert_eq!(ada.bin("restore", &tasks[..1]).await, StatusCode::SEE_OTHER);
    assert!(ada.sees("/studio/gallery", tasks[0]).await && !ada.sees(BIN, tasks[0]).await);
    assert_eq!(ada.bin("erase", &tasks[1..2]).await, StatusCode::SEE_OTHER);
    assert!(!ada.sees(BIN, tasks[1]).await);
    assert_eq!(ada.bin("restore", &tasks[1..2]).await, StatusCode::SEE_OTHER);
    assert!(!ada.sees("/studio/gallery", tasks[1]).await, "its deletion is final");
    service.clock.advance(ERASE_EVERY * 11);
    assert_eq!(service.sweeper.sweep_deleted().await, 1);
    assert_eq!(ada.get(&thumbnail.replace(tasks[0].as_str(), tasks[1].as_str())).await.status, 404);
    assert_eq!(ada.bin("restore-all", &[]).await, StatusCode::SEE_OTHER);
    assert!(ada.sees("/studio/gallery", tasks[2]).await && ada.sees("/studio/gallery", tasks[3]).await);
    for task in &tasks[2..] {
        ada.delete(*task).await;
    }
    assert_eq!(ada.bin("empty", &[]).await, StatusCode::SEE_OTHER);
    assert!(ada.page(BIN).await.contains("The bin is empty"));
    service.clock.advance(ERASE_EVERY * 11);
    assert_eq!(service.sweeper.sweep_deleted().await, 2);
    assert_eq!(ada.bin("nonsense", &[]).await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn images_of_tasks_in_the_bin_outlast_every_sweep() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let boat = ada.finished("a boat").await;
    let image = async || ada.get(&format!("/studio/tasks/{boat}/pictures/1")).await.status;
    assert_eq!(image().await, 200);
    service.clock.advance(ERASE_EVERY * 60 * 48);
    let ada = service.visitor_as("ada", "grace", Role::Owner).await;
    ada.delete(boat).await;
    service.clock.advance(ERASE_EVERY * 60 * 3);
    for _ in 0..2 {
        assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 0);
    }
    service.sweeper.remove_old().await;
    assert_eq!(ada.bin("restore", &[boat]).await, StatusCode::SEE_OTHER);
    let page = ada.page(&format!("/studio/tasks/{boat}")).await;
    let name = page.split("/files/").nth(1).and_then(|rest| rest.split('"').next()).expect("an image");
    assert_eq!(service.call("GET", &format!("/files/{name}"), &[], "").await.status, 200);
}

#[tokio::test]
async fn the_bin_keeps_tasks_no_longer_than_the_retention() {
    let (service, ada) = Service::with_visitor(&["--retention", "2h"], 100).await;
    let boat = ada.finished("a boat").await;
    ada.delete(boat).await;
    service.clock.advance(ERASE_EVERY * 60);
    assert_eq!(service.sweeper.sweep_deleted().await, 0);
    service.clock.advance(ERASE_EVERY * 61);
    assert_eq!(service.sweeper.sweep_deleted().await, 1);
}

#[tokio::test]
async fn members_delete_their_own_tasks_and_owners_all_on_the_record() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let (bob, eve) = (
        service.visitor_as("ada", "bob van Berg", Role::Member).await,
        service.visitor_as("ada", "eve", Role::Member).await,
    );
    let viewer = service.visitor_as("ada", "vic", Role::Viewer).await;
    let (of_ada, of_bob, of_eve) =
        (ada.finished("a boat").await, bob.finished("a hut").await, eve.finished("a hat").await);
    // Create shows one's own, the gallery everyone's with their initials.
    assert!(bob.sees("/studio", of_bob).await && !bob.sees("/studio", of_ada).await);
    let page = ada.page("/studio/gallery").await;
    assert!([of_ada, of_bob, of_eve].iter().all(|task| page.contains(task.as_str())), "{page}");
    assert!(page.contains(">BV<") && page.contains("title=\"bob van Berg\""), "{page}");
    // Of an address, those of the part that differs between colleagues.
    let grace = service.visitor_as("ada", "grace.hopper@navy.example", Role::Member).await;
    let of_grace = grace.finished("a moth").await;
    assert!(ada.page("/studio/gallery").await.contains(">GH<"), "{page}");
    assert_eq!(grace.delete(of_grace).await, StatusCode::SEE_OTHER);
    assert!(ada.sees(&format!("/studio/gallery?person={}", bob.person.id), of_bob).await);
    assert!(!ada.sees(&format!("/studio/gallery?person={}", bob.person.id), of_ada).await);
    assert!(
        eve.sees("/studio/gallery?person=me", of_eve).await && !eve.sees("/studio/gallery?person=me", of_bob).await
    );
    // All or nothing.
    let both = [(format!("task-{of_eve}"), "1"), (format!("task-{of_bob}"), "1")];
    let both: Vec<_> = both.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let refused = eve.send("/studio/gallery/delete", &both).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    assert!(eve.sees("/studio/gallery", of_eve).await && eve.sees("/studio/gallery", of_bob).await);
    assert_eq!(eve.delete(of_eve).await, StatusCode::SEE_OTHER);
    assert_eq!(viewer.get(BIN).await.status, StatusCode::FORBIDDEN);
    assert_eq!(ada.delete(of_bob).await, StatusCode::SEE_OTHER);
    let log = service.shared.store.audit_entries(Some(ada.account), None, 100).await.expect("a store");
    let deletions = log.iter().filter(|entry| entry.audited.action == Action::DeleteTask);
    let deletions: Vec<_> =
        deletions.map(|entry| (entry.actor.name.as_str(), entry.audited.subject.as_deref())).collect();
    assert_eq!(deletions, [("ada", Some(of_bob.as_str()))]);
    // Each member's bin has the member's own; an owner's has all.
    assert!(bob.sees(BIN, of_bob).await && !bob.sees(BIN, of_eve).await);
    assert!(ada.sees(BIN, of_bob).await && ada.sees(BIN, of_eve).await);
    let thumbnail = format!("/studio/tasks/{of_eve}/pictures/1");
    for (visitor, status) in [(&ada, 200), (&eve, 200), (&bob, 404), (&viewer, 404)] {
        assert_eq!(visitor.get(&thumbnail).await.status, status, "{}", visitor.person.name);
    }
    // Whoever may restore it is told where it is.
    let address = format!("/studio/tasks/{of_eve}");
    for (visitor, is_told) in [(&ada, true), (&eve, true), (&bob, false), (&viewer, false)] {
        let (page, name) = (visitor.get(&address).await, &visitor.person.name);
        assert_eq!(page.status, StatusCode::NOT_FOUND, "{name}");
        assert_eq!(super::text(&page).contains("This picture is in the bin."), is_told, "{name}: {page:?}");
        assert_eq!(super::text(&page).contains("href=\"/studio/bin\""), is_told, "{name}: {page:?}");
        assert!(!super::text(&page).contains("operator"), "{name}: {page:?}");
    }
    let other = service.visitor("mallory", 10).await;
    assert!(!super::text(&other.get(&address).await).contains("in the bin"));
    assert_eq!(other.get(&thumbnail).await.status, 404);
    for change in ["restore", "erase"] {
        assert_eq!(bob.bin(change, &[of_eve]).await, StatusCode::SEE_OTHER);
        assert_eq!(other.bin(change, &[of_eve]).await, StatusCode::SEE_OTHER);
    }
    bob.bin("empty", &[]).await;
    let gone = ada.get(&format!("/studio/tasks/{of_bob}")).await;
    assert!(super::text(&gone).contains("This page does not exist"), "its deletion is final: {gone:?}");
    assert!(eve.sees(BIN, of_eve).await, "it is neither restored nor erased by others");
    eve.bin("restore-all", &[]).await;
    assert!(eve.sees("/studio/gallery", of_eve).await);
}

#[tokio::test]
async fn the_usage_shows_who_spent_the_credits() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let ada = service.visitor_as("ada", "ada", Role::Owner).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    for visitor in [&ada, &bob, &bob] {
        visitor.finished("a boat").await;
    }
    caller.submit(serde_json::json!({ "prompt": "a boat" })).await;
    service.work().await;
    service.shared.store.remove_person(bob.person.id).await.expect("a store");
    let page = ada.page("/studio/usage?by=person").await;
    for name in [">ada<", ">Former member<", ">API<"] {
        assert!(page.contains(name), "{name}: {page}");
    }
    let csv = ada.page("/studio/usage.csv?by=person").await;
    let mut lines: Vec<_> = csv
        .lines()
        .skip(1)
        .map(|line| line.split(',').map(|field| field.trim_matches('"')).collect::<Vec<_>>())
        .collect();
    lines.sort_by_key(|line| line[2]);
    let rows: Vec<_> = lines.iter().map(|line| (line[1], line[2], line[3], line[7])).collect();
    let (ada, bob) = (ada.person.id, bob.person.id);
    let expected =
        [("", "(API)", "1", "2"), (bob.as_str(), "(former member)", "2", "4"), (ada.as_str(), "ada", "1", "2")];
    assert!(csv.starts_with("\u{feff}account,person_id,person,tasks,images,charged,refunded,credits\r\n"), "{csv}");
    assert_eq!(rows, expected);
}
