//! The content policy as callers and operators meet it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tintype::policy::picture_hash;
use tintype::service::endings::REFUSED;
use tintype::worker::render::{Renderer as _, Sources};
use tintype_engine::picture::Picture;
use tintype_engine::{Brief, CancellationToken, Engine as _, Progress};
use tintype_sketch::Sketch;
use tintype_store::{KeyChange, QueueDepth};
use tintype_system::clock::Timestamp;

use crate::rigs::binary::{self, Ran as _, Server};
use crate::rigs::http::{Answer, TASKS, ended, send, submit};
use crate::rigs::service::{Service, control};
use crate::rigs::wait::until;

mod moderation;

const WORDS: &str = "[[rule]]\nname = \"arms\"\nwords = [\"bomb\", \"炸弹\"]\n";
const STRIKES: &str = "[strikes]\nlimit = 3\nwindow = \"1h\"\n";

/// A policy file in a directory of its own.
struct PolicyFile(TempDir);

impl PolicyFile {
    fn new(text: &str) -> Self {
        let file = Self(TempDir::new().expect("a directory"));
        file.write("policy.toml", text);
        file
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).expect("a file");
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("policy.toml")
    }

    async fn service(&self, flags: &[&str]) -> Service {
        let path = self.path();
        let flags: Vec<_> =
            ["--policy", path.to_str().expect("text")].into_iter().chain(flags.iter().copied()).collect();
        Service::start_with(&flags).await
    }
}

#[track_caller]
fn assert_refused(task: &Value) {
    assert_eq!((&task["status"], &task["error"]), (&json!("failed"), &json!(REFUSED)), "{task}");
}

fn metrics(service: &Service) -> String {
    service.shared.metrics.expose(&QueueDepth::default(), &[], Timestamp::from_millis(0), None)
}

/// An answer without the parts that differ between any two answers.
fn shape(answer: &Answer) -> (u16, Vec<(String, Vec<u8>)>, Value) {
    let named = |name: &str| ["x-request-id", "date"].contains(&name);
    let headers = answer.headers.iter().filter(|(name, _)| !named(name.as_str()));
    let headers = headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    let mut body = answer.json();
    body["error"]["request_id"] = json!("");
    (answer.status.as_u16(), headers, body)
}

#[tokio::test]
async fn a_prompt_with_a_forbidden_word_is_accepted_fails_and_is_refunded() {
    let service = PolicyFile::new(WORDS).service(&[]).await;
    let ada = service.caller("ada", 10).await;
    for prompt in ["a bomb", "a B\u{200b}Ο\u{43c}b", "画炸弹"] {
        assert_refused(&ada.outcome(prompt).await);
        assert_eq!(ada.credits().await, 10);
    }
    // Its reference leads nowhere; the refusal comes before the download.
    let body = json!({ "prompt": "a bomb", "reference_images": ["https://nowhere.example.com/a.png"] });
    assert_refused(&ada.outcome_of(body).await);
    assert_eq!(ada.outcome("a bombastic boat").await["status"], "completed");
    let counted = metrics(&service);
    assert!(counted.contains("tintype_tasks_refused_total{kind=\"words\"} 4"), "{counted}");
    assert!(!counted.contains("bomb") && !counted.contains("arms"), "{counted}");
}

#[tokio::test]
async fn the_last_strike_suspends_the_key_and_enabling_it_lifts_that() {
    let service = PolicyFile::new(&format!("{WORDS}{STRIKES}")).service(&[]).await;
    let ada = service.caller("ada", 100).await;
    let bob = service.caller("bob", 100).await;
    let (_, second_key) = service.new_key(ada.account.id, |_| {}).await;
    for _ in 0..2 {
        assert_refused(&ada.outcome("a bomb").await);
        assert_refused(&bob.outcome("a bomb").await);
    }
    service.clock.advance(Duration::from_secs(3_600));
    // Refusals by the engine count as strikes too; strikes of long ago do not.
    for prompt in ["a bomb", "a boat [[policy]]"] {
        assert_refused(&ada.outcome(prompt).await);
        assert_eq!(ada.get(TASKS).await.status, 200);
    }
    let waiting = ada.submit_prompt("a boat").await;
    let last = ada.submit_prompt("the bomb").await;
    service.work().await;
    service.clock.advance(Duration::from_secs(1));

    let unknown = tintype_domain::key::KeySecret::random();
    let unknown = service.call("GET", TASKS, &[("authorization", &format!("Bearer {}", unknown.reveal()))], "").await;
    unknown.assert_error(401, "UNAUTHORIZED");
    assert_eq!(shape(&ada.get(TASKS).await), shape(&unknown));
    ada.post(r#"{"prompt": "a boat"}"#).await.assert_error(401, "UNAUTHORIZED");
    let with_second = [("authorization", format!("Bearer {second_key}"))];
    let with_second: Vec<_> = with_second.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let task = service.call("GET", &format!("{TASKS}/{last}"), &with_second, "").await;
    assert_refused(&task.json()["data"]);
    let task = service.call("GET", &format!("{TASKS}/{waiting}"), &with_second, "").await;
    assert_eq!(task.json()["data"]["status"], "completed", "an accepted task is rendered");
    assert_eq!(bob.get(TASKS).await.status, 200);
    assert!(metrics(&service).contains("tintype_keys_suspended_total 1"));

    service.shared.store.change_key(ada.key_id, KeyChange::Enable).await.expect("a store");
    service.clock.advance(Duration::from_secs(1));
    for _ in 0..2 {
        assert_refused(&ada.outcome("a bomb").await);
    }
    service.clock.advance(Duration::from_secs(1));
    assert_eq!(ada.get(TASKS).await.status, 200, "enabling the key deleted its strikes");
}

#[tokio::test]
async fn the_operator_sees_the_suspension_and_lifts_it_beside_a_running_server() {
    let file = PolicyFile::new(&format!("{WORDS}{STRIKES}"));
    let path = file.path().display().to_string();
    let (data, server, key) = Server::install(&["--policy", &path]);
    for _ in 0..3 {
        submit(&server, &key, "a bomb").await;
    }
    until(async || keys(data.path())[0]["state"] == "suspended").await;
    let listed = keys(data.path());
    assert_eq!(listed[0]["suspension"]["reason"], "3 violations of the content policy within 1 hour");
    assert!(listed[0]["suspension"]["at"].is_string());
    let shown = binary::run(data.path(), ["key", "list"]).text();
    assert!(shown.contains("suspended (3 violations of the content policy within 1 hour; suspended at 2"), "{shown}");
    let status = async || send(server.address, "GET", TASKS, &key, "").await.status;
    until(async || status().await == 401).await;
    let id = listed[0]["id"].as_str().expect("an id");
    assert_eq!(binary::json(data.path(), &["key", "enable", id])["suspension"], Value::Null);
    until(async || status().await == 200).await;

    file.write("policy.toml", "[[rule]]\nname = \"boats\"\nwords = [\"boat\"]\n");
    until(async || {
        let task_id = submit(&server, &key, "a boat").await;
        ended(&server, &key, &task_id).await["error"] == REFUSED
    })
    .await;
    let task_id = submit(&server, &key, "a bomb").await;
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    server.stop();
}

fn keys(data: &Path) -> Value {
    binary::json(data, &["key", "list"])
}

#[tokio::test]
async fn a_broken_file_keeps_the_old_rules_and_a_mended_one_takes_over() {
    let file = PolicyFile::new(WORDS);
    let service = file.service(&[]).await;
    let ada = service.caller("ada", 100).await;
    let policy = &service.policy;
    assert_eq!(policy.refresh().await, Ok(false));
    file.write("policy.toml", "[[rule]]\nname = \"arms\"\nwords = [\n\"boat\"");
    let error = policy.refresh().await.expect_err("a broken file");
    assert!(error.contains("policy.toml, line ") && !error.contains("boat"), "{error}");
    assert_eq!(policy.refresh().await, Ok(false), "the error is returned once");
    assert_refused(&ada.outcome("a bomb").await);
    assert_eq!(ada.outcome("a boat").await["status"], "completed");
    file.write("policy.toml", &format!("{WORDS}[blocklist]\nfile = \"known.txt\"\n"));
    assert!(policy.refresh().await.is_err(), "the list is missing");
    file.write("known.txt", "\u{feff}0123456789abcdef\r\n");
    assert_eq!(policy.refresh().await, Ok(true), "the list alone has changed");
    assert!(policy.describe().expect("a policy").contains("1 blocked picture,"));
    std::fs::remove_file(file.path()).expect("a file");
    assert!(policy.refresh().await.is_err());
    assert_refused(&ada.outcome("a bomb").await);
    file.write("policy.toml", "");
    assert_eq!(policy.refresh().await, Ok(true));
    assert_eq!(ada.outcome("a bomb").await["status"], "completed");
}

/// A pipe in the place of the policy file. A reader waits until this value is dropped, and then reads an empty policy.
struct Pipe<'a>(&'a PolicyFile);

impl<'a> Pipe<'a> {
    fn replace(file: &'a PolicyFile) -> Self {
        std::fs::remove_file(file.path()).expect("a file");
        let made = Command::new("mkfifo").arg(file.path()).status().expect("mkfifo runs");
        assert!(made.success());
        Self(file)
    }
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        // Waits for the reader, which may not have opened the pipe yet; closing it gives the reader the end of file.
        let pipe = File::options().write(true).open(self.0.path()).expect("a pipe");
        std::fs::remove_file(self.0.path()).expect("a pipe");
        self.0.write("policy.toml", "");
        drop(pipe);
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_file_that_hangs_is_logged_once_and_used_when_it_answers() {
    let file = PolicyFile::new(WORDS);
    let service = file.service(&[]).await;
    let policy = &service.policy;
    let pipe = Pipe::replace(&file);
    let (read, ()) = tokio::join!(policy.refresh(), tokio::time::advance(Duration::from_secs(11)));
    let error = read.expect_err("no answer");
    assert!(error.contains("policy.toml") && error.contains("10 s"), "{error}");
    assert_eq!(policy.refresh().await, Ok(false), "one reader waits, and no second one starts");
    let before = policy.describe();
    drop(pipe);
    until(async || policy.describe() != before).await;
}

#[test]
fn a_server_does_not_start_with_a_broken_policy() {
    let data = TempDir::new().expect("a directory");
    for (text, message) in
        [("word = 1", "line 1: unknown field"), ("[[rule]]\nname = \"a\"\nwords = [\"\"]", "without letters")]
    {
        let path = PolicyFile::new(text);
        let said = binary::refused(
            data.path(),
            &["serve", "--listen", "127.0.0.1:0", "--policy", path.path().to_str().unwrap()],
        );
        assert!(said.contains("policy.toml") && said.contains(message), "{said}");
    }
    binary::refused(data.path(), &["serve", "--listen", "127.0.0.1:0", "--policy", "/nowhere/policy.toml"]);
}

#[test]
fn a_policy_file_can_be_checked_before_it_is_used() {
    let data = TempDir::new().expect("a directory");
    let file = PolicyFile::new(&format!("{WORDS}{STRIKES}"));
    let path = file.path().display().to_string();
    let check = |arguments: &[&str]| {
        let all = ["policy", "check", &path].into_iter().chain(arguments.iter().copied());
        let output = binary::run(data.path(), all);
        (output.status.code(), output.text())
    };
    let said =
        "The policy is valid: 1 rule, a key is suspended after 3 violations of the content policy within 1 hour.\n";
    assert_eq!(check(&[]), (Some(0), said.into()));
    assert_eq!(check(&["a boat"]), (Some(0), "No rule refuses this prompt.\n".into()));
    assert_eq!(check(&["a BOMB"]), (Some(1), "Refused by the rule arms.\n".into()));
    let (code, json) = check(&["a BOMB", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((code, &json["matches"]), (Some(1), &json!(["arms"])));
    let doctor = |path: &str| binary::run(data.path(), ["doctor", "--policy", path, "--json"]).check("policy");
    assert_eq!(doctor(&path)["ok"], true);
    assert!(doctor(&path)["detail"].as_str().expect("text").contains("1 rule,"));
    file.write("policy.toml", "rules = 1");
    assert_eq!(doctor(&path)["ok"], false);
    assert!(binary::refused(data.path(), &["policy", "check", &path]).contains("line 1"));
}

async fn rendered(prompt: &str) -> Picture {
    let time_limit = Duration::from_secs(60);
    let prompt = prompt.to_owned();
    let brief = Brief { prompt, width: 512, height: 384, seeds: vec![1], time_limit, ..Brief::default() };
    Sketch::new().render(brief, Progress::default(), CancellationToken::new()).await.expect("a picture").remove(0)
}

fn recoloured(picture: &Picture, change: impl Fn(u8) -> u8) -> Picture {
    let bytes = picture.as_rgb().iter().map(|byte| change(*byte)).collect();
    Picture::from_rgb(picture.width(), picture.height(), bytes).expect("as many bytes as pixels")
}

fn as_jpeg(picture: &Picture) -> Picture {
    let mut jpeg = Vec::new();
    let encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut jpeg, 20);
    let (bytes, width, height) = (picture.as_rgb(), picture.width(), picture.height());
    image::ImageEncoder::write_image(encoder, bytes, width, height, image::ExtendedColorType::Rgb8).expect("a JPEG");
    Picture::decode(&jpeg).expect("a JPEG")
}

#[tokio::test]
async fn altered_pictures_keep_their_hash_and_different_pictures_differ() {
    let prompts = [
        "a red fox in the snow at dawn",
        "a lighthouse by the sea at night",
        "a city skyline in the rain",
        "a bowl of fruit on a table",
        "mountains over a lake, watercolour",
        "a cat on a sofa",
        "a desert with a cactus",
        "an abstract composition of circles",
    ];
    let mut pictures = Vec::new();
    for prompt in prompts {
        pictures.push(rendered(prompt).await);
    }
    let distance = |one: &Picture, other: &Picture| (picture_hash(one) ^ picture_hash(other)).count_ones();
    for (index, picture) in pictures.iter().enumerate() {
        let altered = [
            ("smaller", picture.clone().within(160)),
            ("squeezed", picture.clone().within(300).fit(300, 225)),
            ("compressed", as_jpeg(picture)),
            ("lighter", recoloured(picture, |byte| byte.saturating_add(25))),
            ("darker", recoloured(picture, |byte| (u16::from(byte) * 3 / 4) as u8)),
            ("flatter", recoloured(picture, |byte| byte / 2 + 64)),
        ];
        for (how, altered) in altered {
            let near = distance(picture, &altered);
            assert!(near <= 8, "{} {how}: {near}", prompts[index]);
        }
        for other in pictures.iter().skip(index + 1) {
            let far = distance(picture, other);
            assert!(far > 8, "{}: {far}", prompts[index]);
        }
    }
}

#[tokio::test]
async fn a_result_on_the_block_list_is_refused_before_its_file_is_written() {
    let file = PolicyFile::new("");
    let service = file.service(&[]).await;
    let ada = service.caller("ada", 10).await;
    let task_id = ada.submit_prompt("a red fox in the snow").await;
    // The result is rendered beforehand: the same task always gets the same picture.
    let claim = service.shared.store.claim(1, Duration::from_secs(60)).await.expect("a store").remove(0);
    let renderer = service.renderer();
    let pngs = renderer.render(&claim, Sources::default(), control()).await.expect("a picture");
    let hash = picture_hash(&Picture::decode(&pngs[0]).expect("a PNG"));
    service.shared.store.release(claim.lease, std::time::Duration::ZERO).await.expect("a store");
    file.write("policy.toml", "[blocklist]\nfile = \"known.txt\"\n");
    file.write("known.txt", &format!("{hash:016x}  # a fox\n"));
    assert_eq!(service.policy.refresh().await, Ok(true));
    service.work().await;
    assert_refused(&ada.task(&task_id).await);
    assert_eq!(ada.credits().await, 10);
    let written = std::fs::read_dir(service.directory.path().join("files")).expect("a directory").count();
    assert_eq!(written, 0);
    assert!(metrics(&service).contains("tintype_tasks_refused_total{kind=\"blocklist\"} 1"));
    assert_eq!(ada.outcome("a city skyline in the rain").await["status"], "completed");
    let png = file.0.path().join("fox.png");
    std::fs::write(&png, &pngs[0]).expect("a file");
    let shown = binary::json(file.0.path(), &["policy", "hash", png.to_str().unwrap()]);
    assert_eq!(shown[0]["hash"], format!("{hash:016x}"));
}
