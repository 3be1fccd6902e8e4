//! The real ComfyUI. `tests/engines/comfyui/run` installs it and runs these tests.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tokio::time::Instant;

use super::*;
use crate::rigs::binary::Killed;
use crate::rigs::http;

/// A node without a model that paints in steps and does what its prompt says.
const NODE: &str = include_str!("../../../engines/comfyui/nodes.py");
const NEEDS: &str = "tests/engines/comfyui/run installs the server that it needs";

#[expect(clippy::disallowed_methods, reason = "how the tests run is no setting")]
fn folder() -> PathBuf {
    std::env::var_os("TEST_COMFYUI").expect(NEEDS).into()
}

/// A server of this test, with folders of its own.
struct RealServer {
    process: Killed,
    port: u16,
    base: TempDir,
}

impl RealServer {
    async fn start() -> Self {
        let base = TempDir::new().expect("a directory");
        for name in ["custom_nodes", "input", "output", "temp", "models", "user", "web"] {
            std::fs::create_dir(base.path().join(name)).expect("a directory");
        }
        std::fs::write(base.path().join("custom_nodes/tintype_nodes.py"), NODE).expect("a file");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let process = Self::spawn(base.path(), port);
        let server = Self { process, port, base };
        server.is_up().await;
        server
    }

    fn spawn(base: &Path, port: u16) -> Killed {
        let mut command = Command::new(folder().join("venv/bin/python"));
        command.arg("main.py").current_dir(folder().join("ComfyUI"));
        command.args(["--cpu", "--listen", "127.0.0.1", "--port", &port.to_string(), "--disable-api-nodes"]);
        command.arg("--base-directory").arg(base).arg("--front-end-root").arg(base.join("web"));
        command.arg("--database-url").arg(format!("sqlite:///{}", base.join("user/comfyui.db").display()));
        let log = std::fs::File::create(base.join("log")).expect("a file");
        command.stdout(log.try_clone().expect("a file")).stderr(log).stdin(Stdio::null());
        Killed(command.spawn().expect("the server starts"))
    }

    async fn is_up(&self) {
        let start = Instant::now();
        let engine = self.engine(&[]);
        until(async || engine.probe().await.is_ok()).await;
        println!("the server took work after {:.1} s", start.elapsed().as_secs_f32());
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn engine(&self, more: &[&str]) -> Arc<dyn Engine> {
        files().engine(&self.url(), more)
    }

    fn kill(&mut self) {
        self.process.kill().expect("a process");
        self.process.wait().expect("a process");
    }

    async fn get(&self, path: &str) -> Value {
        let address = (Ipv4Addr::LOCALHOST, self.port).into();
        http::send(address, "GET", &format!("/{path}"), "none", "").await.json()
    }

    /// Runs that wait or are being rendered.
    async fn unfinished(&self) -> usize {
        let queue = self.get("queue").await;
        ["queue_running", "queue_pending"].iter().map(|list| queue[list].as_array().expect("a list").len()).sum()
    }
}

/// A workflow without a model: its node paints, and a reference is scaled to the picture and mixed in.
fn files() -> Files {
    let graph = json!({
        "1": { "class_type": "TintypeSteps", "inputs":
            { "text": "", "width": 512, "height": 512, "seed": 0, "steps": 4, "image": ["3", 0] } },
        "2": { "class_type": "LoadImage", "inputs": { "image": "default.png" } },
        "3": { "class_type": "ImageScale", "inputs":
            { "image": ["2", 0], "upscale_method": "lanczos", "width": 512, "height": 512, "crop": "center" } },
        "9": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "tintype/picture" } },
    });
    let mapping = json!([
        { "type": "prompt", "key": "text", "node_ids": ["1"] },
        { "type": "seed", "key": "seed", "node_ids": ["1"] },
        { "type": "width", "key": "width", "node_ids": ["1", "3"] },
        { "type": "height", "key": "height", "node_ids": ["1", "3"] },
        { "type": "steps", "key": "steps", "node_ids": ["1"] },
        { "type": "image", "key": "image", "node_ids": ["2"] },
    ]);
    Files::of(&graph, &mapping)
}

/// A brief with a reference, which the workflow needs.
fn brief(prompt: &str, seeds: &[u64]) -> Brief {
    super::super::openai::brief(prompt, seeds, vec![flat(200)])
}

#[tokio::test]
#[ignore = "tests/engines/comfyui/run installs the server that it needs"]
async fn pictures_are_painted_with_their_seeds_sizes_references_and_steps() {
    let server = RealServer::start().await;
    let engine = server.engine(&[]);
    let (progress, start) = (Progress::default(), Instant::now());
    let seeds = [3, 1, 2];
    let rendering = engine.render(brief("a \"boat\"", &seeds), progress.clone(), CancellationToken::new());
    let watching = async {
        until(async || matches!(progress.latest(), Some(Stage::Step { done: 1.., of: 12 }))).await;
    };
    let (pictures, ()) = tokio::join!(rendering, watching);
    let pictures = pictures.expect("pictures");
    println!("three pictures of 4 steps of 0.1 s: {:.2} s", start.elapsed().as_secs_f32());
    assert_eq!(progress.latest(), Some(Stage::Step { done: 12, of: 12 }));
    for (picture, seed) in pictures.iter().zip([3, 1, 2]) {
        assert_eq!((picture.width(), picture.height()), (64, 48));
        // The colour is the seed's, and the level of the reference.
        assert_eq!(picture.as_rgb()[..3], [100 + seed, 50, 200]);
    }
    assert_eq!(server.get("history").await.as_object().expect("runs").len(), 3);
    let uploaded = std::fs::read_dir(server.base.path().join("input")).expect("a directory").flatten();
    let uploaded = uploaded.filter(|file| file.file_name().to_string_lossy().starts_with("tintype-")).count();
    assert_eq!(uploaded, 1, "one file for one content");
}

/// A workflow that keeps the reference where the mask is black. `node` loads the mask, whose output `output` it is.
fn masking(node: &Value, output: u8) -> Files {
    let graph = json!({
        "1": { "class_type": "TintypeSteps", "inputs": { "text": "", "width": 64, "height": 48, "seed": 0, "steps": 4 } },
        "2": { "class_type": "LoadImage", "inputs": { "image": "default.png" } },
        "3": node,
        "4": { "class_type": "ImageCompositeMasked", "inputs":
            { "destination": ["2", 0], "source": ["1", 0], "mask": ["3", output], "x": 0, "y": 0, "resize_source": false } },
        "9": { "class_type": "SaveImage", "inputs": { "images": ["4", 0], "filename_prefix": "tintype/picture" } },
    });
    let entry = |kind: &str, key: &str, node: &str| json!({ "type": kind, "key": key, "node_ids": [node] });
    let mapping = json!([
        entry("prompt", "text", "1"),
        entry("seed", "seed", "1"),
        entry("width", "width", "1"),
        entry("height", "height", "1"),
        entry("image", "image", "2"),
        entry("mask", "image", "3"),
    ]);
    Files::of(&graph, &mapping)
}

#[tokio::test]
#[ignore = "tests/engines/comfyui/run installs the server that it needs"]
async fn a_mask_is_read_by_its_alpha_and_by_its_colour() {
    let server = RealServer::start().await;
    let by_alpha = json!({ "class_type": "LoadImage", "inputs": { "image": "default.png" } });
    let by_colour = json!({ "class_type": "LoadImageMask", "inputs": { "image": "default.png", "channel": "red" } });
    let row = [[255; 3].repeat(32), [0; 3].repeat(32)].concat();
    let mask = Mask::of(Picture::from_rgb(64, 48, row.repeat(48)).expect("a picture"));
    for (node, output) in [(by_alpha, 1), (by_colour, 0)] {
        let engine = masking(&node, output).engine(&server.url(), &[]);
        let brief = Brief { mask: Some(mask.clone()), ..brief("a boat", &[7]) };
        let picture = render(&engine, brief).await.expect("pictures").remove(0);
        for row in picture.as_rgb().chunks_exact(64 * 3) {
            assert!(row[..32 * 3].chunks(3).all(|pixel| pixel[0] == 107), "{node}: painted where it is white");
            assert!(row[32 * 3..].iter().all(|level| *level == 200), "{node}: kept where it is black");
        }
    }
}

#[tokio::test]
#[ignore = "tests/engines/comfyui/run installs the server that it needs"]
async fn a_cancelled_render_is_cancelled_by_id_and_a_strangers_run_goes_on() {
    let server = RealServer::start().await;
    let engine = server.engine(&[]);
    let outcome = cancel_once(&engine, brief("slow", &[1, 2]), async |_| server.unfinished().await == 2).await;
    assert!(outcome.is_err(), "{outcome:?}");
    let start = Instant::now();
    until(async || server.unfinished().await == 0).await;
    println!("the queue was empty {:.2} s after the cancelled render", start.elapsed().as_secs_f32());
    // The stranger's runs come before ours.
    let stranger = server.engine(&[]);
    let theirs = stranger.render(brief("a boat", &[1, 2, 3]), Progress::default(), CancellationToken::new());
    let ours = async {
        until(async || server.unfinished().await == 2).await;
        cancel_once(&engine, brief("slow", &[5]), async |_| server.unfinished().await > 2).await
    };
    let (theirs, ours) = tokio::join!(theirs, ours);
    assert!(theirs.is_ok() && ours.is_err());
    until(async || server.unfinished().await == 0).await;
}

#[tokio::test]
#[ignore = "tests/engines/comfyui/run installs the server that it needs"]
async fn errors_of_nodes_and_of_the_workflow_are_told_without_the_prompt() {
    let server = RealServer::start().await;
    let engine = server.engine(&[]);
    let error = render(&engine, brief("fail with a secret", &[1])).await.expect_err("a node failed");
    assert!(matches!(&error, EngineError::Temporary(text) if text.contains("(RuntimeError)")), "{error:?}");
    assert!(!error.to_string().contains("secret"));
    let small = Brief { width: 8, ..brief("a secret", &[1]) };
    let error = render(&engine, small).await.expect_err("too small for the node");
    assert!(
        matches!(&error, EngineError::Permanent(text) if text.contains("400 (value_smaller_than_min)")),
        "{error:?}"
    );
    // A second output that cannot be made: a 200 with `node_errors`.
    let mut graph: Value = json!({
        "1": { "class_type": "TintypeSteps", "inputs": { "text": "", "width": 64, "height": 64, "seed": 0, "steps": 4 } },
        "2": { "class_type": "TintypeSteps", "inputs": { "text": "", "width": 1, "height": 64, "seed": 0, "steps": 4 } },
        "8": { "class_type": "PreviewImage", "inputs": { "images": ["2", 0] } },
        "9": { "class_type": "PreviewImage", "inputs": { "images": ["1", 0] } },
    });
    let mapping = json!([
        { "type": "prompt", "key": "text", "node_ids": ["1"] }, { "type": "seed", "key": "seed", "node_ids": ["1"] },
    ]);
    let without = |prompt: &str| super::super::openai::brief(prompt, &[1], Vec::new());
    let engine = Files::of(&graph, &mapping).engine(&server.url(), &[]);
    let error = render(&engine, without("slow secret")).await.expect_err("a part is left out");
    assert!(
        matches!(&error, EngineError::TurnedAway { cause, .. } if cause.contains("whole workflow (value_smaller")),
        "{error:?}"
    );
    until(async || server.unfinished().await == 0).await;
    graph["2"]["inputs"]["width"] = 64.into();
    let engine = Files::of(&graph, &mapping).engine(&server.url(), &[]);
    render(&engine, without("a boat")).await.expect("a temporary picture");
    graph["1"]["class_type"] = "NoSuchNode".into();
    let error = Files::of(&graph, &mapping).engine(&server.url(), &[]).probe().await.expect_err("no such node");
    assert!(error.to_string().contains("lacks nodes of the workflow: NoSuchNode"), "{error}");
}

#[tokio::test]
#[ignore = "tests/engines/comfyui/run installs the server that it needs"]
async fn a_server_that_is_killed_and_started_again_costs_one_attempt() {
    let mut server = RealServer::start().await;
    let engine = server.engine(&[]);
    let rendering = render(&engine, brief("slow", &[1]));
    let killing = async {
        until(async || server.unfinished().await == 1).await;
        server.process.kill().expect("a process");
    };
    let (outcome, ()) = tokio::join!(rendering, killing);
    assert!(matches!(&outcome, Err(EngineError::Temporary(_))), "{outcome:?}");
    server.kill();
    let gone = render(&engine, brief("a boat", &[1])).await;
    assert!(matches!(&gone, Err(EngineError::NotAvailable(_))), "{gone:?}");
    server.process = RealServer::spawn(server.base.path(), server.port);
    until(async || engine.probe().await.is_ok()).await;
    render(&engine, brief("a boat", &[1])).await.expect("a picture");
}

#[tokio::test]
#[ignore = "tests/engines/comfyui/run installs the server that it needs"]
async fn a_task_of_a_service_is_completed() {
    let server = RealServer::start().await;
    let graph = json!({
        "1": { "class_type": "TintypeSteps", "inputs": { "text": "", "width": 64, "height": 64, "seed": 0, "steps": 4 } },
        "9": { "class_type": "PreviewImage", "inputs": { "images": ["1", 0] } },
    });
    let node = |kind: &str, key: &str| json!({ "type": kind, "key": key, "node_ids": ["1"] });
    let mapping = json!([node("prompt", "text"), node("seed", ""), node("width", ""), node("height", "height")]);
    let service = Files::of(&graph, &mapping).service(&server.url(), &[]).await;
    let caller = service.caller("ada", 100).await;
    let task = caller.submit(json!({ "prompt": "a boat", "n": 4, "aspect_ratio": "16:9" })).await;
    let start = Instant::now();
    service.work().await;
    println!("a task of 4 pictures of 1280x720, 4 steps of 0.1 s each: {:.2} s", start.elapsed().as_secs_f32());
    let task = caller.task(task["task_id"].as_str().expect("a task_id")).await;
    assert_eq!(task["status"], "completed", "{task}");
    for image in task["images"].as_array().expect("images") {
        let file = service.fetch(image["url"].as_str().expect("a URL"), &[]).await;
        assert_eq!(file.body[16..24], [1_280_u32.to_be_bytes(), 720_u32.to_be_bytes()].concat());
        let text = String::from_utf8_lossy(&file.body);
        assert!(!text.contains("a boat"), "the workflow that ComfyUI writes into files is gone");
    }
}
