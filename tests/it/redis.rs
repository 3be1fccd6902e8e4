//! Rate limits that Redis counts for several processes. `TEST_LIMITS=redis` lets it count for every service in
//! `support.rs`.

mod administration;
mod arithmetic;
mod nodes;
mod outages;
mod server;

pub use self::server::RedisServer;

/// So long that no test is in doubt on a busy machine.
const PATIENT: [&str; 2] = ["--redis-timeout", "10s"];

/// The flags that let this Redis count.
pub fn counting<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--redis", url], &PATIENT[..], more].concat()
}
