//! Checks rights before writes.

use tokio_postgres::{Row, Transaction};

use super::PostgresStore;
use super::columns::{KEY, api_key};
use super::connection::{Database, Parameter};
use super::failure::Failure;
use super::people::{PERSON, person};
use crate::store::{Right, StoreError};

/// Fails unless a right holds. Locks what it follows from, so that whoever takes it away waits for this transaction.
async fn check(database: &Database, begun: &Transaction<'_>, right: &Right) -> std::result::Result<(), Failure> {
    let now = database.now();
    let holds = match right {
        Right::Key(hash) => {
            let sql = format!("SELECT {KEY} FROM api_keys WHERE hash = $1 FOR SHARE");
            let row = begun.query_opt(&sql, &[&&hash[..]]).await?;
            row.as_ref().map(api_key).transpose()?.is_some_and(|key| key.is_valid(now))
        }
        Right::Session(right) => {
            let sql = format!(
                "SELECT {PERSON}, a.admin FROM sessions s JOIN people p ON p.id = s.person_id
                 JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL
                 WHERE s.hash = $1 AND s.expires_at > $2 FOR NO KEY UPDATE OF p FOR KEY SHARE OF s"
            );
            match begun.query_opt(&sql, &[&&right.session[..], &now]).await? {
                Some(row) => right.holds(&person(&row)?, row.try_get("admin")?),
                None => false,
            }
        }
    };
    if holds { Ok(()) } else { Err(StoreError::Revoked.into()) }
}

impl PostgresStore {
    /// Runs `work` in one transaction, if the right by which this store acts still holds.
    pub(super) async fn transaction<T>(
        &self,
        work: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let work = async |begun: &Transaction<'_>| {
            if let Some(right) = &self.right {
                check(&self.database, begun, right).await?;
            }
            work(begun).await
        };
        self.database.transaction(work).await
    }

    /// Runs one writing statement, if the right by which this store acts still holds.
    pub(super) async fn statement(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> std::result::Result<Vec<Row>, Failure> {
        if self.right.is_none() {
            return self.database.write(sql, parameters).await;
        }
        self.transaction(async |begun: &Transaction<'_>| Ok(begun.query(sql, parameters).await?)).await
    }
}
