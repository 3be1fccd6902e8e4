//! References, engines and webhooks.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tintype::service::webhooks::{Deliverer, MAX_OF_ENDPOINT};
use tintype_domain::endpoint::AddedBy;
use tintype_domain::model::Id;
use tintype_domain::reference_url::ReferenceUrl;
use tintype_outbound::public::Lookup;
use tintype_outbound::references::{MAX_PER_ACCOUNT, ReferenceOptions, References};
use tintype_system::clock::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::engines::lost_leases;
use crate::engines::servers::busy_for_30_s;
use crate::fetching::{Event, ONE_SLOT, Rig, submit, submit_with_reference};
use crate::rigs::images_api::{Dialect, ImagesServer, Reply};
use crate::rigs::receiver::{self, Receiver};
use crate::rigs::service::Service;
use crate::webhooks::delivery::flood;
use crate::webhooks::hostile::receivers;
use crate::webhooks::{NETWORK, add};

/// A DNS that never answers, and the names that it was asked for.
#[derive(Default)]
struct SilentDns(Mutex<Vec<String>>);

#[async_trait]
impl Lookup for SilentDns {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.0.lock().expect("no panic").push(name.to_owned());
        std::future::pending().await
    }
}

#[tokio::test]
async fn downloads_of_references() {
    let dns = Arc::new(SilentDns::default());
    let references = References::with_lookup(ReferenceOptions::default(), dns.clone()).expect("clients");
    let references = Arc::new(references);
    let asked = |account: &str| dns.0.lock().expect("no panic").iter().filter(|name| name.contains(account)).count();
    let task = |account: &str, number: i64| {
        let url = |index| format!("https://{index}.{number}.{account}.example/a.png");
        let urls = (0..MAX_PER_ACCOUNT).map(|index| ReferenceUrl::parse(&url(index), &[443]).expect("a URL"));
        let (urls, references) = (urls.collect::<Vec<_>>(), references.clone());
        let id = Id::floor(Timestamp::from_millis(account.len() as i64));
        tokio::spawn(async move { references.fetch_for(id, &urls).await.map(drop) })
    };
    let waiting: Vec<_> = (0..4).map(|number| task("attacker", number)).chain([task("victim", 0)]).collect();
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        (asked("attacker"), asked("victim")),
        (MAX_PER_ACCOUNT, MAX_PER_ACCOUNT),
        "the others of the attacker wait"
    );
    assert!(waiting.iter().all(|task| !task.is_finished()));
}

#[tokio::test]
async fn slots_for_tasks_with_references() {
    let (service, [eve, bob]) = Service::with_callers(&ONE_SLOT, ["eve", "bob"], 100).await;
    let mut slow = Vec::new();
    for _ in 0..5 {
        slow.push(submit_with_reference(&eve, "slow").await);
    }
    let mut rig = Rig::new(&service);
    let running = rig.run();
    for expected in &slow[..2] {
        assert_eq!(rig.next().await, Event::Fetches(*expected));
    }
    // Round robin: eve's tasks are claimed as often as bob's.
    for _ in 0..3 {
        let boat = submit(&bob, "a boat").await;
        rig.rendered(boat, &[]).await;
        let copy = submit_with_reference(&bob, "a copy").await;
        rig.rendered(copy, &[copy]).await;
    }
    rig.depth(3, 2).await;
    rig.gauges(2, 0).await;

    rig.renderer.references.add_permits(1);
    assert_eq!(rig.next().await, Event::Leaves(slow[0]));
    rig.rendered(slow[0], &slow[2..3]).await;
    rig.depth(2, 2).await;
    rig.complete_all(running).await;
}

#[tokio::test]
async fn servers_of_an_engine() {
    let redirect = Reply::Whole(302, vec![("location", "/login".into())], Vec::new());
    let loading = Reply::json(503, &json!({ "detail": "loading" }));
    let busy = Reply::json(429, &json!({ "detail": "busy" }));
    for (reply, is_busy) in [(redirect, false), (busy, true), (busy_for_30_s(), true), (loading, false)] {
        let server = ImagesServer::start(Dialect::Sglang).await;
        server.to_prompts_with("poison", reply);
        let service = Service::start_with(&["--engine", &server.engine(), "--engine-profile", "sglang"]).await;
        let (ada, bob) = (service.caller("ada", 10).await, service.caller("bob", 100).await);
        let poison = ada.submit_prompt("poison").await;
        service.work().await;
        for round in 0..5 {
            assert_eq!(bob.outcome("a boat").await["status"], "completed", "round {round}");
            service.clock.advance(Duration::from_secs(32));
        }
        // No prompt makes a server busy, so the task may wait as long as any other.
        if is_busy {
            assert_eq!(lost_leases(&ada, &poison).await, Some(0));
            service.clock.advance(Duration::from_secs(9 * 60));
            service.sweep().await;
        }
        assert_eq!(ada.task(&poison).await["status"], "failed");
        assert_eq!(ada.credits().await, 10, "it was refunded");
        service.assert_sound().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_at_webhooks() {
    let service = Service::start_with(&NETWORK).await;
    let (dead, alive) = (Receiver::start().await, Receiver::start().await);
    let (ada, bob) = (service.caller("ada", 100).await, service.caller("bob", 100).await);
    let store = &*service.shared.store;
    let (of_ada, _) = add(store, ada.account.id, &dead.url(), AddedBy::Operator).await.expect("a store");
    add(store, bob.account.id, &alive.url(), AddedBy::Operator).await.expect("a store");
    dead.always(receiver::Reply::Silence);
    flood(&service, of_ada.id.as_str(), 10_000);
    assert_eq!(store.waiting_deliveries().await.expect("a store"), 10_000);
    let deliverer = Deliverer::new(service.shared.clone(), receivers(Duration::from_secs(3_600)));
    let running = tokio::spawn(deliverer.run(CancellationToken::new()));
    let share = MAX_OF_ENDPOINT as usize;
    dead.hears(share).await;
    for count in 1..=10 {
        bob.submit_prompt("a boat [[fail]]").await;
        service.work().await;
        alive.hears(count).await;
    }
    assert_eq!(dead.asked().len(), share, "its share of the attempts at a time");
    running.abort();
}
