//! Ends tasks in bulk, some in each transaction, so that the writes of callers can run in between.

use super::ledger::Swept;
use super::{SqliteStore, ledger, queue};
use crate::endings::Loss;
use crate::upkeep::Sweep;
use crate::{Audit, Rescued, Result, audit};
use tintype_system::fault::Effect;

impl SqliteStore {
    pub(crate) async fn sweep(&self, effect: Effect, sweep: &Sweep, loss: &Loss) -> Result<Rescued> {
        let mut all = Rescued::default();
        loop {
            let (sweep, loss) = (sweep.clone(), loss.clone());
            let some = self.write(effect, move |writing| queue::sweep(writing, &sweep, &loss)).await?;
            let changed = some.queued + some.failed.len();
            all.add(some);
            if changed < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
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

    pub(crate) async fn audit_credits(&self) -> Result<Audit> {
        self.read(|connection| Ok(audit::on_sqlite(connection)))?
    }
}
