//! Statements for sign-ups.

use super::connection::{Database, Parameter, Transaction};
use super::people::person;
use super::{audit_log, identities};
use crate::failure::Failure;
use crate::people::SIGN_UP_NOTE;
use crate::{Actor, Credential, Deed, Result, SignUp, SigningUp, StoreError};
use tintype_domain::identity::Identity;
use tintype_domain::ledger::check_opening;
use tintype_domain::person::{Person, Role};

/// Counts an attempt from the source $1 on the day $2, unless there were $3 before. Concurrent ones wait for each
/// other.
const COUNT: &str = "
    INSERT INTO sign_ups (source, day, count) SELECT $1, $2, 1 WHERE $3::bigint > 0
    ON CONFLICT (source, day) DO UPDATE SET count = sign_ups.count + 1 WHERE sign_ups.count < $3";

const TAKEN: &str = "SELECT 1 FROM people WHERE name = $1 OR id = $1";

/// Opens the account $1 of its owner $2 with the name $3, the password $4 and $5 credits, noted as $7, at the time $6.
/// The unique name of the person decides between concurrent sign-ups. That of the account may be taken where that of
/// the person is not; only the operator sees it.
const SIGN_UP: &str = "
    WITH owner AS (
        INSERT INTO people (id, account_id, name, role, password)
        SELECT $2, $1, $3, 'owner', $4 WHERE NOT EXISTS (SELECT 1 FROM people WHERE id = $3)
        ON CONFLICT DO NOTHING RETURNING account_id
    ),
    named AS (
        INSERT INTO accounts (id, name, admin) SELECT account_id, $3, false FROM owner
        WHERE NOT EXISTS (SELECT 1 FROM accounts WHERE id = $3) ON CONFLICT DO NOTHING RETURNING id
    ),
    renamed AS (
        INSERT INTO accounts (id, name, admin) SELECT account_id, $3 || '-' || $1, false FROM owner
        WHERE NOT EXISTS (SELECT 1 FROM named) RETURNING id
    ),
    granted AS (
        INSERT INTO ledger (account_id, kind, amount, balance, created_at, note)
        SELECT account_id, 'grant', $5::bigint, $5, $6::bigint, $7 FROM owner WHERE $5 <> 0
    )
    SELECT account_id FROM owner";

/// Waits for another sign-up with the identity that may be under way, in any process.
pub(super) async fn lock(
    begun: &Transaction<'_>,
    Identity { issuer, subject }: &Identity,
) -> std::result::Result<(), tokio_postgres::Error> {
    begun.execute("SELECT pg_advisory_xact_lock(hashtextextended($1 || ' ' || $2, 0))", &[issuer, subject]).await?;
    Ok(())
}

/// Opens an account with its owner. A refusal for the name leaves the count of the attempt.
pub(super) async fn sign_up(
    database: &Database,
    begun: &Transaction<'_>,
    new: &SignUp,
) -> std::result::Result<SigningUp, Failure> {
    check_opening(new.credits).map_err(StoreError::other)?;
    if let Credential::Identity(identity) = &new.credential {
        lock(begun, identity).await?;
        let Identity { issuer, subject } = identity;
        if let Some(row) = begun.query_opt(&identities::find(), &[issuer, subject]).await? {
            return Ok(SigningUp::Known(person(&row)?));
        }
    }
    let now = database.now();
    if begun.execute(COUNT, &[&new.source, &now.day(), &i64::from(new.limit)]).await? == 0 {
        return Ok(SigningUp::TooMany);
    }
    let (account_id, id) = (database.new_id(), database.new_id());
    let (password, identity) = new.credential.parts();
    let name = match &new.credential {
        Credential::Identity(_) if begun.query_opt(TAKEN, &[&new.name]).await?.is_some() => new.name_with(id),
        Credential::Identity(_) | Credential::Password(_) => new.name.clone(),
    };
    let parameters: [Parameter<'_>; 7] = [&account_id, &id, &name, &password, &new.credits, &now, &SIGN_UP_NOTE];
    if begun.query_opt(SIGN_UP, &parameters).await?.is_none() {
        return Ok(SigningUp::NameTaken);
    }
    if let Some(Identity { issuer, subject }) = identity {
        let sql = "INSERT INTO person_identities (issuer, subject, person_id) VALUES ($1, $2, $3)";
        begun.execute(sql, &[issuer, subject, &id]).await?;
    }
    let (role, has_password, created_at) = (Role::Owner, password.is_some(), id.timestamp());
    let person =
        Person { id, account_id, name, role, has_password, has_second_factor: false, suspension: None, created_at };
    let (actor, deed) = (Actor::newcomer(&person, &new.source), Deed::of_sign_up(&person, new));
    audit_log::record(begun, database.new_id(), &actor, &deed).await?;
    Ok(SigningUp::Done(person))
}

pub(super) async fn count(database: &Database, source: &str) -> Result<u32> {
    let sql = "SELECT count FROM sign_ups WHERE source = $1 AND day = $2";
    let row = database.read_one(sql, &[&source, &database.now().day()]).await?;
    let count: i64 = row.map_or(Ok(0), |row| row.try_get(0))?;
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}
