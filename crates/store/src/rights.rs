//! Callers' rights to write.
//!
//! A caller's right is read when its request arrives, and the effect comes later: after a body, a hash, a queue or a
//! download. So a store that acts by a right ([`Store::with_right`](super::Store::with_right)) checks it once more in
//! the transaction of each write, and fails with [`StoreError::Revoked`](super::StoreError::Revoked) if it was lost.

use super::driver::{Dialect, Transaction};
use super::keys::{KEY, api_key};
use super::people::{LIVE, person, sessions};
use crate::StoreError;
use crate::failure::DbResult;
use tintype_domain::key::KeyHash;
use tintype_domain::person::{Role, TokenHash};

/// A right to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// The right of a key: it holds while the key is valid.
    Key(KeyHash),
    /// The right of a signed-in person.
    Session(SessionRight),
}

/// A signed-in person's right: it holds while the session lasts, the account is enabled, and the person has at least
/// the rights that the request was checked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionRight {
    /// The hash of the session's token.
    pub session: TokenHash,
    /// The role.
    pub role: Role,
    /// Whether the person was suspended already.
    pub suspended: bool,
    /// Whether the person acts as an operator: as an owner of an admin account.
    pub operator: bool,
}

/// Fails with [`StoreError::Revoked`] if a write needs a right that no longer holds.
pub(crate) async fn require(tx: &Transaction<'_>, right: Option<Right>) -> DbResult {
    match right {
        Some(right) if !right.holds(tx, true).await? => Err(StoreError::Revoked.into()),
        _ => Ok(()),
    }
}

impl Right {
    /// Whether it holds now. With `is_kept`, it cannot be revoked before this transaction ends. A transaction that has
    /// already locked an account must not ask for that, because keys and people are locked before accounts.
    pub(crate) async fn holds(&self, tx: &Transaction<'_>, is_kept: bool) -> DbResult<bool> {
        let locking = |clause| if is_kept { tx.locking(clause) } else { "" };
        let now = tx.now();
        match self {
            Self::Key(hash) => {
                let sql = format!("SELECT {KEY} FROM api_keys WHERE hash = $1 {}", locking("FOR SHARE"));
                Ok(tx.find(&sql, &[&hash], api_key).await?.is_some_and(|key| key.is_valid(now)))
            }
            Self::Session(right) => {
                let locking = locking("FOR NO KEY UPDATE OF people FOR KEY SHARE OF s");
                let found = tx.query_opt(&format!("{} {locking}", sessions(LIVE)), &[&right.session, &now]).await?;
                let Some(row) = found else { return Ok(false) };
                let (person, admin): (_, bool) = (person(&row)?, row.get("admin")?);
                let is_suspended = person.suspension.is_some() && !right.suspended;
                let operates = admin && person.role == Role::Owner;
                Ok(person.role >= right.role && !is_suspended && (operates || !right.operator))
            }
        }
    }
}
