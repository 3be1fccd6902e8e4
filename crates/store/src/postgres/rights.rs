//! Checks rights before writes.

use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{KEY, api_key};
use super::connection::{Database, Parameter, Transaction};
use super::people::{PERSON, person};
use crate::failure::Failure;
use crate::{Right, StoreError};

/// Whether a right holds.
pub(super) async fn holds(
    database: &Database,
    begun: &Transaction<'_>,
    right: &Right,
    locks: Locks,
) -> std::result::Result<bool, Failure> {
    let now = database.now();
    match right {
        Right::Key(hash) => {
            let sql = format!("SELECT {KEY} FROM api_keys WHERE hash = $1 {}", locks.of_key);
            let row = begun.query_opt(&sql, &[&&hash[..]]).await?;
            Ok(row.as_ref().map(api_key).transpose()?.is_some_and(|key| key.is_valid(now)))
        }
        Right::Session(right) => {
            let sql = format!(
                "SELECT {PERSON}, a.admin FROM sessions s JOIN people p ON p.id = s.person_id
                 JOIN accounts a ON a.id = p.account_id AND a.disabled_at IS NULL
                 WHERE s.hash = $1 AND s.expires_at > $2 {}",
                locks.of_session
            );
            match begun.query_opt(&sql, &[&&right.session[..], &now]).await? {
                Some(row) => Ok(right.holds(&person(&row)?, row.try_get("admin")?)),
                None => Ok(false),
            }
        }
    }
}

/// The rows from which a right follows, as a transaction locks them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Locks {
    of_key: &'static str,
    of_session: &'static str,
}

impl Locks {
    /// Taking the right away waits for the transaction.
    const HELD: Self = Self { of_key: "FOR SHARE", of_session: "FOR NO KEY UPDATE OF p FOR KEY SHARE OF s" };
    /// None, for a transaction that has locked an account: others lock these rows before one.
    pub(super) const NONE: Self = Self { of_key: "", of_session: "" };
}

impl PostgresStore {
    /// Runs `work` in one transaction, if the right by which this store acts still holds.
    pub(crate) async fn transaction<T>(
        &self,
        work: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, Failure>,
    ) -> std::result::Result<T, Failure> {
        let work = async |begun: &Transaction<'_>| {
            if let Some(right) = &self.right
                && !holds(&self.database, begun, right, Locks::HELD).await?
            {
                return Err(StoreError::Revoked.into());
            }
            work(begun).await
        };
        self.database.transaction(work).await
    }

    /// Runs one writing statement, if the right by which this store acts still holds.
    pub(crate) async fn statement(
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
