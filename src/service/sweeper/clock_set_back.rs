//! Tasks dated ahead: they were created while the clock was ahead, and it was set back since. By their ids they would
//! become overdue hours too late, so their time counts from the first sweep that sees them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use super::{Sweeper, failed};
use crate::service::endings::OVERDUE;
use tintype_config::TASK_TIME_LIMIT;
use tintype_domain::model::{FailureCause, Id};
use tintype_store::StoreError;
use tintype_system::locked::Locked as _;

/// The clock that dates tasks can be this much ahead of the clock that is read here.
const AHEAD: Duration = Duration::from_secs(60);
/// Most waiting tasks that are checked.
const MOST: u32 = 10_000;

/// When each waiting task dated ahead was first seen, by the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<HashMap<Id, Duration>>);

impl Sweeper {
    /// Fails the waiting tasks dated ahead that have waited for as long as any task may. Logs an error and leaves it to
    /// the next sweep.
    pub(super) async fn expire_dated_ahead(&self) {
        if let Err(error) = self.try_to_expire_dated_ahead().await {
            failed(&error);
        }
    }

    async fn try_to_expire_dated_ahead(&self) -> Result<(), StoreError> {
        let store = &self.shared.store;
        let bound = store.now().saturating_add(AHEAD);
        let newest = store.recent_tasks(None, 1).await?;
        let waiting = match newest.first() {
            Some(task) if task.id.timestamp() > bound => store.waiting_tasks(MOST).await?,
            _ => Vec::new(),
        };
        let waiting = waiting.into_iter().map(|task| task.id).filter(|id| id.timestamp() > bound);
        for id in self.overdue_of(waiting) {
            self.shared.endings.fail_unleased(id, FailureCause::Expired, OVERDUE).await?;
        }
        Ok(())
    }

    /// The tasks that were first seen long ago.
    fn overdue_of(&self, waiting: impl Iterator<Item = Id>) -> Vec<Id> {
        let elapsed = self.shared.clock.elapsed();
        let mut seen = self.dated_ahead.0.locked();
        *seen = waiting.map(|id| (id, seen.get(&id).copied().unwrap_or(elapsed))).collect();
        let is_overdue = |first: &Duration| elapsed.saturating_sub(*first) >= TASK_TIME_LIMIT;
        seen.iter().filter(|(_, first)| is_overdue(first)).map(|(id, _)| *id).collect()
    }
}
