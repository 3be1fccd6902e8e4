//! Processes of two releases at once, over a migration that only adds.
//!
//! There is no later release yet. What one would do to the schema is done to it by hand, while processes of this
//! release, then the older one, are at work.

use std::sync::Arc;

use tintype::clock::Clock;
use tokio_util::sync::CancellationToken;

use super::balancer::{Balancer, Met};
use super::node::{Node, Part};
use super::{FOREVER, Site};
use crate::binary::Server;
use crate::crash::work_off;
use crate::postgres::schema;
use crate::process::{ended, send, submit};
use crate::support::TASKS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_the_older_release_go_on_while_a_later_one_adds_to_the_schema() {
    let site = Site::new().await;
    let flags = ["--max-unfinished", "0"];
    let apis: Vec<Node> = (0..2).map(|number| site.start(Part::Api, number, &flags)).collect();
    let worker = site.start(Part::Worker, 0, &flags);
    let key = site.installation.account("ada", FOREVER);
    let balancer = Balancer::start(apis.iter().map(Node::address).collect());
    balancer.until_ready(2).await;
    let (met, stop) = (Arc::<Met>::default(), CancellationToken::new());
    let callers = balancer.callers(&[key.clone(), key.clone()], &met, &stop);
    worked_on(&apis[0].server, &key).await;
    // Everybody waits for it while it goes on, and then goes on.
    let schema = schema(&site.installation.data);
    site.postgres.execute(&format!(
        "BEGIN;
         SET LOCAL search_path TO {schema};
         ALTER TABLE accounts ADD COLUMN plan text;
         ALTER TABLE tasks ADD COLUMN seed bigint, ADD COLUMN stars smallint NOT NULL DEFAULT 0;
         ALTER TABLE queue ADD COLUMN priority smallint NOT NULL DEFAULT 0;
         ALTER TABLE ledger ADD COLUMN invoice text;
         ALTER TABLE api_keys ADD COLUMN scopes text[];
         CREATE TABLE invoices (id text PRIMARY KEY);
         CREATE INDEX ledger_by_invoice ON ledger (invoice);
         SELECT pg_sleep(1);
         UPDATE tintype SET version = version + 1;
         COMMIT"
    ));
    for _ in 0..5 {
        worked_on(&apis[1].server, &key).await;
    }
    stop.cancel();
    callers.join_all().await;
    assert_eq!(*met.failed.lock().expect("no panic"), Vec::<String>::new());
    work_off(&site.installation, &Clock::system()).await;
    for task_id in met.tasks.lock().expect("no panic").iter() {
        let task = send(apis[0].address(), "GET", &format!("{TASKS}/{task_id}"), &key, "").await.json();
        assert_eq!(task["data"]["status"], "completed", "{task}");
    }
    assert_eq!(worker.logged("ERROR"), 0, "{:#?}", worker.lines());
    refused(&site);
}

/// Another process of the older release says what to do.
fn refused(site: &Site) {
    for part in ["api", "worker"] {
        let output = site.installation.run(&[part, "--listen", "127.0.0.1:0"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("was written by a newer Tintype") && said.contains("upgrade this binary"), "{said}");
    }
}

async fn worked_on(server: &Server, key: &str) {
    let task_id = submit(server, key, "a boat").await;
    assert_eq!(ended(server, key, &task_id).await["status"], "completed");
}
