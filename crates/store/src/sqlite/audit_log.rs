//! Statements for the audit log.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Row, named_params, params};

use super::SqliteStore;
use super::columns::word;
use super::writer::Writing;
use crate::{Actor, AuditEntry, AuditLog, Deed, Result, Right, Store};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

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

fn entry(row: &Row<'_>) -> rusqlite::Result<AuditEntry> {
    let actor = Actor {
        name: row.get("actor")?,
        person_id: row.get("person_id")?,
        via: word(row, "via")?,
        source: row.get("source")?,
    };
    let deed = Deed {
        action: word(row, "action")?,
        account_id: row.get("account_id")?,
        subject: row.get("subject")?,
        detail: row.get("detail")?,
    };
    Ok(AuditEntry { id: row.get("id")?, actor, deed, account: row.get("account")? })
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

#[async_trait]
impl AuditLog for SqliteStore {
    fn acting(&self, actor: Actor) -> Arc<dyn Store> {
        Arc::new(Self { parts: self.parts.clone(), actor: Some(Arc::new(actor)), right: self.right })
    }

    fn with_right(&self, right: Right) -> Arc<dyn Store> {
        Arc::new(Self { parts: self.parts.clone(), actor: self.actor.clone(), right: Some(right) })
    }

    async fn audit_entries(&self, account_id: Option<Id>, before: Option<Id>, limit: u32) -> Result<Vec<AuditEntry>> {
        let of_account = if account_id.is_some() { "l.account_id = ?1" } else { "?1 IS NULL" };
        let older = if before.is_some() { "l.id < ?2" } else { "?2 IS NULL" };
        let sql = format!(
            "SELECT l.*, a.name AS account FROM audit_log l LEFT JOIN accounts a ON a.id = l.account_id
             WHERE {of_account} AND {older} ORDER BY l.id DESC LIMIT ?3"
        );
        self.read(|connection| {
            connection.prepare_cached(&sql)?.query_map(params![account_id, before, limit], entry)?.collect()
        })
    }

    async fn delete_audit_entries(&self, cutoff: Timestamp) -> Result<usize> {
        let delete = move |writing: &mut Writing| {
            writing.connection.prepare_cached("DELETE FROM audit_log WHERE id < ?1")?.execute([Id::floor(cutoff)])
        };
        self.write(Effect::DeleteAuditEntries, delete).await
    }
}
