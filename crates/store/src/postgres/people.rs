//! Statements for people, links and sessions.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::columns::{of_account, suspension, word};
use super::connection::{Database, Parameter, Transaction};
use super::{PostgresStore, audit_log, joining, second_factor, sign_up};
use crate::failure::Failure;
use crate::{
    Action, Actor, Candidate, Deed, DeleteSessions, EndSessions, FactorRemoval, Joining, NewSession, Newcomer, People,
    PersonChange, PersonCreation, Proof, Result, SignUp, SigningUp, StrikeRule,
};
use tintype_domain::model::Id;
use tintype_domain::person::{MAX_PEOPLE, Person, Role, Session, TokenHash};
use tintype_domain::second_factor::{Factor, FactorCode, NewFactor};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Adds the person $1 to the account $2, which has fewer than $5 people. The lock makes concurrent additions wait; the
/// unique name decides between them.
const CREATE: &str = "
    WITH account AS MATERIALIZED (
        SELECT id FROM accounts WHERE id = $2 AND deleted_at IS NULL FOR NO KEY UPDATE
    )
    INSERT INTO people (id, account_id, name, role)
    SELECT $1, id, $3, $4 FROM account
    WHERE NOT EXISTS (SELECT 1 FROM people WHERE id = $3)
    AND (SELECT count(*) FROM people WHERE account_id = $2) < $5
    ON CONFLICT DO NOTHING RETURNING id";

/// Uses the link $1 up at the time $2 and begins the session $3 of its person, who has no second factor unless $7 says
/// that a code of it was used. Of two processes that use the same link, one deletes it.
const SIGN_IN_BY_LINK: &str = "
    WITH used AS (
        DELETE FROM sign_in_links l USING people p, accounts a
        WHERE l.hash = $1 AND l.expires_at > $2 AND p.id = l.person_id
        AND a.id = p.account_id AND a.disabled_at IS NULL AND ($7 OR p.factor_secret IS NULL) RETURNING l.person_id
    )
    INSERT INTO sessions (hash, id, person_id, seen_at, expires_at, agent)
    SELECT $3, $4, person_id, $2, $5, $6 FROM used";

/// Begins the session $1 of the person $6, who has no second factor if $11 says so. The proof is the password $7, or
/// the identity $8, $9 after a journey that began at $10. The lock makes a change of the password wait, which then ends
/// this session, or waits for that change and compares anew.
const BEGIN_SESSION: &str = "
    INSERT INTO sessions (hash, id, person_id, seen_at, expires_at, agent, by_provider)
    SELECT $1, $2, p.id, $3, $4, $5, $8::text IS NOT NULL
    FROM people p JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL
    WHERE p.id = $6 AND (NOT $11 OR p.factor_secret IS NULL) AND ($7::text IS NULL OR p.password = $7)
    AND ($8::text IS NULL OR EXISTS (
        SELECT 1 FROM person_identities i WHERE i.person_id = p.id AND i.issuer = $8 AND i.subject = $9))
    AND ($10::bigint IS NULL OR p.sessions_ended_at IS NULL OR p.sessions_ended_at <= $10) FOR SHARE OF p";

/// All columns of people.
pub(super) const PERSON: &str =
    "p.id, p.account_id, p.name, p.role, p.password, p.factor_step, p.suspended_at, p.suspended_for";

/// Sessions of people whose accounts are enabled.
const SESSIONS: &str = "SELECT p.id, p.account_id, p.name, p.role, p.password, p.factor_step, p.suspended_at,
    p.suspended_for, s.id AS session_id, s.seen_at,
    s.expires_at, s.agent, s.by_provider FROM sessions s JOIN people p ON p.id = s.person_id
    JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL";

pub(super) fn person(row: &Row) -> Result<Person> {
    let id: Id = row.try_get("id")?;
    let password: Option<&str> = row.try_get("password")?;
    let factor: Option<i64> = row.try_get("factor_step")?;
    Ok(Person {
        id,
        account_id: row.try_get("account_id")?,
        name: row.try_get("name")?,
        role: word(row, "role")?,
        has_password: password.is_some(),
        has_second_factor: factor.is_some(),
        suspension: suspension(row)?,
        created_at: id.timestamp(),
    })
}

fn session(row: &Row) -> Result<Session> {
    Ok(Session {
        id: row.try_get("session_id")?,
        person: person(row)?,
        seen_at: row.try_get("seen_at")?,
        expires_at: row.try_get("expires_at")?,
        agent: row.try_get("agent")?,
        by_provider: row.try_get("by_provider")?,
    })
}

/// Adds a strike to a person, if there still is one; returns whether it suspends the person, which the audit log tells.
pub(super) async fn strike(
    database: &Database,
    begun: &Transaction<'_>,
    task_id: Id,
    person_id: Id,
    rule: StrikeRule,
) -> std::result::Result<bool, Failure> {
    let now = database.now();
    let begin = now.saturating_sub(rule.window);
    // The row lock makes concurrent strikes wait, so that they count this one too.
    let lock = "SELECT 1 FROM people WHERE id = $1 FOR NO KEY UPDATE";
    if begun.query_opt(lock, &[&person_id]).await?.is_none() {
        return Ok(false);
    }
    begun
        .execute("DELETE FROM person_strikes WHERE person_id = $1 AND created_at <= $2", &[&person_id, &begin])
        .await?;
    let strike = "INSERT INTO person_strikes (task_id, person_id, created_at) VALUES ($1, $2, $3)";
    begun.execute(strike, &[&task_id, &person_id, &now]).await?;
    // Tasks in progress may add further strikes; the first suspension remains.
    let suspend = format!(
        "UPDATE people p SET suspended_at = $2, suspended_for = $3 WHERE id = $1 AND suspended_at IS NULL
         AND (SELECT count(*) FROM person_strikes WHERE person_id = $1) >= $4 RETURNING {PERSON}"
    );
    let parameters: [Parameter<'_>; 4] = [&person_id, &now, &rule.to_string(), &i64::from(rule.limit)];
    let Some(row) = begun.query_opt(&suspend, &parameters).await? else { return Ok(false) };
    let deed = Deed::of_suspension(&person(&row)?);
    audit_log::record(begun, database.new_id(), &Actor::policy(), &deed).await?;
    Ok(true)
}

pub(super) async fn create(
    begun: &Transaction<'_>,
    id: Id,
    account_id: Id,
    name: &str,
    role: Role,
) -> std::result::Result<PersonCreation, Failure> {
    let (role_name, most) = (role.as_str(), i64::from(MAX_PEOPLE));
    let parameters: [Parameter<'_>; 5] = [&id, &account_id, &name, &role_name, &most];
    if begun.query_opt(CREATE, &parameters).await?.is_none() {
        let taken = begun.query_opt("SELECT 1 FROM people WHERE name = $1 OR id = $1", &[&name]).await?;
        return Ok(taken.map_or(PersonCreation::NotPossible, |_| PersonCreation::NameTaken));
    }
    Ok(PersonCreation::Created(Person {
        id,
        account_id,
        name: name.to_owned(),
        role,
        has_password: false,
        has_second_factor: false,
        suspension: None,
        created_at: id.timestamp(),
    }))
}

#[async_trait]
impl People for PostgresStore {
    async fn create_person(&self, account_id: Id, name: &str, role: Role) -> Result<PersonCreation> {
        let id = self.database.new_id();
        let create = async |begun: &Transaction<'_>| create(begun, id, account_id, name, role).await;
        self.write(Effect::ChangePerson, self.recorded(create, Deed::of_new_person)).await
    }

    async fn sign_up(&self, new: SignUp) -> Result<SigningUp> {
        let sign_up = async {
            let sign_up = async |begun: &Transaction<'_>| sign_up::sign_up(&self.database, begun, &new).await;
            Ok(self.database.transaction(sign_up).await?)
        };
        self.write(Effect::SignUp, sign_up).await
    }

    async fn join(&self, new: Newcomer) -> Result<Joining> {
        let join = async {
            let join = async |begun: &Transaction<'_>| joining::join(&self.database, begun, &new).await;
            Ok(self.database.transaction(join).await?)
        };
        self.write(Effect::ChangePerson, join).await
    }

    async fn sign_ups_of(&self, source: &str) -> Result<u32> {
        sign_up::count(&self.database, source).await
    }

    async fn delete_sign_ups(&self) -> Result<usize> {
        let sql = "DELETE FROM sign_ups WHERE day < $1 RETURNING 1";
        let delete = async { Ok(self.database.write(sql, &[&self.database.now().day()]).await?.len()) };
        self.write(Effect::DeleteSignUps, delete).await
    }

    async fn find_person(&self, name_or_id: &str) -> Result<Option<Candidate>> {
        let sql = format!("SELECT {PERSON} FROM people p WHERE name = $1 OR id = $1");
        let row = self.database.read_one(&sql, &[&name_or_id]).await?;
        row.map(|row| Ok(Candidate { person: person(&row)?, password: row.try_get("password")? })).transpose()
    }

    async fn list_people(&self, account_id: Option<Id>) -> Result<Vec<Person>> {
        let sql = format!("SELECT {PERSON} FROM people p WHERE {} ORDER BY id", of_account(account_id));
        self.database.read(&sql, &[&account_id]).await?.iter().map(person).collect()
    }

    async fn change_person(&self, id: Id, change: PersonChange) -> Result<Option<Person>> {
        let make = async |begun: &Transaction<'_>| {
            let row = match &change {
                PersonChange::Role(role) => {
                    let sql = format!("UPDATE people p SET role = $2 WHERE id = $1 RETURNING {PERSON}");
                    begun.query_opt(&sql, &[&id, &role.as_str()]).await?
                }
                PersonChange::Password(_) | PersonChange::ShutOut => {
                    let sql = format!(
                        "UPDATE people p SET password = $2, sessions_ended_at = $3 WHERE id = $1 RETURNING {PERSON}"
                    );
                    let row = begun.query_opt(&sql, &[&id, &change.password(), &self.database.now()]).await?;
                    // After the lock on the person, so that no session of a sign-in in progress is missed.
                    begun.execute("DELETE FROM sign_in_links WHERE person_id = $1", &[&id]).await?;
                    begun.execute("DELETE FROM sessions WHERE person_id = $1", &[&id]).await?;
                    row
                }
                PersonChange::Lift => {
                    let sql = format!(
                        "UPDATE people p SET suspended_at = NULL, suspended_for = NULL WHERE id = $1 RETURNING {PERSON}"
                    );
                    let row = begun.query_opt(&sql, &[&id]).await?;
                    // After the lock on the person, so that no concurrent strike is missed.
                    begun.execute("DELETE FROM person_strikes WHERE person_id = $1", &[&id]).await?;
                    row
                }
            };
            Ok(row.as_ref().map(person).transpose()?)
        };
        let deed = |person: &Option<Person>| Deed::of_person(&change, person.as_ref());
        self.write(Effect::ChangePerson, self.recorded(make, deed)).await
    }

    async fn remove_person(&self, id: Id) -> Result<bool> {
        let sql = format!("DELETE FROM people p WHERE id = $1 RETURNING {PERSON}");
        let remove = async |begun: &Transaction<'_>| {
            let row = begun.query_opt(&sql, &[&id]).await?;
            Ok(row.as_ref().map(person).transpose()?)
        };
        let deed = |person: &Option<Person>| Deed::of_found(Action::RemovePerson, person.as_ref());
        Ok(self.write(Effect::ChangePerson, self.recorded(remove, deed)).await?.is_some())
    }

    async fn create_link(&self, person_id: Id, hash: TokenHash, expires_at: Timestamp) -> Result<bool> {
        let sql = format!(
            "WITH link AS (
                 INSERT INTO sign_in_links (hash, person_id, expires_at)
                 SELECT $1, id, $3 FROM people WHERE id = $2 RETURNING person_id
             )
             SELECT {PERSON} FROM people p JOIN link ON link.person_id = p.id"
        );
        let create = async |begun: &Transaction<'_>| {
            let row = begun.query_opt(&sql, &[&&hash[..], &person_id, &expires_at]).await?;
            Ok(row.as_ref().map(person).transpose()?)
        };
        let deed = |person: &Option<Person>| Deed::of_found(Action::MakeLink, person.as_ref());
        Ok(self.write(Effect::SignIn, self.recorded(create, deed)).await?.is_some())
    }

    async fn find_link(&self, hash: TokenHash) -> Result<Option<Person>> {
        let sql = format!(
            "SELECT {PERSON} FROM sign_in_links l JOIN people p ON p.id = l.person_id
             JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL WHERE l.hash = $1 AND l.expires_at > $2"
        );
        self.database.read_one(&sql, &[&&hash[..], &self.database.now()]).await?.as_ref().map(person).transpose()
    }

    async fn sign_in_by_link(
        &self,
        link: TokenHash,
        code: Option<FactorCode>,
        new: NewSession,
    ) -> Result<Option<Session>> {
        let (id, now) = (self.database.new_id(), self.database.now());
        let sign_in = async |begun: &Transaction<'_>| {
            if let Some(code) = &code {
                let of_link = "SELECT person_id FROM sign_in_links WHERE hash = $1 AND expires_at > $2";
                let Some(row) = begun.query_opt(of_link, &[&&link[..], &now]).await? else { return Ok(()) };
                if !second_factor::use_code(begun, row.try_get("person_id")?, code).await? {
                    return Ok(());
                }
            }
            let (link, hash, with_code) = (&link[..], &new.hash[..], code.is_some());
            let parameters: [Parameter<'_>; 7] = [&link, &now, &hash, &id, &new.expires_at, &new.agent, &with_code];
            begun.execute(SIGN_IN_BY_LINK, &parameters).await?;
            Ok(())
        };
        let sign_in = async {
            self.database.transaction(sign_in).await?;
            self.find_session(new.hash).await
        };
        self.write(Effect::SignIn, sign_in).await
    }

    async fn begin_session(&self, person_id: Id, proof: Option<Proof>, new: NewSession) -> Result<Option<Session>> {
        let (id, now) = (self.database.new_id(), self.database.now());
        let begin = async |begun: &Transaction<'_>| {
            if let Some(code) = proof.as_ref().and_then(Proof::code)
                && !second_factor::use_code(begun, person_id, code).await?
            {
                return Ok(());
            }
            let hash = &new.hash[..];
            let (password, identity) = proof.as_ref().map_or((None, None), Proof::parts);
            let (issuer, subject) = identity.map(|(identity, _)| (&identity.issuer, &identity.subject)).unzip();
            let began_at = identity.map(|(_, began_at)| began_at);
            let without_factor = proof.as_ref().is_some_and(Proof::needs_no_factor);
            let parameters: [Parameter<'_>; 11] = [
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
            ];
            begun.execute(BEGIN_SESSION, &parameters).await?;
            Ok(())
        };
        let begin = async {
            self.database.transaction(begin).await?;
            self.find_session(new.hash).await
        };
        self.write(Effect::SignIn, begin).await
    }

    async fn find_factor(&self, person_id: Id) -> Result<Option<Factor>> {
        second_factor::find(&self.database, person_id).await
    }

    async fn add_factor(&self, person_id: Id, new: NewFactor, kept: Id) -> Result<bool> {
        let now = self.database.now();
        let add = async |begun: &Transaction<'_>| second_factor::add(begun, person_id, &new, kept, now).await;
        let deed = |person: &Option<Person>| Deed::of_found(Action::AddFactor, person.as_ref());
        Ok(self.write(Effect::ChangePerson, self.recorded(add, deed)).await?.is_some())
    }

    async fn remove_factor(&self, person_id: Id, removal: FactorRemoval) -> Result<bool> {
        let now = self.database.now();
        let remove = async |begun: &Transaction<'_>| second_factor::remove(begun, person_id, removal, now).await;
        let deed = |person: &Option<Person>| Deed::of_lost_factor(removal, person.as_ref());
        Ok(self.write(Effect::ChangePerson, self.recorded(remove, deed)).await?.is_some())
    }

    async fn replace_recovery_codes(&self, person_id: Id, codes: Vec<TokenHash>) -> Result<bool> {
        let replace = async |begun: &Transaction<'_>| second_factor::replace_codes(begun, person_id, &codes).await;
        let deed = |person: &Option<Person>| Deed::of_found(Action::ReplaceRecoveryCodes, person.as_ref());
        Ok(self.write(Effect::ChangePerson, self.recorded(replace, deed)).await?.is_some())
    }

    async fn use_code(&self, person_id: Id, code: FactorCode) -> Result<bool> {
        let used = async |begun: &Transaction<'_>| second_factor::use_code(begun, person_id, &code).await;
        let used = async { Ok(self.transaction(used).await?) };
        self.write(Effect::SignIn, used).await
    }

    async fn find_session(&self, hash: TokenHash) -> Result<Option<Session>> {
        let sql = format!("{SESSIONS} WHERE s.hash = $1 AND s.expires_at > $2");
        self.database.read_one(&sql, &[&&hash[..], &self.database.now()]).await?.as_ref().map(session).transpose()
    }

    async fn live_sessions(&self, hashes: &[TokenHash]) -> Result<Vec<TokenHash>> {
        let sql = "SELECT s.hash FROM sessions s JOIN people p ON p.id = s.person_id
            JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL
            WHERE s.hash = ANY ($1) AND s.expires_at > $2";
        let wanted: Vec<&[u8]> = hashes.iter().map(<[u8; 32]>::as_slice).collect();
        let rows = self.database.read(sql, &[&wanted, &self.database.now()]).await?;
        let found = rows.iter().map(|row| Ok(row.try_get::<_, Vec<u8>>("hash")?)).collect::<Result<Vec<_>>>()?;
        Ok(hashes.iter().filter(|hash| found.iter().any(|found| found == *hash)).copied().collect())
    }

    async fn list_sessions(&self, person_id: Id) -> Result<Vec<Session>> {
        let sql = format!("{SESSIONS} WHERE p.id = $1 AND s.expires_at > $2 ORDER BY s.seen_at DESC, s.id DESC");
        self.database.read(&sql, &[&person_id, &self.database.now()]).await?.iter().map(session).collect()
    }

    async fn touch_session(&self, id: Id, expires_at: Timestamp) -> Result<()> {
        let sql = "UPDATE sessions SET seen_at = greatest(seen_at, $2), expires_at = greatest(expires_at, $3)
            WHERE id = $1";
        let touch = async { Ok(self.database.write(sql, &[&id, &self.database.now(), &expires_at]).await.map(drop)?) };
        self.write(Effect::SignIn, touch).await
    }

    async fn end_sessions(&self, person_id: Id, which: EndSessions) -> Result<usize> {
        let (condition, id) = match which {
            EndSessions::One(id) => ("id = $2", id),
            EndSessions::AllExcept(id) => ("id <> $2", id),
        };
        let sql = format!("DELETE FROM sessions WHERE person_id = $1 AND {condition} RETURNING id");
        let end = async |begun: &Transaction<'_>| {
            if matches!(which, EndSessions::AllExcept(_)) {
                // First the lock on the person, so that no session of a sign-in in progress is missed.
                let ended = "UPDATE people SET sessions_ended_at = $2 WHERE id = $1";
                begun.execute(ended, &[&person_id, &self.database.now()]).await?;
                begun.execute("DELETE FROM sign_in_links WHERE person_id = $1", &[&person_id]).await?;
            }
            Ok(begun.query(&sql, &[&person_id, &id]).await?.len())
        };
        let end = async { Ok(self.transaction(end).await?) };
        self.write(Effect::SignOut, end).await
    }

    async fn delete_sessions(&self, which: DeleteSessions) -> Result<usize> {
        let sql = "WITH links AS (DELETE FROM sign_in_links WHERE expires_at <= $1 RETURNING 1),
            invited AS (DELETE FROM invitations WHERE expires_at <= $1 RETURNING 1),
            ended AS (DELETE FROM sessions WHERE expires_at <= $1 RETURNING 1)
            SELECT (SELECT count(*) FROM links) + (SELECT count(*) FROM invited) + (SELECT count(*) FROM ended)";
        let delete = async {
            let latest = match which {
                DeleteSessions::Expired => self.database.now(),
                DeleteSessions::All => {
                    let ended = "UPDATE people SET sessions_ended_at = $1";
                    self.database.write(ended, &[&self.database.now()]).await?;
                    Timestamp::MAX
                }
            };
            let rows = self.database.write(sql, &[&latest]).await?;
            let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
            Ok(usize::try_from(count).unwrap_or(0))
        };
        self.write(Effect::SignOut, delete).await
    }
}
