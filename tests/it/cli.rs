//! The command line of the operator.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tintype_domain::model::{Surface, Task};
use tintype_domain::request::GenerateRequest;
use tintype_store::{Submission, sqlite};
use tintype_system::clock::Clock;

use crate::person::violate;
use crate::rigs::binary::{self, Ran as _, Run as _, TINTYPE, data, json as run, refused, tintype};

fn names(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn accounts_are_created_and_listed() {
    let data = data();
    let data = data.path();
    let ada = run(data, &["account", "create", "ada", "--credits", "100"]);
    assert_eq!(names(&ada), ["id", "name", "credits"]);
    assert_eq!((&ada["name"], &ada["credits"]), (&json!("ada"), &json!(100)));
    assert_eq!(ada["id"].as_str().map(str::len), Some(21));
    assert!(refused(data, &["account", "create", "ada"]).contains("already"));
    run(data, &["account", "create", "Ünal & Söhne"]);
    let all = run(data, &["account", "list"]);
    let listed = |id: &Value, name, credits, admin| json!({ "id": id, "name": name, "credits": credits, "admin": admin, "state": "active" });
    assert_eq!(all, json!([listed(&ada["id"], "ada", 100, true), listed(&all[1]["id"], "Ünal & Söhne", 0, false)]));
    let said = binary::run(data, ["account", "create", "Ben & Co"]).text();
    let next = "Sign in: tintype account link 'Ben & Co'\nNew key: tintype key create --account 'Ben & Co'\n";
    assert!(said.starts_with("Created account Ben & Co (") && said.ends_with(next), "{said}");
    run(data, &["account", "create", "画像の工房"]);
    let listed = binary::run(data, ["account", "list"]).text();
    // Five characters of two columns each; the longest name has twelve.
    let aligned = |line: &str| line.strip_prefix("画像の工房    ").is_some_and(|id| !id.starts_with(' '));
    assert!(listed.lines().any(aligned), "{listed}");
    assert!(refused(data, &["account", "create", " ada "]).contains("already"));
    let id = ada["id"].as_str().expect("an id");
    assert!(refused(data, &["account", "create", id]).contains("already"), "a name that is an id would be ambiguous");
    for bad in ["", " ", "a\nb", &"x".repeat(101)] {
        assert!(refused(data, &["account", "create", bad]).contains("name"), "{bad:?}");
    }
    assert!(refused(data, &["account", "create", "eve", "--credits=-1"]).contains("--credits"));
}

#[test]
fn credits_are_granted_shown_and_audited() {
    let data = data();
    let data = data.path();
    let id = run(data, &["account", "create", "ada", "--credits", "10"])["id"].as_str().expect("an id").to_owned();
    let granted = run(data, &["credits", "grant", "ada", "5", "--note", "for the poster"]);
    assert_eq!(granted, json!({ "account": "ada", "credits": 15 }));
    assert_eq!(run(data, &["credits", "balance", &id]), json!({ "account": "ada", "credits": 15 }));
    let history = run(data, &["credits", "history", "ada"]);
    assert_eq!(names(&history[0]), ["id", "kind", "amount", "balance", "task_id", "note", "created_at"]);
    let facts: Vec<_> = history
        .as_array()
        .expect("entries")
        .iter()
        .map(|entry| json!([entry["kind"], entry["amount"], entry["balance"], entry["task_id"], entry["note"]]))
        .collect();
    assert_eq!(
        facts,
        [json!(["grant", 5, 15, null, "for the poster"]), json!(["grant", 10, 10, null, "opening balance"])]
    );
    assert_eq!(run(data, &["credits", "history", "ada", "--limit", "1"]).as_array().map(Vec::len), Some(1));
    for bad in ["0", "-5", "1.5", "many", "9999999999999"] {
        assert!(!binary::run(data, ["credits", "grant", "ada", "--", bad]).status.success(), "{bad}");
    }
    assert!(refused(data, &["credits", "balance", "nobody"]).contains("account list"));
    let audit = run(data, &["credits", "audit"]);
    assert_eq!(audit, json!({ "accounts": 1, "tasks": 0, "entries": 2, "drifts": [] }));
}

#[test]
fn an_account_is_disabled_enabled_and_deleted() {
    let data = data();
    let data = data.path();
    run(data, &["account", "create", "ada", "--credits", "10"]);
    let key = run(data, &["key", "create", "--account", "ada"]);
    let id = key["id"].as_str().expect("an id");
    assert!(run(data, &["account", "disable", "ada"])["disabled_at"].is_string());
    assert_eq!(run(data, &["key", "show", id])["state"], "disabled");
    let table = binary::run(data, ["account", "list"]).text();
    assert!(table.contains("disabled"), "{table}");
    assert_eq!(run(data, &["account", "list"])[0]["state"], "disabled");
    let enabled = run(data, &["account", "enable", "ada"]);
    assert_eq!((&enabled["state"], &enabled["disabled_at"]), (&json!("active"), &Value::Null));
    assert_eq!(run(data, &["key", "show", id])["state"], "active");

    let said = refused(data, &["account", "delete", "ada"]);
    assert!(said.contains("was not deleted") && said.contains("--yes"), "{said}");
    for (typed, deletes) in [("eve\n", false), ("ada\n", true)] {
        assert_eq!(run(data, &["key", "show", id])["state"], "active");
        let script = format!("printf '{typed}' | {TINTYPE} account delete ada --data {}", data.display());
        let output = Command::new("sh").args(["-c", &script]).ran();
        assert_eq!(output.status.success(), deletes, "{output:?}");
    }
    assert_eq!(run(data, &["key", "show", id])["state"], "revoked");
    assert!(refused(data, &["account", "enable", "ada"]).contains("cannot be undone"));
    // The ledger stays, and repeating the command finishes what an interruption left.
    assert_eq!(run(data, &["credits", "history", "ada"])[0]["amount"], 10);
    let said = binary::run(data, ["account", "delete", "ada", "--yes"]).text();
    assert!(said.contains("No admin account is left"), "{said}");
    assert!(refused(data, &["account", "create", "ada"]).contains("already"));
    assert_eq!(run(data, &["credits", "audit"])["drifts"], json!([]));
    assert!(refused(data, &["account", "disable", "eve"]).contains("no account"));
}

/// A task in the studio of a new account with 10 credits.
async fn submit_for_ada(data: &Path) -> Task {
    let account = run(data, &["account", "create", "ada", "--credits", "10"]);
    let account_id = account["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
    let store = sqlite::open(&data.join("tintype.db"), Clock::system()).expect("a store");
    let submitted = store.submit(account_id, None, Surface::Web, GenerateRequest::new("a boat"), 0).await;
    let Submission::Accepted(task) = submitted.expect("a store") else { panic!("not accepted") };
    task
}

#[tokio::test]
async fn an_account_with_unfinished_tasks_is_disabled_and_not_deleted() {
    let data = data();
    let data = data.path();
    let task = submit_for_ada(data).await;
    let said = refused(data, &["account", "delete", "ada", "--yes"]);
    assert!(said.contains("1 unfinished task") && said.contains("disabled"), "{said}");
    let task_id = task.task_id().to_string();
    assert_eq!(run(data, &["task", "show", &task_id])["request"]["prompt"], "a boat");
    run(data, &["task", "fail", &task_id]);
    run(data, &["account", "delete", "ada", "--yes"]);
    let erased = run(data, &["task", "show", &task_id]);
    assert!(erased["request"]["prompt"] == "" && erased["removed_at"].is_string(), "{erased}");
}

#[test]
fn credits_are_taken_with_a_note_and_never_below_zero() {
    let data = data();
    let data = data.path();
    run(data, &["account", "create", "ada", "--credits", "10"]);
    let taken = run(data, &["credits", "take", "ada", "4", "--note", "granted twice"]);
    assert_eq!(taken, json!({ "account": "ada", "credits": 6 }));
    let said = refused(data, &["credits", "take", "ada", "7", "--note", "too many"]);
    assert!(said.contains("ada has only 6 credits") && said.contains("take 6 or less"), "{said}");
    assert!(refused(data, &["credits", "take", "ada", "1"]).contains("--note"));
    assert!(refused(data, &["credits", "take", "ada", "1", "--note", "  "]).contains("1 to 500 characters"));
    for bad in ["0", "-5", "1.5"] {
        assert!(!binary::run(data, ["credits", "take", "ada", "--note", "x", "--", bad]).status.success(), "{bad}");
    }
    let newest = &run(data, &["credits", "history", "ada"])[0];
    assert_eq!((&newest["kind"], &newest["amount"], &newest["balance"]), (&json!("grant"), &json!(-4), &json!(6)));
    assert_eq!(newest["note"], "granted twice");
    assert_eq!(run(data, &["credits", "audit"])["drifts"], json!([]));
}

#[test]
fn an_audit_that_finds_drift_exits_with_1() {
    let data = data();
    let data = data.path();
    run(data, &["account", "create", "ada", "--credits", "10"]);
    let database = rusqlite::Connection::open(data.join("tintype.db")).expect("a database");
    database.execute("UPDATE ledger SET balance = 11", []).expect("a drift");
    let audit = binary::run(data, ["credits", "audit", "--json"]).exited(1).json();
    assert!(audit["drifts"][0]["fault"].as_str().expect("a fault").contains("11"), "{audit}");
    let output = binary::run(data, ["credits", "audit"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.text().contains(": 1 drift."));
}

#[test]
fn a_key_is_shown_once_and_can_be_disabled_and_enabled() {
    let data = data();
    let data = data.path();
    run(data, &["account", "create", "ada"]);
    run(data, &["account", "create", "bob"]);
    let created = run(
        data,
        &["key", "create", "--account", "ada", "--name", "laptop", "--submit-rate", "5", "--expires-in", "90d"],
    );
    let key = created["key"].as_str().expect("a key").to_owned();
    let shape = key.strip_prefix("tt_").expect("the prefix");
    assert!(shape.len() == 38 && shape.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{key}");
    let id = created["id"].as_str().expect("an id");
    run(data, &["key", "create", "--account", "bob"]);
    let listed = run(data, &["key", "list"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    assert!(!listed.to_string().contains(&key[10..]), "{listed}");
    let of_ada = run(data, &["key", "list", "--account", "ada"]);
    assert_eq!(of_ada, json!([listed[0]]));
    assert_eq!(
        (&of_ada[0]["id"], &of_ada[0]["name"], &of_ada[0]["submit_rate"]),
        (&json!(id), &json!("laptop"), &json!(5))
    );
    assert_eq!(run(data, &["key", "disable", id])["state"], "disabled");
    assert_eq!(run(data, &["key", "enable", id])["state"], "active");
    assert!(refused(data, &["key", "rotate", id, "--overlap", "9999999d"]).contains("100 years"));
    let rotated = run(data, &["key", "rotate", id, "--overlap", "1h"]);
    assert_ne!(rotated["id"], id);
    assert!(rotated["key"].as_str().expect("a key").starts_with("tt_") && rotated["key"] != created["key"]);
    assert_eq!(run(data, &["key", "revoke", id])["state"], "revoked");
    assert!(refused(data, &["key", "enable", id]).contains("revoked"));
    assert!(refused(data, &["key", "rotate", id]).contains("revoked"));
    assert!(refused(data, &["key", "revoke", "AAAAAAAAAAAAAAAAAAAAA"]).contains("no key"));
    assert!(refused(data, &["key", "revoke", "short"]).contains("21 characters"));
    assert!(refused(data, &["key", "create", "--account", "eve"]).contains("no account"));
    assert!(refused(data, &["key", "create", "--account", "ada", "--expires-in", "soon"]).contains("duration"));
}

#[test]
fn a_label_is_short_and_printable() {
    let data = data();
    let data = data.path();
    run(data, &["account", "create", "ada"]);
    let longest = "ä".repeat(100);
    assert_eq!(run(data, &["key", "create", "--account", "ada", "--name", &longest])["name"], json!(longest));
    for bad in ["a\nb", &"x".repeat(101)] {
        let said = refused(data, &["key", "create", "--account", "ada", "--name", bad]);
        assert!(said.contains("--name") && said.contains("100"), "{said}");
    }
    assert_eq!(run(data, &["key", "list"]).as_array().map(Vec::len), Some(1));
    // As an earlier release allowed it.
    let database = rusqlite::Connection::open(data.join("tintype.db")).expect("a database");
    let long = "x".repeat(300);
    database.execute("UPDATE api_keys SET name = ?1", [&long]).expect("a long label");
    let listed = run(data, &["key", "list"]);
    assert_eq!(listed[0]["name"], json!(long));
    assert_eq!(run(data, &["key", "rotate", listed[0]["id"].as_str().expect("an id")])["name"], json!(long));
}

#[test]
fn notes_reasons_and_names_have_a_longest_length() {
    let data = data();
    let data = data.path();
    run(data, &["account", "create", "ada"]);
    let (long, task) = ("x".repeat(501), "imgmodel-AAAAAAAAAAAAAAAAAAAAA");
    let name = "x".repeat(101);
    let refusals: [(&[&str], &str); 4] = [
        (&["credits", "grant", "ada", "5", "--note", &long], "500"),
        (&["task", "fail", task, "--reason", &long], "500"),
        (&["task", "fail", task, "--reason", " "], "1 to 500"),
        (&["account", "create", &name], "1 to 100"),
    ];
    for (command, limit) in refusals {
        let said = refused(data, command);
        assert!(said.contains(limit) && said.contains("characters"), "{said}");
    }
    let longest = "ä".repeat(500);
    run(data, &["credits", "grant", "ada", "5", "--note", &longest]);
    assert_eq!(run(data, &["credits", "history", "ada"])[0]["note"], json!(longest));
    run(data, &["credits", "grant", "ada", "5", "--note", "  "]);
    assert_eq!(run(data, &["credits", "history", "ada"])[0]["note"], json!(null));
}

#[tokio::test]
async fn rotating_a_suspended_key_gives_a_suspended_key() {
    let data = data();
    let data = data.path();
    run(data, &["account", "create", "ada", "--credits", "10"]);
    let created = run(data, &["key", "create", "--account", "ada"]);
    assert_eq!(created["state"], "active");
    let id = created["id"].as_str().expect("an id");
    let store = sqlite::open(&data.join("tintype.db"), Clock::system()).expect("a store");
    let (account_id, key_id) = (created["account_id"].as_str().expect("an id").parse(), id.parse().ok());
    violate(&store, account_id.expect("an id"), key_id, Surface::Api).await;
    drop(store);

    let rotated = run(data, &["key", "rotate", id]);
    assert_eq!(rotated["state"], "suspended");
    let said = binary::run(data, ["key", "rotate", rotated["id"].as_str().expect("an id")]).text();
    assert!(said.contains("suspended") && said.contains("tintype key enable"), "{said}");
    let listed = run(data, &["key", "list"]);
    assert!(listed.as_array().expect("keys").iter().all(|key| key["state"] == "suspended"), "{listed}");
    assert_eq!(run(data, &["key", "enable", rotated["id"].as_str().expect("an id")])["state"], "active");
}

#[test]
fn commands_that_only_read_create_nothing() {
    let data = data();
    let data = data.path().join("nowhere");
    for command in [&["account", "list"][..], &["key", "list"], &["credits", "audit"], &["task", "list"]] {
        assert!(refused(&data, command).contains("tintype serve"), "{command:?}");
    }
    assert!(!data.exists());
}

#[tokio::test]
async fn the_operator_sees_and_fails_tasks() {
    let data = data();
    let data = data.path();
    let task = submit_for_ada(data).await;
    let task_id = task.task_id().to_string();
    let listed = run(data, &["task", "list", "--account", "ada"]);
    assert_eq!((&listed[0]["task_id"], &listed[0]["surface"]), (&json!(task_id), &json!("web")));
    let shown = run(data, &["task", "show", &task_id]);
    assert_eq!((&shown["request"]["prompt"], &shown["status"]), (&json!("a boat"), &json!("processing")));
    let failed = run(data, &["task", "fail", task.id.as_str(), "--reason", "The printer is on fire."]);
    assert_eq!((&failed["status"], &failed["error"]), (&json!("failed"), &json!("The printer is on fire.")));
    assert_eq!(run(data, &["credits", "balance", "ada"])["credits"], 10);
    assert!(refused(data, &["task", "fail", &task_id]).contains("already failed"));
    assert_eq!(run(data, &["credits", "balance", "ada"])["credits"], 10);
    assert!(refused(data, &["task", "show", "imgmodel-AAAAAAAAAAAAAAAAAAAAA"]).contains("no task"));
    assert_eq!(run(data, &["credits", "audit"])["drifts"], json!([]));
}

#[test]
fn a_newer_database_is_refused() {
    let data = data();
    let data = data.path();
    run(data, &["account", "create", "ada"]);
    let database = rusqlite::Connection::open(data.join("tintype.db")).expect("a database");
    database.pragma_update(None, "user_version", 999).expect("a version");
    drop(database);
    let said = refused(data, &["serve", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("newer") && said.contains("999"), "{said}");
}

#[test]
fn a_command_says_that_it_migrates_the_database() {
    let data = data();
    let database = rusqlite::Connection::open(data.path().join("tintype.db")).expect("a database");
    database
        .execute_batch(include_str!("../../crates/store/migrations/sqlite/0100_first.sql"))
        .expect("the first schema");
    database.execute("INSERT INTO secrets (name, value) VALUES ('cursor', randomblob(32))", []).expect("a secret");
    database.pragma_update(None, "application_id", 0x7469_6E74).expect("an id");
    database.pragma_update(None, "user_version", 100).expect("a version");
    drop(database);
    let said = binary::run(data.path(), ["account", "list", "--log", "info"]).errors();
    assert!(said.contains("migrated the database") && said.contains("from schema 100 to"), "{said}");
    let said = binary::run(data.path(), ["account", "list", "--log", "info"]).errors();
    assert!(!said.contains("migrated"), "{said}");
}

#[test]
fn the_database_url_may_come_from_a_file() {
    let data = data();
    let other = data.path().join("elsewhere.db");
    let secret = data.path().join("secret");
    std::fs::write(&secret, format!("sqlite:{}\n", other.display())).expect("a file");
    let mut command = tintype();
    command.args(["account", "create", "ada", "--data"]).arg(data.path()).env("TINTYPE_DATABASE_FILE", &secret);
    assert!(command.status().expect("the program runs").success());
    assert!(other.exists());
    let said = refused(data.path(), &["account", "list", "--database", "mysql://root@localhost/x"]);
    assert!(said.contains("sqlite:PATH"), "{said}");
}

#[test]
fn the_doctor_reports_a_healthy_installation() {
    let data = data();
    run(data.path(), &["account", "create", "ada", "--credits", "10"]);
    let checks = run(data.path(), &["doctor"]);
    for check in checks.as_array().expect("checks") {
        assert_eq!(check["ok"], true, "{check}");
    }
    let database = rusqlite::Connection::open(data.path().join("tintype.db")).expect("a database");
    database.execute("UPDATE ledger SET balance = 11", []).expect("a drift");
    let output = binary::run(data.path(), ["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn the_openapi_document_is_printed() {
    let printed = tintype().args(["openapi", "--json"]).ran().text();
    assert_eq!(printed.trim_end(), tintype::http::docs::openapi_json(), "the same in every process");
}

#[test]
fn every_setting_has_a_flag_and_a_variable() {
    let help = tintype().args(["serve", "--help"]).ran().text();
    for (flag, variable) in [
        ("--data", "TINTYPE_DATA"),
        ("--listen", "TINTYPE_LISTEN"),
        ("--database", "TINTYPE_DATABASE"),
        ("--files", "TINTYPE_FILES"),
        ("--public-url", "TINTYPE_PUBLIC_URL"),
        ("--file-url", "TINTYPE_FILE_URL"),
        ("--production", "TINTYPE_PRODUCTION"),
        ("--tls-cert", "TINTYPE_TLS_CERT"),
        ("--tls-key", "TINTYPE_TLS_KEY"),
        ("--trusted-proxy", "TINTYPE_TRUSTED_PROXY"),
        ("--retention", "TINTYPE_RETENTION"),
        ("--engine", "TINTYPE_ENGINE"),
        ("--submit-rate", "TINTYPE_SUBMIT_RATE"),
        ("--read-rate", "TINTYPE_READ_RATE"),
    ] {
        assert!(help.contains(flag) && help.contains(&format!("[env: {variable}")), "{flag}: {help}");
    }
}

#[test]
fn variables_accept_the_usual_spellings_of_a_value() {
    let data = data();
    // The port cannot be bound, so the start ends after all settings were read.
    let start = |variable: &str, value: &str| {
        let mut command = tintype();
        command.args(["serve", "--listen", "203.0.113.1:1", "--data"]).arg(data.path()).env(variable, value);
        command.ran().errors()
    };
    let understood = [
        ("TINTYPE_PRODUCTION", &["true", "TRUE", "1", "yes", "on", "false", "0", "no", "off", ""][..]),
        ("TINTYPE_TRUSTED_PROXY", &["10.0.0.0/8", "10.0.0.1", "10.0.0.1, ::1/128", ""]),
        ("TINTYPE_PUBLIC_URL", &["https://images.example.com/", ""]),
        ("TINTYPE_DATABASE", &[""]),
        ("TINTYPE_DATABASE_FILE", &[""]),
        ("TINTYPE_METRICS_LISTEN", &[""]),
        ("TINTYPE_SUBMIT_RATE", &["5", "5/min", ""]),
    ];
    for (variable, values) in understood {
        for value in values {
            let said = start(variable, value);
            assert!(said.contains("203.0.113.1:1: this machine has no such address"), "{variable}={value}: {said}");
        }
    }
    for (variable, value, about) in [
        ("TINTYPE_PRODUCTION", "maybe", "--production"),
        ("TINTYPE_PUBLIC_URL", "images.example.com", "--public-url"),
        ("TINTYPE_TRUSTED_PROXY", "everyone", "--trusted-proxy"),
        ("TINTYPE_SUBMIT_RATE", "-1", "--submit-rate"),
    ] {
        assert!(start(variable, value).contains(about), "{variable}={value}");
    }
}

#[test]
fn a_flag_wins_over_every_form_of_its_variable() {
    let data = data();
    let other = format!("sqlite:{}", data.path().join("other.db").display());
    let secret = data.path().join("secret");
    std::fs::write(&secret, "sqlite:/nowhere/at/all.db").expect("a file");
    for (variable, value) in
        [("TINTYPE_DATABASE", "sqlite:/nowhere/at/all.db"), ("TINTYPE_DATABASE_FILE", &secret.display().to_string())]
    {
        let mut command = tintype();
        command
            .args(["account", "create", variable, "--database", &other, "--data"])
            .arg(data.path())
            .env(variable, value);
        assert!(
            command.stdout(std::process::Stdio::null()).status().expect("the program runs").success(),
            "{variable}"
        );
    }
}

#[test]
fn keys_are_listed_and_shown_with_the_name_of_their_account() {
    let data = data();
    let data = data.path();
    run(data, &["account", "create", "ada"]);
    let created = run(data, &["key", "create", "--account", "ada", "--name", "laptop", "--submit-rate", "0"]);
    let id = created["id"].as_str().expect("an id");
    let shown = run(data, &["key", "show", id]);
    assert_eq!(
        (&shown["account"], &shown["name"], &shown["state"]),
        (&json!("ada"), &json!("laptop"), &json!("active"))
    );
    assert_eq!(run(data, &["key", "list"]), json!([shown]));
    assert!(shown.get("key").is_none() && shown.get("hash").is_none(), "{shown}");
    let text = binary::run(data, ["key", "show", id]).text();
    assert!(text.contains("ACCOUNT    ada (") && text.contains("SUBMITS    unlimited"), "{text}");
    assert!(!text.contains(&created["key"].as_str().expect("a key")[10..]), "{text}");
    let table = binary::run(data, ["key", "list"]).text();
    assert!(table.lines().nth(1).is_some_and(|row| row.contains("  ada  ")), "{table}");
    assert!(refused(data, &["key", "show", "AAAAAAAAAAAAAAAAAAAAA"]).contains("no key"));
}

#[test]
fn numbers_and_prompts_that_are_typed_wrongly_are_explained() {
    let data = data();
    let cases: [&[&str]; 7] = [
        &["credits", "grant", "ada", "10k"],
        &["credits", "take", "ada", "-5", "--note", "none"],
        &["account", "create", "eve", "--credits", "1e3"],
        &["account", "create", "eve", "--credits", "-5"],
        &["generate", "a fox", "--seed", "-1"],
        &["task", "list", "--limit", "1_000"],
        &["engine", "try", "sketch", "a fox", "--seed", "-1"],
    ];
    for arguments in cases {
        let said = refused(data.path(), arguments);
        assert!(said.contains(": must be a whole number from ") && !said.contains("'-- "), "{arguments:?}: {said}");
    }
    for flag in ["-n", "--n", "--count"] {
        let said = refused(data.path(), &["generate", "fox", flag, "two"]);
        assert!(said.contains("must be a whole number"), "{said}");
    }
    for flag in ["--port", "--host", "--bind"] {
        let said = refused(data.path(), &["serve", flag, "80"]);
        assert!(said.contains("--listen") && !said.contains("--production"), "{said}");
    }
    for (flag, expected) in [("--size", "'--aspect W:H'"), ("--prompt", "'<PROMPT>'")] {
        let said = refused(data.path(), &["generate", flag, "fox"]);
        assert!(said.contains(expected) && !said.contains("'-- "), "{said}");
    }
    let said = refused(data.path(), &["generate", "a", "red", "fox"]);
    assert!(said.contains("a prompt of several words needs quotes"), "{said}");
    assert!(!refused(data.path(), &["generate", "fox", "--nope"]).contains("quotes"));
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = tintype().args(["completions", shell]).ran();
        let script = output.text();
        assert!(output.status.success() && script.contains("generate") && script.contains("listen"), "{shell}");
    }
    let script = tintype().args(["completions", "bash"]).ran().stdout;
    let folder = data();
    let file = folder.path().join("tintype.bash");
    std::fs::write(&file, script).expect("a file");
    for (words, expected) in [
        (&["key", "sh"][..], "show"),
        (&["person", "add", "ada", "--role", "m"], "member"),
        (&["generate", "fox", "--aspect", "16"], "16:9"),
    ] {
        let [.., before, word] = words else { panic!("{words:?}") };
        let complete = format!(
            "source \"$1\"; COMP_WORDS=(tintype {}) COMP_CWORD={}; _tintype tintype {word} {before}; echo \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len()
        );
        let bash = std::process::Command::new("bash").args(["-c", &complete, "bash"]).arg(&file).output();
        let completed = bash.expect("bash runs").text();
        assert_eq!(completed.trim(), expected);
    }

    let pages = folder.path().join("man");
    std::fs::create_dir(&pages).expect("a folder");
    assert!(tintype().arg("man").arg(&pages).status().expect("the program runs").success());
    for page in ["tintype.1", "tintype-serve.1", "tintype-key-create.1", "tintype-get.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{page}: {text}");
    }
    let said = tintype().args(["man", "/nowhere/at/all"]).ran();
    assert!(said.errors().contains("/nowhere/at/all"), "{said:?}");
}
