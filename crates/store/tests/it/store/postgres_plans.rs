//! Every statement about one account finds its rows by an index, however many other accounts have: by the plans that the
//! server itself reports, also of the statements within functions.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use tintype_domain::model::Surface;
use tintype_domain::request::GenerateRequest;
use tintype_store::{Store, Submission};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

use super::account_walk;
use tintype_rigs::database::NOON;
use tintype_rigs::postgres::{Cluster, Durability, schema};

/// The tables in which one account may have any number of rows.
const TABLES: [&str; 18] = [
    "api_keys",
    "audit_log",
    "board_tasks",
    "boards",
    "calls",
    "deletions",
    "endpoints",
    "expiring_grants",
    "failed_prompts",
    "invitations",
    "ledger",
    "people",
    "prompts",
    "queue",
    "shared_links",
    "stars",
    "tasks",
    "uploads",
];

/// The plans in the log of a server, with their statements.
fn plans(log: &str) -> Vec<Value> {
    let plans = log.split("  plan:\n").skip(1);
    let json = plans.map(|rest| rest.lines().take_while(|line| line.starts_with('\t')).collect::<String>());
    json.map(|json| serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))).collect()
}

/// Adds the steps of a plan that read a whole table or a whole index.
fn scans(step: &Value, found: &mut Vec<String>) {
    let text = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
    let (kind, table) = (text("Node Type"), text("Relation Name"));
    let reads_index = ["Index Scan", "Index Only Scan"].contains(&kind.as_str());
    // The first row tells whether there is an account at all; a condition may read all of them.
    let seeks_account = table == "accounts" && !step["Filter"].is_null();
    if (seeks_account || TABLES.contains(&table.as_str()))
        && (kind == "Seq Scan" || (reads_index && step["Index Cond"].is_null()))
    {
        found.push(format!("{kind} of {table} {}", text("Index Name")));
    }
    for below in step["Plans"].as_array().into_iter().flatten() {
        scans(below, found);
    }
}

/// Gives another account so many tasks that no plan reads all.
async fn fill(cluster: &Cluster, directory: &Path, store: &Store) {
    let Some(other) = store.create_account("eve", 100).await.expect("a store") else { panic!("the name is taken") };
    let request = GenerateRequest::parse(br#"{"prompt": "a boat"}"#, &[443]).expect("a request");
    let submitted = store.submit(other.id, None, Surface::Api, request, 9).await.expect("a store");
    assert!(matches!(submitted, Submission::Accepted(_)), "{submitted:?}");
    let tasks = format!("{}.tasks", schema(directory));
    cluster.execute(&format!(
        "INSERT INTO {tasks} SELECT (jsonb_populate_record(t, jsonb_build_object('id', t.id || number))).*
         FROM {tasks} t, generate_series(1, 10000) number; ANALYZE {tasks}"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_about_one_account_reads_the_rows_of_all() {
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(Durability::Nothing)));
    for setting in [
        "log_min_messages = 'log'",
        "session_preload_libraries = 'auto_explain'",
        "auto_explain.log_min_duration = 0",
        "auto_explain.log_nested_statements = on",
        "auto_explain.log_format = 'json'",
        // Small tables are read as a whole to be merged or hashed; the plans of large ones are looked for.
        "enable_seqscan = off",
        "enable_mergejoin = off",
        "enable_hashjoin = off",
        "plan_cache_mode = 'force_generic_plan'",
    ] {
        cluster.execute(&format!("LOAD 'auto_explain'; ALTER ROLE tintype SET {setting}"));
    }
    let directory = TempDir::new().expect("a directory");
    let store = cluster.open(directory.path(), &Clock::manual(NOON), Faults::default());
    fill(cluster, directory.path(), &store).await;
    let log = || std::fs::read_to_string(cluster.directory.join("log")).expect("a log");
    let migrations = log().len();
    account_walk::walk(&store).await.expect("a store");
    let log = log();
    let (mut checked, mut wrong) = (BTreeSet::new(), BTreeSet::new());
    for plan in plans(&log[migrations..]) {
        let sql = plan["Query Text"].as_str().expect("a statement");
        let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_of_account =
            ["account_id = $", "account_id = account", "account_id = ANY ($", "INSERT INTO accounts"].iter();
        if is_of_account.clone().any(|scope| sql.contains(scope)) {
            let mut found = Vec::new();
            scans(&plan["Plan"], &mut found);
            wrong.extend(found.into_iter().map(|scan| format!("{scan}: {sql}")));
            checked.insert(sql);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // If this falls, the walk or the log no longer shows what the store sends.
    assert!(checked.len() > 40, "{}", checked.len());
}
