//! Rows of the ledger, as both databases write them.

use super::StoreError;
use super::driver::Transaction;
use crate::failure::Failure;
use tintype_domain::ledger::Part;
use tintype_domain::model::{EntryKind, Id};

/// A ledger entry to insert.
#[derive(Debug, Clone)]
pub struct NewEntry<'a> {
    /// The kind.
    pub kind: EntryKind,
    /// Signed credits.
    pub amount: i64,
    /// The task that is charged or refunded.
    pub task_id: Option<Id>,
    /// The key of the task.
    pub key_id: Option<Id>,
    /// The grant that an expiry ends.
    pub grant_id: Option<i64>,
    /// A note of the operator.
    pub note: Option<&'a str>,
}

impl NewEntry<'_> {
    /// An entry without a task, a grant or a note.
    pub fn new(kind: EntryKind, amount: i64) -> Self {
        Self { kind, amount, task_id: None, key_id: None, grant_id: None, note: None }
    }
}

/// The parts of grants that a task took, for its row in the queue: JSON pairs of grant and credits; `None` if it took
/// none.
pub fn to_json(parts: &[Part]) -> Option<String> {
    let pairs: Vec<(i64, i64)> = parts.iter().map(|part| (part.grant, part.credits)).collect();
    (!pairs.is_empty()).then(|| serde_json::to_string(&pairs).expect("numbers are always JSON"))
}

/// The inverse of [`to_json`].
///
/// # Errors
/// The row is damaged.
pub fn from_json(taken: &str) -> serde_json::Result<Vec<Part>> {
    let pairs: Vec<(i64, i64)> = serde_json::from_str(taken)?;
    Ok(pairs.into_iter().map(|(grant, credits)| Part { grant, credits }).collect())
}

/// Grants a new account its first credits, if any.
pub(crate) async fn open(
    begun: &Transaction<'_>,
    account_id: Id,
    credits: i64,
    note: &str,
) -> std::result::Result<(), Failure> {
    if credits != 0 {
        let opening = NewEntry { note: Some(note), ..NewEntry::new(EntryKind::Grant, credits) };
        record(begun, &opening, account_id, credits).await?;
    }
    Ok(())
}

/// Inserts an entry and returns its id; `balance` is the balance of the account after it.
async fn record(
    begun: &Transaction<'_>,
    entry: &NewEntry<'_>,
    account_id: Id,
    balance: i64,
) -> std::result::Result<i64, Failure> {
    let NewEntry { kind, amount, task_id, key_id, grant_id, note } = entry;
    if let Some(sql) = begun.either(Some("UPDATE accounts SET balance = $2 WHERE id = $1"), None) {
        begun.execute(sql, &[&account_id, &balance]).await?;
    }
    let sql = "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id, note, key_id, grant_id)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id";
    let (kind, now) = (kind.as_str(), begun.now());
    let added =
        begun.query_opt(sql, &[&account_id, &kind, amount, &balance, &now, task_id, note, key_id, grant_id]).await?;
    let added = added.ok_or_else(|| StoreError::Other("the ledger took no entry".into()))?;
    Ok(added.get("id")?)
}
