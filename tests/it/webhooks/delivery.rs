//! The requests that receivers get, and their times.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use tintype::service::webhooks::Deliverer;
use tintype_config::DELIVERY_LIFE;
use tintype_domain::endpoint::{AddedBy, DeliveryState, DisabledFor, Endpoint, EndpointState, SigningSecret};
use tintype_domain::model::Surface;
use tintype_domain::request::GenerateRequest;
use tintype_store::EndpointChange;
use tintype_system::clock::Clock;
use tokio_util::sync::CancellationToken;

use super::hostile::receivers;
use super::{NETWORK, add, deliveries, found, task_of};
use crate::rigs::postgres::{cluster, schema};
use crate::rigs::receiver::{Receiver, Reply, TOKEN, verify};
use crate::rigs::service::{Backend, Caller, Service};
use crate::rigs::wait::Background;

/// Starts a service whose clock shows the real time, at which the official library looks.
async fn start() -> Service {
    let service = Service::start_with(&NETWORK).await;
    service.clock.set(Clock::system().now());
    service
}

/// An account whose ended tasks a receiver is told of.
pub async fn told(service: Service) -> (Service, Receiver, Caller, Endpoint, SigningSecret) {
    let (receiver, ada) = (Receiver::start().await, service.caller("ada", 100).await);
    let store = &service.shared.store;
    let (endpoint, secret) = add(store, ada.account.id, &receiver.url(), AddedBy::Operator).await.expect("a store");
    (service, receiver, ada, endpoint, secret)
}

/// The task_id of a task that ends, of which receivers are told.
async fn end_task(caller: &Caller) -> String {
    let task_id = caller.submit_prompt("a boat").await;
    caller.service.work().await;
    caller.service.deliver().await;
    task_id
}

#[tokio::test]
async fn the_end_of_a_task_is_told_once_with_a_signature() {
    let (service, receiver, ada, endpoint, secret) = told(start().await).await;
    let completed = ada.submit_prompt("a boat").await;
    let failed = ada.submit_prompt("a boat [[fail]]").await;
    service.work().await;
    service.clock.set(Clock::system().now());
    service.deliver().await;
    let heard = receiver.asked();
    assert_eq!(heard.len(), 2);
    for (task_id, kind) in [(completed, "task.completed"), (failed, "task.failed")] {
        let asked = heard.iter().find(|asked| task_of(&asked.json()) == task_id).expect("an event");
        verify(asked, secret.reveal()).expect("a signature");
        verify(asked, SigningSecret::random().reveal()).expect_err("of another secret");
        assert_eq!((asked.method.as_str(), asked.path.as_str()), ("POST", format!("/hooks?token={TOKEN}").as_str()));
        assert_eq!(asked.header("content-type"), Some("application/json"));
        assert!(asked.header("user-agent").is_some_and(|agent| agent.starts_with("tintype/")));
        let id = task_id.strip_prefix("imgmodel-").expect("an id");
        assert_eq!(asked.header("webhook-id"), Some(format!("evt_{id}").as_str()));
        let task = ada.task(&task_id).await;
        let event = asked.json();
        assert_eq!((&event["type"], &event["timestamp"]), (&kind.into(), &task["updated_at"]));
        for field in ["task_id", "status", "error", "created_at", "updated_at"] {
            assert_eq!(event["data"][field], task[field], "{field}");
        }
        assert!(!String::from_utf8_lossy(&asked.body).contains("boat"), "the prompt stays here");
    }
    let deliveries = deliveries(&service, endpoint.id).await;
    assert!(deliveries.iter().all(|delivery| delivery.state() == DeliveryState::Delivered && delivery.attempts == 1));
    service.clock.advance(Duration::from_secs(86_400));
    service.deliver().await;
    assert_eq!(receiver.asked().len(), 2);
}

#[tokio::test]
async fn nobody_else_is_told_and_nothing_of_the_studio() {
    let (service, receiver) = (start().await, Receiver::start().await);
    let (ada, bob) = (service.caller("ada", 100).await, service.caller("bob", 100).await);
    add(&service.shared.store, bob.account.id, &receiver.url(), AddedBy::Operator).await.expect("a store");
    ada.submit_prompt("a boat").await;
    let request = GenerateRequest::new("a boat");
    service.shared.store.submit(bob.account.id, None, Surface::Web, request, 0).await.expect("a store");
    service.work().await;
    service.deliver().await;
    assert_eq!(receiver.bodies(), Vec::<serde_json::Value>::new());
    let task_id = end_task(&bob).await;
    assert_eq!(receiver.bodies().iter().map(task_of).collect::<Vec<_>>(), [task_id]);
}

#[tokio::test]
async fn a_failed_attempt_is_made_again_on_schedule_until_the_endpoint_is_disabled() {
    let (service, receiver, ada, endpoint, ..) = told(Service::start_with(&NETWORK).await).await;
    receiver.always(Reply::status(500));
    end_task(&ada).await;
    let minute = 60;
    let hour = 60 * minute;
    let waits = [5, 5 * minute, 30 * minute, 2 * hour, 5 * hour, 10 * hour, 14 * hour, 20 * hour, 24 * hour]
        .map(Duration::from_secs);
    for (index, wait) in waits.into_iter().enumerate() {
        assert_eq!(receiver.asked().len(), index + 1);
        assert_eq!(found(&service, endpoint.id).await.state(), EndpointState::Failing);
        let [delivery] = &deliveries(&service, endpoint.id).await[..] else { panic!("one delivery") };
        let next = delivery.next_attempt_at.expect("another attempt");
        let now = service.clock.now();
        assert!(next >= now.saturating_add(wait) && next < now.saturating_add(wait.mul_f64(1.2)), "{wait:?}");
        assert_eq!((delivery.attempts as usize, delivery.status), (index + 1, Some(500)));
        service.clock.set(next.saturating_sub(Duration::from_millis(1)));
        service.deliver().await;
        assert_eq!(receiver.asked().len(), index + 1, "not earlier");
        service.clock.set(next);
        service.deliver().await;
    }
    let heard = receiver.asked();
    assert_eq!(heard.len(), 10);
    let distinct = |name: &str| heard.iter().filter_map(|asked| asked.header(name)).collect::<BTreeSet<_>>().len();
    assert_eq!((distinct("webhook-id"), distinct("webhook-timestamp"), distinct("webhook-signature")), (1, 10, 10));
    let disabled = found(&service, endpoint.id).await;
    assert_eq!((disabled.state(), disabled.disabled_for), (EndpointState::Disabled, Some(DisabledFor::Failing)));
    assert_eq!(deliveries(&service, endpoint.id).await[0].state(), DeliveryState::Failed);
    end_task(&ada).await;
    assert_eq!((receiver.asked().len(), deliveries(&service, endpoint.id).await.len()), (10, 1));
}

#[tokio::test]
async fn an_endpoint_that_takes_other_events_outlives_one_that_is_given_up() {
    let (service, receiver, ada, endpoint, ..) = told(Service::start_with(&NETWORK).await).await;
    let refused = ada.submit_prompt("a boat").await;
    service.work().await;
    for attempt in 1..=10 {
        receiver.reply([Reply::status(400)]);
        service.deliver().await;
        let delivery = deliveries(&service, endpoint.id).await.into_iter().find(|one| one.attempts == attempt);
        let delivery = delivery.expect("the delivery");
        if attempt == 9 {
            end_task(&ada).await;
        }
        let Some(next) = delivery.next_attempt_at else { break };
        service.clock.set(next.max(service.clock.now()));
    }
    assert_eq!(receiver.bodies().iter().filter(|event| task_of(event) == refused).count(), 10);
    assert_ne!(found(&service, endpoint.id).await.state(), EndpointState::Disabled);
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_told_nothing_more() {
    let (service, receiver, ada, endpoint, ..) = told(Service::start_with(&NETWORK).await).await;
    receiver.always(Reply::status(410));
    end_task(&ada).await;
    assert_eq!(found(&service, endpoint.id).await.disabled_for, Some(DisabledFor::Gone));
    receiver.always(Reply::status(204));
    ada.submit_prompt("a boat").await;
    service.work().await;
    service.clock.advance(Duration::from_secs(86_400));
    service.deliver().await;
    assert_eq!(receiver.asked().len(), 1);
}

#[tokio::test]
async fn a_receiver_may_ask_for_time() {
    let (service, receiver, ada, ..) = told(Service::start_with(&NETWORK).await).await;
    let busy = Reply::Whole(429, vec![("Retry-After", "3600".into())], b"busy".to_vec());
    receiver.reply([busy]);
    end_task(&ada).await;
    // Another event waits, too.
    ada.submit_prompt("a ship").await;
    service.work().await;
    service.clock.advance(Duration::from_secs(3_600 - 30));
    service.deliver().await;
    assert_eq!(receiver.asked().len(), 1);
    service.clock.advance(Duration::from_secs(30));
    service.deliver().await;
    assert_eq!(receiver.asked().len(), 3);
}

#[tokio::test]
async fn both_secrets_sign_after_a_rotation() {
    let (service, receiver, _, endpoint, old) = told(start().await).await;
    let (new, overlap) = (SigningSecret::random(), Duration::from_secs(60));
    let rotate = EndpointChange::Rotate { secret: new.clone(), overlap };
    service.shared.store.change_endpoint(endpoint.id, rotate).await.expect("a store");
    for old_signs in [true, false] {
        service.shared.store.test_endpoint(endpoint.id).await.expect("a store").expect("a delivery");
        service.deliver().await;
        let heard = receiver.asked();
        let last = heard.last().expect("a test");
        verify(last, new.reveal()).expect("a signature");
        assert_eq!(verify(last, old.reveal()).is_ok(), old_signs);
        let count = last.header("webhook-signature").expect("signatures").split(' ').count();
        assert_eq!(count, if old_signs { 2 } else { 1 });
        service.clock.advance(overlap);
    }
}

#[tokio::test]
async fn a_test_is_sent_once_and_says_nothing_about_the_endpoint() {
    let (service, receiver, _, endpoint, ..) = told(Service::start_with(&NETWORK).await).await;
    receiver.reply([Reply::status(500)]);
    for state in [DeliveryState::Failed, DeliveryState::Delivered] {
        let id = service.shared.store.test_endpoint(endpoint.id).await.expect("a store").expect("a delivery");
        service.deliver().await;
        service.clock.advance(Duration::from_secs(86_400));
        service.deliver().await;
        let delivery = service.shared.store.find_delivery(id).await.expect("a store").expect("a delivery");
        assert_eq!((delivery.state(), delivery.attempts), (state, 1));
        assert_eq!(found(&service, endpoint.id).await.state(), EndpointState::Active);
    }
    assert_eq!(receiver.bodies()[0]["type"], "webhook.test");
}

#[tokio::test]
async fn deliveries_are_kept_for_a_week() {
    let (service, _, ada, endpoint, ..) = told(Service::start_with(&NETWORK).await).await;
    end_task(&ada).await;
    let written = deliveries(&service, endpoint.id).await[0].id.timestamp();
    service.clock.set(written.saturating_add(DELIVERY_LIFE));
    service.sweeper.delete_expired().await;
    assert_eq!(deliveries(&service, endpoint.id).await.len(), 1);
    service.clock.advance(Duration::from_millis(1));
    service.sweeper.delete_expired().await;
    assert_eq!(deliveries(&service, endpoint.id).await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_nodes_one_delivers_each_event() {
    let (service, receiver) = (Service::start_with(&NETWORK).await, Receiver::start().await);
    let beside = service.join(&NETWORK).await;
    let ada = service.caller("ada", 1_000).await;
    add(&service.shared.store, ada.account.id, &receiver.url(), AddedBy::Operator).await.expect("a store");
    let mut tasks = BTreeSet::new();
    for _ in 0..40 {
        tasks.insert(ada.submit_prompt("a boat [[fail]]").await);
    }
    service.work().await;
    join_all([service.deliver(), beside.deliver(), beside.deliver()]).await;
    let bodies = receiver.bodies();
    assert_eq!((bodies.len(), bodies.iter().map(|event| task_of(event).to_owned()).collect()), (40, tasks));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_deliverer_hears_of_an_ending_and_finishes_what_it_began() {
    let (service, receiver, ada, ..) = told(Service::start_with(&NETWORK).await).await;
    let running = Background::of(|stop| service.deliverer.clone().run(stop));
    ada.submit_prompt("a boat").await;
    service.work().await;
    receiver.hears(1).await;
    running.end().await;
    assert_eq!(service.shared.store.waiting_deliveries().await.expect("a store"), 0);
}

/// Writes events for an endpoint, as if so many tasks had ended.
pub fn flood(service: &Service, endpoint: &str, count: u32) {
    let now = service.clock.now().as_millis();
    let insert = "INSERT INTO deliveries (id, endpoint_id, event_id, type, data, happened_at, next_attempt_at)";
    match Backend::of_services() {
        Backend::Sqlite => {
            let connection =
                rusqlite::Connection::open(service.directory.path().join("tintype.db")).expect("a database");
            let sql = format!(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
                 {insert} SELECT '0' || substr(hex(randomblob(10)), 1, 20), '{endpoint}',
                 '0' || substr(hex(randomblob(10)), 1, 20), 'webhook.test', '{{}}', {now}, {now} FROM n"
            );
            connection.execute_batch(&sql).expect("rows");
        }
        Backend::Postgres => cluster().execute(&format!(
            "SET search_path = {}; {insert} SELECT '0' || substr(md5(random()::text), 1, 20), '{endpoint}',
             '0' || substr(md5(random()::text), 1, 20), 'webhook.test',
             '{{}}', {now}, {now} FROM generate_series(1, {count})",
            schema(service.directory.path())
        )),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_receivers_of_many_accounts_delay_nobody_else() {
    let service = Service::start_with(&NETWORK).await;
    let (slow, quick) = (Receiver::start().await, Receiver::start().await);
    slow.always(Reply::Silence);
    let store = &*service.shared.store;
    // Their events would take twice the attempts that are made at a time.
    for number in 0..16 {
        let account = service.caller(&format!("slow-{number}"), 10).await.account.id;
        for _ in 0..2 {
            let (endpoint, _) = add(store, account, &slow.url(), AddedBy::Operator).await.expect("a store");
            flood(&service, endpoint.id.as_str(), 8);
        }
    }
    let bob = service.caller("bob", 100).await;
    add(store, bob.account.id, &quick.url(), AddedBy::Operator).await.expect("a store");
    let deliverer = Deliverer::new(service.shared.clone(), receivers(Duration::from_secs(3_600)));
    let running = tokio::spawn(deliverer.run(CancellationToken::new()));
    slow.hears(112).await;
    for count in 1..=3 {
        bob.submit_prompt("a boat [[fail]]").await;
        service.work().await;
        quick.hears(count).await;
    }
    running.abort();
}
