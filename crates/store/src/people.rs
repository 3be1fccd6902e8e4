//! People, and the links and sessions that sign them in.

use async_trait::async_trait;

use super::Result;
use tintype_domain::identity::Identity;
use tintype_domain::model::Id;
use tintype_domain::person::{Person, Role, Session, TokenHash};
use tintype_domain::second_factor::{Factor, FactorCode, NewFactor};
use tintype_domain::text::MAX_NAME_CHARS;
use tintype_system::clock::Timestamp;

/// The note of the ledger entry for the first credits of somebody who signed up.
pub(super) const SIGN_UP_NOTE: &str = "sign-up";

/// Outcome of adding a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersonCreation {
    /// The person was added.
    Created(Person),
    /// Another person has this name, or this text as its id.
    NameTaken,
    /// The account does not exist, is deleted, or has as many people as it may have.
    NotPossible,
}

/// A change to a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersonChange {
    /// Gives the person another role.
    Role(Role),
    /// Sets the Argon2id hash of a password, in PHC format, and ends all sessions, sign-in links and journeys to a
    /// provider of the person.
    Password(String),
    /// Lifts a suspension and clears the strikes.
    Lift,
    /// Removes the password, and ends all sessions, sign-in links and journeys to a provider of the person.
    ShutOut,
}

impl PersonChange {
    /// The password that the person has from now on.
    pub(super) fn password(&self) -> Option<&str> {
        if let Self::Password(hash) = self { Some(hash) } else { None }
    }
}

/// A session to begin.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The hash of its token.
    pub hash: TokenHash,
    /// Time of its end.
    pub expires_at: Timestamp,
    /// The browser, as it names itself.
    pub agent: String,
}

/// The credential used to sign in. It may be replaced while the password is hashed, the code is typed or the provider
/// answers, so it is compared in the transaction that begins the session.
#[derive(Clone, PartialEq, Eq)]
pub enum Proof {
    /// The password with this hash, of a person without a second factor.
    Password(String),
    /// The password with this hash, and a code of the second factor, which is used up.
    PasswordAndCode(String, FactorCode),
    /// The password with this hash, which the person has just set in another session.
    NewPassword(String),
    /// An identity at a provider, which is responsible for second factors; the sign-in started at this time. It is
    /// rejected if the password was changed or all sessions were ended since then.
    Identity(Identity, Timestamp),
}

impl Proof {
    /// The hash of the password, and the identity with its time.
    pub(super) fn parts(&self) -> (Option<&str>, Option<(&Identity, Timestamp)>) {
        match self {
            Self::Password(hash) | Self::PasswordAndCode(hash, _) | Self::NewPassword(hash) => (Some(hash), None),
            Self::Identity(identity, began_at) => (None, Some((identity, *began_at))),
        }
    }

    /// The code to use up.
    pub(super) fn code(&self) -> Option<&FactorCode> {
        if let Self::PasswordAndCode(_, code) = self { Some(code) } else { None }
    }

    /// Whether it is enough only for a person without a second factor.
    pub(super) fn needs_no_factor(&self) -> bool {
        matches!(self, Self::Password(_))
    }
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Proof(…)")
    }
}

/// A person who is about to sign in with a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The person.
    pub person: Person,
    /// The Argon2id hash of the password in PHC format, if there is one.
    pub password: Option<String>,
}

/// The proof by which somebody who opens an account signs in later.
#[derive(Clone)]
pub enum Credential {
    /// The Argon2id hash of a password in PHC format.
    Password(String),
    /// An identity at a provider, which has no person yet. The id of the person is added to a name that is taken,
    /// because the person does not sign in by it.
    Identity(Identity),
}

/// Somebody who opens an account in the studio.
#[derive(Clone)]
pub struct SignUp {
    /// The name of the person, and of the account unless another account has it.
    pub name: String,
    /// The proof by which the person signs in later.
    pub credential: Credential,
    /// Credits to start with.
    pub credits: i64,
    /// The address range from which the person signs up.
    pub source: String,
    /// Most attempts from there within a day.
    pub limit: u32,
}

/// Somebody with an identity at a provider who joins an account by a rule.
#[derive(Clone)]
pub struct Newcomer {
    /// The account.
    pub account_id: Id,
    /// The name. The id of the person is added if it is taken, because the person does not sign in by it.
    pub name: String,
    /// The role.
    pub role: Role,
    /// The identity, which has no person yet.
    pub identity: Identity,
    /// The address range from which the person joins.
    pub source: String,
}

impl Newcomer {
    pub(super) fn name_with(&self, id: Id) -> String {
        with_id(&self.name, id)
    }
}

impl std::fmt::Debug for Newcomer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Newcomer").field("account_id", &self.account_id).finish_non_exhaustive()
    }
}

/// Outcome of joining an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joining {
    /// This person was added.
    Done(Person),
    /// This person has the identity, perhaps since a moment ago. Nothing changes.
    Known(Person),
    /// The account does not exist, is deleted, or has as many people as it may have.
    NotPossible,
}

impl Credential {
    /// The password or the identity.
    pub(super) fn parts(&self) -> (Option<&str>, Option<&Identity>) {
        match self {
            Self::Password(password) => (Some(password), None),
            Self::Identity(identity) => (None, Some(identity)),
        }
    }
}

impl SignUp {
    /// The name for a person whose own name is taken.
    pub(super) fn name_with(&self, id: Id) -> String {
        with_id(&self.name, id)
    }
}

fn with_id(name: &str, id: Id) -> String {
    let id = id.as_str().to_lowercase();
    let rest = MAX_NAME_CHARS - id.len() - 1;
    format!("{}-{id}", name.chars().take(rest).collect::<String>())
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.parts().0.is_some() { "Password(…)" } else { "Identity(…)" })
    }
}

impl std::fmt::Debug for SignUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignUp").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Outcome of a sign-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SigningUp {
    /// The account exists, and this person owns it.
    Done(Person),
    /// This person has the identity, perhaps since a moment ago. Nothing changes, and the attempt does not count.
    Known(Person),
    /// Another person has this name, or this text as its id. The attempt counts.
    NameTaken,
    /// The attempts of the day are used up.
    TooMany,
}

/// People who may use the studio. A session counts only while its account is enabled.
#[async_trait]
pub trait People: std::fmt::Debug + Send + Sync + 'static {
    /// Adds a person to an account.
    async fn create_person(&self, account_id: Id, name: &str, role: Role) -> Result<PersonCreation>;

    /// Creates a non-admin account with its owner and its first credits, and counts the attempt. The audit log names the
    /// person as the one who did it.
    async fn sign_up(&self, new: SignUp) -> Result<SigningUp>;

    /// Adds a person with an identity to an account. The audit log names the person as the one who did it.
    async fn join(&self, new: Newcomer) -> Result<Joining>;

    /// Attempts to sign up from a source today, in UTC.
    async fn sign_ups_of(&self, source: &str) -> Result<u32>;

    /// Deletes the counts of the attempts of earlier days. Returns the number of counts.
    async fn delete_sign_ups(&self) -> Result<usize>;

    /// Finds a person by name or id, with the hash of the password.
    async fn find_person(&self, name_or_id: &str) -> Result<Option<Candidate>>;

    /// The people of one account, or of all, oldest first.
    async fn list_people(&self, account_id: Option<Id>) -> Result<Vec<Person>>;

    /// Changes a person and returns the new state; `None` if there is no such person.
    async fn change_person(&self, id: Id, change: PersonChange) -> Result<Option<Person>>;

    /// Removes a person with all sessions and links. Returns whether there was one.
    async fn remove_person(&self, id: Id) -> Result<bool>;

    /// Adds a link that signs a person in once, until `expires_at`; `false` if there is no such person.
    async fn create_link(&self, person_id: Id, hash: TokenHash, expires_at: Timestamp) -> Result<bool>;

    /// The person that a link would sign in now.
    async fn find_link(&self, hash: TokenHash) -> Result<Option<Person>>;

    /// Uses a link up and begins a session of its person. `None` if the link does not exist, was used or has expired,
    /// the account is disabled, or the person has a second factor whose code is not this one. The code is used up too.
    async fn sign_in_by_link(
        &self,
        link: TokenHash,
        code: Option<FactorCode>,
        session: NewSession,
    ) -> Result<Option<Session>>;

    /// Begins a session of a person. `None` if there is no such person, the account is disabled, or `proof` is no
    /// longer that of the person; a caller that knows the person otherwise gives none.
    async fn begin_session(&self, person_id: Id, proof: Option<Proof>, session: NewSession) -> Result<Option<Session>>;

    /// The second factor of a person; `None` if the person has none.
    async fn find_factor(&self, person_id: Id) -> Result<Option<Factor>>;

    /// Turns on the second factor of a person who has none, and ends all of the person's sessions but the one with the
    /// id `kept`, and all sign-in links. Returns whether it is on now; `false` if the person has one already.
    async fn add_factor(&self, person_id: Id, new: NewFactor, kept: Id) -> Result<bool>;

    /// Removes the second factor of a person with its recovery codes, and ends sessions and sign-in links. Returns
    /// whether there was one.
    async fn remove_factor(&self, person_id: Id, removal: FactorRemoval) -> Result<bool>;

    /// Replaces all recovery codes of a person. Returns whether the person has a second factor, without which nothing
    /// changes.
    async fn replace_recovery_codes(&self, person_id: Id, codes: Vec<TokenHash>) -> Result<bool>;

    /// Uses a code up. Returns whether it worked: it does once, and only while it belongs to the second factor of the
    /// person.
    async fn use_code(&self, person_id: Id, code: FactorCode) -> Result<bool>;

    /// The session with this hash, unless it has ended or its account is disabled.
    async fn find_session(&self, hash: TokenHash) -> Result<Option<Session>>;

    /// Those of these sessions that [`People::find_session`] would find, in any order.
    async fn live_sessions(&self, hashes: &[TokenHash]) -> Result<Vec<TokenHash>>;

    /// The sessions of a person that have not ended, the latest used first.
    async fn list_sessions(&self, person_id: Id) -> Result<Vec<Session>>;

    /// Records that a session was used now, and moves its end to `expires_at` if that is later.
    async fn touch_session(&self, id: Id, expires_at: Timestamp) -> Result<()>;

    /// Ends one session of a person; or all but one, with the person's sign-in links and journeys to a provider.
    /// Returns the number of sessions.
    async fn end_sessions(&self, person_id: Id, which: EndSessions) -> Result<usize>;

    /// Deletes links, invitations and sessions of everybody; with all of them, journeys to a provider end, too. Returns
    /// their number.
    async fn delete_sessions(&self, which: DeleteSessions) -> Result<usize>;
}

/// The sessions to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndSessions {
    /// The session with this id.
    One(Id),
    /// All sessions except the one with this id.
    AllExcept(Id),
}

/// The way in which a person loses a second factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactorRemoval {
    /// The person turns it off. The session with this id goes on.
    Off(Id),
    /// The operator removes it for a person who has lost the app. All sessions end.
    Reset,
}

impl FactorRemoval {
    /// The session that goes on.
    pub(super) fn kept(self) -> Option<Id> {
        if let Self::Off(kept) = self { Some(kept) } else { None }
    }
}

/// The links, invitations and sessions to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteSessions {
    /// Those that have expired.
    Expired,
    /// All: a restored database would otherwise revive those that were ended or used up after the backup.
    All,
}
