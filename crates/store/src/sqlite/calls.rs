//! Statements for calls of OpenAI's dialect.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::SqliteStore;
use super::writer::Writing;
use crate::{Attachment, Call, CallEnd, Calls, Result};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// The task that a call finds, and the digest of the call that made it.
pub(super) fn find(
    connection: &Connection,
    key_id: Id,
    call: &Call,
    now: Timestamp,
) -> rusqlite::Result<Option<(Id, [u8; 32])>> {
    let (attempts, since) = call.reach(now);
    let found = match call.idempotency {
        Some(idempotency) => connection
            .prepare_cached("SELECT task_id, digest FROM calls WHERE key_id = ?1 AND idempotency = ?2")?
            .query_row(params![key_id, idempotency], |row| Ok((row.get(0)?, row.get(1)?))),
        None => connection
            .prepare_cached(
                "SELECT task_id, digest FROM calls
                 WHERE key_id = ?1 AND digest = ?2 AND idempotency IS NULL AND delivered_at IS NULL AND attempt < ?3
                     AND task_id >= ?4 AND (?5 OR holder IS NULL)
                 ORDER BY holder IS NOT NULL, task_id LIMIT 1",
            )?
            .query_row(params![key_id, call.digest, attempts, since, call.counted], |row| {
                Ok((row.get(0)?, row.get(1)?))
            }),
    };
    found.optional()
}

/// Writes down the call that made a task.
pub(super) fn record(connection: &Connection, task_id: Id, key_id: Id, call: &Call) -> rusqlite::Result<()> {
    let sql =
        "INSERT INTO calls (task_id, key_id, digest, idempotency, attempt, holder) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let Call { digest, idempotency, attempt, holder, counted: _, wants_previews: _ } = call;
    connection.prepare_cached(sql)?.execute(params![task_id, key_id, digest, idempotency, attempt, holder])?;
    Ok(())
}

#[async_trait]
impl Calls for SqliteStore {
    async fn attach_call(&self, key_id: Id, call: Call) -> Result<Attachment> {
        if call.idempotency.is_some() {
            let now = self.clock.now();
            let found = self.read(|connection| find(connection, key_id, &call, now))?;
            return Ok(match found {
                None => Attachment::None,
                Some((id, digest)) if digest == call.digest => Attachment::Task(id),
                Some(_) => Attachment::OtherChoices,
            });
        }
        let attach = move |writing: &mut Writing| {
            let now = writing.clock.now();
            let Some((id, _)) = find(&writing.connection, key_id, &call, now)? else { return Ok(Attachment::None) };
            let sql = "UPDATE calls SET attempt = ?2, holder = ?3 WHERE task_id = ?1";
            writing.connection.prepare_cached(sql)?.execute(params![id, call.attempt, call.holder])?;
            Ok(Attachment::Task(id))
        };
        self.write(Effect::AttachCall, attach).await
    }

    async fn holds_call(&self, task_id: Id, holder: i64) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM calls WHERE task_id = ?1 AND holder = ?2)";
        self.read(|connection| connection.prepare_cached(sql)?.query_row(params![task_id, holder], |row| row.get(0)))
    }

    async fn end_call(&self, task_id: Id, holder: i64, end: CallEnd) -> Result<bool> {
        let ending = move |writing: &mut Writing| {
            let delivered_at = (end == CallEnd::Delivered).then(|| writing.clock.now());
            let sql = "UPDATE calls SET holder = NULL, delivered_at = ?3 WHERE task_id = ?1 AND holder = ?2";
            Ok(writing.connection.prepare_cached(sql)?.execute(params![task_id, holder, delivered_at])? > 0)
        };
        self.write(Effect::EndCall, ending).await
    }

    async fn delete_calls(&self, cutoff: Timestamp) -> Result<usize> {
        let delete = move |writing: &mut Writing| {
            let sql = "DELETE FROM calls WHERE task_id < ?1";
            writing.connection.prepare_cached(sql)?.execute([Id::floor(cutoff)])
        };
        self.write(Effect::DeleteCalls, delete).await
    }
}
