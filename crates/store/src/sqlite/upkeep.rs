//! Removal of old tasks. Tasks are only marked as removed: callers no longer see them, and ledger entries stay valid.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::ledger::Swept;
use super::writer::Writing;
use super::{SqliteStore, audit, engines, failed_prompts, files, gallery, ledger, queue};
use crate::fleet::engines_in_json;
use crate::{Audit, Ended, Rescue, Rescued, Result, Upkeep};
use tintype_domain::model::{FailureCause, Id, TaskFailure};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Tasks removed per transaction, so that the writes of callers can run in between.
pub(super) const BATCH: usize = 256;

/// The condition for the removal of a task: ?1 is the cutoff and ?2 the lowest id of that time. No task ends before its
/// creation, so the removable tasks form one range of the index, which also contains the few tasks that were unfinished
/// at the cutoff. The index contains no removed task.
const REMOVABLE: &str = "surface IN ('api', 'web') AND id < ?2 AND removed_at IS NULL
    AND status <> 'processing' AND updated_at < ?1";

/// The accounts with removable tasks, at the cost of one index lookup for each account without any.
pub(super) fn accounts(connection: &Connection, cutoff: Timestamp) -> rusqlite::Result<Vec<Id>> {
    connection
        .prepare_cached(&format!(
            "SELECT a.id FROM accounts a WHERE EXISTS
             (SELECT 1 FROM tasks INDEXED BY tasks_of_account WHERE account_id = a.id AND {REMOVABLE})"
        ))?
        .query_map(params![cutoff, Id::floor(cutoff)], |row| row.get(0))?
        .collect()
}

/// Removes up to [`BATCH`] tasks of an account, fewer if their prompts are long; returns their number.
pub(super) fn remove(writing: &mut Writing, account_id: Id, cutoff: Timestamp) -> rusqlite::Result<usize> {
    let connection = &writing.connection;
    let due = format!(
        "SELECT id, surface = 'web' FROM tasks INDEXED BY tasks_of_account WHERE account_id = ?3 AND {REMOVABLE}
         LIMIT ?4"
    );
    let parameters = params![cutoff, Id::floor(cutoff), account_id, BATCH];
    let due: Vec<(Id, bool)> = connection
        .prepare_cached(&due)?
        .query_map(parameters, |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let (mut removed, mut overwritten) = (0, 0);
    for (id, is_of_studio) in &due {
        if overwritten >= gallery::TERMS_AT_A_TIME {
            break;
        }
        if *is_of_studio {
            overwritten += gallery::forget(writing, *id)?;
        }
        removed += 1;
        let erase =
            "UPDATE tasks SET removed_at = ?2, prompt = '', reference_images = '[]', settings = NULL, request_id = NULL
            WHERE id = ?1";
        writing.connection.prepare_cached(erase)?.execute(params![id, writing.clock.now()])?;
        failed_prompts::forget(&writing.connection, *id)?;
    }
    writing.empties_log |= removed > 0;
    Ok(removed)
}

#[async_trait]
impl Upkeep for SqliteStore {
    async fn rescue(&self, which: Rescue, last_error: &str) -> Result<Rescued> {
        let mut all = Rescued::default();
        loop {
            let failure = TaskFailure::new(FailureCause::Lost, last_error);
            let some = self.write(Effect::Rescue, move |writing| queue::rescue(writing, which, &failure)).await?;
            let changed = some.queued + some.failed.len();
            all.add(some);
            if changed < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    async fn expire(&self, cutoff: Timestamp, error: &str) -> Result<Vec<Ended>> {
        let mut all = Vec::new();
        loop {
            let failure = TaskFailure::new(FailureCause::Expired, error);
            let some = self.write(Effect::Expire, move |writing| queue::expire(writing, cutoff, &failure)).await?;
            let failed = some.len();
            all.extend(some);
            if failed < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    async fn fail_beyond(&self, max_references: u32, error: &str) -> Result<Vec<Ended>> {
        let mut all = Vec::new();
        loop {
            let failure = TaskFailure::new(FailureCause::TooManyReferences(max_references), error);
            let fail = move |writing: &mut Writing| queue::fail_beyond(writing, max_references, &failure);
            let some = self.write(Effect::FailBeyond, fail).await?;
            let failed = some.len();
            all.extend(some);
            if failed < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    async fn lapse_grants(&self) -> Result<usize> {
        let mut all = Swept::default();
        loop {
            let some = self.write(Effect::LapseGrants, move |writing| ledger::lapse(writing, all.failed)).await?;
            all = Swept { lapsed: all.lapsed + some.lapsed, failed: all.failed + some.failed };
            if some.lapsed + some.failed < ledger::SWEEP_BATCH {
                return Ok(all.lapsed);
            }
        }
    }

    async fn fail_unmatched(&self, engines: &[(String, u32)], error: &str) -> Result<Vec<Ended>> {
        let engines = engines_in_json(engines);
        let mut all = Vec::new();
        loop {
            let (engines, failure) = (engines.clone(), TaskFailure::new(FailureCause::NoEngine, error));
            let fail = move |writing: &mut Writing| engines::fail_unmatched(writing, &engines, &failure);
            let some = self.write(Effect::FailUnmatched, fail).await?;
            let failed = some.len();
            all.extend(some);
            if failed < queue::SWEEP_BATCH {
                return Ok(all);
            }
        }
    }

    async fn remove_tasks(&self, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        for account_id in self.read(|connection| accounts(connection, cutoff))? {
            all += self.remove_tasks_of(account_id, cutoff).await?;
        }
        Ok(all)
    }

    async fn remove_tasks_of(&self, account_id: Id, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        loop {
            let remove = move |writing: &mut Writing| remove(writing, account_id, cutoff);
            let some = self.write(Effect::RemoveTasks, remove).await?;
            all += some;
            if some == 0 {
                return Ok(all);
            }
        }
    }

    async fn take_sweep(&self, sweeps: &[String], hold: Duration) -> Result<Option<String>> {
        let sweeps = sweeps.to_owned();
        self.writer.write(move |writing| files::take_sweep(writing, &sweeps, hold)).await
    }

    async fn postpone_sweep(&self, sweep: &str, pause: Duration) -> Result<()> {
        let sweep = sweep.to_owned();
        self.writer.write(move |writing| files::postpone_sweep(writing, &sweep, pause)).await
    }

    async fn failed_at(
        &self,
        account_id: Id,
        since: Timestamp,
        until: Timestamp,
        nth: u32,
    ) -> Result<Option<Timestamp>> {
        self.read(|connection| failed_prompts::failed_at(connection, account_id, since, until, nth))
    }

    async fn erase_failed_prompts(&self, cutoff: Timestamp, most: u64) -> Result<usize> {
        let mut all = 0;
        for (account_id, latest) in
            self.read_apart(move |connection| failed_prompts::due(connection, cutoff, most)).await?
        {
            loop {
                let erase = move |writing: &mut Writing| failed_prompts::erase(writing, account_id, latest);
                match self.write(Effect::EraseTasks, erase).await? {
                    0 => break,
                    some => all += some,
                }
            }
        }
        Ok(all)
    }

    async fn audit(&self) -> Result<Audit> {
        self.read(audit::audit)
    }
}
