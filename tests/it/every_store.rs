//! Callers see no difference between databases: the tests of whole services run a second time on PostgreSQL.

use crate::rigs::binary::{Ran as _, Run as _};
use std::process::{Command, Stdio};

/// The tests of whole services whose outcome the database decides: who is first, what waits for what, what one process
/// hears of another, and what a page of a list holds. Every method of the store is tested on both databases anyway, so
/// the dialects, the policy and most of the studio, which only call them, run on one.
const MODULES: [&str; 23] = [
    "auth::a_key_expires_by_the_time_of_the_database",
    "budgets::",
    "endings::",
    "fair_shares::requests::",
    "fair_shares::work::",
    "fetching::",
    "limits::",
    "list::",
    "openai_retries::",
    "progress::",
    "queue::",
    "read::",
    "retention::",
    "studio::invitations::",
    "studio::second_factor::",
    "studio::strikes::",
    "studio::surfaces::",
    "submit::",
    "sweeper::",
    "sweeps::",
    "webhooks::delivery::",
    "webhooks::hostile::",
    "work::",
];

#[test]
fn the_tests_of_whole_services_pass_on_postgres() {
    let all = Command::new(std::env::current_exe().expect("this program")).arg("--list").ran().succeeded();
    for module in MODULES {
        assert!(all.lines().any(|test| test.contains(module)), "{module} has no tests: was it renamed?");
    }
    run_again("TEST_STORE", "postgres", &MODULES);
}

/// Runs tests of this program again with a variable that selects a database.
pub fn run_again(variable: &str, value: &str, tests: &[&str]) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(tests).env(variable, value).stdin(Stdio::null());
    let output = command.ran();
    let said = output.text();
    // What failed comes last: a log that is cut keeps its end.
    let failures = said.find("\nfailures:").map_or(&*said, |start| &said[start..]);
    let logged = output.errors();
    assert!(output.status.success(), "{logged}\n{variable}={value}: {failures}");
    assert!(!said.contains("running 0 tests"), "{said}");
    println!("{}", said.lines().filter(|line| line.starts_with("test result")).collect::<String>());
}
