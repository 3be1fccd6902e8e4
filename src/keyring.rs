//! Looking keys up, with a short memory.

use std::sync::Arc;

use quick_cache::sync::Cache;

use crate::clock::{Clock, Timestamp};
use crate::config::KEY_CACHE;
use crate::key::{ApiKey, KeyHash, KeySecret};
use crate::store::{Result, Store};

/// Keys remembered at once.
const MAX_KEYS: usize = 100_000;

/// The keys that open the API. A change made elsewhere is noticed within half a second.
pub struct Keyring {
    store: Arc<dyn Store>,
    clock: Clock,
    seen: Cache<KeyHash, (Timestamp, Arc<ApiKey>)>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").field("seen", &self.seen.len()).finish_non_exhaustive()
    }
}

impl Keyring {
    /// A keyring over the store's keys.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self { store, clock, seen: Cache::new(MAX_KEYS) }
    }

    /// The key with this secret, if it is valid now.
    ///
    /// # Errors
    /// [`crate::store::StoreError`].
    pub async fn find(&self, secret: &KeySecret) -> Result<Option<Arc<ApiKey>>> {
        let hash = secret.hash();
        let now = self.clock.now();
        if let Some((looked_up, key)) = self.seen.get(&hash) {
            // A clock stepped back makes the entry look young for ever, so only [0, KEY_CACHE] counts.
            let fresh = looked_up <= now && now.since(looked_up) <= KEY_CACHE;
            if fresh {
                return Ok(key.is_valid(now).then_some(key));
            }
        }
        // Keys that open nothing are not remembered, so that refusing takes equally long for each of them.
        let valid = self.store.find_key_by_hash(hash).await?.filter(|key| key.is_valid(now)).map(Arc::new);
        match &valid {
            Some(key) => self.seen.insert(hash, (now, key.clone())),
            None => drop(self.seen.remove(&hash)),
        }
        Ok(valid)
    }
}
