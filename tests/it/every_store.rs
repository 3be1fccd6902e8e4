//! Callers see no difference between databases: the tests of whole services run a second time on PostgreSQL.

use crate::rigs::binary::{Ran as _, Run as _};
use std::process::{Command, Stdio};

/// The tests that speak to a whole service in their own process. Of the studio, those whose outcome the database decides:
/// browsers take long, and the tests of the store run on both anyway.
const MODULES: [&str; 36] = [
    "audit_log::entries",
    "auth::",
    "budgets::",
    "endings::",
    "engines::diffusion::broken::a_task_",
    "fair_shares::",
    "fetching::",
    "files::",
    "limits::",
    "list::",
    "openai_aliases::a_",
    "openai_background::",
    "openai_edits::",
    "openai_face::",
    "openai_retries::",
    "openai_streams::",
    "policy::",
    "progress::",
    "queue::",
    "read::",
    "retention::",
    "strikes::",
    "studio::bin::",
    "studio::invitations::",
    "studio::second_factor::",
    "studio::sign_up::",
    "studio::spending::",
    "studio::strikes::",
    "studio::surfaces::",
    "studio::uploads::",
    "submit::",
    "sweeper::",
    "sweeps::",
    "webhooks::delivery::",
    "webhooks::hostile::",
    "work::",
];

/// Tests that measure time on a paused clock. The clock advances while PostgreSQL works, because this process then only
/// waits.
const ON_A_PAUSED_CLOCK: [&str; 3] = [
    "a_body_that_does_not_arrive_is_408",
    "failed_authentications_from_one_address_are_delayed_and_valid_keys_are_not",
    "delayed_refusals_do_not_reveal_which_keys_exist",
];

/// Tests whose names contain that of a module by chance, and those of bodies that never become a submit.
const OTHERS: [&str; 3] = ["decoder::files::", "openai_edits::hostile::", "s3::files::"];

#[test]
fn the_tests_of_whole_services_pass_on_postgres() {
    let skipped = ON_A_PAUSED_CLOCK.iter().chain(&OTHERS).flat_map(|name| ["--skip", name]);
    run_again("TEST_STORE", "postgres", &MODULES.into_iter().chain(skipped).collect::<Vec<_>>());
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
