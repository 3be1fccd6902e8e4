//! Places in the queue for password hashes. A hash takes some 20 ms of a core, and anybody may ask for one before anything
//! is known about them, so each source has few places, and beyond them is refused at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::source::Source;

/// Most hashes of one source that wait or run.
pub const MAX_OF_SOURCE: usize = 2;
/// Most hashes of all sources that wait or run: some 600 ms of work for two cores.
pub const MAX_HASHES_QUEUED: usize = 64;

/// The places of one process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct HashPlaces(Arc<Mutex<HashMap<Option<Source>, usize>>>);

/// A place; dropping it leaves the place.
#[derive(Debug)]
pub struct HashPlace {
    places: HashPlaces,
    source: Option<Source>,
}

impl HashPlaces {
    /// Takes a place; `None` if the source has all of its own, or nobody may have another one.
    pub fn enter(&self, source: Option<Source>) -> Option<HashPlace> {
        let mut taken = self.taken();
        let own = taken.get(&source).copied().unwrap_or_default();
        // Without an address, as on a socket of this machine, callers cannot be told apart.
        let is_full = source.is_some() && own >= MAX_OF_SOURCE;
        if is_full || taken.values().sum::<usize>() >= MAX_HASHES_QUEUED {
            return None;
        }
        taken.insert(source, own + 1);
        drop(taken);
        Some(HashPlace { places: self.clone(), source })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<Option<Source>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HashPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        match taken.get_mut(&self.source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::source::Peer;

    fn source(number: u8) -> Option<Source> {
        Some(Source::of(Peer::Address([192, 0, 2, number].into())))
    }

    #[test]
    fn a_source_takes_two_places_and_leaves_the_others_to_others() {
        let places = HashPlaces::default();
        let held = [places.enter(source(1)), places.enter(source(1))];
        assert!(held.iter().all(Option::is_some) && places.enter(source(1)).is_none());
        assert!(places.enter(source(2)).is_some());
        drop(held);
        assert!(places.enter(source(1)).is_some());
        assert!(places.taken().is_empty(), "places are left");
    }

    #[test]
    fn all_sources_together_have_a_limit() {
        let places = HashPlaces::default();
        let held: Vec<_> =
            (0..=u8::MAX).flat_map(|number| [places.enter(source(number)), places.enter(None)]).collect();
        assert_eq!(held.iter().flatten().count(), MAX_HASHES_QUEUED);
        assert!(places.enter(source(1)).is_none());
    }
}
