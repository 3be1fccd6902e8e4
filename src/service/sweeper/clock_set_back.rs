//! Tasks dated ahead: they were created while the clock was ahead, and it was set back since. By their ids they would
//! become overdue too late, so their time counts from the first sweep that sees them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use super::{Sweeper, failed};
use crate::service::endings::OVERDUE;
use tintype_config::TASK_TIME_LIMIT;
use tintype_domain::model::{FailureCause, Id};
use tintype_system::locked::Locked as _;

/// The clock that dates tasks can be this much ahead of the clock that is read here.
const AHEAD: Duration = Duration::from_secs(60);
/// Most tasks dated ahead that one sweep looks for.
const MOST: u32 = 10_000;

/// A failed attempt at an ending that took longer than this waited for a lock.
const LONGEST_FAILURE: Duration = Duration::from_secs(1);

/// When each unfinished task dated ahead was first seen, by the monotonic clock, until it ends: also while a worker
/// holds it, and after the clock has reached its date.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<HashMap<Id, Duration>>);

impl Sweeper {
    /// Fails the tasks dated ahead once [`TASK_TIME_LIMIT`] has passed since they were first seen. Logs an error and leaves it to
    /// the next sweep.
    pub(super) async fn expire_dated_ahead(&self) {
        let store = &self.shared.store;
        let known: Vec<Id> = self.dated_ahead.0.locked().keys().copied().collect();
        let unfinished = store.unfinished_from(store.now().saturating_add(AHEAD), &known, MOST).await;
        let Ok(unfinished) = unfinished.inspect_err(failed) else { return };
        for id in self.overdue_of(unfinished) {
            let begun = self.shared.clock.elapsed();
            // One whose rows are damaged keeps no other from its end.
            if let Err(error) = self.shared.endings.fail_unleased(id, FailureCause::Expired, OVERDUE).await {
                failed(&error);
                // Others may wait for the same lock, and the rest of the sweep with them. The next sweep tries again.
                if self.shared.clock.elapsed().saturating_sub(begun) > LONGEST_FAILURE {
                    return;
                }
            }
        }
    }

    /// The tasks that were first seen long ago.
    fn overdue_of(&self, unfinished: Vec<Id>) -> Vec<Id> {
        let elapsed = self.shared.clock.elapsed();
        let mut seen = self.dated_ahead.0.locked();
        *seen = unfinished.into_iter().map(|id| (id, seen.get(&id).copied().unwrap_or(elapsed))).collect();
        let is_overdue = |first: &Duration| elapsed.saturating_sub(*first) >= TASK_TIME_LIMIT;
        seen.iter().filter(|(_, first)| is_overdue(first)).map(|(id, _)| *id).collect()
    }
}
