//! Ends tasks in bulk, some in each transaction, so that the writes of callers can run in between.

use std::time::Duration;

use super::ledger::Swept;
use super::writer::Writing;
use super::{SqliteStore, ledger, queue};
use crate::endings::Loss;
use crate::fleet::engines_in_json;
use crate::{Audit, Ended, Rescue, Rescued, Result, audit};
use tintype_domain::model::FailureCause;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

impl SqliteStore {
    pub(crate) async fn rescue_tasks(&self, which: Rescue, last_error: &str) -> Result<Rescued> {
        let mut all = Rescued::default();
        loop {
            let loss = Loss::attempt(last_error, Duration::ZERO);
            let rescue = move |writing: &mut Writing| queue::rescue(writing, which, &loss);
            let some = self.write(Effect::Rescue, rescue).await?;
            let changed = some.queued + some.failed.len();
            all.add(some);
            if changed < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    /// Fails tasks until few are left.
    async fn fail_all<F>(&self, effect: Effect, loss: Loss, fail: F) -> Result<Vec<Ended>>
    where
        F: Fn(&mut Writing, &Loss) -> Result<Vec<Ended>> + Clone + Send + 'static,
    {
        let mut all = Vec::new();
        loop {
            let (fail, loss) = (fail.clone(), loss.clone());
            let some = self.write(effect, move |writing| fail(writing, &loss)).await?;
            let failed = some.len();
            all.extend(some);
            if failed < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    pub(crate) async fn expire_tasks(&self, cutoff: Timestamp, error: &str) -> Result<Vec<Ended>> {
        let loss = Loss::now(FailureCause::Expired, error);
        self.fail_all(Effect::Expire, loss, move |writing, loss| queue::expire(writing, cutoff, loss)).await
    }

    pub(crate) async fn fail_tasks_beyond(&self, most: u32, error: &str) -> Result<Vec<Ended>> {
        let loss = Loss::now(FailureCause::TooManyReferences(most), error);
        self.fail_all(Effect::FailBeyond, loss, move |writing, loss| queue::fail_beyond(writing, most, loss)).await
    }

    pub(crate) async fn fail_unmatched_tasks(&self, engines: &[(String, u32)], error: &str) -> Result<Vec<Ended>> {
        let (engines, loss) = (engines_in_json(engines), Loss::now(FailureCause::NoEngine, error));
        let fail = move |writing: &mut Writing, loss: &Loss| queue::fail_unmatched(writing, &engines, loss);
        self.fail_all(Effect::FailUnmatched, loss, fail).await
    }

    pub(crate) async fn lapse_all_grants(&self) -> Result<usize> {
        let mut all = Swept::default();
        loop {
            let some = self.write(Effect::LapseGrants, move |writing| ledger::lapse(writing, all.failed)).await?;
            all = Swept { lapsed: all.lapsed + some.lapsed, failed: all.failed + some.failed };
            if some.lapsed + some.failed < ledger::SWEEP_BATCH {
                return Ok(all.lapsed);
            }
        }
    }

    pub(crate) fn audit_credits(&self) -> Result<Audit> {
        self.read(|connection| Ok(audit::on_sqlite(connection)))?
    }
}
