//! Statements for the audit log.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::word;
use super::connection::{Parameter, Transaction};
use crate::failure::Failure;
use crate::{Actor, AuditEntry, AuditLog, Deed, Result, Right, Store};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

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

fn entry(row: &Row) -> Result<AuditEntry> {
    let actor = Actor {
        name: row.try_get("actor")?,
        person_id: row.try_get("person_id")?,
        via: word(row, "via")?,
        source: row.try_get("source")?,
    };
    let deed = Deed {
        action: word(row, "action")?,
        account_id: row.try_get("account_id")?,
        subject: row.try_get("subject")?,
        detail: row.try_get("detail")?,
    };
    Ok(AuditEntry { id: row.try_get("id")?, actor, deed, account: row.try_get("account")? })
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

#[async_trait]
impl AuditLog for PostgresStore {
    fn acting(&self, actor: Actor) -> Arc<dyn Store> {
        Arc::new(Self { parts: self.parts.clone(), actor: Some(Arc::new(actor)), right: self.right })
    }

    fn with_right(&self, right: Right) -> Arc<dyn Store> {
        Arc::new(Self { parts: self.parts.clone(), actor: self.actor.clone(), right: Some(right) })
    }

    async fn audit_entries(&self, account_id: Option<Id>, before: Option<Id>, limit: u32) -> Result<Vec<AuditEntry>> {
        let of_account = if account_id.is_some() { "l.account_id = $1" } else { "$1::text IS NULL" };
        let older = if before.is_some() { "l.id < $2" } else { "$2::text IS NULL" };
        let sql = format!(
            "SELECT l.*, a.name AS account FROM (
                 SELECT id, actor, person_id, via, source, action, account_id, subject, detail FROM audit_log l
                 WHERE {of_account} AND {older} ORDER BY id DESC LIMIT $3
             ) l LEFT JOIN accounts a ON a.id = l.account_id ORDER BY l.id DESC"
        );
        self.database.read(&sql, &[&account_id, &before, &i64::from(limit)]).await?.iter().map(entry).collect()
    }

    async fn delete_audit_entries(&self, cutoff: Timestamp) -> Result<usize> {
        let sql = "DELETE FROM audit_log WHERE id < $1 RETURNING 1";
        let delete = async { Ok(self.database.write(sql, &[&Id::floor(cutoff)]).await?.len()) };
        self.write(Effect::DeleteAuditEntries, delete).await
    }
}
