//! Statements for people, links and sessions.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, named_params, params};

use super::accounts::suspension;
use super::columns::{of_account, to_json, word};
use super::writer::Writing;
use super::{SqliteStore, joining, second_factor, sign_up};
use crate::{
    Action, Candidate, Deed, DeleteSessions, EndSessions, FactorRemoval, Joining, NewSession, Newcomer, People,
    PersonChange, PersonCreation, Proof, Result, SignUp, SigningUp,
};
use tintype_domain::model::Id;
use tintype_domain::person::{MAX_PEOPLE, Person, Role, Session, TokenHash};
use tintype_domain::second_factor::{Factor, FactorCode, NewFactor};
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// A person whose account is enabled.
const PEOPLE: &str = "SELECT p.* FROM people p JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL";

/// A session of such a person.
const SESSIONS: &str = "SELECT p.*, s.id AS session_id, s.seen_at, s.expires_at, s.agent,
    s.by_provider FROM sessions s
    JOIN people p ON p.id = s.person_id JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL";

pub(super) fn person(row: &Row<'_>) -> rusqlite::Result<Person> {
    let id: Id = row.get("id")?;
    let password: Option<String> = row.get("password")?;
    let factor: Option<i64> = row.get("factor_step")?;
    Ok(Person {
        id,
        account_id: row.get("account_id")?,
        name: row.get("name")?,
        role: word(row, "role")?,
        has_password: password.is_some(),
        has_second_factor: factor.is_some(),
        suspension: suspension(row)?,
        created_at: id.timestamp(),
    })
}

fn session(row: &Row<'_>) -> rusqlite::Result<Session> {
    Ok(Session {
        id: row.get("session_id")?,
        person: person(row)?,
        seen_at: row.get("seen_at")?,
        expires_at: row.get("expires_at")?,
        agent: row.get("agent")?,
        by_provider: row.get("by_provider")?,
    })
}

pub(super) fn create(
    writing: &Writing,
    id: Id,
    account_id: Id,
    name: &str,
    role: Role,
) -> rusqlite::Result<PersonCreation> {
    let connection = &writing.connection;
    let taken: bool = connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM people WHERE name = ?1 OR id = ?1)")?
        .query_row([name], |row| row.get(0))?;
    if taken {
        return Ok(PersonCreation::NameTaken);
    }
    let added = connection
        .prepare_cached(
            "INSERT INTO people (id, account_id, name, role)
             SELECT ?1, id, ?3, ?4 FROM accounts WHERE id = ?2 AND deleted_at IS NULL
             AND (SELECT count(*) FROM people WHERE account_id = ?2) < ?5",
        )?
        .execute(params![id, account_id, name, role.as_str(), MAX_PEOPLE])?;
    Ok(if added == 0 {
        PersonCreation::NotPossible
    } else {
        PersonCreation::Created(Person {
            id,
            account_id,
            name: name.to_owned(),
            role,
            has_password: false,
            has_second_factor: false,
            suspension: None,
            created_at: id.timestamp(),
        })
    })
}

fn find(connection: &Connection, name_or_id: &str) -> rusqlite::Result<Option<Candidate>> {
    connection
        .prepare_cached("SELECT * FROM people WHERE name = ?1 OR id = ?1")?
        .query_row([name_or_id], |row| Ok(Candidate { person: person(row)?, password: row.get("password")? }))
        .optional()
}

fn list(connection: &Connection, account_id: Option<Id>) -> rusqlite::Result<Vec<Person>> {
    connection
        .prepare_cached(&format!("SELECT * FROM people WHERE {} ORDER BY id", of_account(account_id)))?
        .query_map([account_id], person)?
        .collect()
}

fn change(writing: &mut Writing, id: Id, change: &PersonChange) -> rusqlite::Result<Option<Person>> {
    let connection = &writing.connection;
    match change {
        PersonChange::Role(role) => {
            connection
                .prepare_cached("UPDATE people SET role = ?2 WHERE id = ?1")?
                .execute(params![id, role.as_str()])?;
        }
        PersonChange::Password(_) | PersonChange::ShutOut => {
            connection
                .prepare_cached("UPDATE people SET password = ?2, sessions_ended_at = ?3 WHERE id = ?1")?
                .execute(params![id, change.password(), writing.clock.now()])?;
            for table in ["sign_in_links", "sessions"] {
                connection.prepare_cached(&format!("DELETE FROM {table} WHERE person_id = ?1"))?.execute([id])?;
            }
        }
        PersonChange::Lift => {
            connection
                .prepare_cached("UPDATE people SET suspended_at = NULL, suspended_for = NULL WHERE id = ?1")?
                .execute([id])?;
            connection.prepare_cached("DELETE FROM person_strikes WHERE person_id = ?1")?.execute([id])?;
        }
    }
    Ok(find(connection, id.as_str())?.map(|found| found.person))
}

fn find_link(connection: &Connection, hash: &TokenHash, now: Timestamp) -> rusqlite::Result<Option<Person>> {
    let sql = format!("{PEOPLE} JOIN sign_in_links l ON l.person_id = p.id WHERE l.hash = ?1 AND l.expires_at > ?2");
    connection.prepare_cached(&sql)?.query_row(params![hash, now], person).optional()
}

fn sign_in_by_link(
    writing: &mut Writing,
    link: &TokenHash,
    code: Option<&FactorCode>,
    new: &NewSession,
) -> rusqlite::Result<Option<Session>> {
    let Some(person) = find_link(&writing.connection, link, writing.clock.now())? else { return Ok(None) };
    let is_enough = match code {
        Some(code) => second_factor::use_code(&writing.connection, person.id, code)?,
        None => !person.has_second_factor,
    };
    if !is_enough {
        return Ok(None);
    }
    writing.connection.prepare_cached("DELETE FROM sign_in_links WHERE hash = ?1")?.execute([link])?;
    begin_session(writing, person.id, None, new)
}

fn begin_session(
    writing: &mut Writing,
    person_id: Id,
    proof: Option<&Proof>,
    new: &NewSession,
) -> rusqlite::Result<Option<Session>> {
    let now = writing.clock.now();
    let id = writing.ids.next(now);
    if let Some(code) = proof.and_then(Proof::code)
        && !second_factor::use_code(&writing.connection, person_id, code)?
    {
        return Ok(None);
    }
    let sql = format!(
        "INSERT INTO sessions (hash, id, person_id, seen_at, expires_at, agent, by_provider)
         SELECT :hash, :id, id, :now, :expires_at, :agent, :issuer IS NOT NULL FROM ({PEOPLE} WHERE p.id = :person
             AND (NOT :without_factor OR p.factor_secret IS NULL)
             AND (:password IS NULL OR p.password = :password)
             AND (:issuer IS NULL OR EXISTS (SELECT 1 FROM person_identities i
                  WHERE i.person_id = p.id AND i.issuer = :issuer AND i.subject = :subject))
             AND (:began_at IS NULL OR p.sessions_ended_at IS NULL OR p.sessions_ended_at <= :began_at))"
    );
    let (password, identity) = proof.map_or((None, None), Proof::parts);
    writing.connection.prepare_cached(&sql)?.execute(named_params! {
        ":hash": new.hash,
        ":id": id,
        ":now": now,
        ":expires_at": new.expires_at,
        ":agent": new.agent,
        ":person": person_id,
        ":without_factor": proof.is_some_and(Proof::needs_no_factor),
        ":password": password,
        ":issuer": identity.map(|(identity, _)| &identity.issuer),
        ":subject": identity.map(|(identity, _)| &identity.subject),
        ":began_at": identity.map(|(_, began_at)| began_at),
    })?;
    find_session(&writing.connection, &new.hash, now)
}

pub(super) fn find_session(
    connection: &Connection,
    hash: &TokenHash,
    now: Timestamp,
) -> rusqlite::Result<Option<Session>> {
    connection
        .prepare_cached(&format!("{SESSIONS} WHERE s.hash = ?1 AND s.expires_at > ?2"))?
        .query_row(params![hash, now], session)
        .optional()
}

#[async_trait]
impl People for SqliteStore {
    async fn create_person(&self, account_id: Id, name: &str, role: Role) -> Result<PersonCreation> {
        let name = name.to_owned();
        let create = move |writing: &mut Writing| {
            let id = writing.ids.next(writing.clock.now());
            create(writing, id, account_id, &name, role)
        };
        let create = self.recorded(create, Deed::of_new_person);
        self.write(Effect::ChangePerson, create).await
    }

    async fn sign_up(&self, new: SignUp) -> Result<SigningUp> {
        self.write(Effect::SignUp, move |writing| sign_up::sign_up(writing, &new)).await
    }

    async fn join(&self, new: Newcomer) -> Result<Joining> {
        self.write(Effect::ChangePerson, move |writing| joining::join(writing, &new)).await
    }

    async fn sign_ups_of(&self, source: &str) -> Result<u32> {
        self.read(|connection| sign_up::count(connection, source, self.clock.now()))
    }

    async fn delete_sign_ups(&self) -> Result<usize> {
        self.write(Effect::DeleteSignUps, sign_up::delete).await
    }

    async fn find_person(&self, name_or_id: &str) -> Result<Option<Candidate>> {
        self.read(|connection| find(connection, name_or_id))
    }

    async fn list_people(&self, account_id: Option<Id>) -> Result<Vec<Person>> {
        self.read(|connection| list(connection, account_id))
    }

    async fn change_person(&self, id: Id, new: PersonChange) -> Result<Option<Person>> {
        let made = new.clone();
        let deed = move |person: &Option<Person>| Deed::of_person(&made, person.as_ref());
        let change = self.recorded(move |writing| change(writing, id, &new), deed);
        self.write(Effect::ChangePerson, change).await
    }

    async fn remove_person(&self, id: Id) -> Result<bool> {
        let remove = move |writing: &mut Writing| {
            let sql = "DELETE FROM people WHERE id = ?1 RETURNING *";
            writing.connection.prepare_cached(sql)?.query_row([id], person).optional()
        };
        let deed = |person: &Option<Person>| Deed::of_found(Action::RemovePerson, person.as_ref());
        let removed = self.write(Effect::ChangePerson, self.recorded(remove, deed)).await?;
        Ok(removed.is_some())
    }

    async fn create_link(&self, person_id: Id, hash: TokenHash, expires_at: Timestamp) -> Result<bool> {
        let create = move |writing: &mut Writing| {
            let sql =
                "INSERT INTO sign_in_links (hash, person_id, expires_at) SELECT ?1, id, ?3 FROM people WHERE id = ?2";
            writing.connection.prepare_cached(sql)?.execute(params![hash, person_id, expires_at])?;
            Ok(find(&writing.connection, person_id.as_str())?.map(|found| found.person))
        };
        let deed = |person: &Option<Person>| Deed::of_found(Action::MakeLink, person.as_ref());
        Ok(self.write(Effect::SignIn, self.recorded(create, deed)).await?.is_some())
    }

    async fn find_link(&self, hash: TokenHash) -> Result<Option<Person>> {
        self.read(|connection| find_link(connection, &hash, self.clock.now()))
    }

    async fn sign_in_by_link(
        &self,
        link: TokenHash,
        code: Option<FactorCode>,
        new: NewSession,
    ) -> Result<Option<Session>> {
        self.write(Effect::SignIn, move |writing| sign_in_by_link(writing, &link, code.as_ref(), &new)).await
    }

    async fn begin_session(&self, person_id: Id, proof: Option<Proof>, new: NewSession) -> Result<Option<Session>> {
        let begin = move |writing: &mut Writing| begin_session(writing, person_id, proof.as_ref(), &new);
        self.write(Effect::SignIn, begin).await
    }

    async fn find_factor(&self, person_id: Id) -> Result<Option<Factor>> {
        self.read(|connection| second_factor::find(connection, person_id))
    }

    async fn add_factor(&self, person_id: Id, new: NewFactor, kept: Id) -> Result<bool> {
        let deed = |person: &Option<Person>| Deed::of_found(Action::AddFactor, person.as_ref());
        let add = self.recorded(move |writing| second_factor::add(writing, person_id, &new, kept), deed);
        Ok(self.write(Effect::ChangePerson, add).await?.is_some())
    }

    async fn remove_factor(&self, person_id: Id, removal: FactorRemoval) -> Result<bool> {
        let deed = move |person: &Option<Person>| Deed::of_lost_factor(removal, person.as_ref());
        let remove = self.recorded(move |writing| second_factor::remove(writing, person_id, removal), deed);
        Ok(self.write(Effect::ChangePerson, remove).await?.is_some())
    }

    async fn replace_recovery_codes(&self, person_id: Id, codes: Vec<TokenHash>) -> Result<bool> {
        let deed = |person: &Option<Person>| Deed::of_found(Action::ReplaceRecoveryCodes, person.as_ref());
        let replace = self.recorded(move |writing| second_factor::replace_codes(writing, person_id, &codes), deed);
        Ok(self.write(Effect::ChangePerson, replace).await?.is_some())
    }

    async fn use_code(&self, person_id: Id, code: FactorCode) -> Result<bool> {
        let used = move |writing: &mut Writing| second_factor::use_code(&writing.connection, person_id, &code);
        self.write(Effect::SignIn, used).await
    }

    async fn find_session(&self, hash: TokenHash) -> Result<Option<Session>> {
        self.read(|connection| find_session(connection, &hash, self.clock.now()))
    }

    async fn live_sessions(&self, hashes: &[TokenHash]) -> Result<Vec<TokenHash>> {
        let sql = "SELECT s.hash FROM sessions s JOIN people p ON p.id = s.person_id
            JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL
            WHERE s.hash IN (SELECT unhex(value) FROM json_each(?1)) AND s.expires_at > ?2";
        let hex = |hash: &TokenHash| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let hashes = to_json(&hashes.iter().map(hex).collect::<Vec<_>>());
        self.read(|connection| {
            connection.prepare_cached(sql)?.query_map(params![hashes, self.clock.now()], |row| row.get(0))?.collect()
        })
    }

    async fn list_sessions(&self, person_id: Id) -> Result<Vec<Session>> {
        self.read(|connection| {
            connection
                .prepare_cached(&format!(
                    "{SESSIONS} WHERE p.id = ?1 AND s.expires_at > ?2 ORDER BY s.seen_at DESC, s.id DESC"
                ))?
                .query_map(params![person_id, self.clock.now()], session)?
                .collect()
        })
    }

    async fn touch_session(&self, id: Id, expires_at: Timestamp) -> Result<()> {
        let touch = move |writing: &mut Writing| {
            let sql = "UPDATE sessions SET seen_at = max(seen_at, ?2), expires_at = max(expires_at, ?3) WHERE id = ?1";
            writing.connection.prepare_cached(sql)?.execute(params![id, writing.clock.now(), expires_at]).map(drop)
        };
        self.write(Effect::SignIn, touch).await
    }

    async fn end_sessions(&self, person_id: Id, which: EndSessions) -> Result<usize> {
        let (sql, id) = match which {
            EndSessions::One(id) => ("DELETE FROM sessions WHERE person_id = ?1 AND id = ?2", id),
            EndSessions::AllExcept(id) => ("DELETE FROM sessions WHERE person_id = ?1 AND id <> ?2", id),
        };
        let end = move |writing: &mut Writing| {
            if matches!(which, EndSessions::AllExcept(_)) {
                let ended = "UPDATE people SET sessions_ended_at = ?2 WHERE id = ?1";
                writing.connection.prepare_cached(ended)?.execute(params![person_id, writing.clock.now()])?;
                let links = "DELETE FROM sign_in_links WHERE person_id = ?1";
                writing.connection.prepare_cached(links)?.execute([person_id])?;
            }
            writing.connection.prepare_cached(sql)?.execute(params![person_id, id])
        };
        self.write(Effect::SignOut, end).await
    }

    async fn delete_sessions(&self, which: DeleteSessions) -> Result<usize> {
        let delete = move |writing: &mut Writing| {
            let latest = match which {
                DeleteSessions::Expired => writing.clock.now(),
                DeleteSessions::All => {
                    let ended = "UPDATE people SET sessions_ended_at = ?1";
                    writing.connection.execute(ended, [writing.clock.now()])?;
                    Timestamp::MAX
                }
            };
            let mut deleted = 0;
            for table in ["sign_in_links", "invitations", "sessions"] {
                let sql = format!("DELETE FROM {table} WHERE expires_at <= ?1");
                deleted += writing.connection.prepare_cached(&sql)?.execute([latest])?;
            }
            Ok(deleted)
        };
        self.write(Effect::SignOut, delete).await
    }
}
