//! Looking keys up, with a short memory, and remembering when they were used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quick_cache::sync::Cache;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Timestamp};
use crate::config::{KEY_CACHE_TTL, RECORD_KEY_USES_EVERY};
use crate::domain::key::{ApiKey, KeyHash, KeySecret};
use crate::domain::model::Id;
use crate::store::{Result, Store};

/// Keys remembered at once.
const MAX_KEYS: usize = 100_000;
/// Most keys touched in one write, which submits have to wait for.
const USES_BATCH: usize = 256;

/// The keys that open the API. A change made elsewhere is noticed within half a second.
pub struct Keyring {
    store: Arc<dyn Store>,
    clock: Clock,
    seen: Cache<KeyHash, (Timestamp, Arc<ApiKey>)>,
    /// The last uses that are not written down yet.
    uses: Mutex<HashMap<Id, Timestamp>>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").field("seen", &self.seen.len()).finish_non_exhaustive()
    }
}

impl Keyring {
    /// A keyring over the store's keys.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self { store, clock, seen: Cache::new(MAX_KEYS), uses: Mutex::default() }
    }

    /// The key with this secret, if it is valid now: this is a use of it. Uses are noted as keys are looked up
    /// in the store, so the last one may be up to half a second later than what is noted.
    ///
    /// # Errors
    /// [`crate::store::StoreError`].
    pub async fn find(&self, secret: &KeySecret) -> Result<Option<Arc<ApiKey>>> {
        let hash = secret.hash();
        let now = self.clock.now();
        if let Some((looked_up, key)) = self.seen.get(&hash) {
            // A clock stepped back makes the entry look young for ever, so only [0, KEY_CACHE_TTL] counts.
            let fresh = looked_up <= now && now.since(looked_up) <= KEY_CACHE_TTL;
            if fresh {
                return Ok(key.is_valid(now).then_some(key));
            }
        }
        // Keys that open nothing are not remembered, so that refusing takes equally long for each of them.
        let valid = self.store.find_key_by_hash(hash).await?.filter(|key| key.is_valid(now)).map(Arc::new);
        match &valid {
            Some(key) => {
                self.seen.insert(hash, (now, key.clone()));
                self.note_uses([(key.id, now)]);
            }
            None => drop(self.seen.remove(&hash)),
        }
        Ok(valid)
    }

    /// Records the uses of keys from time to time until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(RECORD_KEY_USES_EVERY)).await.is_some() {
            self.record_uses().await;
        }
    }

    /// Writes the last use of each key to the store, if the key was used since the last time. A failed write is logged
    /// and repeated the next time.
    pub async fn record_uses(&self) {
        let uses: Vec<_> = std::mem::take(&mut *self.uses()).into_iter().collect();
        for batch in uses.chunks(USES_BATCH) {
            if let Err(error) = self.store.touch_keys(batch.to_vec()).await {
                tracing::error!(%error, "could not record when keys were used; trying again later");
                self.note_uses(batch.iter().copied());
            }
        }
    }

    /// Notes uses, of which the latest of each key counts.
    fn note_uses(&self, uses: impl IntoIterator<Item = (Id, Timestamp)>) {
        let mut noted = self.uses();
        for (id, at) in uses {
            let last = noted.entry(id).or_insert(at);
            *last = at.max(*last);
        }
    }

    fn uses(&self) -> MutexGuard<'_, HashMap<Id, Timestamp>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
