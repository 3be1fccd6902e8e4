//! Several engines in one installation: who takes what, what waits, and what fails at once.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tintype::worker::Worker;
use tintype_store::WORKER_SILENCE;

use super::{EngineInfo, TestEngine, info, step};
use crate::rigs::binary::{Ran as _, Server, data_with};
use crate::rigs::cluster::node::Part;
use crate::rigs::cluster::{FOREVER, Site};
use crate::rigs::engine::engine;
use crate::rigs::http::{ended, send, submit, submit_body};
use crate::rigs::images_api::{Dialect, ImagesServer, Reply, painted};
use crate::rigs::installation::Installation;
use crate::rigs::service::{Caller, Service, pass};
use crate::rigs::wait::until;

/// A task with one reference image, which no download finds.
fn edit() -> Value {
    json!({ "prompt": "a boat", "reference_images": ["https://pictures.example.com/a.png"] })
}

/// Workers of a service with an engine from text alone and one that takes two references. Both share a test engine.
async fn text_and_edit(service: &Service) -> [Arc<Worker>; 2] {
    let engine = Arc::new(TestEngine::default());
    let with = |name: &str, max_references| {
        let renderer = service.renderer_with(EngineInfo { max_references, ..info() }, engine.clone());
        service.worker_named(name, Arc::new(renderer))
    };
    let workers = [with("text", 0), with("edit", 2)];
    for worker in &workers {
        worker.report().await;
    }
    workers
}

async fn edit_task(caller: &Caller, references: usize) -> String {
    let references = vec!["https://pictures.example.com/a.png"; references];
    let task = caller.submit(json!({ "prompt": "a boat", "reference_images": references })).await;
    task["task_id"].as_str().expect("a task_id").to_owned()
}

#[tokio::test]
async fn each_worker_takes_what_its_engine_can_do_and_no_other_task() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "0"], 100).await;
    let [text, edit] = text_and_edit(&service).await;
    let edits = [edit_task(&caller, 1).await, edit_task(&caller, 2).await];
    let boats = [caller.submit_prompt("a boat").await, caller.submit_prompt("a ship").await];
    assert_eq!(step(&text).await, 2, "it does not stop at older tasks with references");
    assert_eq!(step(&text).await, 0);
    service.sweep().await;
    for boat in &boats {
        assert_eq!(caller.task(boat).await["status"], "completed");
    }
    for task in &edits {
        assert_eq!(caller.task(task).await["status"], "processing");
    }
    assert_eq!(step(&edit).await, 2);
    for task in &edits {
        // The engine took it, and the download found nothing.
        let task = caller.task(task).await;
        assert!(task["error"].as_str().expect("a message").contains("reference_images[0]"), "{task}");
    }
    caller.submit_prompt("a boat").await;
    assert_eq!(step(&edit).await, 1, "an engine that takes references renders from text too");
    service.assert_sound().await;
}

#[tokio::test]
async fn a_task_that_no_engine_can_do_fails_and_is_refunded_even_if_all_engines_are_down() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let [text, edit] = text_and_edit(&service).await;
    for worker in [&text, &edit] {
        service.shared.store.report_worker(worker.throughput().report(false)).await.expect("a store");
    }
    let (too_many, possible) = (edit_task(&caller, 3).await, edit_task(&caller, 2).await);
    assert_eq!(caller.credits().await, 96);
    service.sweep().await;
    let task = caller.task(&too_many).await;
    assert_eq!(task["error"], "This service takes up to 2 reference images. The credits were refunded.");
    assert_eq!(caller.task(&possible).await["status"], "processing", "it waits for its engine");
    assert_eq!(caller.credits().await, 98);
    service.assert_sound().await;
}

#[tokio::test]
async fn a_task_waits_while_no_worker_has_its_engine_and_the_metrics_say_so() {
    let service = Service::start_on_postgres(&["--submit-rate", "0"]).await;
    let caller = service.caller("ada", 100).await;
    let [text, edit] = text_and_edit(&service).await;
    let metrics = async || {
        let store = &service.shared.store;
        let (depth, engines) = (store.queue_depth().await.expect("a store"), store.engines().await.expect("a store"));
        let exposed = service.shared.metrics.expose(&depth, &engines, service.clock.now(), None);
        let value = |name: &str| {
            let line =
                exposed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {exposed}"));
            line.rsplit(' ').next().expect("a value").to_owned()
        };
        let available = |engine: &str| value(&format!("tintype_engine_available{{engine=\"{engine}\"}}"));
        [available("text"), available("edit"), value("tintype_queue_without_engine")]
    };
    let task = edit_task(&caller, 1).await;
    assert_eq!(metrics().await, ["1", "1", "0"]);
    // The process with this engine dies.
    service.clock.advance(WORKER_SILENCE);
    text.report().await;
    service.sweep().await;
    assert_eq!(metrics().await, ["1", "0", "1"]);
    assert_eq!(step(&text).await, 0);
    assert_eq!(caller.task(&task).await["status"], "processing");
    edit.report().await;
    assert_eq!(metrics().await, ["1", "1", "0"]);
    assert_eq!(step(&edit).await, 1);
    assert_eq!(caller.task(&task).await["status"], "failed", "its reference cannot be downloaded");
}

#[tokio::test]
async fn an_engine_that_rejects_what_another_renders_leaves_the_tasks_to_it() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.always(Reply::status(503));
    let flags = ["--engine", &server.engine(), "--engine-profile", "sglang", "--submit-rate", "0"];
    let (service, caller) = Service::with_caller(&flags, 100).await;
    let sound = service.renderer_with(info(), Arc::new(TestEngine::default()));
    let (broken, sound) = (&service.worker, service.worker_named("sound", Arc::new(sound)));
    let mut tasks = Vec::new();
    for number in 0..20 {
        tasks.push(caller.submit_prompt(&format!("boat {number}")).await);
    }
    let mut tried = 0;
    for _ in 0..20 {
        tried += step(broken).await;
        step(&sound).await;
        service.clock.advance(Duration::from_secs(2));
    }
    for task in &tasks {
        assert_eq!(caller.task(task).await["status"], "completed");
    }
    assert!(tried <= 12, "{tried} attempts with the broken engine");
    pass(Duration::from_secs(10)).await;
    server.always(Reply::Documented);
    for number in 0..4 {
        caller.submit_prompt(&format!("ship {number}")).await;
    }
    assert_eq!(step(broken).await, 1, "it gets one task after a while");
    assert!(step(broken).await > 1, "and more after a success");
    service.assert_sound().await;
}

#[tokio::test]
async fn tasks_that_fail_with_every_engine_are_held_against_none() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.to_prompts_with("poison", Reply::status(500));
    let flags = ["--engine", &server.engine(), "--engine-profile", "sglang", "--submit-rate", "0"];
    let (service, [ada, bob]) = Service::with_callers(&flags, ["ada", "bob"], 100).await;
    let second = service.renderer_with(info(), engine(flags[..4].iter().copied()));
    let (first, second) = (&service.worker, service.worker_named("second", Arc::new(second)));
    for number in 0..4 {
        ada.submit_prompt(&format!("poison {number}")).await;
    }
    for _ in 0..8 {
        step(first).await;
        bob.submit_prompt("a boat").await;
        step(&second).await;
        service.clock.advance(Duration::from_secs(5));
    }
    for number in 0..2 {
        bob.submit_prompt(&format!("a ship {number}")).await;
    }
    assert_eq!(step(first).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_renders_with_several_engines_and_starts_although_one_is_down() {
    let images = ImagesServer::start(Dialect::Sglang).await;
    images.always(Reply::file(&painted(64, 64, 7)));
    let data = data_with(&format!(
        "[engine.gpu]\nkind = \"openai\"\nurl = \"http://{}/v1\"\nprofile = \"sglang\"\nreferences = 0\n
         [engine.off]\nkind = \"openai\"\nurl = \"http://127.0.0.1:1/v1\"\nprofile = \"sglang\"\n",
        images.address
    ));
    let installation = Installation::on_sqlite(data.path());
    let server = Server::start(data.path(), &[]);
    assert_eq!(server.said.matches("  Engine  ").count(), 2, "{}", server.said);
    let key = installation.account("ada", "100");
    let waiting = submit_body(&server, &key, &edit()).await;
    let task_id = submit(&server, &key, "a boat").await;
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    assert!(!images.asked().is_empty());
    let queue = installation.json(&["queue", "show"]);
    assert_eq!((&queue["waiting"], &queue["leased"]), (&json!(1), &json!(0)), "{waiting} waits for its engine");
    let doctor = installation.run(&["doctor"]).text();
    let line = doctor.lines().find(|line| line.contains(" engine ")).expect("a line");
    assert!(line.starts_with("FAIL") && line.contains("gpu: ") && line.contains("off: "), "{line}");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_processes_with_different_engines_share_a_queue() {
    let site = Site::new().await;
    let file = site.installation.data.join("engines.toml");
    std::fs::write(&file, "[engine.text]\nkind = \"sketch\"\nreferences = 0\n[engine.edit]\nkind = \"sketch\"\n")
        .expect("a file");
    let flags = |engine| ["--config", file.to_str().expect("text"), "--engine", engine];
    // The API reads no file of an engine.
    let of_api = site.installation.data.join("api.toml");
    std::fs::write(
        &of_api,
        "[engine.comfy]\nkind = \"comfyui\"\nurl = \"http://127.0.0.1:1\"\nworkflow = \"/missing.json\"\n\
         workflow-nodes = \"/missing.json\"\n",
    )
    .expect("a file");
    let api = site.start(Part::Api, 0, &["--config", of_api.to_str().expect("text"), "--model-alias", "dall-e-3=edit"]);
    let _text = site.start(Part::Worker, 1, &flags("text"));
    let key = site.installation.account("ada", FOREVER);
    let refused = submit_body(&api.server, &key, &edit()).await;
    let refused = ended(&api.server, &key, &refused).await;
    assert_eq!(refused["error"], "This service takes no reference images. The credits were refunded.");

    let mut edits = site.start(Part::Worker, 2, &flags("edit"));
    let taken = submit_body(&api.server, &key, &edit()).await;
    let taken = ended(&api.server, &key, &taken).await;
    assert!(taken["error"].as_str().is_some_and(|error| error.contains("reference_images[0]")), "{taken}");

    edits.stop().await;
    let waiting = submit_body(&api.server, &key, &edit()).await;
    let boat = submit(&api.server, &key, "a boat").await;
    assert_eq!(ended(&api.server, &key, &boat).await["status"], "completed");
    let doctor = site.installation.run(&["doctor"]).text();
    let missing = "1 task waits for an engine that no worker has now: edit (last seen ";
    assert!(doctor.lines().any(|line| line.starts_with("FAIL") && line.contains(missing)), "{doctor}");
    until(async || api.logged("tasks are waiting for an engine that no worker has") == 1).await;

    edits.restart(None);
    let done = ended(&api.server, &key, &waiting).await;
    assert!(done["error"].as_str().is_some_and(|error| error.contains("reference_images[0]")), "{done}");

    edits.stop().await;
    let named = r#"{"prompt": "a boat", "model": "dall-e-3"}"#;
    let named = send(api.server.address, "POST", "/v1/images/generations/async", &key, named).await.json();
    let doctor = site.installation.run(&["doctor"]).text();
    let missing = "1 task waits for the engine edit, which no worker has now";
    assert!(doctor.lines().any(|line| line.starts_with("FAIL") && line.contains(missing)), "{doctor}");
    let queue = site.installation.json(&["queue", "show"]);
    assert_eq!(queue["waiting_for_engines"], json!([{ "engine": "edit", "tasks": 1 }]));
    edits.restart(None);
    let named = named["id"].as_str().expect("an id");
    assert_eq!(ended(&api.server, &key, named).await["status"], "completed");
}
