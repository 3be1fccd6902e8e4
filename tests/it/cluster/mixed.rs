//! Processes of two releases run at once during a migration that only adds.
//!
//! The test makes the changes of a later release by hand while processes of this release, then the older one, work.
//! With the program of a real older release, this release is the later one:
//! `TINTYPE_OLDER=/path/to/tintype cargo test --locked --test it cluster::mixed`

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::join;
use tintype_store::Schema;
use tintype_store::postgres::{self, SCHEMA};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;
use tokio_util::sync::CancellationToken;

use crate::rigs::binary::{Ran as _, Server};
use crate::rigs::cluster::balancer::{Balancer, Met};
use crate::rigs::cluster::node::{HANG, Node, Part};
use crate::rigs::cluster::{FOREVER, Site};
use crate::rigs::http::{ended, submit};
use crate::rigs::installation::Installation;
use crate::rigs::postgres::schema;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_the_older_release_keep_working_during_an_additive_migration() {
    #[expect(clippy::disallowed_methods, reason = "what to run is a setting of this test")]
    let program: Option<PathBuf> = std::env::var_os("TINTYPE_OLDER").map(PathBuf::from);
    let site = Site::new().await;
    let older = Installation {
        program: program.clone().unwrap_or_else(|| site.installation.program.clone()),
        ..site.installation.clone()
    };
    let flags = ["--max-unfinished", "0"];
    let apis: Vec<Node> = (0..2).map(|number| Node::start(Part::Api, number, &older, &flags)).collect();
    let worker = Node::start(Part::Worker, 0, &older, &flags);
    let key = older.account("ada", FOREVER);
    let balancer = Balancer::start(apis.iter().map(Node::address).collect());
    balancer.until_ready(2).await;
    let (met, stop) = (Arc::<Met>::default(), CancellationToken::new());
    let callers = balancer.callers(&[key.clone(), key.clone()], &met, &stop);
    worked_on(&apis[0].server, &key).await;
    let later = program.map(|_| {
        let later = [Part::Api, Part::Worker].map(|part| site.start(part, 2, &flags));
        balancer.add(later[0].address());
        later
    });
    if later.is_none() {
        add_to_the_schema(&site).await;
    }
    for _ in 0..5 {
        worked_on(&apis[1].server, &key).await;
    }
    stop.cancel();
    callers.join_all().await;
    assert_eq!(*met.failed.lock().expect("no panic"), Vec::<String>::new());
    let tasks = met.tasks.lock().expect("no panic").clone();
    for task_id in &tasks {
        assert_eq!(ended(&apis[0].server, &key, task_id).await["status"], "completed");
    }
    assert_eq!(worker.logged("ERROR"), 0, "{:#?}", worker.lines());
    // A new process of the older release refuses to start and says what to do.
    for part in ["api", "worker"] {
        let said = older.run(&[part, "--listen", "127.0.0.1:0"]).exited(1).errors();
        assert!(said.contains("was written by a newer Tintype") && said.contains("upgrade this binary"), "{said}");
    }
}

async fn worked_on(server: &Server, key: &str) {
    let task_id = submit(server, key, "a boat").await;
    assert_eq!(ended(server, key, &task_id).await["status"], "completed");
}

/// Adds columns, tables and indexes as a migration of a later release does, until the migration has to wait for a lock.
async fn add_to_the_schema(site: &Site) {
    let schema = schema(&site.installation.data);
    let migration = format!(
        "BEGIN;
         SET LOCAL search_path TO {schema};
         SET LOCAL lock_timeout = '500ms';
         ALTER TABLE accounts ADD COLUMN plan text;
         ALTER TABLE tasks ADD COLUMN seed bigint, ADD COLUMN stars smallint NOT NULL DEFAULT 0;
         ALTER TABLE queue ADD COLUMN priority smallint NOT NULL DEFAULT 0;
         ALTER TABLE ledger ADD COLUMN invoice text;
         ALTER TABLE api_keys ADD COLUMN scopes text[];
         CREATE TABLE invoices (id text PRIMARY KEY);
         CREATE INDEX ledger_by_invoice ON ledger (invoice);
         UPDATE tintype SET version = version + 1"
    );
    let session = site.postgres.session().await;
    let migrated = async {
        while session.batch_execute(&migration).await.is_err() {
            session.batch_execute("ROLLBACK").await.expect("the cluster runs");
        }
    };
    tokio::time::timeout(HANG, migrated).await.expect("the tables can be changed");
    site.postgres.until_waiting(&schema).await;
    session.batch_execute("COMMIT").await.expect("the cluster runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_waits_for_a_lock_blocks_no_other_statement() {
    let site = Site::new().await;
    let schema = schema(&site.installation.data);
    let url = site.postgres.url(&site.installation.data);
    let open = async |schema: Schema| {
        postgres::open_with(&url, None, Clock::system(), Faults::default(), &schema).await.expect("a database")
    };
    drop(open(SCHEMA).await);
    // A long report, or a backup.
    let reader = site.postgres.session().await;
    let tables = "accounts, api_keys, tasks, queue, ledger, strikes";
    let read = format!("BEGIN; SET LOCAL search_path TO {schema}; LOCK TABLE {tables} IN ACCESS SHARE MODE");
    reader.batch_execute(&read).await.expect("a lock");
    let changes: &[&str] = [SCHEMA.changes, &["ALTER TABLE tasks ADD COLUMN seed bigint"]].concat().leak();
    let later = Schema { changes, ..SCHEMA };
    let statements = async {
        site.postgres.until_waiting(&schema).await;
        for table in tables.split(", ").cycle().take(60) {
            let session = site.postgres.session().await;
            let statement = format!("SET lock_timeout = '5s'; SELECT count(*) FROM {schema}.{table}");
            session.batch_execute(&statement).await.expect("it does not wait behind the migration");
        }
        // After the last of several attempts, the migration still waits.
        site.postgres.until_waiting(&schema).await;
        reader.batch_execute("COMMIT").await.expect("an end");
    };
    join(open(later), statements).await;
    let version: i32 = site.postgres.query(&format!("SELECT version FROM {schema}.tintype"))[0].get(0);
    assert_eq!(i64::from(version), later.version());
}
