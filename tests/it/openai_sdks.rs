//! The official clients of OpenAI's API, from PyPI and npm: a call that they repeat by themselves is charged once.
//! They edit, too, and read streams.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use tintype_domain::model::{Surface, TaskId};

use crate::openai_edits::png;
use crate::openai_masks::left_half;
use crate::rigs::binary::Ran as _;
use crate::rigs::packages::{javascript, python, run};
use crate::rigs::service::Service;
use crate::tidy::root;

/// A folder with a wide and a narrow picture.
fn pictures() -> tempfile::TempDir {
    let folder = tempfile::TempDir::new().expect("a directory");
    for (name, picture) in [("wide.png", png(30, 20)), ("narrow.png", png(20, 30)), ("mask.png", left_half(30, 20))] {
        std::fs::write(folder.path().join(name), picture).expect("a file");
    }
    folder
}

/// Runs a program, which sends a call and repeats it until its task is done. The task is done once a repetition waits.
async fn check(mut program: Command) {
    let service = Service::start().await;
    let (caller, poor) = (service.caller("ada", 100).await, service.caller("eve", 0).await);
    let folder = pictures();
    program.args([format!("http://{}/v1", service.address), caller.key.clone(), poor.key.clone()]).arg(folder.path());
    let said = tokio::task::spawn_blocking(move || run(&mut program));
    let waits = async |count| service.waiting_for(&said, count).await;
    // The first attempt waits, hangs up, and comes again.
    waits(1).await;
    waits(0).await;
    waits(1).await;
    service.work().await;
    // Then come an edit with two pictures and one within a mask.
    for _ in 0..2 {
        waits(0).await;
        waits(1).await;
        service.work().await;
    }
    let said: Value = serde_json::from_str(&said.await.expect("no panic")).expect("JSON");
    assert_eq!(said["pictures"], json!(["89504e47", "89504e47"]), "{said}");
    assert!(said["attempts"].as_str().is_some_and(|attempts| attempts != "0"), "{said}");
    assert_eq!(said["edited"], "1024x1536", "{said}");
    assert_eq!(caller.references(said["edit"].as_str().expect("an id")).await, ["30", "20"]);
    let TaskId(masked) = said["masked"].as_str().expect("an id").parse().expect("an id");
    let masked = service.shared.store.find_record(caller.account.id, Surface::Api, masked).await.expect("a store");
    assert!(masked.expect("a task").request.own_mask().is_some(), "{said}");
    let errors = json!([
        ["BadRequestError", null, "mask"],
        ["BadRequestError", null, "image"],
        ["BadRequestError", null, "size"],
        ["AuthenticationError", "invalid_api_key", null],
        ["RateLimitError", "insufficient_quota", null],
    ]);
    assert_eq!((&said["errors"], &said["models"]), (&errors, &json!(["imgmodel"])));
    assert_eq!(caller.task(said["task"].as_str().expect("an id")).await["status"], "completed");
    assert_eq!(caller.credits().await, 92, "charged once");
}

/// Node.js reads an answer only when it has sent the whole body.
#[tokio::test]
async fn a_large_edit_that_is_refused_reaches_the_javascript_client() {
    let service = Service::start().await;
    let poor = service.caller("eve", 0).await;
    let (mut program, _folder) = javascript("openai_refused.mjs", &[]);
    program.args([format!("http://{}/v1", service.address), poor.key.clone()]);
    let said = tokio::task::spawn_blocking(move || run(&mut program)).await.expect("no panic");
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let each = [json!(["AuthenticationError", "invalid_api_key"]), json!(["RateLimitError", "insufficient_quota"])];
    assert_eq!(said, json!(std::iter::repeat_n(each, 3).flatten().collect::<Vec<_>>()));
}

/// Runs a program that reads streams. The connection of its first attempt breaks after the charge.
async fn check_streams(mut program: Command) {
    let faults = ["--test-fault", "after-submit=error"];
    let service = Service::start_changed(&faults, |limits| limits.heartbeat = Duration::from_millis(5)).await;
    let caller = service.caller("ada", 100).await;
    let folder = pictures();
    program.args([format!("http://{}/v1", service.address), caller.key.clone()]).arg(folder.path());
    let said = tokio::task::spawn_blocking(move || run(&mut program));
    service.work_for(&said).await;
    let said: Value = serde_json::from_str(&said.await.expect("no panic")).expect("JSON");
    let picture = json!(["image_generation.completed", "89504e47", "1536x1024"]);
    assert_eq!(said["generated"], json!([picture, picture]), "{said}");
    assert_eq!(said["edited"], json!([["image_edit.completed", "52494646", "1248x832"]]), "{said}");
    assert_eq!((&said["attempts"], &said["refusal"][1]), (&json!("1"), &json!("content_policy_violation")), "{said}");
    assert_eq!(said["refusal"][0], "APIError", "{said}");
    assert_eq!(caller.references(said["edit"].as_str().expect("an id")).await, ["30", "20"]);
    assert_eq!(caller.task(said["task"].as_str().expect("an id")).await["status"], "completed");
    assert_eq!(caller.credits().await, 94, "charged once, and the refusal was refunded");
}

/// Runs a program that gives up a stream whose task waits, and sends the call again with the same idempotency key once its
/// standard input ends.
async fn check_given_up(mut program: Command) -> Value {
    let (service, caller) = Service::with_caller(&[], 100).await;
    program.args([format!("http://{}/v1", service.address), caller.key.clone()]).stdin(Stdio::piped());
    let mut program = program.stdout(Stdio::piped()).spawn().expect("it starts");
    let input = program.stdin.take();
    let said = tokio::task::spawn_blocking(move || program.wait_with_output().expect("it ends").succeeded());
    service.waiting_for(&said, 1).await;
    service.waiting_for(&said, 0).await;
    drop(input);
    service.waiting_for(&said, 1).await;
    service.work().await;
    let said: Value = serde_json::from_str(&said.await.expect("no panic")).expect("JSON");
    assert_eq!((&said["pictures"], &said["tasks"][0]), (&json!(["89504e47"]), &said["tasks"][1]), "{said}");
    assert_eq!(caller.task(said["tasks"][0].as_str().expect("an id")).await["status"], "completed");
    assert_eq!(caller.credits().await, 98, "charged once");
    said["given_up"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_repeats_a_call_and_is_charged_once() {
    let mut program = Command::new(python().join("python"));
    program.arg(root().join("tests/it/clients/openai_calls.py"));
    check(program).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_client_repeats_a_call_and_is_charged_once() {
    let (program, _folder) = javascript("openai_calls.mjs", &[]);
    check(program).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_reads_streams_and_repeats_one_whose_connection_broke() {
    let mut program = Command::new(python().join("python"));
    program.arg(root().join("tests/it/clients/openai_streams.py"));
    check_streams(program).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_client_reads_streams_and_repeats_one_whose_connection_broke() {
    let (program, _folder) = javascript("openai_streams.mjs", &[]);
    check_streams(program).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_for_which_the_python_client_has_no_more_time_goes_on_and_is_charged_once() {
    let mut program = Command::new(python().join("python"));
    program.arg(root().join("tests/it/clients/openai_gives_up.py"));
    assert_eq!(check_given_up(program).await, "APITimeoutError");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_the_javascript_client_aborts_goes_on_and_is_charged_once() {
    let (program, _folder) = javascript("openai_gives_up.mjs", &[]);
    assert_eq!(check_given_up(program).await, json!(true), "no event came");
}
