//! Slots for work that costs much: hashes of passwords, sign-ups, exchanges with an OpenID Connect provider, uploads,
//! downloads. Each caller has few slots and leaves some to others; without a slot it is rejected at once.

use std::hash::Hash;
use std::sync::{Arc, Mutex};

use super::shares::{Counts, fits};
use tintype_system::locked::Locked as _;

/// The slots of one process for one kind of work. Clones share them.
#[derive(Debug, Clone)]
pub struct ConcurrencyLimit<K: Eq + Hash + Copy> {
    of_one: usize,
    total: usize,
    taken: Arc<Mutex<Counts<Option<K>>>>,
}

/// A slot; dropping it frees the slot.
#[derive(Debug)]
pub struct ConcurrencyPermit<K: Eq + Hash + Copy> {
    limit: ConcurrencyLimit<K>,
    caller: Option<K>,
}

impl<K: Eq + Hash + Copy> ConcurrencyLimit<K> {
    /// Gives `total` slots, at most `of_one` to one caller, and no more than half of those that the others leave.
    pub fn new(of_one: usize, total: usize) -> Self {
        Self { of_one, total, taken: Arc::default() }
    }

    /// Slots that are taken.
    pub fn taken(&self) -> usize {
        self.taken.locked().total()
    }

    /// Takes a slot. Callers that cannot be distinguished, such as those without an address, are `None`: they share
    /// what is left.
    ///
    /// # Errors
    /// The slots that the caller has, which is its share now. With none, all are taken.
    pub fn enter(&self, caller: Option<K>) -> Result<ConcurrencyPermit<K>, usize> {
        let mut taken = self.taken.locked();
        let (own, all) = (taken.of(&caller), taken.total());
        let fits = match caller {
            Some(_) => own < self.of_one && fits(self.total, own, all - own, 1),
            None => all < self.total,
        };
        if !fits {
            return Err(own);
        }
        taken.add(caller);
        Ok(ConcurrencyPermit { limit: self.clone(), caller })
    }
}

impl<K: Eq + Hash + Copy> Drop for ConcurrencyPermit<K> {
    fn drop(&mut self) {
        self.limit.taken.locked().remove(&self.caller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_takes_two_places_and_leaves_the_others_to_others() {
        let limit = ConcurrencyLimit::new(2, 64);
        let held = [limit.enter(Some(1)), limit.enter(Some(1))];
        assert!(held.iter().all(Result::is_ok) && limit.enter(Some(1)).is_err());
        assert!(limit.enter(Some(2)).is_ok());
        drop(held);
        assert!(limit.enter(Some(1)).is_ok());
        assert!(limit.taken.locked().iter().next().is_none(), "slots are left");
    }

    #[test]
    fn all_callers_together_have_a_limit() {
        let limit = ConcurrencyLimit::new(2, 64);
        let held: Vec<_> = (0..=u8::MAX).flat_map(|caller| [limit.enter(Some(caller)), limit.enter(None)]).collect();
        assert_eq!(held.iter().flatten().count(), 64);
        assert!(limit.enter(Some(1)).is_err() && limit.enter(None).is_err());
    }

    #[test]
    fn no_caller_has_more_than_half_of_what_the_others_leave() {
        let limit = ConcurrencyLimit::new(4, 16);
        let all = |caller: u8| std::iter::from_fn(|| limit.enter(Some(caller)).ok()).collect::<Vec<_>>();
        let held: Vec<_> = (0..6).map(all).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4, 2, 1, 1]);
    }
}
