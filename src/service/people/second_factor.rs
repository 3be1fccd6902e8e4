//! Second factors: turning them on and off, and the codes that sign-ins and confirmations need.

use super::{People, SignedIn, verify};
use tintype_domain::model::Id;
use tintype_domain::person::{Person, Token};
use tintype_domain::second_factor::{FactorCode, FactorSecret, NewFactor, RecoveryCodes, TypedCode};
use tintype_store::{Proof, Result, Store};

/// The proof that someone who types a code has shown before.
#[derive(Clone)]
pub enum FirstProof {
    /// The password with this hash.
    Password(String),
    /// A sign-in link.
    Link(Token),
}

tintype_domain::opaque_debug!(FirstProof);

impl People {
    /// Whether this is the password of a person.
    pub async fn is_password_of(&self, person: &Person, password: String) -> Result<bool> {
        let found = self.store.find_person(person.id.as_str()).await?;
        let hash = found.and_then(|found| found.password);
        self.hashing(move || verify(&password, hash.as_deref())).await
    }

    /// Signs in a person who has shown one proof and types a code. `None` if the code is wrong or was used, or the proof no
    /// longer holds.
    pub async fn sign_in_with_code(
        &self,
        person: &Person,
        first: FirstProof,
        typed: &str,
        agent: &str,
    ) -> Result<Option<SignedIn>> {
        let Some(code) = self.right_code(person.id, typed).await? else { return Ok(None) };
        match first {
            FirstProof::Password(hash) => self.sign_in_as(person, Proof::PasswordAndCode(hash, code), agent).await,
            FirstProof::Link(link) => {
                let (token, new) = self.new_session(agent);
                let session = self.store.sign_in_by_link(link.hash(), Some(code), new).await?;
                Ok(session.map(|session| SignedIn { session, token }))
            }
        }
    }

    /// Uses up the code that a person types, for `store`. Returns whether it is right.
    pub async fn use_code(&self, store: &Store, person: Id, typed: &str) -> Result<bool> {
        match self.right_code(person, typed).await? {
            Some(code) => store.use_code(person, code).await,
            None => Ok(false),
        }
    }

    /// The typed code, if it is right now. Only the database knows whether it was used meanwhile.
    async fn right_code(&self, person: Id, typed: &str) -> Result<Option<FactorCode>> {
        let Some(factor) = self.store.find_factor(person).await? else { return Ok(None) };
        Ok(match TypedCode::parse(typed) {
            Some(TypedCode::App(code)) => {
                let step = factor.secret.step_of(&code, self.store.now()).filter(|step| *step > factor.step);
                step.map(|step| FactorCode::Step(factor.secret, step))
            }
            Some(TypedCode::Recovery(hash)) => Some(FactorCode::Recovery(hash)),
            None => None,
        })
    }

    /// Turns on a second factor of a person, in the session with the id `kept`, if `code` is one of its secret; recorded by
    /// `store`. `None` if it is not, or the person has a second factor already.
    pub async fn add_factor(
        &self,
        store: &Store,
        (person, kept): (Id, Id),
        secret: FactorSecret,
        code: &str,
    ) -> Result<Option<RecoveryCodes>> {
        let Some(TypedCode::App(code)) = TypedCode::parse(code) else { return Ok(None) };
        let Some(step) = secret.step_of(&code, self.store.now()) else { return Ok(None) };
        let codes = RecoveryCodes::random();
        let new = NewFactor { secret, step, recovery: codes.hashes() };
        Ok(store.add_factor(person, new, kept).await?.then_some(codes))
    }

    /// Gives a person new recovery codes; recorded by `store`. `None` if the person has no second factor.
    pub async fn new_recovery_codes(&self, store: &Store, person: Id) -> Result<Option<RecoveryCodes>> {
        let codes = RecoveryCodes::random();
        Ok(store.replace_recovery_codes(person, codes.hashes()).await?.then_some(codes))
    }
}
