//! The clients in `clients/`, against the real server.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rigs::binary::{self, Server};
use crate::rigs::packages::{python, run};
use crate::tidy::root;

#[test]
fn the_python_client_generates_sync_and_async_and_never_repeats_a_lost_submit() {
    let sources = root().join("clients/python/src");
    run(Command::new(python().join("mypy")).args(["--strict", "--cache-dir=/dev/null"]).arg(sources.join("tintype")));
    let (data, pictures) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    let server = Server::start(data.path(), &["--read-rate", "0"]);
    let key = server.first_key().expect("a key");
    binary::json(data.path(), &["account", "create", "eve"]);
    let poor = binary::json(data.path(), &["key", "create", "--account", "eve"]);
    let mut program = Command::new(python().join("python"));
    program.arg(root().join("tests/it/clients/tintype_calls.py"));
    program.args([&server.url(), &key, poor["key"].as_str().expect("a key")]).arg(pictures.path());
    program.env("PYTHONPATH", sources).env("PYTHONDONTWRITEBYTECODE", "1");
    let said: Value = serde_json::from_str(&run(&mut program)).expect("JSON");
    assert_eq!(said["saved"], json!(["1280x720", "1280x720"]), "{said}");
    assert_eq!(said["again"], "FileExistsError", "no file is written over");
    assert_eq!(said["async"], json!([true, true]));
    // Two images, two and one more; each of the lost submits was charged once, or never arrived.
    assert_eq!((&said["spent"], &said["tasks"]), (&json!(10), &json!(4)), "{said}");
    assert_eq!(said["found"], json!(["completed", "SubmitUnanswered", []]), "{said}");
    let errors = [
        ["Unauthorized", "401"],
        ["InvalidRequest", "400"],
        ["InsufficientCredits", "2 of 0"],
        ["NotFound", "404"],
        ["TaskFailed", ""],
    ];
    assert_eq!(said["errors"], json!(errors), "{said}");
    server.stop();
}
