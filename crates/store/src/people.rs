//! People, and the links and sessions that sign them in.

use std::time::Duration;

use super::driver::{Dialect, List, Parameter, Row, Store, Transaction, from_row, of_account};
use super::{Action, AuditedChange, Result, audit_log, ledger, second_factor};
use crate::failure::DbResult;
use tintype_domain::identity::Identity;
use tintype_domain::key::Suspension;
use tintype_domain::model::Id;
use tintype_domain::person::{MAX_PEOPLE, Person, Role, Session, TokenHash};
use tintype_domain::second_factor::FactorCode;
use tintype_domain::text::MAX_NAME_CHARS;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// The note of the ledger entry for the first credits of someone who signed up.
pub(super) const SIGN_UP_NOTE: &str = "sign-up";

/// Outcome of adding a person, by others or by a sign-up, an invitation or a rule. Unless it is `Done`, nothing changes,
/// except that a sign-up counts for its address if the name is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersonAdded {
    /// The person was added.
    Done(Person),
    /// This person has the identity, perhaps since a moment ago.
    Known(Person),
    /// Another person has this name, or this text as its id.
    NameTaken,
    /// The account doesn't exist, is deleted, or has reached its limit of people.
    NotPossible,
    /// The sign-ups of the day are used up.
    TooManyToday,
    /// No such invitation works, perhaps since a moment ago.
    InvitationGone,
}

/// A change to a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersonChange {
    /// Gives the person another role.
    Role(Role),
    /// Gives the person another role, unless that leaves the account without an owner.
    RoleByRule(Role),
    /// Sets the Argon2id hash of a password, in PHC format, and ends all sessions, sign-in links and authentication
    /// requests to a provider of the person.
    Password(String),
    /// Lifts a suspension and clears the strikes.
    Lift,
    /// Removes the password, and ends all sessions, sign-in links and authentication requests to a provider of the
    /// person.
    RevokeAccess,
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

tintype_domain::opaque_debug!(Proof);

/// A person who is about to sign in with a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The person.
    pub person: Person,
    /// The Argon2id hash of the password in PHC format, if there is one.
    pub password: Option<String>,
}

/// How someone who opens an account signs in later.
#[derive(Clone)]
pub enum Credential {
    /// The Argon2id hash of a password in PHC format.
    Password(String),
    /// An identity at a provider, without a person yet. If the name is taken, the person's id is added to it, because
    /// the person does not sign in by name.
    Identity(Identity),
}

tintype_domain::opaque_debug!(Credential);

/// Someone who opens an account in the studio.
#[derive(Clone)]
pub struct SignUp {
    /// The name of the person, and of the account unless another account has it.
    pub name: String,
    /// How the person signs in later.
    pub credential: Credential,
    /// Credits to start with.
    pub credits: i64,
    /// The address range from which the person signs up.
    pub source: String,
    /// Most attempts from there within a day.
    pub limit: u32,
}

tintype_domain::opaque_debug!(SignUp);

/// Someone with an identity at a provider who joins an account by a rule.
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

tintype_domain::opaque_debug!(Newcomer);

/// The name for a person whose preferred name is taken.
pub(super) fn with_id(name: &str, id: Id) -> String {
    let id = id.as_str().to_lowercase();
    let rest = MAX_NAME_CHARS - id.len() - 1;
    format!("{}-{id}", name.chars().take(rest).collect::<String>())
}

/// The links, invitations and sessions to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteSessions {
    /// Expired ones.
    Expired,
    /// All: a restored database would otherwise revive those that were ended or used up after the backup.
    All,
}

/// The columns of a [`Person`], and the password.
pub(crate) const PERSON: &str = "people.id, people.account_id, people.name, people.role, people.password,
    people.factor_step, people.suspended_at, people.suspended_for";

/// People in enabled accounts.
const ENABLED: &str = "people JOIN accounts a ON a.id = people.account_id AND a.disabled_at IS NULL";

from_row! { pub(crate) fn person(row) -> Person {
    id, account_id, name, role, has_password: row.get::<Option<String>>("password")?.is_some(),
    has_second_factor: row.get::<Option<i64>>("factor_step")?.is_some(), suspension: suspension(row)?,
    created_at: row.get::<Id>("id")?.timestamp(),
} }

from_row! { fn candidate(row) -> Candidate { person: person(row)?, password } }

/// The suspension of a key or a person.
pub(crate) fn suspension(row: &Row) -> Result<Option<Suspension>> {
    let Some(at) = row.get("suspended_at")? else { return Ok(None) };
    Ok(Some(Suspension { at, reason: row.get("suspended_for")? }))
}

/// Finds sessions `s` of people in enabled accounts `a`.
pub(crate) fn sessions(condition: &str) -> String {
    format!(
        "SELECT {PERSON}, a.admin, s.id AS session_id, s.seen_at, s.expires_at, s.agent, s.by_provider
         FROM {ENABLED} JOIN sessions s ON s.person_id = people.id WHERE {condition}"
    )
}

from_row! { fn session(row) -> Session {
    id: row.get("session_id")?, person: person(row)?, seen_at, expires_at, agent, by_provider,
} }

/// The condition for a session with the hash $1 that has not ended at the time $2.
pub(crate) const LIVE: &str = "s.hash = $1 AND s.expires_at > $2";

async fn begun_session(tx: &Transaction<'_>, new: &NewSession) -> DbResult<Option<Session>> {
    tx.find(&sessions(LIVE), &[&new.hash, &tx.now()], session).await
}

/// Adds a person to an account, with the hash of a password if there is one. The unique name decides between concurrent
/// additions.
pub(crate) async fn create(
    tx: &Transaction<'_>,
    id: Id,
    account_id: Id,
    name: &str,
    role: Role,
    password: Option<&str>,
) -> DbResult<PersonAdded> {
    // People added at the same time wait for each other, and the next statement counts them.
    tx.lock("SELECT 1 FROM accounts WHERE id = $1", &[&account_id]).await?;
    let sql = "INSERT INTO people (id, account_id, name, role, password)
        SELECT $1, id, $3, $4, $6 FROM accounts WHERE id = $2 AND deleted_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM people WHERE id = $3)
        AND (SELECT count(*) FROM people WHERE account_id = $2) < $5
        ON CONFLICT DO NOTHING";
    if tx.execute(sql, &[&id, &account_id, &name, &role, &MAX_PEOPLE, &password]).await? == 0 {
        let taken = tx.query_opt("SELECT 1 FROM people WHERE name = $1 OR id = $1", &[&name]).await?;
        return Ok(taken.map_or(PersonAdded::NotPossible, |_| PersonAdded::NameTaken));
    }
    Ok(PersonAdded::Done(Person {
        id,
        account_id,
        name: name.to_owned(),
        role,
        has_password: password.is_some(),
        has_second_factor: false,
        suspension: None,
        created_at: id.timestamp(),
    }))
}

/// Locks a person until the commit; returns whether there is one.
pub(crate) async fn lock(tx: &Transaction<'_>, id: Id) -> DbResult<bool> {
    Ok(tx.lock("SELECT 1 FROM people WHERE id = $1", &[&id]).await?.is_some())
}

pub(crate) async fn find(tx: &Transaction<'_>, id: Id) -> DbResult<Option<Person>> {
    tx.find(&format!("SELECT {PERSON} FROM people WHERE id = $1"), &[&id], person).await
}

async fn change(tx: &Transaction<'_>, id: Id, change: &PersonChange) -> DbResult<Option<Person>> {
    lock(tx, id).await?;
    let Some(before) = find(tx, id).await? else { return Ok(None) };
    let mut has_strikes = false;
    let changed = match change {
        PersonChange::Role(role) => {
            let sql = format!("UPDATE people SET role = $2 WHERE id = $1 RETURNING {PERSON}");
            tx.find(&sql, &[&id, &role], person).await?
        }
        PersonChange::RoleByRule(role) => {
            // Of two owners who lose the role at the same time, one waits here, and then sees that the other has.
            ledger::lock_any(tx, before.account_id).await?;
            let sql = format!(
                "UPDATE people SET role = $2 WHERE id = $1 AND ($2 = 'owner' OR role <> 'owner' OR EXISTS (
                     SELECT 1 FROM people o WHERE o.account_id = people.account_id AND o.role = 'owner' AND o.id <> $1))
                 RETURNING {PERSON}"
            );
            tx.find(&sql, &[&id, &role], person).await?
        }
        PersonChange::Password(_) | PersonChange::RevokeAccess => {
            let password = if let PersonChange::Password(hash) = change { Some(hash) } else { None };
            let sql =
                format!("UPDATE people SET password = $2, sessions_ended_at = $3 WHERE id = $1 RETURNING {PERSON}");
            let changed = tx.find(&sql, &[&id, &password, &tx.now()], person).await?;
            second_factor::end_sessions(tx, id, None).await?;
            if matches!(change, PersonChange::RevokeAccess) {
                tx.execute("DELETE FROM invitations WHERE person_id = $1", &[&id]).await?;
            }
            changed
        }
        PersonChange::Lift => {
            let sql =
                format!("UPDATE people SET suspended_at = NULL, suspended_for = NULL WHERE id = $1 RETURNING {PERSON}");
            let changed = tx.find(&sql, &[&id], person).await?;
            // After the lock on the person, so that no concurrent strike is missed.
            has_strikes = tx.execute("DELETE FROM person_strikes WHERE person_id = $1", &[&id]).await? > 0;
            changed
        }
    };
    // The person does not show every password and session.
    let ends_sessions = matches!(change, PersonChange::Password(_) | PersonChange::RevokeAccess);
    if let Some(person) = &changed
        && (ends_sessions || has_strikes || before != *person)
    {
        let of = |action| AuditedChange::of_person(action, person);
        let audited = match change {
            PersonChange::Role(role) | PersonChange::RoleByRule(role) => of(Action::ChangeRole).with(role),
            PersonChange::Password(_) => of(Action::SetPassword),
            PersonChange::Lift => of(Action::Lift),
            PersonChange::RevokeAccess => of(Action::RevokeAccess),
        };
        tx.audit(audited).await?;
    }
    Ok(changed)
}

/// How much clocks of one installation may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// People who may use the studio. A session counts only while its account is enabled.
impl Store {
    /// Adds a person to an account.
    pub async fn create_person(&self, account_id: Id, name: &str, role: Role) -> Result<PersonAdded> {
        let name = name.to_owned();
        self.write(Effect::ChangePerson, async move |tx| {
            let added = create(tx, tx.new_id(), account_id, &name, role, None).await?;
            if let PersonAdded::Done(person) = &added {
                tx.audit(AuditedChange::of_person(Action::AddPerson, person).with(role)).await?;
            }
            Ok(added)
        })
        .await
    }

    /// Finds a person by name or id, with the hash of the password.
    pub async fn find_person(&self, name_or_id: &str) -> Result<Option<Candidate>> {
        let sql = format!("SELECT {PERSON} FROM people WHERE name = $1 OR id = $1");
        self.driver.find(&sql, &[&name_or_id], candidate).await
    }

    /// The people of one account, or of all, oldest first.
    pub async fn list_people(&self, account_id: Option<Id>) -> Result<Vec<Person>> {
        let sql = format!("SELECT {PERSON} FROM people WHERE {} ORDER BY id", of_account(account_id));
        self.driver.list(&sql, &[&account_id], person).await
    }

    /// Changes a person and returns the new state; `None` if there is no such person, or the change is not made.
    pub async fn change_person(&self, id: Id, new: PersonChange) -> Result<Option<Person>> {
        self.write(Effect::ChangePerson, async move |tx| change(tx, id, &new).await).await
    }

    /// Removes a person with all sessions and links. Returns whether there was one.
    pub async fn remove_person(&self, id: Id) -> Result<bool> {
        self.write(Effect::ChangePerson, async move |tx| {
            tx.execute("DELETE FROM calls WHERE key_id = $1", &[&id]).await?;
            let sql = format!("DELETE FROM people WHERE id = $1 RETURNING {PERSON}");
            audit_log::of_person(tx, Action::RemovePerson, tx.find(&sql, &[&id], person).await?).await
        })
        .await
    }

    /// Adds a link that signs a person in once, until `expires_at`; `false` if there is no such person.
    pub async fn create_link(&self, person_id: Id, hash: TokenHash, expires_at: Timestamp) -> Result<bool> {
        self.write(Effect::SignIn, async move |tx| {
            let sql =
                "INSERT INTO sign_in_links (hash, person_id, expires_at) SELECT $1, id, $3 FROM people WHERE id = $2";
            tx.execute(sql, &[&hash, &person_id, &expires_at]).await?;
            audit_log::of_person(tx, Action::MakeLink, find(tx, person_id).await?).await
        })
        .await
    }

    /// The person that a link would sign in now.
    pub async fn find_link(&self, hash: TokenHash) -> Result<Option<Person>> {
        let sql = format!(
            "SELECT {PERSON} FROM {ENABLED} JOIN sign_in_links l ON l.person_id = people.id
             WHERE l.hash = $1 AND l.expires_at > $2"
        );
        self.driver.find(&sql, &[&hash, &self.driver.now()], person).await
    }

    /// Uses up a link and begins a session for its person. `None` if the link doesn't exist, was used or has expired,
    /// the account is disabled, or the person has a second factor and this isn't its code. The code is used up too.
    pub async fn sign_in_by_link(
        &self,
        link: TokenHash,
        code: Option<FactorCode>,
        new: NewSession,
    ) -> Result<Option<Session>> {
        self.write(Effect::SignIn, async move |tx| {
            let (link, now) = (&link[..], tx.now());
            if let Some(code) = &code {
                let sql = "SELECT person_id FROM sign_in_links WHERE hash = $1 AND expires_at > $2";
                let found = tx.find(sql, &[&link, &now], |row| row.get("person_id")).await?;
                let Some(person_id) = found else { return Ok(None) };
                if !second_factor::use_code(tx, person_id, code).await? {
                    return Ok(None);
                }
            }
            // Of two processes that use the same link, one deletes it.
            let sql = format!(
                "DELETE FROM sign_in_links WHERE hash = $1 AND expires_at > $2
                 AND person_id IN (SELECT people.id FROM {ENABLED} WHERE $3 OR people.factor_secret IS NULL)
                 RETURNING person_id"
            );
            let used = tx.find(&sql, &[&link, &now, &code.is_some()], |row| row.get::<Id>("person_id")).await?;
            let Some(person_id) = used else { return Ok(None) };
            let sql = "INSERT INTO sessions (hash, id, person_id, seen_at, expires_at, agent)
                VALUES ($1, $2, $3, $4, $5, $6)";
            tx.execute(sql, &[&new.hash, &tx.new_id(), &person_id, &now, &new.expires_at, &new.agent]).await?;
            begun_session(tx, &new).await
        })
        .await
    }

    /// Begins a session for a person. `None` if the person doesn't exist, the account is disabled, or `proof` is no
    /// longer the person's; callers that have verified the person in another way pass none.
    pub async fn begin_session(&self, person_id: Id, proof: Option<Proof>, new: NewSession) -> Result<Option<Session>> {
        self.write(Effect::SignIn, async move |tx| {
            let (password, identity) = match &proof {
                None => (None, None),
                Some(Proof::Password(hash) | Proof::PasswordAndCode(hash, _) | Proof::NewPassword(hash)) => {
                    (Some(hash), None)
                }
                Some(Proof::Identity(identity, began_at)) => (None, Some((identity, *began_at))),
            };
            if let Some(Proof::PasswordAndCode(_, code)) = &proof
                && !second_factor::use_code(tx, person_id, code).await?
            {
                return Ok(None);
            }
            // The lock makes a change of the password wait, which then ends this session, or waits for that change and
            // compares again.
            let sql = format!(
                "INSERT INTO sessions (hash, id, person_id, seen_at, expires_at, agent, by_provider)
                 SELECT $1, $2, people.id, $3, $4, $5, CAST($8 AS text) IS NOT NULL FROM {ENABLED}
                 WHERE people.id = $6 AND (NOT $11 OR people.factor_secret IS NULL)
                 AND (CAST($7 AS text) IS NULL OR people.password = $7)
                 AND (CAST($8 AS text) IS NULL OR EXISTS (
                     SELECT 1 FROM person_identities i
                     WHERE i.person_id = people.id AND i.issuer = $8 AND i.subject = $9))
                 AND (CAST($10 AS bigint) IS NULL OR people.sessions_ended_at IS NULL OR people.sessions_ended_at <= $10
                      OR people.sessions_ended_at > $12) {}",
                tx.locking("FOR SHARE OF people")
            );
            let (id, hash, now) = (tx.new_id(), &new.hash[..], tx.now());
            let (issuer, subject) = identity.map(|(identity, _)| (&identity.issuer, &identity.subject)).unzip();
            let began_at = identity.map(|(_, began_at)| began_at);
            let without_factor = matches!(proof, Some(Proof::Password(_)));
            // An end in the future comes from a clock that was ahead, and would keep the person out until then.
            let latest_end = now.saturating_add(CLOCK_SKEW);
            let parameters: [&dyn Parameter; 12] = [
                &hash,
                &id,
                &now,
                &new.expires_at,
                &new.agent,
                &person_id,
                &password,
                &issuer,
                &subject,
                &began_at,
                &without_factor,
                &latest_end,
            ];
            if tx.execute(&sql, &parameters).await? == 0 {
                return Ok(None);
            }
            begun_session(tx, &new).await
        })
        .await
    }

    /// The session with this hash, unless it has ended or its account is disabled.
    pub async fn find_session(&self, hash: TokenHash) -> Result<Option<Session>> {
        self.driver.find(&sessions(LIVE), &[&hash, &self.driver.now()], session).await
    }

    /// The sessions among these that [`Store::find_session`] would find, in any order.
    pub async fn live_sessions(&self, hashes: &[TokenHash]) -> Result<Vec<TokenHash>> {
        let sql = format!(
            "SELECT s.hash FROM {ENABLED} JOIN sessions s ON s.person_id = people.id
             WHERE s.hash {} AND s.expires_at > $2",
            self.driver.either("IN (SELECT unhex(value) FROM json_each($1))", "= ANY ($1)")
        );
        let parameters: [&dyn Parameter; 2] = [&List(hashes), &self.driver.now()];
        let found: Vec<Vec<u8>> = self.driver.list(&sql, &parameters, |row| row.get("hash")).await?;
        Ok(hashes.iter().filter(|hash| found.iter().any(|found| found == *hash)).copied().collect())
    }

    /// The sessions of a person that have not ended, the latest used first.
    pub async fn list_sessions(&self, person_id: Id) -> Result<Vec<Session>> {
        let sql = sessions("people.id = $1 AND s.expires_at > $2 ORDER BY s.seen_at DESC, s.id DESC");
        self.driver.list(&sql, &[&person_id, &self.driver.now()], session).await
    }

    /// Records that a session was used now, and moves its end to `expires_at` if that is later.
    pub async fn touch_session(&self, id: Id, expires_at: Timestamp) -> Result<()> {
        let sql = "UPDATE sessions SET seen_at = CASE WHEN seen_at < $2 THEN $2 ELSE seen_at END,
            expires_at = CASE WHEN expires_at < $3 THEN $3 ELSE expires_at END WHERE id = $1";
        self.statement(Effect::SignIn, sql, &[&id, &self.driver.now(), &expires_at]).await.map(drop)
    }

    /// Ends a session of a person. Returns whether there was one.
    pub async fn end_session(&self, person_id: Id, id: Id) -> Result<bool> {
        let sql = "DELETE FROM sessions WHERE person_id = $1 AND id = $2 RETURNING id";
        Ok(!self.statement(Effect::SignOut, sql, &[&person_id, &id]).await?.is_empty())
    }

    /// Ends all sessions of a person except the one with the id `kept`, and the person's sign-in links and
    /// authentication requests to a provider. Returns the number of sessions.
    pub async fn end_other_sessions(&self, person_id: Id, kept: Id) -> Result<usize> {
        self.write(Effect::SignOut, async move |tx| {
            // This also locks the person, which must come first.
            let sql = "UPDATE people SET sessions_ended_at = $2 WHERE id = $1";
            tx.execute(sql, &[&person_id, &tx.now()]).await?;
            Ok(second_factor::end_sessions(tx, person_id, Some(kept)).await? as usize)
        })
        .await
    }

    /// Deletes everyone's links, invitations and sessions; with all of them, pending authentication requests to a
    /// provider end, too. Returns their number.
    pub async fn delete_sessions(&self, which: DeleteSessions) -> Result<usize> {
        self.write(Effect::SignOut, async move |tx| {
            let latest = match which {
                DeleteSessions::Expired => tx.now(),
                DeleteSessions::All => {
                    tx.execute("UPDATE people SET sessions_ended_at = $1", &[&tx.now()]).await?;
                    Timestamp::MAX
                }
            };
            let mut deleted = 0;
            for table in ["sign_in_links", "invitations", "sessions"] {
                deleted += tx.execute(&format!("DELETE FROM {table} WHERE expires_at <= $1"), &[&latest]).await?;
            }
            Ok(deleted as usize)
        })
        .await
    }
}
