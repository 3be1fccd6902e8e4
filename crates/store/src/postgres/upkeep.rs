//! Upkeep of a process, at its start and every few seconds: compares the clocks and moves the horizon of the queue. And
//! the audit.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::IsolationLevel;

use super::PostgresStore;
use super::connection::Database;
use crate::{Audit, Result, audit};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// Time between two rounds of upkeep.
const EVERY: Duration = Duration::from_secs(10);
/// Age up to which new tasks can still appear: longer than a submit can wait for its statement.
const MARGIN: Duration = Duration::from_secs(10);
/// A response within this time is precise enough about the server's time: the error is at most half of it. A later one
/// counts only if it contradicts the estimate, which is then wrong.
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
        let rows = self.read("SELECT tintype_now(NULL) AS now", &[]).await?;
        let took = self.clock.elapsed().saturating_sub(sent);
        let theirs: Timestamp = rows[0].get("now")?;
        // As if the server had read its clock half-way through the request.
        let origin = theirs.saturating_sub(sent + took / 2).as_millis();
        let off = Duration::from_millis(origin.abs_diff(self.origin.load(Ordering::Relaxed)));
        if took <= PRECISE_WITHIN || off > took / 2 {
            self.origin.store(origin, Ordering::Relaxed);
        }
        Ok(self.now().as_millis() - self.clock.now().as_millis())
    }

    /// The horizon: a lower bound of unfinished tasks' ids, where statements begin. Vacuum removes no dead tuples from
    /// the queue while a reader, such as a backup, keeps an old snapshot, and a scan from the beginning would pass over
    /// all of them. The horizon is only an estimate: a task below it that comes late, after its process was frozen,
    /// waits until the next reading includes it.
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
        let oldest: Option<Id> = self.read("SELECT min(task_id) AS oldest FROM queue", &[]).await?[0].get("oldest")?;
        let oldest = oldest.map_or(now, |id| id.timestamp().min(now));
        self.horizon_ms.store(oldest.saturating_sub(MARGIN).as_millis(), Ordering::Relaxed);
        Ok(())
    }
}

impl PostgresStore {
    pub(crate) async fn audit_credits(&self) -> Result<Audit> {
        let mut client = self.database.reader().await?;
        let snapshot = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
        let snapshot = snapshot.start().await?;
        snapshot.batch_execute("SET LOCAL statement_timeout = 0").await?;
        let audit = audit::of(&*snapshot).await?;
        snapshot.rollback().await?;
        Ok(audit)
    }
}
