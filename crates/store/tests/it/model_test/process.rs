//! A process that has the database open: its clock, its ids, and its round-robin cursor.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Limit of the lead of ids over a clock that has stepped back.
pub const MAX_LEAD: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Process {
    now: Timestamp,
    /// Every time that its clock has shown since it started.
    stood: BTreeSet<Timestamp>,
    /// Its last id, while later ids must be higher.
    last_id: Option<Id>,
    /// The latest time that any of its ids, returned or not, may hold.
    latest: Timestamp,
    /// The turns of the claims with each limit of references.
    turns: BTreeMap<u32, Turns>,
}

/// The turns of some claims.
#[derive(Debug, Clone, Default)]
struct Turns {
    /// For each waiting account: the accounts served since it began to wait.
    passed_by: BTreeMap<Id, BTreeSet<Id>>,
    /// The account served last.
    served: Option<Id>,
}

impl Process {
    pub fn start(now: Timestamp) -> Self {
        let stood = BTreeSet::from([now]);
        Self { now, stood, last_id: None, latest: now, turns: BTreeMap::new() }
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The time in its last id.
    pub fn last_made_at(&self) -> Option<Timestamp> {
        self.last_id.map(Id::timestamp)
    }

    pub fn set_clock(&mut self, to: Timestamp) {
        self.now = to;
        self.stood.insert(to);
    }

    /// The times that the id of a new task may hold, the likeliest first.
    pub fn id_times(&self) -> Vec<Timestamp> {
        let ahead = self.last_id.map(Id::timestamp).into_iter().chain([self.latest]);
        [self.now]
            .into_iter()
            .chain(ahead.filter(|at| *at > self.now && *at <= self.now.saturating_add(MAX_LEAD)))
            .collect()
    }

    /// Records that a write may have created an id: a refused write may create one or not. Ids follow a clock that has
    /// stepped back far.
    pub fn may_use_an_id(&mut self) {
        if self.latest > self.now.saturating_add(MAX_LEAD) {
            self.last_id = None;
        }
        self.latest = self.latest.max(self.now);
    }

    /// The id of a row created now: the one that the store returned, after a check, or one that it could return.
    pub fn new_id(&mut self, said: Option<Id>, serial: usize) -> Id {
        self.may_use_an_id();
        let foreseen = self.last_id.map_or(self.now, |last| last.timestamp().max(self.now));
        let id = said.unwrap_or_else(|| foreseen_id(foreseen, serial));
        let at = id.timestamp();
        assert!(self.last_id.is_none_or(|last| last < id), "{id} is not above the id before it, {:?}", self.last_id);
        assert!(
            at == self.now || (at > self.now && at <= self.now.saturating_add(MAX_LEAD) && self.stood.contains(&at)),
            "{id} is of {at}, made at {}",
            self.now
        );
        self.last_id = Some(id);
        self.latest = at;
        id
    }

    /// The next waiting account of the round robin.
    pub fn next_in_turn(&self, max_references: u32, waiting: &BTreeMap<Id, usize>) -> Option<Id> {
        let served = self.turns.get(&max_references).and_then(|turns| turns.served);
        let after = waiting.keys().find(|account| served.is_none_or(|served| **account > served));
        after.or(waiting.keys().next()).copied()
    }

    /// Serves one of the waiting accounts. No other account may be served twice while an account waits.
    pub fn serve(&mut self, max_references: u32, account: Id, waiting: &BTreeMap<Id, usize>) {
        let turns = self.turns.entry(max_references).or_default();
        turns.passed_by.retain(|other, _| waiting.contains_key(other));
        turns.passed_by.remove(&account);
        for other in waiting.keys().filter(|other| **other != account) {
            let first = turns.passed_by.entry(*other).or_default().insert(account);
            assert!(first, "{account} was served twice while {other} waited");
        }
        turns.served = Some(account);
    }

    /// Another process served the account.
    pub fn served_elsewhere(&mut self, account: Id) {
        self.turns.values_mut().for_each(|turns| drop(turns.passed_by.remove(&account)));
    }
}

/// An id that a store could create.
fn foreseen_id(at: Timestamp, serial: usize) -> Id {
    let floor = Id::floor(at);
    let text = format!("{}{serial:08}", &floor.as_str()[..13]);
    text.parse().expect("digits are in the alphabet of ids")
}
