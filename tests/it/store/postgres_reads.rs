//! How much PostgreSQL reads to find what is asked for, also among dead rows that an old snapshot keeps.

use std::time::Duration;

use tempfile::TempDir;

use super::fixture::Fixture;
use crate::postgres::{cluster, schema};
use crate::support::Backend;

/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Closes a store and opens another; returns how many index entries were read until then in the schema, of the tables
/// whose names are like `tables`: the server counts what a session did when it ends, at the latest.
pub async fn entries_read(fx: &mut Fixture, tables: &str) -> i64 {
    let schema = schema(fx.directory.path());
    let closed = Backend::Postgres.open(&TempDir::new().expect("a directory"), &fx.clock);
    drop(std::mem::replace(&mut fx.store, closed));
    let open = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'");
    let ended = async { while cluster().number(&open) != 0 {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("its sessions end");
    fx.store = fx.another_process();
    cluster().number(&format!(
        "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes
         WHERE schemaname = '{schema}' AND relname LIKE '{tables}'"
    ))
}
