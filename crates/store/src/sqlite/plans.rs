//! Every statement about one account finds its rows by an index, however many other accounts have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::trace::{TraceEvent, TraceEventCodes};
use rusqlite::{Connection, params_from_iter, types};

use super::schema::SCHEMA;
use tintype_domain::timestamp::Timestamp;
use tintype_system::clock::Clock;

#[path = "../../tests/it/store/account_walk.rs"]
mod account_walk;

/// The statements that were sent to each database.
static SENT: Mutex<BTreeMap<PathBuf, BTreeSet<String>>> = Mutex::new(BTreeMap::new());

fn sent() -> MutexGuard<'static, BTreeMap<PathBuf, BTreeSet<String>>> {
    SENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a connection's statements.
pub(super) fn note(connection: &mut Connection, path: &Path) -> rusqlite::Result<()> {
    let path = path.to_owned();
    let note = move |event: TraceEvent<'_>| {
        if let TraceEvent::Stmt(statement, _) = event {
            sent().entry(path.clone()).or_default().insert(statement.sql().into_owned());
        }
    };
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(note))
}

/// An empty database with the schema in force.
pub(crate) fn empty() -> Connection {
    let connection = Connection::open_in_memory().expect("a database");
    connection.execute_batch(SCHEMA.in_force).expect("valid SQL");
    connection
}

/// The steps of the plan of a statement.
pub(crate) fn steps(connection: &Connection, sql: &str) -> Vec<String> {
    let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect(sql);
    let none = vec![types::Null; plan.parameter_count()];
    let steps = plan.query_map(params_from_iter(none), |row| row.get(3)).expect(sql);
    steps.collect::<rusqlite::Result<_>>().expect(sql)
}

/// The steps of the plan of a statement that read a whole table.
fn scans(connection: &Connection, sql: &str) -> Vec<String> {
    let steps = steps(connection, sql);
    let harmless = ["SCAN CONSTANT ROW", "SCAN json_each", "SCAN (", "SCAN w VIRTUAL TABLE INDEX"];
    // The rows of a subquery, whose own steps are judged.
    let named =
        |step: &String| step.strip_prefix("CO-ROUTINE ").or(step.strip_prefix("MATERIALIZE ")).map(str::to_owned);
    let subqueries: Vec<_> = steps.iter().filter_map(named).map(|name| format!("SCAN {name}")).collect();
    let is_scan = |step: &&String| {
        step.starts_with("SCAN") && !harmless.iter().any(|start| step.starts_with(start)) && !subqueries.contains(step)
    };
    steps.iter().filter(is_scan).cloned().collect()
}

#[tokio::test]
async fn no_statement_about_one_account_reads_the_rows_of_all() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let path = directory.path().join("tintype.db");
    let store = super::open(&path, Clock::manual(Timestamp::from_millis(1_800_000_000_000))).expect("a database");
    account_walk::walk(&store).await.expect("a store");
    let sent = sent().get(&path).cloned().unwrap_or_default();
    let of_account = |sql: &&String| {
        let text = sql.split_whitespace().collect::<Vec<_>>().join(" ");
        ["account_id = ?", "account_id = $", "account_id = :", "account_id = sought.", "account_id IN (SELECT value"]
            .iter()
            .any(|scope| text.contains(scope))
    };
    let connection = empty();
    let mut checked = 0;
    for sql in sent.iter().filter(of_account) {
        let scans = scans(&connection, sql);
        assert!(scans.is_empty(), "{sql}: {scans:?}");
        checked += 1;
    }
    // If this falls, the walk or the trace no longer sees what the store sends.
    assert!(checked > 40, "{checked} of {}", sent.len());
}
