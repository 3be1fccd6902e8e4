//! People who sign up, and those who join an account by a rule.

use super::driver::{Store, Transaction};
use super::identities::{identify, with_identity};
use super::people::{SIGN_UP_NOTE, create, with_id};
use super::{
    Action, Actor, AuditedChange, Credential, Newcomer, PersonAdded, Result, SignUp, StoreError, accounts, audit_log,
    ledger,
};
use crate::failure::DbResult;
use tintype_domain::identity::Identity;
use tintype_domain::ledger::check_opening;
use tintype_domain::model::Id;
use tintype_domain::person::Role;
use tintype_system::fault::Effect;

/// Counts an attempt from the source $1 on the day $2, unless there were $3 before. Concurrent ones wait for each
/// other.
const COUNT: &str = "
    INSERT INTO sign_ups (source, day, count) SELECT $1, $2, 1 WHERE CAST($3 AS bigint) > 0
    ON CONFLICT (source, day) DO UPDATE SET count = sign_ups.count + 1 WHERE sign_ups.count < $3";

/// Waits for any other sign-up with the same identity in progress, in any process.
async fn wait(tx: &Transaction<'_>, Identity { issuer, subject }: &Identity) -> DbResult {
    if let Transaction::Postgres(..) = tx {
        let wait = "SELECT pg_advisory_xact_lock(hashtextextended($1 || ' ' || $2, 0))";
        tx.query(wait, &[issuer, subject]).await?;
    }
    Ok(())
}

impl Store {
    /// Creates a non-admin account with its owner and its first credits, and counts the attempt, even if it is rejected
    /// for its name. The audit log names the person as the actor.
    pub async fn sign_up(&self, new: SignUp) -> Result<PersonAdded> {
        self.write(Effect::SignUp, async move |tx| {
            check_opening(new.credits).map_err(StoreError::other)?;
            let (password, identity) = match &new.credential {
                Credential::Password(password) => (Some(password.as_str()), None),
                Credential::Identity(identity) => (None, Some(identity)),
            };
            if let Some(identity) = identity {
                wait(tx, identity).await?;
                if let Some(person) = with_identity(tx, identity).await? {
                    return Ok(PersonAdded::Known(person));
                }
            }
            let now = tx.now();
            if tx.execute(COUNT, &[&new.source, &now.day(), &new.limit]).await? == 0 {
                return Ok(PersonAdded::TooManyToday);
            }
            let (account_id, id) = (tx.new_id(), tx.new_id());
            let taken = tx.query_opt("SELECT 1 FROM people WHERE name = $1 OR id = $1", &[&new.name]).await?;
            let name = match &new.credential {
                _ if taken.is_none() => new.name.clone(),
                Credential::Password(_) => return Ok(PersonAdded::NameTaken),
                Credential::Identity(_) => with_id(&new.name, id),
            };
            // An account's name can be taken where a person's isn't; only the operator sees it.
            if accounts::insert(tx, account_id, &name, "FALSE").await?.is_none() {
                accounts::insert(tx, account_id, &format!("{name}-{account_id}"), "FALSE").await?;
            }
            let created = create(tx, id, account_id, &name, Role::Owner, password).await?;
            let PersonAdded::Done(person) = created else {
                tx.execute("DELETE FROM accounts WHERE id = $1", &[&account_id]).await?;
                return Ok(PersonAdded::NameTaken);
            };
            ledger::open(tx, account_id, new.credits, SIGN_UP_NOTE).await?;
            if let Some(identity) = identity {
                identify(tx, id, identity).await?;
            }
            let provider = identity.map_or("", |identity| &identity.issuer);
            let detail = format!("+{} {provider}", new.credits);
            let audited = AuditedChange::of_person(Action::SignUp, &person).with(detail.trim_end());
            audit_log::record(tx, &Actor::newcomer(&person, &new.source), &audited).await?;
            Ok(PersonAdded::Done(person))
        })
        .await
    }

    /// Adds a person with an identity to an account. The audit log names the person as the actor.
    pub async fn join(&self, new: Newcomer) -> Result<PersonAdded> {
        self.write(Effect::ChangePerson, async move |tx| {
            wait(tx, &new.identity).await?;
            if let Some(person) = with_identity(tx, &new.identity).await? {
                return Ok(PersonAdded::Known(person));
            }
            let id: Id = tx.new_id();
            let mut created = create(tx, id, new.account_id, &new.name, new.role, None).await?;
            if created == PersonAdded::NameTaken {
                created = create(tx, id, new.account_id, &with_id(&new.name, id), new.role, None).await?;
            }
            let PersonAdded::Done(person) = created else { return Ok(PersonAdded::NotPossible) };
            identify(tx, id, &new.identity).await?;
            let detail = format!("{} {}", new.role, new.identity.issuer);
            let audited = AuditedChange::of_person(Action::AddPerson, &person).with(detail);
            audit_log::record(tx, &Actor::newcomer(&person, &new.source), &audited).await?;
            Ok(PersonAdded::Done(person))
        })
        .await
    }

    /// Attempts to sign up from a source today, in UTC.
    pub async fn sign_ups_of(&self, source: &str) -> Result<u32> {
        let sql = "SELECT count FROM sign_ups WHERE source = $1 AND day = $2";
        Ok(self.driver.find(sql, &[&source, &self.driver.now().day()], |row| row.get("count")).await?.unwrap_or(0))
    }

    /// Deletes the counts of the attempts of earlier days. Returns the number of counts.
    pub async fn delete_sign_ups(&self) -> Result<usize> {
        let (sql, today) = ("DELETE FROM sign_ups WHERE day < $1 RETURNING day", self.driver.now().day());
        Ok(self.statement(Effect::DeleteSignUps, sql, &[&today]).await?.len())
    }
}
