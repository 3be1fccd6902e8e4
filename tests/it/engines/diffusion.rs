//! The built-in diffusion engine, in its real child process, with tiny models whose weights are random.

mod batch;
mod broken;
mod faults;
#[path = "../../../crates/diffusion/tests/parity/library.rs"]
mod library;
mod loras;
mod onnxruntime;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tintype_diffusion::{Options, Order, Pipeline};
use tintype_engine::{
    Brief, CancellationToken, Engine, EngineError, EngineInfo, Mask, Picture, Progress, PromptSyntax, RenderSettings,
    Stage,
};
use tintype_engines::{EngineChoice, EngineContext};
use tintype_system::sandbox::Decoder;

use crate::openai_edits::data_url;
use crate::openai_masks::{assert_left_half_changed, left_half, noise, picture_of};
use crate::rigs::binary::{Ran as _, Server, TINTYPE, json, printed, run, tintype};
use crate::rigs::engine::{build, cancel_once, choose_in, render};
use crate::rigs::http::{TASKS, ended, send, submit, submit_body};
use crate::rigs::service::Service;
use crate::rigs::wait::until;

/// Side of the pictures, in pixels.
const SIDE: u32 = 64;

/// A committed model with random weights.
pub fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/diffusion/tests/parity").join(name)
}

/// A copy of a model that a test may damage, and the folder that holds it.
fn copy_of(name: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().expect("a directory");
    let copy = directory.path().join(name);
    let parts = ["", "scheduler", "text_encoder", "tokenizer", "unet", "vae"];
    for part in parts {
        fs::create_dir_all(copy.join(part)).expect("a folder");
        for entry in fs::read_dir(model(name).join(part)).expect("a part").flatten() {
            if entry.path().is_file() {
                fs::copy(entry.path(), copy.join(part).join(entry.file_name())).expect("a copy");
            }
        }
    }
    (directory, copy)
}

/// Flags of a service that renders with a model at the size of the tests.
fn flags(model: &Path) -> Vec<String> {
    let model = model.to_str().expect("text");
    ["--engine", "diffusion", "--model", model, "--engine-sizes", "64x64"].map(str::to_owned).into()
}

/// The engine of these flags, which is not started.
fn choose(data: &Path, model: &Path, more: &[&str]) -> EngineChoice {
    let mut flags = flags(model);
    if more.contains(&"--engine-sizes") {
        flags.truncate(flags.len() - 2);
    }
    choose_in(data, flags.iter().map(String::as_str).chain(more.iter().copied())).expect("an engine")
}

/// An engine with this model in a process of its own, with a folder for its data.
pub struct Rig {
    pub engine: Arc<dyn Engine>,
    pub info: EngineInfo,
    _data: TempDir,
}

impl Rig {
    pub fn new(model: &Path, more: &[&str]) -> Self {
        Self::in_data(TempDir::new().expect("a directory"), model, more)
    }

    fn in_data(data: TempDir, model: &Path, more: &[&str]) -> Self {
        let choice = choose(data.path(), model, more);
        let context = EngineContext { decoder: Decoder::new(TINTYPE), keeps: true, ..EngineContext::default() };
        let engine = choice.build(context).expect("an engine");
        Self { engine, info: choice.info, _data: data }
    }

    /// Tasks that an engine would take at a time.
    fn slots(model: &Path, more: &[&str]) -> usize {
        choose(TempDir::new().expect("a directory").path(), model, more).info.slots
    }

    /// The engine for a model as the service knows it before it is built.
    fn info(model: &Path) -> EngineInfo {
        let data = TempDir::new().expect("a directory");
        choose_in(data.path(), flags(model).iter().map(String::as_str)).expect("an engine").info
    }

    pub async fn started(self) -> Self {
        self.engine.started().await.expect("a child");
        self
    }

    async fn render(&self, brief: Brief) -> Result<Vec<Picture>, EngineError> {
        render(&self.engine, brief).await
    }
}

fn brief(prompt: &str, seeds: &[u64]) -> Brief {
    let time_limit = Duration::from_secs(480);
    Brief { width: SIDE, height: SIDE, time_limit, ..super::openai::brief(prompt, seeds, Vec::new()) }
}

/// The picture that the crate makes by itself.
fn expected(model: &Path, prompt: &str, seed: u64) -> Picture {
    let mut pipeline = Pipeline::open(model, &Options::default()).expect("a model");
    let settings = pipeline.traits().settings();
    let side = SIDE as usize;
    let order = Order { prompt, width: side, height: side, seed, references: &[], mask: None };
    pipeline.render(&order, &settings, |_| {}, &CancellationToken::new()).expect("a picture")
}

fn processes(model: &Path) -> Vec<Pid> {
    let name = model.to_str().expect("text").to_owned();
    crate::rigs::binary::processes(|process| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut words = line.split('\0').skip(1);
        words.next() == Some("render-diffusion") && words.next().is_some_and(|setup| setup.contains(&name))
    })
}

#[tokio::test]
async fn a_child_renders_the_pictures_of_the_crate_and_reports_every_step() {
    for name in ["sd15", "lcm"] {
        let rig = Rig::new(&model(name), &[]);
        let early = rig.render(brief("a boat", &[1])).await;
        assert!(matches!(&early, Err(EngineError::NotAvailable(text)) if text.contains("starting")), "{early:?}");
        let rig = rig.started().await;
        let progress = Progress::default();
        let rendering = rig.engine.render(brief("a boat", &[7, 8]), progress.clone(), CancellationToken::new());
        let pictures = rendering.await.expect("pictures");
        let boats = [7, 8].map(|seed| expected(&model(name), "a boat", seed));
        assert_eq!(pictures, boats);
        let bytes = pictures[0].as_rgb();
        assert!(bytes.iter().any(|byte| *byte > 0) && bytes.iter().any(|byte| *byte != bytes[0]), "{name}");
        let measured = rig.engine.measured().expect("measured");
        let steps = u32::try_from(measured.steps.len()).expect("few");
        assert_eq!(progress.latest(), Some(Stage::Step { done: steps, of: steps }));
        assert_eq!(measured.decodes.len(), 2);
        assert!(measured.usage.peak_bytes > measured.usage.own_bytes && measured.usage.own_bytes > 0);
        assert!(measured.processor.contains("thread"), "{}", measured.processor);
        assert_eq!((rig.info.slots, rig.info.max_references), (1, 1));
    }
}

#[tokio::test]
async fn a_child_shows_previews_to_those_who_look() {
    // One with a tiny decoder, and one whose colours are fitted.
    for name in ["lcm", "sd15"] {
        let rig = Rig::new(&model(name), &[]).started().await;
        let progress = Progress::with_previews();
        let rendering = rig.engine.render(brief("a boat", &[7]), progress.clone(), CancellationToken::new());
        assert_eq!(rendering.await.expect("pictures"), [expected(&model(name), "a boat", 7)], "{name}");
        let preview = progress.preview().expect("a preview");
        assert!(preview.width() == preview.height() && preview.width() >= 8, "{name}: {preview:?}");
        let bytes = preview.as_rgb();
        assert!(bytes.iter().any(|byte| *byte != bytes[0]), "{name}");
        rig.render(brief("a boat", &[7])).await.expect("pictures");
    }
}

#[tokio::test]
async fn tasks_at_the_same_time_wait_for_each_other() {
    let rig = Rig::new(&model("lcm"), &[]).started().await;
    let (one, other) = tokio::join!(rig.render(brief("a boat", &[1])), rig.render(brief("a house", &[1])));
    assert_eq!(one.expect("pictures"), [expected(&model("lcm"), "a boat", 1)]);
    assert_eq!(other.expect("pictures"), [expected(&model("lcm"), "a house", 1)]);
}

#[tokio::test]
async fn a_service_renders_tasks_with_the_seeds_of_their_pictures() {
    let data = TempDir::new().expect("a directory");
    let (_directory, model) = copy_of("lcm");
    let flags = flags(&model);
    let server = Server::start(data.path(), &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let line = server.said.lines().find(|line| line.contains("Engine")).expect("a line");
    assert!(line.contains("on this machine's CPU") && line.contains("measured when it starts"), "{line}");
    let key = server.first_key().expect("a key");
    let body = json!({ "prompt": "a boat", "n": 4, "aspect_ratio": "16:9" });
    let task_id = submit_body(&server, &key, &body).await;
    let task = ended(&server, &key, &task_id).await;
    assert_eq!(task["status"], "completed", "{task}");
    let images = task["images"].as_array().expect("images");
    assert_eq!(images.len(), 4);
    let id = task_id.strip_prefix("imgmodel-").expect("an id");
    for (index, image) in (0_u8..).zip(images) {
        let url = image["url"].as_str().or(image.as_str()).expect("a URL");
        let path = url.strip_prefix(&server.url()).expect("a path");
        let file = send(server.address, "GET", path, &key, "").await;
        assert_eq!(file.body[16..24], [1_280_u32.to_be_bytes(), 720_u32.to_be_bytes()].concat());
        let digest = Sha256::new().chain_update(id).chain_update([index]).finalize();
        let seed =
            u64::from(u32::from_le_bytes(digest[..4].try_into().expect("four bytes")) & tintype_engine::MAX_SEED);
        let png = expected(&model, "a boat", seed).fit(1_280, 720).to_png();
        assert!(file.body == png, "picture {index} is not that of the crate");
    }
    assert_eq!(processes(&model).len(), 1, "the child stays warm");
    server.stop();
    until(async || processes(&model).is_empty()).await;
}

#[tokio::test]
async fn a_service_shows_the_progress_of_a_picture() {
    let data = TempDir::new().expect("a directory");
    let mut flags = flags(&model("sd15"));
    flags.extend(["--engine-steps".into(), "1000".into()]);
    let server = Server::start(data.path(), &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, "a boat").await;
    until(async || {
        let task = send(server.address, "GET", &format!("{TASKS}/{task_id}"), &key, "").await;
        assert_eq!(task.json()["data"]["status"], "processing", "{task:?}");
        task.headers.get("x-steps").is_some_and(|steps| steps.to_str().is_ok_and(|steps| steps.contains("/100")))
    })
    .await;
}

#[tokio::test]
async fn a_child_is_confined_and_dies_with_the_service() {
    let data = TempDir::new().expect("a directory");
    let (_directory, model) = copy_of("sd15");
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data"]).arg(data.path()).args(flags(&model));
    command.env("TINTYPE_SECRET_KEY", "secret");
    let server = Server::spawn(command);
    until(async || {
        let open = processes(&model);
        let status = |id: &Pid| fs::read_to_string(format!("/proc/{}/status", id.as_raw_nonzero())).unwrap_or_default();
        // A process that is just beginning has not confined itself.
        open.iter().any(|id| status(id).contains("Seccomp:\t2") && status(id).contains("NoNewPrivs:\t1"))
    })
    .await;
    let id = processes(&model)[0].as_raw_nonzero();
    let of = |name: &str| fs::read(format!("/proc/{id}/{name}")).expect("a process");
    assert!(of("environ").is_empty(), "no variable reaches the child");
    assert_eq!(of("oom_score_adj"), b"500\n");
    let limits = String::from_utf8(of("limits")).expect("text");
    let limit = |name: &str| limits.lines().find(|line| line.starts_with(name)).expect("a limit").to_owned();
    assert!(!limit("Max data size").contains("unlimited") && limit("Max core file size").contains(" 0 "), "{limits}");
    server.signal("KILL");
    until(async || processes(&model).is_empty()).await;
}

/// Adds a model to an installation under the name of its folder.
fn install(data: &Path, model: &Path) {
    run(data, ["model", "add", model.to_str().expect("text")]).succeeded();
}

#[tokio::test]
async fn a_service_with_an_installed_model_renders_with_it_and_remembers_its_speed() {
    let data = TempDir::new().expect("a directory");
    let (_directory, model) = copy_of("lcm");
    install(data.path(), &model);
    let start = || Server::start(data.path(), &["--engine-sizes", "64x64"]);
    let line = |server: &Server| {
        let line = server.said.lines().find(|line| line.contains("Engine"));
        line.expect("a line").to_owned()
    };
    let server = start();
    assert!(line(&server).contains("the model lcm on this machine's CPU; its speed is measured"), "{}", server.said);
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, "a boat").await;
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    server.stop();
    let server = start();
    assert!(line(&server).contains("a picture of 1024x1024 takes about"), "{}", server.said);
    server.stop();
    let listed = json(data.path(), &["engine", "list"]);
    assert_eq!(listed["configured"][0]["engine"], "diffusion");
    assert_eq!(json(data.path(), &["engine", "list", "--engine", "sketch"])["configured"][0]["engine"], "sketch");
    let speed = fs::read_to_string(data.path().join("models/lcm/cache/speed-f32.json")).expect("a file");
    assert!(speed.contains("4096"), "the size of the pictures was measured: {speed}");
    let other = json(data.path(), &["engine", "list", "--engine-sizes", "64x64", "--engine-precision", "w8a8"]);
    let description = other["configured"][0]["description"].as_str().expect("text");
    assert!(
        description.contains("its speed is measured when it starts"),
        "it has that of other numbers: {description}"
    );
}

#[tokio::test]
async fn a_task_with_little_time_is_rendered_at_a_smaller_size_of_the_same_ratio() {
    let data = TempDir::new().expect("a directory");
    let model = model("lcm");
    let flags = ["--engine", "diffusion", "--model", model.to_str().expect("text")];
    let choice = choose_in(data.path(), flags).expect("an engine");
    let rig = Rig { engine: build(&choice), info: choice.info, _data: data }.started().await;
    let of = |side| Brief { width: side * 2, height: side, ..brief("a boat", &[1]) };
    rig.render(of(256)).await.expect("pictures");
    let measured = rig.engine.measured().expect("measured");
    let took = measured.steps.iter().chain(&measured.decodes).sum::<Duration>() + measured.encode;
    let rendered = rig.render(Brief { time_limit: took * 3, ..of(1_024) }).await.expect("pictures");
    let (width, height) = (rendered[0].width(), rendered[0].height());
    assert!((256..1_024).contains(&height) && width == height * 2 && height % 16 == 0, "{width}x{height}");
}

#[tokio::test]
async fn an_edit_within_a_mask_changes_nothing_else() {
    let rig = Rig::new(&model("sd15"), &["--engine-sizes", "64x64", "--engine-steps", "2"]).started().await;
    assert!(rig.info.masks);
    let service = Service::start().await;
    let worker = service.worker_with(Arc::new(service.renderer_with(rig.info.clone(), rig.engine.clone())));
    let caller = service.caller("ada", 100).await;
    let original = noise(1_024, 1_024);
    let mask = json!({ "image_url": data_url(&left_half(1_024, 1_024)) });
    let body = json!({ "prompt": "a boat", "image": data_url(&original), "mask": mask }).to_string();
    let answer = caller.edit(&[("prefer", "respond-async")], "application/json", body).await;
    assert_eq!(worker.step().await.expect("a store"), 1);
    let painted = picture_of(&caller, answer.header("x-tintype-task-id")).await;
    assert_left_half_changed(&painted, &original);
}

#[test]
fn the_command_line_checks_and_tries_a_model() {
    let data = TempDir::new().expect("a directory");
    let out = data.path().join("boat.png");
    let (model, out) = (model("sd15"), out.to_str().expect("text").to_owned());
    let settings = ["--model", model.to_str().expect("text"), "--engine-sizes", "64x64"];
    let with = |arguments: &[&str]| {
        [arguments, &settings, &["--json"]].concat().iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let tried =
        printed(&run(data.path(), with(&["engine", "try", "diffusion", "a boat", "--seed", "7", "--out", &out])));
    let measured = &tried["measured"];
    assert_eq!(tried["rendered"], "64x64");
    assert!(measured["step_seconds"].as_array().is_some_and(|steps| !steps.is_empty()), "{tried}");
    assert!(measured["peak_memory_bytes"].as_u64() > measured["own_memory_bytes"].as_u64(), "{tried}");
    let png = expected(&model, "a boat", 7).fit(1_024, 1_024).to_png();
    assert!(fs::read(&out).expect("a file") == png, "the same picture as the crate's");

    let checked = printed(&run(data.path(), with(&["engine", "check", "diffusion"])));
    assert_eq!(checked[0]["ok"], true, "{checked}");
    let found = run(data.path(), with(&["doctor", "--engine", "diffusion"])).check("engine");
    assert!(found["ok"] == true && found["detail"].to_string().contains("Stable Diffusion"), "{found}");
    let listed = json(data.path(), &["engine", "list", "--engine", "diffusion", "--model", "nothing"]);
    assert_eq!(listed["configured"][0]["max_references"], 0);
}

fn remove_tensors(path: &Path, prefix: &str) {
    let bytes = fs::read(path).expect("weights");
    let begin = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().expect("eight"))).expect("small");
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes[8..begin]).expect("JSON");
    let (mut kept, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, mut entry) in header.into_iter().filter(|(name, _)| !name.starts_with(prefix)) {
        if let Some([from, to]) = entry["data_offsets"].as_array().map(|ends| [0, 1].map(|end| ends[end].as_u64())) {
            let [from, to] = [from, to].map(|end| begin + usize::try_from(end.expect("a number")).expect("small"));
            entry["data_offsets"] = json!([data.len(), data.len() + to - from]);
            data.extend_from_slice(&bytes[from..to]);
        }
        kept.insert(name, entry);
    }
    let text = serde_json::Value::Object(kept).to_string();
    fs::write(path, [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &data].concat()).expect("written");
}

#[test]
fn a_model_without_an_encoder_claims_no_references() {
    let (_directory, model) = copy_of("lcm");
    assert_eq!(Rig::info(&model).max_references, 1);
    remove_tensors(&model.join("vae/diffusion_pytorch_model.safetensors"), "encoder.");
    assert_eq!(Rig::info(&model).max_references, 0);
    let pipeline = Pipeline::open(&model, &Options::default()).expect("a model that renders all the same");
    assert_eq!(pipeline.traits().references, 0);
}
