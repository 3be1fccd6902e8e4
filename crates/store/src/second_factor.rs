//! Second factors.

use super::driver::{Parameter, Store, Transaction};
use super::people::{self, PERSON, person};
use super::{Action, Result, StoreError, audit_log};
use crate::failure::DbResult;
use tintype_domain::model::Id;
use tintype_domain::person::TokenHash;
use tintype_domain::second_factor::{Factor, FactorCode, FactorSecret, NewFactor};
use tintype_system::fault::Effect;

/// Uses a code up; returns whether it worked. Locks the person first, as every change of a second factor does.
pub(crate) async fn use_code(tx: &Transaction<'_>, person_id: Id, code: &FactorCode) -> DbResult<bool> {
    people::lock(tx, person_id).await?;
    let used = match code {
        FactorCode::Step(secret, step) => {
            let sql = "UPDATE people SET factor_step = $3 WHERE id = $1 AND factor_secret = $2 AND factor_step < $3";
            tx.execute(sql, &[&person_id, &secret.bytes(), step]).await?
        }
        FactorCode::Recovery(hash) => {
            let sql = "DELETE FROM recovery_codes WHERE person_id = $1 AND hash = $2";
            tx.execute(sql, &[&person_id, &hash]).await?
        }
    };
    Ok(used > 0)
}

async fn insert_codes(tx: &Transaction<'_>, person_id: Id, codes: &[TokenHash]) -> DbResult {
    for hash in codes {
        let sql = "INSERT INTO recovery_codes (person_id, hash) VALUES ($1, $2)";
        tx.execute(sql, &[&person_id, &hash]).await?;
    }
    Ok(())
}

/// Ends sessions and links after the lock on the person, so that no session of a sign-in in progress is missed. Returns
/// the number of sessions.
pub(crate) async fn end_sessions(tx: &Transaction<'_>, person_id: Id, kept: Option<Id>) -> DbResult<u64> {
    tx.execute("DELETE FROM sign_in_links WHERE person_id = $1", &[&person_id]).await?;
    let sql = "DELETE FROM sessions WHERE person_id = $1 AND id IS DISTINCT FROM $2";
    tx.execute(sql, &[&person_id, &kept]).await
}

impl Store {
    /// The second factor of a person; `None` if the person has none.
    pub async fn find_factor(&self, person_id: Id) -> Result<Option<Factor>> {
        let sql =
            "SELECT factor_secret, factor_step, (SELECT count(*) FROM recovery_codes WHERE person_id = $1) AS codes
            FROM people WHERE id = $1 AND factor_secret IS NOT NULL";
        let Some(row) = self.driver.read_one(sql, &[&person_id]).await? else { return Ok(None) };
        let secret = FactorSecret::from_bytes(&row.get::<Vec<u8>>("factor_secret")?);
        let secret = secret.ok_or_else(|| StoreError::other("a second factor has a secret of another length"))?;
        Ok(Some(Factor { secret, step: row.get("factor_step")?, recovery_codes: row.get("codes")? }))
    }

    /// Turns on the second factor of a person without one, and ends all of the person's sign-in links and sessions,
    /// except the session with the id `kept`. Returns whether it is on now; `false` if the person already has one.
    pub async fn add_factor(&self, person_id: Id, new: NewFactor, kept: Id) -> Result<bool> {
        self.write(Effect::ChangePerson, async move |tx| {
            let sql = format!(
                "UPDATE people SET factor_secret = $2, factor_step = $3, sessions_ended_at = $4
                 WHERE id = $1 AND factor_secret IS NULL RETURNING {PERSON}"
            );
            let parameters: [&dyn Parameter; 4] = [&person_id, &new.secret.bytes(), &new.step, &tx.now()];
            let changed = tx.find(&sql, &parameters, person).await?;
            if changed.is_some() {
                insert_codes(tx, person_id, &new.recovery).await?;
                end_sessions(tx, person_id, Some(kept)).await?;
            }
            audit_log::of_person(tx, Action::AddFactor, changed).await
        })
        .await
    }

    /// Removes the second factor of a person who turns it off, with its recovery codes, and ends sign-in links and
    /// sessions, except the session with the id `kept`. Returns whether there was one.
    pub async fn remove_factor(&self, person_id: Id, kept: Id) -> Result<bool> {
        self.end_factor(person_id, Action::RemoveFactor, Some(kept)).await
    }

    /// [`Store::remove_factor`] by the operator, for a person who has lost the app. All sessions end.
    pub async fn reset_factor(&self, person_id: Id) -> Result<bool> {
        self.end_factor(person_id, Action::ResetFactor, None).await
    }

    async fn end_factor(&self, person_id: Id, action: Action, kept: Option<Id>) -> Result<bool> {
        self.write(Effect::ChangePerson, async move |tx| {
            let sql = format!(
                "UPDATE people SET factor_secret = NULL, factor_step = NULL, sessions_ended_at = $2
                 WHERE id = $1 AND factor_secret IS NOT NULL RETURNING {PERSON}"
            );
            let changed = tx.find(&sql, &[&person_id, &tx.now()], person).await?;
            if changed.is_some() {
                tx.execute("DELETE FROM recovery_codes WHERE person_id = $1", &[&person_id]).await?;
                end_sessions(tx, person_id, kept).await?;
            }
            audit_log::of_person(tx, action, changed).await
        })
        .await
    }

    /// Replaces all recovery codes of a person. Returns whether the person has a second factor, without which nothing
    /// changes.
    pub async fn replace_recovery_codes(&self, person_id: Id, codes: Vec<TokenHash>) -> Result<bool> {
        self.write(Effect::ChangePerson, async move |tx| {
            let sql = format!("SELECT {PERSON} FROM people WHERE id = $1 AND factor_secret IS NOT NULL");
            let Some(row) = tx.lock(&sql, &[&person_id]).await? else { return Ok(false) };
            tx.execute("DELETE FROM recovery_codes WHERE person_id = $1", &[&person_id]).await?;
            insert_codes(tx, person_id, &codes).await?;
            audit_log::of_person(tx, Action::ReplaceRecoveryCodes, Some(person(&row)?)).await
        })
        .await
    }

    /// Uses a code up. Returns whether it worked: it does once, and only while it belongs to the second factor of the
    /// person.
    pub async fn use_code(&self, person_id: Id, code: FactorCode) -> Result<bool> {
        self.write(Effect::SignIn, async move |tx| use_code(tx, person_id, &code).await).await
    }
}
