//! Rate limits that Redis counts for several processes. `TEST_LIMITS=redis` makes it count for every service of
//! `rigs/service.rs`.

mod administration;
mod arithmetic;
mod cluster;
mod nodes;
mod outages;
