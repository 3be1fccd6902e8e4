//! Connection slots: the limits on connections, in total and per source. Beyond them, a connection takes a slot of the
//! reserve, so that balancers can still check this server's health, and other callers get a refusal. Without any slot
//! it is closed at once.

use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::service::shares::Counts;
use tintype_config::{ConnectionLimits, RESERVE_PER_SOURCE, RESERVED_CONNECTIONS, TrustedProxy};
use tintype_domain::source::{Peer, Source};
use tintype_system::locked::Locked as _;

#[derive(Debug)]
pub(super) struct ConnectionSlots {
    regular: Arc<Pool>,
    reserve: Arc<Pool>,
    /// Peers that forward the requests of many callers.
    exempt: Vec<TrustedProxy>,
}

/// Slots with their own limits.
#[derive(Debug)]
struct Pool {
    free: Arc<Semaphore>,
    /// Most slots of one source; 0 means unlimited.
    per_source: usize,
    taken: Mutex<Counts<Source>>,
}

/// The slot of one connection; dropping it releases the slot.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    source: Option<Source>,
    pool: Arc<Pool>,
    /// Whether the slot is one of the reserve.
    pub(super) reserve: bool,
}

impl ConnectionSlots {
    /// Creates as many slots as `limits` allow, but no more than `files` in total.
    pub(super) fn new(limits: &ConnectionLimits, files: usize, exempt: Vec<TrustedProxy>) -> Self {
        let slots = limits.max_connections.clamp(1, files.max(1));
        let pool = |slots, per_source| {
            Arc::new(Pool { free: Arc::new(Semaphore::new(slots)), per_source, taken: Mutex::default() })
        };
        let (regular, reserve) = (pool(slots, limits.max_per_address), pool(RESERVED_CONNECTIONS, RESERVE_PER_SOURCE));
        Self { regular, reserve, exempt }
    }

    /// Takes a slot for a peer, if one is free. The permissions of a Unix domain socket decide who connects to it, so
    /// its peers are limited in total only.
    pub(super) fn take(&self, peer: Peer) -> Option<ConnectionSlot> {
        let source = Source::of(peer);
        let exempt = peer == Peer::Socket || self.exempt.iter().any(|proxy| proxy.is(peer));
        let regular = self.regular.take((!exempt).then_some(source), false);
        regular.or_else(|| self.reserve.take(Some(source), true))
    }
}

impl Pool {
    fn take(self: &Arc<Self>, source: Option<Source>, reserve: bool) -> Option<ConnectionSlot> {
        let permit = self.free.clone().try_acquire_owned().ok()?;
        let source = source.filter(|_| self.per_source > 0);
        if let Some(source) = source {
            let mut taken = self.taken.locked();
            if taken.of(&source) >= self.per_source {
                return None;
            }
            taken.add(source);
        }
        Some(ConnectionSlot { _permit: permit, source, pool: self.clone(), reserve })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        if let Some(source) = self.source {
            self.pool.taken.locked().remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(max_connections: usize, max_per_address: usize, exempt: &[&str]) -> ConnectionSlots {
        let limits = ConnectionLimits { max_connections, max_per_address, ..ConnectionLimits::DEFAULT };
        let exempt = exempt.iter().map(|proxy| proxy.parse().expect("a proxy")).collect();
        ConnectionSlots::new(&limits, usize::MAX >> 4, exempt)
    }

    /// Takes a regular slot.
    fn take(slots: &ConnectionSlots, peer: &str) -> Option<ConnectionSlot> {
        slots.take(Peer::Address(peer.parse().expect("an address"))).filter(|slot| !slot.reserve)
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
        assert!(slots.regular.taken.locked().iter().next().is_none(), "a source without connections is forgotten");
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

    #[test]
    fn the_reserve_is_for_connections_beyond_the_limits_and_no_source_takes_all_of_it() {
        let slots = slots(1, 1, &[]);
        let first = slots.take(Peer::Address("192.0.2.1".parse().expect("an address"))).expect("a slot");
        assert!(!first.reserve);
        let taken = |peer: &str| {
            let peer = Peer::Address(peer.parse().expect("an address"));
            std::iter::from_fn(|| slots.take(peer)).inspect(|slot| assert!(slot.reserve)).collect::<Vec<_>>()
        };
        let held: Vec<_> = (1..=9).map(|host| taken(&format!("192.0.2.{host}"))).collect();
        let counts: Vec<_> = held.iter().map(Vec::len).collect();
        assert_eq!(counts[..4], [RESERVE_PER_SOURCE; 4]);
        assert_eq!(counts.iter().sum::<usize>(), RESERVED_CONNECTIONS);
        drop(held);
        assert_eq!(taken("192.0.2.1").len(), RESERVE_PER_SOURCE);
        drop(first);
        assert!(take(&slots, "192.0.2.1").is_some());
    }
}
