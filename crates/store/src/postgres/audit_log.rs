//! Writes that the audit log records.

use super::PostgresStore;
use super::connection::{Database, Transaction};
use crate::failure::Failure;
use crate::{Actor, Deed, Result, audit_log, driver};

pub(super) async fn record(
    database: &Database,
    begun: &Transaction<'_>,
    actor: &Actor,
    deed: &Deed,
) -> std::result::Result<(), Failure> {
    audit_log::record(&driver::Transaction::Postgres(database, begun), actor, deed).await
}

impl PostgresStore {
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
                record(&self.database, begun, actor, &deed).await?;
            }
            Ok(outcome)
        };
        Ok(self.transaction(recorded).await?)
    }
}
