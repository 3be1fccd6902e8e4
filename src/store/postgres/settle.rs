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

use tokio_postgres::Transaction;

use super::connection::{Database, TRANSACTION_TIMEOUT};
use super::journal::Journal;
use super::{newest, queue};
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::store::{Result, UNANSWERED};

/// A submit that the server has not begun this long after it was sent is not done.
pub(super) const START_WITHIN: Duration = Duration::from_secs(3);
/// How long a caller is kept waiting for the truth.
const PATIENCE: Duration = Duration::from_secs(20);
/// Looks in that time, if none takes long.
const MAX_LOOKS: u32 = 100;
/// Wait between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it is said that nothing can be taken back.
const TELL_EVERY: Duration = Duration::from_secs(60);

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
    let wanted = "wanted AS (SELECT DISTINCT account_id FROM unnest($1::text[]) AS w (account_id) ORDER BY account_id)";
    let lock = format!("WITH {wanted}, {} SELECT account_id FROM locked", newest::locked("wanted"));
    let look = async |begun: &Transaction<'_>| {
        if database.given_time().is_none() {
            let now: Timestamp = begun.query_one("SELECT tintype_now(NULL)", &[]).await?.try_get(0)?;
            if now < doubtful.deadline {
                return Ok(None);
            }
        }
        begun.query(&lock, &[&doubtful.accounts]).await?;
        let rows = begun.query("SELECT id FROM tasks WHERE id = ANY ($1)", &[&doubtful.tasks]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_>>().map(Some)
    };
    database.transaction(TRANSACTION_TIMEOUT, look).await
}

/// Fails and refunds what exists of submits whose callers were told that they failed, however long it takes to
/// find out.
pub(super) async fn take_back(database: Arc<Database>, journal: Option<Arc<Journal>>, doubtful: Vec<Doubtful>) {
    let mut all: Vec<Unsettled> = doubtful.into_iter().map(|doubtful| Unsettled { doubtful, kept: None }).collect();
    let mut told = None;
    while !all.is_empty() {
        database.sleep(PAUSE * 5).await;
        let (mut left, mut failed) = (Vec::new(), None);
        for mut one in all {
            match one.settle(&database).await {
                Ok(true) => {
                    if let Some(journal) = &journal {
                        journal.forget(&one.doubtful).await;
                    }
                    continue;
                }
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
            left.push(one);
        }
        all = left;
        let now = database.clock.elapsed();
        if let Some(error) = failed
            && told.is_none_or(|told| now.saturating_sub(told) >= TELL_EVERY)
        {
            tracing::warn!(submits = all.len(), %error, "cannot take back submits that were answered with an error");
            told = Some(now);
        }
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
    async fn settle(&mut self, database: &Arc<Database>) -> Result<bool> {
        let kept = match self.kept.take() {
            Some(kept) => kept,
            None => match look(database, &self.doubtful).await? {
                Some(kept) => kept,
                None => return Ok(false),
            },
        };
        let (mut left, mut failed) = (HashSet::new(), None);
        for id in kept {
            match queue::fail_unleased(database, id, UNANSWERED).await {
                Ok(true) => {
                    tracing::warn!(task = %id, "a task whose submit was answered with an error is failed and refunded")
                }
                Ok(false) => {
                    tracing::warn!(task = %id, "a task whose submit was answered with an error has ended already")
                }
                Err(error) => {
                    left.insert(id);
                    failed = Some(error);
                }
            }
        }
        self.kept = Some(left);
        failed.map_or(Ok(true), Err)
    }
}
