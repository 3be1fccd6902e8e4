//! Limits the tasks of an account that fail. They are refunded, so that credits do not limit them.

use std::time::Duration;

use quick_cache::sync::Cache;

use tintype_config::{FAILURES_CHECK_EVERY, FAILURES_WITHIN};
use tintype_domain::model::Id;
use tintype_store::{Result, Store};
use tintype_system::clock::Clock;

/// Most accounts whose failures are kept in memory.
const MAX_ACCOUNTS: usize = 10_000;
/// The clock that dates failures can be this much ahead of the clock that is read here.
const AHEAD: Duration = Duration::from_secs(60);

/// How many tasks of each account have failed lately, as far as it matters.
#[derive(Debug)]
pub struct FailedTasks {
    clock: Clock,
    /// Number of failures at which an account cannot submit more; 0: no limit.
    most: u32,
    /// When an account was checked, on the monotonic clock, and whether it had too many.
    seen: Cache<Id, (Duration, Option<Duration>)>,
}

impl FailedTasks {
    /// With `most` failures within [`FAILURES_WITHIN`] an account can submit no more; 0 means no limit.
    pub fn new(clock: Clock, most: u32) -> Self {
        Self { clock, most, seen: Cache::new(MAX_ACCOUNTS) }
    }

    /// The time until so few failures of the account count that it can submit again, if it has too many. The answer may be a
    /// second old: a limit of unfinished tasks bounds how many fail in that time.
    pub async fn wait(&self, store: &Store, account_id: Id) -> Result<Option<Duration>> {
        if self.most == 0 {
            return Ok(None);
        }
        let elapsed = self.clock.elapsed();
        if let Some((at, wait)) = self.seen.get(&account_id)
            && elapsed.saturating_sub(at) < FAILURES_CHECK_EVERY
        {
            return Ok(wait);
        }
        let now = store.now();
        let since = now.saturating_sub(FAILURES_WITHIN);
        // Later ones failed before the clock was set back.
        let failed_at = store.failed_at(account_id, since, now.saturating_add(AHEAD), self.most).await?;
        let wait = failed_at.map(|at| at.since(since).min(FAILURES_WITHIN));
        self.seen.insert(account_id, (elapsed, wait));
        Ok(wait)
    }
}
