//! Finding out what became of a submit whose answer was lost.
//!
//! The submitter chooses the ids of the tasks before it sends them. The statement locks their accounts, and creates no
//! task whose deadline has passed by then. So a transaction that locks the accounts after the last deadline sees the
//! tasks, or they will never exist.

use std::collections::HashSet;
use std::time::Duration;

use tokio_postgres::Transaction;

use super::connection::Database;
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::store::{Result, StoreError};

/// How long the database is asked.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two of them.
const PAUSE: Duration = Duration::from_millis(200);

/// Those of `tasks` that exist; `None` when that is still unknown after [`PATIENCE`]. `deadline` is the last one of the
/// tasks, by the server's clock.
pub(super) async fn settle(
    database: &Database,
    accounts: &[Id],
    tasks: &[Id],
    deadline: Timestamp,
) -> Option<HashSet<Id>> {
    let settled = async {
        loop {
            let look = async |begun: &Transaction<'_>| {
                let now: Timestamp = begun.query_one("SELECT tintype_now(NULL)", &[]).await?.try_get(0)?;
                let is_over = database.given_time().is_some() || now >= deadline;
                if is_over {
                    let lock = "SELECT id FROM accounts WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE";
                    begun.query(lock, &[&accounts]).await?;
                }
                let rows = begun.query("SELECT id FROM tasks WHERE id = ANY ($1)", &[&tasks]).await?;
                let existing = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<HashSet<Id>>>()?;
                // One task that exists tells that the whole statement was committed.
                Ok((is_over || !existing.is_empty()).then_some(existing))
            };
            match database.transaction(look).await.map_err(StoreError::from) {
                Ok(Some(existing)) => return existing,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "cannot find out what became of a submit; trying again"),
            }
            database.sleep(PAUSE).await;
        }
    };
    database.within(PATIENCE, settled).await
}
