//! Several processes, one limit.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;

use crate::every_store::run_again;
use crate::rigs::http::{Answer, TASKS};
use crate::rigs::redis::{RedisServer, counting};
use crate::rigs::service::{Caller, Service};

const SECOND: Duration = Duration::from_secs(1);

/// The remaining requests in the header of an answer.
pub fn left(answer: &Answer) -> u32 {
    let header = answer.header("ratelimit");
    let left = header.split(';').find_map(|part| part.strip_prefix("r=")).expect("r");
    left.parse().expect("a number")
}

/// Sends this number of reads as each caller, all at once, and returns the remaining requests after each allowed one.
async fn crowd(callers: &[Caller], times: usize) -> Vec<u32> {
    let reads = callers.iter().flat_map(|caller| (0..times).map(|_| caller.get(TASKS)));
    let answers = join_all(reads).await;
    let (allowed, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    for answer in refused {
        answer.assert_error(429, "RATE_LIMITED");
    }
    allowed.into_iter().map(left).collect()
}

#[tokio::test]
async fn several_processes_share_one_limit_exactly() {
    let redis = RedisServer::start();
    let url = redis.url();
    let flags = counting(&url, &["--read-rate", "10"]);
    let first = Service::start_with(&flags).await;
    let (second, third) = (first.join(&flags).await, first.join(&flags).await);
    let caller = first.caller("ada", 0).await;
    let callers = [caller.at(&first), caller.at(&second), caller.at(&third)];
    let left = crowd(&callers, 20).await;
    assert_eq!(left.len(), 10);
    assert_eq!(left.into_iter().collect::<BTreeSet<_>>(), (0..10).collect(), "each request found its own place");
    first.clock.advance(SECOND * 6 - Duration::from_millis(1));
    assert_eq!(crowd(&callers, 5).await.len(), 0);
    first.clock.advance(Duration::from_millis(1));
    assert_eq!(crowd(&callers, 5).await.len(), 1);
    first.clock.advance(SECOND * 18);
    assert_eq!(crowd(&callers, 5).await.len(), 3);
    first.clock.advance(SECOND * 3_600);
    assert_eq!(crowd(&callers, 5).await.len(), 10);
    for node in [&first, &second, &third] {
        assert_eq!(node.shared.metrics.rate_limit_fallbacks.get(), 0);
    }
}

#[tokio::test]
async fn without_redis_each_process_counts_alone() {
    let first = Service::start_with(&["--read-rate", "10"]).await;
    let second = first.join(&["--read-rate", "10"]).await;
    let caller = first.caller("ada", 0).await;
    assert_eq!(crowd(&[caller.at(&first), caller.at(&second)], 15).await.len(), 20);
}

#[tokio::test]
async fn redis_stores_no_secrets_and_every_entry_expires() {
    let redis = RedisServer::start();
    let url = redis.url();
    let (service, caller) = Service::with_caller(&counting(&url, &[]), 10).await;
    let (_, free) = service.new_key(caller.account.id, |key| key.read_rate = Some(0)).await;
    caller.submit_prompt("a boat").await;
    caller.get(TASKS).await;
    service.call("GET", TASKS, &[("authorization", &format!("Bearer {free}"))], "").await;
    let mut connection = redis.connection();
    let mut names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("an answer");
    names.sort();
    let key = caller.key_id;
    let account = caller.account.id;
    let mut expected = vec![
        format!("tintype:rate:{account}:account-read:12000"),
        format!("tintype:rate:{account}:account-submit:600"),
        format!("tintype:rate:{key}:read:1200"),
        format!("tintype:rate:{key}:submit:60"),
    ];
    expected.sort();
    let (probes, counted): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| name.starts_with("tintype:rate:probe:"));
    assert_eq!(counted, expected, "of a key without a limit, only its account is counted");
    for name in counted.into_iter().chain(probes) {
        let seconds: i64 = redis::cmd("TTL").arg(&name).query(&mut connection).expect("an answer");
        assert!((0..=60).contains(&seconds), "{name} stays for {seconds} s");
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_blocks_no_caller() {
    let redis = RedisServer::start();
    let url = redis.url();
    let (service, caller) = Service::with_caller(&counting(&url, &["--read-rate", "2"]), 0).await;
    for _ in 0..2 {
        assert_eq!(caller.get(TASKS).await.status, 200);
    }
    caller.get(TASKS).await.assert_error(429, "RATE_LIMITED");
    service.clock.set(service.clock.now().saturating_sub(SECOND * 86_400));
    assert_eq!(left(&caller.get(TASKS).await), 1);
    assert_eq!(left(&caller.get(TASKS).await), 0);
    caller.get(TASKS).await.assert_error(429, "RATE_LIMITED");
}

#[test]
fn callers_see_the_same_limits_when_redis_counts() {
    // Installed once, not by every process.
    drop(RedisServer::start());
    run_again("TEST_LIMITS", "redis", &["limits::"]);
}
