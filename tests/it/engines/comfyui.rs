//! `comfyui:URL` against a double of ComfyUI; `tests/engines/comfyui/run` does the same against the real one.

pub mod fake_server;
mod faults;
mod nodes;
mod quirks;
mod real;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tintype_engine::{Brief, CancellationToken, Engine, EngineError, Mask, Picture, Progress, Stage};
use tintype_engines::EngineChoice;

use self::fake_server::{Age, FakeComfyUi, Outcome, colour};
use crate::rigs::binary::{Ran as _, run};
use crate::rigs::engine::{build, cancel_once, choose, render};
use crate::rigs::faulty_http::Reply;
use crate::rigs::ports::Port;
use crate::rigs::service::Service;
use crate::rigs::wait::{in_time, until};

/// A workflow and its mapping in files, as people have them for Open WebUI.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        let graph = json!({
            "3": { "class_type": "KSampler", "inputs": { "seed": 1, "steps": 4, "latent_image": ["5", 0] } },
            "5": { "class_type": "EmptyLatentImage", "inputs": { "width": 512, "height": 512, "batch_size": 4 } },
            "6": { "class_type": "CLIPTextEncode", "inputs": { "text": "nothing" } },
            "9": { "class_type": "SaveImage", "inputs": { "images": ["3", 0] } },
            "10": { "class_type": "LoadImage", "inputs": { "image": "default.png" } },
            "11": { "class_type": "LoadImage", "inputs": { "image": "default.png" } },
        });
        let mapping = json!([
            { "type": "prompt", "key": "text", "node_ids": ["6"] },
            { "type": "seed", "key": "seed", "node_ids": ["3"] },
            { "type": "width", "key": "width", "node_ids": ["5"] },
            { "type": "height", "key": "height", "node_ids": ["5"] },
            { "type": "n", "key": "batch_size", "node_ids": ["5"] },
            { "type": "image", "key": "image", "node_ids": ["10", "11"] },
        ]);
        Self::of(&graph, &mapping)
    }

    fn of(graph: &Value, mapping: &Value) -> Self {
        let directory = TempDir::new().expect("a directory");
        std::fs::write(directory.path().join("workflow.json"), graph.to_string()).expect("a file");
        std::fs::write(directory.path().join("nodes.json"), mapping.to_string()).expect("a file");
        Self(directory)
    }

    pub fn flags(&self, urls: &str, more: &[&str]) -> Vec<String> {
        let path = |name: &str| self.0.path().join(name).display().to_string();
        let engine = format!("comfyui:{urls}");
        let (workflow, nodes) = (path("workflow.json"), path("nodes.json"));
        let flags = ["--engine", &engine, "--engine-workflow", &workflow, "--engine-workflow-nodes", &nodes];
        flags.iter().chain(more).map(|flag| (*flag).to_owned()).collect()
    }

    fn choose(&self, urls: &str, more: &[&str]) -> Result<EngineChoice, String> {
        choose(self.flags(urls, more).iter().map(String::as_str))
    }

    fn engine(&self, urls: &str, more: &[&str]) -> Arc<dyn Engine> {
        build(&self.choose(urls, more).expect("an engine"))
    }

    async fn service(&self, urls: &str, more: &[&str]) -> Service {
        let flags = self.flags(urls, more);
        Service::start_with(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await
    }
}

fn brief(seeds: &[u64]) -> Brief {
    super::openai::brief("a boat of secrets", seeds, Vec::new())
}

fn flat(colour: u8) -> Picture {
    Picture::from_rgb(64, 48, vec![colour; 64 * 48 * 3]).expect("a picture")
}

#[tokio::test]
async fn a_task_is_rendered_by_the_workflow_of_a_new_and_of_an_old_server() {
    for age in [Age::New, Age::Old] {
        let (server, files) = (FakeComfyUi::start(age).await, Files::new());
        let service = files.service(&server.url(), &["--engine-sizes", "64x64"]).await;
        let caller = service.caller("ada", 100).await;
        let prompt = "a \"boat\" <lora:x:1> embedding:file";
        let task = caller.outcome_of(json!({ "prompt": prompt, "n": 3 })).await;
        assert_eq!(task["status"], "completed", "{task}");
        let graphs = server.graphs();
        assert_eq!(graphs.len(), 3, "a run for each picture");
        let mut painted: Vec<_> = graphs.iter().map(colour).collect();
        for graph in &graphs {
            assert_eq!(graph["6"]["inputs"]["text"], "a \"boat\"    file");
            assert_eq!(graph["5"]["inputs"], json!({ "width": 64, "height": 64, "batch_size": 1 }));
            assert_eq!(graph["10"]["inputs"]["image"], "default.png");
        }
        let mut shown = Vec::new();
        for image in task["images"].as_array().expect("images") {
            let file = service.fetch(image["url"].as_str().expect("a URL"), &[]).await;
            shown.push(Picture::decode(&file.body).expect("a PNG").as_rgb()[0]);
        }
        painted.sort_unstable();
        shown.sort_unstable();
        assert_eq!(shown, painted);
    }
}

#[tokio::test]
async fn the_pictures_of_a_task_are_spread_over_the_servers_and_stand_in_the_order_of_their_seeds() {
    let (one, two, files) = (FakeComfyUi::start(Age::New).await, FakeComfyUi::start(Age::New).await, Files::new());
    let engine = files.engine(&format!("{},{}", one.url(), two.url()), &[]);
    let seeds = [7, 3, 5, 1];
    let pictures = render(&engine, brief(&seeds)).await.expect("pictures");
    let colours: Vec<_> = pictures.iter().map(|picture| picture.as_rgb()[0]).collect();
    assert_eq!(colours, [107, 103, 105, 101]);
    assert_eq!((one.graphs().len(), two.graphs().len()), (2, 2));
}

#[tokio::test]
async fn references_are_uploaded_under_names_of_their_content() {
    for age in [Age::New, Age::Old] {
        let (server, files) = (FakeComfyUi::start(age).await, Files::new());
        assert_eq!(files.choose(&server.url(), &[]).expect("an engine").info.max_references, 2);
        let engine = files.engine(&server.url(), &[]);
        let brief = Brief { references: vec![flat(1), flat(2)], ..brief(&[1]) };
        for _ in 0..2 {
            render(&engine, brief.clone()).await.expect("pictures");
        }
        let uploads = server.uploads();
        assert_eq!(uploads.len(), if age == Age::New { 2 } else { 4 }, "{:?}", uploads.keys());
        for graph in server.graphs() {
            for (node, colour) in [("10", 1), ("11", 2)] {
                let name = graph[node]["inputs"]["image"].as_str().expect("a name");
                assert!(name.starts_with("tintype-"), "{name}");
                assert_eq!(Picture::decode(&uploads[name]).expect("a PNG").as_rgb()[0], colour);
            }
        }
    }
}

#[tokio::test]
async fn a_mask_goes_to_the_node_that_the_mapping_names() {
    let server = FakeComfyUi::start(Age::New).await;
    let graph = json!({
        "3": { "class_type": "KSampler", "inputs": { "seed": 1 } },
        "5": { "class_type": "EmptyLatentImage", "inputs": { "width": 64, "height": 48 } },
        "6": { "class_type": "CLIPTextEncode", "inputs": { "text": "" } },
        "9": { "class_type": "SaveImage", "inputs": {} },
        "10": { "class_type": "LoadImage", "inputs": { "image": "default.png" } },
        "11": { "class_type": "LoadImageMask", "inputs": { "image": "default.png", "channel": "red" } },
    });
    let entry = |kind: &str, key: &str, node: &str| json!({ "type": kind, "key": key, "node_ids": [node] });
    let mapping =
        |more: Value| json!([entry("prompt", "text", "6"), entry("seed", "seed", "3"), entry("image", "", "10"), more]);
    let without = Files::of(&graph, &mapping(entry("", "cfg", "3")));
    assert!(!without.choose(&server.url(), &[]).expect("an engine").info.masks);
    let files = Files::of(&graph, &mapping(entry("mask", "", "11")));
    assert!(files.choose(&server.url(), &[]).expect("an engine").info.masks);
    let engine = files.engine(&server.url(), &[]);
    let mask = Some(Mask::of(flat(255)));
    render(&engine, Brief { references: vec![flat(1)], mask, ..brief(&[1]) }).await.expect("pictures");
    render(&engine, Brief { references: vec![flat(1)], ..brief(&[2]) }).await.expect("pictures");
    let (uploads, graphs) = (server.uploads(), server.graphs());
    let name = graphs[0]["11"]["inputs"]["image"].as_str().expect("a name");
    assert_eq!(Mask::decode_within(&uploads[name], 64).expect("a mask").picture(), &flat(255));
    assert_ne!(graphs[0]["10"]["inputs"]["image"], name);
    assert_eq!(graphs[1]["11"]["inputs"]["image"], "default.png");
}

#[tokio::test]
async fn steps_come_from_the_websocket_and_a_render_goes_on_without_it() {
    let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
    server.outcome(Outcome::Endless);
    let engine = files.engine(&server.url(), &["--engine-key", "sk-secret"]);
    let progress = Progress::default();
    let rendering = engine.render(brief(&[1, 2]), progress.clone(), CancellationToken::new());
    let watching = async {
        until(async || server.graphs().len() == 2).await;
        server.tell_steps(3);
        until(async || progress.latest() == Some(Stage::Step { done: 3, of: 8 })).await;
        server.close_sockets();
        server.outcome(Outcome::Painted);
    };
    let (outcome, ()) = tokio::join!(rendering, watching);
    assert_eq!(outcome.expect("pictures").len(), 2);
    assert_eq!(progress.latest(), Some(Stage::Step { done: 8, of: 8 }));
    let sockets = server.asked("GET /ws");
    assert!(sockets.iter().all(|asked| asked.header("authorization") == Some("Bearer sk-secret")));
    assert!(sockets.iter().all(|asked| asked.header("origin").is_none()));
}

#[tokio::test]
async fn previews_come_from_the_websocket_for_those_who_look() {
    for looked_at in [true, false] {
        let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
        server.outcome(Outcome::Endless);
        let engine = files.engine(&server.url(), &[]);
        let progress = if looked_at { Progress::with_previews() } else { Progress::default() };
        let rendering = engine.render(brief(&[1]), progress.clone(), CancellationToken::new());
        let watching = async {
            until(async || server.sockets() == 1 && server.unfinished().len() == 1).await;
            server.tell_preview(200);
            if looked_at {
                until(async || progress.preview().is_some()).await;
            }
            // Messages are heard in their order.
            server.tell_steps(3);
            until(async || progress.latest() == Some(Stage::Step { done: 3, of: 4 })).await;
            server.outcome(Outcome::Painted);
        };
        let (outcome, ()) = tokio::join!(rendering, watching);
        assert_eq!(outcome.expect("a picture").len(), 1);
        let preview = progress.preview();
        assert_eq!(preview.is_some(), looked_at);
        if let Some(preview) = preview {
            assert_eq!((preview.width(), preview.height()), (128, 64));
            assert!(preview.as_rgb().iter().all(|colour| *colour == 200));
        }
    }
}

#[tokio::test]
async fn the_end_of_a_run_is_asked_for_once_when_the_websocket_tells_it() {
    let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
    render(&files.engine(&server.url(), &[]), brief(&[1])).await.expect("a picture");
    assert_eq!(server.asked("GET /api/jobs").len(), 1);
}

#[tokio::test]
async fn a_server_without_a_websocket_is_polled() {
    for reply in [Reply::json(404, &json!({})), Reply::HangUp, Reply::Whole(200, Vec::new(), b"<html>".to_vec())] {
        let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
        server.reply("GET /ws", reply);
        render(&files.engine(&server.url(), &[]), brief(&[1])).await.expect("a picture");
    }
}

#[tokio::test]
async fn a_cancelled_render_is_cancelled_by_its_id_and_no_run_of_a_stranger_is_interrupted() {
    for age in [Age::New, Age::Old] {
        let (server, files) = (FakeComfyUi::start(age).await, Files::new());
        let engine = files.engine(&server.url(), &[]);
        server.run_of_stranger();
        let outcome = cancel_once(&engine, brief(&[1, 2]), async |_| server.graphs().len() == 2).await;
        assert!(outcome.is_err(), "{outcome:?}");
        assert_eq!(server.unfinished(), ["stranger"], "{age:?}: cancelled before the render returns");
        assert!(server.asked("POST /interrupt").is_empty(), "{age:?}");
    }
}

#[tokio::test]
async fn a_running_workflow_is_stopped_on_a_new_and_on_an_old_server() {
    for age in [Age::New, Age::Old] {
        let (server, files) = (FakeComfyUi::start(age).await, Files::new());
        server.outcome(Outcome::Endless);
        let engine = files.engine(&server.url(), &[]);
        let outcome =
            cancel_once(&engine, brief(&[1]), async |_| server.sockets() == 1 && server.unfinished().len() == 1).await;
        assert!(outcome.is_err(), "{outcome:?}");
        // A render waits for the end of its cancellation for a moment only, which a busy machine outlasts.
        until(async || server.unfinished().is_empty()).await;
        assert_eq!(server.asked("POST /interrupt").len(), usize::from(age == Age::Old));
    }
}

#[tokio::test]
async fn a_render_that_is_cancelled_or_dropped_while_its_submit_is_under_way_leaves_no_run() {
    for (age, is_dropped) in [(Age::New, false), (Age::Old, false), (Age::New, true), (Age::Old, true)] {
        let (server, files) = (FakeComfyUi::start(age).await, Files::new());
        server.outcome(Outcome::Endless);
        server.take_submits(false);
        let engine = files.engine(&server.url(), &[]);
        let cancel = CancellationToken::new();
        let rendering = engine.render(brief(&[1]), Progress::default(), cancel.clone());
        let cancelling = async {
            until(async || server.asked("POST /prompt").len() == 1).await;
            cancel.cancel();
            if !is_dropped {
                server.take_submits(true);
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            outcome = rendering => assert!(outcome.is_err()),
            () = cancelling => server.take_submits(true),
        }
        until(async || server.graphs().len() == 1 && server.unfinished().is_empty()).await;
    }
}

#[tokio::test]
async fn a_run_whose_submit_has_a_lost_answer_is_cancelled_and_costs_an_attempt() {
    for age in [Age::New, Age::Old] {
        let (server, files) = (FakeComfyUi::start(age).await, Files::new());
        server.outcome(Outcome::Endless);
        server.lose_submits();
        let engine = files.engine(&server.url(), &[]);
        let outcome = render(&engine, brief(&[1])).await.map(|pictures| pictures.len());
        assert!(matches!(&outcome, Err(EngineError::Temporary(_))), "{outcome:?}");
        until(async || server.graphs().len() == 1 && server.unfinished().is_empty()).await;
    }
}

#[tokio::test]
async fn a_server_that_dies_during_a_run_costs_the_attempt_and_then_none_until_it_is_back() {
    let (port, files) = (Port::take(), Files::new());
    let server = FakeComfyUi::on(port.address, Age::New).await;
    server.outcome(Outcome::Endless);
    let service = files.service(&server.url(), &["--engine-sizes", "64x64"]).await;
    let caller = service.caller("ada", 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    let dying = async {
        until(async || server.unfinished().len() == 1).await;
        drop(server);
    };
    let (stepped, ()) = tokio::join!(service.worker.step(), dying);
    assert_eq!(stepped.expect("a store"), 1);
    assert_eq!(super::lost_leases(&caller, &task_id).await, Some(1));
    service.clock.advance(tintype_config::LEASE);
    service.work().await;
    assert_eq!(super::lost_leases(&caller, &task_id).await, Some(1), "a refused connection costs none");
    let _server = FakeComfyUi::on(port.address, Age::New).await;
    until(async || {
        service.worker.step().await.expect("a store");
        caller.task(&task_id).await["status"] != "processing"
    })
    .await;
    assert_eq!(caller.task(&task_id).await["status"], "completed");
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test]
async fn a_server_that_cannot_run_the_workflow_is_found_by_a_probe_with_the_reason() {
    let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
    files.engine(&server.url(), &[]).probe().await.expect("it takes work");
    server.lack("KSampler");
    let error = files.engine(&server.url(), &[]).probe().await.expect_err("a node is missing");
    assert!(
        matches!(&error, EngineError::NotAvailable(text) if text.ends_with("lacks nodes of the workflow: KSampler"))
    );
    for (reply, reason) in [
        (Reply::json(200, &json!({ "version": 1 })), "give its base URL"),
        (
            Reply::Whole(200, vec![("content-type", "text/html".into())], b"<html>".to_vec()),
            "answered 200 with text/html",
        ),
        (Reply::json(404, &json!({})), "answered 404"),
    ] {
        let server = FakeComfyUi::start(Age::New).await;
        server.reply("GET /system_stats", reply);
        let error = files.engine(&server.url(), &[]).probe().await.expect_err("not ComfyUI");
        assert!(matches!(&error, EngineError::NotAvailable(text) if text.contains(reason)), "{error:?}");
    }
}

#[test]
fn an_engine_whose_workflow_cannot_be_used_says_what_it_needs() {
    let refusal = choose(["--engine", "comfyui:http://127.0.0.1:1"]).expect_err("no workflow");
    assert!(refusal.contains("needs --engine-workflow"), "{refusal}");
    let files = Files::new();
    let refusal = files.choose("http://127.0.0.1:1", &["--engine-references", "3"]).expect_err("too many references");
    assert!(refusal.contains("the workflow has 2 nodes for images"), "{refusal}");
    std::fs::remove_file(files.0.path().join("nodes.json")).expect("a file");
    let refusal = files.choose("http://127.0.0.1:1", &[]).expect_err("no file");
    assert!(refusal.contains("cannot read --engine-workflow-nodes"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_list_check_and_try_the_engine_and_show_its_devices() {
    let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
    let out = files.0.path().join("boat.png");
    let flags = files.flags(&server.url(), &[]);
    let ask = |arguments: &[&str]| {
        let arguments: Vec<_> = arguments.iter().copied().chain(flags[2..].iter().map(String::as_str)).collect();
        run(files.0.path(), arguments).succeeded()
    };
    let (memory, free) = (24_u64 << 30, 21_u64 << 30);
    let device = json!({ "name": "cuda:0 A GPU[31m", "memory_bytes": memory, "free_memory_bytes": free,
        "used_memory_bytes": null });
    let (engine, out) = (flags[1].as_str(), out.to_str().expect("text"));
    let tried: Value =
        serde_json::from_str(&ask(&["engine", "try", engine, "a boat", "--out", out, "--json"])).expect("JSON");
    assert_eq!(tried["devices"], json!([device]));
    assert!(Picture::decode(&std::fs::read(out).expect("a file")).is_ok());
    ask(&["engine", "list", "--engine", engine]);
    let said = ask(&["engine", "check", engine]);
    assert!(said.contains("device: cuda:0 A GPU[31m, 24.0 GiB of memory, 21.0 GiB free"), "{said}");
}
