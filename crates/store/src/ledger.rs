//! Rows of the ledger, as both databases write them.

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
