//! Connection slots: the limits on connections, in total and per source. A connection without a slot is refused at
//! once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{ConnectionLimits, TrustedProxy};
use crate::domain::source::{Peer, Source};

/// All connection slots.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    free: Arc<Semaphore>,
    per_address: usize,
    /// Peers that forward the requests of many callers.
    exempt: Vec<TrustedProxy>,
    taken: Mutex<HashMap<Source, usize>>,
}

/// The slot of one connection; dropping it releases the slot.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    source: Option<Source>,
    slots: Arc<ConnectionSlots>,
}

impl ConnectionSlots {
    /// Creates as many slots as `limits` allow, but no more than `files` in total.
    pub(super) fn new(limits: &ConnectionLimits, files: usize, exempt: Vec<TrustedProxy>) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(limits.max_connections.clamp(1, files.max(1)))),
            per_address: limits.max_per_address,
            exempt,
            taken: Mutex::default(),
        })
    }

    /// Takes a slot for a peer, if one is free. The permissions of a Unix domain socket decide who connects to it, so
    /// its peers are limited in total only.
    pub(super) fn take(self: &Arc<Self>, peer: Peer) -> Option<ConnectionSlot> {
        let permit = self.free.clone().try_acquire_owned().ok()?;
        let exempt = peer == Peer::Socket || self.exempt.iter().any(|proxy| proxy.is(peer));
        let limited = self.per_address > 0 && !exempt;
        let source = limited.then(|| Source::of(peer));
        if let Some(source) = source {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            let count = taken.entry(source).or_default();
            if *count >= self.per_address {
                return None;
            }
            *count += 1;
        }
        Some(ConnectionSlot { _permit: permit, source, slots: self.clone() })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let Some(source) = self.source else { return };
        let mut taken = self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(max_connections: usize, max_per_address: usize, exempt: &[&str]) -> Arc<ConnectionSlots> {
        let limits = ConnectionLimits { max_connections, max_per_address, ..ConnectionLimits::DEFAULT };
        let exempt = exempt.iter().map(|proxy| proxy.parse().expect("a proxy")).collect();
        ConnectionSlots::new(&limits, usize::MAX >> 4, exempt)
    }

    fn take(slots: &Arc<ConnectionSlots>, peer: &str) -> Option<ConnectionSlot> {
        slots.take(Peer::Address(peer.parse().expect("an address")))
    }

    #[test]
    fn one_source_cannot_take_every_slot() {
        let slots = slots(10, 2, &[]);
        let held: Vec<_> = (0..2).map(|_| take(&slots, "2001:db8::1").expect("a slot")).collect();
        assert!(take(&slots, "2001:db8::2").is_none(), "the same network of 64 bits");
        assert!(take(&slots, "2001:db8:0:1::1").is_some());
        assert!(take(&slots, "192.0.2.1").is_some());
        drop(held);
        assert!(take(&slots, "2001:db8::2").is_some());
        assert!(slots.taken.lock().expect("a lock").is_empty(), "a source without connections is forgotten");
    }

    #[test]
    fn trusted_proxies_are_bound_by_the_whole_alone() {
        let slots = slots(3, 1, &["192.0.2.0/24"]);
        let held: Vec<_> = (0..3).map(|_| take(&slots, "::ffff:192.0.2.1").expect("a slot")).collect();
        assert!(take(&slots, "192.0.2.1").is_none() && take(&slots, "198.51.100.1").is_none());
        drop(held);
        let held = take(&slots, "198.51.100.1");
        assert!(held.is_some() && take(&slots, "198.51.100.1").is_none());
    }

    #[test]
    fn zero_is_no_limit_per_address() {
        let slots = slots(3, 0, &[]);
        let held: Vec<_> = (0..3).filter_map(|_| take(&slots, "192.0.2.1")).collect();
        assert_eq!(held.len(), 3);
        assert!(take(&slots, "192.0.2.2").is_none());
    }
}
