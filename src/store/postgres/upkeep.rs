//! Upkeep of a process, at its start and every few seconds: compares the clocks, creates the partition of the coming
//! month, and moves the horizon of the queue. And the methods that end and remove tasks in bulk.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::connection::Database;
use super::queue::Loss;
use super::sweep::Sweep;
use super::tasks::IndexPosition;
use super::{PostgresStore, audit, files, horizon, partitions, tasks};
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::fault::Effect;
use crate::store::{Audit, Ended, Rescue, Rescued, Result, Upkeep};

/// Difference between two clocks that is worth a warning.
const CLOCKS_APART: Duration = Duration::from_secs(5);

/// Does the upkeep once. Returns by how many milliseconds the server's clock is ahead.
pub(super) async fn once(database: &Database) -> Result<i64> {
    let ahead_ms = database.compare_clocks().await?;
    partitions::prepare_ahead(database, database.now()).await?;
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
            tracing::warn!(ahead_ms, "this machine's clock is not the database server's; the server's counts");
        }
        warned = apart;
        tokio::time::sleep(horizon::EVERY).await;
        match once(&database).await {
            Ok(ahead) => ahead_ms = ahead,
            Err(error) => {
                tracing::warn!(%error, "could not compare the clocks or prepare the tables of the coming month");
            }
        }
    }
}

#[async_trait]
impl Upkeep for PostgresStore {
    async fn rescue(&self, which: Rescue, last_error: &str) -> Result<Rescued> {
        let sweep = Sweep::rescue(&self.database, which, Loss::attempt(&self.database, last_error, Duration::ZERO));
        self.sweep(Effect::Rescue, sweep).await
    }

    async fn expire(&self, cutoff: Timestamp, error: &str) -> Result<Vec<Ended>> {
        Ok(self.sweep(Effect::Expire, Sweep::expire(&self.database, cutoff, error)).await?.failed)
    }

    async fn remove_tasks(&self, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        let mut last = String::new();
        loop {
            let sql = "SELECT id FROM accounts WHERE id > $1 ORDER BY id LIMIT 1000";
            let page = self.database.read(sql, &[&last]).await?;
            for row in &page {
                let account_id: Id = row.try_get("id")?;
                all += self.remove_tasks_of(account_id, cutoff).await?;
                last = account_id.to_string();
            }
            if page.is_empty() {
                return Ok(all);
            }
        }
    }

    async fn remove_tasks_of(&self, account_id: Id, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        let mut next = Some(IndexPosition::default());
        while let Some(after) = next {
            let remove = tasks::remove(&self.database, account_id, &after, cutoff);
            let removal = self.write(Effect::RemoveTasks, remove).await?;
            all += removal.removed;
            next = removal.reached;
        }
        Ok(all)
    }

    async fn drop_partitions(&self, before: Timestamp, removed_before: Timestamp) -> Result<usize> {
        let mut all = 0;
        loop {
            let drop_oldest = partitions::drop_oldest(&self.database, before, removed_before);
            if !self.write(Effect::DropPartition, drop_oldest).await? {
                return Ok(all);
            }
            all += 1;
        }
    }

    async fn take_sweep(&self, sweeps: &[String], hold: Duration) -> Result<Option<String>> {
        files::take_sweep(&self.database, sweeps, hold).await
    }

    async fn postpone_sweep(&self, sweep: &str, pause: Duration) -> Result<()> {
        files::postpone_sweep(&self.database, sweep, pause).await
    }

    async fn audit(&self) -> Result<Audit> {
        audit::audit(&self.database).await
    }
}

impl PostgresStore {
    /// Runs the steps of a sweep, each a transaction of its own.
    async fn sweep(&self, effect: Effect, sweep: Sweep<'_>) -> Result<Rescued> {
        let mut all = Rescued::default();
        loop {
            let swept = self.write(effect, sweep.step(&self.database)).await?;
            all.add(swept.rescued);
            if !swept.more {
                return Ok(all);
            }
        }
    }
}
