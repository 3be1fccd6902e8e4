//! Statements for keys and their strikes.

use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Transaction;

use super::columns::{KEY, api_key};
use super::connection::{Database, Parameter, TRANSACTION_TIMEOUT};
use super::{PostgresStore, queue};
use crate::clock::Timestamp;
use crate::domain::key::{ApiKey, KeyHash};
use crate::domain::model::{CREDITS_PER_IMAGE, Id};
use crate::fault::Effect;
use crate::store::{KeyChange, Keys, Lease, NewKey, Refusal, Result, StrikeRule};

/// $1 is the id and $2 the account, which must exist; the statement checks it in a table with one row per account.
fn insertion() -> String {
    format!(
        "INSERT INTO api_keys (id, account_id, hash, name, hint, submit_rate, read_rate, expires_at)
         SELECT $1, account_id, $3, $4, $5, $6::bigint, $7::bigint, $8::bigint
         FROM account_names WHERE account_id = $2 RETURNING {KEY}"
    )
}

pub(super) async fn create(database: &Database, account_id: Id, key: &NewKey) -> Result<Option<ApiKey>> {
    let (submit_rate, read_rate) = (key.submit_rate.map(i64::from), key.read_rate.map(i64::from));
    let hash = &key.hash[..];
    let id = database.new_id();
    let rows = database
        .write(
            &insertion(),
            &[&id, &account_id, &hash, &key.name, &key.hint, &submit_rate, &read_rate, &key.expires_at],
        )
        .await?;
    rows.first().map(api_key).transpose()
}

/// The same within a transaction.
pub(super) async fn insert(begun: &Transaction<'_>, id: Id, account_id: Id, key: &NewKey) -> Result<()> {
    let (submit_rate, read_rate) = (key.submit_rate.map(i64::from), key.read_rate.map(i64::from));
    let hash = &key.hash[..];
    begun
        .query(
            &insertion(),
            &[&id, &account_id, &hash, &key.name, &key.hint, &submit_rate, &read_rate, &key.expires_at],
        )
        .await?;
    Ok(())
}

pub(super) async fn find(database: &Database, id: Id) -> Result<Option<ApiKey>> {
    let sql = format!("SELECT {KEY} FROM api_keys WHERE id = $1");
    database.read_one(&sql, &[&id]).await?.as_ref().map(api_key).transpose()
}

pub(super) async fn find_by_hash(database: &Database, hash: &KeyHash) -> Result<Option<ApiKey>> {
    let sql = format!("SELECT {KEY} FROM api_keys WHERE hash = $1");
    database.read_one(&sql, &[&&hash[..]]).await?.as_ref().map(api_key).transpose()
}

pub(super) async fn list(database: &Database, account_id: Option<Id>) -> Result<Vec<ApiKey>> {
    let sql = format!("SELECT {KEY} FROM api_keys WHERE $1::text IS NULL OR account_id = $1 ORDER BY id");
    database.read(&sql, &[&account_id]).await?.iter().map(api_key).collect()
}

pub(super) async fn change(database: &Database, id: Id, change: KeyChange) -> Result<Option<ApiKey>> {
    let set = match change {
        KeyChange::Enable => "disabled = false, suspended_at = NULL, suspended_for = NULL",
        KeyChange::Disable => "disabled = true",
        KeyChange::Revoke => "revoked_at = coalesce(revoked_at, $2)",
        KeyChange::FlagLeaked => "leaked_at = coalesce(leaked_at, $2)",
    };
    let forget = change == KeyChange::Enable;
    let sql = format!(
        "WITH forgotten AS (DELETE FROM strikes WHERE $3 AND key_id = $1)
         UPDATE api_keys SET {set} WHERE id = $1 AND $2::bigint IS NOT NULL RETURNING {KEY}"
    );
    let rows = database.write(&sql, &[&id, &database.now(), &forget]).await?;
    rows.first().map(api_key).transpose()
}

pub(super) async fn rotate(
    database: &Database,
    id: Id,
    hash: KeyHash,
    hint: &str,
    overlap: Duration,
) -> Result<Option<ApiKey>> {
    let sql = format!(
        "WITH old AS (
            UPDATE api_keys k SET expires_at = least(before.expires_at, $5::bigint)
            FROM (SELECT id, expires_at FROM api_keys WHERE id = $2 AND revoked_at IS NULL FOR NO KEY UPDATE) before
            WHERE k.id = before.id
            RETURNING k.account_id, k.name, k.submit_rate, k.read_rate, before.expires_at, k.disabled, k.suspended_at,
                k.suspended_for
        ), struck AS (
            UPDATE strikes SET key_id = $1 WHERE key_id = $2 AND EXISTS (SELECT 1 FROM old)
        )
        INSERT INTO api_keys
            (id, account_id, hash, name, hint, submit_rate, read_rate, expires_at, disabled, suspended_at, suspended_for)
        SELECT $1, account_id, $3, name, $4, submit_rate, read_rate, expires_at, disabled, suspended_at, suspended_for
        FROM old RETURNING {KEY}"
    );
    let rotate = async |begun: &Transaction<'_>| {
        // The row lock makes concurrent strikes wait, and earlier strikes are visible to the next statement.
        begun.execute("SELECT 1 FROM api_keys WHERE id = $1 FOR NO KEY UPDATE", &[&id]).await?;
        let end = database.now().saturating_add(overlap);
        let new = begun.query_opt(&sql, &[&database.new_id(), &id, &&hash[..], &hint, &end]).await?;
        new.as_ref().map(api_key).transpose()
    };
    database.transaction(TRANSACTION_TIMEOUT, rotate).await
}

pub(super) async fn touch(database: &Database, uses: &[(Id, Timestamp)]) -> Result<()> {
    let (ids, times): (Vec<Id>, Vec<Timestamp>) = uses.iter().copied().unzip();
    // Locked in the order of their ids, because other processes update the same keys.
    let sql = "
        WITH uses AS (
            SELECT id, max(at) AS at FROM unnest($1::text[], $2::bigint[]) AS u (id, at) GROUP BY id
        ), found AS (
            SELECT id FROM api_keys WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE
        )
        UPDATE api_keys k SET last_used_at = uses.at FROM uses JOIN found ON found.id = uses.id
        WHERE k.id = uses.id AND (k.last_used_at IS NULL OR k.last_used_at < uses.at)";
    database.write(sql, &[&ids, &times]).await?;
    Ok(())
}

/// Fails and refunds a leased task and, if there is a strike rule, adds a strike to its key.
pub(super) async fn refuse(
    database: &Database,
    lease: Lease,
    error: &str,
    rule: Option<StrikeRule>,
) -> Result<Refusal> {
    let refuse = async |begun: &Transaction<'_>| {
        let (given, now) = (database.given_time(), database.now());
        let fail = queue::fail_leased();
        let parameters: [Parameter<'_>; 5] = [&error, &given, &CREDITS_PER_IMAGE, &lease.task_id, &lease.epoch];
        let Some(row) = begun.query_opt(&fail, &parameters).await? else { return Ok(Refusal::Lost) };
        let mut suspended = None;
        if let (Some(rule), Some(key_id)) = (rule, row.try_get::<_, Option<Id>>("key_id")?)
            && strike(begun, lease.task_id, key_id, rule, now).await?
        {
            suspended = Some(key_id);
        }
        Ok(Refusal::Done { suspended })
    };
    database.transaction(TRANSACTION_TIMEOUT, refuse).await
}

/// Adds a strike to the key of a task; returns whether it suspends the key.
async fn strike(begun: &Transaction<'_>, task_id: Id, key_id: Id, rule: StrikeRule, now: Timestamp) -> Result<bool> {
    let begin = now.saturating_sub(rule.window);
    // The row lock makes concurrent strikes wait, so that they count this one too.
    begun.execute("SELECT 1 FROM api_keys WHERE id = $1 FOR NO KEY UPDATE", &[&key_id]).await?;
    begun.execute("DELETE FROM strikes WHERE key_id = $1 AND created_at <= $2", &[&key_id, &begin]).await?;
    let strike = "INSERT INTO strikes (task_id, key_id, created_at) VALUES ($1, $2, $3)";
    begun.execute(strike, &[&task_id, &key_id, &now]).await?;
    // Tasks in progress may add further strikes; the first suspension remains.
    let suspend = "UPDATE api_keys SET suspended_at = $2, suspended_for = $3 WHERE id = $1 AND suspended_at IS NULL
        AND (SELECT count(*) FROM strikes WHERE key_id = $1) >= $4";
    let reason = rule.to_string();
    Ok(begun.execute(suspend, &[&key_id, &now, &reason, &i64::from(rule.limit)]).await? == 1)
}

#[async_trait]
impl Keys for PostgresStore {
    async fn create_key(&self, account_id: Id, key: NewKey) -> Result<Option<ApiKey>> {
        self.write(Effect::CreateKey, create(&self.database, account_id, &key)).await
    }

    async fn find_key(&self, id: Id) -> Result<Option<ApiKey>> {
        find(&self.database, id).await
    }

    async fn find_key_by_hash(&self, hash: KeyHash) -> Result<Option<ApiKey>> {
        find_by_hash(&self.database, &hash).await
    }

    async fn list_keys(&self, account_id: Option<Id>) -> Result<Vec<ApiKey>> {
        list(&self.database, account_id).await
    }

    async fn change_key(&self, id: Id, change: KeyChange) -> Result<Option<ApiKey>> {
        self.write(Effect::ChangeKey, self::change(&self.database, id, change)).await
    }

    async fn rotate_key(&self, id: Id, hash: KeyHash, hint: &str, overlap: Duration) -> Result<Option<ApiKey>> {
        self.write(Effect::RotateKey, rotate(&self.database, id, hash, hint, overlap)).await
    }

    async fn touch_keys(&self, uses: Vec<(Id, Timestamp)>) -> Result<()> {
        self.write(Effect::TouchKeys, async { touch(&self.database, &uses).await }).await
    }
}
