//! Presets and settings: what callers may choose, what becomes of it, and that it makes the same image again.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tintype_domain::model::{Surface, TaskId};
use tintype_domain::request::TaskSettings;
use tintype_engine::RenderSettings;

use crate::mcp::task_in;
use crate::rigs::binary::{Ran as _, Server, json as printed_json, refused, run, tintype};
use crate::rigs::http::{Answer, ended, send};
use crate::rigs::packages::{python, run as run_program};
use crate::rigs::service::{Caller, Service};
use crate::rigs::wait::until;
use crate::tidy::root;

const GENERATIONS: &str = "/v1/images/generations/async";

const PORTRAIT: &str = "[preset.portrait]\ndescription = \"Faces\"\nsteps = 30\nguidance-scale = 6.5\n\
    callers = [\"seed\", \"steps=10..50\"]\nreferences = 1\n";

/// A service with a config file that tests can change.
struct Rig {
    service: Service,
    file: PathBuf,
    _directory: TempDir,
}

impl Rig {
    async fn start(presets: &str) -> Self {
        Self::start_with(presets, &[]).await
    }

    async fn start_with(presets: &str, flags: &[&str]) -> Self {
        let directory = TempDir::new().expect("a directory");
        let file = directory.path().join("tintype.toml");
        fs::write(&file, "").expect("a file");
        let named = json!({ "path": file, "is_named": true, "version": null }).to_string();
        let flags = [&["--preset-file", named.as_str()], flags].concat();
        let rig = Self { service: Service::start_with(&flags).await, file, _directory: directory };
        rig.change(presets).await;
        rig
    }

    /// Changes the file, and has it read.
    async fn change(&self, presets: &str) {
        fs::write(&self.file, presets).expect("a file");
        // A file that changed just now is read when it is as before at the next look.
        self.look().await;
        self.look().await;
    }

    async fn look(&self) {
        self.service.shared.presets.refresh().await.expect("the file answers");
    }
}

pub async fn call(caller: &Caller, body: Value) -> Answer {
    caller.post_json(GENERATIONS, &[], body.to_string()).await
}

async fn settings_of(caller: &Caller, answer: &Answer) -> TaskSettings {
    assert_eq!(answer.status, 202, "{answer:?}");
    let TaskId(id) = answer.json()["id"].as_str().expect("an id").parse().expect("an id");
    let found = caller.service.shared.store.find_record(caller.account.id, Surface::Api, id).await.expect("a store");
    found.expect("a task").request.settings
}

/// The images of a call, once they are rendered.
async fn images(caller: &Caller, body: Value) -> Vec<Vec<u8>> {
    let answer = call(caller, body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    caller.service.work().await;
    images_of(caller, answer.json()["id"].as_str().expect("an id")).await
}

pub async fn images_of(caller: &Caller, task: &str) -> Vec<Vec<u8>> {
    let task = caller.task(task).await;
    let mut images = Vec::new();
    for image in task["images"].as_array().expect("images") {
        let url = image["url"].as_str().expect("a URL");
        let path = &url[url.find("/files").expect("a path")..];
        images.push(caller.service.call("GET", path, &[], "").await.body.to_vec());
    }
    images
}

#[track_caller]
fn refusal(answer: &Answer) -> (String, Value) {
    assert_eq!(answer.status, 400, "{answer:?}");
    let error = &answer.json()["error"];
    (error["message"].as_str().expect("a message").to_owned(), error["param"].clone())
}

#[tokio::test]
async fn a_seed_makes_the_same_image_again() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let body = |seed: u32, n: u8| json!({ "prompt": "a boat", "seed": seed, "n": n });
    let pair = images(&caller, body(7, 2)).await;
    assert_ne!(pair[0], pair[1], "the second image has the next seed");
    assert_eq!(images(&caller, body(7, 1)).await[0], pair[0]);
    assert_eq!(images(&caller, body(8, 1)).await[0], pair[1]);
    // -1 leaves the choice to the service, as with many programs.
    let free = json!({ "prompt": "a boat", "seed": -1 });
    assert_ne!(images(&caller, free.clone()).await, images(&caller, free).await);
}

#[tokio::test]
async fn the_seeds_of_a_task_that_named_none_make_its_images_again() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let answer = call(&caller, json!({ "prompt": "a boat", "n": 2 })).await;
    let TaskId(id) = answer.json()["id"].as_str().expect("an id").parse().expect("an id");
    let record = service.shared.store.find_record(caller.account.id, Surface::Api, id).await.expect("a store");
    let seeds: Vec<u32> = record.expect("a task").request.seeds(id).collect();
    let first = images(&caller, json!({ "prompt": "a boat", "seed": seeds[0] })).await;
    let second = images(&caller, json!({ "prompt": "a boat", "seed": seeds[1] })).await;
    let task = caller.task(&TaskId(id).to_string()).await;
    let mut own = Vec::new();
    for image in task["images"].as_array().expect("images") {
        let url = image["url"].as_str().expect("a URL");
        own.push(service.call("GET", &url[url.find("/files").expect("a path")..], &[], "").await.body.to_vec());
    }
    assert_eq!(own, [first[0].clone(), second[0].clone()]);
}

#[tokio::test]
async fn a_preset_decides_what_its_callers_may_change() {
    // Without an engine of its own a preset has those of the process: the sketch engine takes a seed alone.
    let rig = Rig::start(&format!("{PORTRAIT}engine = \"elsewhere\"\n")).await;
    let caller = rig.service.caller("ada", 100).await;
    let body =
        json!({ "prompt": "a face", "model": "portrait", "seed": 5, "num_inference_steps": 12, "strength": 0.5 });
    let answer = call(&caller, body).await;
    assert_eq!(answer.header("x-ignored-fields"), "strength");
    let render =
        RenderSettings { seed: Some(5), steps: Some(12), guidance_scale: Some(6.5), ..RenderSettings::default() };
    assert_eq!(
        settings_of(&caller, &answer).await,
        TaskSettings { preset: Some("portrait".into()), render, ..TaskSettings::default() }
    );
    assert_eq!(rig.service.worker.step().await.expect("a store"), 0, "it waits for its engine");
    let of_bounds = "steps must be from 10 to 50.";
    for (steps, expected) in [(json!(9), of_bounds), (json!("9"), of_bounds), (json!("9 "), "steps must be a number.")]
    {
        let answer = call(&caller, json!({ "prompt": "a face", "model": "portrait", "steps": steps })).await;
        assert_eq!(refusal(&answer), (expected.into(), json!("steps")));
    }
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test]
async fn settings_that_no_engine_takes_are_ignored_and_named() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let body = json!({ "prompt": "a boat", "steps": 9, "negative_prompt": "rain", "guidance_scale": 99 });
    let answer = call(&caller, body).await;
    assert_eq!(answer.header("x-ignored-fields"), "negative_prompt, steps, guidance_scale");
    assert_eq!(settings_of(&caller, &answer).await, TaskSettings::default());
    for (body, expected) in [
        (json!({ "prompt": "a boat", "seed": 1_u64 << 31 }), ("seed must be from 0 to 2147483647.", "seed")),
        (json!({ "prompt": "a boat", "seed": -2 }), ("seed must be a whole number.", "seed")),
        (json!({ "prompt": "a boat", "seed": 1.5 }), ("seed must be a whole number.", "seed")),
        (json!({ "prompt": "a boat", "negative_prompt": 1 }), ("negative_prompt must be a string.", "negative_prompt")),
        (
            json!({ "prompt": "a boat", "steps": 1, "num_inference_steps": 1 }),
            ("steps and num_inference_steps exclude each other.", "steps"),
        ),
    ] {
        assert_eq!(refusal(&call(&caller, body).await), (expected.0.into(), json!(expected.1)));
    }
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test]
async fn the_default_preset_serves_those_who_name_none() {
    let rig = Rig::start("[preset.default]\nseed = 3\n").await;
    let caller = rig.service.caller("ada", 100).await;
    let id = caller.submit_prompt("a boat").await;
    let native = rig.service.shared.store.find_record(caller.account.id, Surface::Api, id.parse::<TaskId>().unwrap().0);
    let native = native.await.expect("a store").expect("a task").request.settings;
    let answer = call(&caller, json!({ "prompt": "a boat", "model": "gpt-image-1" })).await;
    let expected = TaskSettings {
        preset: Some("default".into()),
        render: RenderSettings { seed: Some(3), ..RenderSettings::default() },
        ..TaskSettings::default()
    };
    assert_eq!((native, settings_of(&caller, &answer).await), (expected.clone(), expected));
    let of_caller = call(&caller, json!({ "prompt": "a boat", "seed": 4 })).await;
    assert_eq!(settings_of(&caller, &of_caller).await.render.seed, Some(4));
}

#[tokio::test]
async fn presets_follow_their_file_without_a_restart_and_a_bad_one_changes_nothing() {
    let rig = Rig::start(PORTRAIT).await;
    let caller = rig.service.caller("ada", 100).await;
    let names = async || {
        let models = caller.get("/v1/models").await.json();
        let ids = models["data"].as_array().expect("models").iter().map(|model| model["id"].clone());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["imgmodel", "portrait"]);
    rig.change("[preset.landscape]\nseed = 1\n").await;
    assert_eq!(names().await, ["imgmodel", "landscape"]);
    rig.change("[preset.landscape]\nsteps = 0\n").await;
    assert_eq!(names().await, ["imgmodel", "landscape"]);
    fs::remove_file(&rig.file).expect("removed");
    rig.change("").await;
    assert_eq!(names().await, ["imgmodel"]);
}

#[tokio::test]
async fn presets_stay_while_their_file_is_being_written_or_is_gone() {
    let rig = Rig::start(PORTRAIT).await;
    let names = || rig.service.shared.presets.all().iter().map(|preset| preset.name.clone()).collect::<Vec<_>>();
    // However slow this machine is, the file has just changed.
    let write = |text: &str| {
        let mut file = fs::File::create(&rig.file).expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        let far = std::time::UNIX_EPOCH + Duration::from_secs(10_000_000_000);
        file.set_modified(far + Duration::from_secs(text.len() as u64)).expect("a time");
    };
    for half in ["", "[preset.a]\n", "[preset.a]\nsteps = 9\n"] {
        write(half);
        rig.look().await;
        assert_eq!(names(), ["portrait"], "{half:?}");
    }
    rig.look().await;
    assert_eq!(names(), ["a"]);
    fs::remove_file(&rig.file).expect("removed");
    rig.look().await;
    rig.look().await;
    assert_eq!(names(), ["a"]);
    rustix::fs::mkfifoat(rustix::fs::CWD, &rig.file, rustix::fs::Mode::RWXU).expect("a pipe");
    rig.look().await;
    rig.look().await;
    assert_eq!(names(), ["a"]);
}

#[tokio::test]
async fn a_repeated_call_finds_its_task_whatever_its_preset_says_by_now() {
    let rig = Rig::start("[preset.draft]\ncallers = [\"seed=0..50\"]\n").await;
    let caller = rig.service.caller("ada", 100).await;
    let body = json!({ "prompt": "a boat", "model": "draft", "seed": 40 }).to_string();
    let call =
        async |repeated: &str| caller.post_json(GENERATIONS, &[("idempotency-key", repeated)], body.clone()).await;
    let first = call("mine").await;
    assert_eq!(first.status, 202, "{first:?}");
    rig.change("[preset.draft]\ncallers = [\"seed=0..30\"]\n").await;
    let again = call("mine").await;
    assert_eq!((again.status.as_u16(), again.json()["id"].clone()), (202, first.json()["id"].clone()), "{again:?}");
    assert_eq!(refusal(&call("another").await).0, "seed must be from 0 to 30.");
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test]
async fn a_preset_limits_the_images_that_come_with_a_call() {
    let rig = Rig::start("[preset.words]\nreferences = 0\n").await;
    let caller = rig.service.caller("ada", 100).await;
    let body = json!({ "prompt": "a boat", "model": "words", "image": "https://example.com/a.png" }).to_string();
    let answer = caller.post_json("/v1/images/edits/async", &[], body).await;
    assert_eq!(refusal(&answer), ("The preset words takes at most 0 images.".into(), json!("image")));
    assert_eq!(caller.credits().await, 100);
}

/// A preset with the name of an alias hides the alias.
#[tokio::test]
async fn each_model_is_listed_once() {
    let rig = Rig::start_with("[preset.fox]\nseed = 1\n", &["--model-alias", "fox=sketch"]).await;
    let models = rig.service.caller("eve", 0).await.get("/v1/models").await.json();
    let ids: Vec<_> = models["data"].as_array().expect("models").iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, [json!("imgmodel"), json!("fox")]);
}

#[test]
fn presets_of_the_config_file_are_checked_and_listed() {
    let data = TempDir::new().expect("a directory");
    let write = |text: &str| fs::write(data.path().join("tintype.toml"), text).expect("a file");
    write("[preset.portrait]\nengine = \"sdxl\"\n");
    let told = refused(data.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert!(
        told.contains("[preset.portrait]: there is no engine \"sdxl\"; the engines of this server are sketch"),
        "{told}"
    );
    write("[preset.portrait]\nstep = 3\n");
    let told = refused(data.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert!(told.contains("line 2: [preset.portrait] there is no setting \"step\": did you mean \"steps\"?"), "{told}");
    write(PORTRAIT);
    let listed = printed_json(data.path(), &["preset", "list"]);
    assert_eq!(
        listed,
        json!([{
            "name": "portrait", "description": "Faces", "engine": null,
            "settings": { "steps": 30, "guidance_scale": 6.5 },
            "callers": { "seed": [0, 2_147_483_647_u32], "steps": [10, 50] }, "references": 1,
        }])
    );
    let text = run(data.path(), ["preset", "list"]).text();
    assert!(text.contains("callers may change: seed, steps (10 to 50)"), "{text}");
    let shown = printed_json(data.path(), &["config", "show"]).to_string();
    assert!(shown.contains("preset.portrait.guidance-scale"), "{shown}");
}

#[test]
fn a_preset_with_a_lora_needs_an_engine_that_takes_one_and_a_file() {
    let data = TempDir::new().expect("a directory");
    let write = |text: &str| fs::write(data.path().join("tintype.toml"), text).expect("a file");
    let serve = ["serve", "--listen", "127.0.0.1:0"];
    write("[preset.ink]\nlora = \"/nowhere/ink.safetensors:0.8\"\n");
    let told = refused(data.path(), &serve);
    assert!(told.contains("[preset.ink] has a LoRA, and the engine sketch takes none: name one that does"), "{told}");
    let model = root().join("crates/diffusion/tests/parity/sd15");
    let model = model.to_str().expect("text");
    let told = refused(data.path(), &[&serve[..], &["--engine", "diffusion", "--model", model]].concat());
    assert!(told.contains("[preset.ink] lora: cannot read /nowhere/ink.safetensors: No such file"), "{told}");
    let shown = printed_json(data.path(), &["preset", "list"]);
    assert_eq!(shown[0]["settings"], json!({ "loras": [{ "path": "/nowhere/ink.safetensors", "weight": 0.8 }] }));
    let listed = printed_json(data.path(), &["engine", "list", "--engine", "diffusion", "--model", model]);
    assert_eq!((&listed["configured"][0]["loras"], &listed["configured"][0]["masks"]), (&json!("files"), &json!(true)));
}

fn lora(name: &str) -> String {
    let path = root().join("crates/diffusion/tests/parity/lora").join(name);
    path.to_str().expect("text").to_owned()
}

#[tokio::test]
async fn a_lora_of_another_family_never_comes_into_force() {
    let data = TempDir::new().expect("a directory");
    let write = |text: &str| fs::write(data.path().join("tintype.toml"), text).expect("a file");
    let model = root().join("crates/diffusion/tests/parity/sd15");
    let model = model.to_str().expect("text");
    let flags = ["--engine", "diffusion", "--model", model, "--engine-sizes", "64x64", "--read-rate", "0"];
    let serve = ["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data"];
    let (fitting, other) = (lora("sd15_kohya.safetensors"), lora("klein_kohya.safetensors"));
    write(&format!("[preset.ink]\nlora = {other:?}\n"));
    let told = refused(data.path(), &[&serve[..5], &flags].concat());
    assert!(told.contains(&format!("[preset.ink] lora: {other}: ")), "{told}");
    write("");
    let log = data.path().join("log");
    let mut command = tintype();
    command.args(serve).arg(data.path()).args(flags).stderr(fs::File::create(&log).expect("a file"));
    let server = Server::spawn(command);
    let key = server.first_key().expect("a key");
    let sees = async |preset: &str| {
        let models = send(server.address, "GET", "/v1/models", &key, "").await.json();
        models["data"].as_array().expect("models").iter().any(|model| model["id"] == preset)
    };
    let ink = format!("[preset.ink]\nlora = {fitting:?}\nsteps = 2\n");
    write(&ink);
    until(async || sees("ink").await).await;
    write(&format!("{ink}[preset.wash]\nlora = {other:?}\n"));
    until(async || {
        assert!(!sees("wash").await);
        fs::read_to_string(&log).expect("a log").contains("[preset.wash] lora: ")
    })
    .await;
    assert!(!sees("wash").await && sees("ink").await, "the presets before it stay");
    let body = json!({ "prompt": "a boat", "model": "ink" }).to_string();
    let answer = send(server.address, "POST", GENERATIONS, &key, &body).await.json();
    assert_eq!(ended(&server, &key, answer["id"].as_str().expect("an id")).await["status"], "completed");
}

#[test]
fn a_preset_has_no_choice_that_its_engine_does_not_take() {
    let data = TempDir::new().expect("a directory");
    let model = root().join("crates/diffusion/tests/parity/klein");
    let klein = ["--engine", "diffusion", "--model", model.to_str().expect("text")];
    for (engine, choice, told) in [
        (&klein[..], "prompt = \"weighted\"", "has weighted prompts, and the engine diffusion takes none"),
        (&klein, "quality = \"high\"", "has a quality, and the engine diffusion takes none"),
        (&["--engine", "openai:http://127.0.0.1:9"], "prompt = \"weighted\"", "has weighted prompts, and the engine"),
    ] {
        fs::write(data.path().join("tintype.toml"), format!("[preset.ink]\n{choice}\n")).expect("a file");
        let said = refused(data.path(), &[&["serve", "--listen", "127.0.0.1:0"], engine].concat());
        assert!(said.contains(&format!("[preset.ink] {told}")), "{said}");
    }
    let model = root().join("crates/diffusion/tests/parity/sd15");
    let shown = ["engine", "list", "--engine", "diffusion", "--model", model.to_str().expect("text")];
    assert_eq!(printed_json(data.path(), &shown)["configured"][0]["weighted_prompts"], true);
}

#[tokio::test]
async fn callers_choose_nothing_that_only_a_preset_does() {
    let rig = Rig::start(PORTRAIT).await;
    let caller = rig.service.caller("ada", 100).await;
    let body = json!({ "prompt": "a (boat:1.3)", "model": "portrait", "quality": "high" });
    let answer = call(&caller, body).await;
    let RenderSettings { prompt, quality, .. } = settings_of(&caller, &answer).await.render;
    assert_eq!((prompt, quality), (None, None));
}

#[tokio::test]
async fn callers_name_no_lora() {
    let rig = Rig::start(PORTRAIT).await;
    let caller = rig.service.caller("ada", 100).await;
    let loras = json!([{ "path": "/etc/passwd", "weight": 1 }]);
    let answer = call(&caller, json!({ "prompt": "a boat", "model": "portrait", "loras": &loras })).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-ignored-fields")), (202, "loras"));
    assert_eq!(settings_of(&caller, &answer).await.render.loras, []);
    // A file that no engine of this process could use changes nothing.
    rig.change(&format!("{PORTRAIT}lora = \"ink\"\n")).await;
    let answer = call(&caller, json!({ "prompt": "a boat", "model": "portrait" })).await;
    assert_eq!(settings_of(&caller, &answer).await.render.loras, []);
}

#[test]
fn the_command_line_generates_with_a_preset_and_a_seed() {
    let data = TempDir::new().expect("a directory");
    fs::write(data.path().join("tintype.toml"), "[preset.draft]\ncallers = [\"seed\"]\n").expect("a file");
    let server = Server::start(data.path(), &[]);
    let key = server.first_key().expect("a key");
    let made = |out: &str, more: &[&str]| {
        let out = data.path().join(out);
        let (url, folder) = (server.url(), out.to_str().expect("text").to_owned());
        let all = ["generate", "a boat", "--url", url.as_str(), "--key", key.as_str(), "--out", folder.as_str()];
        run(data.path(), all.iter().chain(more)).succeeded();
        let file = fs::read_dir(&out).expect("a folder").next().expect("an image").expect("an image");
        fs::read(file.path()).expect("an image")
    };
    let one = made("one", &["--preset", "draft", "--seed", "11"]);
    assert_eq!(made("two", &["--preset", "draft", "--seed", "11"]), one);
    assert_ne!(made("three", &["--seed", "12"]), one);
    let url = server.url();
    let all = ["generate", "a boat", "--url", url.as_str(), "--key", key.as_str(), "--preset", "darft"];
    let said = refused(data.path(), &all);
    assert!(said.contains("has no preset \"darft\"; it has draft. Nothing was submitted"), "{said}");
}

#[tokio::test]
async fn people_choose_a_preset_and_settings_and_make_the_same_image_again() {
    let presets =
        "[preset.draft]\ndescription = \"Quick\"\ncallers = [\"seed\"]\n[preset.fixed]\nseed = 1\ncallers = []\n";
    let rig = Rig::start(presets).await;
    let ada = rig.service.visitor("ada", 100).await;
    let page = ada.page("/studio").await;
    assert!(page.contains("value=\"draft\" data-opens=\"seed\"") && page.contains(">Quick</span>"), "{page}");
    assert!(page.contains("name=\"seed\"") && !page.contains("name=\"steps\""), "no engine takes steps: {page}");
    let fields = |more: &[(&'static str, &'static str)]| {
        let form = [("prompt", "a boat"), ("shape", "1:1"), ("n", "1"), ("references", "")];
        form.into_iter().chain(more.iter().copied()).collect::<Vec<_>>()
    };
    let latest = async || {
        let tasks = rig.service.shared.store.list_tasks(ada.account, Surface::Web, None, 1).await.expect("a store");
        let id = tasks.first().expect("a task").id;
        let record = rig.service.shared.store.find_record(ada.account, Surface::Web, id).await.expect("a store");
        (id, record.expect("a task").request)
    };
    let answer = ada.send("/studio/tasks", &fields(&[("preset", "draft"), ("seed", "5")])).await;
    assert_eq!(answer.status, 303, "{answer:?}");
    let (id, request) = latest().await;
    assert_eq!((request.settings.preset.as_deref(), request.settings.render.seed), (Some("draft"), Some(5)));
    rig.service.work().await;
    let picture = ada.page(&format!("/studio/tasks/{id}")).await;
    assert!(picture.contains("<dd>5 · <a href=") && picture.contains("<dd dir=\"auto\">draft</dd>"), "{picture}");
    let same = ada.page(&format!("/studio?from={id}&seed=1")).await;
    let chosen = "value=\"draft\" data-opens=\"seed\" data-paints checked>";
    assert!(same.contains(chosen) && same.contains("value=\"5\""), "{same}");
    let other = ada.page(&format!("/studio?from={id}")).await;
    assert!(other.contains(chosen) && !other.contains("value=\"5\""), "{other}");
    for (more, message) in [
        (&[("preset", "fixed"), ("seed", "5")][..], "does not support the setting \"Seed\""),
        (&[("preset", "gone")], "The preset gone no longer exists"),
        (&[("seed", "many")], "Seed: enter a whole number from 0 to "),
        (&[("seed", "-7")], "Seed: enter a whole number from 0 to "),
    ] {
        let answer = ada.send("/studio/tasks", &fields(more)).await;
        let said = String::from_utf8(answer.body.to_vec()).expect("text").replace("&#34;", "\"");
        assert!(answer.status == 422 && said.contains(message), "{message}: {said}");
    }
    assert_eq!(ada.credits().await, 98);
}

#[tokio::test]
async fn agents_see_the_presets_and_choose_one_with_settings() {
    let rig = Rig::start("[preset.draft]\ndescription = \"Quick\"\ncallers = [\"seed\"]\n").await;
    let caller = rig.service.caller("ada", 100).await;
    let listed = caller.result(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })).await;
    let preset = &listed["tools"][0]["inputSchema"]["properties"]["preset"];
    assert_eq!((&preset["type"], &preset["enum"]), (&json!("string"), &json!(["draft"])), "{listed}");
    assert!(preset["description"].to_string().contains("draft: Quick"), "{listed}");
    let arguments = json!({ "prompt": "a boat", "preset": "draft", "seed": 5, "steps": 9, "wait_seconds": 0 });
    let made = caller.tool("generate_image", &arguments).await;
    assert!(made.to_string().contains("Without effect here: steps."), "{made}");
    let TaskId(id) = task_in(&made)["task_id"].as_str().expect("an id").parse().expect("an id");
    let record = rig.service.shared.store.find_record(caller.account.id, Surface::Api, id).await.expect("a store");
    let expected = TaskSettings {
        preset: Some("draft".into()),
        render: RenderSettings { seed: Some(5), ..RenderSettings::default() },
        ..TaskSettings::default()
    };
    assert_eq!(record.expect("a task").request.settings, expected);
    for (arguments, message) in [
        (json!({ "prompt": "a boat", "preset": "gone" }), "There is no preset \\\"gone\\\". There are: draft."),
        (json!({ "prompt": "a boat", "preset": "draft", "seed": -9 }), "seed must be a whole number."),
    ] {
        let refused = caller.tool("generate_image", &arguments).await;
        assert!(refused["isError"] == true && refused.to_string().contains(message), "{refused}");
    }
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_of_openai_chooses_a_preset_and_settings() {
    let rig = Rig::start("[preset.draft]\ncallers = [\"seed\", \"steps=1..50\"]\n").await;
    let caller = rig.service.caller("ada", 100).await;
    let mut program = std::process::Command::new(python().join("python"));
    program.arg(root().join("tests/it/clients/openai_presets.py"));
    program.args([&format!("http://{}/v1", rig.service.address), &caller.key]);
    let said = tokio::task::spawn_blocking(move || run_program(&mut program));
    rig.service.work_for(&said).await;
    let said: Value = serde_json::from_str(&said.await.expect("no panic")).expect("JSON");
    // The sketch engine takes a seed alone.
    let refused = json!([["seed must be from 0 to 2147483647.", "seed"], ["seed must be a whole number.", "seed"]]);
    assert_eq!((&said["refused"], &said["same"]), (&refused, &json!(true)), "{said}");
    assert_eq!((&said["models"], &said["ignored"]), (&json!(["imgmodel", "draft"]), &json!("steps, strength")));
}
