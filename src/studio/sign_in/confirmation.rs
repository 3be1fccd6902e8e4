//! Asks people once more who they are, before they do something that cannot be undone: a session may be stolen, or left open.

use std::time::Duration;

use super::{Address, delay_failure, take_slot};
use crate::studio::error::PageError;
use crate::studio::session::Visitor;
use tintype_domain::person::Person;
use tintype_domain::second_factor::TypedCode;

/// The field of a form that holds the password or a code.
pub(in crate::studio) const CONFIRMATION: &str = "confirmation";
/// A person without a password and without a second factor must have signed in so short a time ago.
const RECENT: Duration = Duration::from_secs(10 * 60);

impl Visitor {
    /// Rejects a person who does not show the password or a code of the second factor. A person with neither, who signs
    /// in at a provider or by links, must have signed in just now.
    pub(in crate::studio) async fn confirm(&self, shown: &str) -> Result<(), PageError> {
        let Person { has_password, has_second_factor, .. } = self.session.person;
        let is_right = match TypedCode::parse(shown) {
            _ if self.is_late() => return Err(PageError::forbidden("confirm-late")),
            _ if !has_password && !has_second_factor => return Ok(()),
            Some(TypedCode::App(code)) if has_second_factor => self.shows_code(&code).await?,
            _ if has_password => self.shows_password(shown).await?,
            _ => false,
        };
        if !is_right {
            self.fail().await?;
            return Err(PageError::forbidden("confirm-wrong"));
        }
        Ok(())
    }

    /// Whether the person has neither a password nor a second factor, and did not sign in just now.
    pub(in crate::studio) fn is_late(&self) -> bool {
        let Person { has_password, has_second_factor, .. } = self.session.person;
        let is_recent = self.studio.shared.store.now().since(self.session.id.timestamp()) <= RECENT;
        !has_password && !has_second_factor && !is_recent
    }

    /// Whether this is the person's password. Attempts are limited before anything is hashed.
    pub(in crate::studio) async fn shows_password(&self, password: &str) -> Result<bool, PageError> {
        let (studio, person) = (&self.studio, &self.session.person);
        // No name begins with NUL, so attempts to sign in by this name do not count here.
        if !studio.sign_in_attempts.allow(&format!("\0{}", person.id), None) {
            return Err(self.too_often());
        }
        let slot = take_slot(&studio.hashes, &self.context)?;
        let is_right = studio.people.is_password_of(person, password.to_owned()).await?;
        drop(slot);
        Ok(is_right)
    }

    /// Whether this is a code of the person's second factor, which is used up then. Attempts are limited.
    pub(in crate::studio) async fn shows_code(&self, typed: &str) -> Result<bool, PageError> {
        let (codes, person) = (&self.studio.codes, self.person_id());
        if !codes.allow(person.as_str(), None) {
            return Err(self.too_often());
        }
        let is_right = self.studio.people.use_code(&self.store(), person, typed).await?;
        if is_right {
            codes.forget(person.as_str());
        }
        Ok(is_right)
    }

    fn too_often(&self) -> PageError {
        tracing::warn!(person = %self.person_id(), "refused a password or a code: too many attempts");
        PageError::busy()
    }

    /// Logs a wrong password or code, and waits like after a failed sign-in.
    pub(in crate::studio) async fn fail(&self) -> Result<(), PageError> {
        let address = Address(self.context.source);
        tracing::warn!(name = ?self.name(), %address, "a confirmation failed: wrong password or code");
        delay_failure(&self.studio, &self.context).await
    }
}
