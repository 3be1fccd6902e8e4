//! Redis and a single process count alike, to the millisecond.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Runtime;

use crate::rigs::http::{Answer, TASKS};
use crate::rigs::redis::{RedisServer, counting};
use crate::rigs::service::Service;

/// Time to wait before a read.
#[derive(Debug, Clone, Copy)]
enum Pause {
    None,
    /// About as long as one request takes to come back.
    Interval {
        times: u64,
        off_ms: i64,
    },
    Any(u64),
}

impl Pause {
    fn length(self, limit: u32) -> Duration {
        let millis = match self {
            Self::None => 0,
            Self::Interval { times, off_ms } => (60_000 * times / u64::from(limit)).saturating_add_signed(off_ms),
            Self::Any(millis) => millis,
        };
        Duration::from_millis(millis)
    }
}

fn pause() -> impl Strategy<Value = Pause> {
    prop_oneof![
        6 => Just(Pause::None),
        3 => (1..4_u64, -2..=2_i64).prop_map(|(times, off_ms)| Pause::Interval { times, off_ms }),
        1 => (0..120_000_u64).prop_map(Pause::Any),
    ]
}

/// Small rates, which are used up quickly, and rates that do not divide a minute.
fn limit() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1..=9_u32, 2 => 10..=70_u32, 1 => 1_000..=100_000_u32, 1 => Just(u32::MAX)]
}

/// Everything that an answer says about the limit.
fn told(answer: &Answer) -> [Option<String>; 4] {
    let header = |name| answer.headers.get(name).map(|value| value.to_str().expect("text").to_owned());
    [Some(answer.status.to_string()), header("ratelimit"), header("ratelimit-policy"), header("retry-after")]
}

/// A key with this rate at each service, used at the same times.
async fn compare(services: &[Service; 2], limit: u32, pauses: &[Pause]) -> Result<(), TestCaseError> {
    let mut keys = Vec::new();
    for service in services {
        let account = service.shared.store.find_account("ada").await.expect("a store").expect("the account exists");
        keys.push(service.new_key(account.id, |key| key.read_rate = Some(limit)).await.1);
    }
    for (turn, pause) in pauses.iter().enumerate() {
        let mut answers = Vec::new();
        for (service, key) in services.iter().zip(&keys) {
            service.clock.advance(pause.length(limit));
            let authorization = format!("Bearer {key}");
            answers.push(told(&service.call("GET", TASKS, &[("authorization", &authorization)], "").await));
        }
        prop_assert_eq!(&answers[0], &answers[1], "turn {}", turn);
    }
    Ok(())
}

#[test]
fn redis_and_a_single_process_count_alike() {
    let redis = RedisServer::start();
    let url = redis.url();
    let runtime = Runtime::new().expect("a runtime");
    let services = runtime.block_on(async {
        let services = [Service::start_with(&counting(&url, &[])).await, Service::start().await];
        for service in &services {
            service.caller("ada", 0).await;
        }
        services
    });
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let cases = (limit(), prop::collection::vec(pause(), 1..60));
    let outcome =
        TestRunner::new(config).run(&cases, |(limit, pauses)| runtime.block_on(compare(&services, limit, &pauses)));
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(services[0].shared.metrics.rate_limit_fallbacks.get(), 0, "Redis counted");
}
