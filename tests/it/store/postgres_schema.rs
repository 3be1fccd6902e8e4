//! PostgreSQL only: the schema, its creation, and its migration from earlier releases.

use std::path::Path;

use futures::future::join_all;
use tempfile::TempDir;
use tintype_domain::model::Surface;
use tintype_store::{AccountCreation, Fleet as _, GalleryFilter, OpenError, Result};

use super::fixture::{Fixture, new_key};
use super::postgres_server::open;
use crate::rigs::postgres::{cluster, schema};
use crate::rigs::service::Backend;

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_refused() {
    let directory = TempDir::new().expect("a directory");
    drop(open(&directory).await.expect("a fresh schema"));
    cluster().execute(&format!("UPDATE {}.tintype SET version = 99", schema(directory.path())));
    let error = open(&directory).await.expect_err("a newer schema");
    assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("upgrade this binary"), "{error}");
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

/// The database of the first release: an account with a key, a failed and a waiting task, whose ids end in 1 and 2.
const FIRST_RELEASE: &str = "
    INSERT INTO secrets VALUES ('cursor', '\\x00');
    INSERT INTO accounts VALUES ('FAAAAAAAAAAAAAAAAAAA0', 'ada', 98, 1), ('FAAAAAAAAAAAAAAAAAAB0', 'bob', 0, 0);
    INSERT INTO api_keys (id, account_id, hash, name, hint)
      VALUES ('FAAAAAAAAAAAAAAAAAAA9', 'FAAAAAAAAAAAAAAAAAAA0', '\\x01', 'laptop', 'abcd');
    CREATE TABLE tasks_1953 PARTITION OF tasks FOR VALUES FROM ('FAAAAAAAAAAAAAAAAAAA0') TO ('FAAAAAAAAAAAAAAAAAAA9');
    INSERT INTO tasks VALUES
      ('FAAAAAAAAAAAAAAAAAAA1', 'FAAAAAAAAAAAAAAAAAAA0', 'api', false, 'failed', 1000, NULL, 'it sank', 1, '1:1', '[]', 'a boat'),
      ('FAAAAAAAAAAAAAAAAAAA2', 'FAAAAAAAAAAAAAAAAAAA0', 'api', false, 'processing', 1000, NULL, NULL, 1, '1:1', '[]', 'a boat');
    INSERT INTO queue (task_id, account_id) VALUES ('FAAAAAAAAAAAAAAAAAAA2', 'FAAAAAAAAAAAAAAAAAAA0');
    INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id) VALUES
      ('FAAAAAAAAAAAAAAAAAAA0', 'grant', 100, 100, 1, NULL),
      ('FAAAAAAAAAAAAAAAAAAA0', 'charge', -2, 98, 1, 'FAAAAAAAAAAAAAAAAAAA1'),
      ('FAAAAAAAAAAAAAAAAAAA0', 'refund', 2, 100, 1, 'FAAAAAAAAAAAAAAAAAAA1'),
      ('FAAAAAAAAAAAAAAAAAAA0', 'charge', -2, 98, 1, 'FAAAAAAAAAAAAAAAAAAA2');
    UPDATE tintype SET version = 1;";

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_the_studio_from_before_the_gallery_are_found() -> Result<()> {
    let directory = TempDir::new().expect("a directory");
    cluster().url(directory.path());
    let initial = include_str!("../../../migrations/postgres/0001_initial.sql");
    let of_studio = "UPDATE tasks SET surface = 'web', prompt = 'a brig' WHERE status = 'failed'";
    let release = format!("SET search_path = {}; {initial}; {FIRST_RELEASE} {of_studio}", schema(directory.path()));
    cluster().execute(&release);
    let fx = Fixture::inside(directory, Backend::Postgres);
    let ada = fx.store.find_account("ada").await?.expect("an account").id;
    assert_eq!(fx.store.index_prompts().await?, 1);
    let found = fx.store.gallery(ada, &GalleryFilter { text: "BRIG".into(), ..Default::default() }, None, 10).await?;
    let found: Vec<&str> = found.records.iter().map(|record| &record.task.id.as_str()[20..]).collect();
    assert_eq!(found, ["1"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_first_release_is_migrated_with_all_its_data() -> Result<()> {
    let directory = TempDir::new().expect("a directory");
    cluster().url(directory.path());
    let initial = include_str!("../../../migrations/postgres/0001_initial.sql");
    cluster().execute(&format!("SET search_path = {}; {initial}; {FIRST_RELEASE}", schema(directory.path())));
    let fx = Fixture::inside(directory, Backend::Postgres);
    let ada = fx.store.find_account("ada").await?.expect("the migration keeps the account").id;
    assert_eq!(fx.store.find_account(ada.as_str()).await?.expect("the account is found by its id").name, "ada");
    let key = fx.store.list_keys(Some(ada)).await?.remove(0);
    assert_eq!((key.name.as_str(), key.last_used_at), ("laptop", None));
    let tasks = fx.store.list_tasks(ada, Surface::Api, None, 10).await?;
    let states: Vec<_> = tasks.iter().map(|task| (&task.id.as_str()[20..], task.status.as_str())).collect();
    assert_eq!(states, [("2", "processing"), ("1", "failed")]);
    assert_eq!(fx.store.audit().await?.drifts, []);
    fx.store.fail(fx.claim().await?, "no ink").await?;
    assert_eq!(fx.credits(ada).await?, 100);
    fx.submit(ada).await?;
    assert_eq!(fx.credits(ada).await?, 98);
    assert!(fx.store.create_key(ada, new_key("phone")).await?.is_some());
    for taken in ["bob", ada.as_str()] {
        assert_eq!(fx.store.create_account(taken, 5).await?, AccountCreation::NameTaken, "{taken}");
    }
    assert_eq!(fx.store.list_accounts().await?.len(), 2);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

/// A removed, a kept and a waiting task in partitions of two months. The months of a completed and of a failed
/// task, whose ids end in 1 and 2, were dropped.
const TASKS_BY_MONTH: &str = "
    INSERT INTO secrets VALUES ('cursor', '\\x00');
    INSERT INTO accounts VALUES ('FAAAAAAAAAAAAAAAAAAA0', 'ada');
    CREATE TABLE tasks_1953_11 PARTITION OF tasks FOR VALUES FROM ('FBAAAAAAAAAAAAAAAAAA0') TO ('FCAAAAAAAAAAAAAAAAAA0');
    CREATE TABLE tasks_1953_12 PARTITION OF tasks FOR VALUES FROM ('FCAAAAAAAAAAAAAAAAAA0') TO ('FDAAAAAAAAAAAAAAAAAA0');
    UPDATE history SET first_id = 'FBAAAAAAAAAAAAAAAAAA0';
    INSERT INTO tasks (id, account_id, surface, image_to_image, status, updated_at, images, n, aspect_ratio,
        reference_images, prompt, removed_at, request_id) VALUES
      ('FBAAAAAAAAAAAAAAAAAA3', 'FAAAAAAAAAAAAAAAAAAA0', 'web', false, 'completed', 1000, '[\"a.png\"]', 2, '1:1', '[]', '', 2000, NULL),
      ('FCAAAAAAAAAAAAAAAAAA4', 'FAAAAAAAAAAAAAAAAAAA0', 'api', true, 'completed', 1000, '[\"b.png\"]', 1, '16:9', '[]', 'a boat', NULL, 'quoted'),
      ('FCAAAAAAAAAAAAAAAAAA5', 'FAAAAAAAAAAAAAAAAAAA0', 'api', false, 'processing', 1000, NULL, 1, '1:1', '[]', 'a ship', NULL, NULL);
    INSERT INTO queue (task_id, account_id) VALUES ('FCAAAAAAAAAAAAAAAAAA5', 'FAAAAAAAAAAAAAAAAAAA0');
    INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
    SELECT 'FAAAAAAAAAAAAAAAAAAA0', kind, amount, balance, 1, task_id FROM (VALUES
      ('grant', 100, 100, NULL),
      ('charge', -8, 92, 'FAAAAAAAAAAAAAAAAAAA1'),
      ('charge', -2, 90, 'FAAAAAAAAAAAAAAAAAAA2'),
      ('refund', 2, 92, 'FAAAAAAAAAAAAAAAAAAA2'),
      ('charge', -4, 88, 'FBAAAAAAAAAAAAAAAAAA3'),
      ('charge', -2, 86, 'FCAAAAAAAAAAAAAAAAAA4'),
      ('charge', -2, 84, 'FCAAAAAAAAAAAAAAAAAA5')) AS entry (kind, amount, balance, task_id);
    UPDATE tintype SET version = 10;";

#[tokio::test(flavor = "multi_thread")]
async fn a_database_with_partitions_and_dropped_months_is_migrated() -> Result<()> {
    let directory = TempDir::new().expect("a directory");
    cluster().url(directory.path());
    let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/postgres");
    let mut earlier: Vec<_> =
        std::fs::read_dir(migrations).expect("a folder").map(|file| file.expect("a file").path()).collect();
    earlier.sort();
    let earlier: String =
        earlier[..10].iter().map(|path| std::fs::read_to_string(path).expect("a migration")).collect();
    cluster()
        .execute(&format!("SET search_path = {}; BEGIN; {earlier}; {TASKS_BY_MONTH} COMMIT", schema(directory.path())));
    let fx = Fixture::inside(directory, Backend::Postgres);
    let ada = fx.store.find_account("ada").await?.expect("the migration keeps the account");
    assert_eq!(ada.credits, 84);
    let audit = fx.store.audit().await?;
    assert_eq!((audit.tasks, audit.entries, audit.drifts), (5, 7, vec![]));
    let listed = fx.store.list_tasks(ada.id, Surface::Api, None, 10).await?;
    let listed: Vec<_> = listed.iter().map(|task| (&task.id.as_str()[20..], task.status.as_str())).collect();
    assert_eq!(listed, [("5", "processing"), ("4", "completed")], "removed tasks stay hidden");
    let record =
        async |id: &str| fx.store.inspect_task(id.parse().expect("an id")).await.map(|task| task.expect("a row"));
    let kept = record("FCAAAAAAAAAAAAAAAAAA4").await?;
    assert_eq!((kept.request.prompt.as_str(), kept.request.request_id.as_deref()), ("a boat", Some("quoted")));
    assert_eq!((kept.task.image_to_image, kept.request.aspect_ratio.as_str()), (true, "16:9"));
    let dropped = [record("FAAAAAAAAAAAAAAAAAAA1").await?, record("FAAAAAAAAAAAAAAAAAAA2").await?];
    let ends = dropped.each_ref().map(|task| (task.task.status.as_str(), task.request.n, task.removed_at.is_some()));
    assert_eq!(ends, [("completed", 4, true), ("failed", 1, true)]);
    assert_eq!(fx.claim().await?.task_id.as_str(), "FCAAAAAAAAAAAAAAAAAA5");
    fx.submit(ada.id).await?;
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}
