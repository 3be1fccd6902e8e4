//! PostgreSQL only: the creation of the schema, and schemas that are refused.

use futures::future::join_all;
use tempfile::TempDir;
use tintype_store::OpenError;

use super::postgres_server::open;
use tintype_rigs::postgres::{cluster, schema};

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_refused() {
    let directory = TempDir::new().expect("a directory");
    drop(open(&directory).await.expect("a fresh schema"));
    cluster().execute(&format!("UPDATE {}.tintype SET version = 999", schema(directory.path())));
    let error = open(&directory).await.expect_err("a newer schema");
    assert!(matches!(error, OpenError::Version(_)), "{error}");
    let said = error.to_string();
    assert!(said.contains("newer Tintype (schema 999;") && said.contains("upgrade this binary"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_program_is_refused_and_not_changed() {
    let directory = TempDir::new().expect("a directory");
    let schema = schema(directory.path());
    cluster().url(directory.path());
    cluster().execute(&format!("CREATE TABLE {schema}.accounts (name text)"));
    let error = open(&directory).await.expect_err("a schema of another program");
    assert!(matches!(error, OpenError::Foreign(_)), "{error}");
    assert_eq!(cluster().number(&format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'")), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_start_at_once_create_one_schema() {
    let directory = TempDir::new().expect("a directory");
    let started = join_all((0..6).map(|_| open(&directory))).await;
    for store in started {
        store.expect("each start waits for the first").ping().await.expect("no store error");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_table_has_a_primary_key_so_that_a_publication_of_all_tables_stops_no_write() {
    let directory = TempDir::new().expect("a directory");
    drop(open(&directory).await.expect("a fresh schema"));
    let found = cluster().query(&format!(
        "SELECT relname::text FROM pg_class WHERE relnamespace = '{}'::regnamespace AND relkind = 'r'
         AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary)",
        schema(directory.path())
    ));
    let without: Vec<String> = found.iter().map(|row| row.get(0)).collect();
    assert_eq!(without, Vec::<String>::new());
}
