//! Statements for leasing tasks to workers.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::SqliteStore;
use super::writer::Writing;
use crate::driver::{Row, Transaction, on_sqlite};
use crate::failure::DbResult;
use crate::tasks::REQUEST;
use crate::{Claim, EndingsElsewhere, LONGEST_DELAY, Result, StoreError, queue};
use tintype_domain::model::Id;
use tintype_system::fault::Effect;

/// How often to look for other processes' writes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The tasks that a claim may take.
#[derive(Debug)]
struct Scope {
    engine: String,
    max_references: u32,
    excluded: HashSet<Id>,
}

/// `last_served` is the account that was served last; the next claim starts after it.
async fn claim(
    tx: &Transaction<'_>,
    max: usize,
    lease: Duration,
    scope: &Scope,
    last_served: &mut String,
) -> DbResult<Vec<Claim>> {
    let now = tx.now();
    let mut claims = Vec::new();
    if tx.query_opt("SELECT 1 FROM queue_pause", &[]).await?.is_some() {
        return Ok(claims);
    }
    while claims.len() < max {
        let after_last = next_waiting(tx, last_served.clone(), scope).await?;
        let Some((account_id, task_id)) = (match after_last {
            None => next_waiting(tx, String::new(), scope).await?,
            found => found,
        }) else {
            break;
        };
        let sql = "UPDATE queue SET lease_epoch = lease_epoch + 1, lease_until = $2, ready_at = 0, claimed_at = $3
            WHERE task_id = $1";
        tx.execute(sql, &[&task_id, &now.saturating_add(lease), &now]).await?;
        let sql = format!(
            "SELECT task_id, queue.account_id, lease_epoch, surface, wants_previews, {REQUEST}
             FROM queue JOIN tasks ON id = task_id WHERE task_id = $1"
        );
        let row = tx.query_opt(&sql, &[&task_id]).await?;
        match row.ok_or_else(|| StoreError::other("it does not exist")).and_then(|row| queue::claim(&row)) {
            Ok(claim) => claims.push(claim),
            // A damaged row must not stop the other claims. Its lease expires.
            Err(error) => {
                tracing::error!(task = %task_id, %error, "could not read a claimed task; \
                    check the database with `tintype doctor`");
            }
        }
        *last_served = account_id.to_string();
    }
    Ok(claims)
}

/// The oldest claimable task of the next account after `account` that has such a task within `scope`.
async fn next_waiting(tx: &Transaction<'_>, mut account: String, scope: &Scope) -> DbResult<Option<(Id, Id)>> {
    let sql = "SELECT account_id, task_id FROM queue INDEXED BY queue_waiting
        WHERE lease_until IS NULL AND engine = $4 AND account_id > $1 AND reference_count <= $3
        AND (ready_at <= $2 OR ready_at > $5)
        ORDER BY account_id, task_id LIMIT 1";
    let found = |row: &Row| Ok((row.get("account_id")?, row.get("task_id")?));
    let now = tx.now();
    // Postponed for longer than any task is: the clock was set back since.
    let too_late = now.saturating_add(LONGEST_DELAY);
    loop {
        let mut next: Option<(Id, Id)> = None;
        for engine in ["", &scope.engine] {
            let of_engine = tx.find(sql, &[&account, &now, &scope.max_references, &engine, &too_late], found).await?;
            next = next.into_iter().chain(of_engine).min();
        }
        match next {
            Some((passed, _)) if scope.excluded.contains(&passed) => account = passed.to_string(),
            next => return Ok(next),
        }
    }
}

impl SqliteStore {
    pub(crate) async fn claim_tasks(
        &self,
        max: usize,
        engine: &str,
        max_references: u32,
        lease: Duration,
        excluded: &[Id],
    ) -> Result<Vec<Claim>> {
        let turns = (engine.to_owned(), max_references);
        let engine = engine.to_owned();
        let scope = Scope { engine, max_references, excluded: excluded.iter().copied().collect() };
        let claim = move |writing: &mut Writing| {
            let mut last_served = writing.last_served.remove(&turns).unwrap_or_default();
            let claims =
                on_sqlite(writing, async |tx: &Transaction<'_>| claim(tx, max, lease, &scope, &mut last_served).await);
            writing.last_served.insert(turns.clone(), last_served);
            claims
        };
        self.write(Effect::Claim, claim).await
    }

    /// Waits until another process has written. Only an operator's command is one, so a look every second is often
    /// enough.
    pub(crate) async fn written_elsewhere(&self) -> EndingsElsewhere {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // Only on the writer's connection does the number leave out the writes of this process.
            let look = |writing: &mut Writing| {
                Ok(writing.connection.query_row("PRAGMA data_version", [], |row| row.get(0))?)
            };
            // If the database cannot be read now, it is tried again.
            let Ok(version) = self.write(None, look).await else { continue };
            if self.data_version.swap(version, Ordering::Relaxed) != version {
                return EndingsElsewhere::Missed;
            }
        }
    }
}
