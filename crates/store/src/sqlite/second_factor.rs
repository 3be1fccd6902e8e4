//! Statements for second factors.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::people::person;
use super::writer::Writing;
use crate::FactorRemoval;
use tintype_domain::model::Id;
use tintype_domain::person::{Person, TokenHash};
use tintype_domain::second_factor::{Factor, FactorCode, NewFactor};

pub(super) fn find(connection: &Connection, person_id: Id) -> rusqlite::Result<Option<Factor>> {
    let sql = "SELECT factor_secret, factor_step, (SELECT count(*) FROM recovery_codes WHERE person_id = ?1)
        FROM people WHERE id = ?1 AND factor_secret IS NOT NULL";
    connection
        .prepare_cached(sql)?
        .query_row([person_id], |row| {
            Ok(Factor { secret: row.get(0)?, step: row.get(1)?, recovery_codes: row.get(2)? })
        })
        .optional()
}

/// Turns a second factor on, and returns the person; `None` if there is one already, or no such person.
pub(super) fn add(writing: &mut Writing, id: Id, new: &NewFactor, kept: Id) -> rusqlite::Result<Option<Person>> {
    let sql = "UPDATE people SET factor_secret = ?2, factor_step = ?3, sessions_ended_at = ?4
        WHERE id = ?1 AND factor_secret IS NULL RETURNING *";
    let mut add = writing.connection.prepare_cached(sql)?;
    let values = params![id, new.secret.bytes(), new.step, writing.clock.now()];
    let Some(found) = add.query_row(values, person).optional()? else {
        return Ok(None);
    };
    insert_codes(&writing.connection, id, &new.recovery)?;
    end_sessions(&writing.connection, id, Some(kept))?;
    Ok(Some(found))
}

/// Removes a second factor, and returns the person; `None` if there is none.
pub(super) fn remove(writing: &mut Writing, id: Id, removal: FactorRemoval) -> rusqlite::Result<Option<Person>> {
    let sql = "UPDATE people SET factor_secret = NULL, factor_step = NULL, sessions_ended_at = ?2
        WHERE id = ?1 AND factor_secret IS NOT NULL RETURNING *";
    let (connection, now) = (&writing.connection, writing.clock.now());
    let Some(found) = connection.prepare_cached(sql)?.query_row(params![id, now], person).optional()? else {
        return Ok(None);
    };
    connection.prepare_cached("DELETE FROM recovery_codes WHERE person_id = ?1")?.execute([id])?;
    end_sessions(connection, id, removal.kept())?;
    Ok(Some(found))
}

/// Replaces all recovery codes, and returns the person; `None` if there is no second factor.
pub(super) fn replace_codes(writing: &mut Writing, id: Id, codes: &[TokenHash]) -> rusqlite::Result<Option<Person>> {
    let sql = "SELECT * FROM people WHERE id = ?1 AND factor_secret IS NOT NULL";
    let connection = &writing.connection;
    let Some(found) = connection.prepare_cached(sql)?.query_row([id], person).optional()? else { return Ok(None) };
    connection.prepare_cached("DELETE FROM recovery_codes WHERE person_id = ?1")?.execute([id])?;
    insert_codes(connection, id, codes)?;
    Ok(Some(found))
}

/// Uses a code up; returns whether it worked.
pub(super) fn use_code(connection: &Connection, person_id: Id, code: &FactorCode) -> rusqlite::Result<bool> {
    let used = match code {
        FactorCode::Step(secret, step) => connection
            .prepare_cached(
                "UPDATE people SET factor_step = ?3 WHERE id = ?1 AND factor_secret = ?2 AND factor_step < ?3",
            )?
            .execute(params![person_id, secret.bytes(), step])?,
        FactorCode::Recovery(hash) => connection
            .prepare_cached("DELETE FROM recovery_codes WHERE person_id = ?1 AND hash = ?2")?
            .execute(params![person_id, hash])?,
    };
    Ok(used > 0)
}

fn insert_codes(connection: &Connection, person_id: Id, codes: &[TokenHash]) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached("INSERT INTO recovery_codes (person_id, hash) VALUES (?1, ?2)")?;
    codes.iter().try_for_each(|hash| insert.execute(params![person_id, hash]).map(drop))
}

fn end_sessions(connection: &Connection, person_id: Id, kept: Option<Id>) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM sign_in_links WHERE person_id = ?1")?.execute([person_id])?;
    let sql = "DELETE FROM sessions WHERE person_id = ?1 AND id IS NOT ?2";
    connection.prepare_cached(sql)?.execute(params![person_id, kept]).map(drop)
}
