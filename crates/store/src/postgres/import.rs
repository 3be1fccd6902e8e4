//! Imports a whole installation from SQLite: all rows in one transaction, which is audited before the commit.

use rusqlite::types::Value;
use tokio_postgres::Transaction;

use super::PostgresStore;
use crate::failure::DbError;
use crate::sqlite::SqliteStore;
use crate::{Audit, Result, StoreError, audit, driver};
use tintype_domain::text::hex;

/// Rows per batch.
const PIECE: u32 = 1_000;

/// Outcome of an import.
#[derive(Debug, PartialEq, Eq)]
pub enum Import {
    /// Everything was imported, now or before this move was interrupted, and the audit's result was the same as at the
    /// source.
    Done(Audit),
    /// Nothing was changed: a signal came before the commit was sent.
    Interrupted,
    /// Nothing was changed: this database already has accounts.
    NotEmpty,
    /// Nothing was changed: the imported rows' audit differs from the source's.
    Differs(Audit),
}

impl PostgresStore {
    pub(crate) async fn import(
        &self,
        source: &SqliteStore,
        expected: &Audit,
        progress: impl Fn(u64),
        interrupted: impl Future<Output = ()>,
    ) -> Result<Import> {
        let mut client = self.database.reader().await?;
        let tx = client.transaction().await?;
        let outcome = tokio::select! {
            outcome = self.copy_all(&tx, source, expected, progress) => outcome?,
            () = interrupted => Import::Interrupted,
        };
        // Anything else is rolled back.
        if matches!(outcome, Import::Done(_)) {
            tx.commit().await.map_err(|error| StoreError::from(DbError::Unknown(error.into())))?;
        }
        Ok(outcome)
    }

    async fn copy_all(
        &self,
        tx: &Transaction<'_>,
        source: &SqliteStore,
        expected: &Audit,
        progress: impl Fn(u64),
    ) -> Result<Import> {
        tx.batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0").await?;
        tx.batch_execute("LOCK TABLE accounts IN EXCLUSIVE MODE").await?;
        let any: bool = tx.query_one("SELECT EXISTS (SELECT 1 FROM accounts)", &[]).await?.try_get(0)?;
        if any {
            let sql = "SELECT value FROM secrets WHERE name = 'move'";
            let known: Option<Vec<u8>> = tx.query_opt(sql, &[]).await?.map(|row| row.try_get(0)).transpose()?;
            let was_committed = known.is_some_and(|known| source.move_id().is_ok_and(|id| id == known));
            return Ok(if was_committed { Import::Done(expected.clone()) } else { Import::NotEmpty });
        }
        // Cursors from the source stay valid.
        tx.batch_execute("DELETE FROM secrets").await?;
        let tables = source.tables()?;
        for (table, keys) in &tables {
            self.copy(tx, source, table, *keys, &progress).await?;
        }
        tx.batch_execute(
            "SELECT setval(pg_get_serial_sequence('ledger', 'id'), (SELECT coalesce(max(id), 1) FROM ledger))",
        )
        .await?;
        tx.batch_execute("INSERT INTO unindexed (task_id) SELECT id FROM tasks WHERE surface = 'web' AND prompt <> ''")
            .await?;
        let audit = audit::of(tx).await?;
        if audit != *expected {
            return Ok(Import::Differs(audit));
        }
        // Without statistics the first queries would be slow. ANALYZE is part of the transaction, so that its failure
        // leaves nothing behind.
        let names: Vec<_> = tables.iter().map(|(table, _)| table.as_str()).collect();
        tx.batch_execute(&format!("ANALYZE {}", names.join(", "))).await?;
        Ok(Import::Done(audit))
    }

    /// Copies the columns that this database has.
    async fn copy(
        &self,
        tx: &Transaction<'_>,
        source: &SqliteStore,
        table: &str,
        keys: usize,
        progress: &impl Fn(u64),
    ) -> Result<()> {
        let target = tx.prepare(&format!("SELECT * FROM {table}")).await?;
        let names: Vec<&str> = target.columns().iter().map(|column| column.name()).collect();
        // The rows of a batch as one JSON text. The server converts each value for its column.
        let insert = format!(
            "INSERT INTO {table} OVERRIDING SYSTEM VALUE
             SELECT * FROM json_populate_recordset(NULL::{table}, $1::text::json)"
        );
        let mut last = Vec::new();
        loop {
            let rows = source.rows(table, &names, keys, &last, PIECE)?;
            let Some(row) = rows.last() else { return Ok(()) };
            last = row[..keys].to_vec();
            let object = |row: &Vec<Value>| -> serde_json::Map<_, _> {
                names.iter().zip(row).map(|(name, value)| ((*name).to_owned(), json(value))).collect()
            };
            let objects: Vec<_> = rows.iter().map(object).collect();
            tx.execute(&insert, &[&driver::json(&objects)]).await?;
            progress(rows.len() as u64);
        }
    }
}

/// A SQLite value as PostgreSQL reads it from JSON.
fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Integer(number) => (*number).into(),
        Value::Real(number) => (*number).into(),
        Value::Text(text) => text.as_str().into(),
        Value::Blob(bytes) => format!("\\x{}", hex(bytes)).into(),
    }
}
