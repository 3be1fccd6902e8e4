//! `tintype engine list | check | try`.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;
use tintype_engine::Picture;

use crate::rigs::binary::{json, printed, refused, run};
use crate::rigs::images_api::{Dialect, ImagesServer, Reply, painted};

/// Runs a command while servers of this test answer.
async fn running(data: &Path, arguments: &[&str]) -> Output {
    let (data, arguments) = (data.to_owned(), arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
    tokio::task::spawn_blocking(move || run(&data, arguments)).await.expect("no panic")
}

#[test]
fn the_list_shows_the_engine_of_the_settings_and_the_known_kinds() {
    let data = TempDir::new().unwrap();
    let listed = json(data.path(), &["engine", "list"]);
    assert_eq!(listed["configured"]["engine"], "sketch");
    assert_eq!(
        listed["known"],
        serde_json::json!(["sketch", "openai:URL", "sd-server:URL", "sd-server", "comfyui:URL"])
    );
    let settings = ["engine", "list", "--engine", "openai:https://api.openai.com/v1", "--engine-references", "2"];
    let listed = json(data.path(), &settings);
    assert_eq!(listed["configured"]["sizes"], serde_json::json!(["1024x1024", "1536x1024", "1024x1536"]));
    assert_eq!(listed["configured"]["max_references"], 2);
    assert!(refused(data.path(), &["engine", "list", "--engine", "dall-e"]).contains("there is no engine"));
}

#[tokio::test]
async fn a_check_says_whether_the_engine_takes_work() {
    let data = TempDir::new().unwrap();
    assert_eq!(json(data.path(), &["engine", "check"])["ok"], true);
    let server = ImagesServer::start(Dialect::Sglang).await;
    let output = running(data.path(), &["engine", "check", &server.engine(), "--json"]).await;
    assert_eq!(printed(&output)["ok"], true);
    assert!(server.asked().is_empty(), "it renders nothing");
    let output = running(data.path(), &["engine", "check", "openai:http://127.0.0.1:1/v1", "--json"]).await;
    assert!(!output.status.success());
    let checked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(checked["error"].as_str().is_some_and(|error| error.contains("http://127.0.0.1:1/v1")), "{checked}");
}

#[tokio::test]
async fn a_try_saves_one_picture_of_the_exact_size_and_never_overwrites_a_file() {
    let data = TempDir::new().unwrap();
    let out = data.path().join("boat.png");
    let out = out.to_str().expect("text");
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.reply([Reply::file(&painted(320, 200, 7))]);
    let engine = server.engine();
    let arguments = ["engine", "try", &engine, "a boat", "--aspect", "16:9", "--seed", "5", "--out", out, "--json"];
    let tried = printed(&running(data.path(), &arguments).await);
    assert_eq!((tried["rendered"].as_str(), tried["size"].as_str()), (Some("320x200"), Some("1280x720")));
    let asked = server.asked()[0].json();
    assert_eq!((asked["seed"].as_u64(), asked["prompt"].as_str()), (Some(5), Some("a boat")));
    let file = std::fs::read(out).expect("a file");
    assert_eq!(file[16..24], [1_280_u32.to_be_bytes(), 720_u32.to_be_bytes()].concat());
    assert_eq!(Picture::decode(&file).expect("a PNG").as_rgb()[0], 200);

    let output = running(data.path(), &arguments).await;
    assert!(!output.status.success());
    assert_eq!(server.asked().len(), 1, "nothing is rendered for a file that exists");
    std::fs::remove_file(out).expect("a file");
    server.reply([Reply::json(400, &serde_json::json!({ "detail": "too boaty" }))]);
    let output = running(data.path(), &arguments).await;
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success() && said.contains("answered 400: too boaty"), "{said}");
    assert!(!Path::new(out).exists(), "no empty file is left");
}
