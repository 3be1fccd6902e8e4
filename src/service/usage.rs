//! The credits that accounts use per day. Counting a ledger of 100,000 entries takes 40 ms, so what was counted is kept
//! and only later entries are read.

use std::collections::BTreeMap;

use quick_cache::sync::Cache;

use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::store::{Result, Store};

/// Most accounts in memory.
const MAX_ACCOUNTS: usize = 1_000;

/// The usage that this process has counted.
#[derive(Debug)]
pub struct Usage(Cache<Id, Counted>);

/// The usage of an account.
#[derive(Debug, Clone)]
struct Counted {
    /// Entries from before this time are not counted.
    since: Timestamp,
    /// The newest entry that is counted. An account is locked while an entry of it is written, so that ids of its later
    /// entries are higher.
    last: i64,
    /// By midnight, when the day begins.
    days: BTreeMap<Timestamp, i64>,
}

impl Default for Usage {
    fn default() -> Self {
        Self(Cache::new(MAX_ACCOUNTS))
    }
}

impl Usage {
    /// The credits that an account used, on each day from midnight `since` on which it was charged or refunded.
    ///
    /// # Errors
    /// [`crate::store::StoreError`].
    pub async fn since(&self, store: &dyn Store, account: Id, since: Timestamp) -> Result<BTreeMap<Timestamp, i64>> {
        let known = self.0.get(&account).filter(|counted| counted.since <= since);
        let mut counted = known.unwrap_or(Counted { since, last: 0, days: BTreeMap::new() });
        for usage in store.usage(account, counted.since, counted.last).await? {
            *counted.days.entry(usage.day).or_default() += usage.used;
            counted.last = counted.last.max(usage.last);
        }
        counted.days = counted.days.split_off(&since);
        counted.since = since;
        self.0.insert(account, counted.clone());
        Ok(counted.days)
    }
}
