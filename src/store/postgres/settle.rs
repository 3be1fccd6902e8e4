//! What became of a submit that the server never answered.
//!
//! The ids of its tasks are known beforehand, and while the statement runs it holds the rows of its accounts. A
//! statement that gets hold of them after its deadline does nothing. So whoever locks those rows after the deadline
//! sees the tasks, or they will never be.
//!
//! Callers do not wait for ever. Those who were told that it failed are told the truth: what turns out to exist is
//! taken back, by this process or, with a [`Journal`], by one after it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Database;
use super::journal::Journal;
use super::queue;
use crate::clock::Timestamp;
use crate::model::Id;
use crate::store::{Result, UNANSWERED};

/// A submit that the server has not begun this long after it was sent is not done.
pub(super) const START_WITHIN: Duration = Duration::from_secs(3);
/// How long a caller is kept waiting for the truth.
const PATIENCE: Duration = Duration::from_secs(20);
/// Looks in that time, if none takes long.
const MAX_LOOKS: u32 = 100;
/// Wait between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// A submit that was not answered.
#[derive(Debug, Clone)]
pub(super) struct Doubtful {
    pub(super) accounts: Vec<Id>,
    pub(super) tasks: Vec<Id>,
    /// By the server's clock: after it the submit does not begin any more.
    pub(super) deadline: Timestamp,
}

/// Which of its tasks exist. `None` when that cannot be known in the time that a caller waits: those that turn
/// out to exist later are then failed and refunded, as their callers are told.
pub(super) async fn settle(
    database: &Arc<Database>,
    journal: Option<&Arc<Journal>>,
    doubtful: Doubtful,
) -> Option<HashSet<Id>> {
    let begun = database.clock.elapsed();
    for _ in 0..MAX_LOOKS {
        match look(database, &doubtful).await {
            Ok(Some(kept)) => return Some(kept),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "cannot look what became of a submit"),
        }
        if database.clock.elapsed().saturating_sub(begun) >= PATIENCE {
            break;
        }
        database.sleep(PAUSE).await;
    }
    if let Some(journal) = journal
        && let Err(error) = journal.note(&doubtful).await
    {
        tracing::error!(
            tasks = doubtful.tasks.len(),
            %error,
            "cannot write down that a submit was answered with an error: \
             if this process ends before the database can be asked, tasks of it that exist stay charged"
        );
    }
    tokio::spawn(take_back(database.clone(), journal.cloned(), vec![doubtful]));
    None
}

/// The tasks that exist; `None` while more may come.
async fn look(database: &Database, doubtful: &Doubtful) -> Result<Option<HashSet<Id>>> {
    let mut client = database.client().await?;
    let begun = client.transaction().await?;
    if database.given_time().is_none() {
        let now: Timestamp = begun.query_one("SELECT tintype_now(NULL)", &[]).await?.try_get(0)?;
        if now < doubtful.deadline {
            return Ok(None);
        }
    }
    let lock = "SELECT id FROM accounts WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE";
    begun.execute(lock, &[&doubtful.accounts]).await?;
    let rows = begun.query("SELECT id FROM tasks WHERE id = ANY ($1)", &[&doubtful.tasks]).await?;
    let kept = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_>>()?;
    begun.rollback().await?;
    Ok(Some(kept))
}

/// Fails and refunds what exists of submits whose callers were told that they failed, however long it takes to
/// find out.
pub(super) async fn take_back(database: Arc<Database>, journal: Option<Arc<Journal>>, doubtful: Vec<Doubtful>) {
    let mut all: Vec<Unsettled> = doubtful.into_iter().map(|doubtful| Unsettled { doubtful, kept: None }).collect();
    while !all.is_empty() {
        database.sleep(PAUSE * 5).await;
        let mut left = Vec::new();
        for mut one in all {
            if !one.settle(&database).await {
                left.push(one);
            } else if let Some(journal) = &journal {
                journal.forget(&one.doubtful).await;
            }
        }
        all = left;
    }
}

/// A submit on its way back.
struct Unsettled {
    doubtful: Doubtful,
    /// Tasks that are to end, once that is known.
    kept: Option<HashSet<Id>>,
}

impl Unsettled {
    /// Whether nothing is left to do.
    async fn settle(&mut self, database: &Arc<Database>) -> bool {
        let kept = match self.kept.take() {
            Some(kept) => kept,
            None => match look(database, &self.doubtful).await {
                Ok(Some(kept)) => kept,
                _ => return false,
            },
        };
        let mut left = HashSet::new();
        for id in kept {
            match queue::fail_unleased(database, id, UNANSWERED).await {
                Ok(true) => {
                    tracing::warn!(task = %id, "a task whose submit was answered with an error is failed and refunded")
                }
                Ok(false) => {
                    tracing::warn!(task = %id, "a task whose submit was answered with an error has ended already")
                }
                Err(_) => drop(left.insert(id)),
            }
        }
        let done = left.is_empty();
        self.kept = Some(left);
        done
    }
}
