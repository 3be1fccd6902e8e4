//! Finding out what became of a submit whose answer was lost.
//!
//! The submitter chooses the ids of the tasks before it sends them. The statement locks their accounts, and creates no
//! task whose deadline has passed by then. So a transaction that locks the accounts after the last deadline sees the
//! tasks, or they will never exist.

use std::collections::HashSet;
use std::time::Duration;

use tokio_postgres::Transaction;

use super::connection::{Database, TRANSACTION_TIMEOUT};
use super::failure::Failure;
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::store::Result;

/// How long the database is asked.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most questions in that time.
const MAX_LOOKS: u32 = 100;
/// Pause between two of them.
const PAUSE: Duration = Duration::from_millis(200);

/// A submit that was not answered.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) accounts: Vec<Id>,
    pub(super) tasks: Vec<Id>,
    /// The last deadline of the tasks, by the server's clock.
    pub(super) deadline: Timestamp,
}

impl Unanswered {
    /// The tasks that exist; `None` when that is still unknown after [`PATIENCE`].
    pub(super) async fn settle(&self, database: &Database) -> Option<HashSet<Id>> {
        let begun = database.clock.elapsed();
        for _ in 0..MAX_LOOKS {
            match self.look(database).await {
                Ok(Some(existing)) => return Some(existing),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "cannot find out what became of a submit; trying again"),
            }
            if database.clock.elapsed().saturating_sub(begun) >= PATIENCE {
                break;
            }
            database.sleep(PAUSE).await;
        }
        None
    }

    /// The tasks that exist; `None` while the submit may still be done.
    async fn look(&self, database: &Database) -> Result<Option<HashSet<Id>>> {
        let lock = "SELECT id FROM accounts WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE";
        let look = async |begun: &Transaction<'_>| {
            let now: Timestamp = begun.query_one("SELECT tintype_now(NULL)", &[]).await?.try_get(0)?;
            let is_over = database.given_time().is_some() || now >= self.deadline;
            if is_over {
                begun.query(lock, &[&self.accounts]).await?;
            }
            let rows = begun.query("SELECT id FROM tasks WHERE id = ANY ($1)", &[&self.tasks]).await?;
            let existing = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<HashSet<Id>>>()?;
            // One task that exists tells that the whole statement was committed.
            Ok((is_over || !existing.is_empty()).then_some(existing))
        };
        database.transaction(TRANSACTION_TIMEOUT, look).await.map_err(Failure::into_error)
    }
}
