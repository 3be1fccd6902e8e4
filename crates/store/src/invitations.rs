//! Invitations: an owner makes a link, by which several people join the account.

use async_trait::async_trait;

use super::Result;
use tintype_domain::model::Id;
use tintype_domain::person::{Person, Role, TokenHash};
use tintype_system::clock::Timestamp;

/// An invitation to make.
#[derive(Debug, Clone, Copy)]
pub struct NewInvitation {
    /// The account of its maker, which people join.
    pub account_id: Id,
    /// Who makes it.
    pub person_id: Id,
    /// The hash of its token.
    pub hash: TokenHash,
    /// The role that people join with.
    pub role: Role,
    /// How many people may join: 1 to 100.
    pub places: i64,
    /// When it stops working.
    pub expires_at: Timestamp,
}

/// An invitation that has not expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invitation {
    /// The invitation.
    pub id: Id,
    /// The account that people join.
    pub account_id: Id,
    /// Its name.
    pub account: String,
    /// The name of its maker.
    pub maker: String,
    /// The role that people join with.
    pub role: Role,
    /// How many people may still join.
    pub places: i64,
    /// When it stops working.
    pub expires_at: Timestamp,
    /// Whether it works now: its maker is an owner who is not suspended, and the account is enabled.
    pub works: bool,
}

/// Somebody who accepts an invitation.
#[derive(Clone)]
pub struct Acceptance {
    /// The hash of its token.
    pub hash: TokenHash,
    /// The name of the new person.
    pub name: String,
    /// The Argon2id hash of the password in PHC format.
    pub password: String,
    /// The address range from which the person joins.
    pub source: String,
}

impl std::fmt::Debug for Acceptance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptance").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Outcome of accepting an invitation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepting {
    /// This person was added, and took a place.
    Done(Person),
    /// Another person has this name, or this text as its id. No place was taken.
    NameTaken,
    /// No such invitation works, perhaps since a moment ago.
    Gone,
    /// The account has as many people as it may have. No place was taken.
    Full,
}

/// Invitations. One works until it expires, its places are taken, or it is revoked; and while its maker is an owner who
/// is not suspended, and its account is enabled. The sweep of sessions deletes those that have expired.
#[async_trait]
pub trait Invitations: std::fmt::Debug + Send + Sync + 'static {
    /// Makes an invitation; `None` if the account has `most` that have not expired, or the maker is not one of its
    /// people. The audit log records it.
    async fn create_invitation(&self, new: NewInvitation, most: u32) -> Result<Option<Id>>;

    /// The invitation with a token, if it works.
    async fn find_invitation(&self, hash: TokenHash) -> Result<Option<Invitation>>;

    /// The invitations of an account that have not expired, newest first.
    async fn list_invitations(&self, account_id: Id) -> Result<Vec<Invitation>>;

    /// Revokes an invitation of an account. The audit log records it. Returns whether there was one.
    async fn revoke_invitation(&self, account_id: Id, id: Id) -> Result<bool>;

    /// Adds a person to the account of an invitation, and takes one of its places. The audit log names the person as
    /// the one who did it.
    async fn accept_invitation(&self, new: Acceptance) -> Result<Accepting>;
}
