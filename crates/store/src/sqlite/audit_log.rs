//! Statements for the audit log.

use rusqlite::named_params;

use super::SqliteStore;
use super::writer::Writing;
use crate::{Actor, Deed};
use tintype_domain::model::Id;

pub(super) fn record(writing: &mut Writing, actor: &Actor, deed: &Deed) -> rusqlite::Result<()> {
    let id = writing.ids.next(writing.clock.now());
    writing
        .connection
        .prepare_cached(
            "INSERT INTO audit_log (id, actor, person_id, via, source, action, account_id, subject, detail)
             VALUES (:id, :actor, :person, :via, :source, :action, :account, :subject, :detail)",
        )?
        .execute(named_params! {
            ":id": id,
            ":actor": actor.name,
            ":person": actor.person_id,
            ":via": actor.via.as_str(),
            ":source": actor.source,
            ":action": deed.action.as_str(),
            ":account": deed.account_id,
            ":subject": deed.subject,
            ":detail": deed.detail,
        })
        .map(drop)
}

impl SqliteStore {
    /// The person who acts.
    pub(super) fn person(&self) -> Option<Id> {
        self.actor.as_ref().and_then(|actor| actor.person_id)
    }

    /// A change that the audit log records in the same commit, if somebody acts and `deed` finds that it changed
    /// something.
    pub(super) fn recorded<T, A, D>(
        &self,
        mut change: A,
        deed: D,
    ) -> impl FnMut(&mut Writing) -> rusqlite::Result<T> + Send + 'static + use<T, A, D>
    where
        A: FnMut(&mut Writing) -> rusqlite::Result<T> + Send + 'static,
        D: Fn(&T) -> Option<Deed> + Send + 'static,
    {
        let actor = self.actor.clone();
        move |writing| {
            let outcome = change(writing)?;
            if let Some(actor) = &actor
                && let Some(deed) = deed(&outcome)
            {
                record(writing, actor, &deed)?;
            }
            Ok(outcome)
        }
    }
}
