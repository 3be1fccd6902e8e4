//! Joining an account by an invitation.

use super::{JoinOutcome, NewPerson, People, hash};
use tintype_domain::passwords::check_password;
use tintype_domain::person::TokenHash;
use tintype_store::{Cause, Invitation, InvitationAcceptance, Proof, Result, StoreError};

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
        let acceptance = InvitationAcceptance { hash: token, name, password: password.clone(), source };
        let added = self.store.accept_invitation(acceptance).await?;
        let entered = self.enter(added, Proof::Password(password), agent).await?;
        Ok(entered.unwrap_or(JoinOutcome::InvitationGone))
    }
}
