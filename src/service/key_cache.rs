//! Key lookups, with a short cache, and the last use of each key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quick_cache::sync::Cache;
use tokio_util::sync::CancellationToken;

use tintype_config::{KEY_CACHE_TTL, RECORD_KEY_USES_EVERY};
use tintype_domain::key::{ApiKey, KeyHash};
use tintype_domain::model::Id;
use tintype_domain::timestamp::Timestamp;
use tintype_store::{Result, Store};
use tintype_system::clock::Clock;
use tintype_system::locked::Locked as _;

const MAX_KEYS: usize = 100_000;
/// Most keys touched in one write, because submits wait while it runs.
const USES_BATCH: usize = 256;

/// Looks up keys. A change by another process takes effect within [`KEY_CACHE_TTL`].
pub struct KeyCache {
    store: Arc<Store>,
    clock: Clock,
    cached: Cache<KeyHash, Cached>,
    /// Last uses that are not in the database yet.
    uses: Mutex<HashMap<Id, Timestamp>>,
}

#[derive(Debug, Clone)]
struct Cached {
    key: Arc<ApiKey>,
    /// Start of the lookup, by the monotonic clock: a step of the wall clock must not prolong the entry.
    looked_up: Duration,
}

tintype_domain::opaque_debug!(KeyCache);

impl KeyCache {
    /// Creates a cache for the keys in the store.
    pub fn new(store: Arc<Store>, clock: Clock) -> Self {
        Self { store, clock, cached: Cache::new(MAX_KEYS), uses: Mutex::default() }
    }

    /// Returns the key with this hash if it is valid now, by the store's time, and records the use. Only a lookup in the
    /// store records a time, so the recorded time may be up to [`KEY_CACHE_TTL`] early.
    pub async fn find(&self, hash: KeyHash) -> Result<Option<Arc<ApiKey>>> {
        let looked_up = self.clock.elapsed();
        if let Some(cached) = self.cached.get(&hash)
            && looked_up.saturating_sub(cached.looked_up) <= KEY_CACHE_TTL
        {
            return Ok(cached.key.is_valid(self.store.now()).then_some(cached.key));
        }
        let found = self.store.find_key_by_hash(hash).await?;
        let now = self.store.now();
        // Invalid keys aren't cached, so that rejecting any of them takes the same time.
        let valid = found.filter(|key| key.is_valid(now)).map(Arc::new);
        match &valid {
            Some(key) => {
                self.cached.insert(hash, Cached { key: key.clone(), looked_up });
                self.note_uses([(key.id, now)]);
            }
            None => drop(self.cached.remove(&hash)),
        }
        Ok(valid)
    }

    /// Records the uses of keys from time to time until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(RECORD_KEY_USES_EVERY)).await.is_some() {
            self.record_uses().await;
        }
    }

    /// Writes the last use of each key to the store, if the key was used since the last write. A failed write is logged
    /// and repeated the next time.
    pub async fn record_uses(&self) {
        let uses: Vec<_> = std::mem::take(&mut *self.uses.locked()).into_iter().collect();
        for batch in uses.chunks(USES_BATCH) {
            if let Err(error) = self.store.touch_keys(batch.to_vec()).await {
                tracing::error!(%error, "could not record when keys were used; retrying later");
                self.note_uses(batch.iter().copied());
            }
        }
    }

    /// Keeps the latest use of each key until the next write.
    fn note_uses(&self, uses: impl IntoIterator<Item = (Id, Timestamp)>) {
        let mut latest = self.uses.locked();
        for (id, at) in uses {
            let last = latest.entry(id).or_insert(at);
            *last = at.max(*last);
        }
    }
}
