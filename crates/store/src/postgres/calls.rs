//! Statements for calls of OpenAI's dialect.

use async_trait::async_trait;

use super::PostgresStore;
use super::connection::{Parameter, Transaction};
use crate::failure::Failure;
use crate::{Attachment, Call, CallEnd, Calls, Result};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::Effect;

/// Takes over a task of fewer attempts than $3 for the attempt $7 of the holder $4. The lock makes concurrent attempts
/// wait for each other; the update repeats the conditions, because the row may have changed before the lock.
const ATTACH: &str = "
    WITH free AS MATERIALIZED (
        SELECT task_id FROM calls
        WHERE key_id = $1 AND digest = $2 AND idempotency IS NULL AND delivered_at IS NULL AND attempt < $3
            AND task_id >= $5 AND ($6 OR holder IS NULL)
        ORDER BY holder IS NOT NULL, task_id LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    UPDATE calls SET attempt = $7, holder = $4 FROM free
    WHERE calls.task_id = free.task_id AND delivered_at IS NULL AND attempt < $3 AND ($6 OR holder IS NULL)
    RETURNING calls.task_id";

/// Whether a call would find the task of another one.
pub(super) async fn exists(
    begun: &Transaction<'_>,
    key_id: Id,
    call: &Call,
    now: Timestamp,
) -> std::result::Result<bool, Failure> {
    let found = match call.idempotency {
        Some(idempotency) => {
            let sql = "SELECT 1 FROM calls WHERE key_id = $1 AND idempotency = $2";
            begun.query_opt(sql, &[&key_id, &idempotency.as_slice()]).await?
        }
        None => {
            let sql = "SELECT 1 FROM calls WHERE key_id = $1 AND digest = $2 AND idempotency IS NULL
                AND delivered_at IS NULL AND attempt < $3 AND task_id >= $4 AND ($5 OR holder IS NULL) LIMIT 1";
            let (attempts, since) = call.reach(now);
            let parameters: [Parameter<'_>; 5] =
                [&key_id, &call.digest.as_slice(), &i64::from(attempts), &since, &call.counted];
            begun.query_opt(sql, &parameters).await?
        }
    };
    Ok(found.is_some())
}

/// Writes down the call that made a task.
pub(super) async fn record(
    begun: &Transaction<'_>,
    task_id: Id,
    key_id: Id,
    call: &Call,
) -> std::result::Result<(), Failure> {
    let sql = "INSERT INTO calls (task_id, key_id, digest, idempotency, attempt, holder)
        VALUES ($1, $2, $3, $4, $5, $6)";
    let Call { digest, idempotency, attempt, holder, counted: _, wants_previews: _ } = call;
    let (idempotency, attempt) = (idempotency.as_ref().map(<[u8; 32]>::as_slice), i64::from(*attempt));
    begun.execute(sql, &[&task_id, &key_id, &digest.as_slice(), &idempotency, &attempt, holder]).await?;
    Ok(())
}

#[async_trait]
impl Calls for PostgresStore {
    async fn attach_call(&self, key_id: Id, call: Call) -> Result<Attachment> {
        let digest = call.digest.as_slice();
        if let Some(idempotency) = call.idempotency {
            let sql = "SELECT task_id, digest FROM calls WHERE key_id = $1 AND idempotency = $2";
            let found = self.database.read_one(sql, &[&key_id, &idempotency.as_slice()]).await?;
            let Some(row) = found else { return Ok(Attachment::None) };
            let same = row.try_get::<_, &[u8]>("digest")? == digest;
            return Ok(if same { Attachment::Task(row.try_get("task_id")?) } else { Attachment::OtherChoices });
        }
        let attach = async {
            let (before, since) = call.reach(self.database.now());
            let (before, attempt) = (i64::from(before), i64::from(call.attempt));
            let rows = self
                .statement(ATTACH, &[&key_id, &digest, &before, &call.holder, &since, &call.counted, &attempt])
                .await?;
            Ok(match rows.first() {
                Some(row) => Attachment::Task(row.try_get(0)?),
                None => Attachment::None,
            })
        };
        self.write(Effect::AttachCall, attach).await
    }

    async fn holds_call(&self, task_id: Id, holder: i64) -> Result<bool> {
        let sql = "SELECT 1 FROM calls WHERE task_id = $1 AND holder = $2";
        Ok(self.database.read_one(sql, &[&task_id, &holder]).await?.is_some())
    }

    async fn end_call(&self, task_id: Id, holder: i64, end: CallEnd) -> Result<bool> {
        let sql = "UPDATE calls SET holder = NULL, delivered_at = $3::bigint WHERE task_id = $1 AND holder = $2
            RETURNING task_id";
        let ending = async {
            let delivered_at = (end == CallEnd::Delivered).then(|| self.database.now());
            Ok(!self.database.write(sql, &[&task_id, &holder, &delivered_at]).await?.is_empty())
        };
        self.write(Effect::EndCall, ending).await
    }

    async fn delete_calls(&self, cutoff: Timestamp) -> Result<usize> {
        let sql = "DELETE FROM calls WHERE task_id < $1 RETURNING task_id";
        let delete = async { Ok(self.database.write(sql, &[&Id::floor(cutoff)]).await?.len()) };
        self.write(Effect::DeleteCalls, delete).await
    }
}
