//! The command line about budgets, grants that expire, and the use of credits.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::Store;
use tintype_store::sqlite;
use tintype_system::clock::Clock;

use crate::rigs::binary::{self, Ran as _, json as run, refused};

fn text(data: &Path, command: &[&str]) -> String {
    binary::run(data, command).text()
}

fn store(data: &Path) -> Store {
    sqlite::open(&data.join("tintype.db"), Clock::system()).expect("a store")
}

fn id(value: &Value) -> Id {
    value["id"].as_str().expect("an id").parse().expect("an id")
}

async fn submit(data: &Path, account: Id, key: Option<Id>, n: u8) -> Id {
    let surface = if key.is_some() { Surface::Api } else { Surface::Web };
    let body = format!(r#"{{"prompt": "a boat", "n": {n}}}"#);
    let request = GenerateRequest::parse(body.as_bytes(), &[443]).expect("valid");
    match store(data).submit(account, key, surface, request, 0).await.expect("a store") {
        tintype_store::Submission::Accepted(task) => task.id,
        refused => panic!("{refused:?}"),
    }
}

#[tokio::test]
async fn a_key_shows_what_is_spent_and_left_of_its_budget() {
    let data = TempDir::new().expect("a directory");
    let data = data.path();
    let account = id(&run(data, &["account", "create", "ada", "--credits", "100"]));
    let created = run(data, &["key", "create", "--account", "ada", "--budget", "10/month"]);
    assert_eq!(created["budget"], "10/month");
    let key = created["id"].as_str().expect("an id");
    submit(data, account, Some(id(&created)), 3).await;
    let shown = run(data, &["key", "show", key]);
    assert_eq!((&shown["budget"], &shown["spent"], &shown["left"]), (&json!("10/month"), &json!(6), &json!(4)));
    assert!(shown["resets_at"].as_str().is_some_and(|end| end.ends_with("-01T00:00:00.000Z")), "{shown}");
    assert!(text(data, &["key", "show", key]).contains("BUDGET     10/month: 6 spent, 4 left until "));
    assert!(text(data, &["key", "list"]).contains("10/month"));
    let changed = run(data, &["key", "budget", key, "8/week"]);
    assert_eq!((&changed["budget"], &changed["spent"], &changed["left"]), (&json!("8/week"), &json!(6), &json!(2)));
    assert!(text(data, &["key", "budget", key, "none"]).contains("has no budget."));
    let shown = run(data, &["key", "show", key]);
    assert_eq!((&shown["budget"], shown.get("spent")), (&Value::Null, None));
    for bad in ["0/day", "5/year", "five/day", "5", "-1/day"] {
        let said = refused(data, &["key", "create", "--account", "ada", &format!("--budget={bad}")]);
        assert!(said.contains("such as 500/day"), "{said}");
        if !bad.starts_with('-') {
            assert!(refused(data, &["key", "budget", key, bad]).contains("such as 500/day"), "{bad}");
        }
    }
    assert!(refused(data, &["key", "budget", "AAAAAAAAAAAAAAAAAAAAA", "none"]).contains("no key"));
}

#[test]
fn granted_credits_expire() {
    let data = TempDir::new().expect("a directory");
    let data = data.path();
    run(data, &["account", "create", "ada", "--credits", "10"]);
    let granted = run(data, &["credits", "grant", "ada", "5", "--expires-in", "90d"]);
    assert_eq!(granted, json!({ "account": "ada", "credits": 15 }));
    assert!(
        text(data, &["credits", "grant", "ada", "3", "--expires-in", "1ms"]).starts_with("Granted 3 credits until 20")
    );
    for bad in ["0s", "-1d", "soon"] {
        let life = format!("--expires-in={bad}");
        assert!(!binary::run(data, ["credits", "grant", "ada", "5", &life]).status.success());
        assert!(!binary::run(data, ["key", "create", "--account", "ada", &life]).status.success());
    }
    // No server runs that would end it.
    let balance = run(data, &["credits", "balance", "ada"]);
    assert_eq!(balance, json!({ "account": "ada", "credits": 15 }));
    let newest = &run(data, &["credits", "history", "ada"])[0];
    let facts = [&newest["kind"], &newest["amount"], &newest["balance"], &newest["task_id"], &newest["note"]];
    assert_eq!(facts, [&json!("expiry"), &json!(-3), &json!(15), &Value::Null, &Value::Null]);
    let grants = run(data, &["credits", "grants", "ada"]);
    let left = |grant: &Value| (grant["amount"].as_i64(), grant["remaining"].as_i64());
    assert_eq!((grants.as_array().map(Vec::len), left(&grants[0])), (Some(1), (Some(5), Some(5))));
    assert!(text(data, &["credits", "grants", "ada"]).starts_with("EXPIRES "));
    assert_eq!(run(data, &["credits", "audit"])["drifts"], json!([]));
}

#[test]
fn the_threshold_of_low_credits_is_set_and_ended() {
    let data = TempDir::new().expect("a directory");
    let data = data.path();
    run(data, &["account", "create", "ada", "--credits", "100"]);
    assert_eq!(run(data, &["account", "low-balance", "ada", "25"])["low_balance"], 25);
    assert_eq!(run(data, &["account", "list"])[0]["low_balance"], 25);
    assert!(text(data, &["account", "low-balance", "ada", "none"]).contains("are off"));
    assert_eq!(run(data, &["account", "list"])[0].get("low_balance"), None);
    for bad in ["0", "some", "1.5"] {
        assert!(
            refused(data, &["account", "low-balance", "ada", bad]).contains("neither a number of credits"),
            "{bad}"
        );
    }
}

#[tokio::test]
async fn usage_is_added_up_by_account_key_and_day() {
    let data = TempDir::new().expect("a directory");
    let data = data.path();
    let account = id(&run(data, &["account", "create", "=ada, \"A\"", "--credits", "100"]));
    run(data, &["account", "create", "bob", "--credits", "100"]);
    let key = run(data, &["key", "create", "--account", "=ada, \"A\"", "--name", "laptop"]);
    let failed = submit(data, account, Some(id(&key)), 4).await;
    submit(data, account, Some(id(&key)), 1).await;
    submit(data, account, None, 2).await;
    store(data).fail_unleased(failed, FailureCause::Operator, "it sank").await.expect("a store");
    let by_account = run(data, &["usage", "--by", "account"]);
    let total = json!({ "tasks": 3, "images": 7, "charged": 14, "refunded": 8, "credits": 6 });
    let figures = |row: &Value| {
        let names = ["tasks", "images", "charged", "refunded", "credits"];
        Value::Object(names.map(|name| (name.to_owned(), row[name].clone())).into_iter().collect())
    };
    assert_eq!((by_account.as_array().map(Vec::len), figures(&by_account[0])), (Some(1), total.clone()));
    let by_day = run(data, &["usage", "--by", "day", "--days", "2", "--account", "=ada, \"A\""]);
    let day = by_day[0]["day"].as_str().expect("a day");
    assert_eq!(figures(&by_day[0]), total);
    let by_key = run(data, &["usage", "--by", "key", "--since", day, "--until", day]);
    assert_eq!(by_key[0]["key_id"], key["id"]);
    assert!(by_key[0]["key"].as_str().is_some_and(|name| name.ends_with("… laptop")), "{by_key}");
    assert_eq!(figures(&by_key[0]), json!({ "tasks": 2, "images": 5, "charged": 10, "refunded": 8, "credits": 2 }));
    assert_eq!((&by_key[1]["key"], &by_key[1]["charged"]), (&json!("(studio)"), &json!(4)));
    let csv = text(data, &["usage", "--by", "key", "--csv"]);
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines[0], "account,key_id,key,tasks,images,charged,refunded,credits");
    assert!(lines[1].starts_with("\"'=ada, \"\"A\"\"\","), "{csv}");
    assert!(lines[1].ends_with("… laptop\",2,5,10,8,2") && lines[2].ends_with(",\"(studio)\",1,2,4,0,4"), "{csv}");
    let plain = text(data, &["usage"]);
    assert_eq!(
        plain.lines().last().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).as_deref(),
        Some("TOTAL 3 7 14 8 6")
    );
    assert_eq!(run(data, &["usage", "--account", "bob"]), json!([]));
    assert!(refused(data, &["usage", "--account", "nobody"]).contains("account list"));
    assert!(refused(data, &["usage", "--since", "yesterday"]).contains("2026-11-21"));
    let backwards = ["usage", "--since", "2026-12-01", "--until", "2026-11-01"];
    assert!(refused(data, &backwards).contains("--since must not be after --until"));
    assert_eq!(binary::run(data, backwards).status.code(), Some(2));
    assert!(!binary::run(data, ["usage", "--days", "0"]).status.success());
}
