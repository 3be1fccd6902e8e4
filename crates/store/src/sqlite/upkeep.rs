//! Ends tasks in bulk, some in each transaction, so that the writes of callers can run in between.

use std::time::Duration;

use rusqlite::ToSql;

use super::ledger::Swept;
use super::writer::Writing;
use super::{SqliteStore, ledger, queue};
use crate::endings::Loss;
use crate::fleet::engines_in_json;
use crate::{Audit, Ended, Rescue, Rescued, Result, audit};
use tintype_domain::model::{FailureCause, Id};
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

    /// Fails the tasks that a statement selects, with the parameter ?1 and up to ?2.
    async fn fail_all<B>(&self, effect: Effect, loss: Loss, sql: &'static str, bound: B) -> Result<Vec<Ended>>
    where
        B: ToSql + Clone + Send + 'static,
    {
        let mut all = Vec::new();
        loop {
            let (bound, loss) = (bound.clone(), loss.clone());
            let some = self.write(effect, move |writing| queue::fail(writing, sql, &bound, &loss)).await?;
            let failed = some.len();
            all.extend(some);
            if failed < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    pub(crate) async fn expire_tasks(&self, cutoff: Timestamp, error: &str) -> Result<Vec<Ended>> {
        let loss = Loss::now(FailureCause::Expired, error);
        // Ids start with the time of creation, so the cutoff becomes a range of ids.
        let bound = Id::floor(Timestamp::from_millis(cutoff.as_millis().saturating_add(1)));
        let overdue = "SELECT task_id FROM queue WHERE task_id < ?1 LIMIT ?2";
        self.fail_all(Effect::Expire, loss, overdue, bound).await
    }

    pub(crate) async fn fail_tasks_beyond(&self, most: u32, error: &str) -> Result<Vec<Ended>> {
        let loss = Loss::now(FailureCause::TooManyReferences(most), error);
        let beyond = "SELECT task_id FROM queue INDEXED BY queue_with_references
            WHERE reference_count > 0 AND reference_count > ?1 AND lease_until IS NULL LIMIT ?2";
        self.fail_all(Effect::FailBeyond, loss, beyond, most).await
    }

    pub(crate) async fn fail_unmatched_tasks(&self, engines: &[(String, u32)], error: &str) -> Result<Vec<Ended>> {
        let loss = Loss::now(FailureCause::NoEngine, error);
        let unmatched = "SELECT task_id FROM queue INDEXED BY queue_named
            WHERE lease_until IS NULL AND engine > ''
                AND reference_count > coalesce((SELECT value FROM json_each(?1) WHERE key = engine), -1) LIMIT ?2";
        self.fail_all(Effect::FailUnmatched, loss, unmatched, engines_in_json(engines)).await
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
