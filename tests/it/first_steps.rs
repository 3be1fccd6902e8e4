//! What a newcomer meets in the first hour: help, names instead of ids, and refusals that say what to do.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use tintype_domain::model::Surface;
use tintype_domain::request::GenerateRequest;
use tintype_store::{Submission, sqlite};
use tintype_system::clock::Clock;

use crate::rigs::binary::{self, Ran as _, Run as _, TINTYPE, data, json, refused, signal, text, tintype};

/// What a command without a data directory prints.
#[track_caller]
fn printed(arguments: &[&str]) -> String {
    tintype().args(arguments).ran().succeeded()
}

#[test]
fn the_help_of_a_command_points_to_the_global_options_and_a_server_shows_them() {
    for command in [&["key", "list"][..], &["account", "create"], &["generate"], &["backup"]] {
        for help in ["-h", "--help"] {
            let help = printed(&[command, &[help]].concat());
            assert!(!help.contains("--database-ca") && help.contains("`tintype help`"), "{command:?}: {help}");
        }
    }
    for help in [&["help"][..], &["--help"], &["serve", "--help"]] {
        let help = printed(help);
        assert!(["--data ", "--config ", "--database-ca"].iter().all(|flag| help.contains(flag)), "{help}");
    }
}

#[test]
fn global_options_stand_before_or_after_the_command() {
    let (data, elsewhere) = (data(), data());
    let database = format!("sqlite:{}", elsewhere.path().join("other.db").display());
    for (flag, value) in [("--data", text(data.path())), ("--database", &database)] {
        let ran = |arguments: &[&str]| tintype().env("TINTYPE_DATA", elsewhere.path()).args(arguments).ran();
        for arguments in [
            [flag, value, "account", "create", "ada"],
            ["account", flag, value, "create", "bob"],
            ["account", "create", flag, value, "cyd"],
            ["account", "create", "dan", flag, value],
        ] {
            ran(&arguments).succeeded();
        }
        let listed = ran(&["account", "list", "--json", flag, value]).json();
        assert_eq!(listed.as_array().map(Vec::len), Some(4), "{listed}");
    }
}

#[test]
fn the_version_is_a_command_too() {
    let version = printed(&["--version"]);
    assert_eq!(printed(&["version"]), version);
    let json = serde_json::from_str::<serde_json::Value>(&printed(&["version", "--json"])).expect("JSON");
    assert_eq!(format!("tintype {}\n", json["version"].as_str().expect("text")), version);
}

#[tokio::test]
async fn lists_show_the_names_of_accounts_and_the_credits_that_were_taken() {
    let data = data();
    let data = data.path();
    let account = json(data, &["account", "create", "ada", "--credits", "10"]);
    let id = account["id"].as_str().expect("an id");
    json(data, &["credits", "take", "ada", "4", "--note", "granted twice"]);
    let history = binary::run(data, ["credits", "history", "ada"]).succeeded();
    assert!(history.lines().any(|line| line.contains(" taken ") && line.contains("-4")), "{history}");
    // In JSON a kind is one of the documented four.
    assert_eq!(json(data, &["credits", "history", "ada"])[0]["kind"], "grant");
    let database = data.join("tintype.db");
    let store = sqlite::open(&database, Clock::system()).expect("a store");
    let request = GenerateRequest::parse(br#"{"prompt": "a boat"}"#, &[443]).expect("valid");
    let submitted = store.submit(id.parse().expect("an id"), None, Surface::Api, request, 0).await.expect("a store");
    assert!(matches!(submitted, Submission::Accepted(_)));
    drop(store);
    let tasks = binary::run(data, ["task", "list"]).succeeded();
    assert!(tasks.contains(" ada ") && !tasks.contains(id), "{tasks}");
    let damage = |change: &str| {
        let database = rusqlite::Connection::open(&database).expect("a database");
        database.execute(&format!("UPDATE {change}"), []).expect("damage");
        binary::run(data, ["credits", "audit"]).text()
    };
    let audit = damage("ledger SET balance = 11 WHERE kind = 'charge'");
    assert!(audit.contains("account ada") && !audit.contains(id), "{audit}");
    // A name that cannot be read hides neither drift nor tasks.
    let audit = damage("accounts SET name = CAST(x'ff' AS TEXT)");
    assert!(audit.contains(&format!("account {id}")), "{audit}");
    let tasks = binary::run(data, ["task", "list"]).succeeded();
    assert!(tasks.contains(id), "{tasks}");
}

#[test]
fn a_model_that_is_not_there_keeps_the_server_from_starting() {
    let said = refused(data().path(), &["serve", "--listen", "127.0.0.1:0", "--model", "nosuch"]);
    assert!(said.contains("there is no model \"nosuch\"") && said.contains("`tintype model list`"), "{said}");
    let known = "lcm-dreamshaper-v7";
    let said = refused(data().path(), &["serve", "--listen", "127.0.0.1:0", "--model", known]);
    assert!(said.contains(&format!("`tintype model pull {known}` fetches it")), "{said}");
}

#[test]
fn a_pull_without_a_network_is_one_message_with_what_to_do() {
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let endpoint = format!("http://{address}");
    let pull = ["model", "pull", "lcm-dreamshaper-v7", "--accept-licence", "--endpoint", &endpoint];
    let said = refused(data().path(), &[&pull[..], &["--test-pause", "1ms"]].concat());
    assert!(said.contains("cannot reach 127.0.0.1: Connection refused") && said.contains("HTTPS_PROXY"), "{said}");
    let lines: Vec<_> = said.trim().lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("connecting to "), "{said}");
    assert!(!said.contains("error sending request"), "{said}");
}

#[test]
fn a_port_for_root_only_is_refused_with_the_ways_out() {
    let data = data();
    // A user without rights over its network.
    let mut command = Command::new("unshare");
    command.args(["--user", "--net", TINTYPE, "serve", "--listen", ":80", "--data"]).arg(data.path()).env_clear();
    let said = command.output().expect("unshare, from util-linux, runs").failed();
    assert!(said.contains("ports below 1024"), "{said}");
    assert!(said.contains("CAP_NET_BIND_SERVICE") && said.contains("--listen"), "{said}");
}

#[test]
fn an_interrupted_try_leaves_no_file() {
    let (data, out) = (data(), data());
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let engine = format!("openai:http://{}/v1", server.local_addr().expect("an address"));
    // A shell without job control has programs in the background ignore the signal, and tests among them hand that on.
    let mut command = Command::new("env");
    command.env_clear().args(["--default-signal=INT", TINTYPE]);
    command.args(["engine", "try", &engine, "a boat", "--out"]).arg(out.path().join("boat.png"));
    command.arg("--data").arg(data.path()).stderr(Stdio::piped());
    let trying = command.spawn().expect("the program starts");
    // The server is asked, and does not answer.
    let asked = server.accept().expect("a connection");
    signal(trying.id(), "INT");
    let output = trying.wait_with_output().expect("a child");
    drop(asked);
    assert!(!output.status.success(), "{output:?}");
    let said = output.errors();
    assert!(said.contains("starting the engine"), "{said}");
    assert_eq!(std::fs::read_dir(out.path()).expect("a folder").count(), 0);
}
