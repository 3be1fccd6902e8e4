//! Imports a whole installation from SQLite: all rows in one transaction, which is audited before the commit.

use std::pin::pin;

use bytes::BytesMut;
use rusqlite::types::Value;
use tokio_postgres::Transaction;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::failure::Failure;
use super::{PostgresStore, audit, partitions};
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::store::sqlite::Snapshot;
use crate::store::{Audit, Result, StoreError};

/// Rows per batch.
const PIECE: u32 = 5_000;

/// A table that both databases have. Its first column is its key.
struct Table {
    name: &'static str,
    columns: &'static [(&'static str, Type)],
}

const TABLES: [Table; 8] = [
    Table { name: "secrets", columns: &[("name", Type::TEXT), ("value", Type::BYTEA)] },
    Table {
        name: "accounts",
        columns: &[("id", Type::TEXT), ("name", Type::TEXT), ("disabled_at", Type::INT8), ("deleted_at", Type::INT8)],
    },
    Table {
        name: "api_keys",
        columns: &[
            ("id", Type::TEXT),
            ("account_id", Type::TEXT),
            ("hash", Type::BYTEA),
            ("name", Type::TEXT),
            ("hint", Type::TEXT),
            ("submit_rate", Type::INT8),
            ("read_rate", Type::INT8),
            ("expires_at", Type::INT8),
            ("disabled", Type::BOOL),
            ("revoked_at", Type::INT8),
            ("leaked_at", Type::INT8),
            ("suspended_at", Type::INT8),
            ("suspended_for", Type::TEXT),
            ("last_used_at", Type::INT8),
        ],
    },
    Table {
        name: "tasks",
        columns: &[
            ("id", Type::TEXT),
            ("account_id", Type::TEXT),
            ("surface", Type::TEXT),
            ("image_to_image", Type::BOOL),
            ("status", Type::TEXT),
            ("updated_at", Type::INT8),
            ("images", Type::TEXT),
            ("error", Type::TEXT),
            ("n", Type::INT2),
            ("aspect_ratio", Type::TEXT),
            ("reference_images", Type::TEXT),
            ("prompt", Type::TEXT),
            ("request_id", Type::TEXT),
            ("removed_at", Type::INT8),
        ],
    },
    Table {
        name: "queue",
        columns: &[
            ("task_id", Type::TEXT),
            ("account_id", Type::TEXT),
            ("ready_at", Type::INT8),
            ("lease_epoch", Type::INT8),
            ("lease_until", Type::INT8),
            ("lost_leases", Type::INT4),
            ("key_id", Type::TEXT),
        ],
    },
    Table {
        name: "ledger",
        columns: &[
            ("id", Type::INT8),
            ("account_id", Type::TEXT),
            ("kind", Type::TEXT),
            ("amount", Type::INT8),
            ("balance", Type::INT8),
            ("created_at", Type::INT8),
            ("task_id", Type::TEXT),
            ("note", Type::TEXT),
        ],
    },
    Table { name: "queue_pause", columns: &[("id", Type::INT8), ("paused_at", Type::INT8)] },
    Table { name: "strikes", columns: &[("task_id", Type::TEXT), ("key_id", Type::TEXT), ("created_at", Type::INT8)] },
];

/// Outcome of an import.
#[derive(Debug, PartialEq, Eq)]
pub enum Import {
    /// Everything was imported, and the audit gives the same result as at the source.
    Done(Audit),
    /// Nothing was changed: this database already has accounts.
    NotEmpty,
    /// Nothing was changed: the audit of the imported rows differs from that of the source.
    Differs(Audit),
}

impl PostgresStore {
    /// Copies all rows of `source`, whose audit is `expected`, into this empty database. `progress` is called with the
    /// number of rows of each batch.
    ///
    /// # Errors
    /// [`StoreError`]; nothing was changed, unless the outcome is unknown.
    pub async fn import(&self, source: &Snapshot, expected: &Audit, progress: impl Fn(u64)) -> Result<Import> {
        let mut client = self.database.reader().await?;
        let begun = client.transaction().await?;
        begun
            .batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
            .await?;
        begun.batch_execute("LOCK TABLE accounts IN EXCLUSIVE MODE").await?;
        let any: bool = begun.query_one("SELECT EXISTS (SELECT 1 FROM accounts)", &[]).await?.try_get(0)?;
        if any {
            return Ok(Import::NotEmpty);
        }
        // Cursors from the source stay valid.
        begun.batch_execute("DELETE FROM secrets").await?;
        for table in &TABLES {
            self.copy(&begun, source, table, &progress).await?;
        }
        begun
            .batch_execute(
                "SELECT setval(pg_get_serial_sequence('ledger', 'id'), (SELECT coalesce(max(id), 1) FROM ledger))",
            )
            .await?;
        let audit = audit::of(&begun).await?;
        if audit != *expected {
            return Ok(Import::Differs(audit));
        }
        // Without statistics the first queries would be slow. ANALYZE is part of the transaction, so that its failure
        // leaves nothing behind.
        begun.batch_execute(&format!("ANALYZE {}", TABLES.each_ref().map(|table| table.name).join(", "))).await?;
        begun.commit().await.map_err(|error| StoreError::from(Failure::Unknown(error.into())))?;
        Ok(Import::Done(audit))
    }

    async fn copy(
        &self,
        begun: &Transaction<'_>,
        source: &Snapshot,
        table: &Table,
        progress: &impl Fn(u64),
    ) -> Result<()> {
        let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
        let types: Vec<Type> = table.columns.iter().map(|(_, ty)| ty.clone()).collect();
        let mut last = Value::Null;
        loop {
            let rows = source.rows(table.name, &names, &last, PIECE)?;
            let (Some(first), Some(row)) = (rows.first(), rows.last()) else { return Ok(()) };
            last = row[0].clone();
            if table.name == "tasks" {
                partitions::prepare(&self.database, made_at(first)?, made_at(row)?).await?;
            }
            let sink = begun.copy_in(&format!("COPY {} ({}) FROM STDIN BINARY", table.name, names.join(", "))).await?;
            let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
            for row in &rows {
                let cells: Vec<Cell<'_>> = row.iter().map(Cell).collect();
                writer.as_mut().write_raw(cells.iter()).await?;
            }
            writer.finish().await?;
            progress(rows.len() as u64);
        }
    }
}

/// The time of creation of a task, from its id in the first column.
fn made_at(task: &[Value]) -> Result<Timestamp> {
    let Value::Text(id) = &task[0] else { return Err(StoreError::Other("a task has no id".into())) };
    let id: Id = id.parse().map_err(|error| StoreError::Other(format!("the task {id:?}: {error}").into()))?;
    Ok(id.timestamp())
}

/// A SQLite value to write into a column.
#[derive(Debug)]
struct Cell<'a>(&'a Value);

impl ToSql for Cell<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match (self.0, ty) {
            (Value::Null, _) => Ok(IsNull::Yes),
            (Value::Text(text), _) => text.to_sql(ty, out),
            (Value::Blob(bytes), _) => bytes.to_sql(ty, out),
            (Value::Integer(number), &Type::BOOL) => (*number != 0).to_sql(ty, out),
            (Value::Integer(number), &Type::INT2) => i16::try_from(*number)?.to_sql(ty, out),
            (Value::Integer(number), &Type::INT4) => i32::try_from(*number)?.to_sql(ty, out),
            (Value::Integer(number), _) => number.to_sql(ty, out),
            (Value::Real(number), _) => Err(format!("no column holds {number}").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
