//! What callers see is the same whatever the database: the tests of whole services run once more on PostgreSQL.

use std::process::{Command, Stdio};

/// The tests that speak to a whole service in their own process.
const MODULES: [&str; 12] = [
    "auth::",
    "envelope::",
    "files::",
    "https::",
    "limits::",
    "list::",
    "policy::",
    "read::",
    "retention::",
    "strikes::",
    "submit::",
    "work::",
];

#[test]
fn whole_services_run_on_postgres_too() {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    // The store has tests of its own, which run on every database under their own names. And a paused clock runs ahead
    // while a database far away thinks.
    command
        .args(MODULES)
        .args(["--skip", "store::", "--skip", "a_body_that_does_not_arrive_is_408"])
        .env("TEST_STORE", "postgres")
        .stdin(Stdio::null());
    let output = command.output().expect("this program runs once more");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "TEST_STORE=postgres: {said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!said.contains("running 0 tests"), "{said}");
    println!("{}", said.lines().filter(|line| line.starts_with("test result")).collect::<String>());
}
