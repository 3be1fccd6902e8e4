//! Statements for the audit log.


use super::PostgresStore;
use super::connection::{Parameter, Transaction};
use crate::failure::Failure;
use crate::{Actor, Deed, Result};
use tintype_domain::model::Id;

const RECORD: &str = "INSERT INTO audit_log (id, actor, person_id, via, source, action, account_id, subject, detail)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";

pub(super) async fn record(
    begun: &Transaction<'_>,
    id: Id,
    actor: &Actor,
    deed: &Deed,
) -> std::result::Result<(), Failure> {
    let (via, action) = (actor.via.as_str(), deed.action.as_str());
    let parameters: [Parameter<'_>; 9] = [
        &id,
        &actor.name,
        &actor.person_id,
        &via,
        &actor.source,
        &action,
        &deed.account_id,
        &deed.subject,
        &deed.detail,
    ];
    begun.execute(RECORD, &parameters).await?;
    Ok(())
}

impl PostgresStore {
    /// The person who acts.
    pub(super) fn person(&self) -> Option<Id> {
        self.actor.as_ref().and_then(|actor| actor.person_id)
    }

    /// Does a change in a transaction, in which the audit log records it, if somebody acts and `deed` finds that it
    /// changed something.
    pub(super) async fn recorded<T>(
        &self,
        change: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, Failure>,
        deed: impl FnOnce(&T) -> Option<Deed>,
    ) -> Result<T> {
        let recorded = async |begun: &Transaction<'_>| {
            let outcome = change(begun).await?;
            if let Some(actor) = &self.actor
                && let Some(deed) = deed(&outcome)
            {
                record(begun, self.database.new_id(), actor, &deed).await?;
            }
            Ok(outcome)
        };
        Ok(self.transaction(recorded).await?)
    }
}
