//! Rate limits and their headers, and the length of the queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tintype::service::wait_estimator::MIN_SAMPLES;
use tintype::worker::render::{RenderControl, RenderError, Renderer, Sources};
use tintype_domain::key::KeySecret;
use tintype_domain::model::{FailureCause, TaskFailure};
use tintype_store::{Actor, Claim, NewKey, Via, WORKER_SILENCE};
use tintype_system::clock::Clock;

use crate::rigs::http::{GENERATE, TASKS};
use crate::rigs::postgres::{cluster, schema};
use crate::rigs::service::Service;

#[tokio::test]
async fn submits_are_limited_per_key_and_recover() {
    let (service, ada) = Service::with_caller(&[], 1_000).await;
    let bob = service.caller("bob", 1_000).await;
    for used in 1..=60 {
        let answer = ada.post(r#"{"prompt": "a boat"}"#).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit-policy"), "\"submit\";q=60;w=60");
        assert!(answer.header("ratelimit").starts_with(&format!("\"submit\";r={};t=", 60 - used)), "{answer:?}");
    }
    let refused = ada.post(r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.header("ratelimit"), "\"submit\";r=0;t=1");
    assert_eq!(ada.credits().await, 1_000 - 120, "a refused submit costs nothing");
    assert_eq!(ada.get(TASKS).await.status, 200, "reads are counted apart");
    assert_eq!(bob.post(r#"{"prompt": "a boat"}"#).await.status, 200, "keys are counted apart");
    service.clock.advance(Duration::from_secs(1));
    assert_eq!(ada.post(r#"{"prompt": "a boat"}"#).await.status, 200);
    ada.post(r#"{"prompt": "a boat"}"#).await.assert_error(429, "RATE_LIMITED");
}

#[tokio::test]
async fn the_rate_limit_comes_after_the_key_and_before_the_body() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "1/min"], 0).await;
    caller.post("not json").await.assert_error(400, "INVALID_REQUEST");
    let refused = caller.post("not json").await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "60");
    service.clock.advance(Duration::from_secs(60));
    caller.post(r#"{"prompt": "a boat"}"#).await.assert_error(402, "INSUFFICIENT_CREDITS");
}

#[tokio::test]
async fn reads_are_limited_per_key() {
    let (_, caller) = Service::with_caller(&["--read-rate", "3"], 10).await;
    for _ in 0..3 {
        assert_eq!(caller.get(TASKS).await.status, 200);
    }
    let refused = caller.get(&format!("{TASKS}/imgmodel-AAAAAAAAAAAAAAAAAAAAA")).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "20");
    assert_eq!(refused.header("ratelimit-policy"), "\"read\";q=3;w=60");
}

#[tokio::test]
async fn a_key_may_have_rates_of_its_own() {
    let (service, caller) = Service::with_caller(&["--read-rate", "1"], 10).await;
    let (_, free) = service.new_key(caller.account.id, |key| key.read_rate = Some(0)).await;
    let (_, two) = service.new_key(caller.account.id, |key| key.read_rate = Some(2)).await;
    let read = async |key: &str| service.call("GET", TASKS, &[("authorization", &format!("Bearer {key}"))], "").await;
    for _ in 0..20 {
        let answer = read(&free).await;
        assert_eq!(answer.status, 200);
        assert!(!answer.headers.contains_key("ratelimit"));
    }
    let statuses =
        [read(&two).await.status.as_u16(), read(&two).await.status.as_u16(), read(&two).await.status.as_u16()];
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn a_key_that_an_owner_made_stays_within_a_rate_that_was_lowered_since() {
    let (service, ada) = Service::with_visitor(&["--read-rate", "2"], 10).await;
    let owner = Actor { name: "ada".into(), person_id: Some(ada.person.id), via: Via::Studio, source: None };
    let store = service.shared.store.acting(owner);
    // With 0, the server had no limit then.
    for rate in [60, 0] {
        let secret = KeySecret::random();
        let new = NewKey { read_rate: Some(rate), ..NewKey::new(&secret) };
        store.create_key(ada.account, new).await.expect("a store").expect("the account exists");
        let headers = [("authorization", &*format!("Bearer {}", secret.reveal()))];
        for status in [200, 200, 429] {
            assert_eq!(service.call("GET", TASKS, &headers, "").await.status, status, "{rate}");
        }
    }
}

/// As many attempts as an estimate takes, of a minute each.
pub fn observe_attempts_of_a_minute(service: &Service) {
    (0..MIN_SAMPLES).for_each(|_| service.worker.throughput().observe(Duration::from_secs(60), 1));
}

/// A renderer whose renders hang, or end after a time of the service's clock.
struct Slow {
    clock: Clock,
    takes: Option<Duration>,
}

#[async_trait]
impl Renderer for Slow {
    async fn render(&self, _: &Claim, _: Sources, control: RenderControl) -> Result<Vec<Bytes>, RenderError> {
        self.clock.advance(self.takes.unwrap_or(control.time_limit));
        match self.takes {
            Some(_) => Err(RenderError::Final(TaskFailure::new(FailureCause::Engine, "It sank."))),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn neither_a_hung_attempt_nor_a_single_slow_one_makes_submits_refused() {
    let service = Service::start_on_sqlite(&["--renders", "1", "--submit-rate", "0"]).await;
    let caller = service.caller("ada", 200).await;
    for takes in [None, Some(Duration::from_secs(170))] {
        caller.submit_prompt("a boat").await;
        let worker = service.worker_with(Arc::new(Slow { clock: service.clock.clone(), takes }));
        assert_eq!(worker.step().await.expect("a store"), 1);
        caller.submit_many(10, "a boat").await;
        service.clock.advance(Duration::from_secs(1));
        caller.submit_prompt("a boat").await;
    }
}

#[tokio::test]
async fn an_api_without_a_worker_estimates_the_wait_from_the_workers_in_the_database() {
    let api = Service::start_on_postgres(&["--submit-rate", "0"]).await;
    let worker = api.join(&["--renders", "1"]).await;
    let caller = api.caller("ada", 100).await;
    observe_attempts_of_a_minute(&worker);
    worker.worker.report().await;
    caller.submit_many(9, "a boat").await;
    let refused = caller.post(r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "60");
    assert_eq!(caller.credits().await, 100 - 9 * 2);
    // Another worker starts; its speed is unknown.
    let second = api.join(&["--renders", "1"]).await;
    second.worker.report().await;
    api.clock.advance(Duration::from_secs(1));
    caller.submit_prompt("a boat").await;
    // The second worker ends, and the queue is too long again.
    api.shared.store.report_worker(second.worker.throughput().report(false)).await.expect("a store");
    api.clock.advance(Duration::from_secs(1));
    let refused = caller.post(r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "120");
    // The first worker is silent as well: the wait cannot be estimated.
    api.clock.advance(WORKER_SILENCE);
    caller.submit_prompt("a boat").await;
}

#[tokio::test]
async fn the_estimated_wait_counts_the_workers_of_other_processes() {
    let serving = Service::start_on_postgres(&["--renders", "1", "--submit-rate", "0"]).await;
    let beside = serving.join(&["--renders", "1"]).await;
    let caller = serving.caller("ada", 100).await;
    observe_attempts_of_a_minute(&serving);
    serving.worker.report().await;
    beside.worker.report().await;
    caller.submit_many(17, "a boat").await;
    caller.post(r#"{"prompt": "a boat"}"#).await.assert_error(429, "RATE_LIMITED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_submit_waits_for_another_that_measures_the_queue() {
    let service = Service::start_on_postgres(&[]).await;
    let caller = service.caller("ada", 100).await;
    let schema = schema(service.directory.path());
    // Another session locks the table that the measurement reads.
    let holder = cluster().session().await;
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.workers")).await.expect("the lock is free");
    let meanwhile = async {
        cluster().until_waiting(&schema).await;
        caller.submit_prompt("a boat").await;
        holder.batch_execute("ROLLBACK").await.expect("the session is open");
    };
    let (looked, ()) = tokio::join!(caller.post(r#"{"prompt": "a boat"}"#), meanwhile);
    assert_eq!(looked.status, 200);
}

#[tokio::test]
async fn a_rotated_key_has_what_is_left_of_the_allowance_of_the_key_before_it() {
    let (service, ada) = Service::with_caller(&["--submit-rate", "2/min"], 100).await;
    ada.submit_prompt("a boat").await;
    ada.submit_prompt("a boat").await;
    let mut id = ada.key_id;
    for _ in 0..2 {
        let fresh = KeySecret::random();
        let rotated = service.shared.store.rotate_key(id, fresh.hash(), &fresh.hint(), Duration::ZERO).await;
        id = rotated.expect("a store").expect("the key exists").id;
        let authorization = format!("Bearer {}", fresh.reveal());
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        let refused = service.call("POST", GENERATE, &headers, r#"{"prompt": "a boat"}"#).await;
        refused.assert_error(429, "RATE_LIMITED");
    }
}
