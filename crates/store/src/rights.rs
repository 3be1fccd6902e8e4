//! The rights by which callers write.
//!
//! A caller's right is read when its request arrives, and the effect comes later: after a body, a hash, a queue or a
//! download. So a store that acts by a right ([`AuditLog::with_right`](super::AuditLog::with_right)) checks it once
//! more in the transaction of each write, and fails with [`StoreError::Revoked`](super::StoreError::Revoked) if it was
//! lost.

use tintype_domain::key::KeyHash;
use tintype_domain::person::{Person, Role, TokenHash};

/// A right to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// That of a key: it holds while the key is valid.
    Key(KeyHash),
    /// That of a signed-in person.
    Session(SessionRight),
}

/// The right of a signed-in person: it holds while the session lasts, the account is enabled, and the person has at
/// least the rights with which the request was judged.
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

impl SessionRight {
    /// Whether it still holds for its person; `admin` says whether the person's account is an admin account.
    pub(super) fn holds(&self, person: &Person, admin: bool) -> bool {
        let operates = admin && person.role == Role::Owner;
        person.role >= self.role && (self.suspended || person.suspension.is_none()) && (!self.operator || operates)
    }
}
