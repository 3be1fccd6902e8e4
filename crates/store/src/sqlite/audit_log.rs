//! Writes that the audit log records.

use super::SqliteStore;
use super::writer::Writing;
use crate::driver::{Transaction, on_sqlite};
use crate::{Actor, Deed, Result, StoreError, audit_log};

pub(super) fn record(writing: &mut Writing, actor: &Actor, deed: &Deed) -> rusqlite::Result<()> {
    let recorded = on_sqlite(writing, async |begun: &Transaction<'_>| audit_log::record(begun, actor, deed).await);
    recorded.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

impl SqliteStore {
    /// A change that the audit log records in the same commit, if somebody acts and `deed` finds that it changed
    /// something.
    pub(super) fn recorded<T, E, A, D>(
        &self,
        mut change: A,
        deed: D,
    ) -> impl FnMut(&mut Writing) -> Result<T> + Send + 'static + use<T, E, A, D>
    where
        E: Into<StoreError>,
        A: FnMut(&mut Writing) -> std::result::Result<T, E> + Send + 'static,
        D: Fn(&T) -> Option<Deed> + Send + 'static,
    {
        let actor = self.actor.clone();
        move |writing| {
            let outcome = change(writing).map_err(Into::into)?;
            if let Some(actor) = &actor
                && let Some(deed) = deed(&outcome)
            {
                on_sqlite(writing, async |begun: &Transaction<'_>| audit_log::record(begun, actor, &deed).await)?;
            }
            Ok(outcome)
        }
    }
}
