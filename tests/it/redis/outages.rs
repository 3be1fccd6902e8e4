//! Redis goes away, stays silent or refuses: requests go on, counted by each process alone.

use std::time::Duration;

use futures::future::join_all;
use tintype_store::QueueDepth;
use tintype_system::clock::Timestamp;

use super::nodes::left;
use crate::rigs::http::TASKS;
use crate::rigs::redis::{RedisServer, counting};
use crate::rigs::service::{Caller, Service};
use crate::rigs::wait::until;

/// Time limit of every wait.
const NEVER: Duration = Duration::from_secs(60);

/// Waits until Redis counts, or until the process counts alone.
async fn until_shared(service: &Service, shared: bool) {
    until(async || service.api.limits.are_shared() == shared).await;
}

/// Reads and submits. All must be answered, and the process counts all of them alone.
async fn goes_on_alone(caller: &Caller) {
    let service = &caller.service;
    let before = service.shared.metrics.rate_limit_fallbacks.get();
    let together = join_all((0..16).map(|_| caller.get(TASKS)));
    for answer in tokio::time::timeout(NEVER, together).await.expect("answers") {
        assert_eq!(answer.status, 200);
    }
    caller.submit_many(4, "a boat").await;
    assert_eq!(service.shared.metrics.rate_limit_fallbacks.get() - before, 20);
    let text = service.shared.metrics.expose(&QueueDepth::default(), &[], Timestamp::from_millis(0), None);
    assert!(text.contains(&format!("\ntintype_rate_limit_fallbacks_total {}\n", before + 20)), "{text}");
}

#[tokio::test]
async fn requests_continue_while_redis_is_down_and_limits_are_shared_again_when_it_is_back() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let (service, caller) = Service::with_caller(&counting(&url, &["--read-rate", "100"]), 100).await;
    for used in 1..=5 {
        assert_eq!(left(&caller.get(TASKS).await), 100 - used);
    }
    redis.kill();
    goes_on_alone(&caller).await;
    assert_eq!(left(&caller.get(TASKS).await), 100 - 17, "without Redis the process counts from zero");
    redis.come_back();
    until_shared(&service, true).await;
    let fallbacks = service.shared.metrics.rate_limit_fallbacks.get();
    assert_eq!(left(&caller.get(TASKS).await), 99, "what Redis knew need not last");
    assert_eq!(service.shared.metrics.rate_limit_fallbacks.get(), fallbacks);
    redis.kill();
    goes_on_alone(&caller).await;
}

#[tokio::test]
async fn a_limit_holds_while_redis_is_down() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let (_, caller) = Service::with_caller(&counting(&url, &["--submit-rate", "3"]), 100).await;
    redis.kill();
    caller.submit_many(3, "a boat").await;
    let refused = caller.post(r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(429, "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "20");
}

#[tokio::test]
async fn requests_do_not_queue_behind_a_redis_that_hangs() {
    let redis = RedisServer::start();
    let url = redis.url();
    let (service, caller) =
        Service::with_caller(&["--redis", &url, "--redis-timeout", "2s", "--read-rate", "1000"], 100).await;
    until_shared(&service, true).await;
    caller.get(TASKS).await;
    redis.signal("STOP");
    // The first request notices the outage for all that follow.
    caller.get(TASKS).await;
    until_shared(&service, false).await;
    goes_on_alone(&caller).await;
    redis.signal("CONT");
    until_shared(&service, true).await;
    // With a long time limit, so that Redis answers.
    let patient = service.join(&counting(&url, &["--read-rate", "1000"])).await;
    let left = left(&caller.at(&patient).get(TASKS).await);
    assert!(left >= 1_000 - 3, "Redis was asked {} times while it hung", 1_000 - left - 2);
}

#[tokio::test]
async fn a_script_that_redis_forgot_is_loaded_again() {
    let redis = RedisServer::start();
    let url = redis.url();
    let (service, caller) = Service::with_caller(&counting(&url, &["--read-rate", "100"]), 0).await;
    assert_eq!(left(&caller.get(TASKS).await), 99);
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut redis.connection()).expect("an answer");
    assert_eq!(left(&caller.get(TASKS).await), 98);
    assert_eq!(service.shared.metrics.rate_limit_fallbacks.get(), 0);
}

#[tokio::test]
async fn connections_that_redis_closes_are_reopened() {
    let redis = RedisServer::start();
    let url = redis.url();
    let (service, caller) = Service::with_caller(&counting(&url, &["--read-rate", "100"]), 0).await;
    assert_eq!(left(&caller.get(TASKS).await), 99);
    let mut connection = redis.connection();
    let own: u64 = redis::cmd("CLIENT").arg("ID").query(&mut connection).expect("an id");
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec(&mut connection).expect("done");
    let mut newer = || {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut connection).expect("clients");
        let ids = clients.lines().filter_map(|client| client.strip_prefix("id=")?.split(' ').next()?.parse().ok());
        ids.filter(|id: &u64| *id > own).count()
    };
    until(async || newer() > 0).await;
    until_shared(&service, true).await;
    assert_eq!(left(&caller.get(TASKS).await), 98);
    assert_eq!(service.shared.metrics.rate_limit_fallbacks.get(), 0);
}

#[tokio::test]
async fn a_redis_that_takes_no_writes_does_not_count() {
    let redis = RedisServer::start_with(&["--replicaof", "127.0.0.1", "1"]);
    let url = redis.url();
    let service = Service::start_with(&counting(&url, &[])).await;
    assert!(!service.api.limits.are_shared());
    goes_on_alone(&service.caller("ada", 100).await).await;
    redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).exec(&mut redis.connection()).expect("done");
    until_shared(&service, true).await;
}

#[tokio::test]
async fn a_redis_without_free_memory_does_not_count() {
    let redis = RedisServer::start();
    let url = redis.url();
    let (service, caller) = Service::with_caller(&counting(&url, &[]), 100).await;
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).exec(&mut redis.connection()).expect("done");
    caller.get(TASKS).await;
    until_shared(&service, false).await;
    goes_on_alone(&caller).await;
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).exec(&mut redis.connection()).expect("done");
    until_shared(&service, true).await;
}

#[tokio::test]
async fn rates_of_keys_hold_with_and_without_redis() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let service = Service::start_with(&counting(&url, &["--read-rate", "1"])).await;
    let account = service.caller("ada", 0).await.account;
    for alone in [false, true] {
        if alone {
            redis.kill();
        }
        for (rate, allowed) in [(Some(0), 9), (Some(4), 4), (None, 1)] {
            let (_, key) = service.new_key(account.id, |key| key.read_rate = rate).await;
            let authorization = format!("Bearer {key}");
            let mut statuses = Vec::new();
            for _ in 0..9 {
                let answer = service.call("GET", TASKS, &[("authorization", &authorization)], "").await;
                statuses.push(answer.status.as_u16());
            }
            let expected = [vec![200; allowed], vec![429; 9 - allowed]].concat();
            assert_eq!(statuses, expected, "a rate of {rate:?}, alone: {alone}");
        }
    }
}
