//! Upkeep of a process, at its start and every few seconds: compares the clocks and moves the horizon of the queue. And
//! the methods that end and remove tasks in bulk.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;

use super::connection::{Database, Parameter};
use super::endings::Loss;
use super::queue::millis;
use super::sweep::Sweep;
use super::{PostgresStore, audit, failed_prompts, ledger, progress, tasks};
use crate::{Audit, Ended, LONGEST_PAUSE, Rescue, Rescued, Result, Upkeep};
use tintype_domain::model::{FailureCause, Id};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Time between two rounds of upkeep.
const EVERY: Duration = Duration::from_secs(10);
/// Age up to which new tasks may still appear: longer than a submit may wait for its statement.
const MARGIN: Duration = Duration::from_secs(10);
/// A response within this time tells the server's time well enough: the error is at most half of it. A later one counts
/// only if it contradicts the estimate, which is then wrong.
const PRECISE_WITHIN: Duration = Duration::from_secs(1);
/// Difference between two clocks that is worth a warning.
const CLOCKS_APART: Duration = Duration::from_secs(5);

/// Does the upkeep once. Returns by how many milliseconds the server's clock is ahead.
pub(super) async fn once(database: &Database) -> Result<i64> {
    let ahead_ms = database.compare_clocks().await?;
    if let Err(error) = database.read_horizon().await {
        tracing::warn!(%error, "could not read the oldest unfinished task; scans of the queue may be slow");
    }
    Ok(ahead_ms)
}

/// Does it from now on. `ahead_ms` is what [`once`] returned at the start.
pub(super) async fn keep(database: Arc<Database>, mut ahead_ms: i64) {
    let mut warned = false;
    loop {
        let apart = u128::from(ahead_ms.unsigned_abs()) > CLOCKS_APART.as_millis();
        if apart && !warned {
            tracing::warn!(
                ahead_ms,
                "clock differs from the database server's (the database's is used); check NTP on this machine"
            );
        }
        warned = apart;
        tokio::time::sleep(EVERY).await;
        match once(&database).await {
            Ok(ahead) => ahead_ms = ahead,
            Err(error) => tracing::warn!(%error, "could not compare the clocks"),
        }
    }
}

/// Takes the first sweep that is due, unless somebody is quicker.
const TAKE: &str = "
    WITH first AS (
        SELECT wanted.name FROM unnest($1::text[]) WITH ORDINALITY AS wanted (name, place)
        LEFT JOIN sweeps s ON s.name = wanted.name
        WHERE s.due_at IS NULL OR s.due_at <= tintype_now($2) OR s.due_at > tintype_now($2) + $4
        ORDER BY place LIMIT 1
    )
    INSERT INTO sweeps AS s (name, due_at) SELECT name, tintype_now($2) + $3 FROM first
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at
    WHERE s.due_at <= tintype_now($2) OR s.due_at > tintype_now($2) + $4
    RETURNING name";

/// Postpones a sweep. Also deletes the rows of sweeps that have long been due: the day of such a sweep has no files any
/// more, or the sweep is due with or without a row.
const POSTPONE: &str = "
    WITH gone AS (DELETE FROM sweeps WHERE due_at < tintype_now($2) - $4 AND name <> $1)
    INSERT INTO sweeps (name, due_at) VALUES ($1, tintype_now($2) + $3)
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at";

impl Database {
    /// Estimate of the server's time, which this process advances with its own monotonic clock. Setting the clock of
    /// this machine therefore has no effect.
    pub(crate) fn now(&self) -> Timestamp {
        if self.clock.is_manual() {
            return self.clock.now();
        }
        Timestamp::from_millis(self.origin.load(Ordering::Relaxed)).saturating_add(self.clock.elapsed())
    }

    /// Reads the server's clock; returns by how many milliseconds it is ahead of the clock of this machine.
    pub(super) async fn compare_clocks(&self) -> Result<i64> {
        if self.clock.is_manual() {
            return Ok(0);
        }
        let sent = self.clock.elapsed();
        let rows = self.read("SELECT tintype_now(NULL)", &[]).await?;
        let took = self.clock.elapsed().saturating_sub(sent);
        let theirs: Timestamp = rows[0].try_get(0)?;
        // As if the server had read its clock half-way through the request.
        let origin = theirs.saturating_sub(sent + took / 2).as_millis();
        let off = Duration::from_millis(origin.abs_diff(self.origin.load(Ordering::Relaxed)));
        if took <= PRECISE_WITHIN || off > took / 2 {
            self.origin.store(origin, Ordering::Relaxed);
        }
        Ok(self.now().as_millis() - self.clock.now().as_millis())
    }

    /// The horizon: a lower bound of the ids of unfinished tasks, at which statements begin. Vacuum removes no dead
    /// tuple of the queue while a reader keeps an old snapshot, such as a backup, and a scan from the beginning would
    /// pass over all of them. The horizon is only an estimate: a task below it that comes late, after its process was
    /// frozen, waits until the next reading includes it.
    pub(crate) fn horizon(&self) -> Id {
        Id::floor(Timestamp::from_millis(self.horizon_ms.load(Ordering::Relaxed)))
    }

    /// Reads the oldest unfinished task, among any number of dead tuples, and moves the horizon before it. Tests that
    /// move the clock have no horizon.
    async fn read_horizon(&self) -> Result<()> {
        if self.clock.is_manual() {
            return Ok(());
        }
        let now = self.now();
        let oldest: Option<Id> = self.read("SELECT min(task_id) FROM queue", &[]).await?[0].try_get(0)?;
        let oldest = oldest.map_or(now, |id| id.timestamp().min(now));
        self.horizon_ms.store(oldest.saturating_sub(MARGIN).as_millis(), Ordering::Relaxed);
        Ok(())
    }
}

#[async_trait]
impl Upkeep for PostgresStore {
    async fn rescue(&self, which: Rescue, last_error: &str) -> Result<Rescued> {
        let loss = Loss::attempt(last_error, Duration::ZERO);
        let rescued =
            self.write(Effect::Rescue, Sweep::rescue(&self.database, which, loss).run(&self.database)).await?;
        // The tasks are rescued all the same.
        if let Err(error) = progress::forget_ended(&self.database).await {
            tracing::debug!(%error, "could not delete the progress of attempts that have ended; \
                the next sweep tries again");
        }
        Ok(rescued)
    }

    async fn expire(&self, cutoff: Timestamp, error: &str) -> Result<Vec<Ended>> {
        let sweep = Sweep::expire(&self.database, cutoff, Loss::now(FailureCause::Expired, error));
        Ok(self.write(Effect::Expire, sweep.run(&self.database)).await?.failed)
    }

    async fn fail_beyond(&self, max_references: u32, error: &str) -> Result<Vec<Ended>> {
        let sweep = Sweep::beyond(
            &self.database,
            max_references,
            Loss::now(FailureCause::TooManyReferences(max_references), error),
        );
        Ok(self.write(Effect::FailBeyond, sweep.run(&self.database)).await?.failed)
    }

    async fn lapse_grants(&self) -> Result<usize> {
        self.write(Effect::LapseGrants, ledger::lapse(&self.database)).await
    }

    async fn fail_unmatched(&self, engines: &[(String, u32)], error: &str) -> Result<Vec<Ended>> {
        let sweep = Sweep::unmatched(&self.database, engines, Loss::now(FailureCause::NoEngine, error));
        Ok(self.write(Effect::FailUnmatched, sweep.run(&self.database)).await?.failed)
    }

    async fn remove_tasks(&self, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        let mut last = String::new();
        loop {
            let sql = "SELECT id FROM accounts WHERE id > $1 ORDER BY id LIMIT 1000";
            let page = self.database.read(sql, &[&last]).await?;
            let Some(row) = page.last() else { return Ok(all) };
            last = row.try_get("id")?;
            for row in &page {
                let account_id: Id = row.try_get("id")?;
                all += self.remove_tasks_of(account_id, cutoff).await?;
            }
        }
    }

    async fn remove_tasks_of(&self, account_id: Id, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        loop {
            let remove = tasks::remove(&self.database, account_id, cutoff);
            let removed = self.write(Effect::RemoveTasks, remove).await?;
            all += removed;
            if removed < tasks::REMOVAL_BATCH {
                return Ok(all);
            }
        }
    }

    async fn take_sweep(&self, sweeps: &[String], hold: Duration) -> Result<Option<String>> {
        let parameters: [Parameter<'_>; 4] =
            [&sweeps, &self.database.given_time(), &millis(hold), &millis(LONGEST_PAUSE)];
        let taken = self.database.write(TAKE, &parameters).await?;
        Ok(taken.first().map(|row| row.try_get(0)).transpose()?)
    }

    async fn postpone_sweep(&self, sweep: &str, pause: Duration) -> Result<()> {
        let parameters: [Parameter<'_>; 4] =
            [&sweep, &self.database.given_time(), &millis(pause), &millis(LONGEST_PAUSE)];
        self.database.write(POSTPONE, &parameters).await?;
        Ok(())
    }

    async fn failed_at(
        &self,
        account_id: Id,
        since: Timestamp,
        until: Timestamp,
        nth: u32,
    ) -> Result<Option<Timestamp>> {
        failed_prompts::failed_at(&self.database, account_id, since, until, nth).await
    }

    async fn erase_failed_prompts(&self, cutoff: Timestamp, most: u64) -> Result<usize> {
        let mut all = 0;
        for (account_id, latest) in failed_prompts::due(&self.database, cutoff, most).await? {
            loop {
                let erase = failed_prompts::erase(&self.database, account_id, latest);
                match self.write(Effect::EraseTasks, erase).await? {
                    0 => break,
                    some => all += some,
                }
            }
        }
        Ok(all)
    }

    async fn audit(&self) -> Result<Audit> {
        audit::audit(&self.database).await
    }
}
