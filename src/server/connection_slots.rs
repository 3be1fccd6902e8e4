//! How many connections there may be, in all and from one source. What finds no place is turned away
//! and waits for nothing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::ConnectionLimits;
use crate::domain::source::Source;

/// The places there are.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    per_address: usize,
    /// Peers that speak for many callers.
    exempt: Vec<IpNet>,
    taken: Mutex<HashMap<Source, usize>>,
}

/// One connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    source: Option<Source>,
    places: Arc<Places>,
}

impl Places {
    /// As many as `limits` say, but no more than `files` in all.
    pub(super) fn new(limits: &ConnectionLimits, files: usize, exempt: Vec<IpNet>) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(limits.max_connections.clamp(1, files.max(1)))),
            per_address: limits.max_per_address,
            exempt,
            taken: Mutex::default(),
        })
    }

    /// A place for a peer, if there is one.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let permit = self.free.clone().try_acquire_owned().ok()?;
        let peer = peer.to_canonical();
        let limited = self.per_address > 0 && !self.exempt.iter().any(|network| network.contains(&peer));
        let source = limited.then(|| Source::of(peer));
        if let Some(source) = source {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            let count = taken.entry(source).or_default();
            if *count >= self.per_address {
                return None;
            }
            *count += 1;
        }
        Some(Place { _permit: permit, source, places: self.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(source) = self.source else { return };
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
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

    fn places(max_connections: usize, max_per_address: usize, exempt: &[&str]) -> Arc<Places> {
        let limits = ConnectionLimits { max_connections, max_per_address, ..ConnectionLimits::DEFAULT };
        let exempt = exempt.iter().map(|network| network.parse().expect("a network")).collect();
        Places::new(&limits, usize::MAX >> 4, exempt)
    }

    fn take(places: &Arc<Places>, peer: &str) -> Option<Place> {
        places.take(peer.parse().expect("an address"))
    }

    #[test]
    fn one_source_cannot_take_every_place() {
        let places = places(10, 2, &[]);
        let held: Vec<_> = (0..2).map(|_| take(&places, "2001:db8::1").expect("a place")).collect();
        assert!(take(&places, "2001:db8::2").is_none(), "the same network of 64 bits");
        assert!(take(&places, "2001:db8:0:1::1").is_some());
        assert!(take(&places, "192.0.2.1").is_some());
        drop(held);
        assert!(take(&places, "2001:db8::2").is_some());
        assert!(places.taken.lock().expect("a lock").is_empty(), "who left is forgotten");
    }

    #[test]
    fn trusted_proxies_are_bound_by_the_whole_alone() {
        let places = places(3, 1, &["192.0.2.0/24"]);
        let held: Vec<_> = (0..3).map(|_| take(&places, "::ffff:192.0.2.1").expect("a place")).collect();
        assert!(take(&places, "192.0.2.1").is_none() && take(&places, "198.51.100.1").is_none());
        drop(held);
        let held = take(&places, "198.51.100.1");
        assert!(held.is_some() && take(&places, "198.51.100.1").is_none());
    }

    #[test]
    fn zero_is_no_limit_per_address() {
        let places = places(3, 0, &[]);
        let held: Vec<_> = (0..3).filter_map(|_| take(&places, "192.0.2.1")).collect();
        assert_eq!(held.len(), 3);
        assert!(take(&places, "192.0.2.2").is_none());
    }
}
