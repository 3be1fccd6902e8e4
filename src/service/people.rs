//! Signs people in to the studio, and remembers their sessions.

use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use tokio::sync::Semaphore;

use tintype_domain::identity::Identity;
use tintype_domain::names::{self, new_person_name};
use tintype_domain::passwords::{InvalidPassword, MAX_PASSWORD_BYTES, check_password, composed};
use tintype_domain::person::{Person, Session, Token};
use tintype_domain::text::MAX_NAME_CHARS;
use tintype_domain::timestamp::Timestamp;
use tintype_store::{
    Cause, Credential, NewSession, PersonAdded, PersonChange, Proof, Result, SignUp, Store, StoreError,
};

mod invitations;
mod second_factor;

pub use self::second_factor::FirstProof;

/// Lifetime of a sign-in link.
pub const LINK_LIFE: Duration = Duration::from_secs(15 * 60);
/// A session ends when it has not been used for this long.
pub const SESSION_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A session ends this long after the sign-in, however much it is used.
pub const LONGEST_SESSION: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// Interval at which the use of a session is recorded.
const RECORD_EVERY: Duration = Duration::from_secs(60 * 60);
/// Most characters of a browser's name that are kept.
const MAX_AGENT_CHARS: usize = 200;
/// Passwords that are hashed at the same time. Each takes 19 MiB and some 20 ms of a core.
const MAX_HASHES: usize = 2;
/// Most hashes of one address that wait or run, and of all: some 600 ms of work for two cores.
pub const MAX_HASHES_OF_ONE: usize = 2;
/// See [`MAX_HASHES_OF_ONE`].
pub const MAX_HASHES_QUEUED: usize = 64;
/// Most sign-ups of one address that wait or run.
pub const MAX_SIGN_UPS_OF_ONE: usize = 2;
/// Most sign-ups of all addresses that wait or run.
pub const MAX_SIGN_UPS_QUEUED: usize = 16;

/// The name for a person whose provider reports none.
const NAMELESS: &str = "person";

/// Signs people in.
#[derive(Debug)]
pub struct People {
    store: Arc<Store>,
    hashes: Arc<Semaphore>,
    /// Sign-ups go one by one, so that they leave a hash to those who sign in, and so that an address beyond its limit
    /// costs none. Callers limit those that wait.
    sign_ups: Semaphore,
}

/// The present password of a person and a new one.
pub struct Passwords {
    /// The current password; ignored if the person has none.
    pub present: String,
    /// The new one.
    pub new: String,
}

tintype_domain::opaque_debug!(Passwords);

/// Outcome of a change of one's own password.
#[derive(Debug)]
pub enum PasswordChange {
    /// It was changed, and this session began.
    Done(SignedIn),
    /// The present password is wrong.
    Refused,
    /// The new password is not one that may be set.
    Invalid(InvalidPassword),
}

/// A form for signing up, or for joining with an invitation.
pub struct NewPerson {
    /// The name, as returned by [`new_person_name`].
    pub name: String,
    /// The password.
    pub password: String,
    /// The address range that the form came from.
    pub source: String,
}

tintype_domain::opaque_debug!(NewPerson);

/// The terms of open sign-up.
#[derive(Debug, Clone, Copy)]
pub struct SignUpTerms {
    /// Credits of a new account.
    pub credits: i64,
    /// Most attempts from one address range within a day.
    pub per_address: u32,
}

/// Outcome of a sign-up, or of joining by an invitation.
#[derive(Debug)]
pub enum JoinOutcome {
    /// The person was added, and a session began.
    Done(SignedIn),
    /// Another person has this name.
    NameTaken,
    /// The account has reached its limit of people.
    AccountFull,
    /// The sign-ups of the day from this address range are used up.
    TooManyToday,
    /// The invitation does not work any more.
    InvitationGone,
    /// The password is not one that may be set.
    Invalid(InvalidPassword),
}

/// Outcome of a sign-in with a password or a link.
#[derive(Debug)]
pub enum SignIn {
    /// A session has begun.
    Done(SignedIn),
    /// A code of the second factor is missing. Nothing has begun.
    NeedsCode(Person, FirstProof),
    /// Nobody was signed in.
    Refused,
}

/// A session that has just begun, with the secret for its cookie.
#[derive(Debug)]
pub struct SignedIn {
    /// The session.
    pub session: Session,
    /// Its secret.
    pub token: Token,
}

impl People {
    /// Signs in the people of this store.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, hashes: Arc::new(Semaphore::new(MAX_HASHES)), sign_ups: Semaphore::new(1) }
    }

    /// Creates a link that signs a person in once, until the returned time. `None` if there is no such person.
    pub async fn link(&self, person: &Person) -> Result<Option<(Token, Timestamp)>> {
        let (token, expires_at) = (Token::random(), self.store.now().saturating_add(LINK_LIFE));
        let created = self.store.create_link(person.id, token.hash(), expires_at).await?;
        Ok(created.then_some((token, expires_at)))
    }

    /// The person whom a link would sign in.
    pub async fn of_link(&self, link: &Token) -> Result<Option<Person>> {
        self.store.find_link(link.hash()).await
    }

    /// Uses a link up, unless a code is missing too. Refused if it does not exist, was used, or has expired.
    pub async fn sign_in_by_link(&self, link: &Token, agent: &str) -> Result<SignIn> {
        if let Some(person) = self.of_link(link).await?.filter(|person| person.has_second_factor) {
            return Ok(SignIn::NeedsCode(person, FirstProof::Link(link.clone())));
        }
        let (token, new) = self.new_session(agent);
        let session = self.store.sign_in_by_link(link.hash(), None, new).await?;
        Ok(session.map_or(SignIn::Refused, |session| SignIn::Done(SignedIn { session, token })))
    }

    /// Signs a person in with name and password, unless a code is missing too. Rejected if there is no such person, the
    /// password is wrong, or the account is disabled; all of these take the same time.
    pub async fn sign_in(&self, name: &str, password: String, agent: &str) -> Result<SignIn> {
        let candidate = self.store.find_person(name).await?;
        let (person, hash) = candidate.map(|found| (found.person, found.password)).unzip();
        let hash = hash.flatten();
        let known = hash.clone();
        let matches = self.hashing(move || verify(&password, known.as_deref())).await?;
        let Some((person, hash)) = person.zip(hash).filter(|_| matches) else { return Ok(SignIn::Refused) };
        if person.has_second_factor {
            return Ok(SignIn::NeedsCode(person, FirstProof::Password(hash)));
        }
        let signed_in = self.sign_in_as(&person, Proof::Password(hash), agent).await?;
        Ok(signed_in.map_or(SignIn::Refused, SignIn::Done))
    }

    /// Signs in a person who has shown a proof. `None` if the account is disabled, or the proof no longer holds.
    pub async fn sign_in_as(&self, person: &Person, proof: Proof, agent: &str) -> Result<Option<SignedIn>> {
        let (token, new) = self.new_session(agent);
        let session = self.store.begin_session(person.id, Some(proof), new).await?;
        Ok(session.map(|session| SignedIn { session, token }))
    }

    /// Opens an account for a new person, and begins a session. The caller limits the sign-ups that wait for their
    /// turn.
    pub async fn sign_up(&self, new: NewPerson, terms: SignUpTerms, agent: &str) -> Result<JoinOutcome> {
        let NewPerson { name, password, source } = new;
        if let Err(invalid) = check_password(&password, &[&name]) {
            return Ok(JoinOutcome::Invalid(invalid));
        }
        let _turn = self.sign_ups.acquire().await.map_err(|error| StoreError::Other(Cause::new(error)))?;
        if self.store.sign_ups_of(&source).await? >= terms.per_address {
            return Ok(JoinOutcome::TooManyToday);
        }
        let name = self.known_as(name).await?;
        let password = self.hashing(move || hash(&password)).await??;
        let proof = Proof::Password(password.clone());
        self.open_account(name, Credential::Password(password), proof, source, terms, agent).await
    }

    /// Opens an account for someone with an identity that isn't linked to a person yet, and begins a session. The name
    /// is only for display. If a person with the identity was added meanwhile, the authentication request that began at
    /// `began_at` signs in that person.
    pub async fn sign_up_as(
        &self,
        name: &str,
        identity: Identity,
        began_at: Timestamp,
        source: String,
        terms: SignUpTerms,
        agent: &str,
    ) -> Result<JoinOutcome> {
        let name = self.name_of(name).await?;
        let proof = Proof::Identity(identity.clone(), began_at);
        self.open_account(name, Credential::Identity(identity), proof, source, terms, agent).await
    }

    /// A new person's name, if a provider reports this one.
    pub async fn name_of(&self, name: &str) -> Result<String> {
        let short: String = name.chars().filter(|char| !char.is_control()).take(MAX_NAME_CHARS).collect();
        self.known_as(new_person_name(&short).unwrap_or_else(|_| NAMELESS.to_owned())).await
    }

    /// The existing name that a new name looks like, or else the new name. A look-alike counts as taken.
    pub async fn known_as(&self, new: String) -> Result<String> {
        let Some(skeleton) = names::confusable_skeleton(&new) else { return Ok(new) };
        let mut known = self.store.list_people(None).await?.into_iter().map(|person| person.name);
        Ok(known.find(|known| names::is_confusable(known, &skeleton)).unwrap_or(new))
    }

    async fn open_account(
        &self,
        name: String,
        credential: Credential,
        proof: Proof,
        source: String,
        terms: SignUpTerms,
        agent: &str,
    ) -> Result<JoinOutcome> {
        let new = SignUp { name, credential, credits: terms.credits, source, limit: terms.per_address };
        let added = self.store.sign_up(new).await?;
        Ok(self.enter(added, proof, agent).await?.unwrap_or(JoinOutcome::NameTaken))
    }

    /// Begins a session for a person who was added; `None` if the proof no longer holds.
    async fn enter(&self, added: PersonAdded, proof: Proof, agent: &str) -> Result<Option<JoinOutcome>> {
        Ok(Some(match added {
            PersonAdded::Done(person) | PersonAdded::Known(person) => {
                return Ok(self.sign_in_as(&person, proof, agent).await?.map(JoinOutcome::Done));
            }
            PersonAdded::NameTaken => JoinOutcome::NameTaken,
            PersonAdded::NotPossible => JoinOutcome::AccountFull,
            PersonAdded::TooManyToday => JoinOutcome::TooManyToday,
            PersonAdded::InvitationGone => JoinOutcome::InvitationGone,
        }))
    }

    /// Sets the password of a person and ends all sessions of that person.
    ///
    /// # Errors
    /// [`StoreError`]; the inner one if the password is not one that may be set.
    pub async fn set_password(
        &self,
        person: &Person,
        password: String,
    ) -> Result<std::result::Result<Option<Person>, InvalidPassword>> {
        if let Err(invalid) = self.check(person, &password).await? {
            return Ok(Err(invalid));
        }
        let hash = self.hashing(move || hash(&password)).await??;
        Ok(Ok(self.store.change_person(person.id, PersonChange::Password(hash)).await?))
    }

    async fn check(&self, person: &Person, password: &str) -> Result<std::result::Result<(), InvalidPassword>> {
        let account = self.store.find_account(person.account_id.as_str()).await?.map(|account| account.name);
        Ok(check_password(password, &[&person.name, &account.unwrap_or_default()]))
    }

    /// Sets a person's password, recorded by `store`. The person must give the current password if there is one. All of
    /// the person's sessions end, and a new one begins.
    pub async fn change_password(
        &self,
        store: &Store,
        person: &Person,
        passwords: Passwords,
        agent: &str,
    ) -> Result<PasswordChange> {
        let Passwords { present, new } = passwords;
        if let Err(invalid) = self.check(person, &new).await? {
            return Ok(PasswordChange::Invalid(invalid));
        }
        let Some(found) = self.store.find_person(person.id.as_str()).await? else { return Ok(PasswordChange::Refused) };
        if let Some(known) = found.password
            && !self.hashing(move || verify(&present, Some(&known))).await?
        {
            return Ok(PasswordChange::Refused);
        }
        let hash = self.hashing(move || hash(&new)).await??;
        store.change_person(person.id, PersonChange::Password(hash.clone())).await?;
        let (token, new) = self.new_session(agent);
        let session = self.store.begin_session(person.id, Some(Proof::NewPassword(hash)), new).await?;
        Ok(session.map_or(PasswordChange::Refused, |session| PasswordChange::Done(SignedIn { session, token })))
    }

    /// The session of a cookie, if it has not ended. Its end moves with its use, up to [`LONGEST_SESSION`].
    pub async fn session(&self, token: &Token) -> Result<Option<Session>> {
        let Some(session) = self.store.find_session(token.hash()).await? else { return Ok(None) };
        let now = self.store.now();
        if now.since(session.seen_at) >= RECORD_EVERY {
            let last = session.id.timestamp().saturating_add(LONGEST_SESSION);
            self.store.touch_session(session.id, now.saturating_add(SESSION_LIFE).min(last)).await?;
        }
        Ok(Some(session))
    }

    fn new_session(&self, agent: &str) -> (Token, NewSession) {
        let token = Token::random();
        let agent = agent.chars().filter(|char| !char.is_control()).take(MAX_AGENT_CHARS).collect();
        let expires_at = self.store.now().saturating_add(SESSION_LIFE);
        let new = NewSession { hash: token.hash(), expires_at, agent };
        (token, new)
    }

    /// Runs a long computation on a blocking thread, few at a time.
    async fn hashing<T: Send + 'static>(&self, compute: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let permit = self.hashes.clone().acquire_owned().await;
        let permit = permit.map_err(|error| StoreError::Other(Cause::new(error)))?;
        let hashing = tokio::task::spawn_blocking(move || {
            // Until the hash has ended, even if its caller has hung up.
            let _permit = permit;
            compute()
        });
        hashing.await.map_err(|error| StoreError::Other(Cause::new(error)))
    }
}

/// Hashes with Argon2id and the parameters of the crate: 19 MiB, two passes, one lane, as OWASP's Password Storage
/// Cheat Sheet recommends.
fn hash(password: &str) -> Result<String> {
    let hash = Argon2::default().hash_password(composed(password).as_bytes());
    hash.map(|hash| hash.to_string()).map_err(|error| StoreError::Other(Cause::new(error.to_string())))
}

/// Whether a password matches a hash. Without a hash it is hashed all the same, so that the time does not reveal
/// whether a person exists.
fn verify(password: &str, hash: Option<&str>) -> bool {
    let password = composed(password);
    if password.len() > MAX_PASSWORD_BYTES {
        return false;
    }
    match hash.map(PasswordHash::new) {
        Some(Ok(hash)) => Argon2::default().verify_password(password.as_bytes(), &hash).is_ok(),
        Some(Err(_)) | None => {
            drop(Argon2::default().hash_password(password.as_bytes()));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_matches_its_own_hash_alone() {
        let stored = hash("correct horse battery").expect("a hash");
        assert!(stored.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{stored}");
        assert!(verify("correct horse battery", Some(&stored)));
        let accented = hash("zo\u{eb} and the gulls").expect("a hash");
        assert!(verify("zoe\u{308} and the gulls", Some(&accented)));
        assert!(!verify("correct horse batterz", Some(&stored)));
        assert!(!verify("correct horse battery", None));
        assert!(!verify("correct horse battery", Some("not a hash")));
        assert!(!verify(&"x".repeat(MAX_PASSWORD_BYTES + 1), Some(&stored)));
        assert_ne!(hash("correct horse battery").expect("a hash"), stored);
    }
}
