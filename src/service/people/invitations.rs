//! Joining an account by an invitation.

use super::{NewPerson, People, SignedIn, hash};
use tintype_domain::passwords::{InvalidPassword, check_password};
use tintype_domain::person::TokenHash;
use tintype_store::{Acceptance, Accepting, Cause, Invitation, Proof, Result, StoreError};

/// Outcome of joining by an invitation.
#[derive(Debug)]
pub enum JoinOutcome {
    /// The person was added, and a session began.
    Done(SignedIn),
    /// Another person has this name.
    NameTaken,
    /// The invitation does not work any more.
    Gone,
    /// The account has reached its limit of people.
    Full,
    /// The password is not one that may be set.
    Invalid(InvalidPassword),
}

impl People {
    /// Adds someone to the account of an invitation with this hash, and begins a session. The caller limits those who
    /// wait for their turn.
    pub async fn join_by_invitation(
        &self,
        invitation: &Invitation,
        token: TokenHash,
        new: NewPerson,
        agent: &str,
    ) -> Result<JoinOutcome> {
        let NewPerson { name, password, source } = new;
        if let Err(invalid) = check_password(&password, &[&name, &invitation.account]) {
            return Ok(JoinOutcome::Invalid(invalid));
        }
        let _turn = self.sign_ups.acquire().await.map_err(|error| StoreError::Other(Cause::new(error)))?;
        let name = self.known_as(name).await?;
        let password = self.hashing(move || hash(&password)).await??;
        let acceptance = Acceptance { hash: token, name, password: password.clone(), source };
        let person = match self.store.accept_invitation(acceptance).await? {
            Accepting::Done(person) => person,
            Accepting::NameTaken => return Ok(JoinOutcome::NameTaken),
            Accepting::Gone => return Ok(JoinOutcome::Gone),
            Accepting::Full => return Ok(JoinOutcome::Full),
        };
        let signed_in = self.sign_in_as(&person, Proof::Password(password), agent).await?;
        Ok(signed_in.map_or(JoinOutcome::Gone, JoinOutcome::Done))
    }
}
